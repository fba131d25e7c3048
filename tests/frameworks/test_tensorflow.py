import numpy as np
import pytest
import tensorflow as tf
from expected_batches import SETTINGS, numpy_batches

import tokenmill
import tokenmill.tensorflow as tt
from tokenmill import Tokens
from tokenmill.errors import UsageError


def assert_equal(batches, expected):
    for batch, wanted in zip(batches, expected, strict=True):
        assert np.array_equal(batch[0], wanted.inputs)
        assert np.array_equal(batch[1], wanted.targets)


@pytest.mark.parametrize("prefetch", [0, 4])
def test_tensors_equal_those_of_the_numpy_loader_and_do_not_change(tokens, prefetch):
    dataset = tt.make_dataset(tokens, **SETTINGS, prefetch=prefetch)
    assert dataset.element_spec == (tf.TensorSpec((4, 16), tf.int32),) * 2
    kept = list(dataset.take(200))
    assert_equal(kept, numpy_batches(tokens, 200))


def test_a_dataset_starts_at_the_first_row_of_any_step(tokens):
    dataset = tt.make_dataset(tokens, **SETTINGS, start=4_000_000)
    wanted = tokenmill.Loader(tokens, **SETTINGS).batch_at(1_000_000)
    assert_equal([next(iter(dataset))], [wanted])
    for start in (-4, 6):
        with pytest.raises(UsageError, match=f"`start` is {start}; .* multiple of 4"):
            tt.make_dataset(tokens, **SETTINGS, start=start)


def test_a_dataset_ends_at_its_limit(tokens):
    dataset = tt.make_dataset(tokens, **SETTINGS, limit_rows=81, start=40)
    assert dataset.element_spec[0].shape.as_list() == [None, 16]
    assert len(dataset) == 11
    expected = numpy_batches(tokens, 21, limit_rows=81)[10:]
    for _ in range(2):
        assert_equal(list(dataset), expected)
    whole = tt.make_dataset(tokens, **SETTINGS, limit_rows=81, drop_last=True)
    assert whole.element_spec[0].shape.as_list() == [4, 16]
    assert len(list(whole)) == 20
    assert list(tt.make_dataset(tokens, **SETTINGS, limit_rows=8, start=12)) == []


def test_a_checkpoint_saves_and_restores_the_iterator(tokens, tmp_path):
    batches = iter(tt.make_dataset(tokens, **SETTINGS))
    expected = numpy_batches(tokens, 12)
    for _ in range(5):
        next(batches)
    saved = tf.train.Checkpoint(batches=batches).save(tmp_path / "saved")
    again = iter(tt.make_dataset(tokens, **SETTINGS))
    tf.train.Checkpoint(batches=again).restore(saved)
    assert_equal([next(again) for _ in range(7)], expected[5:])


def test_batches_have_documents_as_tensors():
    ids = np.array([5, 5, 0, 6, 0, 7, 7, 7, 7, 0, 8, 8, 8])
    data = Tokens.of(ids, eot_id=0)
    dataset = tt.make_dataset(data, batch_size=2, seq_len=6, order="sequential", documents=True)
    assert len(dataset.element_spec) == 4
    _, _, found, positions = next(iter(dataset))
    assert found.numpy().tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 1, 1]]
    assert positions.numpy().tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 1]]


def test_an_id_that_does_not_fit_the_dtype_raises_an_error(tokens):
    inputs, _ = next(iter(tt.make_dataset(tokens, **SETTINGS, dtype=np.int64)))
    assert inputs.dtype == tf.int64
    with pytest.raises(tf.errors.OpError, match="int16"):
        next(iter(tt.make_dataset(tokens, **SETTINGS, dtype=np.int16)))


@pytest.mark.parametrize("settings", [{"prefetch": -1}, {"contiguous": True}])
def test_invalid_settings_are_refused(tokens, settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        tt.make_dataset(tokens, **SETTINGS, **settings)
