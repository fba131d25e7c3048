"""An import is a valid prepared dataset with documents, keys and origins."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
import xxhash
from foreign import write_llmc_folder, write_megatron, write_raw
from hypothesis import given, settings
from hypothesis import strategies as st
from test_export import contents, run_killed

import tokenmill
from tokenmill.cli import main
from tokenmill.convert.import_dataset import HashedDocuments
from tokenmill.errors import DatasetError, FolderError, TokenizerError, UsageError

DOCUMENTS = [[1, 2, 3, 256], [4, 256], [256], [5, 6, 7, 8, 9, 256]]


def key_of(ids):
    return xxhash.xxh3_128_hexdigest(np.array(ids, "<i8").tobytes())


def check(folder, documents, eot):
    dataset = tokenmill.open(folder)
    assert tokenmill.verify(folder) == []
    assert dataset.manifest.eot == eot
    tokens = dataset["train"]
    assert tokens[:].tolist() == [one for document in documents for one in document]
    found = [tokens[one.start : one.start + one.length].tolist() for one in tokens.documents]
    assert found == documents
    assert [one.key for one in tokens.documents] == list(map(key_of, documents))
    return dataset


@settings(max_examples=40, deadline=None)
@given(
    files=st.lists(
        st.lists(st.lists(st.integers(0, 256), min_size=1, max_size=9), min_size=1, max_size=5),
        min_size=1,
        max_size=3,
    ),
    tokens_per_shard=st.integers(1, 40),
)
def test_an_import_is_a_sound_dataset(files, tokens_per_shard):
    documents = [one for file in files for one in file]
    eot = "none"
    if all(one[0] == 256 for one in documents):
        eot = "before"
    if all(one[-1] == 256 for one in documents):
        eot = "after"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for number, file in enumerate(files):
            write_megatron(folder / "m" / f"x_{number}", file)
        made = tokenmill.import_dataset(
            folder / "m", folder / "out", tokenizer="bytes", tokens_per_shard=tokens_per_shard
        )
        dataset = check(folder / "out", documents, eot)
        assert made == dataset.manifest
        expected = []
        for number, file in enumerate(files):
            starts = np.cumsum([0, *map(len, file)])[:-1]
            expected += [(f"x_{number}.bin", int(start)) for start in starts]
        found = [(one.source.path, one.offset) for one in dataset["train"].documents]
        assert found == expected


@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"eot_id": 256}])
def test_documents_longer_than_a_block_have_the_same_keys(tmp_path, options, window):
    """With a document table, and by the end-of-text id."""
    ids = np.concatenate(DOCUMENTS)
    if options:
        np.save(tmp_path / "x.npy", ids)
        tokens = tokenmill.open(tmp_path / "x.npy", **options)["train"]
    else:
        write_megatron(tmp_path / "x", DOCUMENTS)
        tokens = tokenmill.open(tmp_path / "x")["train"]
    documents = HashedDocuments(tokens, np.array([len(ids)]), 0, 256, block=window)
    records = np.concatenate(list(documents.read(0, len(ids))))
    assert [f"{high:016x}{low:016x}" for high, low in records["key"].tolist()] == list(
        map(key_of, DOCUMENTS)
    )
    assert records["length"].tolist() == list(map(len, DOCUMENTS))
    assert documents.facts() == {"after": True, "before": False}


def test_documents_are_found_by_the_end_of_text_across_shards(tmp_path):
    ids = [one for document in DOCUMENTS for one in document]
    np.save(tmp_path / "x.npy", np.array(ids))
    tokenmill.import_dataset(
        tmp_path / "x.npy", tmp_path / "out", tokenizer="bytes", tokens_per_shard=3
    )
    check(tmp_path / "out", DOCUMENTS, "after")
    gpt2 = [[50256, 1, 2, 3], [50256, 4], [50256, 5, 6]]
    write_llmc_folder(tmp_path / "shards", [[50256, 1, 2], [3, 50256, 4, 50256], [5, 6]])
    tokenmill.import_dataset(tmp_path / "shards", tmp_path / "out2", val_fraction=0)
    dataset = check(tmp_path / "out2", gpt2, "before")
    assert dataset.tokenizer.name == "gpt2"


def test_the_end_is_held_out_and_both_splits_are_imported(tmp_path):
    write_megatron(tmp_path / "x", DOCUMENTS)
    tokenmill.import_dataset(tmp_path / "x", tmp_path / "out", tokenizer="bytes", val_fraction=0.5)
    dataset = tokenmill.open(tmp_path / "out")
    assert dataset["train"][:].tolist() == [1, 2, 3, 256, 4, 256]
    assert dataset["val"][:].tolist() == [256, 5, 6, 7, 8, 9, 256]
    assert tokenmill.verify(tmp_path / "out") == []


def test_ids_are_imported_without_a_tokenizer(tmp_path, capsys):
    """Like nanoGPT's character data: a vocabulary without a tokenizer or end-of-text id."""
    write_raw(tmp_path / "x" / "train.bin", [1, 2, 64, 3])
    write_raw(tmp_path / "x" / "val.bin", [5, 6])
    out = tmp_path / "out"
    arguments = ["import", str(tmp_path / "x"), "--vocab-size", "65", "--out", str(out)]
    assert main(arguments) == main(arguments) == 0
    assert "train: 4 tokens, 1 document" in capsys.readouterr().out
    assert main(["verify", str(out)]) == main(["info", str(out)]) == 0
    assert "unknown, vocabulary of 65" in capsys.readouterr().out
    dataset = tokenmill.open(out)
    assert (dataset.vocab_size, dataset.eot_id, dataset.manifest.eot) == (65, None, "none")
    assert dataset["train"][:].tolist() == [1, 2, 64, 3]
    with pytest.raises(TokenizerError, match="does not say which tokenizer"):
        _ = dataset.tokenizer
    assert tokenmill.open(out, tokenizer="bytes").tokenizer.decode([65]) == "A"
    tokenmill.reshard(out, tmp_path / "cut", tokens_per_shard=3)
    assert tokenmill.verify(tmp_path / "cut") == []
    with pytest.raises(DatasetError, match="the id 64 at token 2"):
        tokenmill.import_dataset(tmp_path / "x", tmp_path / "small", vocab_size=64)


def test_a_vocabulary_and_an_end_of_text_are_enough_for_documents(tmp_path):
    write_raw(tmp_path / "x.bin", [1, 0, 2, 3, 0], "<u4")
    made = tokenmill.import_dataset(
        tmp_path / "x.bin", tmp_path / "out", dtype="uint32", vocab_size=70_000, eot_id=0
    )
    assert (made.dtype, made.eot, made.eot_id) == ("uint32", "after", 0)
    assert tokenmill.open(tmp_path / "out")["train"].documents.lengths.tolist() == [2, 3]
    write_llmc_folder(tmp_path / "gpt2", [[50256, 1], [50256, 2]])
    made = tokenmill.import_dataset(tmp_path / "gpt2", tmp_path / "out2", vocab_size=50_304)
    assert (made.tokenizer, made.vocab_size) == ("unknown", 50_304)
    made = tokenmill.import_dataset(tmp_path / "gpt2", tmp_path / "out3", vocab_size=50_257)
    assert made.tokenizer == "gpt2"


def test_data_that_cannot_be_imported_is_refused(tmp_path):
    write_raw(tmp_path / "x.bin", [1, 2, 257])
    with pytest.raises(TokenizerError, match="Or pass `vocab_size=N`"):
        tokenmill.import_dataset(tmp_path / "x.bin", tmp_path / "out", dtype="uint16")
    options = {"dtype": "uint16", "tokenizer": "bytes"}
    with pytest.raises(DatasetError, match="the id 257 at token 2"):
        tokenmill.import_dataset(tmp_path / "x.bin", tmp_path / "out", **options)
    with pytest.raises(DatasetError, match="not finished"):
        tokenmill.open(tmp_path / "out")
    write_raw(tmp_path / "y.bin", [1, 2, 256])
    with pytest.raises(FolderError, match="other settings"):
        tokenmill.import_dataset(tmp_path / "y.bin", tmp_path / "out", **options)
    tokenmill.import_dataset(tmp_path / "y.bin", tmp_path / "out2", **options)
    again = tokenmill.import_dataset(tmp_path / "y.bin", tmp_path / "out2", **options)
    assert again.splits["train"].tokens == 3
    with pytest.raises(FolderError, match="another finished dataset"):
        tokenmill.import_dataset(
            tmp_path / "y.bin", tmp_path / "out2", tokens_per_shard=1, **options
        )
    with pytest.raises(UsageError, match="tokenmill reshard"):
        tokenmill.import_dataset(tmp_path / "out2", tmp_path / "out3")


def test_a_killed_import_resumes_to_the_same_bytes(tmp_path):
    write_megatron(tmp_path / "x", DOCUMENTS)
    options = {"tokenizer": "bytes", "tokens_per_shard": 4}
    tokenmill.import_dataset(tmp_path / "x", tmp_path / "whole", **options)
    for after in (4, 13):
        out = tmp_path / f"out{after}"
        killed = run_killed(
            "import_dataset",
            "import_dataset",
            tmp_path / "x",
            out,
            after,
            "tokenizer='bytes', tokens_per_shard=4",
        )
        assert killed.returncode == -signal.SIGKILL
        kept = {path: path.stat().st_ino for path in out.glob("train/*")}
        assert kept
        tokenmill.import_dataset(tmp_path / "x", out, **options)
        assert contents(out) == contents(tmp_path / "whole")
        assert all(path.stat().st_ino == inode for path, inode in kept.items())


def test_names_of_files_that_are_not_utf_8_or_have_a_newline_are_stored_as_uris(
    tmp_path: Path,
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for name in (b"caf\xe9.bin", b"two\nlines.bin"):
        with open(os.path.join(os.fsencode(source), name), "wb") as file:  # noqa: PTH118, PTH123
            file.write(np.arange(9, dtype="<u2").tobytes())
    made = tmp_path / "out"
    tokenmill.import_dataset(source, made, dtype="uint16", tokenizer="bytes", format="raw")
    lines = (made / "sources.jsonl").read_text().splitlines()
    assert [json.loads(line)["path"] for line in lines] == [
        f"{source.as_uri()}/caf%E9.bin",
        f"{source.as_uri()}/two%0Alines.bin",
    ]
