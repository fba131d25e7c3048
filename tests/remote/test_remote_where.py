"""`where` on a dataset in a real S3 server, and on sources there."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_remote_datasets import run, upload

import tokenmill
from tokenmill.inspect.where import keys
from tokenmill.inspect.where.where import where
from tokenmill.storage.object_path import as_path


@pytest.fixture
def remote(tmp_path: Path, bucket: str) -> str:
    """A dataset with compressed shards, whose source is in the bucket too."""
    lines = [f"line {number % 50} of a file" for number in range(80)]
    as_path(f"{bucket}/texts/a.txt").write_bytes("\n".join(lines).encode())
    tokenmill.prepare(
        f"{bucket}/texts",
        tmp_path / "data",
        tokenizer="bytes",
        documents="line",
        val_fraction=0.1,
        tokens_per_shard=500,
        compress="zstd",
    )
    return upload(tmp_path / "data", f"{bucket}/data")


@pytest.mark.parametrize("scanned", [1000, -1])
def test_documents_are_found_by_key_text_and_place(
    remote: str, bucket: str, scanned: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(keys, "SCANNED_REMOTE", scanned)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for split, tokens in tokenmill.open(remote).items():
        assert tokens.documents is not None
        for document in list(tokens.documents)[::9]:
            assert document.key is not None
            assert [one.document for one in where(remote, document.key).documents] == [document]
            what = f"a.txt:byte={document.offset}"
            (found,) = where(remote, what).documents
            assert (found.document, found.split) == (document, split)
    assert (tmp_path / "cache/tokenmill/inspected").exists() == (scanned < 0)
    assert where(remote, "line 7 of").documents[0].text == "line 7 of a file<|endoftext|>"
    # The source is read only if its whole address is typed.
    (absence,) = where(remote, f"{bucket}/texts/a.txt:60").absences
    assert absence.reason == "duplicate"
    assert absence.twins[0].text == "line 9 of a file<|endoftext|>"
    with pytest.raises(tokenmill.TokenmillError, match="does not exist"):
        where(remote, "a.txt:60")


def test_the_command_prints_no_secrets(remote: str, website: str) -> None:
    address = f"{website}/data".replace("//", "//name:password@") + "?signature=abc"
    said = run("where", address, "line 7 of")
    assert said.returncode == 0, said.stderr
    assert "password" not in said.stdout + said.stderr
    assert "abc" not in said.stdout
