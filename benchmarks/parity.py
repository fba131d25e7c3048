"""Compare PyTorch and JAX after the same steps from the same initial values, in float32.

python benchmarks/parity.py [--steps 50] [--layers 4] [--width 128]
"""

from __future__ import annotations

import argparse
import pydoc
from pathlib import Path
from typing import Literal

import numpy as np
from results import record

import tokenmill
from tokenmill.store.tokens import Tokens
from tokenmill.training.backend import StepReport, StepRows
from tokenmill.training.backends import open_backend
from tokenmill.training.config import Config
from tokenmill.training.model import Shape, first_values

SEQ_LEN = 128
ROWS = 16
OPTIMIZERS: tuple[Literal["adamw", "muon"], ...] = ("adamw", "muon")


def read_batches(steps: int) -> list[StepRows]:
    """Rows of bytes of a module of the standard library."""
    text = np.frombuffer(Path(pydoc.__file__).read_bytes(), np.uint8)
    loader = tokenmill.Loader(
        Tokens.of(text.astype(np.uint16)), batch_size=ROWS, seq_len=SEQ_LEN, seed=1
    )
    batches = [loader.batch_at(step) for step in range(steps)]
    return [StepRows(inputs=batch.inputs, targets=batch.targets) for batch in batches]


def train(name: str, config: Config, batches: list[StepRows]) -> list[StepReport]:
    """The reports of all steps in one framework."""
    shape = Shape(
        vocab=256,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads or config.heads,
        width=config.width,
        seq_len=SEQ_LEN,
    )
    backend = open_backend(name, config, shape, first_values(shape, config.seed))
    for step, rows in enumerate(batches):
        backend.step(rows, config.scale(step))
    return backend.report()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    arguments = parser.parse_args()
    batches = read_batches(arguments.steps)
    rows = []
    for optimizer in OPTIMIZERS:
        config = Config(
            layers=arguments.layers,
            heads=4,
            kv_heads=2,
            width=arguments.width,
            seq_len=SEQ_LEN,
            batch_tokens=ROWS * SEQ_LEN,
            max_steps=arguments.steps,
            warmup_steps=arguments.steps // 10,
            optimizer=optimizer,
            dtype="float32",
        )
        torch, jax = (train(name, config, batches) for name in ("torch", "jax"))
        pairs = list(zip(torch, jax, strict=True))
        step = max(abs(one.loss - other.loss) for one, other in pairs)
        row = max(float(np.abs(one.row_losses - other.row_losses).max()) for one, other in pairs)
        rows.append(
            {
                "optimizer": optimizer,
                "first loss": round(torch[0].loss, 3),
                "last loss": round(torch[-1].loss, 3),
                "losses of a step apart by at most": f"{step:.1e}",
                "losses of a row apart by at most": f"{row:.1e}",
            }
        )
    record("parity", {**vars(arguments), "seq_len": SEQ_LEN, "rows": ROWS}, rows)


if __name__ == "__main__":
    main()
