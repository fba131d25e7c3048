"""Small files that expand to gigabytes, and JSON that expands in memory: bounded, or refused by place."""

from __future__ import annotations

import lzma
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from reading import read, rejections_of, source_of, texts_of

from tokenmill.errors import InputError, TooLongError
from tokenmill.sources.files import SourceFile
from tokenmill.sources.read import Reading, read_range
from tokenmill.sources.recognize import find_fault
from tokenmill.sources.records import Cutter

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LIMIT = 1 << 20
COMPRESSORS = {
    ".gz": lambda: zlib.compressobj(1, wbits=31),
    ".zst": lambda: zstd.ZstdCompressor(level=1),
    ".xz": lambda: lzma.LZMACompressor(preset=0),
}


def write_compressed(path: Path, parts: Iterator[bytes]) -> None:
    compressor = COMPRESSORS[path.suffix]()
    with path.open("wb") as file:
        file.writelines(map(compressor.compress, parts))
        file.write(compressor.flush())


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_long_line_is_refused_with_its_place_and_size(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    parts = [b'{"text": "a"}\n{"text": "', *[b"a" * 1_000_000] * 60, b'"}\n']
    write_compressed(path, iter(parts))
    with pytest.raises(TooLongError, match="the line at byte 14 has 60,000,012 bytes"):
        read(path, hold_limit=LIMIT)


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_long_word_is_read_in_fragments(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    write_compressed(path, iter([b"a" * 1_000_000] * 60))
    source = source_of(path, compression=suffix_name(suffix))
    how = Reading(hold_limit=LIMIT, cutter=Cutter(anywhere=True))
    sizes = [sum(map(len, chunk.texts)) for chunk in read_range(source, 0, 10, how)]
    assert sum(sizes) == 60_000_000
    assert max(sizes) < 9_000_000


def test_a_word_that_cannot_be_cut_is_refused_with_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"1" * 100_000)
    with pytest.raises(TooLongError, match=r"the [89]\d,\d{3} bytes from byte 0 on cannot be cut"):
        read(path, hold_limit=20_000, block=4_096, cutter=Cutter())


def suffix_name(suffix: str) -> str:
    return {".gz": "gzip", ".zst": "zstd", ".xz": "xz"}[suffix]


@pytest.mark.parametrize("value", [b"{}", b"[]", b'{"":{}}', b'"ab"', b"1e9"])
def test_a_line_of_very_many_values_is_refused(tmp_path: Path, value: bytes) -> None:
    path = tmp_path / "a.jsonl"
    many = b",".join([value] * (3_000_000 // (len(value) + 1)))
    path.write_bytes(b'{"text": "first"}\n{"a": [' + many + b'], "text": "a"}\n')
    with pytest.raises(TooLongError, match=r"the line at byte 18 has [\d,]+ values"):
        read(path, hold_limit=LIMIT)
    assert texts_of(read(path, hold_limit=100 * LIMIT)) == [b"first", b"a"]


def test_separators_within_a_text_are_not_values(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    text = b'1,2,[{:\\"\\\\' * 200_000
    path.write_bytes(b'{"text": "' + text + b'"}\n')
    assert [len(one) for one in texts_of(read(path, hold_limit=LIMIT))] == [9 * 200_000]


def test_a_long_line_that_is_not_strict_json_is_refused_earlier(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": NaN, "text": "' + b"a" * 3_000_000 + "😀".encode() + b'"}\n')
    with pytest.raises(TooLongError, match="the line at byte 0 has 3,000,02"):
        read(path, hold_limit=LIMIT)


@pytest.mark.parametrize("line", [b"[" * 500_000 + b"]" * 500_000, b'{"a":' * 200_000])
def test_deep_nesting_is_a_rejection(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line + b'\n{"text": "b"}\n')
    chunks = read(path, hold_limit=8 * LIMIT)
    assert texts_of(chunks) == [b"b"]
    assert [kind for _, _, kind in rejections_of(chunks)] == ["not JSON"]


def with_dictionary(content: bytes, code: int) -> bytes:
    """An xz file that asks for a dictionary of another size, by its code."""
    compressor = lzma.LZMACompressor(filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}])
    data = bytearray(compressor.compress(content) + compressor.flush())
    end = 12 + 4 * (data[12] + 1)  # of the header of the first block
    data[data.index(b"\x21\x01", 12) + 2] = code
    data[end - 4 : end] = struct.pack("<I", zlib.crc32(data[12 : end - 4]))
    return bytes(data)


def test_an_xz_dictionary_of_gigabytes_is_refused_with_the_memory_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    for code, size in ((34, 1 << 30), (40, (1 << 32) + (1 << 24))):
        path.write_bytes(with_dictionary(b"words", code))
        with pytest.raises(
            InputError, match=f"window of {size:,} bytes.*\n.*`memory={size + (128 << 20)}`"
        ):
            read(path)
        assert find_fault(source(path), "text") is None  # its first bytes are fine
    path.write_bytes(with_dictionary(b"words", 28))
    assert texts_of(read(path)) == [b"words"]


def source(path: Path) -> SourceFile:
    return source_of(path, compression="xz", size=path.stat().st_size)


@pytest.mark.parametrize(
    "descriptor", [bytes([0, 21 << 3]), bytes([0xA0]) + (1 << 31).to_bytes(4, "little")]
)
def test_a_zstd_window_of_gigabytes_is_refused_with_the_memory_it_needs(
    tmp_path: Path, descriptor: bytes
) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + descriptor + bytes([5 << 3 | 1, 0, 0]) + b"hello")
    with pytest.raises(
        InputError, match=r"window of 2,147,483,648 bytes.*\n.*memory=2281701376"
    ) as refused:
        read(path)
    assert "more than a worker may use" in str(refused.value)
