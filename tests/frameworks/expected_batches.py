"""The data and settings of the framework tests, and their batches from `tokenmill.Loader`."""

import numpy as np

import tokenmill

IDS = np.random.default_rng(0).integers(0, 60_000, 5_003).astype(np.uint16)
SETTINGS = {"batch_size": 4, "seq_len": 16, "seed": 3}


def numpy_batches(tokens, steps, **settings):
    loader = tokenmill.Loader(tokens, **{**SETTINGS, "prefetch": 0, **settings})
    return [loader.batch_at(step) for step in range(steps)]
