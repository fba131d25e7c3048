"""The texts of a chunk made fit to be tokenized: valid, and clean if asked for.

Many documents are checked and cleaned at once, joined by NUL bytes. Only a chunk with invalid
UTF-8 in it is looked at text by text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

import numpy as np
import numpy.typing as npt

from tokenmill.preparation.clean import clean_block
from tokenmill.preparation.settings import Settings
from tokenmill.sources.read import BadFileError, is_utf8
from tokenmill.sources.recognize import SourceFile
from tokenmill.sources.records import Chunk, Places, Rejection, count_byte, count_characters

BAD_TEXT, REPAIRED = 4, 8  # flags of a text
MARK = np.dtype(
    [
        ("flags", "<u4"),
        ("replaced", "<u4"),  # bytes that were not UTF-8
        ("line", "<u4"),  # line of the first of them within the chunk, from 1; 0: unknown
    ]
)
_MOST = 2**32 - 1

Marks = npt.NDArray[np.void]


@dataclass
class Prepared:
    """The documents of a chunk that are fit to be tokenized, cleaned.

    As in a chunk, they are a list, or a block of texts joined by NUL bytes.
    """

    listed: list[bytes] | None
    block: bytes | None
    offsets: list[int]
    sizes: Places  # of the documents as they were read
    marks: Marks | None  # one MARK per text; None: all 0

    @classmethod
    def of(
        cls,
        texts: list[bytes],
        offsets: list[int],
        sizes: Places,
        marks: Marks | None,
        joined: bytes | None = None,
    ) -> Prepared:
        """Texts one by one, as a block if no NUL byte in them forbids it."""
        block = b"\0".join(texts) if joined is None else joined
        whole = bool(texts) and count_byte(block, 0) == len(texts) - 1
        return cls(texts, block if whole else None, offsets, sizes, marks)

    @property
    def texts(self) -> list[bytes]:
        """The documents, one by one."""
        if self.listed is None:
            self.listed = self.block.split(b"\0") if self.block is not None else []
        return self.listed

    @cached_property
    def _borders(self) -> tuple[Places, Places]:
        """Where the texts of the block start and end."""
        nuls = np.flatnonzero(np.frombuffer(self.block or b"", np.uint8) == 0)
        return np.concatenate(([0], nuls + 1)), np.append(nuls, len(self.block or b""))

    def cut_block(self, first: int, stop: int) -> bytes:
        """The block with some of its texts only."""
        assert self.block is not None
        starts, ends = self._borders
        if first == 0 and stop == len(ends):
            return self.block
        return self.block[int(starts[first]) : int(ends[stop - 1])]

    @property
    def text_sizes(self) -> Places:
        """The bytes of each document."""
        if self.block is None:
            return np.fromiter(map(len, self.texts), np.int64, len(self.texts))
        starts, ends = self._borders
        return ends - starts

    @property
    def views(self) -> Sequence[bytes | memoryview]:
        """The documents, one by one, without copying them out of their block."""
        if self.block is None:
            return self.texts
        view = memoryview(self.block)
        starts, ends = self._borders
        return [view[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]

    @property
    def characters(self) -> Places:
        """The characters of each document."""
        if self.block is None:
            return np.array([len(text.decode()) for text in self.texts], np.int64)
        return count_characters(self.block, *self._borders)

    def only(self, chosen: npt.NDArray[np.bool_]) -> Prepared:
        """Some of the documents."""
        kept, sizes = chosen.tolist(), self.sizes[chosen]
        offsets = list(compress(self.offsets, kept))
        marks = None if self.marks is None else self.marks[chosen]
        if self.block is None or not chosen.any():
            return Prepared.of(list(compress(self.texts, kept)), offsets, sizes, marks)
        edges = np.flatnonzero(np.diff(np.concatenate(([False], chosen, [False]))))
        starts, ends = self._borders[0][edges[::2]], self._borders[1][edges[1::2] - 1]
        runs = zip(starts.tolist(), ends.tolist(), strict=True)
        block = b"\0".join([self.block[start:end] for start, end in runs])
        return Prepared(None, block, offsets, sizes, marks)


def prepare_chunk(chunk: Chunk, settings: Settings, source: SourceFile) -> Prepared:
    """Decode and clean a chunk. Documents with bad text leave it if they are to be dropped;
    of a document in pieces, the piece stays and is flagged."""
    listed, offsets = chunk.texts, chunk.offsets
    sizes = np.fromiter(map(len, listed), np.int64, len(listed))
    marks: Marks | None = None
    block = b"\0".join(listed)
    # Few documents have other characters than ASCII, and to look for those is quick.
    if not all(text.isascii() or is_utf8(text) for text in listed):
        listed, marks = _judge_bad_text(chunk, settings, source)
        last = len(listed) - 1
        keep = [
            i
            for i, flag in enumerate(marks["flags"].tolist())
            if flag != BAD_TEXT or (i == 0 and chunk.continues) or (i == last and chunk.goes_on)
        ]
        listed = [listed[i] for i in keep]
        marks = marks[keep]
        offsets, sizes = [offsets[i] for i in keep], sizes[keep]
        block = b"\0".join(listed)
    if not settings.normalize or not listed:
        return Prepared.of(listed, offsets, sizes, marks, block)
    if count_byte(block, 0) != len(listed) - 1:
        block = b"\0".join([text.replace(b"\0", b"") for text in listed])
    block = clean_block(block, continues=chunk.continues, goes_on=chunk.goes_on)
    return Prepared(None, block, offsets, sizes, marks)


def _judge_bad_text(
    chunk: Chunk, settings: Settings, source: SourceFile
) -> tuple[list[bytes], Marks]:
    """The texts of a chunk; those that are not UTF-8 are repaired, and marked as repaired or bad."""
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
                    f"invalid UTF-8 at {source.unit} {place} ({error.reason}); repair it, or set "
                    "`on_bad_text` to repair or drop",
                ) from error
            texts[i] = repaired = text.decode("utf-8", "replace").encode()
            line = chunk.line_of(place)
            if settings.on_bad_text == "repair":
                replaced = _count_replaced(text, repaired)
                marks[i] = (REPAIRED, min(replaced, _MOST), 0 if line is None else line + 1)
            else:
                marks[i] = (BAD_TEXT, 0, 0)
                reason = f"invalid UTF-8 at {source.unit} {place}: {error.reason}"
                chunk.rejections.append(Rejection(line, offset, "invalid UTF-8", reason, len(text)))
    return texts, marks


def _count_replaced(text: bytes, repaired: bytes) -> int:
    """How many bytes of a text were replaced to repair it."""
    mark = "\ufffd".encode()
    return len(text) - len(repaired) + len(mark) * (repaired.count(mark) - text.count(mark))
