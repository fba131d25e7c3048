"""Files of rows, Parquet and Arrow: how much is in each unit in which they are read.

A unit is a row group of a Parquet file, or a record batch of an Arrow file.
"""

from __future__ import annotations

from tokenmill.sources.arrow import measure_batches
from tokenmill.sources.files import SourceFile
from tokenmill.sources.parquet import measure_row_groups, measure_text


def measure_units(source: SourceFile, hold_limit: int = 1 << 62) -> list[int]:
    """Return the bytes of each unit of a file; an empty list if it is damaged."""
    if source.kind == "arrow":
        return [size for size, _ in measure_batches(source.path, hold_limit)]
    return measure_row_groups(source.path, hold_limit)


def measure_unit_texts(
    source: SourceFile, text_field: str, hold_limit: int = 1 << 62
) -> list[tuple[int, int]]:
    """Return the bytes and the rows of each unit; an empty list if the file is damaged.

    The bytes are those of the text column in Parquet, and of all columns in Arrow.
    """
    if source.kind == "arrow":
        return measure_batches(source.path, hold_limit)
    return measure_text(source.path, text_field, hold_limit)
