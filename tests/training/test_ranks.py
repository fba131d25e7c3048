"""Ranks end by themselves: when torchrun is killed, and when one of them is stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tokenmill.training.checkpoints import Checkpoints

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

ENDLESS = (
    "--layers 1 --heads 2 --width 16 --seq-len 32 --batch-tokens 256 --warmup-steps 3 "
    "--val-every 0 --sample-tokens 0 --log-every 5 --max-steps 1000000"
).split()
TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node 2 -m tokenmill.cli train".split()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for_end(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(is_running, pids))


@contextmanager
def two_ranks(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Train as two processes by torchrun; yields it and its ranks, in order, after some steps."""
    pytest.importorskip("torch")
    (folder / "text.txt").write_text("".join(f"line {n}: {n * n}\n" for n in range(2_000)))
    data = ["--input-file", folder / "text.txt", "--tokenizer", "bytes"]
    command = [sys.executable, *TORCHRUN, *data, "--runs", folder, "--name", "a", *ENDLESS, *flags]
    with (folder / "errors").open("w") as errors:
        agent = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    ranks: list[int] = []
    try:
        assert agent.stdout is not None
        assert any(line.startswith("step") and " 10/" in line for line in agent.stdout), (
            folder / "errors"
        ).read_text()
        found = [
            int(pid)
            for children in Path(f"/proc/{agent.pid}/task").glob("*/children")
            for pid in children.read_text().split()
        ]
        ranks = sorted(found, key=lambda pid: _find_rank(pid))
        yield agent, ranks
    finally:
        for pid in (*ranks, agent.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.communicate()


def _find_rank(pid: int) -> bytes:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(one for one in variables if one.startswith(b"RANK="))


def test_ranks_save_and_end_when_torchrun_is_killed(tmp_path: Path) -> None:
    with two_ranks(tmp_path, "--checkpoint-every", "0") as (agent, ranks):
        agent.kill()
        assert wait_for_end(ranks, 30)
    shown = (tmp_path / "errors").read_text()
    assert "torchrun is gone, so this rank stops. Run the same command again to resume." in shown
    assert "Traceback" not in shown
    found = Checkpoints(tmp_path / "a" / "checkpoints").newest()
    assert found is not None
    assert found.state.step >= 10


def test_a_rank_waits_a_bounded_time_for_one_that_is_stopped(tmp_path: Path) -> None:
    with two_ranks(tmp_path, "--rank-timeout", "3", "--checkpoint-every", "5") as (_, ranks):
        os.kill(ranks[1], signal.SIGSTOP)
        assert wait_for_end(ranks[:1], 30)
        os.kill(ranks[1], signal.SIGCONT)  # it finds that the other is gone
        assert wait_for_end(ranks[1:], 30)
    shown = (tmp_path / "errors").read_text()
    assert "tokenmill: Rank 0 waited 3 s for the other ranks and got no answer" in shown
    assert "raise --rank-timeout" in shown
    assert 'File "' not in shown.partition("elastic")[0]  # torchrun prints a traceback of its own
    assert Checkpoints(tmp_path / "a" / "checkpoints").newest() is not None


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_waits_a_bounded_time_for_one_that_does_not_start(tmp_path: Path, rank: int) -> None:
    pytest.importorskip("torch")
    (tmp_path / "text.txt").write_text("".join(f"line {n}: {n * n}\n" for n in range(2_000)))
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    ranks = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": port}
    data = ["--input-file", "text.txt", "--tokenizer", "bytes", "--runs", ".", "--backend", "torch"]
    ended = subprocess.run(
        [sys.executable, "-m", "tokenmill.cli", "train", *data, *ENDLESS, "--rank-timeout", "1"],
        cwd=tmp_path,
        env={**os.environ, "MASTER_ADDR": "127.0.0.1", **{k: str(v) for k, v in ranks.items()}},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 1
    said = ended.stderr.rpartition("tokenmill: ")[2]
    assert said.startswith(f"Rank {rank} waited 1 s for the other ranks and got no answer: one of ")
    assert "them has not started" in said
    assert "Traceback" not in ended.stderr


WATCHED = """
import os, sys, time
from tokenmill.training.ranks import follow_launcher
if os.fork():
    time.sleep(0.5)
    os._exit(0)  # the launcher
with follow_launcher(lambda text: print(text, flush=True), 60):
    print("training", flush=True)
    time.sleep(2.5)
    print("done", flush=True)
"""


@pytest.mark.parametrize(
    ("launcher", "shown"),
    [
        ({"TORCHELASTIC_RUN_ID": "none"}, "torchrun is gone"),
        ({}, "done"),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, "done"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "done"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "done"),
    ],
    ids=["torchrun", "a shell", "Slurm", "MPI", "by hand"],
)
def test_only_ranks_of_torchrun_end_with_their_parent(launcher: dict[str, str], shown: str) -> None:
    own = {name: value for name, value in os.environ.items() if "TORCHELASTIC" not in name}
    ended = subprocess.run(
        [sys.executable, "-c", WATCHED],
        capture_output=True,
        text=True,
        timeout=60,
        env={**own, **launcher},
    )
    first, last = ended.stdout.splitlines()
    assert first == "training"
    assert last.startswith(shown)
