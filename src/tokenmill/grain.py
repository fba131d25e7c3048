"""Rows and batches for Grain, the data loading library of JAX.

    make_dataset    a `grain.MapDataset` of whole batches: `dataset[i]` is the batch of step i
    READ_OPTIONS    options for iterating over this dataset; Grain's default, 16 threads, is several
                    times slower
    TokenBatches    a source of batches, used by `make_dataset`; reads all rows of a batch at once
    TokenRows       a source of rows, for your own pipeline or `grain.DataLoader`

Guarantees: the batches and rows are the same as from `tokenmill.Loader`, with any number of Grain's
threads and worker processes. Rows are already in their final order, so do not shuffle them. To
resume, save only the state of Grain's own iterator. When Grain loads a checkpoint, it compares the
`repr` of the source with the `repr` in the checkpoint. So the `repr` of these sources describes the
data and the order of rows, but has no paths: the files may be moved.

Costs: Grain takes about 90 µs per element. An element is a row or a whole batch, so batches are
much faster.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt
import orjson

try:
    import grain
    from absl import flags
except ModuleNotFoundError as error:
    error.add_note("Install it with: pip install 'tokenmill[jax]'")
    raise

from tokenmill.errors import UsageError
from tokenmill.load.adapters import BatchesByStep, RowPlaces, check_index
from tokenmill.load.loader import Loader
from tokenmill.load.mixture import Mixture
from tokenmill.load.rows import RunRows
from tokenmill.load.settings import RowSettings, check_whole
from tokenmill.order.rows import Kind
from tokenmill.store.tokens import Tokens

__all__ = ["READ_OPTIONS", "Batch", "DocumentedBatch", "TokenBatches", "TokenRows", "make_dataset"]

READ_OPTIONS = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


class Batch(NamedTuple):
    """Inputs, and targets: the same tokens shifted by one. Each is (rows, seq_len) or (seq_len,)."""

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]


class DocumentedBatch(NamedTuple):
    """A batch and its documents.

    `document_ids` has the number of each token's document, counted from 0 in each row. `positions`
    has the distance of each token from the first token of its document in the row.
    """

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    document_ids: npt.NDArray[Any]
    positions: npt.NDArray[Any]


class TokenBatches:
    """A source of batches: `source[i]` is the batch of step i.

    `settings` are as in `tokenmill.Loader`. Without a limit, the length is `sys.maxsize`, as for a
    Grain dataset after `repeat()`. If your launcher does not set the rank in the environment, pass
    `rank=jax.process_index()` and `world_size=jax.process_count()`.

    >>> batches = TokenBatches(Tokens.of(range(1_000)), batch_size=2, seq_len=4, seed=1)
    >>> batches[0].targets
    array([[441, 442, 443, 444],
           [525, 526, 527, 528]], dtype=int32)
    """

    def __init__(self, data: Tokens | Mixture, **settings: Any) -> None:
        if "prefetch" in settings:
            raise UsageError(
                "`prefetch` does not apply to this dataset, since Grain reads ahead. Use "
                "grain.ReadOptions."
            )
        self._batches = BatchesByStep(
            Loader(data, **{"dtype": np.int32, "contiguous": True, **settings}, prefetch=0)
        )
        _allow_workers()

    def __len__(self) -> int:
        loader = self._batches.loader
        return sys.maxsize if loader.limit is None else len(loader)

    def __getitem__(self, step: SupportsIndex) -> Batch | DocumentedBatch:
        batch = self._batches[check_index(step, len(self), "batches")]
        if batch.documents is None:
            return Batch(batch.inputs, batch.targets)
        found = batch.documents
        return DocumentedBatch(batch.inputs, batch.targets, found.ids, found.positions)

    def __repr__(self) -> str:
        loader = self._batches.loader
        more = {
            "batch_size": loader.batch_size,
            "rank": [loader.rank, loader.world_size],
            "batches": len(self),
            "dtype": loader.settings.dtype.name,
        }
        return _describe("TokenBatches", loader.rows, more)


class TokenRows:
    """A source of rows: the first `limit_rows` rows, or one epoch by default.

    A `Mixture` needs `limit_rows`, because each of its sources has its own epochs.

    >>> rows = TokenRows(Tokens.of(range(1_000)), seq_len=4, seed=1)
    >>> len(rows), rows[0].inputs
    (249, array([440, 441, 442, 443], dtype=int32))
    """

    def __init__(
        self,
        data: Tokens | Mixture,
        *,
        seq_len: int,
        seed: int = 0,
        order: Kind = "shuffled",
        block_rows: int | None = None,
        group_blocks: int | None = None,
        limit_rows: int | None = None,
        dtype: npt.DTypeLike = np.int32,
    ) -> None:
        settings = RowSettings(
            seq_len=seq_len,
            seed=seed,
            order=order,
            block_rows=block_rows,
            group_blocks=group_blocks,
        )
        rows = RunRows(data, settings)
        self._length = check_whole("limit_rows", rows.count_epoch(limit_rows), 0)
        self._places = RowPlaces(rows)
        self._dtype = np.dtype(dtype)
        _allow_workers()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: SupportsIndex) -> Batch:
        rows = self._places.rows
        out = np.empty((1, rows.seq_len + 1), self._dtype)
        rows.read(self._places.locate(check_index(row, self._length, "rows"), 1), out)
        return Batch(out[0, :-1], out[0, 1:])

    def __repr__(self) -> str:
        more = {"rows": self._length, "dtype": self._dtype.name}
        return _describe("TokenRows", self._places.rows, more)


def make_dataset(
    data: Tokens | Mixture, *, batch_size: int, seq_len: int, **settings: Any
) -> grain.MapDataset[Any]:
    """Return a Grain dataset of batches. `settings` are as in `tokenmill.Loader`.

    >>> dataset = make_dataset(Tokens.of(range(1_000)), batch_size=2, seq_len=4, seed=1)
    >>> dataset[1_000_000].inputs.shape
    (2, 4)
    >>> batches = iter(dataset.to_iter_dataset(READ_OPTIONS))
    >>> next(batches).inputs[0]
    array([440, 441, 442, 443], dtype=int32)
    """
    source = TokenBatches(data, batch_size=batch_size, seq_len=seq_len, **settings)
    return grain.MapDataset.source(source)


def _describe(name: str, rows: RunRows, more: dict[str, Any]) -> str:
    return f"{name}({orjson.dumps({**rows.identity, **more}).decode()})"


def _allow_workers() -> None:
    """Let Grain start workers in a program that does not parse absl flags.

    If JAX is installed, Grain refuses to start workers before absl flags are parsed.
    """
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
