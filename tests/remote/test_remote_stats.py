"""Statistics and comparisons of datasets in a real S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest
from dataset_builder import build

import tokenmill
from tokenmill.inspect.stats.stats import read_stats
from tokenmill.storage.object_path import as_path


def test_remote_statistics_equal_the_local_ones(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    build(tmp_path / "d", frame_tokens=5)
    for path in (tmp_path / "d").rglob("*"):
        if path.is_file():
            as_path(f"{bucket}/d/{path.relative_to(tmp_path / 'd')}").write_bytes(path.read_bytes())
    local, remote = tokenmill.stats(tmp_path / "d"), tokenmill.stats(f"{bucket}/d")
    assert remote.counts.tolist() == local.counts.tolist()
    assert list(remote.sources) == list(local.sources)
    assert (remote.lengths, remote.cuts, remote.lines) == (local.lengths, local.cuts, local.lines)
    assert read_stats(tokenmill.open(f"{bucket}/d")) == remote
    assert tokenmill.diff(tmp_path / "d", f"{bucket}/d").is_same
    assert tokenmill.open(f"{bucket}/d")["train"]._repr_html_().count("object store") == 1
