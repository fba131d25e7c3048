"""`tokenmill train`, as a user types it: alone, and as two processes by torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tokenmill
from tokenmill.cli import main
from tokenmill.training.checkpoints import Checkpoints
from tokenmill.training.run_folder import read_metrics
from tokenmill.training.run_reading import read_run_data

torch = pytest.importorskip("torch")

SMALL = (
    "--layers 1 --heads 2 --width 16 --seq-len 32 --batch-tokens 256 --warmup-steps 3 "
    "--decay-fraction 0 --optimizer adamw --log-every 5 --val-every 5 --val-tokens 320 "
    "--sample-tokens 4 --checkpoint-every 5"
).split()
TWO = (
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "-m",
    "tokenmill.cli",
)
ONE = ("-m", "tokenmill.cli")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    text = folder / "x.txt"
    text.write_text("\n".join(f"line {n} has the square {n * n}" for n in range(3_000)))
    tokenmill.prepare(
        text,
        folder / "data",
        tokenizer="bytes",
        workers=1,
        documents="line",
        val_fraction=0.2,
    )
    return folder / "data"


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    process = start(*arguments)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def losses(folder: Path) -> np.ndarray:
    return np.fromfile(folder / "row_losses.f32", "<f4")


def test_a_run_resumes_with_another_number_of_processes(data: Path, tmp_path: Path) -> None:
    """Two processes are stopped, one resumes and finishes, two resume again."""
    own = ("train", "--data", data, "--runs", tmp_path, *SMALL)
    both = start(*TWO, *own, "--name", "taken", "--max-steps", "1000000")
    assert both.stdout is not None
    for line in both.stdout:
        if line.startswith("step") and "10/" in line:
            both.send_signal(signal.SIGTERM)
            break
    _, shown = both.communicate(timeout=300)
    assert shown.count("Stopped. Finished work is kept") == 1
    found = Checkpoints(tmp_path / "taken" / "checkpoints").newest()
    assert found is not None
    stopped = found.state.step
    assert stopped >= 10
    assert found.state.row == 8 * stopped
    torch.set_num_threads(1)
    one = [*map(str, own), "--name", "taken", "--max-steps", str(stopped + 10)]
    assert main(one) == 0
    ended = run(*TWO, *own, "--name", "taken", "--max-steps", str(stopped + 20))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("validation loss") == 2
    assert ended.stdout.count("Next:") == 1
    phases = read_run_data(tmp_path / "taken").phases
    assert [(one.step, one.row, one.batch_rows, one.world_size) for one in phases] == [
        (0, 0, 8, 2),
        (stopped, 8 * stopped, 8, 1),
        (stopped + 10, 8 * (stopped + 10), 8, 2),
    ]
    alone = [*map(str, own), "--name", "alone", "--max-steps", str(stopped + 20)]
    assert main(alone) == 0
    assert len(losses(tmp_path / "taken")) == 8 * (stopped + 20)
    assert losses(tmp_path / "taken") == pytest.approx(losses(tmp_path / "alone"), abs=1e-5)
    shown_losses = [
        {
            (line["step"], name): line[name]
            for line in read_metrics(tmp_path / folder)
            if name in line
        }
        for folder in ("taken", "alone")
        for name in ("loss", "val_loss", "bits_per_byte")
    ]
    for taken, alone in zip(shown_losses[:3], shown_losses[3:], strict=True):
        assert taken == pytest.approx(alone, abs=1e-5)


def test_a_run_prints_its_progress_and_the_next_command(data: Path, tmp_path: Path) -> None:
    own = (*ONE, "train", "--data", data, "--runs", tmp_path, "--name", "my model", *SMALL)
    first = run(*own, "--max-steps", "7")
    assert first.returncode == 0, first.stderr
    assert first.stderr == ""
    lines = first.stdout.splitlines()
    assert lines[0].startswith(f"data      {data}: ")
    assert lines[1].startswith("Training on the CPU with the preset `laptop`: ")
    assert lines[2] == "--config 124M trains a full model."
    assert "parameters on 1 thread (torch)" in lines[3]
    assert lines[4] == "steps     7 of 8 rows of 32 tokens"
    assert lines[5].startswith("step 1/7  loss 5.")
    assert lines[6].startswith("time      about ")
    assert lines[7].startswith("step 5/7  loss 5.")
    for word in ("tokens/s", "rate 100%", "data ", "B  ", "left"):
        assert word in lines[7]
    assert "step 7/7  sample: " in first.stdout
    assert f"tokenmill sample 'my model' --runs {tmp_path}" in lines[-1]
    made = {path.name for path in (tmp_path / "my model").iterdir()}
    assert made == {
        *("config.json", "tokenizer_state.json", "metrics.jsonl", "row_losses.f32", "loss.svg"),
        *("checkpoints", "data.json", "lock"),
    }
    again = run(*own, "--max-steps", "7")
    assert again.returncode == 0
    assert "was already finished, at step 7; nothing was trained" in again.stdout
    other = run(*own, "--max-steps", "9", "--seed", "1")
    assert other.returncode == 1
    assert "the seed: 42 then, 1 now" in other.stderr


MISSING = """
import sys
sys.modules[{module!r}] = None
from tokenmill.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("module", ["torch", "jax", "safetensors"])
def test_a_missing_package_is_named_with_its_install_command(
    data: Path, tmp_path: Path, module: str
) -> None:
    backend = "jax" if module == "jax" else "torch"
    own = ("train", "--data", data, "--runs", tmp_path, "--name", "a", "--backend", backend, *SMALL)
    ended = run("-c", MISSING.format(module=module), *own, "--max-steps", "1")
    assert ended.returncode == 2, ended.stderr
    assert module in ended.stderr
    assert f"pip install 'tokenmill[{backend}]'" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (["--name", "a"], "tokenmill train DIR, or --input-file FILE"),
        (["--data", "DATA", "--config", "huge"], "tiny, laptop, 124M, 150M, 250M"),
        (["--data", "DATA", "--device", "abacus"], "'abacus'"),
        (["--name", "a", "--data", "no/such/place"], "no/such/place"),
        (["--name", "a/b", "--data", "DATA"], "not a name for a run"),
        (["--name", "a", "--data", "DATA", "--widht", "3"], "--widht"),
        (["--name", "a", "--data", "DATA", "--heads", "7"], "heads is 7"),
    ],
)
def test_wrong_usage_is_an_error_without_traceback(
    data: Path, tmp_path: Path, flags: list[str], shown: str
) -> None:
    given = [str(data) if flag == "DATA" else flag for flag in flags]
    ended = run(*ONE, "train", *given, "--runs", tmp_path)
    assert ended.returncode in (1, 2)
    assert shown in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


# A step of 4,000 micro-batches on each of two ranks, which takes half a minute or more.
MINUTES = str(32 * 8_000)
LONG = [MINUTES if flag == "256" else flag for flag in SMALL] + ["--micro-batch", "1"]


@pytest.mark.parametrize("ranks", [ONE, TWO], ids=["one rank", "two ranks"])
def test_a_signal_ends_a_step_of_minutes_within_seconds(
    data: Path, tmp_path: Path, ranks: tuple[str, ...]
) -> None:
    process = start(*ranks, "train", data, "--runs", tmp_path, "--name", "a", *LONG)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("time "):
            break
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    _, shown = process.communicate(timeout=60)
    assert time.monotonic() - began < 20  # the grace of Slurm and Kubernetes is 30
    assert (
        "Stopped before the first step was complete. To start over, run the same command again."
        in shown
    )


def test_one_rank_that_is_preempted_stops_all(data: Path, tmp_path: Path) -> None:
    both = start(*TWO, "train", data, "--runs", tmp_path, "--name", "a", *LONG)
    assert both.stdout is not None
    for line in both.stdout:
        if line.startswith("time "):
            break
    ranks = [
        int(pid)
        for children in Path(f"/proc/{both.pid}/task").glob("*/children")
        for pid in children.read_text().split()
    ]
    last = next(
        pid for pid in ranks if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    )
    os.kill(last, signal.SIGTERM)
    began = time.monotonic()
    _, shown = both.communicate(timeout=60)
    assert time.monotonic() - began < 20  # the grace of Slurm and Kubernetes is 30
    assert "Stopped" in shown


def test_only_the_data_is_required(data: Path, tmp_path: Path) -> None:
    ended = run(*ONE, "train", data, "--runs", tmp_path, *SMALL, "--max-steps", "1")
    assert ended.returncode == 0, ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == [data.name]
    assert f"tokenmill sample {data.name} --runs" in ended.stdout
