"""Datasets in an object store grow as those in folders do; one run at a time replaces the manifest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from servers import Proxy
from test_remote_outputs import list_files

import tokenmill
from tokenmill.errors import FolderError, StorageError
from tokenmill.storage.object_path import as_path

APPEND = """
import sys
import tokenmill

texts, out, work = sys.argv[1:]
tokenmill.prepare(texts, out, append=True, work=work, workers=1)
"""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three texts; each has half of the documents of the one before."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(3):
        some = range(150 * number, 150 * number + 300)
        documents = [f"Document {n}: " + "word " * (n % 97) for n in some]
        (folder / f"{number}.txt").write_text("<|endoftext|>".join(documents))
    return folder


def prepare(texts: Path, number: int, out: str | Path, work: Path | None = None) -> None:
    settings = {"append": True}
    if not number:
        settings = {"tokenizer": "bytes", "val_fraction": 0.1, "tokens_per_shard": 20_000}
    tokenmill.prepare(texts / f"{number}.txt", out, work=work, workers=1, **settings)


@pytest.fixture(scope="module")
def local(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, bytes]]:
    """The files of each generation of a local dataset."""
    out = tmp_path_factory.mktemp("local") / "data"
    states = []
    for number in range(3):
        prepare(texts, number, out)
        states.append(list_files(out))
    return states


def test_a_failed_append_leaves_the_dataset_and_refuses_others_until_it_is_resumed(
    texts: Path, local: list[dict[str, bytes]], bucket: str, proxy: Proxy, tmp_path: Path
) -> None:
    out = f"{bucket}/data"
    prepare(texts, 0, out, tmp_path / "work")
    row = tokenmill.open(out)["train"][:500]
    proxy.fail("503", method="PUT", part="data/dataset_metadata.json")
    with pytest.raises(StorageError):
        prepare(texts, 1, out, tmp_path / "work")
    proxy.clear()
    found = list_files(out)
    assert all(found[name] == data for name, data in local[0].items())
    assert tokenmill.open(out).manifest.generation == 1
    with pytest.raises(FolderError, match="different settings or input"):
        prepare(texts, 2, out, tmp_path / "other")
    prepare(texts, 1, out, tmp_path / "work")
    assert list_files(out) == local[1]
    prepare(texts, 2, out, tmp_path / "other")
    assert list_files(out) == local[2]
    assert tokenmill.verify(out) == []
    assert np.array_equal(tokenmill.open(out, generation=1)["train"][:500], row)


def test_two_machines_that_append_the_same_text_add_it_once(
    texts: Path, local: list[dict[str, bytes]], bucket: str, tmp_path: Path
) -> None:
    out = f"{bucket}/data"
    prepare(texts, 0, out, tmp_path / "work")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", APPEND, str(texts / "1.txt"), out, str(tmp_path / str(n))]
        )
        for n in range(2)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    assert list_files(out) == local[1]


def test_an_append_does_not_replace_a_manifest_that_has_changed(
    texts: Path, local: list[dict[str, bytes]], bucket: str, proxy: Proxy, tmp_path: Path
) -> None:
    """Another machine adds a text, although this run has claimed the dataset."""
    out = f"{bucket}/data"
    prepare(texts, 0, out, tmp_path / "work")
    proxy.fail("503", method="PUT", part="data/dataset_metadata.json")
    with pytest.raises(StorageError):
        prepare(texts, 2, out, tmp_path / "work")
    proxy.clear()
    for name, data in local[1].items():
        as_path(f"{out}/{name}").write_bytes(data)
    prepare(texts, 2, out, tmp_path / "work")
    assert list_files(out) == local[2]
