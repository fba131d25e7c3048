"""The cache returns the bytes that were stored or nothing, within its limit, whatever happens."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tokenmill.errors import FolderError, UsageError
from tokenmill.storage.cache import PIECE, SET_BYTES, WAYS, PieceCache, make_piece_key, open_cache
from tokenmill.storage.pieces import Pieces, RemoteFile


def key_of(number):
    return make_piece_key("file", number)


def bytes_of(number, size=PIECE):
    return random.Random(number).randbytes(size)


def measure(folder):
    """The bytes that the files of a folder take, by size and by blocks on disk."""
    found = [path.stat() for path in Path(folder).rglob("*")]
    return max(sum(one.st_size for one in found), sum(512 * one.st_blocks for one in found))


def test_a_piece_is_returned_as_it_was_stored_also_after_a_restart(tmp_path):
    cache = PieceCache(tmp_path, 2 * SET_BYTES)
    for number in range(20):
        cache.put(key_of(number), bytes_of(number, size=number * 1000))
    for again in (cache, PieceCache(tmp_path, 2 * SET_BYTES), pickle.loads(pickle.dumps(cache))):
        for number in range(20):
            assert again.has(key_of(number))
            assert again.get(key_of(number)) == bytes_of(number, size=number * 1000)
        assert not again.has(key_of(99))
        assert again.get(key_of(99)) is None


def test_the_least_recently_used_piece_is_removed_first(tmp_path):
    cache = PieceCache(tmp_path, SET_BYTES)
    for number in range(WAYS):
        cache.put(key_of(number), b"x")
    assert cache.get(key_of(0)) == b"x"  # now 1 is the one not used for longest
    cache.put(key_of(WAYS), b"y")
    there = [number for number in range(WAYS + 1) if cache.has(key_of(number))]
    assert there == [0, *range(2, WAYS + 1)]


def test_the_limit_is_never_exceeded(tmp_path):
    cache = PieceCache(tmp_path, 2 * SET_BYTES + 1_000)
    for number in range(3 * WAYS):
        cache.put(key_of(number), bytes_of(number))
        assert measure(tmp_path) <= 2 * SET_BYTES + 1_000
    assert measure(tmp_path) > 1.9 * SET_BYTES
    recent = [cache.get(key_of(number)) == bytes_of(number) for number in range(2 * WAYS, 3 * WAYS)]
    assert sum(recent) > 0.9 * WAYS


def test_another_limit_keeps_the_pieces_that_fit(tmp_path):
    cache = PieceCache(tmp_path, 4 * SET_BYTES)
    for number in range(2 * WAYS):
        cache.put(key_of(number), bytes_of(number))
    for sets, least in ((8, 0.3), (2, 0.3)):
        other = PieceCache(tmp_path, sets * SET_BYTES)
        assert measure(tmp_path) <= sets * SET_BYTES
        found = [other.get(key_of(number)) for number in range(2 * WAYS)]
        assert all(data in (None, bytes_of(number)) for number, data in enumerate(found))
        assert sum(data is not None for data in found) > least * 2 * WAYS


@pytest.mark.parametrize("name", ["pieces.bin", "index.bin"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "zero"])
def test_a_damaged_piece_counts_as_missing(tmp_path, name, damage):
    cache = PieceCache(tmp_path, SET_BYTES)
    for number in range(WAYS):
        cache.put(key_of(number), bytes_of(number))
    path = tmp_path / name
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    if damage == "flip":
        for place in range(0, len(data), 50):
            data[place] ^= 1
    elif damage == "truncate":
        del data[middle:]
    else:
        data[middle:] = bytes(len(data) - middle)
    with path.open("r+b") as file:  # not a new file: the cache has this one open
        file.truncate(len(data))
        file.write(data)
    for again in (cache, PieceCache(tmp_path, SET_BYTES)):
        found = [again.get(key_of(number)) for number in range(WAYS)]
        assert all(one in (None, bytes_of(number)) for number, one in enumerate(found))
        assert None in found
    for number in range(WAYS):
        cache.put(key_of(number), bytes_of(number))
        assert cache.get(key_of(number)) == bytes_of(number)


def test_a_cache_that_is_too_small_or_a_link_is_refused(tmp_path):
    with pytest.raises(UsageError, match="`cache_bytes` is 1,000; a cache needs at least"):
        PieceCache(tmp_path, 1_000)
    (tmp_path / "pieces.bin").symlink_to(tmp_path / "other")
    with pytest.raises(FolderError, match="symbolic link"):
        PieceCache(tmp_path, SET_BYTES)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_a_warning_and_reading_continues(tmp_path):
    cache = PieceCache(tmp_path, SET_BYTES)
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, cache._pieces)
    os.close(full)
    with pytest.warns(UserWarning, match="No space left on device.*another `cache_dir`"):
        cache.put(key_of(1), b"x" * PIECE)
    file, calls = make_file(3 * PIECE)
    assert read_all(Pieces(cache), file, [0, 1, 2]) == calls.data


def test_parts_of_a_piece_are_joined_until_it_is_whole(tmp_path):
    cache, key, data = PieceCache(tmp_path, SET_BYTES), key_of(1), bytes_of(1, 1_000)
    cache.put_part(key, data[300:500], 300, 1_000)
    assert cache.covers(key, 300, 500)
    assert not cache.covers(key, 299, 500)
    assert not cache.has(key)
    assert cache.get(key) is None
    cache.put_part(key, data[450:], 450, 1_000)
    found = bytearray(600)
    assert cache.copy(key, 400, memoryview(found))
    assert bytes(found) == data[400:]
    assert not cache.copy(key, 200, memoryview(found))
    cache.put_part(key, data[:300], 0, 1_000)
    assert cache.has(key)
    assert cache.get(key) == data


def test_a_part_after_a_gap_replaces_the_one_before(tmp_path):
    cache, key, data = PieceCache(tmp_path, SET_BYTES), key_of(1), bytes_of(1, 1_000)
    cache.put_part(key, data[:100], 0, 1_000)
    cache.put_part(key, data[200:300], 200, 1_000)
    assert not cache.covers(key, 0, 100)
    assert cache.covers(key, 200, 300)


def test_a_held_piece_that_was_replaced_is_noticed_even_by_the_same_bytes(tmp_path):
    """Between the two, the slot had other bytes; they could have been read."""
    cache, other = (PieceCache(tmp_path, SET_BYTES) for _ in range(2))
    cache.put(key_of(1), bytes_of(1))
    held = cache.hold(key_of(1))
    found = bytearray(100)
    cache.read([held.start + 50], [memoryview(found)])
    assert cache.is_held(held)
    assert bytes(found) == bytes_of(1)[50:150]
    other.put(key_of(1), bytes_of(1))
    assert not cache.is_held(held)
    assert cache.is_held(cache.hold(key_of(1)))
    PieceCache(tmp_path / "b", SET_BYTES)
    assert cache.hold(key_of(2)) is None


def test_a_lower_limit_of_another_process_is_noticed_by_held_pieces(tmp_path):
    cache = PieceCache(tmp_path, 8 * SET_BYTES)
    for number in range(100):
        cache.put(key_of(number), bytes_of(number))
    held = [cache.hold(key_of(number)) for number in range(100)]
    PieceCache(tmp_path, SET_BYTES)
    kept = [one.slot < WAYS for one in held]
    assert not all(kept)
    assert [cache.is_held(one) for one in held] == kept


def test_the_default_limit_is_that_of_the_cache_or_at_most_half_of_the_free_space(
    tmp_path, monkeypatch
):
    free = shutil.disk_usage(tmp_path).free
    made = open_cache(tmp_path / "a", None)
    assert made.limit == min(16 << 30, 1 << (free // 2).bit_length() - 1)
    assert sum(path.stat().st_blocks for path in (tmp_path / "a").iterdir()) == 0
    PieceCache(tmp_path / "b", 3 * SET_BYTES + 100)
    assert open_cache(tmp_path / "b", None).limit == 3 * SET_BYTES


# Fetching.


class Calls(list):
    data = b""


def make_file(size, pause=0.0, fail=()):
    """A remote file, and the ranges that were fetched from it."""
    calls = Calls()
    calls.data = bytes_of(7, size)

    def fetch(start, stop):
        calls.append((start, stop))
        time.sleep(pause)
        if len(calls) in fail:
            raise OSError(5, "Input/output error")
        return calls.data[start:stop]

    return RemoteFile(f"file of {size}", size, fetch), calls


def read_all(pieces, file, numbers):
    found = dict(pieces.read([(file, number) for number in numbers]))
    return b"".join(found[place] for place in range(len(numbers)))


def test_neighbouring_pieces_share_a_request_and_are_fetched_once(tmp_path):
    pieces = Pieces(PieceCache(tmp_path, 2 * SET_BYTES))
    file, calls = make_file(20 * PIECE + 77)
    assert read_all(pieces, file, range(21)) == calls.data
    assert sorted(calls) == [(0, 8 * PIECE), (8 * PIECE, 16 * PIECE), (16 * PIECE, len(calls.data))]
    assert read_all(pieces, file, range(21)) == calls.data
    assert len(calls) == 3


def test_threads_that_want_the_same_pieces_fetch_each_once(tmp_path):
    cache = PieceCache(tmp_path, 2 * SET_BYTES)
    file, calls = make_file(40 * PIECE, pause=0.02)
    results = []

    def read(seed):
        numbers = sorted(random.Random(seed).sample(range(40), 30))
        found = read_all(Pieces(cache), file, numbers)
        results.append(found == b"".join(calls.data[n * PIECE : (n + 1) * PIECE] for n in numbers))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8
    fetched = [number for start, stop in calls for number in range(start // PIECE, stop // PIECE)]
    assert sorted(fetched) == sorted(set(fetched))


def test_a_failed_request_is_an_error_and_can_be_repeated(tmp_path):
    pieces = Pieces(PieceCache(tmp_path, SET_BYTES))
    file, calls = make_file(4 * PIECE, fail=(1,))
    with pytest.raises(OSError, match="Input/output error"):
        read_all(pieces, file, range(4))
    assert read_all(pieces, file, range(4)) == calls.data


PROGRAM = """
import os, random, sys, time
from pathlib import Path
from tokenmill.storage.cache import PIECE, PieceCache
from tokenmill.storage.pieces import Pieces, RemoteFile

folder, limit, source, seed, seconds, pause = sys.argv[1:]
data = Path(source).read_bytes()
log = os.open(source + ".log", os.O_WRONLY | os.O_APPEND)

def fetch(start, stop):
    for number in range(start // PIECE, -(-stop // PIECE)):
        os.write(log, b"%d\\n" % number)
    time.sleep(float(pause))
    return data[start:stop]

pieces = Pieces(PieceCache(folder, int(limit)))
file = RemoteFile("source", len(data), fetch)
count = -(-len(data) // PIECE)
draw = random.Random(int(seed))
end = time.monotonic() + float(seconds)
while time.monotonic() < end:
    first = draw.randrange(count)
    numbers = range(first, min(first + draw.randrange(1, 30), count))
    for place, found in pieces.read([(file, number) for number in numbers]):
        number = numbers[place]
        if found != data[number * PIECE:(number + 1) * PIECE]:
            print("wrong bytes in piece", number, flush=True)
            sys.exit(3)
    print(len(numbers), flush=True)
"""


def start(folder, limit, source, seed, seconds, pause=0.001):
    arguments = [folder, limit, source, seed, seconds, pause]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(bytes_of(5, 200 * PIECE + 123))
    (tmp_path / "source.log").touch()
    return path


def test_processes_that_are_killed_at_random_leave_nothing_and_read_no_wrong_byte(tmp_path, source):
    """Four processes with room for a third of the pieces; one is killed every 0.1 seconds."""
    folder, limit, draw = tmp_path / "cache", SET_BYTES + 10_000, random.Random(1)
    running = [start(folder, limit, source, seed, 60) for seed in range(4)]
    try:
        for process in running:
            assert process.stdout.readline().strip().isdigit()  # it has started
        for seed in range(4, 24):
            time.sleep(draw.uniform(0, 0.2))
            chosen = draw.randrange(4)
            running[chosen].send_signal(signal.SIGKILL)
            assert running[chosen].wait() == -signal.SIGKILL, running[chosen].stdout.read()[-200:]
            running[chosen].stdout.close()
            running[chosen] = start(folder, limit, source, seed, 60)
            assert measure(folder) <= limit
            assert [process.poll() for process in running] == [None] * 4  # none found wrong bytes
    finally:
        for process in running:
            process.kill()
            process.wait()
            process.stdout.close()
    assert sorted(os.listdir(folder)) == ["claims", "index.bin", "pieces.bin"]
    assert (folder / "claims").stat().st_size == 0
    # No claim is left: another process reads everything, and without waiting.
    began = time.monotonic()
    pieces, data = Pieces(PieceCache(folder, limit)), source.read_bytes()
    file = RemoteFile("source", len(data), lambda first, last: data[first:last])
    assert read_all(pieces, file, range(201)) == data
    assert time.monotonic() - began < 10
    assert measure(folder) <= limit


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="claims are locks of Linux")
def test_processes_that_start_together_fetch_each_piece_once(tmp_path, source):
    """A cache with room for all: no piece is fetched twice by processes that want the same."""
    running = [start(tmp_path / "cache", 5 * SET_BYTES, source, 3, 2, 0.02) for _ in range(4)]
    for process in running:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, out
    fetched = (tmp_path / "source.log").read_text().split()
    assert len(fetched) > 100
    assert sorted(fetched) == sorted(set(fetched))


def test_a_claim_of_a_killed_process_is_free_at_once(tmp_path, source):
    process = start(tmp_path / "cache", SET_BYTES, source, 1, 60, 60)
    log = tmp_path / "source.log"
    while not log.read_text():
        time.sleep(0.02)
    process.kill()
    process.wait()
    process.stdout.close()
    cache = PieceCache(tmp_path / "cache", SET_BYTES)
    numbers = [int(line) for line in log.read_text().split()]
    for number in numbers:
        with cache.claim(make_piece_key("source", number)) as is_claimed:
            assert is_claimed
