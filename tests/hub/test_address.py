"""address.py: what a user may write for a dataset on the hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import UsageError
from tokenmill.hub.address import Address, is_address, parse_address

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,8}", fullmatch=True)
REVISIONS = NAMES.filter(lambda name: ".." not in name) | st.sampled_from(
    ["refs/convert/parquet", "refs/pr/7"]
)
PATHS = st.lists(st.from_regex(r"[a-z@*\[\].\-]{1,6}", fullmatch=True)).map("/".join)


@given(NAMES, NAMES, REVISIONS, PATHS)
def test_every_address_is_read_as_it_is_written(
    owner: str, name: str, revision: str, path: str
) -> None:
    address = Address(repository=f"{owner}/{name}", revision=revision, path=path)
    assert parse_address(str(address)) == address
    assert parse_address(str(address).removeprefix("hf://datasets/")) == address
    assert is_address(str(address))


def test_a_path_object_keeps_its_meaning() -> None:
    path = Path("hf://datasets/lab/web/sub")
    assert is_address(path)
    assert parse_address(path) == Address(repository="lab/web", path="sub")
    assert parse_address("lab/web@v1%2F2/").revision == "v1/2"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "web",
        "hf://",
        "hf://lab/web",
        "hf://datasets/web",
        "hf://models/a/b",
        "/etc/x",
        "a/b@..%2Fc",
    ],
)
def test_what_is_no_dataset_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(UsageError, match=r"OWNER/NAME or hf://datasets/OWNER/NAME"):
        parse_address(text)


@pytest.mark.parametrize("text", ["data/corpus", "hf", "./hf:/x", "s3://bucket/x"])
def test_paths_are_no_addresses(text: str) -> None:
    assert not is_address(text)
