"""The table of sources: a separate file, read on demand and checked."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import time

import pytest
import xxhash
from dataset_builder import build, edit_manifest, write_sources
from hypothesis import given
from hypothesis import strategies as st

import tokenmill
from tokenmill.dataset.verify import verify
from tokenmill.errors import DatasetError
from tokenmill.store.tables import Source, SourceTable


@pytest.fixture
def folder(tmp_path):
    build(tmp_path / "data")
    return tmp_path / "data"


SOURCES = st.lists(
    st.builds(
        Source,
        path=st.text(st.characters(exclude_categories=["Cs"])),
        bytes=st.integers(0, 2**50),
        unit=st.sampled_from(["byte", "row"]),
    ),
    max_size=8,
)


@given(sources=SOURCES)
def test_a_table_equals_the_list_that_it_was_made_from(sources):
    table = SourceTable.of(sources)
    assert list(table) == sources
    assert [table[n] for n in range(len(sources))] == sources
    assert (len(table), table.bytes) == (len(sources), sum(one.bytes for one in sources))
    assert pickle.loads(pickle.dumps(table)) == table
    lines = bytes(table.encode()).split(b"\n")[:-1]
    assert [json.loads(line)["path"] for line in lines] == [one.path for one in sources]


def test_opening_does_not_read_the_sources(folder):
    count = 200_000
    table = [{"path": f"corpus/{n:07}.txt", "bytes": n, "unit": "byte"} for n in range(count)]
    edit_manifest(folder, lambda body: body.update(sources=write_sources(folder, table)))
    started = time.perf_counter()
    dataset = tokenmill.open(folder)
    assert len(dataset.manifest.sources) == count
    assert time.perf_counter() - started < 0.2  # as a list in the manifest, they took over a second
    assert dataset.manifest.sources[123_456] == Source(**table[123_456])
    assert dataset["train"].documents[0].source.path == "corpus/0000000.txt"


def test_without_the_sources_tokens_can_be_read_and_lookups_name_the_file(folder):
    (folder / "sources.jsonl").unlink()
    dataset = tokenmill.open(folder)
    assert len(dataset["train"][:]) == 68
    with pytest.raises(DatasetError, match=r"sources\.jsonl is missing from"):
        _ = dataset["train"].documents[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"path": "a", "more": "0123456789"}\n', "does not describe a source in line 1"),
        ('{"path": "a"}\n', "has 14 bytes, which is too short to describe 1 source"),
        ('{"path": "a", "bytes": -1, "unit": "byte"}\n', "does not describe a source in line 1"),
        ('{"path": "a", "bytes": true, "unit": "byte"}\n', "does not describe a source in line 1"),
        ('{"path": "a", "bytes": 1, "unit": "page"}\n', "does not describe a source in line 1"),
        ("[" * 40 + "\n", "does not describe a source in line 1"),
        ("", "has 0 lines, but the manifest says 1"),
        ('{"path": "a", "bytes": 1, "unit": "byte"}', "has 0 lines"),
        ('{"path": "a", "bytes": 1, "unit": "byte"}\n', "sources of 1 bytes in total"),
    ],
)
def test_a_hostile_table_is_refused_by_name(folder, text, says):
    facts = write_sources(folder, [{"path": "a", "bytes": 5, "unit": "byte"}])
    (folder / "sources.jsonl").write_text(text)
    facts["xxh3_128"] = xxhash.xxh3_128_hexdigest(text.encode())
    edit_manifest(folder, lambda body: body.update(sources=facts))
    (problem,) = verify(folder)
    assert problem.file == "sources.jsonl"
    assert says in problem.what


NEWLINES = """
import resource, sys
import tokenmill
from tokenmill.errors import DatasetError
tokens = tokenmill.open(sys.argv[1])["train"]
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    tokens.documents[0]
except DatasetError as error:
    print(error)
"""


@pytest.mark.parametrize("count", [5, 150_000_000])
def test_a_table_of_newlines_is_refused_in_bounded_memory(folder, count):
    """An index of these lines would take 1.2 GB."""
    pytest.importorskip("resource")
    data = b"\n" * 150_000_000
    (folder / "sources.jsonl").write_bytes(data)
    facts = {"path": "sources.jsonl", "count": count, "bytes": 5}
    facts["xxh3_128"] = xxhash.xxh3_128_hexdigest(data)
    edit_manifest(folder, lambda body: body.update(sources=facts))
    done = subprocess.run(
        [sys.executable, "-c", NEWLINES, folder], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("sources.jsonl has 150,000,000 ")


def test_lines_across_blocks_are_found(tmp_path):
    """A block of the search is 1 MiB."""
    sources = [Source(path="x" * 700_000 + str(n), bytes=n, unit="byte") for n in range(7)]
    assert list(SourceTable.of(sources)) == sources


def test_a_table_is_not_read_through_a_link_out_of_the_folder(folder, tmp_path):
    (folder / "sources.jsonl").rename(tmp_path / "elsewhere")
    (folder / "sources.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DatasetError, match="leads out of"):
        _ = tokenmill.open(folder)["train"].documents[0]


def test_a_copied_dataset_reads_its_own_sources(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(folder)
    source = tokenmill.open(tmp_path / "copy")["val"].documents[0].source
    assert source == Source(path="texts/a.txt", bytes=127, unit="byte")
