"""Check, repair, clean, mask and encode the texts of a chunk.

Many documents are checked, cleaned and encoded at once, joined by NUL bytes. Only a chunk with
invalid UTF-8 is examined text by text. Encoding proceeds slice by slice and checks the memory after
each slice, so that memory does not grow with the chunk.

A document may arrive in fragments. It gets the same ids as the whole text, wherever it was cut. The
ids at the end of a fragment may depend on the next fragment, so the end is held back and encoded with
the next fragment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress

import numpy as np
import numpy.typing as npt

from tokenmill.preparation.clean import clean_block
from tokenmill.preparation.mask import mask
from tokenmill.preparation.memory import Workspace
from tokenmill.preparation.segment import BAD_TEXT, REPAIRED
from tokenmill.preparation.settings import PrepareSettings
from tokenmill.sources.files import BadFileError, SourceFile
from tokenmill.sources.records import (
    Chunk,
    Places,
    Rejection,
    count_byte,
    count_characters,
    is_utf8,
)
from tokenmill.tokenizers import Ids, Offsets
from tokenmill.tokenizers.id_arrays import join_batches, terminate_texts
from tokenmill.tokenizers.long_text import WINDOW, LongText

MARK = np.dtype(
    [
        ("flags", "<u4"),
        ("replaced", "<u4"),  # bytes that were not UTF-8
        ("line", "<u4"),  # of the first of these bytes, from 1 in the chunk; 0: unknown
    ]
)
MOST_REPLACED = int(np.iinfo(np.uint32).max)
_LONG = 2 * WINDOW  # a longer text is encoded in windows

Marks = npt.NDArray[np.void]
EncodedTexts = tuple[Ids, Offsets]  # the result of `encode_terminated`


@dataclass
class Texts:
    """The valid, cleaned texts of a chunk: a list, or a block of texts joined by NUL bytes."""

    listed: list[bytes] | None
    block: bytes | None
    offsets: list[int]
    sizes: Places  # of the documents as they were read
    marks: Marks | None  # one MARK per text; None: all 0
    masked: Mapping[str, int] = field(default_factory=dict)  # addresses that were replaced

    @classmethod
    def of(
        cls,
        texts: list[bytes],
        offsets: list[int],
        sizes: Places,
        marks: Marks | None,
        joined: bytes | None = None,
    ) -> Texts:
        """Make `Texts` from a list. Unless a text contains a NUL byte, also keep them as a block.

        `marks` says what was repaired in each text; None means nothing. `joined` is the block, if
        the caller has already joined the texts.
        """
        block = b"\0".join(texts) if joined is None else joined
        whole = bool(texts) and count_byte(block, 0) == len(texts) - 1
        return cls(texts, block if whole else None, offsets, sizes, marks)

    @property
    def texts(self) -> list[bytes]:
        """The documents as a list. A block is split when this is first used."""
        if self.listed is None:
            self.listed = self.block.split(b"\0") if self.block is not None else []
        return self.listed

    @cached_property
    def _borders(self) -> tuple[Places, Places]:
        """Where the texts of the block start and end."""
        nuls = np.flatnonzero(np.frombuffer(self.block or b"", np.uint8) == 0)
        return np.concatenate(([0], nuls + 1)), np.append(nuls, len(self.block or b""))

    def cut_block(self, first: int, stop: int) -> bytes:
        """Return the block of `texts[first:stop]`, joined by NUL bytes."""
        assert self.block is not None
        starts, ends = self._borders
        if first == 0 and stop == len(ends):
            return self.block
        return self.block[int(starts[first]) : int(ends[stop - 1])]

    @property
    def text_sizes(self) -> Places:
        """The number of bytes in each document."""
        if self.block is None:
            return np.fromiter(map(len, self.texts), np.int64, len(self.texts))
        starts, ends = self._borders
        return ends - starts

    @property
    def views(self) -> Sequence[bytes | memoryview]:
        """The documents as a list, without copying them out of their block."""
        if self.block is None:
            return self.texts
        view = memoryview(self.block)
        starts, ends = self._borders
        return [view[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]

    @property
    def characters(self) -> Places:
        """The number of characters in each document."""
        if self.block is None:
            return np.array([len(text.decode()) for text in self.texts], np.int64)
        return count_characters(self.block, *self._borders)

    def only(self, chosen: npt.NDArray[np.bool_]) -> Texts:
        """Return `Texts` with the chosen documents only."""
        kept, sizes = chosen.tolist(), self.sizes[chosen]
        offsets = list(compress(self.offsets, kept))
        marks = None if self.marks is None else self.marks[chosen]
        if self.block is None or not chosen.any():
            return Texts.of(list(compress(self.texts, kept)), offsets, sizes, marks)
        edges = np.flatnonzero(np.diff(np.concatenate(([False], chosen, [False]))))
        starts, ends = self._borders[0][edges[::2]], self._borders[1][edges[1::2] - 1]
        runs = zip(starts.tolist(), ends.tolist(), strict=True)
        block = b"\0".join([self.block[start:end] for start, end in runs])
        return Texts(None, block, offsets, sizes, marks)


def clean_chunk(chunk: Chunk, settings: PrepareSettings, source: SourceFile) -> Texts:
    """Return the texts of a chunk, cleaned, and repaired if they are not valid UTF-8.

    If `on_bad_text` is drop, documents with invalid UTF-8 are removed and added to the chunk's
    rejections. A fragment of such a document stays and is flagged, because the rest of the document
    may be in another chunk.
    """
    listed, offsets = chunk.texts, chunk.offsets
    sizes = np.fromiter(map(len, listed), np.int64, len(listed))
    marks: Marks | None = None
    block = b"\0".join(listed)
    # Most documents are ASCII, which is quick to check.
    if not all(text.isascii() or is_utf8(text) for text in listed):
        listed, marks = _repair(chunk, settings, source)
        last = len(listed) - 1
        keep = [
            i
            for i, flag in enumerate(marks["flags"].tolist())
            if flag != BAD_TEXT or (i == 0 and chunk.continues) or (i == last and chunk.unfinished)
        ]
        listed = [listed[i] for i in keep]
        marks = marks[keep]
        offsets, sizes = [offsets[i] for i in keep], sizes[keep]
        block = b"\0".join(listed)
    if not settings.normalize or not listed:
        return _mask_texts(Texts.of(listed, offsets, sizes, marks, block), settings)
    if count_byte(block, 0) != len(listed) - 1:
        block = b"\0".join([text.replace(b"\0", b"") for text in listed])
    block = clean_block(block, continues=chunk.continues, unfinished=chunk.unfinished)
    return _mask_texts(Texts(None, block, offsets, sizes, marks), settings)


def _mask_texts(texts: Texts, settings: PrepareSettings) -> Texts:
    """Replace the addresses that the settings ask to replace."""
    emails, ips = settings.mask_emails, settings.mask_ips
    if not (emails or ips):
        return texts
    facts = texts.offsets, texts.sizes, texts.marks
    if texts.block is not None:
        block, counts = mask(texts.block, emails=emails, ips=ips)
        return Texts(None, block, *facts, counts)
    listed, total = [], Counter[str]()
    for text in texts.texts:
        masked, counts = mask(text, emails=emails, ips=ips)
        listed.append(masked)
        total.update(counts)
    return replace(Texts.of(listed, *facts), masked=total)


def _repair(
    chunk: Chunk, settings: PrepareSettings, source: SourceFile
) -> tuple[list[bytes], Marks]:
    """Replace invalid UTF-8 in the texts of a chunk.

    Returns all texts, and a `MARK` for each: flags, how many bytes were replaced, and in which line
    the first of them is. If `on_bad_text` is drop, also adds a rejection to the chunk for each
    invalid text. If it is refuse, raises `BadFileError` instead.
    """
    texts, marks = list(chunk.texts), np.zeros(len(chunk.texts), MARK)
    for i, text in enumerate(texts):
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            offset = chunk.offsets[i]
            in_text = source.kind == "text"
            place = offset + error.start if in_text else chunk.bad_bytes.get(offset, offset)
            if settings.on_bad_text == "refuse":
                raise BadFileError(
                    source.path,
                    f"invalid UTF-8 at {source.unit} {place} ({error.reason}); fix the file, or pass "
                    "`on_bad_text='repair'` or `on_bad_text='drop'`",
                ) from error
            texts[i] = repaired = text.decode("utf-8", "replace").encode()
            line = chunk.line_of(place)
            if settings.on_bad_text == "repair":
                replaced = _count_replaced(text, repaired)
                marks[i] = (
                    REPAIRED,
                    min(replaced, MOST_REPLACED),
                    0 if line is None else line + 1,
                )
            else:
                marks[i] = (BAD_TEXT, 0, 0)
                reason = f"invalid UTF-8 at {source.unit} {place}: {error.reason}"
                chunk.rejections.append(Rejection(line, offset, "invalid UTF-8", reason, len(text)))
    return texts, marks


def _count_replaced(text: bytes, repaired: bytes) -> int:
    """Return how many bytes were replaced to repair a text."""
    mark = "\ufffd".encode()
    return len(text) - len(repaired) + len(mark) * (repaired.count(mark) - text.count(mark))


class Encoder:
    """Tokenizes a part: call `encode` for each chunk in order, then `finish`."""

    def __init__(self, workspace: Workspace, hold_limit: int) -> None:
        self._workspace = workspace
        self._tokenizer = workspace.tokenizer
        self._hold_limit = hold_limit
        self._open: LongText | None = None

    def encode(self, texts: Texts, chunk: Chunk) -> EncodedTexts:
        """Return the ids of all texts, and where each text starts in them.

        As in `encode_terminated`, the end-of-text id, or 0 if there is none, follows each text.
        """
        sizes = texts.text_sizes
        first, last = int(chunk.continues), len(sizes) - int(chunk.unfinished)
        runs = []
        if first:
            ends_here = not (chunk.unfinished and len(sizes) == 1)
            runs.append(self._continue(texts.texts[0], ends_here=ends_here))
        ends = np.cumsum(sizes)
        long = np.append(np.flatnonzero(sizes > _LONG), len(sizes))
        while first < last:
            room = (ends[first - 1] if first else 0) + self._workspace.slice_bytes
            stop = min(last, int(np.searchsorted(ends, room, side="right")))
            stop = max(first + 1, min(stop, int(long[np.searchsorted(long, first)])))
            runs.append(self._encode_some(texts, first, stop))
            first = stop
        if chunk.unfinished and first < len(sizes):
            self._open = None
            runs.append(self._continue(texts.texts[-1], ends_here=False))
        return runs[0] if len(runs) == 1 else join_batches(runs)

    def finish(self) -> Ids:
        """Return the remaining ids of a document that continues in the next part."""
        ids = [] if self._open is None else self._open.finish()
        self._open = None
        return np.concatenate([np.zeros(0, np.uint32), *ids])

    def _encode_some(self, texts: Texts, first: int, stop: int) -> EncodedTexts:
        """Encode the whole documents `texts[first:stop]`: one long text, or several short ones."""
        if texts.text_sizes[first] > _LONG:
            text = texts.texts[first]
            long = LongText(self._tokenizer, max(self._hold_limit, len(text)))
            ids = [*self._feed(long, text), *long.finish()]
            encoded = terminate_texts(
                [np.concatenate([np.zeros(0, np.uint32), *ids])], self._tokenizer.eot_id
            )
        elif texts.block is None:
            encoded = self._tokenizer.encode_terminated(texts.texts[first:stop])
        else:
            encoded = self._tokenizer.encode_block(texts.cut_block(first, stop))
        self._workspace.check_memory(within_chunk=True)
        return encoded

    def _continue(self, text: bytes, *, ends_here: bool) -> EncodedTexts:
        """Encode the next fragment of a document.

        Ids that may depend on the text after the fragment are held back until that text is encoded.
        """
        if self._open is None:
            self._open = LongText(self._tokenizer, self._hold_limit)
        ids = self._feed(self._open, text)
        if ends_here:
            ids += self._open.finish()
            self._open = None
        joined = np.concatenate([np.zeros(0, np.uint32), *ids])
        return terminate_texts([joined], self._tokenizer.eot_id)

    def _feed(self, long: LongText, text: bytes) -> list[Ids]:
        """Encode more of a long text, slice by slice. Returns the ids that no later text can change."""
        found: list[Ids] = []
        start = 0
        while start < len(text):
            stop = min(start + self._workspace.slice_bytes, len(text))
            while stop < len(text) and text[stop] & 0xC0 == 0x80:  # do not cut a character
                stop += 1
            found += long.feed(text[start:stop])
            self._workspace.check_memory(within_chunk=True)
            start = stop
        return found
