"""Parquet files to documents: one column of text.

Row groups are decoded a few rows at a time, about one block. A damaged file is a `BadFileError`; a
null is a `Rejection` with its row. Arrow holds a dictionary page twice, as stored and decoded, so one
that does not fit in memory is refused before it is read. Data pages are not checked: their sizes are
not in the footer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tokenmill.errors import TooLongError
from tokenmill.sources.files import BadFileError, SourceFile, open_source
from tokenmill.sources.json_lines import list_names
from tokenmill.sources.records import BLOCK, PARSED, Chunk, Cutter, Rejection, limit_chunk

ROWS = 256  # decoded at once
_DICTIONARY = 16  # text held in memory takes this many times as much as a dictionary
_BUFFER = 1 << 20  # without one, Arrow reads a whole column chunk, which is also slower


def measure_row_groups(path: str) -> list[int]:
    """The stored bytes of each row group; empty if the file's footer cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_source(path) as raw:
            metadata = pq.read_metadata(raw)
    except (OSError, pa.ArrowException):
        return []
    return [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]


def measure_text(path: str, text_field: str) -> list[tuple[int, int]]:
    """The uncompressed bytes of the text column, and the rows, of each row group.

    Empty if the footer cannot be read or has no such column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    measured = []
    try:
        with open_source(path) as raw:
            metadata = pq.read_metadata(raw)
        names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        column = names.index(text_field)
    except (OSError, ValueError, pa.ArrowException):
        return []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        measured.append((group.column(column).total_uncompressed_size, group.num_rows))
    return measured


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
    """The documents in the row groups from `start` to `end`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with (
            open_source(source.path) as raw,  # Arrow cannot open names that are not UTF-8
            pq.ParquetFile(
                raw, pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True
            ) as file,
        ):
            column = _text_column(file.schema_arrow, text_field, source, pa)
            groups = list(range(start, min(end, file.num_row_groups)))
            row = sum(file.metadata.row_group(i).num_rows for i in range(start))
            share = max(1, sum(file.metadata.row_group(i).num_rows for i in groups))
            size = source.size * len(groups) / max(1, file.num_row_groups)
            average = _largest_average(file.metadata, groups, column, row, hold_limit)
            batches = file.iter_batches(
                max(1, min(rows, block // average)),
                row_groups=groups,
                columns=[column],
                use_threads=False,
            )
            for batch in batches:
                texts: list[bytes] = []
                offsets: list[int] = []
                chunk = Chunk(texts, offsets)
                chunk.read = int(size * batch.num_rows / share)
                for value in batch.column(0).cast(pa.large_binary()).to_pylist():
                    if value is None:
                        kind = f"field {text_field!r} is not a string"
                        reason = f"field {text_field!r} is null"
                        chunk.rejections.append(Rejection(None, row, kind, reason, 0))
                    else:
                        texts.append(value)
                        offsets.append(row)
                    row += 1
                yield from limit_chunk(chunk, cutter, block)
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # errors of the file system say what is wrong
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadFileError(source.path, f"the Parquet file is damaged ({detail})") from error


def _largest_average(
    metadata: Any, groups: list[int], column: str, row: int, hold_limit: int
) -> int:
    """The largest average size of a text in a row group. Refuses texts that are too large to hold."""
    largest = 1
    for number in groups:
        group = metadata.row_group(number)
        columns = [
            entry
            for entry in (group.column(i) for i in range(group.num_columns))
            if entry.path_in_schema.split(".")[0] == column
        ]
        average = sum(one.total_uncompressed_size for one in columns) // max(1, group.num_rows)
        if average > PARSED * hold_limit:
            reason = f"the texts from row {row} on have {average:,} bytes each"
            raise TooLongError(average // PARSED, reason)
        dictionary = sum(map(_dictionary_size, columns))
        if dictionary > _DICTIONARY * hold_limit:
            reason = f"the dictionary of the texts from row {row} on has {dictionary:,} bytes"
            raise TooLongError(dictionary // _DICTIONARY, reason)
        largest = max(largest, average)
        row += group.num_rows
    return largest


def _dictionary_size(column: Any) -> int:
    """The decoded bytes of a column chunk's dictionary, estimated from its stored bytes."""
    if not column.dictionary_page_offset or not column.total_compressed_size:
        return 0
    stored = column.data_page_offset - column.dictionary_page_offset
    return int(stored * column.total_uncompressed_size / column.total_compressed_size)


def _text_column(schema: Any, text_field: str, source: SourceFile, pa: Any) -> str:
    found = [column.type for column in schema if column.name == text_field]
    if not found:
        texts = [column.name for column in schema if _is_text(column.type, pa)]
        cure = (
            f"; use {' or '.join(f'`text_field={name!r}`' for name in texts[:5])}"
            if texts
            else ", none with text"
        )
        reason = f"no column {text_field!r}; it has {list_names(schema.names)}{cure}"
        raise BadFileError(source.path, reason)
    if len(found) > 1:
        reason = f"{len(found)} columns are named {text_field!r}; rename all but the one to read"
        raise BadFileError(source.path, reason)
    if not _is_text(found[0], pa):
        raise BadFileError(source.path, f"column {text_field!r} holds {found[0]}, not text")
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
