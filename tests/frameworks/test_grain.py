import json
import subprocess
import sys
from pathlib import Path

import grain
import numpy as np
import pytest
from expected_batches import IDS, SETTINGS, numpy_batches

import tokenmill
import tokenmill.grain as tg
from tokenmill import Mixture, Tokens
from tokenmill.errors import UsageError

PROGRAM = Path(__file__).with_name("grain_program.py")


def assert_equal(batches, expected):
    for batch, wanted in zip(batches, expected, strict=True):
        assert np.array_equal(batch[0], wanted.inputs)
        assert np.array_equal(batch[1], wanted.targets)


def test_sources_have_the_interface_of_grain(tokens):
    for source in (tg.TokenRows(tokens, seq_len=16), tg.TokenBatches(tokens, **SETTINGS)):
        assert isinstance(source, grain.sources.RandomAccessDataSource)


def test_batches_equal_those_of_the_numpy_loader(tokens):
    dataset = tg.make_dataset(tokens, **SETTINGS, limit_rows=3_999)
    assert len(dataset) == 1_000
    expected = numpy_batches(tokens, 1_000, limit_rows=3_999)  # the last one is short
    assert_equal([dataset[step] for step in range(1_000)], expected)
    assert dataset[7].inputs.dtype == np.int32
    source = tg.TokenBatches(tokens, **SETTINGS, limit_rows=3_999)
    assert_equal([source[-1], source[np.int64(3)]], [expected[-1], expected[3]])
    with pytest.raises(IndexError, match="0 to 999"):
        source[1_000]


@pytest.mark.parametrize("batch_size", [3, 5_000])
def test_each_rank_gets_its_share(tokens, batch_size):
    """Even if a batch spans two of the blocks of rows whose order is cached."""
    for rank in (0, 1):
        settings = {"batch_size": batch_size, "rank": rank, "world_size": 2}
        source = tg.TokenBatches(tokens, **{**SETTINGS, **settings})
        expected = numpy_batches(tokens, 900 if batch_size == 3 else 3, **settings)
        assert_equal([source[step] for step in range(len(expected))], expected)


def test_rows_equal_those_of_the_numpy_loader(tokens):
    rows = tg.TokenRows(tokens, seq_len=16, seed=3)
    assert len(rows) == 312
    dataset = grain.MapDataset.source(rows).batch(4)
    assert_equal([dataset[step] for step in range(78)], numpy_batches(tokens, 78))
    assert np.array_equal(rows[-1].inputs, rows[311].inputs)
    with pytest.raises(IndexError, match="0 to 311"):
        rows[312]


def test_rows_of_a_mixture_need_a_limit(tokens):
    mixture = Mixture({"a": (tokens, 1), "b": (tokens, 2)})
    with pytest.raises(UsageError, match="limit_rows"):
        tg.TokenRows(mixture, seq_len=16)
    assert len(tg.TokenRows(mixture, seq_len=16, limit_rows=10**9)) == 10**9


def test_prefetch_is_refused(tokens):
    with pytest.raises(UsageError, match="ReadOptions"):
        tg.make_dataset(tokens, **SETTINGS, prefetch=2)


@pytest.mark.parametrize("options", [None, tg.READ_OPTIONS, grain.ReadOptions(num_threads=0)])
def test_an_iterator_resumes_from_its_state_at_every_step(tokens, options):
    dataset = tg.make_dataset(tokens, **SETTINGS, limit_rows=30).to_iter_dataset(options)
    expected = numpy_batches(tokens, 8, limit_rows=30)
    batches = iter(dataset)
    for step in range(9):
        state = json.loads(json.dumps(batches.get_state()))
        again = iter(dataset)
        again.set_state(state)
        assert_equal(list(again), expected[step:])
        if step < 8:
            assert_equal([next(batches)], [expected[step]])


def run(*words):
    command = [sys.executable, PROGRAM, *map(str, words)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout.splitlines()[-1])
    return answer["batches"], answer["state"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_new_process_resumes_with_or_without_workers(path, tokens, workers):
    expected = numpy_batches(tokens, 21, limit_rows=81)
    first, state = run(path, workers, 7)
    assert_equal(first, expected[:7])
    rest, _ = run(path, workers, 14, json.dumps(state))
    assert_equal(rest, expected[7:])


def make_data_loader(tokens, **settings):
    rows = tg.TokenRows(tokens, seq_len=16, **{"seed": 3, **settings})
    sampler = grain.samplers.IndexSampler(
        len(rows), shard_options=grain.sharding.NoSharding(), num_epochs=1
    )
    return grain.DataLoader(
        data_source=rows, sampler=sampler, operations=[grain.transforms.Batch(4)], worker_count=0
    )


def test_the_data_loader_of_grain_resumes_and_identifies_its_data(tokens):
    batches = iter(make_data_loader(tokens))
    expected = numpy_batches(tokens, 78)
    assert_equal([next(batches) for _ in range(30)], expected[:30])
    again = iter(make_data_loader(tokenmill.Tokens.of(IDS)))  # the same tokens, not from the file
    again.set_state(batches.get_state())
    assert_equal(list(again), expected[30:])
    with pytest.raises(ValueError, match=r"(?i)source"):
        iter(make_data_loader(tokens, seed=4)).set_state(batches.get_state())


def test_the_repr_of_a_source_identifies_the_run(tokens):
    same = tg.TokenBatches(Tokens.of(IDS), **SETTINGS)
    assert repr(tg.TokenBatches(tokens, **SETTINGS)) == repr(same)
    for other in ({"seed": 4}, {"batch_size": 5}, {"dtype": np.int64}, {"limit_rows": 5}):
        assert repr(tg.TokenBatches(tokens, **{**SETTINGS, **other})) != repr(same)


def test_batches_have_documents():
    ids = np.array([5, 5, 0, 6, 0, 7, 7, 7, 7, 0, 8, 8, 8])
    data = Tokens.of(ids, eot_id=0)
    dataset = tg.make_dataset(data, batch_size=2, seq_len=6, order="sequential", documents=True)
    batch = next(iter(dataset.to_iter_dataset(tg.READ_OPTIONS)))
    assert batch.document_ids.tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 1, 1]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 1]]
