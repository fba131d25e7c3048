"""Addresses and paths of objects, without any server."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from tokenmill.errors import UsageError
from tokenmill.storage.addresses import find_full_address, hide_secrets, parse_address
from tokenmill.storage.object_path import ObjectPath, as_path
from tokenmill.storage.object_store import join_ranges


def test_a_path_of_an_object_works_like_a_path() -> None:
    root = as_path("s3://bucket/corpus/")
    file = root / "train" / "x.bin"
    assert isinstance(file, ObjectPath)
    assert str(file) == os.fspath(file) == "s3://bucket/corpus/train/x.bin"
    assert [str(one) for one in file.parents] == [
        "s3://bucket/corpus/train",
        "s3://bucket/corpus",
        "s3://bucket",
    ]
    assert file.relative_to(root).as_posix() == "train/x.bin"
    assert str(file.with_suffix(".idx")) == "s3://bucket/corpus/train/x.idx"
    assert (
        pickle.loads(pickle.dumps(file)) == file == as_path(Path("s3://bucket/corpus/train/x.bin"))
    )
    assert {file: 1}[root / "train/x.bin"] == 1
    assert as_path(file) is file
    assert file.absolute() == file.resolve() == file
    assert root.parent.parent == root.parent


def test_a_local_path_stays_local() -> None:
    assert type(as_path("data/s3:x")) is type(Path("x"))
    assert as_path(Path("/data")) == Path("/data")


def test_secrets_of_a_web_address_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    address = "https://me:pass@host:8000/folder?sv=1&sig=secret"
    path = as_path(address)
    assert str(path) == "https://host:8000/folder"
    assert repr(path) == "ObjectPath('https://host:8000/folder')"
    assert find_full_address(parse_address(str(path))) == address
    assert find_full_address(parse_address(f"{path}/a/b")) == address
    assert find_full_address(parse_address("https://host:8000/other")) == "https://host:8000/other"
    as_path("https://me:pass@host:8000/folder?sv=1&sig=newer")
    with pytest.raises(UsageError, match="differ only in their query") as caught:
        as_path("https://host:8000/folder?file=2")
    assert "secret" not in str(caught.value)
    assert hide_secrets(f"GET {address} failed") == "GET https://host:8000/folder failed"


def test_ranges_are_joined_if_they_are_near_but_not_into_long_requests() -> None:
    ranges = [(start, start + 10) for start in range(0, 1000, 20)]
    groups = join_ranges(ranges, gap=10, longest=200)
    assert sorted(number for group in groups for number in group) == list(range(50))
    spans = [(ranges[group[0]][0], ranges[group[-1]][1]) for group in groups]
    assert all(stop - start <= 200 for start, stop in spans)
    assert len(groups) == 5
    assert len(join_ranges(ranges, gap=9)) == 50
    assert join_ranges([(0, 1000), (5, 10)], gap=0, longest=100) == [[0], [1]]
    assert join_ranges([]) == []


@pytest.mark.parametrize(
    "address",
    [
        "https://h\u2100/x",
        "https://[x/y",
        "https://host/x?y=\ud800",
        "https://\udc80/x",
        "s3://b/\ud800",
    ],
)
def test_an_address_that_no_server_has_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"is not a web address|is not supported"):
        parse_address(address)
