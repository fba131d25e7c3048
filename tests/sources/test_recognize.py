"""recognize.py: what a file is read as, by its name and its first bytes, compressed or not."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import InputError
from tokenmill.sources.files import SourceFile, local_path, name_source
from tokenmill.sources.find import find_files
from tokenmill.sources.recognize import recognize

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


def recognized(path: Path, data: bytes) -> SourceFile:
    path.write_bytes(COMPRESS[path.suffix if path.suffix in COMPRESS else ""](data))
    source = recognize(str(path))
    assert source is not None
    return source


ROW = b'{"text": "a"}\n'
LONG = b'{"text": "%s"}\n' % (b"word " * 20_000)
PRETTY = json.dumps({"title": "a", "rows": [{"id": n} for n in range(9000)]}, indent=2).encode()
COMPACT_ROWS = b'{"rows": [\n' + b",\n".join(b'{"id": %d}' % n for n in range(9)) + b"\n]}\n"
# Half of the lines look like records, in the whole file or in its first 64 KiB.
TWO_LINES = b'{"a":\n{"b": 1}}\n'
LONG_ROWS = b'{"rows": [\n' + b"\n,\n".join([b'{"id": "%s"}' % (b"x" * 40_000)] * 3) + b"\n]}\n"
WITH_COMMENTS = b'{\n  // settings\n  "compilerOptions": {\n    "strict": true,\n  },\n}\n'


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (ROW * 2, "jsonl"),
        (ROW.strip(), "jsonl"),
        (b"\n\n" + ROW * 2, "jsonl"),
        (b"", "jsonl"),
        (LONG * 3, "jsonl"),
        (b'{"id": NaN, "text": "a"}\n' + ROW, "jsonl"),
        (b'{"id": NaN, "text": "a"}\n\n', "jsonl"),
        (b"NaN\n" + ROW, "jsonl"),
        (b'{"a": ' + b"[" * 9000 + b"]" * 9000 + b"}\n" + ROW * 3, "jsonl"),
        (b"[1]\n" + ROW, "jsonl"),
        (b'{"text": "never closed\n' + ROW, "jsonl"),
        (b'{"text": "never closed\n' + LONG, "jsonl"),
        (b'{"text": "never closed', "jsonl"),
        (b'{"text":\n' + ROW * 9, "jsonl"),
        (b'{"a": [1, 2\n' + ROW * 9000, "jsonl"),
        (b"[1, 2\n" + ROW * 9, "jsonl"),
        (b'\xef\xbb\xbf{"text": bad}\n' + ROW, "jsonl"),
        (b'{"text": "caf\xe9", oops}\n' + ROW, "jsonl"),
        (b'{\n  "text": "a"\n}\n', "text"),
        (b'\xef\xbb\xbf{\n  "text": "a"\n}\n', "text"),
        (PRETTY, "text"),
        (COMPACT_ROWS, "text"),
        (COMPACT_ROWS.replace(b"9", b"9" * 70_000), "text"),
        (TWO_LINES, "text"),
        (LONG_ROWS, "text"),
        (WITH_COMMENTS, "text"),
        (b'{"a":\n' + b"[\n" * 9000 + b"]\n" * 9000 + b"}\n", "text"),
        (b"{\n" + b' "caf\xe9": 1,\n' * 9 + b' "b": 2\n}', "text"),
    ],
)
def test_json_lines_with_broken_lines_are_distinguished_from_one_document(
    tmp_path: Path, content: bytes, kind: str, suffix: str
) -> None:
    source = recognized(tmp_path / f"a.json{suffix}", content)
    assert (source.kind, source.fault) == (kind, None)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize(
    "content",
    [
        b'[\n  {"text": "a"}\n]\n',
        b'[{"text": "a"}, {"text": "b"}]',
        b'\n[{"text": "a"}]\n\n',
        json.dumps([1] * 50_000).encode(),
    ],
)
def test_one_json_array_is_a_kind_of_its_own(tmp_path: Path, content: bytes, suffix: str) -> None:
    source = recognized(tmp_path / f"a.json{suffix}", content)
    assert (source.kind, source.fault) == ("json", None)


def lengthen(data: str) -> bytes:
    """Replace short texts with long ones, so that files are longer than the head that is read."""
    return data.replace("LONG", "x" * 30_000).encode("utf-8", "replace")


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=9) | st.just("LONG"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(
    value=st.dictionaries(st.text(max_size=5), VALUES, min_size=1),
    indent=st.sampled_from([0, 1, 4]),
)
def test_every_object_printed_over_many_lines_is_one_document(value: Any, indent: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = json.dumps(value, indent=indent, ensure_ascii=False)
        source = recognized(Path(folder) / "a.json", lengthen(data))
    assert source.kind == "text"


@settings(max_examples=60, deadline=None)
@given(
    records=st.lists(st.dictionaries(st.text(max_size=5), VALUES), min_size=1, max_size=9),
    broken=st.sampled_from(['{"a', '{"a": "b', "{]", '{"a": 1,}', '{"a": 1} {"a": 2}']),
)
def test_json_lines_after_a_broken_one_are_json_lines(records: Any, broken: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = [broken, *map(json.dumps, records)]
        source = recognized(Path(folder) / "a.json", lengthen("\n".join(lines)))
    assert source.kind == "jsonl"


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": ["words"] * 100}), sink)
    return sink.getvalue()


def npy() -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.arange(1000))
    return sink.getvalue()


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_are_passed_over_like_uncompressed_ones(
    tmp_path: Path, suffix: str
) -> None:
    compress = COMPRESS[suffix]
    texts = {"a.txt": b"words", "b.dat": b"words", "c": "Grüße".encode(), "d.jsonl": ROW}
    others = {
        "ls.bin": Path("/bin/sh").read_bytes(),
        "x.npy": npy(),
        "y": b"caf\xe9",
        "z.dat": bytes(99),
    }
    for name, data in {**texts, **others}.items():
        (tmp_path / f"{name}{suffix}").write_bytes(compress(data))
    if suffix:
        (tmp_path / f"p.parquet{suffix}").write_bytes(compress(parquet()))
    for given_input in (tmp_path, tmp_path / "*"):
        sources, passed_over = find_files([given_input])
        assert [Path(source.path).name for source in sources] == [
            f"{name}{suffix}" for name in texts
        ]
        reasons = {Path(entry.path).name: entry.reason for entry in passed_over}
        expected = {f"{name}{suffix}": "not text" for name in others}
        assert reasons == expected | (
            {f"p.parquet{suffix}": "compressed Parquet"} if suffix else {}
        )
    # The user may know better, unless it cannot be text at all.
    assert find_files([tmp_path / f"ls.bin{suffix}"])[0]
    if suffix:
        with pytest.raises(InputError, match=r"p\.parquet\S+ is compressed Parquet\. Decompress"):
            find_files([tmp_path / f"p.parquet{suffix}"])


def test_the_head_of_zstd_with_a_long_window_is_read(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=30, write_content_size=False)
    for name, data in {"a.json": ROW, "b.dat": b"words", "c.dat": bytes(99)}.items():
        packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        (tmp_path / f"{name}.zst").write_bytes(packer.compress(data) + packer.flush())
    sources, passed_over = find_files([tmp_path])
    assert [(Path(one.path).name, one.kind) for one in sources] == [
        ("a.json.zst", "jsonl"),
        ("b.dat.zst", "text"),
    ]
    assert [Path(entry.path).name for entry in passed_over] == ["c.dat.zst"]


def test_damage_in_a_compressed_file_is_reported_by_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"words" * 9)[:-20])
    (tmp_path / "b.gz").write_bytes(b"plain")
    sources, passed_over = find_files([tmp_path])
    assert [Path(source.path).name for source in sources] == ["a.gz", "b.gz"]
    assert not passed_over


@settings(deadline=None)
@given(
    st.binary(min_size=1, max_size=20).filter(lambda name: not {0, 47} & set(name) and name != b".")
)
def test_every_name_survives_a_round_trip(name: bytes) -> None:
    path = b"/folder/" + name
    written = name_source(os.fsdecode(path))
    assert json.loads(json.dumps(written, ensure_ascii=False).encode()) == written
    assert os.fsencode(local_path(written)) == path
