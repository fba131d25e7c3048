"""`prepare` reads texts from a real S3 server and from a web server as it reads them from a folder."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers import Proxy

import tokenmill
from tokenmill.errors import InputError, StorageError
from tokenmill.preparation.plan import Limits, make_plan
from tokenmill.preparation.prepare import run_plan
from tokenmill.progress import Nobody
from tokenmill.sources.find import find_files
from tokenmill.storage.object_path import as_path

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SMALL = Limits(part_bytes=20_000, block_bytes=4_096, files_per_part=5, rows=16)


def make_texts(folder: Path) -> None:
    """Files of every kind, in folders, some larger than a part and some without text."""
    chance = random.Random(5)
    words = ["one", "two", "three", "four", "<|endoftext|>", "é", "\n"]
    texts = [" ".join(chance.choices(words, k=chance.randrange(1, 400))) for _ in range(300)]
    (folder / "b" / "c").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "x.txt").write_text("not read")
    (folder / "large.txt").write_text("<|endoftext|>".join(texts[:100]))
    (folder / "a+b é%20.txt").write_text(texts[101])
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[100:200])
    (folder / "b" / "lines.jsonl").write_text(lines)
    (folder / "b" / "lines.jsonl.gz").write_bytes(gzip.compress(lines[::-1].encode()[::-1]))
    (folder / "b" / "c" / "text.txt.zst").write_bytes(
        zstd.compress("\n".join(texts[200:]).encode())
    )
    table = pa.table({"text": texts[150:250]})
    pq.write_table(table, folder / "b" / "table.parquet", row_group_size=10)
    (folder / "b" / "image.png").write_bytes(bytes(1000))
    (folder / "empty.txt").write_bytes(b"")
    for number in range(12):
        (folder / f"small_{number}.txt").write_text(texts[number * 7][:200])


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts") / "texts"
    make_texts(folder)
    return folder


@pytest.fixture
def remote(texts: Path, bucket: str) -> str:
    for path in texts.rglob("*"):
        if path.is_file():
            as_path(f"{bucket}/texts/{path.relative_to(texts)}").write_bytes(path.read_bytes())
    return f"{bucket}/texts"


def prepare(inputs: object, out: Path, *, dedup: str = "documents") -> tokenmill.Report:
    plan = make_plan(
        inputs, out, tokenizer="bytes", workers=2, limits=SMALL, dedup=dedup,
        tokens_per_shard=30_000, val_fraction=0.1,
    )  # fmt: skip
    return run_plan(plan, out, Nobody())


def list_bytes(folder: Path, *, remote: str = "", local: Path = Path()) -> dict[str, bytes]:
    """All files of a dataset, with the names of sources made equal."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "dataset_metadata.json":
            data = path.read_bytes()
            if path.suffix == ".jsonl" and remote:
                data = data.replace(remote.encode(), str(local).encode())
            found[str(path.relative_to(folder))] = data
    return found


@pytest.mark.parametrize("dedup", ["documents", "lines"])
def test_texts_in_a_bucket_make_the_same_bytes_as_texts_in_a_folder(
    texts: Path, remote: str, tmp_path: Path, dedup: str
) -> None:
    mine = prepare(texts, tmp_path / "mine", dedup=dedup)
    theirs = prepare(remote, tmp_path / "theirs", dedup=dedup)
    assert theirs.parts == mine.parts > 10
    expected = list_bytes(tmp_path / "mine")
    assert list_bytes(tmp_path / "theirs", remote=remote, local=texts) == expected
    assert tokenmill.verify(tmp_path / "theirs") == []
    again = prepare(remote, tmp_path / "theirs", dedup=dedup)
    assert again.was_finished


def test_files_are_found_in_the_same_order_and_passed_over_for_the_same_reasons(
    texts: Path, remote: str
) -> None:
    as_path(f"{remote}/made/dataset_metadata.json").write_bytes(b"{}")
    as_path(f"{remote}/made/x.txt").write_bytes(b"text")
    as_path(f"{remote}/out/x.txt").write_bytes(b"text")
    mine, passed = find_files([texts])
    theirs, also_passed = find_files([f"{remote}/"], leave_out=as_path(f"{remote}/out"))
    names = [source.path.replace(remote, str(texts)) for source in theirs]
    assert names == [source.path for source in mine]
    facts = [(source.kind, source.compression, source.size) for source in theirs]
    assert facts == [(source.kind, source.compression, source.size) for source in mine]
    assert [one.reason for one in passed] == ["not text"]
    assert sorted(one.reason for one in also_passed) == ["a finished dataset", "not text"]
    some, _ = find_files([f"{remote}/small_1*.txt", f"{remote}/b/lines.jsonl"])
    assert [source.path.removeprefix(remote) for source in some] == [
        "/small_1.txt", "/small_10.txt", "/small_11.txt", "/b/lines.jsonl",
    ]  # fmt: skip
    deep, _ = find_files([f"{remote}/**/*.zst"])
    assert [source.path for source in deep] == [f"{remote}/b/c/text.txt.zst"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none", "There is no object .*/texts/none, and none below it"),
        ("x*", "Nothing matches '.*/x[*]'"),
        ("made", "is a finished dataset, not text"),
    ],
)
def test_inputs_that_are_not_there_are_named(remote: str, name: str, said: str) -> None:
    as_path(f"{remote}/made/dataset_metadata.json").write_bytes(b"{}")
    with pytest.raises(InputError, match=said):
        find_files([f"{remote}/{name}"])


def test_an_object_that_changes_or_vanishes_during_a_run_is_named(
    remote: str, tmp_path: Path
) -> None:
    inputs = [f"{remote}/large.txt", f"{remote}/b/table.parquet", f"{remote}/b/lines.jsonl.gz"]
    plan = make_plan(inputs, tmp_path / "out", tokenizer="bytes", workers=1, limits=SMALL)
    for name in ("large.txt", "b/table.parquet"):
        path = as_path(f"{remote}/{name}")
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    as_path(f"{remote}/b/lines.jsonl.gz").unlink()
    with pytest.raises(InputError) as caught:
        run_plan(plan, tmp_path / "out", Nobody())
    said = str(caught.value)
    assert f"{remote}/large.txt: the file changed since the run began" in said
    assert f"{remote}/b/table.parquet: the file changed since the run began" in said
    assert f"{remote}/b/lines.jsonl.gz: No such object" in said


def test_a_run_survives_passing_failures_and_resumes_after_lasting_ones(
    texts: Path, remote: str, tmp_path: Path, proxy: Proxy
) -> None:
    prepare(texts, tmp_path / "mine")
    for fault in ("503", "cut"):
        proxy.fail(fault, part="lines.jsonl", times=1)
        proxy.fail(fault, part="table.parquet", times=1)
    proxy.fail("500", part="text.txt.zst", times=8)
    with pytest.raises(StorageError, match=r"text\.txt\.zst: the server answered with an error"):
        prepare(remote, tmp_path / "theirs")
    proxy.clear()
    made = prepare(remote, tmp_path / "theirs")
    assert made.parts_done_before > 0
    expected = list_bytes(tmp_path / "mine")
    assert list_bytes(tmp_path / "theirs", remote=remote, local=texts) == expected


def test_files_of_a_web_server_are_read_and_their_signatures_are_not_stored(
    texts: Path, remote: str, website: str, tmp_path: Path
) -> None:
    names = ["large.txt", "b/lines.jsonl.gz", "b/table.parquet", "a+b%20%C3%A9%2520.txt"]
    signed = [
        f"{website}/texts/{name}".replace("//", "//name:password@") + "?sig=abcdef"
        for name in names
    ]
    made = prepare(signed, tmp_path / "theirs")
    public = [f"{website}/texts/{name}" for name in names]
    assert [source.path for source in made.manifest.sources] == public
    prepare([texts / "large.txt", texts / "b/lines.jsonl.gz", texts / "b/table.parquet",
             texts / "a+b é%20.txt"], tmp_path / "mine")  # fmt: skip
    mine, theirs = tokenmill.open(tmp_path / "mine"), tokenmill.open(tmp_path / "theirs")
    assert (mine["train"][:] == theirs["train"][:]).all()
    for data in list_bytes(tmp_path / "theirs").values():
        assert b"abcdef" not in data
        assert b"password" not in data
    with pytest.raises(InputError, match=r"There is no file .* name each file"):
        find_files([f"{website}/texts/b/"])
