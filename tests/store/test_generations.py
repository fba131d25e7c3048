"""The manifest of a dataset that has grown: impossible generations are refused, sources are joined."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dataset_builder import seal

import tokenmill
from tokenmill.errors import DatasetError
from tokenmill.store.joined_sources import JoinedSources
from tokenmill.store.manifest import Manifest
from tokenmill.store.tables import Source, SourceTable


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grown")
    for number in range(3):
        texts = [f"text {number} {n} " * 9 for n in range(20)]
        (folder / f"{number}.txt").write_text("<|endoftext|>".join(texts))
        more: dict[str, Any] = {"append": True}
        if not number:
            more = {"tokenizer": "bytes", "tokens_per_shard": 500, "val_fraction": 0.3}
        tokenmill.prepare(folder / f"{number}.txt", folder / "data", workers=1, **more)
    return folder / "data"


def change_shards(body: dict[str, Any]) -> None:
    body["generations"][1]["splits"]["train"]["shards"] = 1


def change_tokens(body: dict[str, Any]) -> None:
    body["generations"][0]["splits"]["val"]["tokens"] += 1


def change_documents(body: dict[str, Any]) -> None:
    body["generations"][1]["splits"]["train"]["documents"] -= 1


def drop_split(body: dict[str, Any]) -> None:
    del body["generations"][0]["splits"]["val"]


def exceed_shards(body: dict[str, Any]) -> None:
    body["generations"][1]["splits"]["train"]["shards"] = 1000


def drop_generations(body: dict[str, Any]) -> None:
    del body["generations"]


def empty_generations(body: dict[str, Any]) -> None:
    body["generations"] = []


def be_plain(body: dict[str, Any]) -> None:
    body["version"] = 3


def lead_out(body: dict[str, Any]) -> None:
    body["generations"][0]["sources"]["path"] = "../sources.jsonl"


def repeat_path(body: dict[str, Any]) -> None:
    body["generations"][0]["sources"]["path"] = body["sources"]["path"]


def lack_ledger(body: dict[str, Any]) -> None:
    del body["generations"][0]["ledger"]


def compress_nothing(body: dict[str, Any]) -> None:
    body["compression"] = {"name": "zstd", "level": 3, "tokens_per_frame": 9, "library": "1"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_shards, "more shards of split 'train' than the next|says"),
        (change_tokens, "generation 1 says .* tokens of split 'val'"),
        (change_documents, "generation 2 says .* documents of split 'train'"),
        (drop_split, "generation 1 does not have the splits"),
        (exceed_shards, "more shards of split 'train' than the next"),
        (drop_generations, "version 5 needs either 'fields' or 'generations'"),
        (empty_generations, "length >= 1"),
        (be_plain, "'generations' does not fit version 3"),
        (lead_out, "leads out of the folder"),
        (repeat_path, "names sources_3.jsonl twice"),
        (lack_ledger, "missing required field 'ledger'"),
        (compress_nothing, "does not fit 'compression'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_impossible_generations_are_refused(
    grown: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    data = (grown / "dataset_metadata.json").read_bytes()
    assert seal(json.loads(data)) == data
    body = json.loads(data)
    change(body)
    with pytest.raises(DatasetError, match=message):
        Manifest.from_json(seal(body), grown)


def test_a_manifest_of_generations_is_written_as_it_was_read(grown: Path) -> None:
    data = (grown / "dataset_metadata.json").read_bytes()
    manifest = Manifest.from_json(data, grown)
    assert manifest.to_json() == data
    assert pickle.loads(pickle.dumps(manifest)) == manifest
    assert [manifest.at(n).generation for n in (1, 2, 3)] == [1, 2, 3]
    assert manifest.at(2).at(1) == manifest.at(1)
    assert manifest.at(2).newest == 3
    ledgers = [manifest.at(n).ledger["documents_kept"] for n in (1, 2, 3)]
    assert ledgers == [20, 40, 60]


def test_joined_sources_equal_one_table() -> None:
    sources = [Source(path=f"{n % 4}/{n}.txt", bytes=n, unit="byte") for n in range(12)]
    parts = [SourceTable.of(sources[a:b]) for a, b in ((0, 5), (5, 5), (5, 6), (6, 12))]
    joined, whole = JoinedSources(parts), SourceTable.of(sources)
    joined.check()
    assert list(joined) == sources == list(pickle.loads(pickle.dumps(joined)))
    assert (len(joined), joined.bytes, joined.xxh3_128) == (12, whole.bytes, whole.xxh3_128)
    assert bytes(joined.encode()) == bytes(whole.encode())
    for name in ("3/7.txt", "7.txt", "txt", "none"):
        assert joined.find(name) == whole.find(name)
    same = SourceTable.of([sources[0]] * 5)
    assert JoinedSources([same, same]).find("0.txt", most=7) == [0, 1, 2, 3, 4, 5, 6]
    for wrong in (-1, 12):
        with pytest.raises(IndexError):
            joined[wrong]
