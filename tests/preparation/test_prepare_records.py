"""JSON arrays, CSV files and JSON lines with the same records give the same tokens."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from preparing import make, make_in_workers, small

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import InputError, UsageError
from tokenmill.preparation.estimate import estimate
from tokenmill.preparation.plan import make_plan

RECORDS = [
    {
        "id": str(n),
        "title": f"Title {n}" if n % 3 else "",
        "body": f"Text {n},\nwith lines. " * (n % 7),
    }
    for n in range(400)
]
FIELD = r"{title?}\n\n{body}"


def write_all(folder: Path) -> dict[str, Path]:
    paths = {
        name: folder / name for name in ("a.jsonl", "a.json", "a.csv", "a.tsv.gz", "a.parquet")
    }
    paths["a.jsonl"].write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    paths["a.json"].write_text(json.dumps(RECORDS, indent=1))
    with paths["a.csv"].open("w", newline="") as file:
        writer = csv.DictWriter(file, RECORDS[0])
        writer.writeheader()
        writer.writerows(RECORDS)
    with gzip.open(paths["a.tsv.gz"], "wt", newline="") as packed:
        writer = csv.DictWriter(packed, RECORDS[0], delimiter="\t")
        writer.writeheader()
        writer.writerows(RECORDS)
    pq.write_table(pa.Table.from_pylist(RECORDS), paths["a.parquet"], row_group_size=50)
    return paths


def tokens_of(out: Path) -> dict[str, Any]:
    return {name: np.asarray(tokens[:]) for name, tokens in tokenmill.open(out).items()}


def test_every_kind_of_records_gives_the_same_tokens(tmp_path: Path) -> None:
    results = {}
    for name, path in write_all(tmp_path).items():
        for number, limits in enumerate((small(), small(part=500, block=64))):
            out = tmp_path / f"{name}-{number}"
            report = make(path, out, limits=limits, text_field=FIELD, val_fraction=0.2)
            ledger = report.manifest.ledger
            dropped = sum(entry["documents"] for entry in ledger["dropped"].values())
            assert ledger["documents_in"] == len(RECORDS) == ledger["documents_kept"] + dropped
            results[out.name] = tokens_of(out)
        settings = report.manifest.settings
        assert settings["text_field"] == FIELD
        assert "csv" not in settings
    (first, *rest) = results.values()
    assert all(np.array_equal(first[split], other[split]) for other in rest for split in first)
    assert len(first["val"])
    assert len(first["train"])


def test_workers_do_not_change_the_bytes(tmp_path: Path) -> None:
    inputs = list(write_all(tmp_path).values())
    shards = []
    for name, how in (("one", make), ("two", make_in_workers)):
        how(inputs, tmp_path / name, text_field=FIELD, limits=small(part=3000, block=512))
        files = sorted((tmp_path / name).rglob("shard_*"))
        shards.append([file.read_bytes() for file in files])
    assert shards[0] == shards[1]


def test_where_finds_records_of_arrays_and_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.json", "a.csv"):
        path = write_all(tmp_path)[name]
        out = tmp_path / f"out-{name}"
        tokenmill.prepare(
            path, out, tokenizer="bytes", text_field="body", val_fraction=0, progress=False
        )
        tokens = tokenmill.open(out)["train"]
        document = tokens.documents[4]
        assert document.offset is not None
        text = tokenmill.open(out).tokenizer.decode(tokens[document.start :][: document.length])
        inside = document.offset + 3
        assert path.read_bytes()[inside:].find(text[:6].encode()) < 80
        line = path.read_bytes()[:inside].count(b"\n") + 1
        assert main(["where", str(out), f"{path}:{line}"]) == 0
        assert "document: 4 of split train" in capsys.readouterr().out


def test_a_csv_file_is_plain_text_unless_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,text\n1,one\n2,two\n")
    options = {"tokenizer": "bytes", "val_fraction": 0}
    plain = make(path, tmp_path / "plain", **options)
    assert plain.manifest.ledger["documents_in"] == 1
    flags = ["--tokenizer", "bytes", "--val-fraction", "0"]
    assert main(["prepare", str(path), "--out", str(tmp_path / "noted"), *flags]) == 0
    noted = capsys.readouterr()
    assert "its header has the column 'text'" in noted.out + noted.err
    assert "--csv records" in noted.out + noted.err
    records = make(path, tmp_path / "records", csv="records", **options)
    assert records.manifest.ledger["documents_in"] == 2
    assert records.manifest.settings["csv"] == "records"
    with pytest.raises(InputError, match="no column 'body'; it has id, text"):
        make(path, tmp_path / "wrong", csv="records", text_field="body", **options)
    with pytest.raises(UsageError, match="`csv` is 'rows'"):
        make(path, tmp_path / "wrong", csv="rows", **options)


def test_wrong_fields_and_sizes_are_estimated(tmp_path: Path) -> None:
    paths = write_all(tmp_path)
    for name in ("a.json", "a.csv"):
        made = make(paths[name], tmp_path / name.replace(".", "-"), text_field="body")
        found = estimate(
            make_plan(paths[name], tmp_path / "o", tokenizer="bytes", text_field="body", workers=1)
        )
        assert found.tokens == pytest.approx(made.manifest.ledger["tokens"], rel=0.3)
        assert not found.faults
        wrong = estimate(
            make_plan(
                paths[name],
                tmp_path / "o",
                tokenizer="bytes",
                text_field="none",
                csv="records",
                workers=1,
            )
        )
        assert any("it has id, title, body" in fault for fault in wrong.faults)
