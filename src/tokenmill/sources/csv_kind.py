"""Decide whether CSV and TSV files are read as records or as plain text.

| `csv` | |
|---|---|
| `auto` | records, if `text_field` is given and the header has its columns; otherwise plain text |
| `records` | records; a file without the columns is a bad file |
| `text` | plain text |

Costs: `auto` reads 64 KiB of each CSV file if `text_field` is given.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from tokenmill.sources.csv_rows import Columns, choose_delimiter
from tokenmill.sources.fields import parse_text_field
from tokenmill.sources.files import BadFileError, SourceFile
from tokenmill.sources.read import read_head

CsvMode = Literal["auto", "records", "text"]
DEFAULT_FIELD = "text"
_HEAD = 1 << 16
_ENDINGS = (".csv", ".tsv")
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
_MOST_HEADS = 100  # headers to read only for a note


def choose_csv_kind(source: SourceFile, text_field: str, mode: CsvMode) -> SourceFile:
    """Return a source as it is to be read: a CSV file may become one of records."""
    if mode == "text" or not _is_csv(source):
        return source
    if mode == "records" or (text_field != DEFAULT_FIELD and has_columns(source, text_field)):
        return replace(source, kind="csv")
    return source


def note_plain_csv(sources: Iterable[SourceFile], text_field: str) -> list[str]:
    """Return notes about CSV files that are read as plain text, but may have been meant as records."""
    plain = [source for source in sources if _is_csv(source)][:_MOST_HEADS]
    if text_field == DEFAULT_FIELD:
        found = [source for source in plain if has_columns(source, text_field)]
        what = f"although its header has the column {text_field!r}"
        cure = " To read that column: `csv='records'`."
    else:
        found, cure = plain, ""
        what = f"because its header does not have the columns of `text_field={text_field!r}`"
    if not found:
        return []
    more = f" So are {len(found) - 1:,} more CSV files." if len(found) > 1 else ""
    return [f"{found[0].path} is read as plain text, {what}.{cure}{more}"]


def has_columns(source: SourceFile, text_field: str) -> bool:
    """Return whether the header of a CSV file has the columns that `text_field` names."""
    try:
        head = read_head(source, _HEAD)
        text = head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
        lines = io.StringIO(text, newline="")
        delimiter = choose_delimiter(source.path, head)
        header = next((row for row in csv.reader(lines, delimiter=delimiter) if row), None)
        if header is None:
            return False
        Columns.find(header, parse_text_field(text_field), source.path)
    except (BadFileError, csv.Error, OSError):
        return False
    return True


def _is_csv(source: SourceFile) -> bool:
    if source.kind != "text" or source.fault:
        return False
    plain, ending = os.path.splitext(source.path.lower())
    return (os.path.splitext(plain)[1] if ending in _COMPRESSED else ending) in _ENDINGS
