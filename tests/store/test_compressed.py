"""Compressed shards give the same rows as plain ones; damaged ones are refused by name."""

from __future__ import annotations

import os
import pickle
import struct
import threading

import numpy as np
import pytest
import zstandard
from dataset_builder import build, compress, edit_manifest, reseal
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.errors import DatasetError
from tokenmill.storage.reading import DamagedFileError
from tokenmill.store import compressed, frames
from tokenmill.store.compressed import CompressedShards
from tokenmill.store.frame_cache import CACHE, Decoded, FrameCache
from tokenmill.store.shards import ArrayShard, JoinedShards
from tokenmill.store.tokens import Tokens

RNG = np.random.default_rng(5)
TEXT = RNG.choice(np.frombuffer(b"abcdefgh \n", np.uint8), 30_000).tobytes()


def make(ids, frame, cuts=()):
    """Tokens of compressed shards in memory, cut at some places."""
    parts = np.split(ids, cuts)
    packed = [compress(part.tobytes(), frame * ids.itemsize) for part in parts]
    return read(packed, ids.dtype, [len(part) for part in parts], frame)


def read(packed, dtype, counts, frame):
    files = JoinedShards(tuple(ArrayShard(np.frombuffer(one, np.uint8)) for one in packed))
    return Tokens(CompressedShards(files, dtype, np.array(counts), frame), "train")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rows_are_those_of_the_plain_ids(data):
    dtype = np.dtype(data.draw(st.sampled_from(["<u2", "<u4"])))
    count = data.draw(st.integers(1, 400))
    ids = np.random.default_rng(count).integers(0, 9, count).astype(dtype)
    cuts = sorted(data.draw(st.sets(st.integers(1, count), max_size=4)))
    tokens = make(ids, data.draw(st.integers(1, 120)), [cut for cut in cuts if cut < count])
    if data.draw(st.booleans()):
        tokens = tokens.unmapped()
    length = data.draw(st.integers(1, count))
    starts = np.array(data.draw(st.lists(st.integers(0, count - length), max_size=20)), np.int64)
    expected = ids[starts[:, None] + np.arange(length)]
    np.testing.assert_array_equal(tokens.gather(starts, length), expected)
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first + 1, count))
    for got in (tokens[first:last], tokens.read(first, last)):
        np.testing.assert_array_equal(got, ids[first:last])
    assert tokens[first] == ids[first]
    assert tokens.fingerprint == Tokens.of(ids).fingerprint


def test_a_compressed_dataset_opens_like_the_plain_one(tmp_path):
    ids = build(tmp_path / "plain", {"train": [TEXT], "val": ["held out"]}, shard_tokens=7_000)
    build(
        tmp_path / "packed",
        {"train": [TEXT], "val": ["held out"]},
        shard_tokens=7_000,
        frame_tokens=500,
    )
    plain, packed = tokenmill.open(tmp_path / "plain"), tokenmill.open(tmp_path / "packed")
    assert packed.splits == plain.splits
    assert tokenmill.verify(tmp_path / "packed") == []
    starts = RNG.integers(0, 29_000, 200)
    for tokens in (
        packed["train"],
        pickle.loads(pickle.dumps(packed["train"])),
        packed["train"].unmapped(),
        packed["train"].in_memory(),
    ):
        np.testing.assert_array_equal(
            tokens.gather(starts, 900), ids["train"][starts[:, None] + np.arange(900)]
        )
        assert tokens.identity == plain["train"].identity
    assert packed["train"].locate(15_000) == (2, 1_000)
    assert packed["train"].documents[0] == plain["train"].documents[0]
    for own, other in zip(
        tokenmill.Loader(packed["train"], batch_size=4, seq_len=99, limit_rows=80),
        tokenmill.Loader(plain["train"], batch_size=4, seq_len=99, limit_rows=80),
        strict=True,
    ):
        np.testing.assert_array_equal(own.inputs, other.inputs)
        np.testing.assert_array_equal(own.targets, other.targets)


def test_parts_and_mixtures_of_compressed_shards_have_the_same_rows(tmp_path):
    ids = build(tmp_path / "a", {"train": [TEXT]}, shard_tokens=7_000, frame_tokens=300)["train"]
    build(tmp_path / "b", {"train": [TEXT]}, shard_tokens=9_000)
    data = tokenmill.open(tmp_path / "a", val_fraction=0.4)
    assert len(data["train"]) + len(data["val"]) == len(ids)
    np.testing.assert_array_equal(np.concatenate([data["train"][:], data["val"][:]]), ids)
    starts = np.arange(0, len(data["val"]) - 40, 37)
    first = len(data["train"])
    np.testing.assert_array_equal(
        data["val"].gather(starts, 40), ids[first + starts[:, None] + np.arange(40)]
    )
    names = ("a", "b"), ("b", "b")
    loaders = [
        tokenmill.Loader(
            tokenmill.Mixture(
                {
                    "x": (tokenmill.open(tmp_path / one)["train"], 1),
                    "y": (tokenmill.open(tmp_path / other)["train"], 2),
                }
            ),
            batch_size=4,
            seq_len=50,
            limit_rows=100,
        )
        for one, other in names
    ]
    for own, other in zip(*loaders, strict=True):
        np.testing.assert_array_equal(own.inputs, other.inputs)


@pytest.fixture
def decoded(monkeypatch):
    """The sizes of all frames that are decoded, in order."""
    sizes = []
    real = frames.decode

    def spy(some, lengths):
        sizes.extend(lengths.tolist())
        return real(some, lengths)

    monkeypatch.setattr(compressed, "decode", spy)
    return sizes


def test_reading_in_order_decodes_each_frame_once(decoded):
    ids = RNG.integers(0, 50, 100_000).astype("<u2")
    frame = 1_000
    for step in (777, 40_000):
        tokens = make(ids, frame, [33_333])
        decoded.clear()
        for first in range(0, len(ids), step):
            np.testing.assert_array_equal(
                tokens.read(first, min(first + step, len(ids))), ids[first : first + step]
            )
        assert len(decoded) == 34 + 67
        assert sum(decoded) == ids.nbytes
    tokens = make(ids, frame)
    decoded.clear()
    loader = tokenmill.Loader(tokens, batch_size=8, seq_len=128, order="sequential", prefetch=0)
    for _, _batch in zip(range(90), loader, strict=False):
        pass
    assert len(decoded) == 100


def test_the_cache_holds_no_more_than_its_bytes_and_drops_the_least_used(decoded, monkeypatch):
    cache = FrameCache(50_000)
    monkeypatch.setattr(compressed, "CACHE", cache)
    ids = RNG.integers(0, 50, 200_000).astype("<u2")
    tokens = make(ids, 1_000)  # 2,000 bytes each
    for _ in range(100):
        tokens.gather(RNG.integers(0, 190_000, 10), 1_500)
        assert cache.bytes <= 50_000
    for number in range(20):
        _ = tokens[number * 1_000], tokens[0]
    decoded.clear()
    _ = tokens[0], tokens[19_000], tokens[20_000]
    assert len(decoded) == 1


def test_a_frame_that_two_threads_decoded_is_dropped_once():
    cache = FrameCache(100)
    cache.add(Decoded(1, [5], [], 40), [1000])
    cache.add(Decoded(1, [5], [], 40), [2000])
    assert cache.find(1, [5])[0][0] == 2000
    cache.add(Decoded(2, [7], [], 90), [3000])
    assert cache.bytes == 90
    assert cache.find(1, [5]) == [None]


def test_threads_and_forks_read_the_same_rows():
    ids = RNG.integers(0, 50, 300_000).astype("<u2")
    tokens = make(ids, 700, [100_000])
    wrong = []

    def work(seed):
        random = np.random.default_rng(seed)
        for _ in range(30):
            starts = random.integers(0, len(ids) - 900, 40)
            if (tokens.gather(starts, 900) != ids[starts[:, None] + np.arange(900)]).any():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    child = os.fork()  # while a thread may hold the lock of the cache
    if child == 0:
        status = 1
        try:
            work(9)
            status = len(wrong)
        finally:
            os._exit(status)
    for thread in threads:
        thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert not wrong


def test_rows_longer_than_what_is_decoded_at_once(monkeypatch):
    monkeypatch.setattr("tokenmill.store.frame_rows.TOGETHER", 4_000)
    monkeypatch.setattr(compressed, "TOGETHER", 4_000)
    ids = RNG.integers(0, 50, 50_000).astype("<u2")
    tokens = make(ids, 300, [20_100])
    starts = RNG.integers(0, 50_000 - 9_000, 9)
    for length in (9_000, 1_999, 10):
        expected = ids[starts[:, None] + np.arange(length)]
        np.testing.assert_array_equal(tokens.gather(starts, length), expected)


def test_a_flipped_bit_is_refused_and_never_gives_other_ids():
    ids = np.frombuffer(TEXT[:1_500], np.uint8).astype("<u2")
    packed = compress(ids.tobytes(), 1_000)
    refused = 0
    for bit in range(0, 8 * len(packed), 5):
        changed = bytearray(packed)
        changed[bit // 8] ^= 1 << bit % 8
        tokens = read([bytes(changed)], ids.dtype, [len(ids)], 500)
        try:
            np.testing.assert_array_equal(tokens[:], ids)
        except DamagedFileError:
            refused += 1
    assert refused > 8 * len(packed) // 5 * 0.99  # a bit or two of a frame mean nothing


def damage(packed, place, form, value):
    changed = bytearray(packed)
    struct.pack_into(form, changed, len(packed) + place if place < 0 else place, value)
    return bytes(changed)


def frame_of(data, **options):
    return zstandard.ZstdCompressor(level=3, **options).compress(data)


def with_frame(frame, size):
    """A file of one frame that its table describes with `size`."""
    table = struct.pack("<IIIIIBI", 0x184D2A5E, 17, len(frame), size, 1, 0, 0x8F92EAB1)
    return frame + table


PLAIN = TEXT[:2_000]
PACKED = compress(PLAIN, 400)


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (b"", "too few for the table"),
        (PACKED[-30:], "too few for the table"),
        (PACKED[:-1] + b"\0", "does not end with a table of 5 frames"),
        (damage(PACKED, -9, "<I", 6), "does not end with a table of 5 frames"),
        (damage(PACKED, -9, "<I", 1 << 31), "does not end with a table of 5 frames"),
        (damage(PACKED, -5, "<B", 0x80), "does not end with a table of 5 frames"),
        (damage(PACKED, -57, "<I", 0x184D2A50), "does not end with a table of 5 frames"),
        (damage(PACKED, -53, "<I", 1 << 30), "does not end with a table of 5 frames"),
        (damage(PACKED, -49, "<I", 1 << 31), "a wrong size for frame 0"),
        (damage(PACKED, -49, "<I", 3), "a wrong size for frame 0"),
        (damage(PACKED, -49, "<I", 99), "its table describes a file of"),
        (damage(PACKED, -45, "<I", 401), "a wrong size for frame 0"),
        (damage(PACKED, -13, "<I", 1 << 31), "a wrong size for frame 4"),
        (PACKED[:40] + PACKED[41:], "but its table describes a file of"),
        (compress(PLAIN, 200), "does not end with a table of 5 frames"),
        (damage(PACKED, 0, "<I", 0x184D2A50), "in frame 0, with tokens 0 to 199: its header"),
    ],
)
def test_a_damaged_table_is_refused_before_anything_is_decoded(packed, reason):
    tokens = read([packed], np.dtype("<u2"), [1_000], 200)
    for reader in (tokens, tokens.unmapped()):
        with pytest.raises(DamagedFileError, match=reason):
            _ = reader[:]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (frame_of(PLAIN), "its header is wrong"),
        (frame_of(PLAIN[:1_000], write_checksum=True), "its header is wrong"),
        (frame_of(PLAIN * 2, write_checksum=True), "its header is wrong"),
        (frame_of(bytes(1 << 28), write_checksum=True)[:3_000], "its header is wrong"),
        (frames.make_header(2_000) + frame_of(bytes(1 << 25))[9:], "too small|corruption"),
        (frames.make_header(2_000) + bytes([1, 0, 0]) + bytes(4), "corruption|expected 2000"),
        (frames.make_header(2_000) + bytes(900), "corruption|expected 2000|Src size"),
        (frame_of(PLAIN, write_checksum=True)[:-1], "expected 2000|Src size"),
        (frame_of(PLAIN, write_checksum=True)[:-4] + b"1234", "checksum"),
    ],
)
def test_a_hostile_frame_is_refused(frame, reason):
    tokens = read([with_frame(frame, 2_000)], np.dtype("<u2"), [1_000], 1_000)
    with pytest.raises(DamagedFileError, match=rf"in frame 0, with tokens 0 to 999: .*({reason})"):
        _ = tokens[5]


def test_a_file_that_shrinks_or_is_missing_is_named(tmp_path):
    build(tmp_path, {"train": [TEXT]}, frame_tokens=500, shard_tokens=20_000)
    path = tmp_path / "train/shard_00001.bin.zst"
    data = path.read_bytes()
    tokens = tokenmill.open(tmp_path)["train"]
    unmapped = tokens.unmapped()
    _ = unmapped[20_000]
    path.write_bytes(data[:-1])
    with pytest.raises(DatasetError, match=r"shard_00001\.bin\.zst is 1 bytes too short"):
        _ = tokens[25_000]
    with pytest.raises(DatasetError, match=r"shard_00001\.bin\.zst is 1 bytes too short"):
        _ = unmapped[25_000]
    path.unlink()
    with pytest.raises(DatasetError, match=r"shard_00001\.bin\.zst is missing"):
        _ = tokens[25_000]
    assert any("is missing" in problem.what for problem in tokenmill.verify(tmp_path))


def test_a_compressed_shard_is_not_taken_for_plain_ids(tmp_path):
    build(tmp_path, {"train": [TEXT]}, frame_tokens=500, shard_tokens=20_000)
    for name in ("train/shard_00000.bin.zst", "train/shard_00001.bin.zst"):
        with pytest.raises(DatasetError, match=r"is a compressed shard\. Open its dataset"):
            tokenmill.open(tmp_path / name)


def test_verify_compares_the_file_and_the_ids_with_their_checksums(tmp_path):
    build(tmp_path, {"train": [TEXT]}, frame_tokens=500, shard_tokens=20_000)
    path = tmp_path / "train/shard_00000.bin.zst"
    sound = path.read_bytes()
    path.write_bytes(sound[:3_000] + bytes([sound[3_000] ^ 1]) + sound[3_001:])
    texts = [problem.what for problem in tokenmill.verify(tmp_path)]
    assert any("does not match its checksum" in text for text in texts)
    assert any("is damaged in frame" in text for text in texts)
    # Valid frames of other ids, with the checksum of the new file: only the ids' checksum tells.
    ids = np.frombuffer(TEXT[:19_999] + b"z", np.uint8).astype("<u2")
    path.write_bytes(compress(ids.tobytes(), 1_000))
    reseal(tmp_path)
    (problem,) = tokenmill.verify(tmp_path)
    assert "shard_00000.bin.zst" in problem.file
    assert "does not match its checksum" in problem.what


@pytest.mark.parametrize(
    "edit",
    [
        lambda body: body.update(version=3),
        lambda body: body.pop("compression"),
        lambda body: body["compression"].update(name="gzip"),
        lambda body: body["compression"].update(tokens_per_frame=0),
        lambda body: body["compression"].update(tokens_per_frame=1 << 40),
        lambda body: body["compression"].update(more=1),
        lambda body: body["splits"]["train"]["shards"][1].pop("compressed"),
        lambda body: body["splits"]["train"]["shards"][0]["compressed"].update(bytes=-1),
        lambda body: body["splits"]["train"]["shards"][0]["compressed"].update(bytes="5"),
    ],
)
def test_a_manifest_that_does_not_fit_compressed_shards_is_refused(tmp_path, edit):
    build(tmp_path, frame_tokens=4)
    tokenmill.open(tmp_path)
    edit_manifest(tmp_path, edit)
    with pytest.raises(DatasetError, match=r"dataset_metadata\.json is damaged"):
        tokenmill.open(tmp_path)


def test_a_manifest_that_claims_too_much_costs_no_memory(tmp_path):
    build(tmp_path, {"train": ["text"]}, frame_tokens=4)

    def edit(body):
        split = body["splits"]["train"]
        split["tokens"] = split["shards"][0]["tokens"] = 1 << 50

    edit_manifest(tmp_path, edit)
    with pytest.raises(DatasetError, match="too few for the table"):
        _ = tokenmill.open(tmp_path)["train"][5]
    assert CACHE.bytes <= 64 << 20


@pytest.mark.parametrize("size", [1, 255, 256, 65_791, 65_792, 1 << 17])
def test_headers_are_those_that_zstd_writes(size):
    header = frames.make_header(size)
    packed = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(bytes(size))
    assert packed.startswith(header)
    assert zstandard.frame_header_size(packed) == len(header)
