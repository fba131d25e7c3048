"""A JAX program that trains a tiny model for some steps and writes the results.

jax_program.py BEGIN FROM UNTIL KEEP: from a state (or -) of a step to another step; KEEP is a prefix.
A state is kept half-way too.
"""

import sys
from pathlib import Path

import numpy as np

from tokenmill.training.backend import StepRows
from tokenmill.training.backends import open_backend
from tokenmill.training.config import Config
from tokenmill.training.model import Shape, first_values

LENGTH, ROWS = 16, 12
SHAPE = Shape(vocab=64, layers=1, heads=4, kv_heads=2, width=32, seq_len=LENGTH)
# 12 rows are 6 micro-batches of a device, and of four devices 2 of 2 rows, of which a row is empty.
CONFIG = Config(
    layers=1,
    heads=4,
    kv_heads=2,
    width=32,
    seq_len=LENGTH,
    batch_tokens=LENGTH * ROWS,
    micro_batch=2,
    learning_rate=5e-3,
    matrix_learning_rate=5e-3,
)


def make_rows(step, rank=0, world_size=1):
    """The rows of a rank in a step."""
    random = np.random.default_rng(step)
    tokens = random.integers(0, SHAPE.vocab // 2, (ROWS, LENGTH + 1)) * 2
    documents = np.cumsum(random.random((ROWS, LENGTH)) < 0.1, axis=1).astype(np.int32)
    share = slice(rank * ROWS // world_size, (rank + 1) * ROWS // world_size)
    return StepRows(
        inputs=tokens[share, :-1], targets=tokens[share, 1:], documents=documents[share]
    )


def save(path, backend):
    arrays = {f"parameter/{name}": value for name, value in backend.parameters().items()}
    arrays |= {f"optimizer/{name}": value for name, value in backend.optimizer_state().items()}
    np.savez(path, **arrays)


def load(path, backend):
    with np.load(path) as kept:
        parts = [
            {name.removeprefix(part): kept[name] for name in kept if name.startswith(part)}
            for part in ("parameter/", "optimizer/")
        ]
    backend.load(*parts)


def main():
    begin, first, last, keep = sys.argv[1], *map(int, sys.argv[2:4]), Path(sys.argv[4])
    backend = open_backend("jax", CONFIG, SHAPE, first_values(SHAPE, 1))
    if begin != "-":
        load(begin, backend)
    for step in range(first, last):
        backend.step(make_rows(step, backend.rank, backend.world_size), 1.0)
        if step + 1 == (first + last) // 2:
            save(keep.with_name(f"{keep.name}-half.npz"), backend)
    reports = backend.report()
    # Each rank evaluates another number of rows alone, then all ranks sum.
    own = make_rows(1_000, backend.rank, backend.world_size)
    count = 5 - backend.rank
    some = StepRows(
        inputs=own.inputs[:count], targets=own.targets[:count], documents=own.documents[:count]
    )
    evaluated = backend.evaluate(some)
    total = backend.total(np.array([[backend.rank + 1 / 3, float(len(evaluated))]]))
    logits = backend.next_logits(own.inputs[0, :9])
    np.savez(
        keep.with_name(f"{keep.name}-{backend.rank}.npz"),
        losses=[report.row_losses for report in reports],
        norms=[report.gradient_norm for report in reports],
        evaluated=evaluated,
        total=total,
        logits=logits,
        device=backend.device,
    )
    if backend.rank == 0:
        save(keep.with_name(f"{keep.name}-state.npz"), backend)
    backend.close()


if __name__ == "__main__":
    main()
