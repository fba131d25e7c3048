"""Find the members of a tar archive in a stream, and which of them are text.

Guarantees: every member is either yielded with its bytes, or with the reason why it is not read;
only folders and headers are skipped. Memory holds a block of a member, and headers of up to a
megabyte. An archive that is cut short or damaged is an ArchiveError. It must end with a block of zeros,
because otherwise a missing end could not be noticed. Headers may be those of POSIX (ustar and pax)
and of GNU; `tarfile` finds the same members.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tokenmill.sources.compression import Stream
from tokenmill.sources.detect_text import HEAD
from tokenmill.sources.encodings import find_wide_encoding
from tokenmill.wording import one_line

_BLOCK = 512
_MOST_HEADER = 1 << 20  # bytes of the names and attributes of one member
_JSON_LINES = (".jsonl", ".ndjson")
_PACKED = (
    ".gz .zst .bz2 .xz .lz4 .tar .tgz .tbz .tbz2 .txz .tzst .zip .7z .rar .jar .whl .warc".split()
)
# Control characters that text does not have. Compressed files and other binary files have some
# among their first bytes.
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_PAX = re.compile(rb"([0-9]{1,9}) ([^=]+)=")
_REGULAR, _LINKS, _WITHOUT_DATA = b"0\x007", b"12", b"123456"
_LONG_NAME, _LONG_LINK, _SPARSE = b"L", b"K", b"S"

LINK = "a link in an archive"
NOT_TEXT = "not text, in an archive"
PACKED = "compressed, or an archive, in an archive"
SPECIAL = "a sparse or special file in an archive"
HIDDEN = "a hidden file in an archive"
WIDE = "UTF-16 or UTF-32 in an archive"


class ArchiveError(Exception):
    """An archive is damaged."""


@dataclass
class Member:
    """A member of an archive. `offset` is where its bytes begin, in the decompressed archive.

    `why` says why it is not read; then its bytes are skipped. Otherwise `kind` is text or jsonl, and
    `blocks` yields the bytes; all of them must be taken before the next member.
    """

    name: str
    offset: int
    size: int
    why: str | None
    kind: str
    blocks: Iterator[bytes]


def read_members(stream: Stream, block: int) -> Iterator[Member]:
    """Yield the members of an archive, in order. At most `block` bytes are read at once."""
    return _Reader(stream, block).read()


class _Reader:
    def __init__(self, stream: Stream, block: int) -> None:
        self._stream = stream
        self._block = block
        self._place = 0

    def read(self) -> Iterator[Member]:
        everywhere: dict[str, bytes] = {}  # attributes of all members from there on
        attributes: dict[str, bytes] = {}  # of the next member
        while (header := self._read_header()) is not None:
            kind, size = header[156:157], _read_number(header[124:136], self._place)
            if kind in (b"x", b"g"):
                found = _read_attributes(self._read_small(size), self._place)
                if kind == b"x":
                    attributes.update(found)
                else:
                    everywhere.update(found)
                continue
            if kind in (_LONG_NAME, _LONG_LINK):
                name = self._read_small(size).split(b"\0")[0]
                if kind == _LONG_NAME:
                    attributes["path"] = name
                continue
            known = {**everywhere, **attributes}
            attributes = {}
            if kind == _SPARSE:
                self._skip_sparse_headers(header)
            if "size" in known:
                size = _read_decimal(known["size"], self._place)
            name = known.get("path", _read_name(header))
            is_folder = kind == b"5" or (kind == b"\0" and name.endswith(b"/"))
            if kind in _WITHOUT_DATA:
                size = 0
            if not is_folder:
                is_sparse = any(key.startswith("GNU.sparse") for key in known)
                yield from self._make_member(name, kind, size, is_sparse=is_sparse)
            else:
                self._skip(size)
            self._skip(-self._place % _BLOCK)

    def _make_member(
        self, name: bytes, kind: bytes, size: int, *, is_sparse: bool
    ) -> Iterator[Member]:
        shown = one_line(name.decode("utf-8", "replace")[:200])
        offset, end = self._place, self._place + size
        why, head = None, b""
        ending = os.path.splitext(shown)[1].lower()
        if kind in _LINKS:
            why = LINK
        elif kind not in _REGULAR or is_sparse:
            why = SPECIAL
        elif any(part[:1] == "." and part.strip(".") for part in shown.split("/")):
            why = HIDDEN
        elif ending in _PACKED:
            why = PACKED
        else:
            head = self._take(min(size, HEAD))
            if find_wide_encoding(head):
                why = WIDE
            elif _CONTROLS.search(head):
                why = NOT_TEXT
        lines = ending in _JSON_LINES or (ending == ".json" and _begins_with_record(head, size))
        yield Member(
            name=shown,
            offset=offset,
            size=size,
            why=why,
            kind="jsonl" if lines else "text",
            blocks=self._read_blocks(head, end),
        )
        if self._place < end:
            if why is None:
                raise AssertionError("the bytes of a member were not taken")
            self._skip(end - self._place)

    def _read_blocks(self, head: bytes, end: int) -> Iterator[bytes]:
        if head:
            yield head
        while self._place < end:
            yield self._take(min(self._block, end - self._place))

    def _read_header(self) -> bytes | None:
        """Return the next header, or None at the end of the archive."""
        start = self._place
        header = self._take(_BLOCK)
        if not header.strip(b"\0"):
            self._check_end()
            return None
        stated = _read_number(header[148:156], start)
        rest = header[:148] + b" " * 8 + header[156:]
        signed = sum(rest) - 256 * sum(byte > 127 for byte in rest)  # as some old programs add up
        if stated not in (sum(rest), signed):
            raise ArchiveError(f"there is no valid header at byte {start:,}")
        return header

    def _check_end(self) -> None:
        while data := self._stream.read(self._block):
            if data.strip(b"\0"):
                raise ArchiveError(
                    f"it has more data after its end, from about byte {self._place:,} on; if it is "
                    "several archives in a row, separate them"
                )
            self._place += len(data)

    def _skip_sparse_headers(self, header: bytes) -> None:
        more = header[482]
        while more:
            more = self._take(_BLOCK)[504]

    def _read_small(self, size: int) -> bytes:
        if size > _MOST_HEADER:
            raise ArchiveError(f"the header before byte {self._place:,} has {size:,} bytes")
        data = self._take(size)
        self._skip(-size % _BLOCK)
        return data

    def _take(self, size: int) -> bytes:
        """Read exactly `size` bytes."""
        found: list[bytes] = []
        missing = size
        while missing:
            data = self._stream.read(missing)
            if not data:
                raise ArchiveError(
                    f"it ends at byte {self._place + size - missing:,}; the file is cut short"
                )
            found.append(data)
            missing -= len(data)
        self._place += size
        return found[0] if len(found) == 1 else b"".join(found)

    def _skip(self, size: int) -> None:
        while size:
            size -= len(self._take(min(size, self._block)))


def _begins_with_record(head: bytes, size: int) -> bool:
    """Return whether the first line of a file is one JSON object, or the beginning of a long one."""
    first, _, more = head.lstrip().partition(b"\n")
    first = first.rstrip()
    if not first.startswith(b"{"):
        return False
    return first.endswith(b"}") if more or size <= len(head) else len(first) > HEAD // 2


def _read_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0")[0]
    if header[257:263] == b"ustar\0" and (prefix := header[345:500].split(b"\0")[0]):
        return prefix + b"/" + name
    return name


def _read_number(field: bytes, place: int) -> int:
    """Read a number of a header: octal digits, or bytes if the first bit is set."""
    if field[0] & 0x80:
        if field[0] & 0x40:
            raise ArchiveError(f"a header before byte {place:,} has a negative number")
        return int.from_bytes(bytes([field[0] & 0x3F]) + field[1:], "big")
    digits = field.split(b"\0")[0].strip()
    if not re.fullmatch(rb"[0-7]*", digits):
        raise ArchiveError(f"a header before byte {place:,} has an invalid number")
    return int(digits or b"0", 8)


def _read_decimal(digits: bytes, place: int) -> int:
    if not re.fullmatch(rb"[0-9]{1,18}", digits):
        raise ArchiveError(f"a header before byte {place:,} has an invalid size")
    return int(digits)


def _read_attributes(data: bytes, place: int) -> dict[str, bytes]:
    """Read the attributes of a pax header: lines, each with its length, a name and a value."""
    found = {}
    start = 0
    while start < len(data) and data[start]:
        match = _PAX.match(data, start)
        length = int(match[1]) if match else 0
        if (
            not match
            or not match.end() < start + length <= len(data)
            or data[start + length - 1] != 10
        ):
            raise ArchiveError(f"the header before byte {place:,} is invalid")
        found[match[2].decode("utf-8", "replace")] = data[match.end() : start + length - 1]
        start += length
    return found
