"""Check that training killed ten times at random moments gives the same bits as uninterrupted training.

Runs real `tokenmill train` processes, with PyTorch and with JAX, and kills them with SIGKILL at their
start, between two steps and while they write a checkpoint. Compares the weights, the optimizer's
state, the loss of every row and, except for times, every line of metrics.

    python benchmarks/killed_training.py [--kills 10] [--steps 400]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from results import record

KILLER = Path(__file__).parents[1] / "tests" / "crash" / "training.py"
SMALL = (
    "--layers 2 --heads 2 --width 32 --seq-len 64 --batch-tokens 512 --warmup-steps 10 "
    "--log-every 3 --val-every 20 --val-tokens 2048 --sample-every 100 --checkpoint-every 4"
).split()


def make_data(folder: Path) -> Path:
    """Prepare some of the standard library with the tokenizer `bytes`."""
    import tokenmill

    text = folder / "library.txt"
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:60]
    text.write_text("<|endoftext|>".join(path.read_text(errors="replace") for path in sources))
    tokenmill.prepare(text, folder / "data", tokenizer="bytes", val_fraction=0.1)
    return folder / "data"


def train(data: Path, runs: Path, backend: str, steps: int, kills: int) -> list[str]:
    """Train a model `m`; returns when it was killed."""
    command = ["train", "--data", str(data), "--name", "m", "--runs", str(runs), *SMALL]
    command += ["--backend", backend, "--max-steps", str(steps)]
    ended = subprocess.run(
        [sys.executable, KILLER, str(kills), "fresh", *command],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    result = json.loads(ended.stdout)
    assert result["status"] == 0, result
    moments: list[str] = result["moments"]
    return moments


def results(folder: Path) -> dict[str, Any]:
    """Everything that must be equal in two runs."""
    from tokenmill.training.run_folder import TIMES, read_metrics

    newest = max((folder / "checkpoints").iterdir())
    lines = read_metrics(folder)
    return {
        "weights": (newest / "model.safetensors").read_bytes(),
        "optimizer": (newest / "optimizer.safetensors").read_bytes(),
        "row losses": (folder / "row_losses.f32").read_bytes(),
        "metrics": [{name: line[name] for name in line if name not in TIMES} for line in lines],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = make_data(folder)
        for backend in ("torch", "jax"):
            train(data, folder / f"{backend}_alone", backend, args.steps, 0)
            moments = train(data, folder / f"{backend}_killed", backend, args.steps, args.kills)
            alone, killed = (
                results(folder / f"{backend}_{which}" / "m") for which in ("alone", "killed")
            )
            rows.append(
                {
                    "backend": backend,
                    "killed": len(moments),
                    "with a checkpoint half-written": sum("half" in when for when in moments),
                    **{
                        name: "same" if alone[name] == killed[name] else "DIFFERENT"
                        for name in alone
                    },
                }
            )
            print(rows[-1], flush=True)
    record("killed_training", {"steps": args.steps, "kills": args.kills}, rows)


if __name__ == "__main__":
    main()
