"""Loaders over a cache give the same batches, fetch ahead, and fetch each piece about once."""

from __future__ import annotations

import errno
import itertools
import json
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import xxhash

import tokenmill
from tokenmill.errors import DatasetError
from tokenmill.load.ahead import count_ahead
from tokenmill.load.loader import Loader
from tokenmill.load.mixture import Mixture
from tokenmill.storage.cache import PIECE, SET_BYTES, PieceCache
from tokenmill.store.shards import FileShards
from tokenmill.store.tokens import Tokens

IDS = np.random.default_rng(3).integers(1, 60_000, 8_000_001).astype(np.uint16)
IDS[::997] = 0
SEQ_LEN = 256
BLOCKS = {"order": "blocks", "block_rows": 1_024, "group_blocks": 4}  # 0.5 MB, 2 MB
RUN = {"batch_size": 32, "seq_len": SEQ_LEN, "seed": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("remote")
    for number, part in enumerate(np.array_split(IDS, 5)):
        part.tofile(path / f"train_{number}.bin")
    return path


@pytest.fixture
def cache(tmp_path):
    return PieceCache(tmp_path / "cache", SET_BYTES)  # half of the data


def open_train(folder):
    return tokenmill.open(folder, dtype="uint16", format="raw", eot_id=0)["train"]


class SlowShards(FileShards):
    """Files that take a while to open, and count what is read."""

    requests: list[int]
    pause: float | None  # None: reading fails

    def _open(self, number):
        file = super()._open(number)
        return _Counted(file, self)


class _Counted:
    def __init__(self, file, shards):
        self._file, self._shards = file, shards

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def fileno(self):
        return self._file.fileno()

    def seek(self, place):
        return self._file.seek(place)

    def read(self, size):
        if self._shards.pause is None:
            raise OSError(errno.EIO, "the connection is broken")
        time.sleep(self._shards.pause)
        self._shards.requests.append(size)
        return self._file.read(size)


def open_slow(folder, pause=0.0):
    """Tokens of slow files, and the sizes of all requests for them."""
    shards = open_train(folder)._shards
    names = ("folder", "names", "dtype", "counts", "offsets", "sizes", "foreign")
    slow = SlowShards(**{name: getattr(shards, name) for name in names})
    requests = []
    object.__setattr__(slow, "requests", requests)
    object.__setattr__(slow, "pause", pause)
    return Tokens(slow, "train", eot_id=0), requests


@pytest.mark.parametrize("prefetch", [None, 0])
@pytest.mark.parametrize("order", [BLOCKS, {"order": "shuffled"}, {"order": "sequential"}])
def test_batches_are_those_without_a_cache(folder, cache, order, prefetch):
    tokens = open_train(folder)
    run = {**RUN, **order, "limit_rows": 3_000}
    with Loader(tokens.cached(cache), prefetch=prefetch, **run) as cached:
        for batch, expected in zip(cached, Loader(tokens, **run), strict=True):
            assert batch.row == expected.row
            assert (batch.tokens == expected.tokens).all()


def test_mixtures_documents_ranks_and_resuming_work_over_a_cache(folder, cache):
    tokens = open_train(folder)
    mixture = Mixture({"a": (tokens, 2), "b": (Tokens.of(IDS[::-1].copy(), eot_id=0), 1)}, block=12)
    run = {**RUN, **BLOCKS, "documents": True, "world_size": 2}
    state = None
    for rank in (0, 1):
        cached = Loader(mixture.cached(cache), rank=rank, **run)
        plain = Loader(mixture, rank=rank, **run)
        if state is not None:
            cached.load_state_dict(state)
            plain.load_state_dict(state)
        for _ in range(40):
            batch, expected = next(cached), next(plain)
            assert (batch.inputs == expected.inputs).all()
            assert (batch.documents.cu_seqlens == expected.documents.cu_seqlens).all()
        state = cached.state_dict()
        assert state == plain.state_dict()
        cached.close()


def test_an_epoch_in_blocks_fetches_every_byte_about_once(folder, tmp_path):
    """A cache of two sets has room for several groups, not for the whole data."""
    tokens, requests = open_slow(folder)
    cache = PieceCache(tmp_path / "cache", SET_BYTES)
    with Loader(tokens.cached(cache), **RUN, **BLOCKS, limit_epochs=1) as loader:
        seen = sum(len(batch.inputs) for batch in loader)
    assert seen == (len(IDS) - 1) // SEQ_LEN
    assert cache.limit < IDS.nbytes
    # Blocks are fetched as they are, and a few rows of the first ones alone, before their blocks.
    assert IDS.nbytes < sum(requests) < 1.03 * IDS.nbytes + (1 << 20)
    blocks = [size for size in requests if size > 2 * SEQ_LEN * 2]
    assert np.mean(blocks) > 3 * PIECE


def test_rows_are_fetched_ahead_while_the_program_computes(folder, tmp_path):
    """Once nothing more is fetched, the connection breaks: this and the next group are there."""
    tokens, requests = open_slow(folder, pause=0.01)
    cache = PieceCache(tmp_path / "cache", 4 * SET_BYTES)
    with Loader(tokens.cached(cache), **RUN, **BLOCKS) as loader:
        next(loader)
        before = -1
        while before != len(requests):
            before = len(requests)
            time.sleep(1)
        assert sum(requests) < 3 * 4 * 5 * PIECE  # and no more than that
        object.__setattr__(tokens._shards, "pause", None)
        for _ in range(2 * 4 * 1_024 // 32 - 1):
            next(loader)
    assert not any(thread.name.startswith("tokenmill-ahead") for thread in threading.enumerate())


def test_the_first_batch_waits_for_its_own_pieces_only(folder, tmp_path):
    tokens, requests = open_slow(folder)
    cache = PieceCache(tmp_path / "cache", 4 * SET_BYTES)
    Loader(tokens.cached(cache), prefetch=0, **RUN, **BLOCKS | {"group_blocks": 64}).batch_at(0)
    assert sum(requests) <= 2 * 32 * PIECE


def test_a_run_ends_where_fetching_ends(folder, tmp_path):
    """Nothing is fetched beyond the last row."""
    tokens, requests = open_slow(folder)
    cache = PieceCache(tmp_path / "cache", 4 * SET_BYTES)
    run = RUN | {"order": "sequential", "limit_rows": 1_000}
    with Loader(tokens.cached(cache), **run) as loader:
        for _ in loader:
            pass
    assert sum(requests) <= 1_000 * SEQ_LEN * 2 + 2 * PIECE


@pytest.mark.parametrize(
    ("order", "limit", "expected"),
    [
        ({"order": "shuffled"}, None, 0),
        (BLOCKS, None, 4 * 1_024),
        (BLOCKS, 4 * SET_BYTES, 6 * 1_024),  # all data fits
        (BLOCKS | {"group_blocks": 8}, SET_BYTES, SET_BYTES * 3 // 4 // 512 - 8 * 1_024),
        (BLOCKS | {"group_blocks": 30}, SET_BYTES, 0),
        ({"order": "sequential"}, SET_BYTES, SET_BYTES // 4 // 512),
    ],
)
def test_fetching_ahead_stays_within_the_cache(folder, tmp_path, order, limit, expected):
    tokens = open_train(folder)
    if limit is not None:
        tokens = tokens.cached(PieceCache(tmp_path / "cache", limit))
    loader = Loader(tokens, **RUN, **order)
    assert count_ahead(loader.rows, loader.settings) == expected


def test_a_missing_file_is_an_error_of_the_batch_that_needs_it(tmp_path, cache):
    for number, part in enumerate(np.array_split(IDS[:400_000], 2)):
        part.tofile(tmp_path / f"train_{number}.bin")
    tokens = open_train(tmp_path).cached(cache)
    (tmp_path / "train_1.bin").unlink()
    with Loader(tokens, **RUN, order="sequential") as loader:
        with pytest.raises(DatasetError, match=r"train_1\.bin is missing"):
            list(itertools.islice(loader, 60))
        assert 700 < loader.row < 800


PROGRAM = """
import json, sys
import tokenmill, xxhash
from tokenmill.storage.cache import PieceCache

folder, cache_dir, limit, settings, row = sys.argv[1:]
tokens = tokenmill.open(folder, dtype="uint16", format="raw")["train"]
loader = tokenmill.Loader(tokens.cached(PieceCache(cache_dir, int(limit))), **json.loads(settings))
loader.load_state_dict(loader.state_dict() | {"row": int(row)})
for batch in loader:
    print(batch.row, xxhash.xxh3_64_hexdigest(batch.tokens.tobytes()), flush=True)
"""


def test_ranks_killed_at_random_read_no_wrong_row_and_keep_the_limit(folder, tmp_path):
    """Three ranks share a small cache; each is killed several times and resumes where it was."""
    limit, world, draw = SET_BYTES, 3, random.Random(2)
    run = {**RUN, **BLOCKS, "world_size": world}
    tokens = open_train(folder)
    found: dict[int, str] = {}
    lock = threading.Lock()

    def follow(rank):
        row = 0
        for life in range(4):
            settings = json.dumps({**run, "rank": rank})
            arguments = [folder, tmp_path / "cache", limit, settings, row]
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *map(str, arguments)],
                stdout=subprocess.PIPE,
                text=True,
            )
            steps = draw.randrange(20, 120)
            for line in process.stdout:
                number, digest = line.split()
                with lock:
                    found[int(number)] = digest
                row = int(number) - rank * 32 + world * 32
                steps -= 1
                if not steps:
                    break
            assert not steps, f"rank {rank} ended by itself in life {life}"
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
            sizes = [path.stat().st_size for path in (tmp_path / "cache").iterdir()]
            assert sum(sizes) <= limit

    failures = []

    def check(rank):
        try:
            follow(rank)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=check, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(found) > 200
    for rank in range(world):
        loader = Loader(tokens, **run, rank=rank)
        for row in (row for row in found if row // 32 % world == rank):
            batch = loader.batch_from(row - rank * 32)
            assert batch.row == row
            assert xxhash.xxh3_64_hexdigest(batch.tokens.tobytes()) == found[row]
    names = sorted(path.name for path in Path(tmp_path / "cache").iterdir())
    assert names == ["claims", "index.bin", "pieces.bin"]
