"""paths.py: how users write a dataset on the Hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import UsageError
from tokenmill.hub.paths import HubPath, is_hub_path, parse_hub_path

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,8}", fullmatch=True)
REVISIONS = NAMES.filter(lambda name: ".." not in name) | st.sampled_from(
    ["refs/convert/parquet", "refs/pr/7"]
)
PATHS = st.lists(st.from_regex(r"[a-z@*\[\].\-]{1,6}", fullmatch=True)).map("/".join)


@given(NAMES, NAMES, REVISIONS, PATHS)
def test_every_hub_path_survives_a_round_trip(
    owner: str, name: str, revision: str, path: str
) -> None:
    where = HubPath(repository=f"{owner}/{name}", revision=revision, path=path)
    assert parse_hub_path(str(where)) == where
    assert parse_hub_path(str(where).removeprefix("hf://datasets/")) == where
    assert is_hub_path(str(where))


def test_path_objects_are_accepted() -> None:
    path = Path("hf://datasets/lab/web/sub")
    assert is_hub_path(path)
    assert parse_hub_path(path) == HubPath(repository="lab/web", path="sub")
    assert parse_hub_path("lab/web@v1%2F2/").revision == "v1/2"


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
def test_other_text_is_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(UsageError, match=r"OWNER/NAME or hf://datasets/OWNER/NAME"):
        parse_hub_path(text)


@pytest.mark.parametrize("text", ["data/corpus", "hf", "./hf:/x", "s3://bucket/x"])
def test_local_paths_are_not_hub_paths(text: str) -> None:
    assert not is_hub_path(text)
