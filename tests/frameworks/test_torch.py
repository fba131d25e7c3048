import copy
import json
import pickle
import threading

import numpy as np
import pytest
import torch
from expected_batches import IDS, SETTINGS, numpy_batches
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import tokenmill
import tokenmill.torch as tt
from tokenmill import Mixture, Tokens
from tokenmill.errors import StateError, UsageError


def assert_equal(batch, expected):
    inputs, targets = batch[:2]
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    assert np.array_equal(inputs.numpy(), expected.inputs)
    assert np.array_equal(targets.numpy(), expected.targets)


def test_tensors_equal_those_of_the_numpy_loader(tokens):
    loader = tt.Loader(tokens, **SETTINGS)
    for step, expected in enumerate(numpy_batches(tokens, 90)):
        assert_equal(next(loader), expected)
        assert_equal(loader.batch_at(step), expected)
    assert loader.row == 360
    assert loader.ledger()[""].rows == 360
    loader.close()


def test_the_repr_of_a_loader_names_its_data(tokens):
    loader = tt.Loader(tokens, **SETTINGS, device="cpu")
    next(loader)
    assert repr(loader) == f"<tokenmill.torch.{repr(loader.arrays)[1:-1]}, on cpu>"
    assert "Loader 4 x 16 of <Tokens" in repr(loader)


def test_views_have_the_same_rows(tokens):
    loader = tt.Loader(tokens, **SETTINGS, contiguous=False)
    for expected in numpy_batches(tokens, 20):
        inputs, targets = next(loader)
        assert not inputs.is_contiguous()
        assert np.array_equal(inputs.numpy(), expected.inputs)
        assert np.array_equal(targets.numpy(), expected.targets)


def test_a_with_block_closes_the_loader(tokens):
    with tt.Loader(tokens, **SETTINGS) as loader:
        assert loader.seq_len == 16
        assert_equal(loader.batch_from(8), numpy_batches(tokens, 3)[2])
        before = threading.enumerate()
        next(loader)
        started = set(threading.enumerate()) - set(before)
        assert len(started) == 1
    assert not started.pop().is_alive()
    assert loader.row == 4


def test_dtypes_of_pytorch_are_accepted(tokens):
    inputs, _ = next(tt.Loader(tokens, **SETTINGS, dtype=torch.int32))
    assert inputs.dtype == torch.int32
    with pytest.raises(UsageError, match="float32"):
        tt.Loader(tokens, **SETTINGS, dtype=torch.float32)


def test_the_rank_comes_from_the_process_group(tokens, tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", "1")
            patch.setenv("WORLD_SIZE", "2")
            assert tt.Loader(tokens, **SETTINGS).arrays.world_size == 1
            assert tt.TokenBatches(tokens, **SETTINGS).state_dict()["global_batch"] == 4
    finally:
        torch.distributed.destroy_process_group()


def test_token_batches_refuse_prefetch(tokens):
    with pytest.raises(UsageError, match="prefetch_factor"):
        tt.TokenBatches(tokens, **SETTINGS, prefetch=2)


def test_other_devices_get_the_same_shapes(tokens):
    inputs, targets = next(tt.Loader(tokens, **SETTINGS, device="meta"))
    assert inputs.shape == targets.shape == (4, 16)
    assert inputs.device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_cuda_device_gets_the_same_rows(tokens):
    loader = tt.Loader(tokens, **SETTINGS, device="cuda")
    for expected in numpy_batches(tokens, 50):
        assert_equal([tensor.cpu() for tensor in next(loader)], expected)


def test_tensors_that_are_kept_do_not_change(tokens):
    loader = tt.Loader(tokens, **SETTINGS, prefetch=2)
    kept = [next(loader) for _ in range(60)]
    for batch, expected in zip(kept, numpy_batches(tokens, 60), strict=True):
        assert_equal(batch, expected)


def test_numpy_and_torch_loaders_exchange_states(tokens):
    arrays = tokenmill.Loader(tokens, **SETTINGS)
    next(arrays)
    loader = tt.Loader(tokens, **{**SETTINGS, "batch_size": 2})
    loader.load_state_dict(json.loads(json.dumps(arrays.state_dict())))
    assert_equal(next(loader), tokenmill.Loader(tokens, **SETTINGS | {"batch_size": 2}).batch_at(2))
    arrays.load_state_dict(loader.state_dict())
    assert arrays.row == 6


def test_batches_have_documents_as_tensors():
    ids = np.array([5, 5, 0, 6, 0, 7, 7, 7, 7, 0, 8, 8, 8])
    loader = tt.Loader(
        Tokens.of(ids, eot_id=0), batch_size=2, seq_len=6, order="sequential", documents=True
    )
    documents = next(loader).documents
    assert documents.cu_seqlens.tolist() == [0, 3, 5, 6, 10, 12]
    assert documents.cu_seqlens.dtype == torch.int32
    assert documents.max_seqlen == 4


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize(
    ("workers", "context"), [(0, None), (1, "fork"), (3, "fork"), (1, "spawn")]
)
def test_workers_do_not_change_the_order(tokens, workers, context):
    batches = tt.TokenBatches(tokens, **SETTINGS, limit_rows=81)
    loader = DataLoader(
        batches,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=context,
    )
    assert len(loader) == 21
    got = list(loader)
    for batch, expected in zip(got, numpy_batches(tokens, 21, limit_rows=81), strict=True):
        assert_equal(batch, expected)
    assert len(list(loader)) == 21  # a second iteration


@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"batch_size": 2, "num_workers": 1}])
@pytest.mark.parametrize("documents", [False, True])
def test_batches_of_batches_are_refused(options, documents):
    tokens = Tokens.of(IDS, eot_id=0)
    batches = tt.TokenBatches(tokens, **SETTINGS, documents=documents, limit_rows=80)
    with pytest.raises(UsageError, match="batch_size=None"):
        next(iter(DataLoader(batches, **options)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_starts_over_after_a_break(tokens, workers):
    batches = tt.TokenBatches(tokens, **SETTINGS, limit_rows=80)
    loader = DataLoader(
        batches, batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )
    for _ in range(2):
        expected = iter(numpy_batches(tokens, 20))
        for step, batch in enumerate(loader):
            assert_equal(batch, next(expected))
            if step == 2:
                break


def test_a_loader_continues_after_a_break(tokens):
    loader = tt.Loader(tokens, **SETTINGS, limit_rows=80)
    rows = []
    while len(rows) < 20:
        for batch in loader:
            rows.append(batch)
            if len(rows) % 6 == 0:
                break
    for batch, expected in zip(rows, numpy_batches(tokens, 20), strict=True):
        assert_equal(batch, expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda rows: pickle.loads(pickle.dumps(rows))])
def test_persistent_workers_follow_the_epochs_of_a_copy(tokens, copied):
    rows = copied(tt.TokenRows(tokens, seq_len=32, seed=5))
    loader = DataLoader(rows, batch_size=8, num_workers=1, persistent_workers=True)
    for epoch in (0, 1):
        rows.set_epoch(epoch)
        taken = torch.cat([inputs for inputs, _ in loader])
        wanted = torch.stack([rows[index].inputs for index in range(len(rows))])
        assert torch.equal(taken, wanted)


def test_epochs_of_rows_follow_each_other(tokens):
    rows = tt.TokenRows(tokens, seq_len=16, seed=3, limit_rows=100)
    rows.set_epoch(2)
    got = list(DataLoader(rows, batch_size=4))
    for batch, expected in zip(got, numpy_batches(tokens, 75)[50:], strict=True):
        assert_equal(batch, expected)
    fixed = tt.TokenRows(tokens, seq_len=16, order="sequential", limit_rows=100)
    first = fixed[7]
    fixed.set_epoch(2)
    assert torch.equal(fixed[7].inputs, first.inputs)


def test_batches_start_at_any_row_with_any_number_of_workers(tokens):
    batches = tt.TokenBatches(tokens, **SETTINGS, limit_rows=80, start=20)
    got = list(DataLoader(batches, batch_size=None, num_workers=2))
    for batch, expected in zip(got, numpy_batches(tokens, 20)[5:], strict=True):
        assert_equal(batch, expected)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 6, 20])
def test_a_stateful_data_loader_resumes_exactly(tokens, workers, stop):
    def make():
        batches = tt.TokenBatches(tokens, **SETTINGS, limit_rows=83)
        return StatefulDataLoader(batches, batch_size=None, num_workers=workers)

    first = make()
    got = []
    for batch in first:
        got.append(batch)
        if len(got) == stop:
            break
    state = first.state_dict()
    second = make()
    second.load_state_dict(state)
    got += list(second)
    for batch, expected in zip(got, numpy_batches(tokens, 21, limit_rows=83), strict=True):
        assert_equal(batch, expected)


def test_a_worker_state_of_another_run_is_refused(tokens):
    state = tt.TokenBatches(tokens, **SETTINGS).state_dict()
    with pytest.raises(StateError, match="seed"):
        tt.TokenBatches(tokens, **{**SETTINGS, "seed": 4}).load_state_dict(state)
    with pytest.raises(StateError, match=r"workers.*\n.*start="):
        tt.TokenBatches(tokens, **SETTINGS).load_state_dict({**state, "workers": 2})
    with pytest.raises(StateError, match="damaged"):
        tt.TokenBatches(tokens, **SETTINGS).load_state_dict({**state, "given": "x"})


def test_a_worker_state_is_refused_if_the_weights_of_its_rows_differ(tokens):
    def make(changes):
        data = Mixture({"a": (tokens, 1), "b": (tokens, 1)}, changes=changes, block=10)
        return tt.TokenBatches(data, **SETTINGS)

    batches = make({8: {"a": 3}})
    for _, _ in zip(range(4), batches, strict=False):
        pass
    state = batches.state_dict()
    make({8: {"a": 3}, 100: {"b": 2}}).load_state_dict(state)
    with pytest.raises(StateError, match="weights"):
        make({}).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_by_number_are_the_rows_of_the_run(tokens, workers):
    rows = tt.TokenRows(tokens, seq_len=16, seed=3)
    assert len(rows) == 312
    got = list(DataLoader(rows, batch_size=4, num_workers=workers))
    for batch, expected in zip(got, numpy_batches(tokens, 78), strict=True):
        assert_equal(batch, expected)
    assert torch.equal(rows[-1].targets, rows[311].targets)
    with pytest.raises(IndexError, match="0 to 311"):
        rows[312]


def test_rows_of_a_mixture_need_a_limit(tokens):
    mixture = Mixture({"a": (tokens, 1)})
    with pytest.raises(UsageError, match="limit_rows"):
        tt.TokenRows(mixture, seq_len=16)
    assert len(tt.TokenRows(mixture, seq_len=16, limit_rows=7)) == 7


def test_batches_without_a_limit_have_no_length(tokens):
    with pytest.raises(TypeError, match="limit_epochs"):
        len(tt.TokenBatches(tokens, **SETTINGS))
