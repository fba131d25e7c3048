"""`prepare` on text that is no UTF-8: named by its place, and dropped or repaired as a whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from in_process import in_process
from naive import (
    END,
    check_dataset,
    encode_bytes,
    make_expected,
)

import tokenmill
from tokenmill.errors import InputError


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
    with in_process(part=500, block=128):
        report = tokenmill.prepare(
            path,
            tmp_path / "out",
            tokenizer="bytes",
            workers=1,
            on_bad_text="drop",
        )
    assert report.parts > 10
    rejected = (tmp_path / "out" / "rejected.jsonl").read_text()
    told = [json.loads(line) for line in rejected.splitlines()]
    places = [at for at in range(len(data)) if data[at] == 0xFF]
    assert [entry["line"] for entry in told] == [data.count(b"\n", 0, at) + 1 for at in places]
    assert [entry["reason"].split(":")[0] for entry in told] == [
        f"invalid UTF-8 at byte {at}" for at in places
    ]
    assert [entry["offset"] for entry in told] == [data.rfind(b"line one", 0, at) for at in places]
    assert report.manifest.ledger["dropped"]["invalid UTF-8"]["documents"] == 5


@pytest.mark.parametrize("on_bad_text", ["drop", "refuse"])
def test_bad_text_in_a_record_is_named_by_its_byte(tmp_path: Path, on_bad_text: str) -> None:
    rows = [b'{"n": %d, "text": "caf\\u00e9 %d"}' % (n, n) for n in range(100)]
    rows[70] = b'{"n": 70, "text": "caf\\u00e9 and caf\xe9"}'
    data = b"\n".join(rows)
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    place = f"invalid UTF-8 at byte {data.index(bytes([0xE9]))}"
    with in_process(part=500, block=128):
        options: dict[str, Any] = {"tokenizer": "bytes", "workers": 1, "on_bad_text": on_bad_text}
        if on_bad_text == "refuse":
            with pytest.raises(InputError, match=place):
                tokenmill.prepare(path, tmp_path / "out", **options)
            return
        tokenmill.prepare(path, tmp_path / "out", **options)
    (told,) = map(json.loads, (tmp_path / "out" / "rejected.jsonl").read_text().splitlines())
    assert told["reason"].startswith(place)
    assert (told["line"], told["offset"]) == (71, data.rfind(b"\n", 0, data.index(b"\xe9")) + 1)


def test_a_giant_with_bad_text_is_dropped_or_repaired_as_a_whole(
    tmp_path: Path, no_flush: None
) -> None:
    giant = b"many words in lines\n" * 200
    bad = giant[:2000] + b" \xff\xfe " + giant[2000:]
    path = tmp_path / "a.txt"
    path.write_bytes(b"<|endoftext|>".join([b"first", bad, b"second", giant]))
    for on_bad_text in ("drop", "repair"):
        out = tmp_path / on_bad_text
        with in_process(part=700, block=128):
            tokenmill.prepare(
                path,
                out,
                tokenizer="bytes",
                workers=1,
                on_bad_text=on_bad_text,
                tokens_per_shard=1000,
            )
        expected = make_expected([path], encode=encode_bytes, eot_id=256, on_bad_text=on_bad_text)
        manifest = check_dataset(out, expected, [path], 1000)
        assert manifest["ledger"]["repaired_documents"] == (on_bad_text == "repair")
    with pytest.raises(InputError, match=r"invalid UTF-8 at byte 2019"), in_process(part=700):
        tokenmill.prepare(
            path, tmp_path / "refuse", tokenizer="bytes", workers=1, on_bad_text="refuse"
        )


def test_a_dropped_giant_does_not_make_a_duplicate_of_a_good_document(tmp_path: Path) -> None:
    bad = b"many words in lines\n" * 100 + b"\xff"
    good = bad.replace(b"\xff", "\ufffd".encode())
    path = tmp_path / "a.txt"
    path.write_bytes(bad + b"<|endoftext|>" + good)
    for part in (1 << 20, 700):
        out = tmp_path / str(part)
        with in_process(part=part, block=128):
            report = tokenmill.prepare(
                path, out, tokenizer="bytes", workers=1, on_bad_text="drop", val_fraction=0
            )
        assert report.manifest.splits["train"].documents == 1
        assert list(report.manifest.ledger["dropped"]) == ["invalid UTF-8"]
