"""Appends that are killed leave the dataset as it was, and end with the bytes of undisturbed ones."""

from __future__ import annotations

import glob
import json
import random
import shutil
import time
from pathlib import Path

import pytest
from runs import contents, kill_all, run, start, wait_until, words

import tokenmill

END = "<|endoftext|>"
MOMENTS = (
    ".work/segments/*.tmp",
    ".work/segments/*.json",
    ".work/marks/*.tmp",
    ".work/fates/*",
    "train/*.tmp",
    ".work/shards/*.json",
    "sources_*.jsonl*",
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four texts, each with some documents of the one before."""
    folder = tmp_path_factory.mktemp("appended")
    for number, (first, last) in enumerate([(0, 60), (40, 100), (80, 480), (460, 500)]):
        made = [words(1500, seed) for seed in range(first, last)]
        (folder / f"{number}.txt").write_text(END.join([*made, "a caf\xe9"]), "latin-1")
    return folder


def command(corpus: Path, out: Path, number: int) -> list[str | Path]:
    settings = ["--tokenizer", "bytes", "--tokens-per-shard", "800000", "--val-fraction", "0.2"]
    more = ["--append"] if number else settings
    return ["prepare", corpus / f"{number}.txt", "--out", out, "--workers", "2", *more]


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, bytes]]:
    """The files of each generation of a dataset that nobody killed."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    states = []
    for number in range(4):
        ended = run(*command(corpus, out, number))
        assert ended.returncode == 0, ended.stderr
        states.append(contents(out))
    assert not [name for name in states[-1] if name.startswith(".work")]
    return states


def documents(folder: Path) -> list[tuple[str, str]]:
    """The split and the text of every document."""
    found = []
    for name, tokens in tokenmill.open(folder).items():
        text = tokens[:]
        for document in tokens.documents:
            ids = text[document.start : document.start + document.length - 1]
            found.append((name, bytes(ids.astype("u1")).decode()))
    return found


def test_undisturbed_appends_equal_sets_of_texts(
    corpus: Path, undisturbed: list[dict[str, bytes]], tmp_path: Path
) -> None:
    seen: dict[str, None] = {}
    for number, state in enumerate(undisturbed):
        text = (corpus / f"{number}.txt").read_bytes().replace(b"\xe9", "\ufffd".encode()).decode()
        seen.update(dict.fromkeys(text.split(END)))
        for name, data in state.items():
            path = tmp_path / str(number) / name
            (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
            if not name.endswith("/"):
                path.write_bytes(data)
        found = documents(tmp_path / str(number))
        assert sorted(text for _, text in found) == sorted(seen)
        order = {text: place for place, text in enumerate(seen)}
        for split in ("train", "val"):
            places = [order[text] for name, text in found if name == split]
            assert places == sorted(places)
            assert places
        manifest = json.loads(state["dataset_metadata.json"])
        assert len(manifest.get("generations", [])) == number


def test_three_appends_killed_at_many_moments_end_with_the_same_bytes(
    corpus: Path, undisturbed: list[dict[str, bytes]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run(*command(corpus, out, 0)).returncode == 0
    rng = random.Random(3)
    moments = {1: MOMENTS[4:5], 2: MOMENTS, 3: MOMENTS[:1]}
    for number in (1, 2, 3):
        before, after = undisturbed[number - 1], undisturbed[number]
        for moment in (*moments[number], None):
            process = start(*command(corpus, out, number))
            if moment is None:
                time.sleep(rng.uniform(0.6, 1.2))
            else:
                wait_until(lambda: _there(out, moment) or process.poll() is not None)  # noqa: B023
            kill_all(process)
            manifest = (out / "dataset_metadata.json").read_bytes()
            state = before if manifest == before["dataset_metadata.json"] else after
            assert manifest == state["dataset_metadata.json"]
            left = contents(out)
            assert all(left.get(name) == data for name, data in state.items())
            assert tokenmill.open(out).manifest.generation in (number, number + 1)
        ended = run(*command(corpus, out, number))
        assert (ended.returncode, contents(out)) == (0, after), ended.stderr


def _there(out: Path, pattern: str) -> bool:
    known = {"sources_2.jsonl", "sources_3.jsonl"}
    found = glob.glob(str(out / pattern), include_hidden=True)
    return any(Path(path).name not in known for path in found)


def test_a_killed_append_can_be_discarded_and_hinders_nobody(
    corpus: Path, undisturbed: list[dict[str, bytes]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run(*command(corpus, out, 0)).returncode == 0
    process = start(*command(corpus, out, 2))
    assert wait_until(lambda: _there(out, ".work/shards/*.json"))
    kill_all(process)
    # The first command, and readers, see the finished dataset, and leave the unfinished work alone.
    left = {
        name: data for name, data in contents(out).items() if not name.endswith(("tmp", "lock"))
    }
    ended = run(*command(corpus, out, 0))
    assert ended.returncode == 0, ended.stderr
    assert "is already finished" in ended.stdout
    assert contents(out).items() >= left.items()
    assert run("verify", out).returncode == 0
    refused = run(*command(corpus, out, 1))
    assert refused.returncode == 1
    assert "unfinished run with different settings or input" in refused.stderr
    ended = run(*command(corpus, out, 1), "--restart")
    assert (ended.returncode, contents(out)) == (0, undisturbed[1]), ended.stderr


def test_an_append_killed_after_its_manifest_is_not_made_twice(
    corpus: Path, undisturbed: list[dict[str, bytes]], tmp_path: Path
) -> None:
    """Its work is still there, with its plan, as a kill before the removal leaves it."""
    out, copy = tmp_path / "out", tmp_path / "copy"
    assert run(*command(corpus, out, 0)).returncode == 0
    process = start(*command(corpus, out, 1))
    assert wait_until(lambda: _there(out, ".work/shards/*.json"))
    kill_all(process)
    shutil.copytree(out / ".work", copy)
    assert run(*command(corpus, out, 1)).returncode == 0
    shutil.copytree(copy, out / ".work")
    ended = run(*command(corpus, out, 1))
    assert "has this input already" in ended.stdout
    assert (ended.returncode, contents(out)) == (0, undisturbed[1]), ended.stderr
    shutil.copytree(copy, out / ".work")
    ended = run(*command(corpus, out, 2))
    assert (ended.returncode, contents(out)) == (0, undisturbed[2]), ended.stderr
