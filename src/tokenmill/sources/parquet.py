"""Read documents from Parquet files. One column is the text.

Rows are decoded about one block at a time, or less if a block would not fit in memory. If not even
one row fits, the file is refused. A damaged file is a `BadFileError`; a null is a `Rejection` with
its row. Arrow allocates any amount of memory that a file asks for. So before Arrow reads,
`_bound_footer` computes how much memory the footer can take, and `parquet_pages.py` how much the
pages take.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

from tokenmill.errors import TooLongError
from tokenmill.sources.files import BadFileError, SourceFile, is_about_process, open_source
from tokenmill.sources.json_lines import list_names
from tokenmill.sources.parquet_pages import (
    PER_VALUE,
    ColumnChunk,
    ColumnPages,
    measure_pages,
    read_footer,
)
from tokenmill.sources.records import BLOCK, COPIES, PARSED, Chunk, Cutter, Rejection, limit_chunk
from tokenmill.wording import one_line

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
    """Return for each row group the uncompressed size of its text column and its number of rows.

    The list is empty if the footer cannot be read or has no such column.
    """
    import pyarrow as pa

    measured = []
    try:
        with open_source(path) as raw, _open(raw, hold_limit) as file:
            for number, chunks in enumerate(_read_columns(raw, file.metadata, text_field)):
                rows = file.metadata.row_group(number).num_rows
                measured += [(chunk.size, max(0, rows)) for chunk in chunks[:1]]
    except (OSError, ValueError, IndexError, pa.ArrowException, TooLongError) as error:
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


def _read_columns(raw: BinaryIO, metadata: Any, column: str) -> tuple[tuple[ColumnChunk, ...], ...]:
    """Return the chunks of a column in each row group. `_open` has checked the footer's size."""
    start, size = _find_footer(raw)
    raw.seek(start)
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    numbers = (i for i, name in enumerate(names) if name.split(".")[0] == column)
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
            column = _text_column(file.schema_arrow, text_field, source, pa)
            groups = list(range(start, min(end, file.num_row_groups)))
            row = first = sum(file.metadata.row_group(i).num_rows for i in range(start))
            expected = sum(file.metadata.row_group(i).num_rows for i in groups)
            size = source.size * len(groups) / max(1, file.num_row_groups)
            rows = _rows_at_once(raw, file.metadata, groups, column, row, rows, block, hold_limit)
            batches = file.iter_batches(
                rows, row_groups=groups, columns=[column], use_threads=False
            )
            for batch in batches:
                for values in _cut_batch(batch.column(0), row, block, hold_limit):
                    chunk = _make_chunk(values, row, text_field)
                    chunk.read = int(size * len(values) / max(1, expected))
                    row += len(values)
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
    column: str,
    row: int,
    rows: int,
    block: int,
    hold_limit: int,
) -> int:
    """Return how many rows to decode at once. Refuses texts that are too large to hold."""
    found = _read_columns(raw, metadata, column)
    for number in groups:
        group, chunks = metadata.row_group(number), found[number]
        average = sum(one.size for one in chunks) // max(1, group.num_rows)
        if average > PARSED * hold_limit:
            reason = f"the texts from row {row} on have {average:,} bytes on average"
            raise TooLongError(average // PARSED, reason)
        rows = max(1, min(rows, block // max(1, average)))
        for one in chunks:
            pages = measure_pages(raw, one.start, one.stored, one.values)
            rows = _rows_of_pages(pages, rows, row, hold_limit)
        row += group.num_rows
    return rows


def _rows_of_pages(pages: ColumnPages, rows: int, row: int, hold_limit: int) -> int:
    while rows > 1 and pages.most_bytes(rows) > PARSED * hold_limit:
        rows //= 2
    if (need := pages.memory(rows)) > COPIES * hold_limit:
        what, size = "largest page", f"{pages.page:,} bytes"
        if 3 * pages.dictionary >= pages.page:
            what, size = "dictionary", f"{pages.dictionary:,} bytes"
        elif 2 * pages.lengths > need:
            size = f"{pages.lengths // PER_VALUE:,} values"
        reason = f"the {what} of the texts from row {row} on has {size}"
        raise TooLongError(need // COPIES, reason)
    return rows


def _cut_batch(values: Any, row: int, block: int, hold_limit: int) -> Iterator[Any]:
    """Yield the values of a batch, about a block at a time. Refuses a text too large to hold."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = values.cast(pa.large_binary())
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    if len(sizes) and (longest := int(sizes.max())) > PARSED * hold_limit:
        reason = f"the text in row {row + int(sizes.argmax())} has {longest:,} bytes"
        raise TooLongError(longest // PARSED, reason)
    ends = np.cumsum(sizes)
    start = 0
    while start < len(ends):
        room = (ends[start - 1] if start else 0) + block
        stop = max(start + 1, int(np.searchsorted(ends, room, side="right")))
        yield values[start:stop].to_pylist()
        start = stop


def _make_chunk(values: list[bytes | None], row: int, text_field: str) -> Chunk:
    texts: list[bytes] = []
    offsets: list[int] = []
    chunk = Chunk(texts, offsets)
    for number, value in enumerate(values, row):
        if value is None:
            kind = f"field {text_field!r} is not a string"
            reason = f"field {text_field!r} is null"
            chunk.rejections.append(Rejection(None, number, kind, reason, 0))
        else:
            texts.append(value)
            offsets.append(number)
    return chunk


def _text_column(schema: Any, text_field: str, source: SourceFile, pa: Any) -> str:
    found = [column.type for column in schema if column.name == text_field]
    if not found:
        texts = [column.name for column in schema if _is_text(column.type, pa)]
        cure = (
            f"; use {' or '.join(f'`text_field={name!r}`' for name in texts[:5])}"
            if texts
            else "; none of them holds text"
        )
        reason = f"no column {text_field!r}; it has {list_names(schema.names)}{cure}"
        raise BadFileError(source.path, reason)
    if len(found) > 1:
        reason = f"{len(found)} columns are named {text_field!r}; rename all but the one to read"
        raise BadFileError(source.path, reason)
    if not _is_text(found[0], pa):
        kind = one_line(str(found[0])[:80])
        raise BadFileError(
            source.path,
            f"column {text_field!r} holds {kind}, not text; "
            "name the column of text with `text_field=NAME`",
        )
    return text_field


def _is_text(kind: Any, pa: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests: list[Callable[[Any], bool]] = [
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
    ]
    return any(test(kind) for test in tests)
