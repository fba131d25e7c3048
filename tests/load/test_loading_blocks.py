"""Loaders over the order `blocks`: the same rows from every framework's view, whole blocks read."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from tokenmill.errors import StateError, UsageError
from tokenmill.load.loader import Loader
from tokenmill.load.mixture import Mixture
from tokenmill.order.rows import RowOrder
from tokenmill.store.tokens import Tokens

IDS = np.random.default_rng(1).integers(0, 60_000, 20_011).astype(np.uint16)
BLOCKS = {"order": "blocks", "block_rows": 20, "group_blocks": 6}
RUN = {"seq_len": 16, "seed": 3, **BLOCKS}


@pytest.fixture
def mixture():
    web, code = Tokens.of(IDS, eot_id=7), Tokens.of(IDS[::-1][:5_000].copy(), eot_id=7)
    return Mixture({"web": (web, 3), "code": (code, 1)}, changes={100: {"code": 3}}, block=20)


@pytest.mark.parametrize("documents", [False, True])
def test_batch_size_and_ranks_do_not_change_the_rows_of_a_mixture(mixture, documents):
    run = {**RUN, "documents": documents, "limit_rows": 1_200}
    whole = list(Loader(mixture, batch_size=1_200, **run))
    for batch_size, world_size in ((1, 1), (7, 1), (5, 3), (64, 2)):
        loaders = [
            Loader(mixture, batch_size=batch_size, rank=rank, world_size=world_size, **run)
            for rank in range(world_size)
        ]
        batches = [batch for step in zip(*loaders, strict=True) for batch in step]
        inputs = np.concatenate([batch.inputs for batch in batches])
        assert (inputs == whole[0].inputs).all()
        if documents:
            ids = np.concatenate([batch.documents.ids for batch in batches])
            assert (ids == whole[0].documents.ids).all()


def test_rows_of_a_source_are_those_of_its_order(mixture):
    loader = Loader(mixture, batch_size=1, **RUN)
    order = RowOrder(tokens=5_000, seq_len=16, seed=3, name="code", kind="blocks", block_rows=20, group_blocks=6)  # fmt: skip
    found = [loader.rows.origin(row) for row in range(200)]
    taken = [token for name, token in found if name == "code"]
    assert taken == order.starts(np.arange(len(taken))).tolist()


def test_the_state_names_sizes_that_differ():
    state = Loader(Tokens.of(IDS), batch_size=2, **RUN).state_dict() | {"row": 8}
    other = Loader(Tokens.of(IDS), batch_size=2, **RUN | {"group_blocks": 7})
    with pytest.raises(StateError, match="group_blocks is 6 in the state and 7 here"):
        other.load_state_dict(state)


def test_a_state_with_defaults_has_their_values():
    """If a default ever changes, old states still name the order that they had."""
    state = Loader(Tokens.of(IDS), batch_size=2, seq_len=1024, order="blocks").state_dict()
    assert (state["block_rows"], state["group_blocks"]) == (512, 256)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": "shuffled"}, "`block_rows` is 20, but `order` is 'shuffled'"),
        ({"block_rows": 0}, "`block_rows` is 0; it must be 1 or more"),
        ({"group_blocks": 2.5}, "`group_blocks` is 2.5; it must be a whole number"),
    ],
)
def test_invalid_sizes_are_refused(change, message):
    with pytest.raises(UsageError, match=message):
        Loader(Tokens.of(IDS), batch_size=2, **RUN | change)


PROGRAM = """
import ctypes, json, mmap, os, sys, time
import numpy as np
import tokenmill

path, way, expected = sys.argv[1:]
expected = set(json.loads(expected))
with open(path, "rb") as file:
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
address = ctypes.c_void_p(np.frombuffer(whole, np.uint8).ctypes.data)
there = np.zeros(len(whole) // mmap.PAGESIZE, np.uint8)

def find_resident(share):
    where = ctypes.c_void_p(there.ctypes.data)
    ctypes.CDLL(None).mincore(address, ctypes.c_size_t(len(whole)), where)
    return set(np.flatnonzero((there & 1).reshape(64, -1).mean(axis=1) > share).tolist())

before = find_resident(0)  # the system may keep some
tokens = tokenmill.open(path, dtype="uint8")["train"]
run = {"seq_len": 1024, "batch_size": 64, "order": "blocks", "block_rows": 1024, "group_blocks": 4}
loader = tokenmill.Loader(tokens.unmapped() if way == "unmapped" else tokens, **run)
if way == "one batch":
    loader.batch_at(0)
else:
    next(loader)
deadline = time.monotonic() + 30
while not expected <= find_resident(0.5) and time.monotonic() < deadline:
    time.sleep(0.1)
print(json.dumps([sorted(before), sorted(find_resident(0.5))]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the page cache of Linux")
@pytest.mark.parametrize("way", ["one batch", "mapped", "unmapped"])
def test_whole_blocks_are_read_ahead_of_their_rows(tmp_path, way):
    """One batch reads the blocks of its group; a loader also reads those of the next group."""
    ids = np.zeros(64 << 20, np.uint8)
    ids.tofile(tmp_path / "ids.bin")
    order = RowOrder(tokens=len(ids), seq_len=1024, kind="blocks", block_rows=1024, group_blocks=4)
    groups = order.starts(np.arange(4 * 4 * 1024)).reshape(4, -1) >> 20
    expected = set(groups[: 1 if way == "one batch" else 2].ravel().tolist())
    arguments = [tmp_path / "ids.bin", way, json.dumps(sorted(expected))]
    program = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    before, found = map(set, json.loads(done.stdout))
    if len(before) > 32:
        pytest.skip("this file system keeps pages in memory")
    assert found >= expected
    if way == "one batch":
        assert found <= before | expected
    elif way == "mapped":  # without maps, the system reads more by itself
        assert found <= before | set(groups[:3].ravel().tolist())
