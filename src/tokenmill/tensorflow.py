"""Batches as a `tf.data.Dataset`.

Guarantees: the batches are the same as from `tokenmill.Loader`. A batch depends only on its step,
so a dataset can start at any row without reading earlier rows. `tf.train.Checkpoint` saves only the
position of an iterator.

Costs: one call from TensorFlow into Python per batch. `prefetch` makes these calls ahead of time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

try:
    import tensorflow as tf
except ModuleNotFoundError as error:
    error.add_note("Install it with: pip install 'tokenmill[tensorflow]'")
    raise

from tokenmill.errors import UsageError
from tokenmill.load.adapters import BatchesByStep
from tokenmill.load.loader import Loader
from tokenmill.load.mixture import Mixture
from tokenmill.load.settings import check_whole
from tokenmill.store.tokens import Tokens

__all__ = ["make_dataset"]

_ENDLESS = 1 << 40  # steps


def make_dataset(
    data: Tokens | Mixture,
    *,
    batch_size: int,
    seq_len: int,
    start: int = 0,
    dtype: npt.DTypeLike = np.int32,
    prefetch: int = 4,
    **settings: Any,
) -> tf.data.Dataset:
    """Return a dataset of batches from row `start` on: (inputs, targets), each (rows, seq_len).

    `start` must be a multiple of the rows per step, `batch_size * world_size`. To resume after n
    steps, pass `start=n * batch_size * world_size`. With `documents=True`, an element has two more
    tensors. The first has the number of each token's document, counted from 0 in each row. The
    second has the distance of each token from the first token of its document in the row. The other
    settings are as in `tokenmill.Loader`.

    >>> dataset = make_dataset(Tokens.of(range(1_000)), batch_size=2, seq_len=4, seed=1)
    >>> inputs, targets = next(iter(dataset))
    >>> targets.numpy().tolist()
    [[441, 442, 443, 444], [525, 526, 527, 528]]
    """
    if "contiguous" in settings:
        raise UsageError(
            "`contiguous` does not apply to this dataset: tensors are always contiguous."
        )
    loader = Loader(
        data, batch_size=batch_size, seq_len=seq_len, dtype=dtype, prefetch=0, **settings
    )
    first, rest = divmod(start, loader.global_batch)
    if start < 0 or rest:
        raise UsageError(
            f"`start` is {start}; it must be a multiple of {loader.global_batch} (rows per step)."
        )
    prefetch = check_whole("prefetch", prefetch, 0)
    batches = BatchesByStep(loader)
    kinds = [tf.as_dtype(dtype), *[tf.int32] * (2 * loader.settings.documents)]
    is_whole = loader.limit is None or len(loader) * loader.global_batch <= loader.limit
    shape = (batch_size if is_whole else None, seq_len)

    def read(step: npt.NDArray[np.int64]) -> list[Any]:
        batch = batches[int(step)]
        found = batch.documents
        return [batch.tokens] if found is None else [batch.tokens, found.ids, found.positions]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def place(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        # Split tokens into inputs and targets here, because each tensor that comes from Python
        # costs time. A step always gives the same batch, so `stateful` may be False. TensorFlow
        # can save an iterator only if it is False.
        tokens, *found = tf.numpy_function(read, [step], kinds, stateful=False)
        tensors = [tokens[:, :-1], tokens[:, 1:], *found]
        return tuple(tf.ensure_shape(tensor, shape) for tensor in tensors)

    last = _ENDLESS if loader.limit is None else len(loader)
    dataset = tf.data.Dataset.range(first, max(first, last)).map(place)
    return dataset.prefetch(prefetch) if prefetch else dataset
