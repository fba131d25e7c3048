"""`dedup="near"`: what is removed, next to sets of words and all pairs of documents."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import naive_near
import pytest
import zstandard
from preparing import (
    InProcessEngine,
    assert_same_files,
    make,
    make_in_workers,
    small,
)

import tokenmill
from tokenmill.dataset.verify import verify
from tokenmill.errors import UsageError, WorkError
from tokenmill.preparation.engine import Progress, Task
from tokenmill.preparation.pack import CheckShard
from tokenmill.preparation.plan import Limits
from tokenmill.preparation.segment import CheckBundle
from tokenmill.preparation.spanning import HashDocuments

OPTIONS: dict[str, Any] = {"dedup": "near", "val_fraction": 0.1, "tokens_per_shard": 20_000}
_LETTERS = (
    "abcdefghijklmnopqrstuvwxyz",
    "абвгдежзиклмнопрст",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "कखगघचछजझटठडढतथदध",
    "أبتثجحخدذرزسش",
)
_ALONE = ("的一是不了人我在有他这中大来上国个到说们为子", "กขคงจฉชซญดตถทนบปผพฟมยรลวสหอ")


def make_texts(count: int, seed: int) -> list[str]:
    """Texts in many scripts: some alone, some with edited copies, reordered copies or repeats."""
    chance = random.Random(seed)
    footer = " ".join(f"notice{n % 7} of the site {n}" for n in range(12))
    found = []
    for number in range(count):
        size = chance.choice([3, 7, 12, 30, 80, 130, 300, 900])
        if number % 4:
            letters = _LETTERS[number % len(_LETTERS)]
            words = ["".join(chance.choices(letters, k=chance.randint(2, 7))) for _ in range(size)]
            join = " ".join
        else:
            words = chance.choices(_ALONE[number % 8 // 4], k=size)
            join = "".join
        versions = [words]
        for _ in range(chance.choice([0, 0, 1, 3])):
            copy = list(chance.choice(versions))
            for _ in range(chance.randint(0, 1 + len(copy) // 30)):
                place = chance.randrange(len(copy))
                copy[place : place + chance.randint(0, 2)] = chance.choices(words, k=2)
            if chance.random() < 0.2:
                middle = len(copy) // 2
                copy = copy[middle:] + copy[:middle]
            versions.append(copy)
        mark = chance.choice([". ", "\n", "! ", "\n\n"])
        found += [join(copy).capitalize() + mark + footer * (number % 9 == 0) for copy in versions]
    chance.shuffle(found)
    return [text.strip() for text in found]


def write(folder: Path, texts: Sequence[str], files: int = 2) -> list[Path]:
    paths = [folder / f"{number}.jsonl" for number in range(files)]
    size = -(-len(texts) // files)
    for number, path in enumerate(paths):
        some = texts[number * size : (number + 1) * size]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    return paths


def read_removed(out: Path) -> list[dict[str, Any]]:
    data = (out / "removed.jsonl.zst").read_bytes()
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
        return [json.loads(line) for line in stream.read().splitlines()]


def number_documents(paths: Sequence[Path]) -> dict[tuple[str, int], int]:
    """The number of each document in the input, by its file and offset."""
    places, number = {}, 0
    for path in paths:
        offset = 0
        for line in path.read_bytes().splitlines(keepends=True):
            places[str(path), offset] = number
            offset += len(line)
            number += 1
    return places


def place_of(entry: dict[str, Any]) -> tuple[str, int]:
    return entry["source"], entry["offset"]


def documents_of(out: Path) -> dict[tuple[str, int], str]:
    """The kept documents, as the source and offset of each with its key."""
    return {
        (document.source.path, document.offset): document.key
        for tokens in tokenmill.open(out).values()
        for document in tokens.documents
    }


@pytest.mark.parametrize("threshold", [0.8, 0.5])
def test_removes_what_resembles_an_earlier_document_that_stays(
    tmp_path: Path, threshold: float
) -> None:
    texts = make_texts(250, seed=int(10 * threshold))
    paths = write(tmp_path, texts)
    report = make(paths, tmp_path / "out", near_threshold=threshold, **OPTIONS)
    expected = naive_near.choose(texts, threshold)
    places = number_documents(paths)
    kept = {places[place]: key for place, key in documents_of(tmp_path / "out").items()}
    removed = read_removed(tmp_path / "out")
    for entry in removed:
        one, other = places[place_of(entry)], places[place_of(entry["resembles"])]
        sets = naive_near.shingles(texts[one]), naive_near.shingles(texts[other])
        assert other < one
        assert entry["similarity"] == round(naive_near.jaccard(*sets), 6) >= threshold
        assert kept[other] == entry["resembles"]["key"]
        assert one not in kept
    near = {number for number, other in expected.items() if other is not None}
    assert {places[place_of(entry)] for entry in removed} == near
    assert len(near) > 40
    dropped = report.manifest.ledger["dropped"]
    assert dropped["near duplicate"]["documents"] == len(near)
    assert dropped["duplicate"]["documents"] == len(expected) - len(near) > 10
    assert set(kept) == set(range(len(texts))) - set(expected)
    assert report.manifest.settings["near_threshold"] == threshold
    assert not verify(tmp_path / "out")


def test_no_chain_removes_a_document_that_resembles_nothing_kept(tmp_path: Path) -> None:
    chance = random.Random(1)
    words = [f"word{chance.random()}" for _ in range(200)]
    texts = []
    for _ in range(40):  # each text is similar to the next, and to few others
        texts.append(" ".join(words))
        words = words[8:] + [f"word{chance.random()}" for _ in range(8)]
    expected = naive_near.choose(texts, 0.8)
    assert 10 < len(expected) < 30
    make(write(tmp_path, texts), tmp_path / "out", **OPTIONS)
    places = number_documents(sorted(tmp_path.glob("*.jsonl")))
    assert {places[place_of(entry)] for entry in read_removed(tmp_path / "out")} == set(expected)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path]:
    """Files with documents that span parts, and the dataset made from them in one part."""
    folder = tmp_path_factory.mktemp("mixed")
    texts = make_texts(60, seed=3)
    long = " ".join(f"Zahl{n * n % 7919}" for n in range(3000))
    changed = long.replace("Zahl49 ", "")
    paths = write(folder, texts, files=1)
    plain = folder / "plain.txt"
    plain.write_text("<|endoftext|>".join([long, texts[0], changed, texts[1][:-9], long, changed]))
    paths.append(plain)
    make(paths, folder / "one", **OPTIONS)
    removed = [place_of(entry) for entry in read_removed(folder / "one")]
    assert (str(plain), len(long) + len(texts[0].encode()) + 26) in removed
    return paths, folder / "one"


LIMITS = [
    small(part=9000, block=500),
    small(part=30_000, keys=60),
    Limits(part_bytes=2000, records=3),
]


@pytest.mark.parametrize("limits", LIMITS)
def test_parts_and_memory_change_no_byte(
    mixed: tuple[list[Path], Path], tmp_path: Path, limits: Limits
) -> None:
    paths, expected = mixed
    report = make(paths, tmp_path / "out", limits=limits, **OPTIONS)
    assert report.parts > 3
    same = [path.read_bytes() for path in sorted(expected.glob("*/shard_*"))]
    assert [path.read_bytes() for path in sorted(tmp_path.glob("out/*/shard_*"))] == same
    assert read_removed(tmp_path / "out") == read_removed(expected)


def test_workers_change_no_byte(mixed: tuple[list[Path], Path], tmp_path: Path) -> None:
    for workers in (1, 3):
        options = {**OPTIONS, "limits": LIMITS[1], "workers": workers}
        make_in_workers(mixed[0], tmp_path / str(workers), **options)
    assert_same_files(tmp_path / "1", tmp_path / "3")


def test_which_documents_go_does_not_depend_on_the_tokenizer(
    mixed: tuple[list[Path], Path], tmp_path: Path
) -> None:
    make(mixed[0], tmp_path / "out", tokenizer="gpt2", **OPTIONS)
    assert read_removed(tmp_path / "out") == read_removed(mixed[1])
    assert documents_of(tmp_path / "out") == documents_of(mixed[1])


def test_excluded_documents_remove_nothing(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(100)]
    texts = [" ".join([*words, last]) for last in ("one", "two", "three")]
    (source,) = write(tmp_path, texts, files=1)
    make(source, tmp_path / "all", **{**OPTIONS, "val_fraction": 0})
    (key,) = documents_of(tmp_path / "all").values()
    listed = tmp_path / "list.jsonl"
    listed.write_text(json.dumps({"key": key}) + "\n")
    report = make(source, tmp_path / "out", exclude=[listed], **OPTIONS)
    (entry,) = read_removed(tmp_path / "out")
    assert entry["resembles"]["offset"] == len(json.dumps({"text": texts[0]})) + 1
    assert set(report.manifest.ledger["dropped"]) == {"excluded", "near duplicate"}


class Stopping(InProcessEngine):
    """Stops after some tasks, as a kill would, and counts the tasks."""

    left = 0

    def run(self, tasks: Sequence[Task], progress: Progress) -> Iterator[tuple[int, Any]]:
        for result in super().run(tasks, progress):
            if not isinstance(tasks[result[0]], (CheckBundle, CheckShard, HashDocuments)):
                Stopping.left -= 1
            if Stopping.left < 0:
                raise WorkError("stopped")
            yield result


def test_a_run_stopped_at_any_task_resumes_with_the_same_bytes(
    mixed: tuple[list[Path], Path], tmp_path: Path
) -> None:
    limits = small(part=40_000)
    make(mixed[0], tmp_path / "whole", limits=limits, **OPTIONS)
    stops = 0
    while stops < 200:
        Stopping.left = 9
        try:
            make(mixed[0], tmp_path / "out", limits=limits, start=Stopping, **OPTIONS)
            break
        except WorkError:
            stops += 1
            damage(tmp_path / "out" / ".work", stops)
    assert stops > 10
    assert_same_files(tmp_path / "whole", tmp_path / "out")


def damage(work: Path, number: int) -> None:
    """Change a byte of one of the files, as a power loss may."""
    files = sorted(path for path in work.glob("*/*") if path.stat().st_size)
    if number % 8 == 0:
        path = files[number * 7 % len(files)]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from preparing import make_in_workers, small
from test_near import LIMITS, OPTIONS
make_in_workers(sys.argv[3:], Path(sys.argv[2]), limits=LIMITS[1], **{**OPTIONS, "workers": 2})
"""


def test_a_killed_run_ends_with_the_same_bytes(
    mixed: tuple[list[Path], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", _PROGRAM, str(Path(__file__).parent), str(out)]
    for ending in ("sets", "bands", "pairs", "edges", "gone", "fates"):
        process = subprocess.Popen([*command, *map(str, mixed[0])])
        while process.poll() is None and not any(out.glob(f".work/*/*.{ending}")):
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    subprocess.run([*command, *map(str, mixed[0])], check=True)
    make(mixed[0], tmp_path / "whole", limits=LIMITS[1], **OPTIONS)
    assert_same_files(tmp_path / "whole", out)


def test_settings_without_near_do_not_mention_the_threshold(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    report = make(tmp_path / "a.txt", tmp_path / "out", val_fraction=0)
    assert "near_threshold" not in report.manifest.settings
    with pytest.raises(UsageError, match=r"`near_threshold` is 1.5; it must be"):
        make(tmp_path / "a.txt", tmp_path / "out", near_threshold=1.5)
