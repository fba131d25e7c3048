"""Read the records of WARC files, and find out which of them are text.

A record of type `conversion` is a text, as in the WET files of Common Crawl. Of the records `response`
and `resource`, plain text and HTML are read (`web_pages.py` makes text of HTML). All others are counted with
the reason. A file that is damaged or cut short is a WarcError.

Memory holds a block of a text, or one page of HTML with its decoded content; a larger page is refused.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from tokenmill.errors import TooLongError
from tokenmill.sources.compression import Stream

_MOST_HEADER = 1 << 20
_VERSION = re.compile(rb"WARC/[0-9]\.[0-9]+\r?\n")
_END = re.compile(rb"\r?\n\r?\n")
_DIGITS = re.compile(r"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[^\r\n]*\r\n")
_READ = 1 << 16

WITHOUT_TEXT = "a WARC record without text"
OTHER_STATUS = "a WARC response without a page"
OTHER_TYPE = "a WARC record that is not text"
OTHER_CODING = "a WARC record with an unknown coding"


class WarcError(Exception):
    """A WARC file is damaged."""


@dataclass
class Record:
    """A record. `offset` is where it begins in the decompressed file, `size` the bytes of its content.

    All of `blocks` must be taken before the next record.
    """

    offset: int
    size: int
    headers: dict[str, str]
    blocks: Iterator[bytes]

    @property
    def kind(self) -> str:
        return self.headers.get("warc-type", "").lower()


@dataclass(frozen=True)
class Page:
    """The content of a record: text or HTML, and its charset if it is known."""

    is_html: bool
    charset: str | None
    content: bytes


def read_warc_records(stream: Stream, block: int) -> Iterator[Record]:
    """Yield the records of a file, in order."""
    data = _Input(stream)
    while data.skip_line_ends():
        offset = data.place
        headers = data.read_headers(_VERSION)
        stated = headers.get("content-length", "")
        if not _DIGITS.fullmatch(stated):
            raise WarcError(f"the record at byte {offset:,} has no valid Content-Length")
        end = data.place + int(stated)
        yield Record(offset, int(stated), headers, data.read_blocks(end, block))
        if data.place != end:
            raise AssertionError("the content of a record was not taken")


class _Input:
    """A stream with what was read ahead of it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._ahead = b""
        self.place = 0

    def skip_line_ends(self) -> bool:
        """Skip the empty lines between records. Returns False at the end of the file."""
        while True:
            rest = self._ahead.lstrip(b"\r\n")
            self.place += len(self._ahead) - len(rest)
            self._ahead = rest
            if rest:
                return True
            if not self._read_more():
                return False

    def _read_more(self) -> bool:
        more = self._stream.read(_READ)
        self._ahead += more
        return bool(more)

    def read_headers(self, first: re.Pattern[bytes]) -> dict[str, str]:
        """Read the first line and the headers of a record."""
        start = 0
        while not (end := _END.search(self._ahead, start)):
            start = max(0, len(self._ahead) - 3)
            if len(self._ahead) > _MOST_HEADER:
                raise WarcError(f"the record at byte {self.place:,} has too long headers")
            if not self._read_more():
                raise WarcError(f"it ends within a record at byte {self.place:,}; it is cut short")
        head, self._ahead = self._ahead[: end.end()], self._ahead[end.end() :]
        if not first.match(head):
            raise WarcError(f"there is no record at byte {self.place:,}")
        self.place += len(head)
        return parse_headers(head)

    def read_blocks(self, end: int, block: int) -> Iterator[bytes]:
        while self.place < end:
            data = self._ahead[: end - self.place] or self._stream.read(
                min(block, end - self.place)
            )
            if not data:
                raise WarcError(f"it ends at byte {self.place:,}; it is cut short")
            self._ahead = self._ahead[len(data) :]
            self.place += len(data)
            yield data


def parse_headers(head: bytes) -> dict[str, str]:
    """Return headers by their names in lower case. Of several with one name, the last counts.

    >>> parse_headers(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/html\\r\\n\\r\\n")
    {'content-type': 'text/html'}
    """
    found = {}
    for line in head.decode("utf-8", "replace").splitlines()[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip().lower()] = value.strip()
    return found


def find_text(record: Record) -> str | None:
    """Return what the content of a record is: text, http or page; None if it is passed over."""
    if record.kind == "conversion" and _is_plain(record.headers.get("content-type", "text/plain")):
        return "text"
    if record.kind == "response":
        return (
            "http"
            if record.headers.get("content-type", "").startswith("application/http")
            else None
        )
    return "page" if record.kind == "resource" else None


def _is_plain(kind: str) -> bool:
    return kind.partition(";")[0].strip().lower() == "text/plain"


def open_page(record: Record, *, is_http: bool, most: int) -> Page | str:
    """Return the page in a record, or the reason why it is not read.

    Raises TooLongError if the page has more than `most` bytes.
    """
    if record.size > most:
        raise TooLongError(
            record.size, f"the page at byte {record.offset} has {record.size:,} bytes"
        )
    content = b"".join(record.blocks)
    kind = record.headers.get("content-type", "")
    if is_http:
        end = _END.search(content)
        if end is None or not content.startswith(b"HTTP/"):
            return OTHER_STATUS
        head, content = content[: end.end()], content[end.end() :]
        if not re.match(rb"HTTP/\S+ 200\b", head):
            return OTHER_STATUS
        headers = parse_headers(head)
        kind = headers.get("content-type", "")
        if not _is_text(kind):
            return OTHER_TYPE
        if "chunked" in headers.get("transfer-encoding", "").lower():
            content = _join_chunks(content)
        decoded = _decode(content, headers.get("content-encoding", "").lower(), record, most)
        if decoded is None:
            return OTHER_CODING
        content = decoded
    if not _is_text(kind):
        return OTHER_TYPE
    charset = re.search(r"charset\s*=\s*[\"']?([\w.:-]+)", kind, re.IGNORECASE)
    return Page(not _is_plain(kind), charset[1] if charset else None, content)


def _is_text(kind: str) -> bool:
    plain = kind.partition(";")[0].strip().lower()
    return plain in ("text/plain", "text/html", "application/xhtml+xml")


def _join_chunks(content: bytes) -> bytes:
    """Join the chunks of a body. A body that was joined already, as crawlers do, stays as it is."""
    found, place = [], 0
    while match := _CHUNK.match(content, place):
        size = int(match[1], 16)
        found.append(content[match.end() : match.end() + size])
        place = match.end() + size
        if not size:
            return b"".join(found)
        if content[place : place + 2] != b"\r\n":
            break
        place += 2
    # A body that is cut short has no last chunk.
    return b"".join(found) if found and place >= len(content) else content


def _decode(content: bytes, coding: str, record: Record, most: int) -> bytes | None:
    """Decompress a body. Returns None if its coding is unknown or it is damaged."""
    if coding in ("", "identity"):
        return content
    if coding not in ("gzip", "x-gzip", "deflate"):
        return None
    if coding != "deflate" and not content.startswith(b"\x1f\x8b"):
        return content  # the crawler has decompressed it
    for bits in (47, -15):  # gzip or zlib, then a bare stream
        inner = zlib.decompressobj(bits)
        try:
            decoded = inner.decompress(content, most + 1)
        except zlib.error:
            continue
        if len(decoded) > most:
            reason = f"the page at byte {record.offset} has more than {most:,} bytes"
            raise TooLongError(2 * most, reason)
        return decoded
    return None
