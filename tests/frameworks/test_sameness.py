"""One seed, one run: the same numbers in every framework."""

import numpy as np
import pytest

import tokenmill
import tokenmill.grain
import tokenmill.jax
import tokenmill.tensorflow
import tokenmill.torch

SEQ_LEN, BATCH = 16, 4
ROWS = {"seq_len": SEQ_LEN, "seed": 11}
ORDERS = {
    "shuffled": ROWS,
    "blocks": {**ROWS, "order": "blocks", "block_rows": 20, "group_blocks": 3},
}
# Web ids are even and code ids odd, so a row shows its source.
WEB = (np.arange(9_001) * 2).astype(np.uint16)
CODE = (np.arange(4_003) * 2 + 1).astype(np.uint16)
STEPS = np.random.default_rng(5).integers(0, 100_000, 100).tolist()


@pytest.fixture(scope="module")
def mixture():
    web, code = tokenmill.Tokens.of(WEB), tokenmill.Tokens.of(CODE)
    return tokenmill.Mixture({"web": (web, 0.7), "code": (code, 0.3)})


@pytest.fixture(scope="module", params=ORDERS)
def rows(request):
    return ORDERS[request.param]


@pytest.fixture(scope="module")
def expected(mixture, rows):
    loader = tokenmill.Loader(mixture, batch_size=BATCH, **rows)
    return [loader.batch_at(step) for step in STEPS]


def by_torch(mixture, settings):
    loader = tokenmill.torch.Loader(mixture, batch_size=BATCH, **settings)
    return [[part.numpy() for part in loader.batch_at(step)] for step in STEPS]


def by_jax(mixture, settings):
    loader = tokenmill.jax.Loader(mixture, batch_size=BATCH, **settings)
    return [loader.batch_at(step) for step in STEPS]


def by_grain(mixture, settings):
    dataset = tokenmill.grain.make_dataset(mixture, batch_size=BATCH, **settings)
    return [dataset[step] for step in STEPS]


def by_grain_rows(mixture, settings):
    limit = (max(STEPS) + 1) * BATCH
    rows = tokenmill.grain.TokenRows(mixture, limit_rows=limit, **settings)
    batches = [[rows[step * BATCH + number] for number in range(BATCH)] for step in STEPS]
    return [[np.stack(part) for part in zip(*batch, strict=True)] for batch in batches]


def by_tensorflow(mixture, settings):
    batches = []
    for step in STEPS[:20]:  # making a dataset takes a while
        dataset = tokenmill.tensorflow.make_dataset(
            mixture, batch_size=BATCH, **settings, start=step * BATCH
        )
        batches.append([part.numpy() for part in next(iter(dataset))])
    return batches


@pytest.mark.parametrize("read", [by_torch, by_jax, by_grain, by_grain_rows, by_tensorflow])
def test_any_step_of_a_shuffled_mixture_is_the_same_in_every_framework(
    mixture, rows, expected, read
):
    batches = read(mixture, rows)
    assert len(batches) >= 20
    for (inputs, targets), batch in zip(batches, expected[: len(batches)], strict=True):
        assert np.array_equal(inputs, batch.inputs)
        assert np.array_equal(targets, batch.targets)


def test_rows_are_windows_of_the_sources_in_their_shares(expected):
    seen = {"web": 0, "code": 0}
    for batch in expected:
        for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
            name, ids = ("web", WEB) if inputs[0] % 2 == 0 else ("code", CODE)
            seen[name] += 1
            place = int(inputs[0]) // 2
            assert place % SEQ_LEN == 0
            assert np.array_equal(inputs, ids[place : place + SEQ_LEN])
            assert np.array_equal(targets, ids[place + 1 : place + SEQ_LEN + 1])
    assert 0.6 < seen["web"] / 400 < 0.8
