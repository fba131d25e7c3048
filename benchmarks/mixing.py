"""Compare how well orders mix rows: all rows, blocks, and a shuffle buffer.

The corpus has 2**20 rows of 2,048 tokens from ten sources, one source after the other on disk, which
is the hardest case. A batch has 512 rows. Columns:

    reads        what the storage reads at once
    memory       rows that must be at hand, in uint16
    apart        mean distance in the order between rows that are neighbours on disk
    same batch   share of such neighbours that are in the same batch
    variance     of a source's share of a batch, over all batches; 1 for a full shuffle
    correlation  of a source's share between one batch and the next

`python benchmarks/mixing.py` takes 3 seconds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from results import record

from tokenmill.order.rows import Kind, RowOrder

ROWS, SEQ_LEN, BATCH, SOURCES = 1 << 20, 2_048, 512, 10
SHARD = 49_152  # rows of a shard of 100 million tokens
BUFFER = 65_536  # rows: as many as a group of 256 blocks of 256 rows

Rows = npt.NDArray[np.int64]


def visit(kind: Kind, block_rows: int | None = None, group_blocks: int | None = None) -> Rows:
    """The rows of an epoch, by their places on disk."""
    order = RowOrder(
        tokens=ROWS * SEQ_LEN + 1,
        seq_len=SEQ_LEN,
        seed=1,
        kind=kind,
        block_rows=block_rows,
        group_blocks=group_blocks,
    )
    return order.starts(np.arange(ROWS)) // SEQ_LEN


def visit_with_buffer(rows: Rows) -> Rows:
    """The rows of a stream after a shuffle buffer: each one read replaces a random one, which is next."""
    return np.fromiter(_exchange(rows.tolist()), np.int64, ROWS)


def _exchange(rows: list[int]) -> Iterator[int]:
    draw = random.Random(1)
    buffer = rows[:BUFFER]
    for row in rows[BUFFER:]:
        slot = int(draw.random() * BUFFER)
        yield buffer[slot]
        buffer[slot] = row
    draw.shuffle(buffer)
    yield from buffer


def shuffle_shards() -> Rows:
    """All rows, shard by shard, the shards in random order."""
    shards = np.array_split(np.arange(ROWS), np.arange(SHARD, ROWS, SHARD))
    random.Random(1).shuffle(shards)
    return np.concatenate(shards)


def measure(rows: Rows) -> dict[str, Any]:
    """The numbers of one order."""
    places = np.empty_like(rows)
    places[rows] = np.arange(ROWS)
    apart = np.abs(np.diff(places))
    together = places[1:] // BATCH == places[:-1] // BATCH
    sources = rows * SOURCES // ROWS
    batches = np.arange(ROWS) // BATCH
    counts = np.bincount(batches * SOURCES + sources, minlength=ROWS // BATCH * SOURCES)
    shares = counts.reshape(-1, SOURCES) / BATCH
    shares -= shares.mean(axis=0)
    variance = (shares**2).mean()
    expected = (1 / SOURCES) * (1 - 1 / SOURCES) / BATCH  # of draws without memory
    correlation = (shares[1:] * shares[:-1]).mean() / variance
    return {
        "apart": f"{apart.mean():,.0f}",
        "same batch": f"{together.mean():.2%}",
        "variance": f"{variance / expected:.1f}",
        "correlation": f"{correlation:.2f}",
    }


def main() -> None:
    orders = [
        ("`shuffled`", "a row, 4 kB", "none", visit("shuffled")),
        ("`blocks`: 256 rows, groups of 256 (the default)", "1 MB", "256 MB", visit("blocks")),
        ("`blocks`: 256 rows, groups of 1,024", "1 MB", "1 GB", visit("blocks", block_rows=256, group_blocks=1_024)),
        ("`blocks`: 64 rows, groups of 1,024", "256 kB", "256 MB", visit("blocks", block_rows=64, group_blocks=1_024)),
        ("`blocks`: 256 rows, groups of 1", "1 MB", "1 MB", visit("blocks", block_rows=256, group_blocks=1)),
        ("shuffle buffer, shards in random order", "in turn", "256 MB", visit_with_buffer(shuffle_shards())),
        ("shuffle buffer, rows in order", "in turn", "256 MB", visit_with_buffer(np.arange(ROWS))),
    ]  # fmt: skip
    rows = [
        {"order": name, "reads": reads, "memory": memory, **measure(visited)}
        for name, reads, memory, visited in orders
    ]
    record("mixing", {"rows": ROWS, "batch": BATCH, "sources": SOURCES}, rows)


if __name__ == "__main__":
    main()
