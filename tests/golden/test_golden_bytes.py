"""Shards, tables, exports and batches have the bytes that they had when the fixtures were made."""

from __future__ import annotations

import json
from pathlib import Path

from fixtures import FORMATS, LOADERS, PREPARED, make_golden

GOLDEN = json.loads((Path(__file__).parent / "bytes.json").read_text())


def test_bytes_match_the_fixtures(tmp_path):
    made = make_golden(tmp_path)
    for kind, expected in GOLDEN.items():
        assert made[kind] == expected, kind


def test_fixtures_cover_every_case():
    assert GOLDEN["prepared"].keys() == PREPARED.keys()
    assert GOLDEN["exported"].keys() == set(FORMATS)
    assert GOLDEN["batches"].keys() == {*LOADERS, "mixture"}
    assert all(len(files) >= 3 for files in GOLDEN["prepared"].values())
    assert all(GOLDEN["exported"].values())
