"""choose.py: which files of a repository are fetched, and errors for files that do not exist."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import InputError, UsageError
from tokenmill.hub.choose import choose, parse_shards
from tokenmill.hub.repository import HubFile

TOKENS = [f"web_train_{number:06}.bin" for number in range(1, 13)] + ["web_val_000000.bin"]
TEXT = [
    "data/train-00000-of-00010.parquet",
    "data/train-00010-of-00010.parquet",
    "data/train-2.parquet",
    "data/validation-00000-of-00001.parquet",
    "sample/training/0000.parquet",
]
CARDS = ["README.md", ".gitattributes", "dataset_infos.json", "figure.png"]


def chosen(names: list[str], path: str = "", **options: object) -> list[str]:
    files = [HubFile(path=name, size=1, digest="0" * 40) for name in names]
    return [file.path for file in choose(files, "lab/web", path=path, **options).files]  # type: ignore[arg-type]


def test_one_kind_of_file_is_taken_without_cards() -> None:
    assert sorted(chosen([*CARDS, *TOKENS])) == sorted(TOKENS)
    assert sorted(chosen([*CARDS, *TEXT])) == sorted(TEXT)
    assert chosen([*CARDS, "a.jsonl.zst", "b.json", "notes.txt"]) == ["a.jsonl.zst", "b.json"]
    assert chosen([*CARDS, "b.txt.gz", "a.txt"]) == ["a.txt", "b.txt.gz"]
    prepared = ["dataset_metadata.json", "train/shard_00000.bin", "train/shard_00000.docs.npy"]
    assert chosen([*prepared, ".gitattributes"]) == prepared
    assert chosen([f"v1/{name}" for name in prepared] + TOKENS, "v1") == [
        f"v1/{name}" for name in prepared
    ]


def test_index_files_come_with_their_token_files() -> None:
    megatron = ["x.bin", "x.idx", "y.bin", "y.idx"]
    assert sorted(chosen(megatron)) == megatron
    assert chosen(megatron, "y.bin") == chosen(megatron, "[yz].bin") == ["y.bin", "y.idx"]
    datatrove = ["00_x.ds", "00_x.ds.index", "00_x.ds.metadata"]
    assert chosen(datatrove, shards={0}) == datatrove
    assert chosen(["a/p_1.npy", "a/p_1.csv.gz", "b.csv.gz"]) == ["a/p_1.npy", "a/p_1.csv.gz"]
    chunks = ["val/chunk-0-0.bin", "val/index.json"]
    assert chosen([*chunks, "index.json", "other/index.json"]) == chunks
    assert chosen(["chunk-0-0.bin", "index.json"]) == ["chunk-0-0.bin", "index.json"]


def test_a_path_is_a_file_a_folder_or_a_glob() -> None:
    assert chosen(TEXT, "sample") == ["sample/training/0000.parquet"]
    assert chosen(TEXT, "data/train-2.parquet") == ["data/train-2.parquet"]
    assert chosen(TOKENS, "*_00000[12].bin") == TOKENS[:2]
    assert chosen(["a[1].txt", "a1.txt"], "a[1].txt") == ["a[1].txt"]
    with pytest.raises(InputError, match=r"lab/web has no 'dat'\. It has: data, sample\."):
        chosen(TEXT, "dat")


def test_files_come_in_the_order_of_their_numbers() -> None:
    names = ["x_10.bin", "x_9.bin", "x_100.bin"]
    assert chosen(names) == ["x_9.bin", "x_10.bin", "x_100.bin"]
    assert chosen(names, max_files=2) == ["x_9.bin", "x_10.bin"]


def test_a_split_is_a_word_of_the_name() -> None:
    assert chosen(TEXT, split="train") == [TEXT[0], TEXT[2], TEXT[1]]
    assert chosen(TEXT, split="val") == chosen(TEXT, split="validation") == [TEXT[3]]
    with pytest.raises(InputError, match=r"the split 'test' in its name\. A typical name is "):
        chosen(TEXT, split="test")


@given(st.sets(st.integers(0, 12), min_size=1))
def test_shards_are_chosen_by_number(numbers: set[int]) -> None:
    expected = sorted(name for name in TOKENS if int(re.findall("[0-9]+", name)[0]) in numbers)
    assert sorted(chosen(TOKENS, shards=numbers)) == expected


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), min_size=1))
def test_shard_ranges_are_parsed(ranges: list[tuple[int, int]]) -> None:
    text = ", ".join(f"{first}-{first + more}" if more else f"{first}" for first, more in ranges)
    expected = {n for first, more in ranges for n in range(first, first + more + 1)}
    assert parse_shards(text) == expected == parse_shards(sorted(expected))


@pytest.mark.parametrize("text", ["", "one", "3-1", "1-", "1,,2", "-1", "1-99999999"])
def test_invalid_shard_numbers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="such as 1-3 or 1,4,7-9"):
        parse_shards(text)


def test_numbers_of_any_length_and_script_in_names_are_sorted() -> None:
    long, longer = "9" * 200, "1" + "0" * 200
    names = [f"a_{number}.bin" for number in ("²", "٣", longer, long, "010", "9", "10")]
    assert chosen(names) == [
        f"a_{number}.bin" for number in ("9", "010", "10", long, longer, "²", "٣")
    ]
    with pytest.raises(InputError, match="numbered 9 to 10"):
        chosen(names, shards={11})


@pytest.mark.parametrize("name", ["a\nb.bin", "a\u202e.bin", "a\ud800.bin", "a\u200b.bin"])
def test_names_that_would_forge_or_hide_output_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="Nothing was downloaded") as refused:
        chosen([name])
    assert name not in str(refused.value)


def test_impossible_choices_are_errors() -> None:
    with pytest.raises(
        InputError, match=r"no shard 0, 14, 15, …\. It has 12 shards, numbered 1 to 12\."
    ):
        chosen(TOKENS[:12], shards={1, 0, 14, 15, 16})
    with pytest.raises(UsageError, match="no numbered token files"):
        chosen(TEXT, shards={1})
    with pytest.raises(UsageError, match="`shards` is empty"):
        chosen(TOKENS, shards=set())
    with pytest.raises(UsageError, match="`max_files` is 0"):
        chosen(TOKENS, max_files=0)
    with pytest.raises(InputError, match=r"neither tokens .* nor text .* @refs/convert/parquet"):
        chosen(CARDS)
    with pytest.raises(UsageError, match="can only be downloaded whole"):
        chosen(["dataset_metadata.json", "train/shard_00000.bin"], max_files=1)


@pytest.mark.parametrize("path", ["../x.bin", "/etc/x", "a//b", "a/./b", "c:\\x", "a\\..\\x", ""])
def test_names_that_leave_the_folder_are_refused(path: str) -> None:
    with pytest.raises(InputError, match="outside the target folder"):
        HubFile(path=path, size=1, digest="0" * 40)
