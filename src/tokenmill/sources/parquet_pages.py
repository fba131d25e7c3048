"""How much memory it takes to read the pages of a Parquet column, according to their headers.

The sizes in the footer of a file may be wrong. Arrow allocates as much memory as the page headers
ask for, so only these headers say how much Arrow will use. Some encodings store a text once and
repeat it in every row, so a page of 500 bytes can expand to gigabytes. Costs one small read per
page; a page usually has 1 MB of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO, NamedTuple

import numpy as np

from tokenmill.sources.records import Places

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # types of pages
_STORED_ONCE = (0, 6)  # encodings that store every text in full: plain, delta length
_HEADER = 256  # bytes to read; statistics can make a header longer
_LONGEST_HEADER = 16 << 20  # as in Arrow
_DEEPEST = 8  # nested structures in a header
PER_VALUE = 8  # bytes for the lengths of a text and of its prefix, in delta encodings


class Page(NamedTuple):
    """The header of a page. The page has `stored` bytes compressed and `size` bytes decompressed."""

    kind: int
    stored: int
    size: int
    values: int
    encoding: int


@dataclass(frozen=True, kw_only=True)
class ColumnPages:
    """The pages of one column in one row group."""

    page: int  # bytes of the largest page, compressed plus decompressed
    dictionary: int  # bytes of the dictionary
    repeated: int  # the most bytes of a text that is stored once and can occur in many rows
    lengths: int  # the most bytes of memory for the lengths of the texts in a page
    # The next two describe only pages that store each of their texts in full.
    ends: Places  # the number of rows up to the end of each page
    sizes: Places  # the bytes of text up to the end of each page

    def most_bytes(self, rows: int) -> int:
        """Return the maximum size, in bytes, of the texts in `rows` consecutive rows."""
        stored = 0
        if len(self.ends):
            # In the worst case, the first of these rows is the last of a page, and has all the
            # text of that page.
            last = np.searchsorted(self.ends, self.ends + (rows - 1), side="left")
            before = np.concatenate(([0], self.sizes[:-1]))
            stored = int((self.sizes[np.minimum(last, len(self.ends) - 1)] - before).max())
        return stored + rows * self.repeated

    def memory(self, rows: int) -> int:
        """Return the bytes of memory needed to read this many rows at once.

        Arrow holds a dictionary twice, as read and as decoded. For some columns, the array
        that Arrow returns contains the dictionary as well.
        """
        return self.page + 2 * self.dictionary + self.lengths + self.most_bytes(rows)


def measure_pages(file: BinaryIO, start: int, size: int, values: int) -> ColumnPages:
    """Measure the pages of a column chunk. Raises ValueError if a header is damaged."""
    largest = dictionary = repeated = lengths = 0
    counts: list[int] = []
    sizes: list[int] = []
    for page in _read_pages(file, start, size, values):
        largest = max(largest, page.stored + page.size)
        if page.kind == _DICTIONARY:
            dictionary = max(dictionary, page.size)
        elif page.encoding in _STORED_ONCE:
            counts.append(page.values)
            sizes.append(page.size)
        else:
            repeated = max(repeated, page.size)
        if page.encoding != 0:
            lengths = max(lengths, PER_VALUE * page.values)
    return ColumnPages(
        page=largest,
        dictionary=dictionary,
        repeated=max(repeated, dictionary),
        lengths=lengths,
        ends=np.cumsum(counts, dtype=np.int64),
        sizes=np.cumsum(sizes, dtype=np.int64),
    )


def _read_pages(file: BinaryIO, start: int, size: int, values: int) -> Iterator[Page]:
    """Yield the headers of the pages that Arrow would read for a column chunk."""
    place, end = start, start + size
    while place < end and values > 0:
        page, place = _read_page(file, place)
        yield page
        place += page.stored
        if page.kind in (_DATA, _DATA_V2):
            values -= page.values


def _read_page(file: BinaryIO, place: int) -> tuple[Page, int]:
    """Read the page header at offset `place`. Returns it and the offset of the page's content."""
    size = _HEADER
    while True:
        file.seek(place)
        data = file.read(size)
        try:
            fields, end = _read_struct(data, 0, 0)
            break
        except IndexError:
            if len(data) < size or size >= _LONGEST_HEADER:
                raise ValueError(f"no page header at byte {place}") from None
            size *= 8
    kind = _find_number(fields, 1)
    about = fields.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0), {})
    if not isinstance(about, dict):
        raise ValueError(f"the page header at byte {place} is invalid")
    page = Page(
        kind=kind,
        stored=_find_number(fields, 3),
        size=_find_number(fields, 2),
        values=_find_number(about, 1),
        encoding=_find_number(about, 4 if kind == _DATA_V2 else 2),
    )
    return page, place + end


def _find_number(fields: dict[int, object], number: int) -> int:
    found = fields.get(number, 0)
    if not isinstance(found, int) or found < 0:
        raise ValueError("a header is invalid")
    return found


class ColumnChunk(NamedTuple):
    """A column in a row group, according to the footer.

    `stored` and `size` are the sizes of the column, compressed and decompressed. `start` is where its
    first page begins.
    """

    start: int
    stored: int
    size: int
    values: int


@lru_cache(maxsize=1)  # parts of a file are read one after another, with the same footer
def read_footer(footer: bytes, columns: tuple[int, ...]) -> tuple[tuple[ColumnChunk, ...], ...]:
    """Return the chunks of some columns in each row group, according to a footer.

    Raises ValueError if the footer is damaged. `columns` are numbers, because names in a footer may
    contradict each other. Arrow's own metadata objects are not used: if a histogram has an
    unexpected length, they end the process (seen with pyarrow 26). Takes 0.5 s for a megabyte,
    which is 12,000 chunks.
    """
    try:
        fields, _ = _read_struct(footer, 0, 0)
        groups = [_find_items(group, 1) for group in _find_items(fields, 4)]
        return tuple(tuple(_make_chunk(group[i]) for i in columns) for group in groups)
    except IndexError:
        raise ValueError("the footer is incomplete") from None


def _find_items(fields: object, number: int) -> list[object]:
    found = fields.get(number) if isinstance(fields, dict) else None
    if not isinstance(found, list):
        raise ValueError("the footer is invalid")
    return found


def _make_chunk(column: object) -> ColumnChunk:
    about = column.get(3) if isinstance(column, dict) else None
    if not isinstance(about, dict):
        raise ValueError("the footer is invalid")
    start = _find_number(about, 9)
    if dictionary := _find_number(about, 11):
        start = min(start, dictionary)
    return ColumnChunk(start, *(_find_number(about, number) for number in (7, 6, 5)))


def _read_struct(data: bytes, place: int, depth: int) -> tuple[dict[int, object], int]:
    """Read a structure in Thrift's compact protocol. Returns its fields and where it ends.

    Raises IndexError if the data ends too early.
    """
    if depth > _DEEPEST:
        raise ValueError("a header is nested too deeply")
    fields: dict[int, object] = {}
    number = 0
    while head := data[place]:
        place += 1
        if head >> 4:
            number += head >> 4
        else:
            number, place = _read_number(data, place)
        fields[number], place = _read_value(data, place, head & 15, depth)
    return fields, place + 1


def _read_value(data: bytes, place: int, kind: int, depth: int) -> tuple[object, int]:
    if kind in (1, 2):  # true, false
        return kind == 1, place
    if kind == 3:
        return data[place], place + 1
    if kind == 7:
        return data[place : place + 8], place + 8
    if kind in (4, 5, 6):
        return _read_number(data, place)
    if kind == 8:
        size, place = _read_varint(data, place)
        return data[place : place + size], place + size
    if kind == 9:
        return _read_list(data, place, depth)
    if kind == 12:
        return _read_struct(data, place, depth + 1)
    raise ValueError(f"a header has a field of type {kind}")


def _read_list(data: bytes, place: int, depth: int) -> tuple[list[object], int]:
    head = data[place]
    count, place = head >> 4, place + 1
    if count == 15:
        count, place = _read_varint(data, place)
    items: list[object] = []
    for _ in range(count):
        # In a list, each boolean takes a byte.
        item, place = _read_value(data, place, 3 if head & 15 < 3 else head & 15, depth)
        items.append(item)
    return items, place


def _read_number(data: bytes, place: int) -> tuple[int, int]:
    number, place = _read_varint(data, place)
    return number >> 1 ^ -(number & 1), place


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, place
        if shift > 63:
            raise ValueError("a header has a number that is too long")
