"""Input texts: JSON lines, plain text, Parquet, and each compression."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tokenmill.sources.encodings import choose_encoding, convert
from tokenmill.sources.find import find_files
from tokenmill.sources.parquet import measure_row_groups, measure_text
from tokenmill.sources.read import Reading, read_range
from tokenmill.sources.recognize import find_fault
from tokenmill.sources.records import Chunk

from ..case import Case, Parser, refused, require, write_files
from ..mutate import change_bytes, change_lines, change_tree, dump
from ..wire import Struct

RECORDS: list[dict[str, Any]] = [
    {"text": "Hello, world!", "id": 1},
    {
        "id": 2,
        "text": "Ünïcödé 🙂\nsecond line",
        "meta": {"url": "https://example.org", "n": [1, 2]},
    },
    {"text": ""},
    {"text": "The end.", "score": 0.5},
]
LINES = b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in RECORDS)
PLAIN = ("A first text.\n\nMore.<|endoftext|>Zweitens, ein Text.\r\n" * 3 + "é" * 40).encode()
HOLD = 8 << 20  # bytes of a document that may be held


def read_all(path: Path, **how: Any) -> list[Chunk]:
    """The chunks of a file, found and read as `prepare` does."""
    (source,), _ = find_files([path])
    find_fault(source, "text")
    end = 1 << 62 if source.unit == "row" else source.size
    reading = Reading(separator=b"<|endoftext|>", step=1 << 20, hold_limit=HOLD, **how)
    return list(read_range(source, 0, end, reading))


def texts_of(chunks: list[Chunk]) -> list[bytes]:
    return [text for chunk in chunks for text in chunk.texts]


def _in_utf8(data: bytes) -> bytes:
    encoding = choose_encoding(data[:4096], "auto")
    return b"".join(convert([data], encoding, 1 << 20)) if encoding else data


class JsonLinesParser(Parser):
    """Every line is a text, a rejection, or blank."""

    name = "jsonl"

    def prepare(self, folder: Path) -> None:
        self.sound = {"x.jsonl": LINES}

    def list_sound(self) -> list[Case]:
        return [Case(self.sound, {"block": 64})]

    def make(self, random: Random) -> Case:
        data = LINES
        match random.randrange(5):
            case 0:
                data = change_bytes(random, data)
            case 1:
                data = change_lines(random, data)
            case _:
                lines = [dump(record) for record in RECORDS]
                place = random.randrange(len(lines))
                lines[place] = dump(change_tree(random, RECORDS[place]))
                data = b"\n".join(lines) + random.choice([b"", b"\n", b"\r\n", b"\n\n"])
        if random.randrange(10) == 0:
            data = random.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"[", b"\n\n"]) + data
        name = random.choice(["x.jsonl", "x.jsonl", "x.json", "x.ndjson"])
        block = random.choice([16, 64, 1 << 20])
        return Case({name: data}, {"block": block})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        name, data = next(iter(case.files.items()))
        chunks = read_all(folder / name, block=case.facts["block"])
        if name != "x.json":
            found = len(texts_of(chunks)) + sum(len(chunk.rejections) for chunk in chunks)
            data = _in_utf8(data)
            lines = sum(bool(line.strip()) for line in data.split(b"\n"))
            continued = sum(chunk.continues for chunk in chunks)
            require(found - continued == lines, f"{lines} lines gave {found - continued} records")


class TextParser(Parser):
    name = "text"

    def prepare(self, folder: Path) -> None:
        self.sound = {"x.txt": PLAIN}

    def list_sound(self) -> list[Case]:
        return [Case(self.sound, {"block": 64})]

    def make(self, random: Random) -> Case:
        data = random.choice([change_bytes, change_lines])(random, PLAIN)
        if random.randrange(6) == 0:
            text = data.decode("utf-8", "replace")
            encodings = [
                "utf-16",
                "utf-16-le",
                "utf-32",
                "utf-32-be",
                "latin-1",
                "cp1251",
                "gb18030",
            ]
            data = text.encode(random.choice(encodings), "replace")
        name = random.choice(["x.txt", "x.md", "x", "x.html", "x.json"])
        return Case({name: data}, {"block": random.choice([16, 64, 1 << 20])})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        name, data = next(iter(case.files.items()))
        chunks = read_all(folder / name, block=case.facts["block"])
        if name != "x.json":
            kept = b"".join(texts_of(chunks))
            require(
                kept == _in_utf8(data).replace(b"<|endoftext|>", b""), "a part of the text is lost"
            )


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data)


COMPRESSORS: dict[str, Any] = {
    "gz": lambda data: gzip.compress(data, 6, mtime=0),
    "zst": _zstd,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}


class CompressedParser(Parser):
    """All four kinds carry checksums: the text is the original one, or the file is refused."""

    def __init__(self, ending: str) -> None:
        self.name = {"gz": "gzip", "zst": "zstd"}.get(ending, ending)  # type: ignore[misc]
        self.ending = ending

    def prepare(self, folder: Path) -> None:
        self.body = PLAIN * 3
        self.sound = {f"x.txt.{self.ending}": COMPRESSORS[self.ending](self.body)}

    def make(self, random: Random) -> Case:
        ((name, data),) = self.sound.items()
        compress = COMPRESSORS[self.ending]
        match random.randrange(10):
            case 0:  # a sound file with a changed text, which is found behind the compression
                lines = change_lines(random, LINES)
                return Case({f"x.jsonl.{self.ending}": compress(lines)}, {"sound": True})
            case 1:
                parts = [data, compress(b"more"), bytes(random.choice([1, 512]))]
                extra = random.choice([parts, [data, data[:-3]], [data, b"\0", data], [b"", data]])
                return Case({name: b"".join(extra)}, {"sound": True})
            case 2 if random.randrange(150) == 0:
                return self._make_bomb(random)
        return Case({name: change_bytes(random, data)})

    def _make_bomb(self, random: Random) -> Case:
        """A small file with one line, or one word, of over a gigabyte."""
        piece = COMPRESSORS[self.ending](b"a" * (16 << 20))
        many = random.choice([2, 40, 80])
        name = random.choice([f"x.txt.{self.ending}", f"x.jsonl.{self.ending}"])
        start = COMPRESSORS[self.ending](b'{"text": "' if "json" in name else b"a ")
        return Case({name: start + piece * many}, {"sound": True})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        texts = texts_of(read_all(folder / next(iter(case.files)), block=1 << 16))
        if not case.facts.get("sound"):
            kept, expected = b"".join(texts), self.body.replace(b"<|endoftext|>", b"")
            # A whole stream may have been repeated.
            require(kept in (expected, expected * 2, b""), "a damaged stream gave another text")
            empty = not kept and not self._is_empty(next(iter(case.files.values())))
            require(not empty, "a damaged stream gave no text")

    def _is_empty(self, data: bytes) -> bool:
        """Whether an independent reader says that the stream is sound and holds nothing.

        A zstd frame of ten bytes without a checksum can be one.
        """
        if self.ending != "zst":
            return False
        import pyarrow as pa

        try:
            stream = pa.CompressedInputStream(pa.BufferReader(data), compression="zstd")
            return not stream.read(1)
        except (OSError, pa.ArrowException):
            return False


def make_parquet(random: Random) -> bytes:
    """A sound Parquet file in one of many layouts."""
    text = pa.array(["Hello, world!", None, "", "Ünïcödé 🙂"] * random.choice([1, 1, 40]))
    kind = random.choice(["string", "string", "large_string", "binary", "dictionary"])
    if kind == "dictionary":
        text = text.dictionary_encode()
    elif kind != "string":
        text = text.cast({"large_string": pa.large_string(), "binary": pa.binary()}[kind])
    numbers = pa.array(range(len(text)))
    nested = pa.array([[{"a": "x"}]] * len(text))
    table = pa.table({"id": numbers, "text": text, "tags": nested})
    target = io.BytesIO()
    pq.write_table(
        table,
        target,
        row_group_size=random.choice([2, 100]),
        compression=random.choice(["none", "snappy", "zstd", "gzip"]),
        use_dictionary=random.choice([True, False]),
        write_page_checksum=True,
        write_statistics=random.choice([True, False]),
        data_page_version=random.choice(["1.0", "2.0"]),
        store_schema=random.choice([True, False]),
    )
    return target.getvalue()


class ParquetParser(Parser):
    """Thrift structures are changed as such: the footer, and the headers of pages."""

    name = "parquet"

    def prepare(self, folder: Path) -> None:
        pa.set_cpu_count(1)
        pa.set_io_thread_count(1)
        random = Random(1)
        self.variants = [make_parquet(random) for _ in range(24)]

    def list_sound(self) -> list[Case]:
        return [Case({"x.parquet": data}) for data in self.variants]

    def make(self, random: Random) -> Case:
        data = random.choice(self.variants)
        match random.randrange(5):
            case 0:
                data = change_bytes(random, data)
            case 1:
                data = self._change_page(random, data)
            case _:
                data = self._change_footer(random, data)
        return Case({"x.parquet": data})

    def _change_footer(self, random: Random, data: bytes) -> bytes:
        size = struct.unpack("<I", data[-8:-4])[0]
        start = len(data) - 8 - size
        footer = Struct(data[start:])
        for _ in range(random.choice([1, 1, 1, 2, 4])):
            footer.change(random)
        encoded = footer.encode()
        length = random.choice([len(encoded)] * 12 + [0, size + 1, 2**31 - 1, 2**32 - 1])
        return data[:start] + encoded + struct.pack("<I", length) + data[-4:]

    def _change_page(self, random: Random, data: bytes) -> bytes:
        """Change the header of a page, keeping its size if possible, so that offsets stay right."""
        metadata = pq.read_metadata(io.BytesIO(data))
        group = metadata.row_group(random.randrange(metadata.num_row_groups))
        column = group.column(1)
        place = random.choice([column.data_page_offset, column.dictionary_page_offset or 4])
        header = Struct(data[place:])
        length = header.end
        for _ in range(20):
            header.change(random)
            encoded = header.encode()
            if len(encoded) == length:
                break
            header = Struct(data[place:])
        return data[:place] + encoded + data[place + length :]

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        path = folder / "x.parquet"
        with refused():
            measure_row_groups(str(path))
        with refused():
            measure_text(str(path), "text")
        read_all(path)


PARSERS = [JsonLinesParser(), TextParser(), *map(CompressedParser, COMPRESSORS), ParquetParser()]
