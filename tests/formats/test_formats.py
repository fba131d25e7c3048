"""Tokens in other formats open in place, or an error says why not."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from dataset_builder import EOT, build
from foreign import write_llmc, write_llmc_folder, write_raw
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.errors import DatasetError, TokenizerError, UsageError

IDS = np.random.default_rng(0).integers(0, 50257, 1000)


def cut_into(ids, sizes):
    return np.split(np.asarray(ids), np.cumsum(sizes)[:-1])


@settings(max_examples=40, deadline=None)
@given(
    ids=st.lists(st.integers(0, 50256), min_size=6, max_size=80),
    count=st.integers(1, 5),
    data=st.data(),
)
def test_the_same_tokens_are_the_same_in_every_format(ids, count, data):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        expected = np.array(ids)
        np.save(folder / "one.npy", expected.astype(data.draw(st.sampled_from(["<i4", ">u2"]))))
        write_raw(folder / "one.bin", ids, "<u4")
        write_llmc(folder / "shard.bin", ids)
        write_llmc_folder(folder / "shards", np.array_split(expected, count))
        write_raw(folder / "nano" / "train.bin", ids)
        length = data.draw(st.integers(1, len(ids)))
        starts = np.array(data.draw(st.lists(st.integers(0, len(ids) - length))), np.int64)
        rows = np.array([expected[start : start + length] for start in starts], np.int64)
        prints = set()
        for path, options, format in (
            ("one.npy", {}, "npy"),
            ("one.bin", {"dtype": "uint32"}, "raw"),
            ("shard.bin", {}, "llmc"),
            ("shards", {"val_fraction": 0}, "llmc"),
            ("nano", {}, "nanogpt"),
        ):
            dataset = tokenmill.open(folder / path, **options)
            assert dataset.format == format
            assert dataset.splits == ("train",)
            tokens = dataset["train"]
            assert tokens[:].tolist() == ids
            assert np.array_equal(tokens.gather(starts, length), rows.reshape(-1, length))
            prints.add(tokens.fingerprint)
            again = pickle.loads(pickle.dumps(dataset))
            assert again["train"][:].tolist() == ids
        assert len(prints) == 1


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    fraction=st.floats(0, 0.999),
)
def test_the_end_is_held_out_wherever_the_shards_are_cut(sizes, fraction):
    ids = list(range(sum(sizes)))
    place = int(len(ids) * (1 - fraction))
    with tempfile.TemporaryDirectory() as folder:
        write_llmc_folder(Path(folder), cut_into(ids, sizes))
        if fraction and not 0 < place < len(ids):
            with pytest.raises(UsageError, match="leaves a split empty"):
                tokenmill.open(folder, val_fraction=fraction)
            return
        dataset = tokenmill.open(folder, val_fraction=fraction)
        assert dataset["train"][:].tolist() == ids[:place]
        assert dataset.splits == (("train", "val") if fraction else ("train",))
        if fraction:
            val = dataset["val"]
            assert val[:].tolist() == ids[place:]
            assert [val[n] for n in range(len(val))] == ids[place:]
            assert pickle.loads(pickle.dumps(val))[:].tolist() == ids[place:]


@pytest.mark.parametrize("dtype", ["|u1", "<u2", ">u2", "<u4", "<i4", ">i4", "<i8", "<u8"])
def test_npy_files_of_every_integer_dtype_open(tmp_path, dtype):
    ids = np.arange(200).astype(dtype)
    np.save(tmp_path / "x.npy", ids)
    tokens = tokenmill.open(tmp_path / "x.npy")["train"]
    assert tokens[:].tolist() == ids.tolist()
    assert tokens.gather(np.array([5, 0]), 3, np.int32).tolist() == [[5, 6, 7], [0, 1, 2]]
    tokens = tokenmill.open(tmp_path / "x.npy", eot_id=7)["train"]
    assert tokens.find_document_starts(np.array([2]), 9).tolist() == [6]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_headers_of_every_version_are_read(tmp_path, version):
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, IDS, version=version)
    assert np.array_equal(tokenmill.open(tmp_path / "x.npy")["train"][:], IDS)


def test_the_first_nine_tenths_are_the_guides_training_part(tmp_path):
    np.save(tmp_path / "x.npy", IDS)
    dataset = tokenmill.open(tmp_path / "x.npy", val_fraction=0.1)
    assert np.array_equal(dataset["train"][:], IDS[: int(0.9 * len(IDS))])
    assert np.array_equal(dataset["val"][:], IDS[int(0.9 * len(IDS)) :])


def refused(path, match, **options):
    with pytest.raises(DatasetError, match=match) as caught:
        tokenmill.open(path, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((2, 3), np.int32), r"shape \(2, 3\).*reshape\(-1\)"),
        (np.zeros(3), "float64.*astype"),
        (np.zeros(3, bool), "bool"),
        (np.array([{}], object), "object"),
        (np.zeros(3, [("a", "<i4")]), "integers"),
        (np.zeros(0, np.int32), "no tokens"),
        (np.array(3), r"shape \(\)"),
    ],
)
def test_npy_files_without_tokens_are_refused_with_a_cure(tmp_path, array, says):
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    refused(tmp_path / "x.npy", says)


def test_an_npy_without_magic_bytes_is_reported_as_headerless_and_opens_with_a_dtype(tmp_path):
    write_raw(tmp_path / "part-0.npy", IDS)
    message = refused(tmp_path / "part-0.npy", "OLMo")
    assert "dtype=" in message
    tokens = tokenmill.open(tmp_path / "part-0.npy", dtype="uint16")["train"]
    assert np.array_equal(tokens[:], IDS)


@pytest.mark.parametrize("change", [-1, 1, 2, -128])
def test_sizes_that_do_not_fit_the_header_are_refused(tmp_path, change):
    np.save(tmp_path / "x.npy", IDS)
    write_llmc(tmp_path / "x.bin", IDS)
    for path in (tmp_path / "x.npy", tmp_path / "x.bin"):
        os.truncate(path, path.stat().st_size + change)
        assert path.name in refused(path, "bytes")


def test_a_dtype_that_the_header_contradicts_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", IDS)
    write_llmc(tmp_path / "x.bin", IDS)
    for name in ("x.npy", "x.bin"):
        with pytest.raises(UsageError, match="uint32"):
            tokenmill.open(tmp_path / name, dtype="uint32")
    assert tokenmill.open(tmp_path / "x.bin", dtype="uint16").format == "llmc"
    raw = tokenmill.open(tmp_path / "x.bin", dtype="uint16", format="raw")["train"]
    assert len(raw) == 512 + len(IDS)  # a named format reads the header as ids


def test_a_given_byte_order_is_used(tmp_path):
    write_raw(tmp_path / "x.bin", IDS, ">u2")
    write_raw(tmp_path / "nano" / "train.bin", IDS, ">u2")
    np.save(tmp_path / "x.npy", IDS.astype(">u2"))
    for name in ("x.bin", "nano", "x.npy"):
        tokens = tokenmill.open(tmp_path / name, dtype=">u2")["train"]
        assert np.array_equal(tokens[:], IDS)
        assert np.array_equal(tokens.gather(np.array([3]), 9)[0], IDS[3:12])
    write_llmc(tmp_path / "y.bin", IDS)
    build(tmp_path / "prepared")
    for name in ("y.bin", "prepared"):
        with pytest.raises(UsageError, match=r"not >u2|`dtype` is >u2"):
            tokenmill.open(tmp_path / name, dtype=">u2")
        assert tokenmill.open(tmp_path / name, dtype="<u2").dtype == np.uint16


def test_llmc_gives_its_vocabulary_and_document_starts(tmp_path):
    write_llmc(tmp_path / "x.bin", [50256, 1, 2, 50256, 3])
    dataset = tokenmill.open(tmp_path / "x.bin")
    assert (dataset.vocab_size, dataset.eot_id) == (50257, 50256)
    assert dataset["train"].find_document_starts(np.array([0, 1]), 4).tolist() == [0, 3, 6]
    assert dataset.tokenizer.decode([15496]) == "Hello"
    write_llmc(tmp_path / "y.bin", [128000, 1], magic=20240801, version=7, dtype="<u4")
    dataset = tokenmill.open(tmp_path / "y.bin")
    assert (dataset.vocab_size, dataset.eot_id) == (128256, 128000)
    assert dataset["train"][:].tolist() == [128000, 1]
    with pytest.raises(TokenizerError, match="tokenizer="):
        _ = dataset.tokenizer


def test_shards_are_in_the_order_of_their_numbers(tmp_path):
    write_llmc_folder(tmp_path, [[number] for number in range(1, 13)], "part_{}.bin")
    assert tokenmill.open(tmp_path)["train"][:].tolist() == list(range(1, 12))


@pytest.mark.parametrize("missing", ["000002", "000004"])
def test_a_missing_shard_is_named_unless_the_format_is(tmp_path, missing):
    write_llmc_folder(tmp_path, [[number] for number in range(1, 6)])
    (tmp_path / f"edu_fineweb_train_{missing}.bin").unlink()
    refused(tmp_path, f"edu_fineweb_train_{missing}.bin is missing")
    assert len(tokenmill.open(tmp_path, format="llmc")["train"]) == 3


def test_many_shards_are_not_all_opened_and_a_bad_one_is_named_when_used(tmp_path):
    write_llmc_folder(tmp_path, [[number] * 3 for number in range(1, 6)])
    bad = tmp_path / "edu_fineweb_train_000003.bin"
    for damage, says in (
        (lambda data: b"\0" * 8 + data[8:], "unlike the header of the other shards"),
        (lambda data: data[:8] + b"\7" + data[9:], "according to its header of 7 tokens"),
    ):
        good = bad.read_bytes()
        bad.write_bytes(damage(good))
        tokens = tokenmill.open(tmp_path)["train"]
        assert tokens[:6].tolist() == [1, 1, 1, 2, 2, 2]
        with pytest.raises(DatasetError, match=says) as caught:
            tokens.gather(np.array([4]), 4)
        assert bad.name in str(caught.value)
        bad.write_bytes(good)
    for bad_size in (0, 1024, 1025):
        os.truncate(bad, bad_size)
        assert bad.name in refused(tmp_path, "bytes")


def test_a_file_that_changes_after_opening_is_refused(tmp_path):
    write_raw(tmp_path / "x.bin", IDS)
    tokens = tokenmill.open(tmp_path / "x.bin", dtype="uint16")["train"]
    os.truncate(tmp_path / "x.bin", 10)
    with pytest.raises(DatasetError, match=r"x\.bin is 1,990 bytes too short"):
        tokens.gather(np.array([0]), 3)


@pytest.mark.parametrize("beside", ["x.json", "x.bin.json", "meta.json"])
def test_metadata_next_to_a_raw_file_gives_its_dtype(tmp_path, beside):
    write_raw(tmp_path / "x.bin", IDS, "<u4")
    assert "`dtype='uint16'`" in refused(tmp_path / "x.bin", "no other file gives the dtype")
    (tmp_path / beside).write_text(
        json.dumps({"dtype": "uint32", "vocab_size": 60000, "eot_id": 3})
    )
    dataset = tokenmill.open(tmp_path / "x.bin")
    assert np.array_equal(dataset["train"][:], IDS)
    assert (dataset.vocab_size, dataset.eot_id) == (60000, 3)
    for text in ("{", '{"dtype": "float32"}', '{"dtype": 7}', '{"dtype":"uint32","eot_id":-1}'):
        (tmp_path / beside).write_text(text)
        refused(tmp_path / "x.bin", beside)


def test_a_shard_of_a_prepared_dataset_opens_by_its_manifest(tmp_path):
    oracle = build(tmp_path, shard_tokens=30)["train"]
    dataset = tokenmill.open(tmp_path / "train" / "shard_00000.bin")
    assert np.array_equal(dataset["train"][:], oracle[:30])
    assert (dataset.format, dataset.eot_id, dataset.vocab_size) == ("raw", EOT, 257)


@pytest.mark.parametrize("eot", ["after", "before", "none"])
@pytest.mark.parametrize("given", [{}, {"tokenizer": "bytes"}])
def test_a_single_shard_has_the_documents_and_the_tokenizer_of_its_dataset(tmp_path, eot, given):
    build(tmp_path, shard_tokens=30, eot=eot)
    whole = tokenmill.open(tmp_path)["train"]
    dataset = tokenmill.open(tmp_path / "train" / "shard_00001.bin", **given)
    assert dataset.tokenizer.name == "bytes"
    tokens = dataset["train"]
    assert dataset.tokenizer.decode(tokens[:9]) == dataset.tokenizer.decode(whole[30:39])
    if eot == "none":
        assert dataset.eot_id is None
        with pytest.raises(DatasetError, match="nor an end-of-text id"):
            tokens.find_document_starts(np.array([0]), 20)
    else:
        starts = [one.start - 30 for one in whole.documents if 31 <= one.start < 50]
        assert starts
        assert tokens.find_document_starts(np.array([0]), 20).tolist() == [0, *starts]
    with pytest.raises(TokenizerError, match="were made with the tokenizer 'bytes'"):
        tokenmill.open(tmp_path / "train" / "shard_00001.bin", tokenizer="gpt2")


def test_metadata_is_not_read_as_ids_of_its_own_dtype(tmp_path):
    text = '{"dtype": "uint16", "vocab_size": 9}'
    (tmp_path / "meta.json").write_text(text)
    refused(tmp_path / "meta.json", "is text, not tokens")
    raw = tokenmill.open(tmp_path / "meta.json", dtype="uint16", format="raw")
    assert len(raw["train"]) == len(text) // 2


def test_a_nanogpt_folder_opens_and_its_pickle_is_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "loaded",)

    write_raw(tmp_path / "train.bin", IDS)
    write_raw(tmp_path / "val.bin", IDS[:10])
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(Trap()))
    dataset = tokenmill.open(tmp_path)
    assert (dataset.format, dataset.splits, dataset.vocab_size) == (
        "nanogpt",
        ("train", "val"),
        None,
    )
    assert np.array_equal(dataset["val"][:], IDS[:10])
    assert not (tmp_path / "loaded").exists()
    dataset = tokenmill.open(tmp_path, tokenizer="gpt2")
    assert (dataset.vocab_size, dataset.eot_id) == (50257, 50256)
    assert pickle.loads(pickle.dumps(dataset)).tokenizer.name == "gpt2"


def test_headers_are_never_read_as_ids(tmp_path):
    for folder, split in (("a", "train"), ("b", "val")):
        write_raw(tmp_path / folder / "train.bin", IDS)
        write_raw(tmp_path / folder / "val.bin", IDS)
        with (tmp_path / folder / f"{split}.bin").open("wb") as file:
            np.save(file, IDS.astype(np.uint16))
        assert f"{split}.bin" in refused(tmp_path / folder, "NumPy's header")
    write_llmc(tmp_path / "a" / "train.bin", IDS)
    write_raw(tmp_path / "a" / "aaa.bin", IDS)
    assert "train.bin" in refused(tmp_path / "a", r"llm\.c's header")
    assert len(tokenmill.open(tmp_path / "a", format="nanogpt")["train"]) == 512 + len(IDS)
    for number in range(4):
        write_raw(tmp_path / "c" / f"x_{number}.bin", IDS)
    write_llmc(tmp_path / "c" / "x_2.bin", IDS)  # checked when it is first mapped
    tokens = tokenmill.open(tmp_path / "c", dtype="uint16")["train"]
    assert np.array_equal(tokens[:2000], np.tile(IDS, 2))
    with pytest.raises(DatasetError, match=r"x_2\.bin starts with what looks like llm\.c's header"):
        _ = tokens[2000]
    assert len(tokenmill.open(tmp_path / "c", format="raw", dtype="uint16")["train"][:]) == 4512


@pytest.mark.parametrize("facts", [{"eot_id": -1}, {"eot_id": 9, "vocab_size": 9}])
def test_an_end_of_text_id_outside_the_vocabulary_is_refused(tmp_path, facts):
    np.save(tmp_path / "x.npy", np.arange(9))
    with pytest.raises(UsageError, match=r"`eot_id` is (-1|9); it must be 0 or more"):
        tokenmill.open(tmp_path / "x.npy", **facts)
    assert tokenmill.open(tmp_path / "x.npy", eot_id=8, vocab_size=9).eot_id == 8


def test_folders_of_raw_files_open_with_a_dtype(tmp_path):
    write_raw(tmp_path / "a" / "x_0.bin", [1, 2], "<u4")
    write_raw(tmp_path / "a" / "x_1.bin", [3], "<u4")
    write_raw(tmp_path / "a" / "x_val_0.bin", [4], "<u4")
    (tmp_path / "b").mkdir()
    write_raw(tmp_path / "b" / "train" / "shard_00000.bin", [1, 2], "<u4")
    write_raw(tmp_path / "b" / "train" / "shard_00001.bin", [3], "<u4")
    write_raw(tmp_path / "b" / "val" / "shard_00045.bin", [4], "<u4")
    for name in ("a", "b"):
        refused(tmp_path / name, "such as `dtype=")
        dataset = tokenmill.open(tmp_path / name, dtype="uint32")
        assert dataset["train"][:].tolist() == [1, 2, 3]
        assert dataset["val"][:].tolist() == [4]


def test_metadata_in_a_folder_of_raw_files_gives_their_dtype(tmp_path):
    write_raw(tmp_path / "x_0.bin", [1, 2], "<u4")
    write_raw(tmp_path / "x_1.bin", [3], "<u4")
    (tmp_path / "meta.json").write_text('{"dtype": "uint32", "vocab_size": 9, "eot_id": 3}')
    dataset = tokenmill.open(tmp_path)
    assert dataset.format == "raw"
    assert dataset["train"][:].tolist() == [1, 2, 3]
    assert (dataset.vocab_size, dataset.eot_id) == (9, 3)


def test_metadata_of_another_program_is_recognised(tmp_path):
    shard = tmp_path / "train" / "shard_00000.bin"
    write_raw(shard, [1, 2, 3], "<u4")
    (tmp_path / "dataset_metadata.json").write_text('{"total_tokens": 3}')
    message = refused(tmp_path, "not a tokenmill manifest", dtype="uint32")
    assert "`format='raw'`" in message
    raw = tokenmill.open(tmp_path, dtype="uint32", format="raw")["train"]
    assert raw[:].tolist() == [1, 2, 3]
    refused(shard, "no other file gives the dtype")


def test_numbered_npy_shards_open_and_unrelated_npy_files_do_not(tmp_path):
    for name, ids in (("web_train_01", [1, 2]), ("web_train_02", [3]), ("web_val_00", [4])):
        np.save(tmp_path / f"{name}.npy", np.array(ids, np.uint16))
    dataset = tokenmill.open(tmp_path)
    assert (dataset.format, dataset.splits) == ("npy", ("train", "val"))
    assert dataset["train"][:].tolist() == [1, 2, 3]
    assert dataset["val"][:].tolist() == [4]
    np.save(tmp_path / "web_train_04.npy", np.array([5], np.uint16))
    refused(tmp_path, "web_train_03.npy is missing")
    (tmp_path / "web_train_04.npy").unlink()
    np.save(tmp_path / "web_train_03.npy", np.array([5], np.int32))
    refused(tmp_path, "web_train_03.npy has ids of int32, expected uint16")
    (tmp_path / "web_train_03.npy").rename(tmp_path / "wiki.npy")
    refused(tmp_path, "not numbered shards; open one file at a time")


def test_links_are_followed_because_download_caches_use_them(tmp_path):
    write_llmc_folder(tmp_path / "blobs", [[1, 2], [3]])
    (tmp_path / "snapshot").mkdir()
    for path in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    assert tokenmill.open(tmp_path / "snapshot")["train"][:].tolist() == [1, 2]


def test_an_unknown_format_lists_all_formats_that_were_tried(tmp_path):
    (tmp_path / "x").write_bytes(bytes(range(200)))
    message = refused(tmp_path / "x", "known format")
    for part in ("tokenmill:", "npy:", "llmc:", "nanogpt:", "raw:", "`dtype`", "`format`"):
        assert part in message
    (tmp_path / "empty.bin").touch()
    refused(tmp_path / "empty.bin", "is empty")
    (tmp_path / "empty.bin").unlink()
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "neither a file nor a folder")
    refused(tmp_path / "x", "magic bytes", format="npy")
    refused(tmp_path, "no .bin files", format="llmc")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "index.json").write_text("[]")
    refused(tmp_path / "text", "is a folder of text")
    refused(tmp_path / "text", "litdata: +index.json has no 'chunks'", format="litdata")
    write_llmc(tmp_path / "x.bin", [1], version=2)
    refused(tmp_path / "x.bin", "version 2", dtype="uint16")


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32"},
        {"dtype": "nonsense"},
        {"dtype": object},
        {"format": "parquet"},
        {"val_fraction": 1},
        {"val_fraction": -0.1},
        {"val_fraction": float("nan")},
        {"vocab_size": 0},
        {"eot_id": -1},
        {"eot_id": 9, "vocab_size": 9},
    ],
)
def test_invalid_options_are_refused(tmp_path, options):
    np.save(tmp_path / "x.npy", IDS)
    with pytest.raises(UsageError):
        tokenmill.open(tmp_path / "x.npy", **options)


@pytest.mark.parametrize(
    "options", [{"dtype": "uint32"}, {"eot_id": 1}, {"vocab_size": 9}, {"val_fraction": 0.5}]
)
def test_options_that_contradict_a_prepared_dataset_are_refused(tmp_path, options):
    build(tmp_path)
    with pytest.raises(UsageError, match="Omit"):
        tokenmill.open(tmp_path, **options)
    assert (
        tokenmill.open(tmp_path, dtype="uint16", eot_id=EOT, vocab_size=257).format == "tokenmill"
    )
