"""Kept fields: each document has those of its record, as a plain reader of the input finds them."""

from __future__ import annotations

import contextlib
import csv
import datetime
import json
import pickle
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preparing import make, make_in_workers, small

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import InputError, UsageError
from tokenmill.sources.kept_fields import MOST_BYTES, encode_fields, keep_fields, parse_kept_fields
from tokenmill.storage.reading import DamagedFileError
from tokenmill.store.manifest import Manifest

KEEP = "url,meta.lang,n"
OPTIONS: dict[str, Any] = {"keep_fields": KEEP, "val_fraction": 0.3}


def make_records(count: int = 300) -> list[dict[str, Any]]:
    """Records of which some are repeated, empty, without a text, or without fields."""
    records: list[dict[str, Any]] = []
    for n in range(count):
        record: dict[str, Any] = {
            "n": n,
            "text": f"text {n - n % 2 if n % 5 else n}, " * (n % 4 + 1),
        }
        if n % 3:
            record["url"] = f"https://example.org/{n}\u2028é"
        if n % 4:
            record["meta"] = {"lang": None if n % 8 == 1 else "en", "other": [n]}
        if n % 17 == 0:
            record["text"] = " "
        if n % 19 == 0:
            del record["text"]
        if n % 23 == 0:
            record["text"] = "long words and more " * 300
        records.append(record)
    return records


def expect(record: dict[str, Any]) -> dict[str, Any]:
    found = {}
    if "url" in record:
        found["url"] = record["url"]
    if "meta" in record:
        found["meta.lang"] = record["meta"]["lang"]
    return found | {"n": record["n"]}


def check(out: Path, records: list[dict[str, Any]]) -> int:
    """Compare all documents of a dataset with the records at their offsets. Returns their number."""
    documents = 0
    for tokens in tokenmill.open(out).values():
        decode = tokenmill.open(out).tokenizer.decode
        for document in tokens.documents or ():
            assert document.source is not None
            if document.source.path.endswith(".txt"):
                assert document.metadata == {}
                continue
            record = records[document.metadata["n"]]
            assert document.metadata == expect(record)
            ids = tokens[document.start : document.start + document.length - 1]
            assert decode(ids).split() == record["text"].split()
            assert tokens.documents.at(document.start).metadata == document.metadata
            documents += 1
    assert not list(tokenmill.verify(out))
    return documents


def write(folder: Path, records: list[dict[str, Any]]) -> list[Path]:
    (folder / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records[:100]))
    (folder / "plain.txt").write_text("plain text " * 500)
    (folder / "b.json").write_text(json.dumps(records[100:200], indent=1))
    schema = pa.schema(
        {"n": pa.int64(), "text": "string", "url": "string", "meta": pa.struct({"lang": "string"})}
    )
    pq.write_table(
        pa.Table.from_pylist(records[200:], schema), folder / "c.parquet", row_group_size=9
    )
    for record in records[200:]:  # Arrow has nulls in place of missing fields
        record.setdefault("url", None)
        record.setdefault("meta", {"lang": None})
    return [folder / name for name in ("a.jsonl", "plain.txt", "b.json", "c.parquet")]


def files_of(out: Path) -> dict[str, bytes]:
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in out.rglob("*.*")
        if path.is_file()
    }


def test_every_document_has_the_fields_of_its_record(tmp_path: Path) -> None:
    records = make_records()
    inputs = write(tmp_path, records)
    made = []
    for name, limits in (("large", small()), ("small", small(part=700, block=64))):
        report = make(inputs, tmp_path / name, limits=limits, **OPTIONS)
        kept = check(tmp_path / name, records)
        assert report.manifest.ledger["documents_kept"] == kept + 1
        made.append(report.manifest.fields)
    make_in_workers(inputs, tmp_path / "workers", limits=small(part=700, block=64), **OPTIONS)
    assert files_of(tmp_path / "small") == files_of(tmp_path / "workers")
    assert made[0] == made[1]
    text = subprocess.run(
        ["zstd", "-dc", tmp_path / "small" / "train" / "fields.jsonl.zst"],
        check=True,
        capture_output=True,
    ).stdout
    train = tokenmill.open(tmp_path / "small")["train"].documents
    assert [json.loads(line) for line in text.split(b"\n")[:-1]] == [one.metadata for one in train]
    plain = make(inputs, tmp_path / "plain", val_fraction=0.3)
    assert plain.manifest.fields is None
    assert not list((tmp_path / "plain").rglob("fields*"))
    assert (
        files_of(tmp_path / "plain")["train/shard_00000.bin"]
        == (files_of(tmp_path / "large")["train/shard_00000.bin"])
    )


@pytest.mark.parametrize("more", [{"dedup": "lines"}, {"dedup": "none", "eot": "before"}])
def test_fields_stay_aligned_when_documents_are_dropped(tmp_path: Path, more: Any) -> None:
    """Documents become empty, are rejected, and have invalid UTF-8 that is dropped."""
    records = [
        {"n": n, "url": f"u{n}", "meta": {"lang": "en"}, "text": f"a repeated line of text\n{n}, "}
        for n in range(200)
    ]
    lines = []
    for n, record in enumerate(records):
        if n % 7 == 0:
            record["text"] = "a repeated line of text"
        line = json.dumps(record).encode()
        lines.append(line.replace(b"line of", b"line\xffof") if n % 5 == 0 else line)
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    for part in (300, 1 << 20):
        out = tmp_path / f"out-{part}"
        options = {"keep_fields": KEEP, "val_fraction": 0.2, "on_bad_text": "drop", **more}
        make(tmp_path / "a.jsonl", out, limits=small(part=part, block=256), **options)
        count = 0
        for tokens in tokenmill.open(out).values():
            for document in tokens.documents or ():
                number = document.metadata["n"]
                assert document.metadata == {"n": number, "url": f"u{number}", "meta.lang": "en"}
                ids = tokens[document.start : document.start + document.length]
                text = bytes(one for one in ids.tolist() if one < 256).decode()
                expected = records[number]["text"]
                assert text.strip() in (expected.strip(), f"{number},")
                assert number % 5
                count += 1
        assert count > 100
        assert not list(tokenmill.verify(out))


def test_a_field_that_no_document_has_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one", "url": "u"}\n{"text": "two"}\n')
    flags = ["--tokenizer", "bytes", "--keep-fields", "url,urll"]
    assert main(["prepare", str(path), "--out", str(tmp_path / "out"), *flags]) == 0
    printed = "".join(capsys.readouterr())
    assert "No document has the field 'urll' of --keep-fields." in printed
    assert "'url' of" not in printed


def test_fields_stay_through_reshard_and_exclusion(tmp_path: Path) -> None:
    records = make_records()
    inputs = write(tmp_path, records)
    make(inputs, tmp_path / "data", **OPTIONS)
    before = check(tmp_path / "data", records)
    tokenmill.reshard(
        tmp_path / "data", tmp_path / "sharded", tokens_per_shard=500, compress="zstd"
    )
    assert check(tmp_path / "sharded", records) == before
    first, second = Manifest.read(tmp_path / "data"), Manifest.read(tmp_path / "sharded")
    assert first.fields == second.fields
    train = tokenmill.open(tmp_path / "data")["train"].documents
    listed = tmp_path / "some.exclude.jsonl"
    listed.write_text("".join(json.dumps({"key": train[n].key}) + "\n" for n in (0, 5, 6, 70)))
    tokenmill.reshard(tmp_path / "data", tmp_path / "without", exclude=[listed])
    assert check(tmp_path / "without", records) == before - 4
    make(inputs, tmp_path / "again", exclude=[listed], **OPTIONS)
    assert Manifest.read(tmp_path / "again").fields == Manifest.read(tmp_path / "without").fields


def test_fields_are_shown_and_dropped_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = make_records(40)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    out = tmp_path / "data"
    make(path, out, keep_fields=KEEP, val_fraction=0)
    document = tokenmill.open(out)["train"].documents[3]
    assert pickle.loads(pickle.dumps(document)).metadata == document.metadata
    shown = f"n: {document.metadata['n']}"
    assert main(["peek", str(out), "--document", "3"]) == 0
    assert shown in capsys.readouterr().out
    assert (
        main(
            [
                "explain",
                str(out),
                "--token",
                str(document.start),
                "--seq-len",
                "8",
                "--batch-size",
                "2",
            ]
        )
        == 0
    )
    assert shown in capsys.readouterr().out
    made = tokenmill.export(out, tmp_path / "exported", to="megatron")
    assert any("url, meta.lang, n" in note for note in made.notes)


def test_a_csv_and_types_of_parquet(tmp_path: Path) -> None:
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "url", "n"], ["one", "u,\n1", "7"]])
    make(tmp_path / "a.csv", tmp_path / "csv", csv="records", keep_fields="n,url,x", val_fraction=0)
    (document,) = tokenmill.open(tmp_path / "csv")["train"].documents
    assert document.metadata == {"n": "7", "url": "u,\n1"}
    moment = datetime.datetime(2020, 1, 2, 3, 4, 5, 678)
    table = pa.table(
        {
            "text": ["one"],
            "d": [datetime.date(2020, 1, 2)],
            "t": pa.array([moment], pa.timestamp("ns")),
            "e": [Decimal("1.50")],
            "f": [float("nan")],
            "b": pa.array(["x"]).dictionary_encode(),
            "m": [{"a": {"b": 2}}],
            "l": [[1, 2]],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    keep = "d,t,e,f,b,m.a.b"
    make(tmp_path / "a.parquet", tmp_path / "types", keep_fields=keep, val_fraction=0)
    (document,) = tokenmill.open(tmp_path / "types")["train"].documents
    assert document.metadata == {
        "d": "2020-01-02",
        "t": "2020-01-02 03:04:05.000678000",
        "e": "1.50",
        "f": None,
        "b": "x",
        "m.a.b": 2,
    }
    with pytest.raises(InputError, match=r"column 'l' holds list<.*`keep_fields` cannot keep"):
        make(tmp_path / "a.parquet", tmp_path / "lists", keep_fields="l")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=1200),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdefgh"), VALUES, max_size=8))
def test_any_values_fit_and_short_ones_stay(values: dict[str, Any]) -> None:
    data = encode_fields(values)
    assert b"\n" not in data
    found = json.loads(data)
    assert found.keys() == values.keys()
    for name, value in values.items():
        if isinstance(value, str):
            assert found[name] == (value if len(value) <= 1000 else f"{value[:1000]}…")
        elif value is None or isinstance(value, bool):
            assert found[name] is value


def test_many_long_values_are_cut(tmp_path: Path) -> None:
    names = [f"field{n}" for n in range(32)]
    record = dict.fromkeys(names, "\x01" * 5000)
    data = keep_fields(record, parse_kept_fields(",".join(names)))
    assert len(data) <= MOST_BYTES
    assert json.loads(data)["field31"] == "\x01" * 100 + "…"
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record | {"text": f"{n}"}) + "\n" for n in range(150)))
    make(path, tmp_path / "data", keep_fields=",".join(names), val_fraction=0)
    documents = tokenmill.open(tmp_path / "data")["train"].documents
    assert documents[149].metadata == json.loads(data)
    assert encode_fields({"a": "\ud800\udcff", "b": 1 << 80}) == b'{"a":"??","b":"%d"}' % (1 << 80)


@pytest.mark.parametrize("keep", ["a,,b", "a,a", ",", ",".join(map(str, range(33)))])
def test_wrong_names_are_refused(tmp_path: Path, keep: str) -> None:
    with pytest.raises(UsageError, match="`keep_fields` is"):
        make(tmp_path, tmp_path / "out", keep_fields=keep)


def test_damaged_fields_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in make_records()))
    out = tmp_path / "data"
    make(path, out, **OPTIONS)
    file = out / "train" / "fields.jsonl.zst"
    good = file.read_bytes()
    for place in (0, 9, len(good) // 2, len(good) - 12, len(good) - 1):
        file.write_bytes(good[:place] + bytes([good[place] ^ 0x55]) + good[place + 1 :])
        (problem,) = tokenmill.verify(out)
        assert problem.file == "train/fields.jsonl.zst"
        documents = tokenmill.open(out)["train"].documents
        for number in range(0, len(documents), 7):
            with contextlib.suppress(DamagedFileError):
                assert isinstance(documents[number].metadata, dict)
    file.write_bytes(good[:-5])
    assert "fields" in str(tokenmill.verify(out)[0])
    with pytest.raises(DamagedFileError, match="is 5 bytes too short"):
        _ = tokenmill.open(out)["train"].documents[0].metadata
