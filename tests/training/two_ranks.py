"""Take steps of a small model, alone or as a rank of torchrun, and write the results to a file.

    torchrun --nproc-per-node 2 two_ranks.py FIRST STEPS FROM TO

Takes the steps from FIRST on, beginning with the state in FROM, unless that is "-".
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokenmill.errors import UsageError
from tokenmill.training.backend import StepRows
from tokenmill.training.config import Config
from tokenmill.training.model import Shape, first_values
from tokenmill.training.torch_backend import TorchBackend

SHAPE = Shape(vocab=64, layers=2, heads=4, kv_heads=2, width=32, seq_len=16)
CONFIG = Config(
    layers=2,
    heads=4,
    kv_heads=2,
    width=32,
    seq_len=16,
    batch_tokens=12 * 16,
    micro_batch=2,  # three a step on each of two ranks, six on one
    learning_rate=3e-3,
)


def global_batch(step: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The rows of a step, of a text that can be learned: (12, seq_len + 1)."""
    random = np.random.default_rng(step)
    firsts, strides = random.integers(0, 64, 12), random.integers(1, 4, 12)
    return (firsts[:, None] + strides[:, None] * np.arange(17)) % 64


def take_steps(
    backend: TorchBackend, first: int, steps: int
) -> tuple[np.ndarray[Any, np.dtype[np.float32]], list[float]]:
    """This rank's share of some steps; returns the row losses (steps, rows) and the norms."""
    for step in range(first, first + steps):
        own = np.split(global_batch(step), backend.world_size)[backend.rank]
        backend.step(StepRows(inputs=own[:, :-1], targets=own[:, 1:]), 1.0)
    reports = backend.report()
    return np.stack([one.row_losses for one in reports]), [one.gradient_norm for one in reports]


def save(path: Path, backend: TorchBackend, losses: Any, norms: Any) -> None:
    """Everything into one file."""
    state = {f"state/{name}": value for name, value in backend.optimizer_state().items()}
    values = {f"value/{name}": value for name, value in backend.parameters().items()}
    np.savez(path, losses=losses, norms=norms, **state, **values)  # type: ignore[arg-type]


def load(path: Path, backend: TorchBackend) -> None:
    """The state of such a file."""
    with np.load(path) as saved:
        parts = [
            {name.partition("/")[2]: saved[name] for name in saved if name.startswith(kind)}
            for kind in ("value/", "state/")
        ]
    backend.load(*parts)


def main() -> None:
    first, steps, begin, end = sys.argv[1:]
    torch.set_num_threads(1)
    sys.setswitchinterval(100)  # threads get Python's lock only where it is let go: the worst case
    values = first_values(SHAPE, 1)
    try:
        TorchBackend(Config(seq_len=16, batch_tokens=13 * 16), SHAPE, values)
    except UsageError as error:
        print(error)
    backend = TorchBackend(CONFIG, SHAPE, values)
    if begin != "-":
        load(Path(begin), backend)
    losses, norms = take_steps(backend, int(first), int(steps))
    assert backend.total(np.array([1.0, backend.rank])).tolist() == [2.0, 1.0]
    if backend.rank == 0:
        save(Path(end), backend, losses, norms)
    backend.close()


if __name__ == "__main__":
    main()
