"""PyTorch, JAX and a NumPy model agree: losses, gradients, and fifty steps."""

from dataclasses import replace

import numpy as np
import numpy_model
import pytest

from tokenmill.training.backend import StepRows
from tokenmill.training.backends import open_backend
from tokenmill.training.config import Config
from tokenmill.training.model import Shape, first_values, parameter_shapes

LENGTH, ROWS = 32, 8
SHAPE = Shape(vocab=64, layers=2, heads=4, kv_heads=2, width=32, seq_len=LENGTH)
CONFIG = Config(
    layers=2,
    heads=4,
    kv_heads=2,
    width=32,
    seq_len=LENGTH,
    batch_tokens=LENGTH * ROWS,
    max_steps=50,
    warmup_steps=5,
    decay_fraction=0.3,
    learning_rate=5e-3,
    matrix_learning_rate=5e-3,
)
BACKENDS = ("torch", "jax")


def random_values(shape, seed):
    """Parameters none of which is zero, so that every gradient is there."""
    random = np.random.default_rng(seed)
    return {
        name: (random.standard_normal(size) / np.sqrt(size[1])).astype(np.float32)
        for name, size in parameter_shapes(shape).items()
    }


def make_rows(seed, *, documents=True, count=ROWS, vocab=SHAPE.vocab):
    """Learnable rows: random words in a row."""
    random = np.random.default_rng(seed)
    words = np.random.default_rng(0).integers(0, vocab, (20, 5))
    tokens = words[random.integers(0, 20, (count, LENGTH // 5 + 1))].reshape(count, -1)
    tokens = tokens[:, : LENGTH + 1]
    numbers = None
    if documents:
        numbers = np.cumsum(random.random((count, LENGTH)) < 0.15, axis=1).astype(np.int32)
    return StepRows(inputs=tokens[:, :-1], targets=tokens[:, 1:], documents=numbers)


def gradients(name, shape, values, rows):
    """By one step of AdamW, which remembers a known part of what clipping leaves of the gradient."""
    config = replace(CONFIG, optimizer="adamw")
    backend = open_backend(name, config, shape, values)
    backend.step(rows, 1.0)
    clipped = min(1, config.clip / (backend.report()[0].gradient_norm + 1e-6))
    state = backend.optimizer_state()
    return {name: state[f"{name}.exp_avg"] / (1 - config.beta1) / clipped for name in values}


GROUPED = replace(SHAPE, vocab=2_240, embedding_width=16, shortlist=100)  # and groups of 1,024


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("kv_heads", "softcap", "documents"), [(2, 15.0, True), (4, 0.0, False)])
def test_losses_and_logits_match_numpy(name, kv_heads, softcap, documents, grouped):
    shape = replace(GROUPED if grouped else SHAPE, kv_heads=kv_heads, softcap=softcap)
    config = replace(CONFIG, kv_heads=kv_heads, softcap=softcap)
    values = random_values(shape, 1)
    rows = make_rows(2, documents=documents, count=3, vocab=shape.vocab)
    backend = open_backend(name, config, shape, values)
    expected = numpy_model.losses(shape, values, rows.inputs, rows.targets, rows.documents)
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(backend.evaluate(rows), expected, rtol=0, atol=1e-5)
    if not documents:
        for length in (1, 7, LENGTH):
            ids = rows.inputs[0, :length]
            logits = numpy_model.row_logits(shape, values, ids)[-1]
            np.testing.assert_allclose(backend.next_logits(ids), logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [SHAPE, GROUPED], ids=["plain", "grouped"])
def test_gradients_of_every_parameter_are_the_slopes_of_the_loss(shape):
    values = random_values(shape, 3)
    rows = make_rows(4, vocab=shape.vocab)
    found = {name: gradients(name, shape, values, rows) for name in BACKENDS}
    random = np.random.default_rng(5)
    for name, value in values.items():
        size = np.linalg.norm(found["torch"][name])
        assert size > 1e-4, name
        apart = np.linalg.norm(found["torch"][name] - found["jax"][name])
        assert apart < 5e-6 * size, name

        # The oracle has no gradients; along a direction that the gradient may well have, its loss
        # rises by the length of the gradient there.
        along = found["torch"][name] / size + random.standard_normal(value.shape) / value.size**0.5
        up, down = (
            numpy_model.losses(
                shape,
                {**values, name: value.astype(np.float64) + by * along},
                rows.inputs,
                rows.targets,
                rows.documents,
            ).mean()
            for by in (1e-5, -1e-5)
        )
        slope = (up - down) / 2e-5
        for backend in BACKENDS:
            assert (found[backend][name] * along).sum() == pytest.approx(slope, rel=1e-4), name


def test_the_first_values_have_their_spread_and_the_outputs_are_zero():
    values = first_values(SHAPE, 42)
    zero = [name for name in values if name == "head" or name.endswith((".out", ".down"))]
    assert len(zero) == 1 + 2 * SHAPE.layers
    for name, value in values.items():
        spread = 0 if name in zero else 1 if name == "embedding" else value.shape[1] ** -0.5
        assert value.std() == pytest.approx(spread, rel=0.1), name
        assert abs(value.mean()) <= spread / 10, name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_fifty_steps_from_the_first_values_stay_within_1e_5(optimizer):
    config = replace(CONFIG, optimizer=optimizer)
    batches = [make_rows(100 + step) for step in range(config.max_steps)]
    losses, norms = {}, {}
    for name in BACKENDS:
        backend = open_backend(name, config, SHAPE, first_values(SHAPE, 42))
        for step, rows in enumerate(batches):
            backend.step(rows, config.scale(step))
        reports = backend.report()
        losses[name] = np.array([report.row_losses for report in reports])
        norms[name] = np.array([report.gradient_norm for report in reports])
    assert losses["torch"].shape == (50, ROWS)
    assert losses["torch"][-1].mean() < losses["torch"][0].mean() - 1
    np.testing.assert_allclose(losses["jax"], losses["torch"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(norms["jax"], norms["torch"], rtol=1e-4)


@pytest.mark.parametrize(("first", "second"), [("torch", "jax"), ("jax", "torch")])
def test_each_backend_loads_the_state_of_the_other(first, second):
    batches = [make_rows(200 + step) for step in range(6)]
    one = open_backend(first, CONFIG, SHAPE, first_values(SHAPE, 1))
    for rows in batches[:3]:
        one.step(rows, 1.0)
    other = open_backend(second, CONFIG, SHAPE, first_values(SHAPE, 2))
    other.load(one.parameters(), one.optimizer_state())
    one.report()
    for rows in batches[3:]:
        one.step(rows, 1.0)
        other.step(rows, 1.0)
    for ours, theirs in zip(one.report(), other.report(), strict=True):
        np.testing.assert_allclose(theirs.row_losses, ours.row_losses, rtol=0, atol=1e-5)
