"""Read documents from Arrow IPC files and streams (`.arrow`, `.feather`). One column is the text.

The record batches are read one after another, without Arrow: it allocates what a file claims, and a
damaged file can end the process. Of a batch without compression, memory holds the places of its texts
and a block of them; of a compressed one, the text column. A dictionary is held whole. What does not
fit is refused before it is read. A damaged file is a `BadFileError`; a null is a `Rejection` with its
row. Rows are counted from the beginning of the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TooLongError
from tokenmill.sources.arrow_metadata import (
    BINARY_VIEW,
    LARGE_BINARY,
    LARGE_TEXT,
    MAGIC,
    TEXT_VIEW,
    Buffers,
    Field,
    Layout,
    Message,
    find_buffers,
    read_dictionary,
    read_layout,
    read_message,
)
from tokenmill.sources.fields import list_names
from tokenmill.sources.files import BadFileError, SourceFile, is_about_process, open_source
from tokenmill.sources.records import (
    BLOCK,
    COPIES,
    MOST_RECORDS,
    PARSED,
    Chunk,
    Cutter,
    Rejection,
    limit_chunk,
)
from tokenmill.wording import one_line

Numbers = npt.NDArray[np.int64]

_INLINE = 12  # bytes of a text that a view contains
_VALUE = 64  # bytes of memory for a value of a dictionary, besides its text
_ROW = 48  # bytes of memory for a row: where its text begins and ends


def measure_batches(path: str, hold_limit: int = 1 << 62) -> list[tuple[int, int]]:
    """Return the bytes and the rows of each record batch; an empty list if the file is damaged."""
    try:
        with open_source(path) as file:
            layout = read_layout(file, COPIES * hold_limit)
            return [(size, rows) for _, _, rows, size in layout.batches.tolist()]
    except (OSError, ValueError, TooLongError) as error:
        if is_about_process(error):
            raise
        return []


def read_arrow(
    source: SourceFile,
    start: int,
    end: int,
    text_field: str,
    cutter: Cutter | None,
    *,
    hold_limit: int = 1 << 62,
    block: int = BLOCK,
) -> Iterator[Chunk]:
    """Yield the documents in the record batches [start, end) of a file, in chunks."""
    try:
        with open_source(source.path) as file:
            layout = _find_layout(source, file, COPIES * hold_limit)
            number = _choose_column(layout.fields, text_field, source)
            reader = _Reader(file, layout, number, hold_limit)
            batches = layout.batches[start:end]
            row = int(layout.batches[:start, 2].sum())
            share = source.size / max(1, len(layout.batches))
            for place, length, rows, _ in batches.tolist():
                for texts in reader.read_batch(place, length, row, block):
                    chunk = _make_chunk(texts, row, text_field)
                    chunk.read = int(share * len(texts) / rows)
                    row += len(texts)
                    yield from limit_chunk(chunk, cutter, block)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # an error of the file system with its own reason
        raise BadFileError(source.path, f"the Arrow file is damaged ({error})") from error


def _find_layout(source: SourceFile, file: BinaryIO, most: int) -> Layout:
    """Return the layout of a file. A worker reads it once, though it reads many parts of the file."""
    if not source.modified:  # another file may have this name later
        return read_layout(file, most)
    return _read_layout_once(source.path, source.size, source.modified, most)


@lru_cache(maxsize=1)
def _read_layout_once(path: str, size: int, modified: int, most: int) -> Layout:  # noqa: ARG001
    with open_source(path) as file:
        return read_layout(file, most)


def _make_chunk(texts: list[bytes | None], row: int, text_field: str) -> Chunk:
    chunk = Chunk([], [])
    for number, text in enumerate(texts, row):
        if text is None:
            kind = f"field {text_field!r} is not a string"
            reason = f"field {text_field!r} is null"
            chunk.rejections.append(Rejection(None, number, kind, reason, 0))
        else:
            chunk.texts.append(text)
            chunk.offsets.append(number)
    return chunk


def _choose_column(fields: tuple[Field, ...], text_field: str, source: SourceFile) -> int:
    found = [number for number, field in enumerate(fields) if field.name == text_field]
    if not found:
        names = [field.name for field in fields if field.is_text]
        cure = (
            f"; use {' or '.join(f'`text_field={name!r}`' for name in names[:5])}"
            if names
            else "; none of them holds text"
        )
        listed = list_names([field.name for field in fields])
        raise BadFileError(source.path, f"no column {text_field!r}; it has {listed}{cure}")
    if len(found) > 1:
        reason = f"{len(found)} columns are named {text_field!r}; rename all but the one to read"
        raise BadFileError(source.path, reason)
    field = fields[found[0]]
    if not field.is_text:
        raise BadFileError(
            source.path,
            f"column {text_field!r} holds {one_line(field.described)}, not text; "
            "name the column of text with `text_field=NAME`",
        )
    return found[0]


class _Reader:
    """Reads one column of an open file."""

    def __init__(self, file: BinaryIO, layout: Layout, number: int, hold_limit: int) -> None:
        self._file = file
        self._layout = layout
        self._number = number
        self._field = layout.fields[number]
        self._limit = hold_limit
        self._size = file.seek(0, os.SEEK_END)
        file.seek(0)
        self._is_stream = file.read(len(MAGIC)) != MAGIC
        self._values: list[bytes | None] = []  # of the dictionary
        self._value_sizes: Numbers = np.zeros(0, np.int64)
        self._held = 0  # bytes in them
        self._loaded: tuple[int, int] = (0, 0)  # the messages that they come from
        self._dictionaries: list[tuple[int, int, bool]] | None = None

    def read_batch(
        self, place: int, length: int, row: int, block: int
    ) -> Iterator[list[bytes | None]]:
        """Yield the texts of a batch, in groups of about a block. The batch begins at `row`."""
        message = self._read_message(place, length)
        buffers = find_buffers(message.header, message, self._layout.fields, self._number)
        if buffers.rows * _ROW > COPIES * self._limit:
            raise TooLongError(
                buffers.rows * _ROW // COPIES,
                f"the batch from row {row} on has {buffers.rows:,} rows",
            )
        self._refuse_expansion(buffers, row)
        texts: _Texts
        if self._field.dictionary is not None:
            self._load_dictionary(place)
            texts = _Indexed(self, buffers, self._values, self._value_sizes, self._field)
        else:
            texts = self._open(buffers)
        yield from self._cut(texts, row, block)

    def _cut(self, texts: _Texts, row: int, block: int) -> Iterator[list[bytes | None]]:
        sizes = texts.sizes
        if len(sizes) and (longest := int(sizes.max())) > PARSED * self._limit:
            reason = f"the text in row {row + int(sizes.argmax())} has {longest:,} bytes"
            raise TooLongError(longest // PARSED, reason)
        if len(sizes) and (longest := int(texts.held.max())) > PARSED * self._limit:
            reason = f"row {row + int(texts.held.argmax())} takes {longest:,} bytes"
            raise TooLongError(longest // PARSED, reason)
        ends = np.cumsum(texts.held)
        start = 0
        while start < len(ends):
            room = (ends[start - 1] if start else 0) + block
            stop = max(start + 1, int(np.searchsorted(ends, room, side="right")))
            stop = min(stop, start + MOST_RECORDS)
            yield texts.take(start, stop)
            start = stop

    def _refuse_expansion(self, buffers: Buffers, row: int) -> None:
        """Refuse compressed buffers that take too much memory, by the sizes that they claim."""
        if buffers.codec:
            need = sum(self._measure(place, buffers.codec) for place in buffers.places)
            need += sum(size for _, size in buffers.places)
            if need > COPIES * self._limit:
                reason = f"the compressed texts from row {row} on have {need:,} bytes"
                raise TooLongError(need // COPIES, reason)

    def _open(self, buffers: Buffers) -> _Texts:
        kind = _Views if self._field.kind in (BINARY_VIEW, TEXT_VIEW) else _Spans
        return kind(self, buffers, self._field)

    def _read_message(self, place: int, length: int) -> Message:
        return read_message(self._file, place, length, self._size, COPIES * self._limit)

    def read(self, place: int, size: int) -> bytes:
        """Read exactly `size` bytes at `place`."""
        self._file.seek(place)
        data = self._file.read(size)
        if len(data) != size:
            raise ValueError("the file became shorter while it was being read")
        return data

    def _measure(self, place: tuple[int, int], codec: str | None) -> int:
        """Return the size of a buffer after decompression."""
        start, size = place
        if not codec or not size:
            return size
        if size < 8:
            raise ValueError("a compressed buffer is too short")
        claimed = int.from_bytes(self.read(start, 8), "little", signed=True)
        if claimed < -1:
            raise ValueError("a compressed buffer has a negative size")
        return size - 8 if claimed == -1 else claimed

    def load(self, place: tuple[int, int], codec: str | None, need: int = 1 << 62) -> bytes:
        """Return the content of a buffer, or its first `need` bytes.

        The caller has checked that so much fits in memory, or all of it if it is compressed.
        """
        start, size = place
        if not codec or not size:
            return self.read(start, min(size, need))
        expected = self._measure(place, codec)
        data = self.read(start, size)
        if data[:8] == b"\xff" * 8:
            return data[8:]
        import pyarrow as pa

        try:
            with pa.CompressedInputStream(pa.BufferReader(data[8:]), codec) as stream:
                found: bytes = stream.read(expected + 1)
        except (OSError, pa.ArrowException) as error:
            if is_about_process(error):
                raise
            raise ValueError(f"a compressed buffer is damaged: {error}") from error
        if len(found) != expected:
            raise ValueError(f"a compressed buffer has not {expected:,} bytes, as it claims")
        return found

    def _load_dictionary(self, place: int) -> None:
        """Load the values that the batch at `place` refers to."""
        if self._dictionaries is None:
            self._dictionaries = []
            for start, length in self._layout.dictionaries:
                number, _, is_delta = read_dictionary(self._read_message(start, length))
                if number == self._field.dictionary:
                    self._dictionaries.append((start, length, is_delta))
        # In a stream, a dictionary replaces the one before from there on.
        stop = len(self._dictionaries)
        if self._is_stream:
            stop = sum(start < place for start, _, _ in self._dictionaries)
        first = max((i for i in range(stop) if not self._dictionaries[i][2]), default=0)
        if first != self._loaded[0] or stop < self._loaded[1]:
            self._values, self._value_sizes, self._held = [], np.zeros(0, np.int64), 0
            self._loaded = (first, first)
        for i in range(self._loaded[1], stop):
            start, length, _ = self._dictionaries[i]
            message = self._read_message(start, length)
            _, batch, _ = read_dictionary(message)
            # Its values are the only column.
            buffers = find_buffers(batch, message, (self._field,), 0, values=True)
            if buffers.rows * _VALUE > COPIES * self._limit:
                raise self._refuse_dictionary(buffers.rows * _VALUE)
            self._refuse_expansion(buffers, 0)
            texts = self._open(buffers)
            sizes = np.concatenate([self._value_sizes, texts.sizes])
            need = len(sizes) * _VALUE + int(texts.held.sum()) + self._held
            if need > COPIES * self._limit:
                raise self._refuse_dictionary(need)
            self._values += texts.take(0, len(texts.sizes))
            self._value_sizes, self._held = sizes, need - len(sizes) * _VALUE
        self._loaded = (first, stop)

    def _refuse_dictionary(self, need: int) -> TooLongError:
        return TooLongError(need // COPIES, f"the dictionary of the texts takes {need:,} bytes")


class _Texts:
    """The texts of a batch.

    `sizes` are their bytes, -1 for a null. `held` are the bytes that `take` holds for each.
    """

    sizes: Numbers
    held: Numbers

    def take(self, start: int, stop: int) -> list[bytes | None]:
        raise NotImplementedError


def _find_nulls(reader: _Reader, buffers: Buffers) -> npt.NDArray[np.bool_] | None:
    if not buffers.nulls:
        return None
    need = -(-buffers.rows // 8)
    bits = np.frombuffer(reader.load(buffers.places[0], buffers.codec, need), np.uint8)
    if 8 * len(bits) < buffers.rows:
        raise ValueError("a batch lacks the bits for its nulls")
    valid = np.unpackbits(bits[:need], bitorder="little")[: buffers.rows]
    found: npt.NDArray[np.bool_] = valid == 0
    return found


class _Spans(_Texts):
    """Texts one after another, with the offset of each. Uncompressed texts stay in the file."""

    def __init__(self, reader: _Reader, buffers: Buffers, field: Field) -> None:
        kind = np.dtype("<i8" if field.kind in (LARGE_BINARY, LARGE_TEXT) else "<i4")
        count = buffers.rows + 1 if buffers.rows else 0
        data = reader.load(buffers.places[1], buffers.codec, count * kind.itemsize)
        if len(data) < count * kind.itemsize:
            raise ValueError("a batch lacks the offsets of its texts")
        offsets = np.frombuffer(data, kind, count).astype(np.int64)
        self._reader, self._place, self._data = reader, buffers.places[2][0], b""
        size = buffers.places[2][1]
        self._is_loaded = bool(buffers.codec)
        if buffers.codec:
            self._data = reader.load(buffers.places[2], buffers.codec)
            size = len(self._data)
        if count and (offsets[0] < 0 or offsets[-1] > size or (np.diff(offsets) < 0).any()):
            raise ValueError("the offsets of its texts are wrong")
        self._starts, self._stops = offsets[:-1], offsets[1:]
        self.held = np.diff(offsets) if count else np.zeros(0, np.int64)
        self.sizes = self.held.copy()
        if (nulls := _find_nulls(reader, buffers)) is not None:
            self.sizes[nulls] = -1

    def take(self, start: int, stop: int) -> list[bytes | None]:
        if start == stop:
            return []
        first, last = int(self._starts[start]), int(self._stops[stop - 1])
        if self._is_loaded:
            data, first = self._data, 0
        else:
            data = self._reader.read(self._place + first, last - first)
        starts = (self._starts[start:stop] - first).tolist()
        stops = (self._stops[start:stop] - first).tolist()
        sizes = self.sizes[start:stop].tolist()
        return [
            None if size < 0 else data[a:b] for a, b, size in zip(starts, stops, sizes, strict=True)
        ]


class _Views(_Texts):
    """Texts of which each is in its view, if it is short, or anywhere in one of several buffers."""

    def __init__(self, reader: _Reader, buffers: Buffers, field: Field) -> None:  # noqa: ARG002
        data = reader.load(buffers.places[1], buffers.codec, 16 * buffers.rows)
        if len(data) < 16 * buffers.rows:
            raise ValueError("a batch lacks the views of its texts")
        self._data = data
        self._views = np.frombuffer(data, "<i4", 4 * buffers.rows).reshape(-1, 4)
        self.sizes = self._views[:, 0].astype(np.int64)
        nulls = _find_nulls(reader, buffers)
        if nulls is not None:
            self.sizes[nulls] = -1
        if (self._views[:, 0] < 0).any() and (nulls is None or (self._views[~nulls, 0] < 0).any()):
            raise ValueError("a view has a negative size")
        self.held = np.maximum(self.sizes, 0)
        self._reader, self._places = reader, buffers.places[2:]
        self._loaded: list[bytes] | None = None
        lengths = [size for _, size in self._places]
        if buffers.codec:
            self._loaded = [reader.load(place, buffers.codec) for place in self._places]
            lengths = list(map(len, self._loaded))
        far = self.sizes > _INLINE
        number, offset = self._views[far, 2], self._views[far, 3].astype(np.int64)
        if not len(number):
            return
        if (number < 0).any() or int(number.max()) >= len(lengths) or (offset < 0).any():
            raise ValueError("a view leads out of its batch")
        if (offset + self.sizes[far] > np.array(lengths, np.int64)[number]).any():
            raise ValueError("a view leads out of its buffer")

    def take(self, start: int, stop: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        views = self._views[start:stop].tolist()
        for row, (_, _, number, offset) in enumerate(views, start):
            size = int(self.sizes[row])
            if size < 0:
                found.append(None)
            elif size <= _INLINE:
                found.append(self._data[16 * row + 4 : 16 * row + 4 + size])
            elif self._loaded is not None:
                found.append(self._loaded[number][offset : offset + size])
            else:
                found.append(self._reader.read(self._places[number][0] + offset, size))
        return found


class _Indexed(_Texts):
    """Texts of a dictionary."""

    def __init__(
        self,
        reader: _Reader,
        buffers: Buffers,
        values: list[bytes | None],
        sizes: Numbers,
        field: Field,
    ) -> None:
        kind = np.dtype(f"<{'i' if field.is_signed else 'u'}{field.width}")
        data = reader.load(buffers.places[1], buffers.codec, kind.itemsize * buffers.rows)
        if len(data) < kind.itemsize * buffers.rows:
            raise ValueError("a batch lacks the indices of its texts")
        indices: Any = np.frombuffer(data, kind, buffers.rows)
        nulls = _find_nulls(reader, buffers)
        used = indices if nulls is None else indices[~nulls]
        if len(used) and not 0 <= int(used.min()) <= int(used.max()) < len(values):
            raise ValueError("a text is not in its dictionary")
        chosen = np.zeros(buffers.rows, np.int64)
        keep = slice(None) if nulls is None else ~nulls
        chosen[keep] = used
        self.sizes = sizes[chosen] if len(values) else np.zeros(buffers.rows, np.int64)
        if nulls is not None:
            self.sizes[nulls] = -1
        self.held = np.maximum(self.sizes, 0)
        self._values, self._chosen = values, chosen

    def take(self, start: int, stop: int) -> list[bytes | None]:
        chosen, sizes = self._chosen[start:stop].tolist(), self.sizes[start:stop].tolist()
        return [
            None if size < 0 else self._values[i] for i, size in zip(chosen, sizes, strict=True)
        ]
