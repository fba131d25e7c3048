"""WARC and WET files, written and read again by warcio: texts and pages are documents."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import offsets_of, rejections_of, texts_of
from warcio.archiveiterator import ArchiveIterator
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

import tokenmill
from tokenmill.errors import TooLongError
from tokenmill.sources import warc
from tokenmill.sources.files import BadFileError
from tokenmill.sources.find import find_files
from tokenmill.sources.read import Reading, read_range
from tokenmill.sources.records import Chunk, Cutter

# warcio does not close its temporary files.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning"
)
HTML = (
    "<html><head><title>Title</title></head><body><nav><a href='/'>Home</a></nav><main>"
    + "<p>Größe und Höhe sind hier der Inhalt, ein langer Absatz mit vielen Wörtern.</p>" * 3
    + "</main><script>var x;</script></body></html>"
)


class Warc:
    """Writes a file with warcio, and knows where each record begins in the decompressed file."""

    def __init__(self, *, compressed: bool = False) -> None:
        self.target = io.BytesIO()
        self.writer = WARCWriter(self.target, gzip=compressed)
        self.compressed = compressed

    def add(
        self,
        kind: str,
        content: bytes,
        media: str = "text/plain",
        *,
        http: str | None = None,
        **more: str,
    ) -> int:
        start = len(self.plain())
        headers = None
        if http is not None:
            fields = [("Content-Type", media), *((k.replace("_", "-"), v) for k, v in more.items())]
            headers = StatusAndHeaders(http, fields, protocol="HTTP/1.1")
        options = {} if http is not None else {"warc_content_type": media}
        record = self.writer.create_warc_record(
            "http://example.org/page",
            kind,
            payload=io.BytesIO(content),
            http_headers=headers,
            **options,
        )
        self.writer.write_record(record)
        return start

    def plain(self) -> bytes:
        data = self.target.getvalue()
        return gzip.decompress(data) if self.compressed and data else data


def read(path: Path, data: bytes, **how: object) -> list[Chunk]:
    path.write_bytes(data)
    ((source,), _) = find_files([path])
    assert source.kind == "warc"
    return list(read_range(source, 0, source.size, Reading(**how)))  # type: ignore[arg-type]


@pytest.mark.parametrize("compressed", [False, True])
def test_conversions_are_documents_and_the_rest_is_counted(
    tmp_path: Path, compressed: bool
) -> None:
    file = Warc(compressed=compressed)
    file.add("warcinfo", b"software: x\r\n", "application/warc-fields")
    starts = [
        file.add("conversion", text) for text in (b"One.\r\n\r\nTwo.", b"", "größer".encode())
    ]
    file.add("metadata", b"a: b\r\n", "application/warc-fields")
    name = "a.warc.wet.gz" if compressed else "a.wet"
    chunks = read(tmp_path / name, file.target.getvalue())
    assert texts_of(chunks) == [b"One.\r\n\r\nTwo.", b"", "größer".encode()]
    assert offsets_of(chunks) == starts
    assert [kind for _, _, kind in rejections_of(chunks)] == [warc.WITHOUT_TEXT] * 2


def test_pages_of_html_become_text(tmp_path: Path) -> None:
    file = Warc()
    plain = {"http": "200 OK", "media": "text/html; charset=utf-8"}
    chunked = b"".join(
        b"%x\r\n%s\r\n" % (len(p), p) for p in (HTML.encode()[:99], HTML.encode()[99:])
    )
    starts = [
        file.add("response", HTML.encode(), **plain),
        file.add("response", HTML.encode("latin-1"), "text/html;charset=iso-8859-1", http="200 OK"),
        file.add("response", chunked + b"0\r\n\r\n", **plain, Transfer_Encoding="chunked"),
        file.add("response", gzip.compress(HTML.encode()), **plain, Content_Encoding="gzip"),
        file.add("response", zlib.compress(HTML.encode()), **plain, Content_Encoding="deflate"),
        # Crawlers join and decompress, but keep the headers.
        file.add(
            "response", HTML.encode(), **plain, Transfer_Encoding="chunked", Content_Encoding="gzip"
        ),
        file.add("resource", HTML.encode(), "text/html; charset=utf-8"),
    ]
    text = file.add("response", b"plain words", "text/plain", http="200 OK")
    file.add("request", b"GET / HTTP/1.1\r\n\r\n", "application/http")
    refused = [
        file.add("response", b"moved", "text/html", http="301 Moved"),
        file.add("response", b"\x89PNG", "image/png", http="200 OK"),
        file.add("response", b"x", **plain, Content_Encoding="br"),
        file.add("resource", b"%PDF", "application/pdf"),
    ]
    chunks = read(tmp_path / "a.warc", file.target.getvalue())
    assert offsets_of(chunks) == [*starts, text]
    *pages, words = texts_of(chunks)
    assert words == b"plain words"
    assert len(set(pages)) == 1
    assert pages[0].decode().count("Größe und Höhe sind hier der Inhalt") == 3
    assert b"Home" not in pages[0]
    assert b"var x" not in pages[0]
    kinds = [(offset, kind) for _, offset, kind in rejections_of(chunks)][1:]
    reasons = [warc.OTHER_STATUS, warc.OTHER_TYPE, warc.OTHER_CODING, warc.OTHER_TYPE]
    assert kinds == list(zip(refused, reasons, strict=True))


@given(st.lists(st.binary(max_size=3000), max_size=8), st.integers(1, 4000), st.booleans())
def test_the_same_records_as_warcio(texts: list[bytes], block: int, compressed: bool) -> None:
    file = Warc(compressed=compressed)
    for text in texts:
        file.add("conversion", text)
    expected = [
        (record.rec_headers.get_header("WARC-Type"), record.content_stream().read())
        for record in ArchiveIterator(io.BytesIO(file.target.getvalue()))
    ]
    found = [
        (record.kind, b"".join(record.blocks))
        for record in warc.read_warc_records(io.BytesIO(file.plain()), block)
    ]
    assert found == expected == [("conversion", text) for text in texts]


def test_long_texts_come_in_fragments_and_long_pages_are_refused(tmp_path: Path) -> None:
    file = Warc()
    text = b"words and more words\n" * 5000
    start = file.add("conversion", text)
    chunks = read(
        tmp_path / "a.wet", file.target.getvalue(), block=4096, cutter=Cutter(anywhere=True)
    )
    assert b"".join(texts_of(chunks)) == text
    assert sum(not chunk.continues for chunk in chunks) == 1
    assert set(offsets_of(chunks)) == {start}
    for content, more in (
        (b"x" * 5000, {}),
        (gzip.compress(b"x" * 5000), {"Content_Encoding": "gzip"}),
    ):
        file = Warc()
        file.add("response", content, "text/html", http="200 OK", **more)
        with pytest.raises(TooLongError, match="the page at byte 0 has"):
            read(tmp_path / "a.warc", file.target.getvalue(), hold_limit=4000)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    file = Warc()
    file.add("conversion", b"good text " * 50)
    data = file.target.getvalue()
    path = tmp_path / "a.wet"
    for end in (10, 100, len(data) - 100):
        with pytest.raises(BadFileError, match="cut short"):
            read(path, data[:end])
    with pytest.raises(BadFileError, match="no record at byte 0"):
        read(path, b"HTTP" + data[4:])
    with pytest.raises(BadFileError, match="no valid Content-Length"):
        read(path, data.replace(b"Content-Length: ", b"Content-Length: -"))
    with pytest.raises(BadFileError, match="too long headers"):
        read(path, b"WARC/1.0\r\n" + b"a: b\r\n" * 400_000)
    with pytest.raises(BadFileError, match="the gzip stream ends too early"):
        read(tmp_path / "a.wet.gz", gzip.compress(data) + gzip.compress(data)[:-9])
    random = Random(1)
    for _ in range(200):
        changed = bytearray(data)
        changed[random.randrange(len(data))] = random.randrange(256)
        try:
            chunks = read(path, bytes(changed), block=64)
        except BadFileError:
            continue
        assert sum(map(len, texts_of(chunks))) <= len(data)


def test_a_dataset_of_a_crawl(tmp_path: Path) -> None:
    file = Warc(compressed=True)
    file.add("warcinfo", b"software: x\r\n", "application/warc-fields")
    for number in range(20):
        file.add("conversion", f"Page {number % 15} of the crawl.".encode())
    file.add("response", b"gone", "text/html", http="404 Not Found")
    path = tmp_path / "a.warc.wet.gz"
    path.write_bytes(file.target.getvalue())
    report = tokenmill.prepare(path, tmp_path / "out", tokenizer="bytes", val_fraction=0, workers=1)
    ledger = report.manifest.ledger
    assert (ledger["documents_in"], ledger["documents_kept"]) == (22, 15)
    assert {reason: one["documents"] for reason, one in ledger["dropped"].items()} == {
        warc.WITHOUT_TEXT: 1,
        warc.OTHER_STATUS: 1,
        "duplicate": 5,
    }
    (listed,) = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    assert "http://example.org/page is a WARC response without a page" in listed
