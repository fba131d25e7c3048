"""Exports have the ids and documents of their source, in the bytes of independent writers."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from dataset_builder import EOT, TEXTS, build
from foreign import (
    ends_of,
    flat,
    litdata_files,
    llmc_bytes,
    mds_files,
    megatron_bytes,
    write_datatrove,
    write_llmc,
    write_megatron,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.errors import DatasetError, FolderError, UsageError
from tokenmill.formats import WRITABLE
from tokenmill.formats.mds import Mds
from tokenmill.formats.writing import WriteRequest
from tokenmill.progress import Nobody
from tokenmill.store.tokens import Tokens

EVERY = sorted(WRITABLE)
WITH_IDS = (".bin", ".npy", ".ds", ".mds")  # the suffixes of files that contain ids
WITH_DOCUMENTS = [name for name in EVERY if WRITABLE[name].keeps_documents]


def test_llmc_has_one_name_and_its_other_spelling_is_accepted(tmp_path):
    write_llmc(tmp_path / "x.bin", [50256, 1])
    for spelling in (None, "llmc", "llm.c"):
        assert tokenmill.open(tmp_path / "x.bin", format=spelling).format == "llmc"
    made = [tokenmill.export(tmp_path / "x.bin", tmp_path / to, to=to) for to in ("llmc", "llm.c")]
    assert [one.format for one in made] == ["llmc", "llmc"]
    assert contents(tmp_path / "llmc").keys() == contents(tmp_path / "llm.c").keys()


def documents_of(split):
    return [[*text.encode(), EOT] for text in TEXTS[split]]


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def read_back(folder, to, splits=("train",), eot_id=None):
    found = WRITABLE[to].read_written(folder, list(splits))
    return {
        split: Tokens(
            found.splits[split],
            split,
            documents=found.documents.get(split),
            eot_id=eot_id,
            eot=found.eot,
        )
        for split in splits
    }


@pytest.mark.parametrize("to", EVERY)
@pytest.mark.parametrize("tokens_per_shard", [1, 17, 10**6])
def test_an_export_reads_back_equal(tmp_path, to, tokens_per_shard):
    oracle = build(tmp_path / "data")
    made = tokenmill.export(
        tmp_path / "data", tmp_path / "out", to=to, tokens_per_shard=tokens_per_shard
    )
    assert made.tokens == {split: len(ids) for split, ids in oracle.items()}
    assert made.files_done_before == 0
    assert made.documents == {split: len(TEXTS[split]) for split in oracle}
    for split, tokens in read_back(tmp_path / "out", to, oracle).items():
        ids = oracle[split]
        if to == "llmc":  # its readers look for the end-of-text id before documents
            ids = np.roll(ids, 1)
        assert tokens[:].tolist() == ids.tolist()
        if to in WITH_DOCUMENTS:
            assert [one.length for one in tokens.documents] == list(map(len, documents_of(split)))


def test_exports_equal_those_of_independent_writers(tmp_path):
    build(tmp_path / "data")
    documents = documents_of("train")
    ids = [one for document in documents for one in document]
    size = ends_of(documents)[-1]

    def exported(to, **options):
        tokenmill.export(tmp_path / "data", tmp_path / to, to=to, **options)
        return contents(tmp_path / to)

    assert exported("llmc", tokens_per_shard=20)["tokens_train_000001.bin"] == llmc_bytes(
        ids[19:39]
    )
    found = exported("nanogpt")
    assert found["train.bin"] == flat(documents, "<u2")
    assert found["meta.json"] == b'{"dtype":"uint16","vocab_size":257,"eot_id":256}\n'
    np.save(tmp_path / "wanted.npy", np.array(ids, "<u2"))
    assert exported("npy")["train.npy"] == (tmp_path / "wanted.npy").read_bytes()
    found = exported("megatron")
    assert (found["train.bin"], found["train.idx"]) == megatron_bytes(documents)
    found = exported("datatrove")
    assert found["00000_train.ds"] == flat(documents, "<u2")
    assert found["00000_train.ds.index"] == struct.pack("<5Q", *ends_of(documents))
    found = exported("litdata", tokens_per_shard=40)
    wanted = litdata_files([documents[:4], documents[4:]])
    assert [found[f"train/chunk-0-{n}.bin"] for n in (0, 1)] == list(wanted.values())[:2]
    index = json.loads(found["train/index.json"])
    assert index["chunks"] == json.loads(wanted["index.json"])["chunks"]
    assert index["config"]["data_format"] == ["no_header_tensor:20"]
    found = exported("mds", tokens_per_shard=40)
    for name, data in mds_files([documents[:4], documents[4:]], limit=None).items():
        assert found[f"train/{name}"] == data
    found = contents(tmp_path / "datatrove")
    assert found["00000_train.ds.metadata"] == f"bytes|2\n{size}\n{size:.1f} T".encode()


@pytest.mark.parametrize("to", EVERY)
def test_wide_ids_are_exported_whole(tmp_path, to):
    ids = [70000, 1, 100000, 2, 3]
    write_llmc(tmp_path / "x.bin", ids, magic=20240801, version=7, dtype="<u4")
    tokenmill.export(tmp_path / "x.bin", tmp_path / "out", to=to, eot_id=2)
    tokens = read_back(tmp_path / "out", to)["train"]
    assert tokens[:].tolist() == ids
    assert tokens.dtype == np.dtype("<i4" if to in ("megatron", "litdata") else "<u4")


def test_ids_that_no_exported_dtype_holds_are_refused(tmp_path):
    for number, wrong in enumerate((-1, 2**32)):
        np.save(tmp_path / "x.npy", np.array([1, wrong]))
        with pytest.raises(DatasetError, match=str(wrong)):
            tokenmill.export(tmp_path / "x.npy", tmp_path / f"out{number}", to="npy")
        assert not (tmp_path / f"out{number}" / "train.npy").exists()
    np.save(tmp_path / "x.npy", np.array([1, 70000]))
    with pytest.raises(DatasetError, match="70000"):
        tokenmill.export(tmp_path / "x.npy", tmp_path / "narrow", to="npy", vocab_size=5)


@pytest.mark.parametrize("to", WITH_DOCUMENTS)
@settings(max_examples=25, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=7), min_size=1, max_size=9),
    tokens_per_shard=st.integers(1, 30),
)
def test_documents_survive_any_shard_size(to, documents, tokens_per_shard):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_megatron(folder / "x", documents)
        tokenmill.export(folder / "x", folder / "out", to=to, tokens_per_shard=tokens_per_shard)
        tokens = read_back(folder / "out", to)["train"]
        assert [
            tokens[one.start : one.start + one.length].tolist() for one in tokens.documents
        ] == (documents)


class NoTokens(Nobody):
    def advance(self, amount: int, tokens: int = 0, documents: int = 0, dropped: int = 0) -> None:
        pytest.fail("tokens were written")


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("mds", r"a file of split 'train' would have 4,294,967,\d+ bytes"),
        ("megatron", "a document of split 'train' has 2,147,483,648 tokens; in Megatron"),
    ],
    ids=["mds", "megatron"],
)
def test_a_document_too_long_for_a_format_is_refused_before_its_tokens_are_written(
    tmp_path, to, says
):
    tokens = 2**31
    write_datatrove(tmp_path / "x.ds", [[1]])
    os.truncate(tmp_path / "x.ds", 2 * tokens)  # a sparse file
    (tmp_path / "x.ds.index").write_bytes(struct.pack("<Q", tokens))
    (tmp_path / "x.ds.metadata").write_text(f"gpt2|2\n{tokens}\n{tokens} T")
    with pytest.raises(DatasetError, match=says):
        tokenmill.export(tmp_path / "x.ds", tmp_path / "out", to=to, watcher=NoTokens())


def test_without_a_table_documents_are_found_by_the_end_of_text_id(tmp_path):
    np.save(tmp_path / "x.npy", np.array([5, 0, 6, 6, 0, 7]))
    with pytest.raises(DatasetError, match="eot_id"):
        tokenmill.export(tmp_path / "x.npy", tmp_path / "out", to="megatron")
    tokenmill.export(tmp_path / "x.npy", tmp_path / "out2", to="megatron", eot_id=0)
    documents = tokenmill.open(tmp_path / "out2" / "train")["train"].documents
    assert [one.length for one in documents] == [2, 3, 1]


KILLED = """
import os, signal, sys
import tokenmill.progress
from tokenmill.convert import {module} as module

class Killer(tokenmill.progress.Nobody):
    done = 0

    def advance(self, amount, *_):
        self.done += amount
        if self.done >= int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)

module.{call}(sys.argv[1], out=sys.argv[2], watcher=Killer(), {options})
"""


def run_killed(module, call, source, out, after, options):
    code = KILLED.format(module=module, call=call, options=options)
    return subprocess.run([sys.executable, "-c", code, source, out, str(after)], check=False)


@pytest.mark.parametrize("to", EVERY)
def test_a_killed_export_resumes_to_the_same_bytes(tmp_path, to):
    build(tmp_path / "data")
    options = {"to": to, "tokens_per_shard": 25}
    tokenmill.export(tmp_path / "data", out=tmp_path / "whole", **options)
    given = f"to={to!r}, tokens_per_shard=25"
    for after in (60, 180):
        out = tmp_path / f"out{after}"
        killed = run_killed("export", "export", tmp_path / "data", out, after, given)
        assert killed.returncode == -signal.SIGKILL
        kept = {
            path: path.stat().st_ino
            for path in out.rglob("*")
            if path.is_file() and path.suffix != ".tmp"
        }
        made = tokenmill.export(tmp_path / "data", out=out, **options)
        assert contents(out) == contents(tmp_path / "whole")
        with_ids = [path for path in kept if path.suffix in WITH_IDS]
        assert with_ids or after == 60
        assert all(path.stat().st_ino == kept[path] for path in with_ids)
        assert made.files_done_before == len(kept) - 1  # without the record


def test_an_out_folder_with_other_contents_is_refused(tmp_path):
    build(tmp_path / "data")
    tokenmill.export(tmp_path / "data", tmp_path / "out", to="npy")
    tokenmill.export(tmp_path / "data", tmp_path / "out", to="npy")
    with pytest.raises(FolderError, match="to was 'npy', is 'llmc'"):
        tokenmill.export(tmp_path / "data", tmp_path / "out", to="llmc")
    build(tmp_path / "other", {"train": ["something else"]})
    with pytest.raises(FolderError, match="splits was"):
        tokenmill.export(tmp_path / "other", tmp_path / "out", to="npy")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(FolderError, match=r"other files \(notes\.txt\)"):
        tokenmill.export(tmp_path / "data", tmp_path / "mine", to="npy")
    with pytest.raises(FolderError, match="is a file"):
        tokenmill.export(tmp_path / "data", tmp_path / "mine" / "notes.txt", to="npy")
    with pytest.raises(UsageError, match="must be one of megatron, npy, llmc"):
        tokenmill.export(tmp_path / "data", tmp_path / "new", to="parquet")
    with pytest.raises(UsageError, match="must be positive"):
        tokenmill.export(tmp_path / "data", tmp_path / "new", to="npy", tokens_per_shard=0)
    with pytest.raises(UsageError, match="the source of the export"):
        tokenmill.export(tmp_path / "data", tmp_path / "data", to="npy")


def test_a_damaged_source_is_not_exported(tmp_path):
    build(tmp_path / "data")
    shard = tmp_path / "data" / "train" / "shard_00001.bin"
    shard.write_bytes(b"\x07" + shard.read_bytes()[1:])
    with pytest.raises(DatasetError, match=r"shard_00001\.bin does not match its checksum"):
        tokenmill.export(tmp_path / "data", tmp_path / "out", to="npy")


def test_comparing_finds_a_file_that_changed_after_writing(tmp_path):
    write_llmc(tmp_path / "x.bin", range(20))
    tokenmill.export(tmp_path / "x.bin", tmp_path / "out", to="nanogpt")
    path = tmp_path / "out" / "train.bin"
    for token in (0, 2, 19):
        data = bytearray(path.read_bytes())
        data[2 * token] ^= 1
        path.write_bytes(data)
        with pytest.raises(DatasetError, match=f"at token {token},"):
            tokenmill.export(tmp_path / "x.bin", tmp_path / "out", to="nanogpt")
        data[2 * token] ^= 1
        path.write_bytes(data)
    os.truncate(path, 10)
    with pytest.raises(DatasetError, match="has 5 tokens"):
        tokenmill.export(tmp_path / "x.bin", tmp_path / "out", to="nanogpt")


class Notes(Nobody):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize("to", EVERY)
def test_files_that_differ_from_a_prepared_source_are_written_again_with_a_notice(tmp_path, to):
    build(tmp_path / "data")
    options = {"to": to, "tokens_per_shard": 25}
    out = tmp_path / "out"
    made = tokenmill.export(tmp_path / "data", out, **options)
    wanted = contents(out)
    files = {(out / name).suffix: out / name for name in made.files}  # one of each kind
    for suffix, path in files.items():
        data = path.read_bytes()
        flipped = bytearray(data)
        flipped[-3] ^= 1
        for damaged in (bytes(flipped), data[:-2], b"", bytes(len(data))):
            path.write_bytes(damaged)
            watcher = Notes()
            again = tokenmill.export(tmp_path / "data", out, watcher=watcher, **options)
            assert contents(out) == wanted
            if suffix in WITH_IDS:  # other files are small, and always written again
                (note,) = watcher.notes
                assert "differ from the source; writing them again" in note
                assert again.files_done_before == 0
    watcher = Notes()
    again = tokenmill.export(tmp_path / "data", out, watcher=watcher, **options)
    assert (again.files_done_before, watcher.notes) == (len(made.files), [])


@pytest.mark.parametrize("content", [b"", b"\0" * 99, b"5", b"[]", b"[" * 100_000, b'{"to": [1]}'])
def test_a_damaged_record_of_an_export_is_refused(tmp_path, content):
    build(tmp_path / "data")
    tokenmill.export(tmp_path / "data", tmp_path / "out", to="npy")
    (tmp_path / "out" / ".tokenmill-export.json").write_bytes(content)
    with pytest.raises(FolderError, match=r"elete ") as caught:
        tokenmill.export(tmp_path / "data", tmp_path / "out", to="npy")
    assert len(str(caught.value)) < 1_000
    os.truncate(tmp_path / "out" / ".tokenmill-export.json", 1 << 40)
    with pytest.raises(FolderError, match=r"1,099,511,627,776 bytes"):
        tokenmill.export(tmp_path / "data", tmp_path / "out", to="npy")


@pytest.mark.parametrize("block", [256, 300, 1 << 20])
def test_documents_of_any_length_become_mds_samples(tmp_path, block):
    lengths = (1, 255, 256, 257, 65535, 65536, 1, 2)
    ids = np.arange(sum(lengths)) % 9
    write_megatron(tmp_path / "x", np.split(ids, np.cumsum(lengths)[:-1]))
    source = tokenmill.open(tmp_path / "x", vocab_size=9)
    request = WriteRequest(
        splits=source, dtype=source.dtype, vocab_size=9, tokens_per_shard=1 << 30, block=block
    )
    (tmp_path / "out" / "train").mkdir(parents=True)
    for job in Mds().plan(request):
        job.write(tmp_path / "out" / job.name, lambda _: None)
    tokens = tokenmill.open(tmp_path / "out")["train"]
    assert np.array_equal(tokens[:], ids)
    assert [one.length for one in tokens.documents] == list(lengths)
