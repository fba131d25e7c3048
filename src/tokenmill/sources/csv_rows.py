"""Read documents from CSV and TSV files with a header. The text is a column, or several in a template.

Quoting is that of Python's `csv` module, which parses the rows: a field in quotes may hold
delimiters, line breaks and doubled quotes. A row with a wrong quote or another number of fields than
the header is a `Rejection` with its place; blank lines are skipped. A quote that is never closed is a
`BadFileError`, because it hides the rest of the file. Memory holds a block and one row. A file is
read from its beginning, because a line break may be inside quotes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokenmill.errors import TooLongError
from tokenmill.sources.fields import Field, TextField, list_names, parse_text_field
from tokenmill.sources.files import BadFileError, CutShortError
from tokenmill.sources.kept_fields import encode_fields
from tokenmill.sources.records import (
    BLOCK,
    COPIES,
    MOST_RECORDS,
    Chunk,
    Cutter,
    Rejection,
    limit_chunk,
)

_MARK = b"\xef\xbb\xbf"
_MOST_FIELD = (1 << 31) - 1  # characters; rows are limited by their bytes
_PARSED = 2  # a row may be this many times the hold limit: the parser takes 4 bytes per character
_SHORT = 1 << 20  # bytes; the fields of a shorter row always fit in memory
_FIELD = 64  # bytes of memory for a short field
_TRIED = 1 << 18  # bytes in which to search for the end of a row
_LINE = re.compile(rb"[^\r\n]*+(?:\r\n?|\n)")
_HEADER = re.compile(rb"[\r\n]*+([^\r\n]++)[\r\n]")
_ROW = re.compile(rb'(?:[^"\r\n]++|"[^"]*+")*+(?:\r\n?|\n)')


def read_csv(
    blocks: Iterable[bytes],
    path: str,
    text_field: str,
    cutter: Cutter | None,
    block_bytes: int = BLOCK,
    hold_limit: int = 1 << 62,
    keep: tuple[Field, ...] = (),
) -> Iterator[Chunk]:
    r"""Yield the texts in the rows of a file. `path` is its name, which decides the delimiter.

    >>> chunks = read_csv([b'id,text\n1,"a\n', b'b"\n2,c\n'], "a.csv", "text", None)
    >>> [(chunk.texts, chunk.offsets) for chunk in chunks]
    [([b'a\nb', b'c'], [8, 16])]
    """
    csv.field_size_limit(_MOST_FIELD)  # of this process; the default is 128 KiB
    lines = _Lines(blocks, path, hold_limit)
    rows = csv.reader(lines, delimiter=lines.delimiter, strict=True)
    columns: Columns | None = None
    kept: dict[str, int] = {}
    chunk, first = Chunk([], []), 0
    start, line = lines.begin_row()
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            if lines.retry():
                continue
            if lines.is_at_end and "unexpected end" in str(error):
                reason = f"a quote in the row at byte {start} is never closed"
                raise CutShortError(path, reason) from None
            _reject(chunk, line - first, start, lines.place, "not CSV", f"not CSV: {error}")
            row = []
        if row and columns is None:
            columns = Columns.find(row, parse_text_field(text_field), path)
            kept = {field.name: row.index(field.name) for field in keep if field.name in row}
        elif row:
            assert columns is not None
            if len(row) != columns.count:
                reason = f"the row has {len(row):,} fields, and the header {columns.count:,}"
                kind = "wrong number of fields"
                _reject(chunk, line - first, start, lines.place, kind, reason)
            else:
                chunk.texts.append(columns.text(row).encode("utf-8", "surrogateescape"))
                chunk.offsets.append(start)
                if keep:
                    values = {name: row[place] for name, place in kept.items()}
                    chunk.fields[start] = encode_fields(values)
                if lines.bad_byte is not None:
                    chunk.bad_bytes[start] = lines.bad_byte
        if row is None or lines.size >= block_bytes or lines.held >= MOST_RECORDS:
            chunk.lines, chunk.begin = lines.count - first, lines.begin
            data = lines.take()
            chunk.read = len(data)
            chunk.whole = data if chunk.bad_bytes else b""
            yield from limit_chunk(chunk, cutter, block_bytes)
            chunk, first = Chunk([], []), lines.count
        if row is None:
            break
        start, line = lines.begin_row()
    if columns is None:
        raise BadFileError(path, "the file has no header, which names the columns")


def choose_delimiter(path: str, head: bytes) -> str:
    r"""Return the delimiter of a file with this name and these first bytes.

    >>> choose_delimiter("a.tsv.gz", b"x"), choose_delimiter("a.csv", b"a;b\n1,2")
    ('\t', ';')
    """
    if re.search(r"\.tsv(\.[a-z0-9]+)?$", path, re.IGNORECASE):
        return "\t"
    match = _HEADER.match(head)
    header = match[1] if match else head
    return next((sign for sign in ",;\t" if sign.encode() in header), ",")


@dataclass(frozen=True)
class Columns:
    """Where the fields of a text are in a row; None for an optional field that no column has."""

    field: TextField
    places: tuple[int | None, ...]
    count: int  # of fields in a row

    @classmethod
    def find(cls, header: list[str], field: TextField, path: str) -> Columns:
        """Find the columns in a header. Raises BadFileError if one is missing."""
        places = tuple(_find_column(header, one, path) for one in field.fields)
        if all(place is None for place in places):
            _find_column(header, Field(field.fields[0].name), path)  # raises the error
        return cls(field, places, len(header))

    def text(self, row: list[str]) -> str:
        """Return the text of a row."""
        if not self.field.is_template:
            return row[self.places[0] or 0]
        places = iter(self.places)
        texts = []
        for piece in self.field.pieces:
            if isinstance(piece, str):
                texts.append(piece)
            else:
                place = next(places)
                texts.append("" if place is None else row[place])
        return self.field.join(texts)


def _find_column(header: list[str], field: Field, path: str) -> int | None:
    count = header.count(field.name)
    if count == 1:
        return header.index(field.name)
    if count:
        reason = f"{count} columns are named {field.name!r}; rename all but the one to read"
        raise BadFileError(path, reason)
    if field.is_optional:
        return None
    reason = f"no column {field.name!r}; it has {list_names(map(_printable, header))}"
    raise BadFileError(path, f"{reason}; name the column of text with `text_field=NAME`")


def _printable(name: str) -> str:
    return name.encode("utf-8", "replace").decode()


def _reject(chunk: Chunk, line: int, start: int, end: int, kind: str, reason: str) -> None:
    chunk.rejections.append(Rejection(line, start, kind, reason, end - start))


class _Lines:
    """The lines of a file as text, for `csv.reader`, with the place of each row.

    A row with line breaks in quotes is passed on in one piece, which is faster than line by line. The
    search for the end of a row only counts quotes. If the parser disagrees, `retry` passes on the
    same row line by line, which is what the parser expects, so the rows never depend on that search.

    Bytes that are not UTF-8 become surrogates, and `bad_byte` is where the first one of the row is.
    """

    def __init__(self, blocks: Iterable[bytes], path: str, hold_limit: int) -> None:
        self._blocks = iter(blocks)
        self._most = _PARSED * hold_limit
        self._most_fields = COPIES // 2 * hold_limit // _FIELD
        self._data, self._next = b"", 0  # bytes that were read, and the next one to pass on
        self._is_last = False  # whether no more bytes follow `_data`
        self._row = self._fields = 0
        self._pieces = 0  # of the row so far
        self._by_line = False
        self._taken: list[bytes] = []
        self.begin = self.place = (
            0  # the offset of the first piece in `_taken`, and of the next one
        )
        self.count = 0  # line ends so far
        self.bad_byte: int | None = None
        self.is_at_end = False
        while _HEADER.match(self._data) is None and len(self._data) < _TRIED and not self._is_last:
            self._read_more()
        self.delimiter = choose_delimiter(path, self._data[:_TRIED])

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        data = self._find_line() if self._by_line or self._pieces else self._find_row()
        if not data:
            self.is_at_end = True
            raise StopIteration
        self._pieces += 1
        size = self.place + len(data) - self._row
        if size > self._most:
            raise self._too_long(size)
        if size > _SHORT:
            self._fields += data.count(self.delimiter.encode())
            if self._fields > self._most_fields:
                reason = f"the row at byte {self._row} has at least {self._fields:,} fields"
                raise TooLongError(self._fields * _FIELD // (COPIES // 2), reason)
        self._taken.append(data)
        mark = len(_MARK) if self.place == 0 and data.startswith(_MARK) else 0
        try:
            text = data[mark:].decode()
        except UnicodeDecodeError as error:
            if self.bad_byte is None:
                self.bad_byte = self.place + mark + error.start
            text = data[mark:].decode("utf-8", "surrogateescape")
        self.place += len(data)
        self.count += data.count(b"\n")
        return text

    @property
    def held(self) -> int:
        """The number of pieces since the last call of `take`."""
        return len(self._taken)

    @property
    def size(self) -> int:
        """The bytes of the pieces since the last call of `take`."""
        return self.place - self.begin

    def begin_row(self) -> tuple[int, int]:
        """Return where the next row starts: its offset and its line."""
        self._row, self._fields, self._pieces, self.bad_byte = self.place, 0, 0, None
        self._by_line = False
        return self.place, self.count

    def retry(self) -> bool:
        """Go back to the start of a row that was passed on in one piece of several lines.

        Returns whether the row is such a row. It is then passed on line by line.
        """
        if self._by_line or self._pieces != 1 or _LINE.fullmatch(self._taken[-1]):
            return False
        data = self._taken.pop()
        self._next -= len(data)
        self.place -= len(data)
        self.count -= data.count(b"\n")
        self._fields = self._pieces = 0
        self.bad_byte, self._by_line = None, True
        return True

    def take(self) -> bytes:
        """Return the bytes of all pieces since the last call."""
        data = b"".join(self._taken)
        self._taken.clear()
        self.begin = self.place
        return data

    def _find_row(self) -> bytes:
        """Return the next row, or its first line if the row is long."""
        found = self._match(_ROW)
        while found is None and not self._is_last and len(self._data) - self._next < _TRIED:
            self._read_more()
            found = self._match(_ROW)
        if found is None or len(found) > min(_SHORT, self._most):
            return self._find_line()
        self._next += len(found)
        return found

    def _find_line(self) -> bytes:
        """Return the next line with its end; no bytes at the end of the file."""
        found = self._match(_LINE)
        while found is None and not self._is_last:
            size = self.place + len(self._data) - self._next - self._row
            if size > self._most:
                raise self._too_long(size)
            self._read_more()
            found = self._match(_LINE)
        if found is None:
            found = self._data[self._next :]
        self._next += len(found)
        return found

    def _match(self, pattern: re.Pattern[bytes]) -> bytes | None:
        match = pattern.match(self._data, self._next)
        if match is None:
            return None
        # A line end \r may continue with \n in the next block.
        if match.end() == len(self._data) and not self._is_last and match[0].endswith(b"\r"):
            return None
        return match[0]

    def _read_more(self) -> None:
        """Read the next block, and the blocks after it until one has a line end."""
        blocks = [self._data[self._next :]]
        size = 0
        for block in self._blocks:
            blocks.append(block)
            size += len(block)
            if b"\n" in block or b"\r" in block or self.place + size - self._row > self._most:
                break
        else:
            self._is_last = True
        self._data, self._next = b"".join(blocks), 0

    def _too_long(self, size: int) -> TooLongError:
        reason = f"the row at byte {self._row} has at least {size:,} bytes"
        return TooLongError(size // _PARSED, f"{reason} (a quote may not be closed)")
