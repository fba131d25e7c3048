"""Every row comes once and in order, in real processes, with any ranks, workers and batch sizes, and
wherever the run stops and resumes with others."""

import itertools
import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import xxhash

from tokenmill.order.rows import RowOrder

IDS = np.random.default_rng(0).integers(0, 60_000, 20_011).astype(np.uint16)
SEQ_LEN = 8
ROWS = 6_000  # more than two epochs


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("elastic") / "ids.npy"
    np.save(path, IDS)
    return path


def digest_rows(**kind):
    """The digest of every row, from the order and slices of NumPy."""
    starts = RowOrder(tokens=len(IDS), seq_len=SEQ_LEN, seed=7, **kind).starts(np.arange(ROWS))
    ids = IDS.astype(np.int64)
    return [xxhash.xxh3_64_hexdigest(ids[s : s + SEQ_LEN].tobytes()) for s in starts.tolist()]


@contextmanager
def ranks(path, count):
    program = Path(__file__).with_name("rank_process.py")
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, program, path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.wait, timeout=60)
            stack.callback(process.stdout.close)
            stack.callback(process.stdin.close)
            processes.append(process)
        yield processes


def run(processes, *, world_size, batch_size, steps, workers=None, state=None, **order):
    """The rows of all ranks, in the order of steps and ranks, and the state."""
    for rank in range(world_size):
        settings = {
            "batch_size": batch_size,
            "seq_len": SEQ_LEN,
            "seed": 7,
            "rank": rank,
            "world_size": world_size,
            **order,
        }
        job = {"settings": settings, "steps": steps, "workers": workers, "state": state}
        processes[rank].stdin.write(json.dumps(job) + "\n")
        processes[rank].stdin.flush()
    answers = [json.loads(processes[rank].stdout.readline()) for rank in range(world_size)]
    by_rank = [answer["batches"] for answer in answers]
    assert {len(batches) for batches in by_rank} == {steps}
    rows = [row for step in zip(*by_rank, strict=True) for batch in step for row in batch]
    states = [answer["state"] for answer in answers]
    assert all(state == states[0] for state in states)
    return rows, states[0]


def test_any_number_of_ranks_and_data_loader_workers_gives_every_row_once(path):
    expected = digest_rows()
    grid = itertools.product((1, 2, 3), (0, 1, 2), (1, 4), (1, 5))
    with ranks(path, 3) as processes:
        for world_size, workers, batch_size, stop in grid:
            first, state = run(
                processes, world_size=world_size, workers=workers, batch_size=batch_size, steps=stop
            )
            # Resume with as many differences as possible.
            then, state = run(
                processes,
                world_size=4 - world_size,
                workers=2 - workers,
                batch_size=5 - batch_size,
                steps=4,
                state=state,
            )
            assert first + then == expected[: state["row"]]


@pytest.mark.parametrize(
    ("chain", "blocks"),
    [((8, 3, 16, 1), {}), ((1, 16, 2, 5), {"block_rows": 30, "group_blocks": 7})],
)
def test_any_chain_of_world_sizes_gives_every_row_once(path, chain, blocks):
    kind = "blocks" if blocks else "shuffled"
    expected = digest_rows(kind=kind, **blocks)
    with ranks(path, max(chain)) as processes:
        rows, state = [], None
        for number, world_size in enumerate(chain):
            more, state = run(
                processes,
                world_size=world_size,
                batch_size=3 + number,
                steps=7 + 13 * number,
                state=state,
                order=kind,
                **blocks,
            )
            rows += more
        assert rows == expected[: state["row"]]
        assert len(rows) > 1_000
