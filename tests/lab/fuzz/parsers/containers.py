"""Input files that contain tables or other files: Arrow, tar and WARC."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from random import Random

import pyarrow as pa

from tokenmill.errors import TokenmillError
from tokenmill.sources.arrow import measure_batches
from tokenmill.sources.records import Chunk

from ..case import Case, Parser, require, write_files
from ..mutate import change_bytes
from .texts import LINES, PLAIN, read_all, texts_of

TEXTS = ["Hello, world!", None, "", "Ünïcödé 🙂, longer than a view", "The end."]


def make_arrow(random: Random) -> bytes:
    """A sound Arrow file or stream in one of many layouts."""
    text = pa.array(TEXTS * random.choice([1, 1, 20]))
    kind = random.choice(["string", "large_string", "string_view", "binary", "dictionary"])
    if kind == "dictionary":
        text = text.dictionary_encode()
    elif kind != "string":
        text = text.cast(getattr(pa, kind)())
    count = len(text)
    table = pa.table(
        {
            "id": pa.array(range(count)),
            "tags": pa.array([[{"a": "x"}]] * count),
            "view": pa.array(["a view that is long"] * count, pa.string_view()),
            "text": text,
        }
    )
    target = io.BytesIO()
    new = random.choice([pa.ipc.new_file, pa.ipc.new_stream])
    options = pa.ipc.IpcWriteOptions(compression=random.choice([None, "lz4", "zstd"]))
    with new(target, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=random.choice([2, 100]))
    return target.getvalue()


class ArrowParser(Parser):
    """Every text is one of the file, or the file is refused; changed bytes may change texts."""

    name = "arrow"

    def prepare(self, folder: Path) -> None:
        random = Random(1)
        self.variants = [make_arrow(random) for _ in range(24)]

    def list_sound(self) -> list[Case]:
        return [Case({"x.arrow": data}, {"sound": True}) for data in self.variants]

    def make(self, random: Random) -> Case:
        data = bytearray(random.choice(self.variants))
        if random.randrange(3) == 0:
            return Case({"x.arrow": change_bytes(random, bytes(data))})
        # The metadata are numbers of four or eight bytes, at multiples of four.
        for _ in range(random.choice([1, 1, 2, 4])):
            place = 4 * random.randrange(len(data) // 4 - 1)
            number = random.choice([0, 1, 3, 8, 255, 1 << 31, (1 << 31) - 1, (1 << 32) - 1])
            data[place : place + 4] = number.to_bytes(4, "little")
        return Case({"x.arrow": bytes(data)})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        path = folder / "x.arrow"
        measure_batches(str(path))
        chunks = read_all(path)
        if case.facts.get("sound"):
            known = {text.encode() for text in TEXTS if text is not None}
            require(set(texts_of(chunks)) == known, "a text is lost")


class TarParser(Parser):
    """A member that both readers accept has the same bytes."""

    name = "tar"

    def prepare(self, folder: Path) -> None:
        self.variants = []
        for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            target = io.BytesIO()
            with tarfile.open(fileobj=target, mode="w", format=form) as archive:
                for name, data in (("a.txt", PLAIN), ("é" * 40 + ".jsonl", LINES), ("c", b"")):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    info.pax_headers = {"comment": "a comment"}
                    archive.addfile(info, io.BytesIO(data))
            self.variants.append(target.getvalue())

    def list_sound(self) -> list[Case]:
        return [Case({"x.tar": data}, {"sound": True}) for data in self.variants]

    def make(self, random: Random) -> Case:
        data = bytearray(random.choice(self.variants))
        if random.randrange(3) == 0:
            changed = change_bytes(random, bytes(data))
            if random.randrange(4) == 0:
                return Case({"x.tar.gz": gzip.compress(changed, mtime=0)})
            return Case({"x.tar": changed})
        # Change a header, and make its checksum fit again.
        starts = [i for i in range(0, len(data), 512) if data[i + 257 : i + 262] == b"ustar"]
        start = random.choice(starts)
        for _ in range(random.choice([1, 1, 2])):
            field, width = random.choice([(0, 100), (124, 12), (156, 1), (345, 155), (482, 1)])
            place = start + field + random.randrange(width)
            data[place] = random.choice([0, 32, 47, 48, 55, 57, 0x80, 0xFF, *b"xgLKS1257"])
        data[start + 148 : start + 156] = b" " * 8
        data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])
        return Case({"x.tar": bytes(data)})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        name, data = next(iter(case.files.items()))
        chunks = read_all(folder / name, block=1 << 10)
        if name == "x.tar":
            require(_size(chunks) <= len(data), "there is more text than the archive has bytes")
        if case.facts.get("sound"):
            require(b"Hello, world!" in texts_of(chunks), "a member is lost")


def _size(chunks: list[Chunk]) -> int:
    return sum(map(len, texts_of(chunks)))


WARC = b"".join(
    b"WARC/1.0\r\nWARC-Type: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n"
    % (kind, media, len(content), content)
    for kind, media, content in (
        (b"warcinfo", b"application/warc-fields", b"a: b\r\n"),
        (b"conversion", b"text/plain", PLAIN),
        (
            b"response",
            b"application/http; msgtype=response",
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
            b"1f\r\n<html><body><main><p>Words and \r\n15\r\nmore.</p></body></html\r\n1\r\n>\r\n0\r\n\r\n",
        ),
        (b"resource", b"text/html", b"<html><body><main><p>A resource.</p></main></body></html>"),
    )
)


class WarcParser(Parser):
    name = "warc"

    def prepare(self, folder: Path) -> None:
        self.sound = {"x.warc": WARC}

    def make(self, random: Random) -> Case:
        data = change_bytes(random, WARC)
        if random.randrange(3) == 0:
            old = random.choice([b"Content-Length: ", b"charset=", b"chunked", b"200", b"\r\n\r\n"])
            new = random.choice(
                [b"", b"9", b"-", b"99999999999999999999", b"gzip", b"\n\n", b"\xff"]
            )
            data = WARC.replace(
                old, new if old[-1:] != b" " else old + new, random.choice([1, 2, 9])
            )
        if random.randrange(6) == 0:
            return Case({"x.warc.gz": gzip.compress(data, mtime=0)})
        return Case({"x.warc": data})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        try:
            read_all(folder / next(iter(case.files)), block=1 << 10)
        except TokenmillError:
            require(case.files != self.sound, "a sound file was refused")
            raise


PARSERS = [ArrowParser(), TarParser(), WarcParser()]
