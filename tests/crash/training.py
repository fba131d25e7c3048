"""Start `tokenmill train` on a small text, kill it, and return what must be equal in the end.

    python training.py KILLS forked|fresh ARGUMENTS...

runs the command, killed so many times on the way, and prints when that was, as JSON. Its processes are
forked from one that has imported the framework, which takes most of the time of a start, or fresh.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runs import COMMAND, library_text, run, wait_until

from tokenmill.training.checkpoints import Checkpoints
from tokenmill.training.run_folder import TIMES, read_metrics

ONE_THREAD = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
PATIENCE = 300.0  # seconds: importing a framework takes long where the machine is busy
SMALL = (
    "--layers 1 --heads 2 --width 16 --seq-len 32 --batch-tokens 128 --warmup-steps 5 "
    "--log-every 3 --val-every 10 --val-tokens 320 --sample-every 20 --sample-tokens 4 "
    "--checkpoint-every 2"
).split()


def make_data(folder: Path) -> Path:
    """A small dataset of bytes with a validation split."""
    text = folder / "x.txt"
    text.write_text(library_text(300_000))
    made = run(
        *("prepare", text, "--out", folder / "data", "--tokenizer", "bytes", "--workers", "1"),
        *("--val-fraction", "0.3", "--documents", "line"),
    )
    assert made.returncode == 0, made.stderr
    return folder / "data"


def command(data: Path, runs: Path, *more: str | Path) -> list[str | Path]:
    """The command that trains a model `m`."""
    return ["train", "--data", data, "--name", "m", "--runs", runs, *SMALL, *more]


def results(runs: Path) -> dict[str, Any]:
    """Everything that must be equal in two runs, without times."""
    newest = Checkpoints(runs / "m" / "checkpoints").newest()
    assert newest is not None
    return {
        "state": newest.state,
        "model": (newest.path / "model.safetensors").read_bytes(),
        "optimizer": (newest.path / "optimizer.safetensors").read_bytes(),
        "rows": (runs / "m" / "row_losses.f32").read_bytes(),
        "lines": [
            {name: value for name, value in line.items() if name not in TIMES}
            for line in read_metrics(runs / "m")
        ],
        "checkpoints": sorted(path.name for path in (runs / "m" / "checkpoints").iterdir()),
    }


class Forked:
    """A forked process that runs a command; its standard error goes to a file if given."""

    def __init__(self, arguments: list[str], complaints: Path | None = None) -> None:
        sys.stdout.flush()
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            from tokenmill.cli import main

            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if complaints is not None:
                os.dup2(os.open(complaints, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            os._exit(main(arguments))

    def poll(self) -> int | None:
        """The status at its end; None before."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        """The status at its end."""
        assert wait_until(lambda: self.poll() is not None, PATIENCE)
        assert self.status is not None
        return self.status


def kill_once(
    start: Callable[[], subprocess.Popen[Any] | Forked], runs: Path, rng: random.Random
) -> str:
    """Start the command and kill it, at random or while it writes; returns when that was."""
    folder = runs / "m" / "checkpoints"
    began = _newest(folder)
    process = start()
    how = rng.choice(["at start", "later", "later", "writing", "writing", "renamed"])

    def has_come() -> bool:
        if process.poll() is not None:
            return True
        if how == "writing":
            return any(name.endswith(".tmp") for name in _names(folder))
        return _newest(folder) > began

    if how == "at start":
        time.sleep(rng.uniform(0, 1))
    else:
        assert wait_until(has_come, PATIENCE)
        time.sleep({"later": rng.uniform(0, 0.1), "writing": rng.uniform(0, 0.003)}.get(how, 0))
    running = process.poll() is None
    process.kill()
    process.wait()
    # Temporary files at the start are left over from the previous run.
    left = how != "at start" and any(name.endswith(".tmp") for name in _names(folder))
    return f"{how}{', half-written' if left else ''}" if running else "after its end"


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def _newest(folder: Path) -> str:
    return max((name for name in _names(folder) if not name.endswith(".tmp")), default="")


def main(kills: int, how: str, arguments: list[str]) -> None:
    """Run a command that is killed so many times."""
    if how == "forked" and "jax" in arguments:
        import jax  # noqa: F401
    elif how == "forked":
        import torch._dynamo  # noqa: F401  which the first optimiser imports

    def start() -> subprocess.Popen[Any] | Forked:
        if how == "forked":
            return Forked(arguments)
        return subprocess.Popen([COMMAND, *arguments], stdout=subprocess.DEVNULL)

    runs = Path(arguments[arguments.index("--runs") + 1])
    rng = random.Random()
    moments = [kill_once(start, runs, rng) for _ in range(kills)]
    print(json.dumps({"status": start().wait(), "moments": moments}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
