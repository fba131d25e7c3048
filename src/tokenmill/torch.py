"""Batches as PyTorch tensors: three ways to the same rows in the same order.

    Loader          an iterator of tensors on a device; no worker process, exact to the row
    TokenBatches    an `IterableDataset` of whole batches, for `DataLoader(..., batch_size=None)` with
                    any number of workers, and for torchdata's `StatefulDataLoader`
    TokenRows       a map-style `Dataset` of rows, for your own sampler or collator

Batches are tuples of contiguous tensors, (inputs, targets), with `documents=True` a third one. On
the CPU they share the memory of the NumPy arrays. For CUDA they go through pinned memory, and the
copy is asynchronous.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, Unpack, cast, overload

import numpy as np
import numpy.typing as npt

try:
    import torch
    from torch.utils.data import Dataset, IterableDataset, get_worker_info
    from torch.utils.data._utils.collate import collate, default_collate_fn_map
except ModuleNotFoundError as error:
    error.add_note("Install it with: pip install 'tokenmill[torch]'")
    raise

from tokenmill.errors import StateError, UsageError
from tokenmill.load import loader as arrays
from tokenmill.load.agreement import check_agreement
from tokenmill.load.maker import Batch as ArrayBatch
from tokenmill.load.mixture import Mixture
from tokenmill.load.rows import Rows, check_whole
from tokenmill.load.state import check_state
from tokenmill.order.rows import Kind
from tokenmill.store.tokens import Tokens

__all__ = ["Batch", "DocumentedBatch", "Documents", "Loader", "TokenBatches", "TokenRows"]


_CURE = "To resume with other workers, ranks or batches, start at the row reached: `start=ROW`."


class Batch(NamedTuple):
    """Inputs and the tokens that follow them, each (rows, seq_len)."""

    inputs: torch.Tensor
    targets: torch.Tensor


class Documents(NamedTuple):
    """The documents in a batch; see `tokenmill.order.documents.DocumentBatch`."""

    ids: torch.Tensor
    positions: torch.Tensor
    cu_seqlens: torch.Tensor
    max_seqlen: int


class DocumentedBatch(NamedTuple):
    """A batch, and the documents in it."""

    inputs: torch.Tensor
    targets: torch.Tensor
    documents: Documents


if TYPE_CHECKING:  # a TypeVar default needs Python 3.13 at run time
    from typing_extensions import TypeVar

    B = TypeVar("B", bound=Batch | DocumentedBatch, default=Batch, covariant=True)
else:
    from typing import TypeVar

    B = TypeVar("B")


class Loader(Generic[B]):
    """`tokenmill.Loader` with tensors on a device; `settings` are its arguments.

    Without `contiguous`, inputs and targets are views of one tensor: twice as fast on the CPU, but
    `targets.view(-1)` is then refused by PyTorch, and `targets.reshape(-1)` copies.

    >>> loader = Loader(Tokens.of(range(1_000)), batch_size=2, seq_len=4, seed=1)
    >>> inputs, targets = next(loader)
    >>> targets
    tensor([[441, 442, 443, 444],
            [525, 526, 527, 528]])
    """

    @overload
    def __init__(
        self: Loader[Batch],
        data: Tokens | Mixture,
        *,
        batch_size: int,
        seq_len: int,
        documents: Literal[False] = ...,
        device: str | torch.device = ...,
        contiguous: bool = ...,
        dtype: npt.DTypeLike | torch.dtype = ...,
        **settings: Unpack[arrays.LoaderSettings],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[DocumentedBatch],
        data: Tokens | Mixture,
        *,
        batch_size: int,
        seq_len: int,
        documents: Literal[True],
        device: str | torch.device = ...,
        contiguous: bool = ...,
        dtype: npt.DTypeLike | torch.dtype = ...,
        **settings: Unpack[arrays.LoaderSettings],
    ) -> None: ...

    def __init__(
        self,
        data: Tokens | Mixture,
        *,
        device: str | torch.device = "cpu",
        contiguous: bool = True,
        **settings: Any,
    ) -> None:
        self.device = torch.device(device)
        # A device gets the rows in one piece, half as much to copy, and takes them apart itself.
        self._is_on_cpu = self.device.type == "cpu"
        in_pieces = contiguous and self._is_on_cpu
        self._contiguous = contiguous
        self.arrays = _make_arrays(data, {**settings, "contiguous": in_pieces})

    @property
    def row(self) -> int:
        """The cursor: how many rows the run has consumed, on all ranks together."""
        return self.arrays.row

    @property
    def seq_len(self) -> int:
        """The tokens of a row's inputs."""
        return self.arrays.seq_len

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.arrays)

    def __iter__(self) -> Self:
        iter(self.arrays)
        return self

    def __repr__(self) -> str:
        return f"<tokenmill.torch.{repr(self.arrays)[1:-1]}, on {self.device}>"

    def __next__(self) -> B:
        return self._convert(next(self.arrays))

    def batch_at(self, step: int) -> B:
        """The batch of any step; see `tokenmill.Loader.batch_at`."""
        return self._convert(self.arrays.batch_at(step))

    def batch_from(self, row: int) -> B:
        """This rank's batch of the step that begins with a row."""
        return self._convert(self.arrays.batch_from(row))

    def ledger(self) -> dict[str, arrays.SourceLedger]:
        """What the run has consumed so far of each source, on all ranks together."""
        return self.arrays.ledger()

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, and which run it is: small, and fit for JSON."""
        return self.arrays.state_dict()

    def load_state_dict(
        self, state: Mapping[str, Any], *, force: bool | Collection[str] = False
    ) -> None:
        """Resume a run; see `tokenmill.Loader.load_state_dict`."""
        self.arrays.load_state_dict(state, force=force)

    def close(self) -> None:
        """End the thread; the next batch starts another."""
        self.arrays.close()

    def _convert(self, batch: ArrayBatch) -> B:
        if self._is_on_cpu:
            return cast(B, _as_tensors(batch))
        assert batch.tokens is not None
        tokens = self._move(torch.from_numpy(batch.tokens))
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if self._contiguous:
            inputs, targets = inputs.contiguous(), targets.contiguous()
        if batch.documents is None:
            return cast(B, Batch(inputs, targets))
        ids, positions, ends, longest = _documents(batch)
        documents = Documents(self._move(ids), self._move(positions), self._move(ends), longest)
        return cast(B, DocumentedBatch(inputs, targets, documents))

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()  # which PyTorch keeps until the copy is done
            return tensor.to(self.device, non_blocking=True)
        return tensor.to(self.device)  # without waiting, the memory might be used again too soon


class TokenBatches(IterableDataset[B]):
    """Whole batches, for a `DataLoader` with `batch_size=None`.

    Worker i of k makes every k-th batch, and the `DataLoader` asks the workers in turn, so batches
    come in the same order for any k. An iteration begins at row `start`, or resumes from a state. The
    state counts the batches that this copy gave: `StatefulDataLoader` saves and restores that of each
    worker. To resume with another number of workers or ranks or another batch size, start at the row
    that was reached: `start=steps * batch_size * world_size`.

    >>> batches = TokenBatches(Tokens.of(range(1_000)), batch_size=2, seq_len=4, limit_rows=4)
    >>> [inputs.shape for inputs, targets in torch.utils.data.DataLoader(batches, batch_size=None)]
    [torch.Size([2, 4]), torch.Size([2, 4])]
    """

    @overload
    def __init__(
        self: TokenBatches[Batch],
        data: Tokens | Mixture,
        *,
        batch_size: int,
        seq_len: int,
        start: int = ...,
        documents: Literal[False] = ...,
        contiguous: bool = ...,
        dtype: npt.DTypeLike | torch.dtype = ...,
        **settings: Unpack[arrays.LoaderSettings],
    ) -> None: ...

    @overload
    def __init__(
        self: TokenBatches[DocumentedBatch],
        data: Tokens | Mixture,
        *,
        batch_size: int,
        seq_len: int,
        start: int = ...,
        documents: Literal[True],
        contiguous: bool = ...,
        dtype: npt.DTypeLike | torch.dtype = ...,
        **settings: Unpack[arrays.LoaderSettings],
    ) -> None: ...

    def __init__(self, data: Tokens | Mixture, *, start: int = 0, **settings: Any) -> None:
        if "prefetch" in settings:
            raise UsageError(
                "workers read ahead by themselves; say DataLoader(prefetch_factor=...)."
            )
        self._loader = _make_arrays(data, {"contiguous": True, **settings, "prefetch": 0})
        if start < 0:
            raise UsageError(f"`start` is {start}; rows count from 0.")
        self.start = start
        # Where the iteration began, and the batches that this copy has given in it.
        self._begun, self._given = start, 0
        self._goes_on = False  # whether the next iteration goes on with that one

    def __len__(self) -> int:
        return self._loader.count_steps(self.start)

    def __iter__(self) -> Iterator[B]:
        worker, workers = _worker()
        if not self._goes_on:
            self._begun, self._given = self.start, 0
        self._goes_on = False
        row = self._begun + (worker + self._given * workers) * self._loader.global_batch
        maker = self._loader.maker
        buffers = maker.buffers()
        for group in maker.read(row, stride=workers):
            (batch,) = maker.finish(group, buffers)
            self._given += 1
            yield cast(B, _as_tensors(batch))

    def set_epoch(self, epoch: int) -> None:  # noqa: ARG002
        """Refuse to be divided twice: Accelerate calls this before it divides batches among ranks."""
        maker = self._loader.maker
        if maker.world_size > 1:
            raise UsageError(
                f"this dataset gives rank {maker.rank} of {maker.world_size} its own share of the "
                "rows, and Accelerate would divide that share again, so rows would be lost. Use "
                "tokenmill.huggingface.TokenRows, or give `rank=0` and `world_size=1` and let "
                "Accelerate divide the rows."
            )

    def state_dict(self) -> dict[str, Any]:
        """Where this copy of the dataset is; in a worker, that worker's part of the run."""
        return {
            **self._loader.state_dict(),
            "row": self._begun,
            "given": self._given,
            "workers": _worker()[1],
            "global_batch": self._loader.global_batch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the next iteration from a state of the same worker, with as many workers."""
        own = self.state_dict()
        given = state.get("given")
        if not isinstance(given, int) or given < 0:
            raise StateError(f"This state is damaged: the batches given are {given!r}.")
        # Other workers may be a batch ahead of this one.
        rows = (given + 1) * own["workers"] * own["global_batch"]
        row = check_state({**state, "given": own["given"]}, own, cure=_CURE, after=rows)
        self._begun, self._given, self._goes_on = row, given, True


class TokenRows(Dataset[Batch]):
    """The rows of a run by number, up to `limit_rows`; by default one epoch.

    A `DataLoader` asks for all rows of a batch at once, and they are read at once. Row n is row n of
    the order, so do not shuffle them again. `set_epoch`, which Accelerate calls automatically, moves
    to later rows: index i is then row `epoch * len(rows) + i`. A sequential order gives the same rows
    in every epoch, as validation needs.

    >>> rows = TokenRows(Tokens.of(range(1_000)), seq_len=4, seed=1)
    >>> len(rows), rows[0].inputs
    (249, tensor([440, 441, 442, 443]))
    """

    def __init__(
        self,
        data: Tokens | Mixture,
        *,
        seq_len: int,
        seed: int = 0,
        order: Kind = "shuffled",
        shuffle_block: int | None = None,
        limit_rows: int | None = None,
    ) -> None:
        self.rows = Rows(data, seq_len=seq_len, seed=seed, order=order, shuffle_block=shuffle_block)
        if limit_rows is None and self.rows.mixture is not None:
            raise UsageError("each source of a mixture has its own epochs; give `limit_rows`.")
        self._length = self.rows.orders[0].windows
        if limit_rows is not None:
            self._length = check_whole("limit_rows", limit_rows, 0)
        self._moves = order != "sequential"
        # In shared memory, because persistent workers keep the copy of the dataset they started with.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._epoch.share_memory_()  # copying does not keep it shared

    def set_epoch(self, epoch: int) -> None:
        """Make index 0 the first row of an epoch; epochs have `len(self)` rows and count from 0."""
        self._epoch.fill_(check_whole("epoch", epoch, 0))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> Batch:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Batch]:
        return [Batch(row[:-1], row[1:]) for row in self.read(rows)]

    def read(self, rows: Sequence[int]) -> torch.Tensor:
        """The tokens of some rows, int64, (rows, seq_len + 1).

        >>> TokenRows(Tokens.of(range(100)), seq_len=4, order="sequential").read([2, 0])
        tensor([[ 8,  9, 10, 11, 12],
                [ 0,  1,  2,  3,  4]])
        """
        numbers = np.array(rows, np.int64)
        numbers[numbers < 0] += self._length
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self._length:
            raise IndexError(f"rows go from 0 to {self._length - 1:,}")
        if self._moves:
            numbers += int(self._epoch) * self._length
        out = np.empty((len(numbers), self.rows.seq_len + 1), np.int64)
        return torch.from_numpy(self.rows.read(self.rows.locate(numbers), out))


def _make_arrays(data: Tokens | Mixture, settings: Mapping[str, Any]) -> arrays.Loader:
    """A loader of arrays, with NumPy's dtype for PyTorch's, and PyTorch's ranks."""
    settings = dict(settings)
    if isinstance(dtype := settings.get("dtype"), torch.dtype):
        settings["dtype"] = str(dtype).removeprefix("torch.")
    has_ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not has_ranks or settings.get("rank") is not None:
        return arrays.Loader(data, **settings)
    settings["rank"] = torch.distributed.get_rank()
    settings["world_size"] = torch.distributed.get_world_size()
    loader = arrays.Loader(data, **settings)
    compare_ranks(loader)
    return loader


def compare_ranks(loader: arrays.Loader) -> None:
    """Refuse a loader whose settings differ from those of other ranks; does not wait for them."""
    store = torch.distributed.distributed_c10d._get_default_store()
    # A worker process is a fork of its rank and shares its connection to the store.
    if loader.world_size == 1 or store is None or get_worker_info() is not None:
        return
    settings = {"batch_size": loader.batch_size, "limit": loader.limit}
    settings |= {"drop_last": loader.maker.drop_last, **loader.rows.identity}

    def post(key: str, value: str) -> str:
        return store.compare_set(key, "", value).decode()

    check_agreement(settings, loader.rank, post)


def _as_tensors(batch: ArrayBatch) -> Batch | DocumentedBatch:
    inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
    if batch.documents is None:
        return Batch(inputs, targets)
    return DocumentedBatch(inputs, targets, Documents(*_documents(batch)))


def _collate(
    samples: Sequence[Batch | DocumentedBatch], *, collate_fn_map: Any
) -> Batch | DocumentedBatch:
    """A batch of rows; a batch of batches is refused."""
    if samples[0].inputs.dim() > 1:
        raise UsageError(
            "TokenBatches gives whole batches, and this DataLoader would stack them into batches of "
            "batches. Use DataLoader(batches, batch_size=None), and set the rows per batch with "
            "TokenBatches(batch_size=...)."
        )
    columns = zip(*samples, strict=True)
    return Batch(*(collate(column, collate_fn_map=collate_fn_map) for column in columns))


# DataLoader calls no method of a dataset that would reveal the batch size.
default_collate_fn_map.update({Batch: _collate, DocumentedBatch: _collate})


def _documents(batch: ArrayBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    found = batch.documents
    assert found is not None
    ids, positions, ends = map(torch.from_numpy, (found.ids, found.positions, found.cu_seqlens))
    return ids, positions, ends, found.max_seqlen


def _worker() -> tuple[int, int]:
    """Which of how many `DataLoader` workers this process is: 0 of 1, if it is none."""
    worker = get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)
