"""How requests to object stores are run and remembered, without any server."""

from __future__ import annotations

import pytest

from tokenmill.storage import object_connection
from tokenmill.storage.addresses import parse_address
from tokenmill.storage.object_store import read_files_together


def test_files_are_read_together_and_the_caller_looks_up_between_them() -> None:
    found: list[int] = []
    looks: list[None] = []
    read_files_together(found.append, [1, 2, 3], lambda: looks.append(None))
    assert sorted(found) == [1, 2, 3]
    assert len(looks) == 3
    read_files_together(found.append, [4, 5], None)
    assert sorted(found) == [1, 2, 3, 4, 5]


def test_a_bucket_of_amazon_needs_no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HOME", "/nonexistent")
    object_connection.disconnect()
    store, key = object_connection.connect(parse_address("s3://bucket/corpus"))
    assert key == "corpus"
    assert "endpoint" not in store.config
    object_connection.disconnect()
