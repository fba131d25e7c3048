"""Judges of documents: the same fate for any cut of the input, a ledger that adds up, examples."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from inputs import make_inputs
from naive import check_dataset, encode_bytes, make_expected
from preparing import InProcessEngine, assert_same_files, small

from tokenmill.preparation import judges
from tokenmill.preparation.judges import Judge, Panel, Verdicts, cut_between_characters
from tokenmill.preparation.plan import make_plan
from tokenmill.preparation.prepare import Report, run_plan, start_engine
from tokenmill.preparation.texts import Texts
from tokenmill.progress import Nobody

REASONS = ("begins with a letter", "long")


@dataclass(frozen=True)
class Strict:
    """Makes a judge of the first bytes and of the number of bytes."""

    reasons: tuple[str, ...] = REASONS

    def make(self) -> Judge:
        return _Strict()


class _Strict(Judge):
    reasons = REASONS

    def judge(self, texts: Texts) -> Verdicts:
        found = [verdict_of(text) for text in texts.texts]
        numbers = np.array([REASONS.index(one) + 1 if one else 0 for one in found], np.uint16)
        return Verdicts(
            numbers=numbers, values=list(map(len, texts.texts)), counts={"seen": len(found)}
        )


@dataclass(frozen=True)
class Shout:
    """Makes a judge that drops nothing and changes texts."""

    reasons: tuple[str, ...] = ()

    def make(self) -> Judge:
        return _Shout()


class _Shout(Judge):
    reasons = ()

    def judge(self, texts: Texts) -> Verdicts:
        changed = [text.upper() for text in texts.texts]
        facts = texts.offsets, texts.sizes, texts.marks
        return Verdicts(numbers=np.zeros(len(changed), np.uint16), texts=Texts.of(changed, *facts))


def verdict_of(text: bytes) -> str | None:
    if text[:1] == b"w":
        return REASONS[0]
    return REASONS[1] if len(text) > 700 else None


def run(
    paths: Sequence[Path], out: Path, *recipes: Any, start: Any = InProcessEngine, **more: Any
) -> Report:
    plan = make_plan(paths, out, tokenizer="bytes", **{"workers": 1, **more})
    return run_plan(replace(plan, judges=recipes), out, Nobody(), start=start)


@pytest.mark.parametrize("seed", range(30))
def test_the_result_is_that_of_judging_whole_documents(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    (tmp_path / "in").mkdir()
    paths = sorted(make_inputs(tmp_path / "in", chance, short_lines=True))
    out, options = tmp_path / "out", {"dedup": chance.choice(["documents", "lines", "none"])}
    limits = small(part=chance.choice([100, 900, 1 << 20]), block=chance.choice([64, 300, 1 << 20]))
    paths.append(tmp_path / "z.txt")
    paths[-1].write_text("is kept")
    run(paths, out, Strict(), limits=limits, **options)
    expected = make_expected(
        paths,
        encode=encode_bytes,
        eot_id=256,
        judge=lambda text: verdict_of(text) or text,
        **options,
    )
    manifest = check_dataset(out, expected, paths, 100_000_000)
    dropped = expected.dropped
    listed = [json.loads(line) for line in _read(out / "dropped.jsonl")]
    for reason in REASONS:
        examples = [one for one in listed if one["reason"] == reason]
        assert bool(examples) == (reason in dropped)
        assert len(examples) <= min(20, dropped.get(reason, [0])[0])
        keys = [one["key"] for one in examples]
        assert keys == sorted(set(keys))
    assert manifest["ledger"].get("counts", {}).get("seen", 0) > 0


def _read(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_workers_and_parts_change_nothing(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    documents = [f"{'w' if n % 3 else 'a'}{n} " * (n % 7 + 1) for n in range(900)]
    documents[5] = documents[6] = "w" + "word and word\n" * 9000
    text.write_text("<|endoftext|>".join(documents))
    run([text], tmp_path / "one", Strict(), limits=small(part=4000, block=512))
    run(
        [text],
        tmp_path / "two",
        Strict(),
        limits=small(part=9000, block=700),
        workers=3,
        start=start_engine,
    )
    assert_same_files(tmp_path / "one", tmp_path / "two")
    listed = [json.loads(line) for line in _read(tmp_path / "one" / "dropped.jsonl")]
    texts = {one.strip().encode() for one in documents if one[0] == "w"}
    keys = sorted(map(xxhash.xxh3_128_hexdigest, texts))
    assert [one["key"] for one in listed if one["reason"] == REASONS[0]] == keys[:20]
    for one in listed:
        assert text.read_text()[one["offset"] :].startswith(one["text"][:5])


def test_a_long_text_is_judged_by_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "JUDGED", 800)
    texts = [b"x" * 500, "é".encode() * 401, b"w" + b"x" * 900, b"y" * 750, b"z"]
    chunk = Texts.of(texts, list(range(5)), np.array(list(map(len, texts))), None)
    judged = Panel([Shout(), Strict()]).judge(chunk)
    assert judged.numbers.tolist() == [0, 2, 1, 2, 0]
    assert judged.values == {1: 800, 2: 800, 3: 750}
    assert judged.kept.texts == [b"X" * 500, b"Z"]
    hearing = Panel([Shout(), Strict()]).begin()
    for byte in texts[1]:
        hearing.add(bytes([byte]))
    assert (hearing.finish().number, hearing.finish().value) == (2, 800)


def test_a_long_text_that_stays_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "JUDGED", 3)
    texts = Texts.of([b"ab", b"abcd", b"cd"], [0, 1, 2], np.array([2, 4, 2]), None)
    assert Panel([Shout()]).judge(texts).kept.texts == [b"AB", b"abcd", b"CD"]


def test_cuts_are_between_characters() -> None:
    text = "aé日🙂".encode()
    for end in range(len(text) + 1):
        assert cut_between_characters(text[:end]).decode() == text[:end].decode(errors="ignore")
