"""Arrow, tar, WARC and wide text: the same bytes for any number of workers, and each origin exact."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from preparing import (
    InProcessEngine,
    assert_same_files,
    make,
    make_in_workers,
    python_sources,
    small,
)

import tokenmill
from tokenmill.inspect.where.where import where
from tokenmill.sources.tar import NOT_TEXT

OPTIONS = {"val_fraction": 0.1, "tokens_per_shard": 70_000}


def make_tar(members: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def make_wet(texts: list[str]) -> bytes:
    records = []
    for text in texts:
        data = text.encode()
        head = f"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: {len(data)}\r\n\r\n"
        records.append(head.encode() + data + b"\r\n\r\n")
    return b"".join(records)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder of every kind of input, and its texts in the order of the files."""
    folder = tmp_path_factory.mktemp("inputs")
    texts = list(python_sources(300_000))
    parts = [texts[number::4] for number in range(4)]
    with pa.ipc.new_stream(folder / "a.arrow", pa.schema({"text": pa.string()})) as writer:
        writer.write_table(pa.table({"text": parts[0]}), max_chunksize=2)
    members = {f"{number}.py": text.encode() for number, text in enumerate(parts[1])}
    (folder / "b.tar").write_bytes(make_tar({**members, "x.png": b"\0"}))
    (folder / "c.wet").write_bytes(make_wet(parts[2]))
    for number, text in enumerate(parts[3]):
        (folder / f"d{number:03}.txt").write_bytes(text.encode("utf-16"))
    return folder, [text for part in parts for text in part]


@pytest.mark.parametrize("dedup", ["documents", "lines"])
def test_workers_and_the_size_of_parts_change_nothing(
    tmp_path: Path, inputs: tuple[Path, list[str]], dedup: str
) -> None:
    folder, _ = inputs
    options = {"dedup": dedup, **OPTIONS}
    make(folder, tmp_path / "one", limits=small(part=20_000, block=999), **options)
    make_in_workers(
        folder, tmp_path / "two", limits=small(part=20_000, block=3000), workers=2, **options
    )
    assert_same_files(tmp_path / "one", tmp_path / "two")


def test_the_documents_are_those_of_plain_files(
    tmp_path: Path, inputs: tuple[Path, list[str]]
) -> None:
    folder, texts = inputs
    plain = tmp_path / "plain"
    plain.mkdir()
    for number, text in enumerate(texts):
        (plain / f"{number:05}.txt").write_bytes(text.encode())
    tokens = []
    for source in (folder, plain):
        out = tmp_path / f"out-{source.name}"
        report = make(source, out, documents="file", **OPTIONS)
        data = tokenmill.open(out)
        tokens.append({split: data[split][:].tolist() for split in data})
        assert report.manifest.ledger["documents_in"] == len(texts) + (source == folder)
    assert tokens[0] == tokens[1]


def test_a_document_that_spans_parts_has_the_ids_of_the_library(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    library = Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    library.decoder = decoders.Metaspace()
    text = "\n".join(python_sources(60_000))
    library.train_from_iterator(
        text.split("\n"),
        trainers.UnigramTrainer(
            vocab_size=300, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
        ),
    )
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text(text)
    make(
        tmp_path / "a.txt",
        tmp_path / "out",
        limits=small(part=5000, block=1000),
        tokenizer=tmp_path / "tokenizer.json",
        normalize=False,
        val_fraction=0,
        eot="none",
        start=InProcessEngine,
    )
    found = tokenmill.open(tmp_path / "out")["train"][:].tolist()
    assert found == library.encode(text, add_special_tokens=False).ids


def test_documents_are_found_by_their_places(
    tmp_path: Path, inputs: tuple[Path, list[str]]
) -> None:
    folder, _ = inputs
    make(folder, tmp_path / "out", documents="file", **OPTIONS)
    data = tokenmill.open(tmp_path / "out")
    seen: dict[str, int] = {}
    for split in data:
        for document in data[split].documents:
            name = Path(document.source.path).name
            seen[name] = seen.get(name, 0) + 1
            if seen[name] not in (1, 4):
                continue
            place = f"{document.source.path}:{document.source.unit}={document.offset}"
            found = where(tmp_path / "out", place)
            (one,) = found.documents
            assert (one.split, one.start) == (split, document.start)
    assert {"a.arrow", "b.tar", "c.wet", "d000.txt"} <= seen.keys()
    # What was not read is explained by reading the archive again.
    (rejected,) = map(json.loads, (tmp_path / "out" / "rejected.jsonl").read_text().splitlines())
    found = where(tmp_path / "out", f"{folder}/b.tar:byte={rejected['offset']}")
    assert found.absences[0].reason == NOT_TEXT
