"""`prepare` on text that is not UTF-8: positions are named, documents dropped or repaired whole."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from naive import (
    END,
    check_dataset,
    encode_bytes,
    make_expected,
)
from preparing import make, small

from tokenmill.errors import InputError
from tokenmill.preparation.part import PartTask
from tokenmill.preparation.plan import make_plan
from tokenmill.preparation.texts import clean_chunk


@pytest.fixture
def no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk is most of the time that tiny shards take."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def test_rejected_texts_are_named_by_line_and_place_also_in_late_parts(tmp_path: Path) -> None:
    documents = [f"line one of {n}\nline two\nline three".encode() for n in range(200)]
    for number in (0, 3, 77, 150, 199):
        documents[number] = documents[number].replace(b"two", b"tw\xff")
    data = END.join(documents)
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    report = make(path, tmp_path / "out", limits=small(part=500, block=128), on_bad_text="drop")
    assert report.parts > 10
    rejected = (tmp_path / "out" / "rejected.jsonl").read_text()
    listed = [json.loads(line) for line in rejected.splitlines()]
    places = [at for at in range(len(data)) if data[at] == 0xFF]
    assert [entry["line"] for entry in listed] == [data.count(b"\n", 0, at) + 1 for at in places]
    assert [entry["reason"].split(":")[0] for entry in listed] == [
        f"invalid UTF-8 at byte {at}" for at in places
    ]
    assert [entry["offset"] for entry in listed] == [
        data.rfind(b"line one", 0, at) for at in places
    ]
    assert report.manifest.ledger["dropped"]["invalid UTF-8"]["documents"] == 5


@pytest.mark.parametrize("on_bad_text", ["drop", "refuse"])
def test_bad_text_in_a_record_is_named_by_its_byte(tmp_path: Path, on_bad_text: str) -> None:
    rows = [b'{"n": %d, "text": "caf\\u00e9 %d"}' % (n, n) for n in range(100)]
    rows[70] = b'{"n": 70, "text": "caf\\u00e9 and caf\xe9"}'
    data = b"\n".join(rows)
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    place = f"invalid UTF-8 at byte {data.index(bytes([0xE9]))}"
    options: dict[str, Any] = {"on_bad_text": on_bad_text, "limits": small(part=500, block=128)}
    if on_bad_text == "refuse":
        with pytest.raises(InputError, match=place):
            make(path, tmp_path / "out", **options)
        return
    make(path, tmp_path / "out", **options)
    (listed,) = map(json.loads, (tmp_path / "out" / "rejected.jsonl").read_text().splitlines())
    assert listed["reason"].startswith(place)
    assert (listed["line"], listed["offset"]) == (71, data.rfind(b"\n", 0, data.index(b"\xe9")) + 1)


def test_a_giant_with_bad_text_is_dropped_or_repaired_as_a_whole(
    tmp_path: Path, no_flush: None
) -> None:
    giant = b"many words in lines\n" * 200
    bad = giant[:2000] + b" \xff\xfe " + giant[2000:]
    path = tmp_path / "a.txt"
    path.write_bytes(b"<|endoftext|>".join([b"first", bad, b"second", giant]))
    for on_bad_text in ("drop", "repair"):
        out = tmp_path / on_bad_text
        limits = small(part=700, block=128)
        make(path, out, limits=limits, on_bad_text=on_bad_text, tokens_per_shard=1000)
        expected = make_expected([path], encode=encode_bytes, eot_id=256, on_bad_text=on_bad_text)
        manifest = check_dataset(out, expected, [path], 1000)
        assert manifest["ledger"]["repaired_documents"] == (on_bad_text == "repair")
    with pytest.raises(InputError, match=r"invalid UTF-8 at byte 2019"):
        make(path, tmp_path / "refuse", limits=small(part=700), on_bad_text="refuse")


def test_a_dropped_giant_does_not_make_a_duplicate_of_a_good_document(tmp_path: Path) -> None:
    bad = b"many words in lines\n" * 100 + b"\xff"
    good = bad.replace(b"\xff", "\ufffd".encode())
    path = tmp_path / "a.txt"
    path.write_bytes(bad + b"<|endoftext|>" + good)
    for part in (1 << 20, 700):
        out = tmp_path / str(part)
        limits = small(part=part, block=128)
        report = make(path, out, limits=limits, on_bad_text="drop", val_fraction=0)
        assert report.manifest.splits["train"].documents == 1
        assert list(report.manifest.ledger["dropped"]) == ["invalid UTF-8"]


def list_repairs(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "repaired.jsonl").read_text().splitlines()]


def replaced_bytes(data: bytes) -> int:
    """How many bytes are in no valid sequence, by another way than the code under test."""
    valid = data.decode("utf-8", "ignore").encode()
    return len(data) - len(valid)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl"])
@pytest.mark.parametrize(("part", "block"), [(16 << 20, 4 << 20), (500, 128)])
def test_repaired_documents_are_listed_with_their_places(
    tmp_path: Path, no_flush: None, name: str, part: int, block: int
) -> None:
    documents = [f"line one of {n}\nline two\nline three".encode() for n in range(200)]
    documents[30] = b"words of a giant \xef\xbf\xbd\n" * 90  # U+FFFD is there already
    documents[31] = b"and more words\n" * 90 + b"at the \xfe\xff end"
    for number in (0, 3, 30, 77, 199):
        documents[number] = documents[number][:22] + b"\xff\xc3" + documents[number][22:]
    documents[78] = documents[77]  # a duplicate is not kept, and not listed
    if name == "a.jsonl":
        rows = [b'{"text": "%s"}' % text.replace(b"\n", b"\\n") for text in documents]
        data = b"\n".join(rows)
    else:
        rows, data = documents, END.join(documents)
    width = 1 if name == "a.jsonl" else len(END)
    starts = [sum(map(len, rows[:n])) + width * n for n in range(len(rows))]
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    report = make(path, tmp_path / "out", limits=small(part=part, block=block))
    expected = []
    for number in (0, 3, 30, 31, 77, 199):
        row, start = rows[number], starts[number]
        bad = start + next(i for i, c in enumerate(row) if c in b"\xff\xfe")
        expected.append(
            {
                "source": str(path),
                "line": data.count(b"\n", 0, bad) + 1,
                "offset": start,
                "replaced_bytes": replaced_bytes(row),
            }
        )
    found = list_repairs(tmp_path / "out")
    if name == "a.jsonl" and block == 128:  # a record of many blocks has lost its line
        for entry, wanted in zip(found, expected, strict=True):
            assert entry["line"] in (None, wanted["line"])
            wanted["line"] = entry["line"]
    assert found == expected
    assert report.manifest.ledger["repaired_documents"] == len(found)


def test_repaired_rows_are_listed_and_valid_input_has_no_list(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    column = pa.array([b"good", b"caf\xe9", None, b"\xff"], pa.binary())
    pq.write_table(pa.table({"text": column}), path)
    make(path, tmp_path / "out", val_fraction=0)
    make(path, tmp_path / "drop", on_bad_text="drop", val_fraction=0)
    assert list_repairs(tmp_path / "out") == [
        {"source": str(path), "row": 1, "replaced_bytes": 1},
        {"source": str(path), "row": 3, "replaced_bytes": 1},
    ]
    assert not (tmp_path / "drop" / "repaired.jsonl").exists()


GERMAN = "Die Straße führt über die Brücke, sagte der Müller. Größe und Höhe ändern sich. "
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"


def test_files_in_another_encoding_are_named_with_a_guess(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_bytes((GERMAN * 9).encode("latin-1"))
    (texts / "b.txt").write_bytes((GERMAN * 200).encode() + b" one \xff byte")
    (texts / "c.txt.gz").write_bytes(gzip.compress((JAPANESE * 9).encode("shift_jis")))
    rows = [b'{"text": "%d words of German"}' % n for n in range(90)]
    rows[50:] = [b'{"text": "%s"}' % (GERMAN * n).encode("cp1252") for n in range(40)]
    (texts / "d.jsonl").write_bytes(b"\n".join(rows))
    (texts / "e.txt").write_text(GERMAN)
    report = make(texts, tmp_path / "out")
    ledger = report.manifest.ledger
    listed = ledger["other_encodings"]
    assert listed["files"] == 3
    assert [(Path(entry["source"]).name, entry["encoding"]) for entry in listed["examples"]] == [
        ("a.txt", "WINDOWS-1252"),
        ("c.txt.gz", "SHIFT_JIS"),
        ("d.jsonl", "WINDOWS-1252"),
    ]
    first = listed["examples"][0]
    assert first["bytes"] == len((GERMAN * 9).encode("latin-1"))
    assert first["replaced_bytes"] == 9 * sum(character > "\x7f" for character in GERMAN)
    assert {Path(entry["source"]).name for entry in list_repairs(tmp_path / "out")} == {
        "a.txt", "b.txt", "c.txt.gz", "d.jsonl",
    }  # fmt: skip


def test_many_bad_records_in_a_block_take_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "caf\xe9"}\n' * 60_000)
    started = time.process_time()
    for on_bad_text in ("repair", "drop"):
        out = tmp_path / "out"
        plan = make_plan(path, out, tokenizer="bytes", workers=1, on_bad_text=on_bad_text)
        part = plan.parts[0]
        for chunk in PartTask.of(plan, part, tmp_path).read(part.ranges[0]):
            clean_chunk(chunk, plan.settings, plan.sources[0])
    assert time.process_time() - started < 5
