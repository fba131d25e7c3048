"""Runs that are killed, at any moment and in any way, end with the bytes of one that was not."""

from __future__ import annotations

import glob
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import (
    contents,
    kill_all,
    make_corpus,
    members,
    run,
    start,
    temporaries,
    wait_until,
    workers,
)

DEDUPS = ("documents", "lines")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("killed") / "texts")


def command(corpus: Path, out: Path, dedup: str) -> list[str | Path]:
    settings = ["--tokenizer", "bytes", "--tokens-per-shard", "3000000", "--workers", "2"]
    return ["prepare", corpus, "--out", out, "--dedup", dedup, "--val-fraction", "0.2", *settings]


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """The results of each kind of run without interruption."""
    made = {}
    for dedup in DEDUPS:
        out = tmp_path_factory.mktemp("undisturbed") / dedup
        assert run(*command(corpus, out, dedup)).returncode == 0
        made[dedup] = contents(out)
        assert len(made[dedup]) > 8
        assert made[dedup]["repaired.jsonl"].count(b"\n") == 6
    return made


@pytest.mark.parametrize("dedup", DEDUPS)
def test_killed_at_random_moments_ends_with_the_same_bytes(
    corpus: Path, undisturbed: dict[str, dict], tmp_path: Path, dedup: str
) -> None:
    out = tmp_path / "out"
    rng = random.Random(dedup)
    for _ in range(4):
        process = start(*command(corpus, out, dedup))
        time.sleep(rng.uniform(0.5, 1.6))
        kill_all(process)
    ended = run(*command(corpus, out, dedup))
    assert (ended.returncode, contents(out)) == (0, undisturbed[dedup]), ended.stderr


def _some(pattern: str) -> Callable[[Path], bool]:
    return lambda out: bool(glob.glob(str(out / pattern), include_hidden=True, recursive=True))


MOMENTS = {
    "first segment is half-way": _some(".work/segments/*.tmp"),
    "first segment is there": _some(".work/segments/*.json"),
    "repeats are being marked": _some(".work/marks/*.tmp"),
    "fates are being written": _some(".work/fates/*"),
    "first shard is half-way": _some("train/*.tmp"),
    "first shard is there": _some(".work/shards/*.json"),
    "manifest is there": _some("dataset_metadata.json"),
}


def test_killed_in_every_stage_ends_with_the_same_bytes(
    corpus: Path, undisturbed: dict[str, dict], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for reached in MOMENTS.values():
        process = start(*command(corpus, out, "documents"))
        wait_until(lambda: reached(out) or process.poll() is not None)  # noqa: B023
        kill_all(process)
    ended = run(*command(corpus, out, "documents"))
    assert (ended.returncode, contents(out)) == (0, undisturbed["documents"]), ended.stderr


@pytest.mark.parametrize("dedup", DEDUPS)
def test_workers_end_with_their_parent_and_an_immediate_restart_is_correct(
    corpus: Path, undisturbed: dict[str, dict], tmp_path: Path, dedup: str
) -> None:
    out = tmp_path / "out"
    process = start(*command(corpus, out, dedup))
    assert wait_until(lambda: _some(".work/segments/*.json")(out))
    assert workers(process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    ended = run(*command(corpus, out, dedup))
    assert (ended.returncode, contents(out)) == (0, undisturbed[dedup]), ended.stderr
    assert not members(process.pid)
    process.communicate()


def test_workers_are_gone_within_two_seconds_of_their_parent(corpus: Path, tmp_path: Path) -> None:
    process = start(*command(corpus, tmp_path / "out", "documents"))
    assert wait_until(lambda: len(workers(process)) == 2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: not members(process.pid), 2.0)
    process.communicate()


def test_a_killed_worker_is_reported_and_the_same_command_resumes(
    corpus: Path, undisturbed: dict[str, dict], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(*command(corpus, out, "documents"))
    assert wait_until(lambda: _some(".work/segments/*.json")(out))
    os.kill(workers(process)[0], signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "A worker was killed" in said
    assert "with --workers 1 and --memory 301989888. The run resumes where it stopped" in said
    assert "Traceback" not in said
    assert not members(process.pid)
    ended = run(*command(corpus, out, "documents"))
    assert ": skipping " in ended.stderr
    assert ", done by an earlier run." in ended.stderr
    assert (ended.returncode, contents(out)) == (0, undisturbed["documents"]), ended.stderr


def test_a_worker_killed_while_it_starts_is_reported(corpus: Path, tmp_path: Path) -> None:
    process = start(*command(corpus, tmp_path / "out", "documents"))
    assert wait_until(lambda: len(workers(process)) >= 1)
    os.kill(workers(process)[0], signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "A worker was killed" in said


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_killed_while_removing_its_work_files_is_finished_by_the_same_command(
    corpus: Path, undisturbed: dict[str, dict], tmp_path: Path, whole: bool
) -> None:
    out = tmp_path / "out"
    assert run(*command(corpus, out, "documents")).returncode == 0
    scaffolding = out / ".work" / "segments"
    scaffolding.mkdir(parents=True)
    if whole:
        (out / ".work" / "lock").write_text("1")
        (out / ".work" / "plan.json").write_text("{}")
    (scaffolding / "0123.tokens").write_bytes(b"left")
    ended = run(*command(corpus, out, "documents"))
    assert ended.returncode == 0, ended.stderr
    assert "is already finished" in ended.stdout
    assert contents(out) == undisturbed["documents"]


def _truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _erase(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _flip_a_fact(path: Path) -> None:
    data = path.read_bytes()
    at = data.index(b'"documents_in":') + len(b'"documents_in":')
    path.write_bytes(data[:at] + b"7" + data[at:])


DAMAGES = {
    "tokens cut short": ("*.tokens", _truncate),
    "tokens flipped": ("*.tokens", _flip),
    "tokens erased": ("*.tokens", _erase),
    "documents flipped": ("*.docs", _flip),
    "documents lost": ("*.docs", Path.unlink),
    "receipt cut short": ("*.json", _truncate),
    "receipt erased": ("*.json", _erase),
    "receipt altered": ("*.json", _flip_a_fact),
}


@pytest.mark.parametrize("first", range(0, len(DAMAGES), 3))
def test_damage_from_a_power_loss_is_noticed_and_repaired(
    corpus: Path, undisturbed: dict[str, dict], tmp_path: Path, first: int
) -> None:
    """Three damages at once, because the corpus has three parts."""
    out = tmp_path / "out"
    process = start(*command(corpus, out, "documents"))
    assert wait_until(lambda: _some(".work/shards/*.json")(out))
    kill_all(process)
    segments = out / ".work" / "segments"
    assert len(list(segments.glob("*.json"))) == 3
    for number, (pattern, damage) in enumerate(list(DAMAGES.values())[first : first + 3]):
        damage(sorted(segments.glob(pattern))[number])
    ended = run(*command(corpus, out, "documents"))
    assert (ended.returncode, contents(out)) == (0, undisturbed["documents"]), ended.stderr


def test_a_killed_restart_is_not_mistaken_for_a_finished_run(
    corpus: Path, undisturbed: dict[str, dict], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run(*command(corpus, out, "documents")).returncode == 0
    # Slow down the discarding, so that there is something to kill.
    for i in range(8_000):
        (out / "train" / f"shard_extra{i}").touch()
    process = start(*command(corpus, out, "documents"), "--restart")
    assert wait_until(lambda: len(os.listdir(out / "train")) < 8_000)
    kill_all(process)
    ended = run(*command(corpus, out, "documents"))
    assert (ended.returncode, contents(out)) == (0, undisturbed["documents"]), ended.stderr


def test_nothing_half_written_stays_in_a_finished_dataset(tmp_path: Path) -> None:
    """A kill while the list of rejected records was written leaves a file of another process."""
    text = tmp_path / "x.jsonl"
    text.write_text('{"text": "kept"}\nnonsense\n')
    out = tmp_path / "out"
    arguments = ("prepare", text, "--out", out, "--tokenizer", "bytes")
    assert run(*arguments).returncode == 0
    wanted = contents(out)
    (out / "dataset_metadata.json").unlink()
    (out / ".work").mkdir()
    (out / "rejected.jsonl.4194303.tmp").write_text("half of i")
    (out / "tokenizer_state.json.4194303.tmp").write_text("half of i")
    (out / "train" / "shard_00000.bin.4194303.tmp").write_text("half of i")
    assert run(*arguments).returncode == 0
    assert contents(out) == wanted


def test_a_killed_pretokenize_leaves_nothing_beside_the_text(tmp_path: Path) -> None:
    text = tmp_path / "x.txt"
    text.write_text("some words of text\n" * 500_000)
    arguments = ("pretokenize", text, "--tokenizer", "bytes", "--dtype", "int64")
    assert run(*arguments).returncode == 0
    wanted = contents(tmp_path)
    (tmp_path / "x.npy").unlink()
    moments = [".x.npy.work/.work/segments/*.tokens*", ".x.npy.work/dataset_metadata.json", "*.npy"]
    for moment in [*moments, "**/x.npy*.tmp"]:
        process = start(*arguments)
        wait_until(lambda: _some(moment)(tmp_path) or process.poll() is not None)  # noqa: B023
        kill_all(process)
    assert run(*arguments).returncode == 0
    assert contents(tmp_path) == wanted
    assert not temporaries(tmp_path)
    shutil.rmtree(tmp_path)


def test_workers_whose_parent_dies_while_they_start_say_nothing(
    corpus: Path, tmp_path: Path
) -> None:
    """GPT-2's vocabulary is more than a pipe holds, so they are in the middle of a message."""
    for seconds in (0.0, 0.05, 0.1):
        process = start("prepare", corpus, "--out", tmp_path / "out", "--workers", "3")
        assert wait_until(lambda: len(workers(process)) == 3)  # noqa: B023
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGKILL)
        assert process.communicate(timeout=30)[1] == ""


def test_a_restart_leaves_files_that_are_not_its_own(tmp_path: Path) -> None:
    text = tmp_path / "x.txt"
    text.write_text("some words")
    out = tmp_path / "out"
    arguments = ("prepare", text, "--out", out, "--tokenizer", "bytes")
    assert run(*arguments).returncode == 0
    wanted = contents(out)
    for name in ("notes.txt", "train/notes.txt"):
        (out / name).write_text("mine")
    assert run(*arguments, "--restart").returncode == 0
    assert (out / "train" / "notes.txt").read_text() == (out / "notes.txt").read_text() == "mine"
    assert {name: kept for name, kept in contents(out).items() if "notes" not in name} == wanted
