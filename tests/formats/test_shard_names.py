"""Shard names: their order, splits and gaps, and names of things that are not files."""

from __future__ import annotations

import os
import tempfile
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from foreign import write_llmc, write_llmc_folder, write_raw
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats.base import OpenRequest
from tokenmill.formats.shard_names import check_gaps, list_shards


def as_people_count(name):
    return [
        (int("".join(run)), "") if digits else (0, "".join(run))
        for digits, run in groupby(name, lambda sign: sign in "0123456789")
    ]


names = st.lists(
    st.text("019_-of", min_size=1, max_size=7).map(lambda stem: f"a{stem}.bin"),
    min_size=1,
    max_size=8,
    unique_by=lambda name: str(as_people_count(name)),
)


@settings(max_examples=200, deadline=None)
@given(names)
def test_all_numbers_in_a_name_count_as_numbers(some):
    with tempfile.TemporaryDirectory() as folder:
        for name in some:
            (Path(folder) / name).touch()
        assert list_shards(OpenRequest(path=Path(folder)), ".bin") == sorted(
            some, key=as_people_count
        )


FORMS = {
    "x_train_{:06}.bin": None,
    "{}.bin": None,
    "tok_{}_x.bin": None,
    "für_{:03}_tränke.bin": None,
    "v2_{}_of_gpt2.bin": None,
    "train-{:05}-of-{:05}.bin": 0,
    "p-{}-of-{}.bin": 1,
    "p3_{:02}_OF_{:02}_v1.bin": 0,
}


@settings(max_examples=150, deadline=None)
@given(form=st.sampled_from(list(FORMS)), count=st.integers(1, 14), data=st.data())
def test_a_missing_number_is_named_at_any_position(form, count, data):
    first = FORMS[form]
    start = data.draw(st.integers(0, 99)) if first is None else first
    some = [form.format(number, count) for number in range(start, start + count)]
    request = OpenRequest(path=Path("folder"))
    check_gaps(request, some)
    # Without a total in the names, only a number between two others can be missing.
    between = range(1, count - 1) if first is None else range(count)
    if len(between) and count > 1:
        # Only the last number shows that a sequence starts at 1 and not at 0.
        between = between[:-1] if first == 1 else between
        gone = some.pop(data.draw(st.sampled_from(between)))
        with pytest.raises(DatasetError, match=f"^{gone} is missing from folder"):
            check_gaps(request, some)
        check_gaps(OpenRequest(path=Path("folder"), format="raw"), some)


def test_every_sequence_is_checked_for_gaps():
    request = OpenRequest(path=Path("folder"))
    some = [f"lang{one}_{number}.bin" for one in (1, 7) for number in range(3)]
    check_gaps(request, some)
    with pytest.raises(DatasetError, match=r"^lang7_1\.bin is missing from folder"):
        check_gaps(request, [*some[:4], some[5]])
    with pytest.raises(
        DatasetError,
        match=r"p-4-of-3\.bin in folder has a number that is too large: there should be 3",
    ):
        check_gaps(request, [f"p-{number}-of-3.bin" for number in (1, 2, 3, 4)])
    with pytest.raises(DatasetError, match=r"found 1 of 4 such files"):
        check_gaps(request, ["p-0-of-4.bin"])


def test_shards_named_as_one_of_many_are_in_order_and_complete(tmp_path):
    for number in range(1, 12):
        write_llmc(tmp_path / f"p-{number}-of-11.bin", [number])
    assert tokenmill.open(tmp_path)["train"][:].tolist() == list(range(1, 11))
    (tmp_path / "npy").mkdir()
    for number in range(4):
        np.save(tmp_path / "npy" / f"train-{number:05}-of-00004.npy", np.array([number]))
    assert tokenmill.open(tmp_path / "npy")["train"][:].tolist() == [0, 1, 2, 3]
    (tmp_path / "npy" / "train-00002-of-00004.npy").unlink()
    with pytest.raises(DatasetError, match=r"train-00002-of-00004\.npy is missing"):
        tokenmill.open(tmp_path / "npy")


ODD = {
    "broken link": lambda path: path.symlink_to("/nowhere/blob"),
    "cannot be read: Too many levels": lambda path: path.symlink_to(path.name),
    "not a regular file": os.mkfifo,
    "is a folder": Path.mkdir,
}


@pytest.mark.parametrize("says", ODD)
def test_a_shard_name_that_is_not_a_file_is_refused(tmp_path, says):
    write_llmc_folder(tmp_path / "llmc", [[1], [2], [3]])
    write_raw(tmp_path / "nano" / "train.bin", [1])
    (tmp_path / "raw").mkdir()
    write_raw(tmp_path / "raw" / "train" / "x_0.bin", [1])
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "x_0.npy", np.array([1]))
    for odd, options in (
        ("llmc/edu_fineweb_train_000004.bin", {}),
        ("nano/val.bin", {}),
        ("raw/train/x_1.bin", {"dtype": "uint16"}),
        ("npy/x_1.npy", {}),
    ):
        opened = tmp_path / odd.partition("/")[0]
        tokenmill.open(opened, **options)
        ODD[says](tmp_path / odd)
        with pytest.raises(DatasetError, match=says) as caught:
            tokenmill.open(opened, **options)
        assert Path(odd).name in str(caught.value)


@pytest.mark.parametrize("says", ODD)
def test_broken_entries_of_another_format_are_skipped(tmp_path, says):
    write_llmc_folder(tmp_path / "llmc", [[1], [2], [3]])
    for name in ("old.npy", "old.idx", "old.ds"):
        ODD[says](tmp_path / "llmc" / name)
    assert len(tokenmill.open(tmp_path / "llmc")["train"]) == 2
    write_raw(tmp_path / "pair" / "train.bin", [1])
    ODD[says](tmp_path / "pair" / "train.idx")  # a Megatron pair, whose ids need not be uint16
    with pytest.raises(DatasetError, match=rf"train\.idx.*{says}"):
        tokenmill.open(tmp_path / "pair")


def test_a_folder_of_broken_links_names_them(tmp_path):
    (tmp_path / "x_000001.bin").symlink_to("/nowhere/blob")
    with pytest.raises(DatasetError, match=r"x_000001\.bin is a broken link"):
        tokenmill.open(tmp_path)


IDS = np.random.default_rng(0).integers(0, 50257, 1000)


def test_a_folder_of_shards_holds_out_the_last_shard_or_shards_named_val(tmp_path):
    write_llmc_folder(tmp_path / "a", np.split(IDS, [300, 600]))
    (tmp_path / "a" / "README.md").write_text("not a shard")
    dataset = tokenmill.open(tmp_path / "a")
    assert np.array_equal(dataset["train"][:], IDS[:600])
    assert np.array_equal(dataset["val"][:], IDS[600:])
    write_llmc(tmp_path / "a" / "edu_fineweb_val_000000.bin", [5, 6])
    dataset = tokenmill.open(tmp_path / "a")
    assert np.array_equal(dataset["train"][:], IDS)
    assert dataset["val"][:].tolist() == [5, 6]
    with pytest.raises(UsageError, match="val_fraction"):
        tokenmill.open(tmp_path / "a", val_fraction=0.1)


def test_names_assign_files_to_test_and_validation(tmp_path):
    for number, name in enumerate(("train", "eval_0", "test", "test_train_1", "latest_2")):
        write_llmc(tmp_path / f"{name}.bin", [number])
    dataset = tokenmill.open(tmp_path)
    read = {split: dataset[split][:].tolist() for split in dataset.splits}
    assert read == {"train": [4, 3, 0], "val": [1], "test": [2]}
    (tmp_path / "eval_0.bin").unlink()
    dataset = tokenmill.open(tmp_path)  # the last training shard is held out
    read = {split: dataset[split][:].tolist() for split in dataset.splits}
    assert read == {"train": [4, 3], "val": [0], "test": [2]}
    write_llmc_folder(tmp_path / "called", [[1], [2]], "test_{}.bin")
    assert tokenmill.open(tmp_path / "called")["train"][:].tolist() == [1]
