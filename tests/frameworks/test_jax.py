import gc
import json
import subprocess
import sys
import threading
import time
from itertools import islice

import jax
import numpy as np
import pytest
from expected_batches import IDS, SETTINGS, numpy_batches
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tokenmill
import tokenmill.jax as tj
from tokenmill import Tokens
from tokenmill.errors import StateError, TokenmillError, UsageError


def assert_equal(batch, expected):
    assert isinstance(batch[0], jax.Array)
    assert batch[0].dtype == batch[1].dtype == np.int32
    assert np.array_equal(batch[0], expected.inputs)
    assert np.array_equal(batch[1], expected.targets)


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_arrays_equal_those_of_the_numpy_loader(tokens, prefetch):
    with tj.Loader(tokens, **SETTINGS, prefetch=prefetch) as loader:
        for step, expected in enumerate(numpy_batches(tokens, 90)):
            assert_equal(next(loader), expected)
            assert_equal(loader.batch_at(step), expected)
        assert loader.row == 360
        assert loader.ledger()[""].rows == 360
        assert_equal(next(loader), numpy_batches(tokens, 91)[90])


def test_a_loader_starts_over_after_its_last_batch(tokens):
    with tj.Loader(tokens, **SETTINGS, limit_rows=14) as loader:
        for _ in range(2):
            for batch, expected in zip(
                islice(loader, len(loader)), numpy_batches(tokens, 3), strict=True
            ):
                assert_equal(batch, expected)


def aligned(shape):
    """An array that JAX uses without a copy, and the object that owns its memory."""
    memory = np.empty(int(np.prod(shape)) * 4 + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory, memory[begin : begin + memory.size - 64].view(np.int32).reshape(shape)


def test_jax_holds_a_reference_to_memory_that_it_aliases():
    """The reuse of memory in the loader depends on this."""
    memory, rows = aligned((8, 16))
    rows[:] = 1
    before = sys.getrefcount(memory)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    array = jax.make_array_from_callback((4, 16), sharding, lambda index: rows[4:][index])
    rows[:] = 2
    assert int(array[0, 0]) == 2, "JAX copies now: this test can go"
    assert sys.getrefcount(memory) > before
    del array
    gc.collect()
    assert sys.getrefcount(memory) == before


# So large that few of them share the memory of a group, which is the unit of reuse.
LARGE = {**SETTINGS, "batch_size": 64, "seq_len": 256}


def test_the_repr_of_a_loader_names_its_data(tokens):
    loader = tj.Loader(tokens, **SETTINGS)
    next(loader)
    rows, length = SETTINGS["batch_size"], SETTINGS["seq_len"]
    assert repr(loader) == f"<tokenmill.jax.Loader {rows} x {length} of {tokens!r}, row {rows}>"


def test_arrays_that_are_kept_do_not_change(tokens):
    loader = tj.Loader(tokens, **LARGE)
    kept = [next(loader) for _ in range(200)]
    for batch, expected in zip(kept, numpy_batches(tokens, 200, **LARGE), strict=True):
        assert_equal(batch, expected)


def test_memory_is_reused_once_nothing_refers_to_it(tokens):
    loader = tj.Loader(tokens, **LARGE, prefetch=0)
    places = {next(loader).inputs.unsafe_buffer_pointer() for _ in range(200)}
    assert len(places) < 100


def test_batches_do_not_change_while_a_computation_needs_them(tokens):
    @jax.jit
    def slow(inputs):
        def step(_, total):
            return (total + jax.numpy.sum(inputs * (total % 7 + 1))) % 1_000

        return jax.lax.fori_loop(0, 300, step, jax.numpy.int32(1))

    def slow_in_numpy(inputs):
        total = 1
        for _ in range(300):
            total = int(total + np.sum(inputs * (total % 7 + 1))) % 1_000
        return total

    small = Tokens.of(IDS % 100)
    loader = tj.Loader(small, **LARGE)
    results = [slow(next(loader).inputs) for _ in range(60)]
    for result, expected in zip(results, numpy_batches(small, 60, **LARGE), strict=True):
        assert int(result) == int(slow_in_numpy(expected.inputs.astype(np.int32)))


def test_numpy_and_jax_loaders_exchange_states(tokens):
    arrays = tokenmill.Loader(tokens, **SETTINGS)
    next(arrays)
    loader = tj.Loader(tokens, **{**SETTINGS, "batch_size": 2})
    next(loader)
    loader.load_state_dict(json.loads(json.dumps(arrays.state_dict())))
    assert_equal(next(loader), numpy_batches(tokens, 3, batch_size=2)[2])
    arrays.load_state_dict(loader.state_dict())  # does not count batches that are read ahead
    assert arrays.row == 6
    with pytest.raises(StateError, match="seed is 3"):
        tj.Loader(tokens, **{**SETTINGS, "seed": 4}).load_state_dict(arrays.state_dict())


def test_a_limit_ends_a_run_with_its_last_whole_step(tokens):
    loader = tj.Loader(tokens, **SETTINGS, limit_rows=23)
    assert len(loader) == 5
    for _ in range(2):  # it starts over
        got = list(loader)
        for batch, expected in zip(got, numpy_batches(tokens, 5), strict=True):
            assert_equal(batch, expected)
    with pytest.raises(StopIteration):
        next(loader)
    with pytest.raises(IndexError, match="0 to 4"):
        loader.batch_at(5)


def test_batches_have_documents_as_arrays():
    ids = np.array([5, 5, 0, 6, 0, 7, 7, 7, 7, 0, 8, 8, 8])
    loader = tj.Loader(
        Tokens.of(ids, eot_id=0), batch_size=2, seq_len=6, order="sequential", documents=True
    )
    documents = next(loader).documents
    assert documents.ids.tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 1, 1]]
    assert documents.positions.tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 1]]


def test_batches_before_an_error_come_first(tokens):
    ids = np.arange(40, dtype=np.uint32)
    ids[30] = 1 << 31  # beyond int32
    loader = tj.Loader(Tokens.of(ids), batch_size=1, seq_len=8, order="sequential")
    for first in (0, 8, 16):
        assert next(loader).inputs[0, 0] == first
    for _ in range(2):
        with pytest.raises(TokenmillError, match="2147483648"):
            next(loader)
    assert loader.row == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data_axis": "rows", "mesh": "here"}, "no axis 'rows'.*one of: data"),
        ({"mesh": "here", "sharding": "here"}, "not both"),
        ({"batch_size": 0}, "at least 1"),
        ({"prefetch": -1}, "0 or more"),
        ({"dtype": np.int64}, "`dtype` is int64"),
        ({"world_size": 2, "rank": 0}, "JAX knows"),
        ({"drop_last": False}, "always omitted"),
    ],
)
def test_invalid_settings_are_refused(tokens, settings, message):
    mesh = Mesh(np.array(jax.devices()), ("data",))
    here = {"mesh": mesh, "sharding": NamedSharding(mesh, PartitionSpec())}
    given = {key: here[key] if value == "here" else value for key, value in settings.items()}
    with pytest.raises(UsageError, match=message):
        tj.Loader(tokens, **{**SETTINGS, **given})


def test_dropping_a_loader_stops_its_thread(tokens):
    before = threading.active_count()
    loader = tj.Loader(tokens, **SETTINGS)
    next(loader)
    assert threading.active_count() == before + 1
    del loader
    deadline = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_a_program_can_end_while_batches_are_read_ahead(tmp_path):
    """A thread that is inside JAX at exit could crash the process."""
    np.save(tmp_path / "ids.npy", IDS)
    code = f"""
import tokenmill, tokenmill.jax
tokens = tokenmill.open({str(tmp_path / "ids.npy")!r})["train"]
loaders = [tokenmill.jax.Loader(tokens, batch_size=64, seq_len=16, prefetch=500) for _ in range(8)]
for loader in loaders:
    next(loader)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("module", ["tokenmill.jax", "tokenmill.torch", "tokenmill"])
def test_a_short_script_prints_nothing(module):
    code = f"""
import numpy as np, tokenmill, {module}
loader = {module}.Loader(tokenmill.Tokens.of(np.arange(100_000)), batch_size=8, seq_len=64)
next(loader)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
