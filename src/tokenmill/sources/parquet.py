"""Read documents from Parquet files. The text is one column, or several joined by a template.

Rows are decoded about one block at a time, or less if a block would not fit in memory. If not even
one row fits, the file is refused. A damaged file is a `BadFileError`; a null is a `Rejection` with
its row. Arrow allocates any amount of memory that a file asks for. So before Arrow reads,
`_bound_footer` computes how much memory the footer can take, and `parquet_pages.py` how much the
pages take.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from tokenmill.errors import TooLongError
from tokenmill.sources.fields import Field, parse_text_field
from tokenmill.sources.files import BadFileError, SourceFile, is_about_process, open_source
from tokenmill.sources.parquet_columns import KeptColumns, TextColumns, Texts
from tokenmill.sources.parquet_pages import (
    PER_VALUE,
    ColumnChunk,
    ColumnPages,
    measure_pages,
    read_footer,
)
from tokenmill.sources.records import BLOCK, COPIES, PARSED, Chunk, Cutter, Rejection, limit_chunk

ROWS = 256  # decoded at once
_BUFFER = 1 << 20  # bytes; without a buffer, Arrow reads a whole column chunk, which is slower
_STRUCTURE = 512  # bytes of memory that Arrow takes for a structure in a footer
_FOOTER = 16  # bytes of memory that Arrow takes for any other byte of a footer
_LEAST_FOOTER = 1 << 16  # a footer of this many bytes is always allowed


def measure_row_groups(path: str, hold_limit: int = 1 << 62) -> list[int]:
    """Return the uncompressed bytes of each row group; an empty list if the footer is unreadable."""
    import pyarrow as pa

    try:
        with open_source(path) as raw, _open(raw, hold_limit) as file:
            metadata = file.metadata
            return [
                max(0, metadata.row_group(i).total_byte_size)
                for i in range(metadata.num_row_groups)
            ]
    except (OSError, ValueError, pa.ArrowException, TooLongError) as error:
        if is_about_process(error):
            raise
        return []


def measure_text(path: str, text_field: str, hold_limit: int = 1 << 62) -> list[tuple[int, int]]:
    """Return for each row group the uncompressed size of its columns of text, and its number of rows.

    The list is empty if the footer cannot be read or lacks a column.
    """
    import pyarrow as pa

    measured = []
    try:
        with open_source(path) as raw, _open(raw, hold_limit) as file:
            names = TextColumns.find(file.schema_arrow, parse_text_field(text_field), path).names
            for number, chunks in enumerate(_read_columns(raw, file.metadata, names)):
                rows = file.metadata.row_group(number).num_rows
                measured.append((sum(chunk.size for chunk in chunks), max(0, rows)))
    except (
        OSError,
        ValueError,
        IndexError,
        pa.ArrowException,
        TooLongError,
        BadFileError,
    ) as error:
        if is_about_process(error):
            raise
        return []
    return measured


def _open(raw: BinaryIO, hold_limit: int) -> Any:
    """Open a file. Raises TooLongError if its footer would take too much memory."""
    import pyarrow.parquet as pq

    start, footer = _find_footer(raw)
    if footer > _LEAST_FOOTER and footer * _STRUCTURE > COPIES * hold_limit:
        needed = _bound_footer(raw, start, footer)
        if needed > COPIES * hold_limit:
            raise TooLongError(needed // COPIES, f"the footer has {footer:,} bytes")
    raw.seek(0)
    # A list can claim more entries than the footer has bytes, and Arrow would make room for them.
    return pq.ParquetFile(
        raw,
        pre_buffer=False,
        buffer_size=_BUFFER,
        page_checksum_verification=True,
        thrift_container_size_limit=max(1, footer),
        thrift_string_size_limit=max(1, footer),
    )


def _bound_footer(raw: BinaryIO, start: int, size: int) -> int:
    """Return the most memory, in bytes, that Arrow can take for a footer.

    Each structure ends with a zero byte; an empty structure has no other bytes. An empty text is a
    zero byte. So there are at most as many structures and empty texts as zero bytes. As an example, a
    footer with 1,000 row groups of 10 columns has 1.5 MB, and a sixth of its bytes are zeros.
    """
    raw.seek(start)
    zeros = 0
    while (left := start + size - raw.tell()) > 0 and (data := raw.read(min(left, _BUFFER))):
        zeros += data.count(0)
    return _STRUCTURE * zeros + _FOOTER * size


def _find_footer(raw: BinaryIO) -> tuple[int, int]:
    """Return where the footer of a file begins, and its size."""
    end = raw.seek(0, os.SEEK_END)
    raw.seek(max(0, end - 8))
    size = min(int.from_bytes(raw.read(4), "little"), end)
    return max(0, end - 8 - size), size


def _read_columns(
    raw: BinaryIO, metadata: Any, columns: Sequence[str]
) -> tuple[tuple[ColumnChunk, ...], ...]:
    """Return the chunks of columns in each row group. `_open` has checked the footer's size."""
    start, size = _find_footer(raw)
    raw.seek(start)
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    inside = tuple(f"{column}." for column in columns)
    numbers = (i for i, name in enumerate(names) if f"{name}.".startswith(inside))
    found = read_footer(raw.read(size), tuple(numbers))
    if len(found) != metadata.num_row_groups:
        raise ValueError("the footer is invalid")
    return found


def read_parquet(
    source: SourceFile,
    start: int,
    end: int,
    text_field: str,
    cutter: Cutter | None,
    *,
    keep: tuple[Field, ...] = (),
    hold_limit: int = 1 << 62,
    block: int = BLOCK,
    rows: int = ROWS,
) -> Iterator[Chunk]:
    """Yield the documents in the row groups [start, end) of a Parquet file, in chunks."""
    import pyarrow as pa

    try:
        with (
            open_source(source.path) as raw,  # Arrow cannot open names that are not UTF-8
            _open(raw, hold_limit) as file,
        ):
            text = parse_text_field(text_field)
            columns = TextColumns.find(file.schema_arrow, text, source.path)
            kept = KeptColumns.find(file.schema_arrow, keep, source.path)
            names = list(dict.fromkeys([*columns.names, *kept.names]))
            groups = list(range(start, min(end, file.num_row_groups)))
            row = first = sum(file.metadata.row_group(i).num_rows for i in range(start))
            expected = sum(file.metadata.row_group(i).num_rows for i in groups)
            size = source.size * len(groups) / max(1, file.num_row_groups)
            rows = _rows_at_once(raw, file.metadata, groups, names, row, rows, block, hold_limit)
            batches = file.iter_batches(rows, row_groups=groups, columns=names, use_threads=False)
            for batch in batches:
                texts, begin = columns.read(batch, row, hold_limit), row
                for low, high in _cut_texts(texts, block):
                    chunk = _make_chunk(texts, low, high, begin)
                    if keep:
                        rows_kept = zip(
                            range(begin + low, begin + high),
                            kept.read(batch, low, high),
                            strict=True,
                        )
                        chunk.fields.update(rows_kept)
                    chunk.read = int(size * (high - low) / max(1, expected))
                    row += high - low
                    yield from limit_chunk(chunk, cutter, block)
            if row != first + expected:
                raise ValueError(f"expected {expected:,} rows, found {row - first:,}")
    except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: damaged pages or rows
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno):
            raise  # not the file's fault, or an error of the file system with its own reason
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadFileError(source.path, f"the Parquet file is damaged ({detail})") from error


def _rows_at_once(
    raw: BinaryIO,
    metadata: Any,
    groups: list[int],
    columns: Sequence[str],
    row: int,
    rows: int,
    block: int,
    hold_limit: int,
) -> int:
    """Return how many rows to decode at once. Refuses texts that are too large to hold.

    Each of several columns may take an equal share of the memory.
    """
    found = _read_columns(raw, metadata, columns)
    for number in groups:
        group, chunks = metadata.row_group(number), found[number]
        average = sum(one.size for one in chunks) // max(1, group.num_rows)
        if average > PARSED * hold_limit:
            reason = f"the texts from row {row} on have {average:,} bytes on average"
            raise TooLongError(average // PARSED, reason)
        rows = max(1, min(rows, block // max(1, average)))
        for one in chunks:
            pages = measure_pages(raw, one.start, one.stored, one.values)
            rows = _rows_of_pages(pages, rows, row, hold_limit, len(chunks))
        row += group.num_rows
    return rows


def _rows_of_pages(pages: ColumnPages, rows: int, row: int, hold_limit: int, columns: int) -> int:
    while rows > 1 and columns * pages.most_bytes(rows) > PARSED * hold_limit:
        rows //= 2
    if (need := columns * pages.memory(rows)) > COPIES * hold_limit:
        what, size = "largest page", f"{pages.page:,} bytes"
        if 3 * pages.dictionary >= pages.page:
            what, size = "dictionary", f"{pages.dictionary:,} bytes"
        elif 2 * columns * pages.lengths > need:
            size = f"{pages.lengths // PER_VALUE:,} values"
        reason = f"the {what} of the texts from row {row} on has {size}"
        raise TooLongError(need // COPIES, reason)
    return rows


def _cut_texts(texts: Texts, block: int) -> Iterator[tuple[int, int]]:
    """Divide the texts of a batch into ranges of about a block."""
    ends = np.cumsum(texts.sizes)
    start = 0
    while start < len(ends):
        room = (ends[start - 1] if start else 0) + block
        stop = max(start + 1, int(np.searchsorted(ends, room, side="right")))
        yield start, stop
        start = stop


def _make_chunk(texts: Texts, low: int, high: int, row: int) -> Chunk:
    """Return some texts of a batch whose first row is `row`."""
    found: list[bytes] = []
    offsets: list[int] = []
    chunk = Chunk(found, offsets)
    for place, value in enumerate(texts.values[low:high].to_pylist(), low):
        if value is None:
            name = texts.why_none(place)
            kind, reason = f"field {name!r} is not a string", f"field {name!r} is null"
            chunk.rejections.append(Rejection(None, row + place, kind, reason, 0))
        else:
            found.append(value)
            offsets.append(row + place)
    return chunk
