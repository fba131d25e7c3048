"""What the text of the tokens is made of: scripts, and lines that repeat.

Scripts are counted by token: each id that occurs is decoded once. A token with only a part of a
character has no text of its own. If such tokens make up more than 0.5% of the bytes, as in Chinese text
that gpt2 tokenized, scripts are counted in decoded text instead.

Costs: decoding takes about a second for three million tokens. So at most `TEXT_TOKENS` are decoded:
all, or evenly spaced blocks. Memory holds the text of one block, at most `_MOST_BYTES` for any
vocabulary, and 8 bytes for each line.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.formats.document_starts import find_document_starts
from tokenmill.inspect.stats.result import Lines, ScriptCount, Scripts
from tokenmill.inspect.stats.sample import choose_blocks
from tokenmill.inspect.stats.scripts import NO_SCRIPT, find_scripts
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import Tokenizer

TEXT_TOKENS = 1 << 23  # tokens to decode, at most
BLOCK = 1 << 18  # tokens decoded at once
LEAST_LINE = 20  # characters of a line that counts, as in `prepare`
_MOST_BYTES = 32 << 20  # bytes of text decoded at once
_MOST_BLOCKS = 8  # blocks to hold before a longer document is cut
_MOST_DECODED = 1 << 20  # ids to decode one by one
_SPLIT = 0.005  # share of bytes in parts of characters above which scripts need decoded text

Integers = npt.NDArray[np.int64]


class ScriptCounter:
    """Counts letters by script, and characters."""

    def __init__(self) -> None:
        self._table = find_scripts()
        self._counts = np.zeros(len(self._table.names), np.int64)
        self.tokens = 0

    def add(self, text: str, times: int = 1) -> None:
        """Count the characters of a text that occurs `times` times."""
        self._counts += self._table.count_in(text) * times

    def find(self, split_share: float, *, is_decoded: bool) -> Scripts:
        """Return what was counted."""
        letters = int(self._counts[1:].sum())
        assert self._table.names[0] == NO_SCRIPT
        order = np.argsort(-self._counts[1:], kind="stable") + 1
        return Scripts(
            characters=int(self._counts.sum()),
            letters=letters,
            tokens=self.tokens,
            is_decoded=is_decoded,
            split_share=split_share,
            scripts=tuple(
                ScriptCount(
                    script=self._table.names[number],
                    letters=int(self._counts[number]),
                    share=int(self._counts[number]) / letters,
                )
                for number in order.tolist()
                if self._counts[number]
            ),
        )


class LineCounter:
    """Counts lines, and keeps the hash of each."""

    def __init__(self) -> None:
        self._hashes = array("Q")
        self.tokens = 0

    def add(self, lines: list[str]) -> None:
        """Count the lines that are long enough and not blank."""
        for line in lines:
            if len(line) >= LEAST_LINE and not line.isspace():
                encoded = line.encode("utf-8", "surrogatepass")
                self._hashes.append(xxhash.xxh3_64_intdigest(encoded))

    def find(self, *, is_sample: bool) -> Lines:
        """Return what was counted."""
        hashes = np.sort(np.frombuffer(self._hashes, np.uint64)) if self._hashes else np.empty(0)
        return Lines(
            lines=len(hashes),
            repeated=int(np.count_nonzero(hashes[1:] == hashes[:-1])),
            tokens=self.tokens,
            min_length=LEAST_LINE,
            is_sample=is_sample,
        )


def count_scripts_by_id(
    tokenizer: Tokenizer, counts: Integers, byte_lengths: Integers
) -> tuple[ScriptCounter, float]:
    """Count scripts by token. Also return the share of bytes in tokens with a part of a character."""
    counter, split = ScriptCounter(), 0
    used = np.flatnonzero(counts)
    for number in used[:_MOST_DECODED].tolist():
        if not byte_lengths[number]:
            continue
        text = tokenizer.decode([number])
        if "\ufffd" in text and len(text.encode("utf-8", "replace")) != byte_lengths[number]:
            split += int(counts[number] * byte_lengths[number])
        counter.add(text, int(counts[number]))
    split += int(counts[used[_MOST_DECODED:]] @ byte_lengths[used[_MOST_DECODED:]])
    counter.tokens = int(counts.sum())
    total = int(counts @ byte_lengths)
    return counter, split / total if total else 0.0


def is_split(share: float) -> bool:
    """Return whether so much of the text is in parts of characters that it must be decoded."""
    return share > _SPLIT


def read_text(
    tokens: Tokens,
    tokenizer: Tokenizer,
    byte_lengths: Integers,
    scripts: ScriptCounter | None,
    lines: LineCounter,
    limit: int,
    advance: Callable[[int], None],
) -> None:
    """Decode a split, or evenly spaced blocks of it, and count its scripts and lines."""
    is_text = byte_lengths > 0
    for start, ids, is_cut in _find_runs(tokens, byte_lengths, limit):
        pieces = _split(tokens, start, ids)
        texts = [tokenizer.decode(piece[is_text[piece]]) for piece in pieces]
        if scripts is not None:
            scripts.add("".join(texts))
            scripts.tokens += len(ids)
        found = [text.split("\n") for text in texts]
        if is_cut[0]:  # omit the first line, which begins before the text
            del found[0][:1]
        if is_cut[1]:
            del found[-1][-1:]
        for some in found:
            lines.add([line.removesuffix("\r") for line in some])
        lines.tokens += len(ids)
        advance(len(ids))


def _find_runs(
    tokens: Tokens, byte_lengths: Integers, limit: int
) -> Iterator[tuple[int, npt.NDArray[np.generic], tuple[bool, bool]]]:
    """Yield (start, ids, (whether the first line may be cut, whether the last line may be cut)).

    Blocks that follow each other are cut between documents if possible.
    """
    has_documents = tokens.documents is not None or tokens.eot_id is not None
    held = np.empty(0, tokens.dtype)
    begin, is_cut, end = 0, False, 0
    for start, stop in choose_blocks(len(tokens), limit, BLOCK):
        if start != end and len(held):
            yield begin, held, (is_cut, True)
        if start != end:
            held, begin, is_cut = held[:0], start, True
        ids = np.append(held, tokens.read(start, stop))
        end = stop
        ids, too_long = _fit(ids, byte_lengths)
        place = len(ids)
        if stop < len(tokens) and has_documents and not too_long:
            place = _find_last_start(tokens, max(start, begin + 1), stop) - begin
            if place <= 0:  # no other document starts: keep what is held, unless it is too much
                place = len(ids) if len(ids) >= _MOST_BLOCKS * BLOCK else 0
        is_end_cut = too_long or (place == len(ids) and stop < len(tokens))
        if place:
            yield begin, ids[:place], (is_cut, is_end_cut)
            begin += place
            held, is_cut = ids[place:], is_end_cut
            if too_long:
                held, begin, is_cut = held[:0], stop, True
        else:
            held = ids
    if len(held):
        yield begin, held, (is_cut, end < len(tokens))


def _fit(
    ids: npt.NDArray[np.generic], byte_lengths: Integers
) -> tuple[npt.NDArray[np.generic], bool]:
    """Return the first ids, with at most `_MOST_BYTES` of text, and whether there were more."""
    sizes = np.cumsum(byte_lengths[ids])
    if not len(sizes) or sizes[-1] <= _MOST_BYTES:
        return ids, False
    return ids[: int(np.searchsorted(sizes, _MOST_BYTES, side="right"))], True


def _find_last_start(tokens: Tokens, low: int, high: int) -> int:
    """Return the last position in [low, high) where a document starts; -1 if there is none."""
    last = -1
    for starts in find_document_starts(tokens, low, high):
        last = int(starts[-1]) if len(starts) else last
    return last


def _split(
    tokens: Tokens, start: int, ids: npt.NDArray[np.generic]
) -> Iterator[npt.NDArray[np.generic]]:
    """Divide ids where documents start. `start` is the position of the first id in the split."""
    if tokens.documents is None and tokens.eot_id is None:
        yield ids
        return
    places = [
        starts - start for starts in find_document_starts(tokens, start + 1, start + len(ids))
    ]
    yield from np.split(ids, np.unique(np.concatenate(places)) if places else [])
