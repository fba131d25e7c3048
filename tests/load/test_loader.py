import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill import Loader, Mixture, Tokens
from tokenmill.errors import UsageError
from tokenmill.order.mixture import MixtureOrder
from tokenmill.order.rows import RowOrder

IDS = np.random.default_rng(0).integers(0, 60_000, 5_003).astype(np.uint16)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "tokenmill"]


def expected_rows(ids, seq_len, rows, **order):
    """Rows from the order and slices of NumPy."""
    starts = RowOrder(tokens=len(ids), seq_len=seq_len, **order).starts(np.asarray(rows))
    return np.stack([ids[start : start + seq_len + 1] for start in starts.tolist()])


def test_batches_have_the_rows_of_the_order():
    loader = Loader(Tokens.of(IDS), batch_size=3, seq_len=16, seed=5)
    for step in range(300):  # nearly three epochs
        batch = next(loader)
        rows = expected_rows(IDS, 16, range(3 * step, 3 * step + 3), seed=5)
        assert batch.row == 3 * step
        assert batch.inputs.dtype == batch.targets.dtype == np.int64
        assert np.array_equal(batch.inputs, rows[:, :-1])
        assert np.array_equal(batch.targets, rows[:, 1:])


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("prefetch", [0, 1, 7])
@pytest.mark.parametrize("order", ["shuffled", "sequential", "random"])
def test_every_way_of_making_a_batch_gives_the_same(contiguous, prefetch, order):
    loader = Loader(
        Tokens.of(IDS), batch_size=4, seq_len=10, seed=1, order=order, prefetch=prefetch,
        contiguous=contiguous, dtype=np.int32,
    )  # fmt: skip
    with loader:
        for step in range(20):
            batch, again = next(loader), loader.batch_at(step)
            rows = expected_rows(IDS, 10, range(4 * step, 4 * step + 4), seed=1, kind=order)
            for one in (batch, again):
                assert one.row == 4 * step
                assert np.array_equal(one.inputs, rows[:, :-1])
                assert np.array_equal(one.targets, rows[:, 1:])
                assert one.inputs.dtype == np.int32
                assert one.inputs.flags.c_contiguous == contiguous


def test_any_step_can_be_read_directly():
    loader = Loader(Tokens.of(IDS), batch_size=2, seq_len=16, seed=5)
    rows = expected_rows(IDS, 16, [2_000_000_000_000, 2_000_000_000_001], seed=5)
    assert np.array_equal(loader.batch_at(10**12).inputs, rows[:, :-1])


def test_batches_that_are_kept_do_not_change():
    loader = Loader(Tokens.of(IDS), batch_size=4, seq_len=16, seed=2, prefetch=2)
    kept = [next(loader) for _ in range(60)]
    views = [next(loader).targets[1:2, 3:] for _ in range(60)]  # only a view is kept
    for step, batch in enumerate(kept):
        rows = expected_rows(IDS, 16, range(4 * step, 4 * step + 4), seed=2)
        assert np.array_equal(batch.inputs, rows[:, :-1])
    for step, view in enumerate(views, start=60):
        assert np.array_equal(view, expected_rows(IDS, 16, [4 * step + 1], seed=2)[:, 4:])


@given(
    windows=st.integers(1, 40),
    world_sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    batch_sizes=st.lists(st.integers(1, 6), min_size=4, max_size=4),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_any_chain_of_restarts_gives_every_row_once(windows, world_sizes, batch_sizes, data):
    tokens = Tokens.of(np.arange(windows * 3 + 1))
    limit = data.draw(st.integers(0, 3 * windows))
    state, seen = None, []
    for number, (world_size, batch_size) in enumerate(
        zip(world_sizes, batch_sizes[: len(world_sizes)], strict=True)
    ):
        loaders = [
            Loader(
                tokens, batch_size=batch_size, seq_len=3, rank=rank, world_size=world_size,
                limit_rows=limit, prefetch=rank % 2,
            )
            for rank in range(world_size)
        ]  # fmt: skip
        last = number == len(world_sizes) - 1
        steps = None if last else data.draw(st.integers(0, 4))
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        while steps is None or steps > 0:
            if loaders[0].row >= limit:
                break
            batches = [next(loader) for loader in loaders]
            assert len({loader.row for loader in loaders}) == 1
            seen += [row for batch in batches for row in batch.inputs[:, 0].tolist()]
            steps = None if steps is None else steps - 1
        state = loaders[0].state_dict()
        for loader in loaders:
            loader.close()
    order = RowOrder(tokens=windows * 3 + 1, seq_len=3)
    assert seen == order.starts(np.arange(limit)).tolist()


def test_limits():
    tokens = Tokens.of(IDS)  # 312 windows of 16
    assert len(Loader(tokens, batch_size=10, seq_len=16, limit_epochs=1)) == 32
    assert len(Loader(tokens, batch_size=10, seq_len=16, limit_epochs=1, drop_last=True)) == 31
    assert len(Loader(tokens, batch_size=10, seq_len=16, limit_tokens=1_600)) == 10
    loader = Loader(tokens, batch_size=10, seq_len=16, limit_rows=25)
    assert [len(batch.inputs) for batch in loader] == [10, 10, 5]
    assert [batch.row for batch in loader] == [0, 10, 20]  # and again
    assert list(Loader(tokens, batch_size=10, seq_len=16, limit_rows=0)) == []
    with pytest.raises(TypeError, match="limit_epochs"):
        len(Loader(tokens, batch_size=10, seq_len=16))
    with pytest.raises(IndexError, match="0 to 24"):
        loader.batch_at(3)
    whole = Loader(tokens, batch_size=10, seq_len=16, limit_rows=25, drop_last=True)
    assert len(whole.batch_at(len(whole) - 1).inputs) == 10
    with pytest.raises(IndexError, match="0 to 15"):
        whole.batch_at(len(whole))
    with pytest.raises(IndexError, match="has no batch"):
        Loader(tokens, batch_size=10, seq_len=16, limit_rows=9, drop_last=True).batch_at(0)
    endless = Loader(tokens, batch_size=10, seq_len=16)
    assert endless.batch_from(2**62 - 1).row == 2**62 - 1
    for row in (-1, 2**62, 2**63, 2**70):
        with pytest.raises(IndexError, match="no batch starts at row"):
            endless.batch_from(row)


def test_a_dropped_last_step_stays_dropped_when_the_batch_size_changes():
    first = Loader(Tokens.of(IDS), batch_size=8, seq_len=16, limit_rows=24, drop_last=True)
    next(first)
    for rank in range(3):
        loader = Loader(
            Tokens.of(IDS), batch_size=4, seq_len=16, limit_rows=24, drop_last=True, rank=rank,
            world_size=3,
        )  # fmt: skip
        loader.load_state_dict(first.state_dict())
        assert [len(batch.inputs) for batch in loader] == [4]
        assert [batch.row for batch in loader] == [4 * rank, 12 + 4 * rank]  # after starting over


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_starts_over_after_its_last_batch(drop_last):
    loader = Loader(Tokens.of(IDS), batch_size=4, seq_len=16, limit_rows=14, drop_last=drop_last)
    wanted = [0, 4, 8] + [12] * (not drop_last)
    for _ in range(3):  # neither loop asks for a batch after the last one
        assert [batch.row for batch in islice(loader, len(loader))] == wanted
        assert [batch.row for _, batch in zip(range(len(loader)), loader, strict=False)] == wanted
    assert loader.state_dict()["row"] == (12 if drop_last else 14)
    with pytest.raises(StopIteration):
        next(loader)


def test_resuming_a_finished_run_gives_no_batch():
    loader = Loader(Tokens.of(IDS), batch_size=4, seq_len=16, limit_rows=12)
    assert len(list(loader)) == 3
    again = Loader(Tokens.of(IDS), batch_size=4, seq_len=16, limit_rows=12)
    again.load_state_dict(loader.state_dict())
    assert list(again) == []


def test_an_interrupt_loses_no_batch():
    def interrupt(batches):
        next(batches)
        raise KeyboardInterrupt
        yield

    loader = Loader(Tokens.of(IDS), batch_size=4, seq_len=16)
    for _ in range(3):
        next(loader)
    next(loader)
    loader._batches = interrupt(loader._batches)
    with pytest.raises(KeyboardInterrupt):
        next(loader)
    assert loader.state_dict()["row"] == 16
    assert next(loader).row == 16


@pytest.mark.parametrize("order", [{}, {"order": "sequential"}, {"order": "blocks"}])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_all_ranks_have_equally_many_batches(mixture, order, is_mixed):
    data = mixture if is_mixed else Tokens.of(IDS)
    run = {"batch_size": 2, "seq_len": 16, "world_size": 4, "limit_rows": 18, **order}
    counts = [[len(batch.inputs) for batch in Loader(data, rank=rank, **run)] for rank in range(4)]
    assert counts == [[2, 2, 0], [2, 2, 1], [2, 2, 0], [2, 2, 1]]


def test_the_origin_of_a_row_is_its_source_and_first_token(mixture):
    loader = Loader(mixture, batch_size=1, seq_len=16)
    sources = dict(zip(mixture.names, mixture.tokens, strict=True))
    names = set()
    for row in range(200):
        name, token = loader.rows.origin(row)
        names.add(name)
        assert (
            sources[name][token : token + 16].tolist() == loader.batch_from(row).inputs[0].tolist()
        )
    assert names == {"web", "code"}


def test_a_mixture_of_int64_and_uint64_keeps_large_ids():
    large = 2**53 + 1
    sources = {dtype: (Tokens.of(np.full(100, large, dtype)), 1) for dtype in ("u8", "i8")}
    batch = next(Loader(Mixture(sources, block=2), batch_size=8, seq_len=4))
    assert (batch.inputs == large).all()


def test_a_new_loop_after_a_break_continues():
    loader = Loader(Tokens.of(IDS), batch_size=2, seq_len=16)
    for batch in loader:
        if batch.row == 8:
            break
    assert next(iter(loader)).row == 10


@pytest.fixture
def mixture():
    web, code = Tokens.of(np.arange(3_000)), Tokens.of(np.arange(10_000, 11_000))
    return Mixture({"web": (web, 3), "code": (code, 1)}, changes={100: {"code": 3}}, block=20)


def test_a_mixture_takes_each_source_in_its_own_order(mixture):
    loader = Loader(mixture, batch_size=8, seq_len=4, seed=3)
    order = MixtureOrder(
        names=("web", "code"), phases=((0, (3.0, 1.0)), (100, (3.0, 3.0))), seed=3, block=20
    )
    for step in range(40):
        sources, numbers = order.assign(np.arange(8 * step, 8 * step + 8))
        batch = next(loader)
        for row, (source, number) in enumerate(
            zip(sources.tolist(), numbers.tolist(), strict=True)
        ):
            name, length, base = [("web", 3_000, 0), ("code", 1_000, 10_000)][source]
            start = RowOrder(tokens=length, seq_len=4, seed=3, name=name).starts(np.array([number]))
            assert batch.inputs[row].tolist() == (base + start + np.arange(4)).tolist()


def test_the_ledger_counts_the_rows_of_each_source(mixture):
    loader = Loader(mixture, batch_size=10, seq_len=4)
    for _ in range(16):
        next(loader)
    ledger = loader.ledger()
    assert (ledger["web"].rows, ledger["code"].rows) == (75 + 30, 25 + 30)
    assert ledger["web"].tokens == 105 * 4
    assert ledger["web"].epochs == pytest.approx(105 / (2_999 // 4))


def test_sources_of_several_dtypes_mix():
    web = Tokens.of(np.arange(500, dtype=np.uint16))
    code = Tokens.of(np.arange(70_000, 70_500, dtype=np.uint32))
    for contiguous in (False, True):
        mixed = Mixture({"web": (web, 1), "code": (code, 1)}, block=10)
        loader = Loader(mixed, batch_size=10, seq_len=4, contiguous=contiguous)
        firsts = next(loader).inputs[:, 0]
        assert (firsts >= 70_000).sum() == (firsts < 500).sum() == 5


def test_in_memory_batches_are_the_same(tmp_path, mixture):
    plain, copied = (
        Loader(mixture, batch_size=8, seq_len=4, in_memory=in_memory) for in_memory in (False, True)
    )
    for _ in range(5):
        assert np.array_equal(next(plain).inputs, next(copied).inputs)


def test_batches_have_documents(mixture):
    ids = np.array([5, 5, 0, 6, 0, 7, 7, 7, 7, 0, 8, 8, 8])
    loader = Loader(
        Tokens.of(ids, eot_id=0), batch_size=2, seq_len=6, order="sequential", documents=True
    )
    documents = next(loader).documents
    assert documents.ids.tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 1, 1]]
    assert documents.positions.tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 1]]
    assert documents.cu_seqlens.tolist() == [0, 3, 5, 6, 10, 12]


def test_every_batch_of_a_group_has_documents_even_an_empty_one():
    ids = np.random.default_rng(4).integers(0, 9, 4_000)
    settings = {"batch_size": 3, "seq_len": 8, "documents": True, "world_size": 4}
    for rank in range(4):
        loader = Loader(Tokens.of(ids, eot_id=0), **settings, rank=rank, limit_rows=122)
        for batch in loader:
            ends = (batch.inputs == 0).cumsum(1)
            assert batch.documents.ids[:, 0].tolist() == [0] * len(batch.inputs)
            assert np.array_equal(batch.documents.ids[:, 1:], ends[:, :-1])
            cuts = np.flatnonzero(batch.documents.positions == 0)
            assert batch.documents.cu_seqlens.tolist() == [*cuts.tolist(), batch.inputs.size]


def test_documents_of_a_mixture_match_its_rows():
    ids = np.random.default_rng(4).integers(0, 5, 400)
    a, b = Tokens.of(ids, eot_id=0), Tokens.of(ids[::-1].copy(), eot_id=0)
    mixed = Mixture({"a": (a, 1), "b": (b, 1)}, block=4)
    batch = next(Loader(mixed, batch_size=16, seq_len=8, documents=True))
    for row in range(16):
        ends = (batch.inputs[row] == 0).cumsum()
        assert batch.documents.ids[row].tolist() == [0, *ends[:-1].tolist()]


def test_the_same_tokens_in_any_number_of_files_give_the_same_batches(tmp_path):

    whole = tmp_path / "whole.npy"
    np.save(whole, IDS)
    digests, states = [], []
    for shards in (1, 7, 100):
        folder = tmp_path / f"shards_{shards}"
        folder.mkdir()
        for number, part in enumerate(np.array_split(IDS, shards)):
            header = np.zeros(256, "<i4")
            header[:3] = 20240520, 1, len(part)
            with (folder / f"x_train_{number:06}.bin").open("wb") as file:
                file.write(header.tobytes() + part.astype("<u2").tobytes())
        val = np.zeros(256, "<i4")
        val[:3] = 20240520, 1, 1
        (folder / "x_val_000000.bin").write_bytes(val.tobytes() + b"\0\0")
        digests.append(_digest(tokenmill.open(folder)["train"]))
        states.append(Loader(tokenmill.open(folder)["train"], batch_size=2, seq_len=9).state_dict())
    digests.append(_digest(tokenmill.open(whole)["train"]))
    states.append(Loader(tokenmill.open(whole)["train"], batch_size=2, seq_len=9).state_dict())
    assert len(set(digests)) == 1
    assert all(state == states[0] for state in states)


def _digest(tokens):
    with Loader(tokens, batch_size=5, seq_len=33, seed=8) as loader:
        return b"".join(next(loader).inputs.tobytes() for _ in range(80))


def test_settings_may_be_numpy_integers(mixture):
    loader = Loader(
        mixture, batch_size=np.int64(2), seq_len=np.int32(4), seed=np.uint8(3),
        limit_tokens=np.int64(64),
    )  # fmt: skip
    assert len(list(loader)) == 8
    json.dumps(loader.state_dict())
    changed = Mixture({"a": (Tokens.of(IDS), 1)}, changes={np.int64(100): {"a": 2}})
    json.dumps(Loader(changed, batch_size=2, seq_len=4).state_dict())


def test_closing_and_dropping_a_loader_stop_its_thread():
    before = len(threads())
    loader = Loader(Tokens.of(IDS), batch_size=4, seq_len=16)
    next(loader)
    assert len(threads()) == before + 1
    loader.close()
    assert len(threads()) == before
    assert next(loader).row == 4
    del loader
    gc.collect()
    deadline = time.monotonic() + 20
    while len(threads()) > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_program_can_end_while_batches_are_made():
    program = (
        "import numpy as np, tokenmill\n"
        "loader = tokenmill.Loader(tokenmill.Tokens.of(np.arange(9999)), batch_size=2, seq_len=8)\n"
        "print(next(loader).row)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"0\n", b"")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_continues_on_its_own():
    loader = Loader(Tokens.of(IDS), batch_size=4, seq_len=16, seed=3)
    next(loader)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, next(loader).inputs.tobytes() + next(loader).inputs.tobytes())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    assert result == next(loader).inputs.tobytes() + next(loader).inputs.tobytes()


def test_a_pickled_loader_continues_where_it_was():
    loader = Loader(Tokens.of(IDS), batch_size=4, seq_len=16, seed=3)
    next(loader)
    copy = pickle.loads(pickle.dumps(loader))
    assert np.array_equal(next(copy).inputs, next(loader).inputs)
    assert copy.row == 8


def test_a_mixture_has_no_epochs(mixture):
    with pytest.raises(UsageError, match="limit_rows"):
        Loader(mixture, batch_size=4, seq_len=16, limit_epochs=1)


def test_fewer_batches_are_read_at_once_if_they_are_larger():
    def count(batch_size):
        return Loader(Tokens.of(IDS), batch_size=batch_size, seq_len=16, seed=1).reader.read_size

    sizes = [count(batch_size) for batch_size in (1, 1_000, 100_000, 10_000_000)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("prefetch", [None, 0])
@pytest.mark.parametrize("length", [131_072, 131_073, 2_097_153])  # 1 MiB of int64, 4 MiB of uint16
def test_a_batch_may_be_larger_than_one_read(length, prefetch, contiguous):
    ids = np.resize(np.arange(60_000, dtype=np.uint16), 3 * length + 1)
    loader = Loader(
        Tokens.of(ids), batch_size=1, seq_len=length, order="sequential", limit_epochs=1,
        prefetch=prefetch, contiguous=contiguous,
    )  # fmt: skip
    assert loader.reader.group_size == 1
    assert loader.reader.read_size == (1 if length > 2_000_000 else (2 << 20) // length)
    batches = list(loader)
    assert [batch.row for batch in batches] == [0, 1, 2]
    for number, batch in enumerate(batches):
        first = number * length
        assert np.array_equal(batch.inputs, ids[None, first : first + length])
        assert np.array_equal(batch.targets, ids[None, first + 1 : first + length + 1])
