r"""Encode one long text piece by piece, in bounded memory, to exactly the ids of the whole.

`LongText` works with any tokenizer: it asks `Tokenizer.settle` which ids at the start of a text are
already final, and holds the rest of the text. `Settler` implements this for byte-level BPE.

Most texts have a place to cut (`cutting.py`). Inside one long match of the pre-tokenizer's pattern,
such as 50 MB of `a` or of Chinese without punctuation, there is none. Merging a run takes 25 times
its size in memory, so a run is merged in windows. Byte-pair merging repeatedly takes the pair of
lowest rank, the leftmost of several, until none is left; let E(x) be the result for x. Three facts:

(1) If E(uv) has a token boundary between u and v, then E(uv) = E(u)E(v). No merge crossed it, and
    a merge that was the first choice in uv was also the first choice in its own half.
(2) If E(pt) = E(p)t and E(ts) = tE(s) for a token t, then E(pts) = E(p)tE(s). Suppose a merge crosses
    a boundary of t, and the first to do so crosses the one with p. Up to it, all choices in pt are the
    same as without s, so that merge would also happen in E(pt), a contradiction.
(3) Every token has at most L bytes. So for any continuation z, E(wz) has a boundary n among the
    last L bytes of w, or at its end, and by (1) begins with E(w[:n]).

Encode w once. Then encode w[u:n], for some u near the end and for each n of (3). If all of these have
a token t in common with E(w), at the same place, then by (1) and (2) every E(w[:n]) begins with the
tokens of E(w) up to and including t. By (3), so does E(wz) for every z.

The windows must be valid UTF-8, but tokens may end inside a character. A token across the end of w
starts at a character boundary if no token of the vocabulary has the two bytes around that end in its
middle and half a character at one of its own ends. Only ends between such bytes are used.

`ignore_merges` and tiktoken return the token of a whole match without merging, but no window is short
enough for that. The tests compare with two libraries, so one that merges differently would fail them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from unicodedata import is_normalized

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TooLongError
from tokenmill.tokenizers.base import NO_IDS, Tokenizer
from tokenmill.tokenizers.cutting import LETTER, MARK, NUMBER, CutRules, find_character_start
from tokenmill.tokenizers.id_arrays import Ids, Offsets

WINDOW = 512 << 10  # bytes encoded at once; gigatoken needs up to 25 times as much for one word
_LONGEST = 256  # bytes; with longer tokens, windows would cost too much
_OVERLAPS = (8, 64)  # how far before the end the second windows begin, in longest tokens


class LongText:
    """Encodes one text piece by piece.

    `most` is how many bytes may be held, and `window` how many are encoded at once.
    """

    def __init__(self, tokenizer: Tokenizer, most: int, *, window: int = WINDOW) -> None:
        self._tokenizer = tokenizer
        self._window = window
        self._most = most
        self._rest = b""
        self._tried = 0  # bytes of the rest in which no id was settled

    def feed(self, text: bytes) -> list[Ids]:
        """Add some valid UTF-8. Returns the ids that are now final."""
        data = self._rest + text if self._rest else text
        found: list[Ids] = []
        start = 0
        size = max(self._window, 2 * self._tried)
        while len(data) - start > size:
            stop = find_character_start(data, start + size)
            ids, taken = self._tokenizer.settle(data[start:stop])
            if taken:
                found.append(ids)
                start += taken
                self._tried, size = 0, self._window
            else:
                self._tried, size = size, 2 * size
        self._rest = data[start:] if start else data
        if len(self._rest) > max(self._most, 2 * self._window):
            size, name = len(self._rest), self._tokenizer.name
            raise TooLongError(
                size, f"{size:,} bytes of a document cannot be cut for the tokenizer {name}"
            )
        return found

    def finish(self) -> list[Ids]:
        """The remaining ids, if the text ends here."""
        rest, self._rest, self._tried = self._rest, b"", 0
        return [self._tokenizer.encode_batch([rest])[0]] if rest else []


class Settler:
    """Finds the start of a text whose ids no continuation can change."""

    def __init__(
        self,
        rules: CutRules,
        encode_batch: Callable[[Sequence[bytes]], tuple[Ids, Offsets]],
        spellings: Sequence[bytes | None],
        *,
        merging: bool,
    ) -> None:
        self._rules = rules
        self._encode = encode_batch
        self._lengths = np.array([len(spelling or b"") for spelling in spellings], np.int64)
        self._longest = int(self._lengths.max())
        self._merging = merging and self._longest <= _LONGEST
        self._straddled = _find_straddled_pairs(spellings)

    def settle(self, text: bytes) -> tuple[Ids, int]:
        """The final ids at the start of a text, and the number of bytes that they cover."""
        cut = self._rules.find_last_cut(text)
        if not cut and self._merging:
            return self._settle_run(text)
        return self._encode([text[:cut]])[0], cut

    def _settle_run(self, text: bytes) -> tuple[Ids, int]:
        nothing = NO_IDS, 0
        places = _find_characters(text)
        end = next(
            (
                int(place)
                for place in places[:0:-1][: self._longest]
                if (text[place - 1] << 8 | text[place]) not in self._straddled
            ),
            0,
        )
        window = text[:end]
        if not window:
            return nothing
        kind, start = self._rules.find_last_run(window)
        if kind == NUMBER and self._rules.family in ("cl100k", "o200k"):
            cut = self._rules.cut_numbers_by_three(window) if start == 0 else 0
            return self._encode([window[:cut]])[0], cut
        if kind == 0 or not self._may_settle(window, kind, start):
            return nothing
        if self._rules.nfc and not is_normalized("NFC", window.decode()):
            return nothing  # positions in the text and in the encoded bytes would differ
        ids = self._encode([window])[0]
        ends = np.cumsum(self._lengths[ids])
        if ends[-1] != len(window):
            return nothing
        character_ends = ends[(np.frombuffer(text, np.uint8)[ends] & 0xC0) != 0x80]
        for times in _OVERLAPS:
            # If a window starts where a token starts, a run of one letter gives the same tokens again.
            near = character_ends[
                : np.searchsorted(character_ends, end - times * self._longest, side="right")
            ]
            if not len(near) or near[-1] < start:
                return nothing
            settled = self._common_end(window, int(near[-1]), places, ends)
            if settled:
                return ids[: np.searchsorted(ends, settled) + 1], settled
        return nothing

    def _may_settle(self, window: bytes, kind: int, start: int) -> bool:
        """Whether the run is matched alone. With o200k, letters without case depend on the letters before."""
        if self._rules.family != "o200k" or kind != LETTER or start == 0:
            return True
        return int(self._rules.classify(window[:start])[-1]) > MARK

    def _common_end(
        self, window: bytes, start: int, places: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> int:
        """The end of the last token that all encodings have in common, or 0.

        A token that ends inside a character does not count: the rest would not be valid UTF-8.
        """
        low = np.searchsorted(places, len(window) - self._longest)
        stops = places[low : np.searchsorted(places, len(window), side="right")].tolist()
        common = _find_spans(start, ends[np.searchsorted(ends, start, side="right") :])
        ids, offsets = self._encode([window[start:stop] for stop in stops])
        for i in range(len(stops)):
            lengths = self._lengths[ids[offsets[i] : offsets[i + 1]]]
            common &= _find_spans(start, start + np.cumsum(lengths))
        whole = set(places[np.searchsorted(places, start) :].tolist())
        return max((end for _, end in common if end in whole), default=0)


def _find_spans(start: int, ends: npt.NDArray[np.int64]) -> set[tuple[int, int]]:
    """Where consecutive tokens start and end."""
    return set(pairwise([start, *ends.tolist()]))


def _find_characters(text: bytes) -> npt.NDArray[np.int64]:
    """Where characters start."""
    starts = np.flatnonzero((np.frombuffer(text, np.uint8) & 0xC0) != 0x80)
    return starts.astype(np.int64)


def _find_straddled_pairs(spellings: Sequence[bytes | None]) -> frozenset[int]:
    """The byte pairs around character starts, in tokens that begin or end inside a character."""
    pairs: set[int] = set()
    for spelling in spellings:
        if spelling is None or spelling.isascii():
            continue
        try:
            spelling.decode()
        except UnicodeDecodeError:
            pairs.update(
                before << 8 | after for before, after in pairwise(spelling) if after & 0xC0 != 0x80
            )
    return frozenset(pairs)
