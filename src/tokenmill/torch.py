"""Batches as PyTorch tensors: three ways to read the same rows in the same order.

    Loader          an iterator of tensors on a device; no worker processes, resumes at any row
    TokenBatches    an `IterableDataset` of whole batches, for `DataLoader(..., batch_size=None)`
                    with any number of workers, and for torchdata's `StatefulDataLoader`
    TokenRows       a map-style `Dataset` of rows, for your own sampler or collator

Batches are tuples of contiguous tensors: (inputs, targets) or, with `documents=True`, (inputs,
targets, documents). On the CPU, the tensors share memory with NumPy arrays. For CUDA devices, they
are copied asynchronously from pinned memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, cast, overload

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
from tokenmill.load.adapters import LoaderAdapter
from tokenmill.load.batches import Batch as ArrayBatch
from tokenmill.load.distributed import check_same_settings
from tokenmill.load.loader import Loader as ArrayLoader
from tokenmill.load.mixture import Mixture
from tokenmill.load.rows import RunRows
from tokenmill.load.settings import RowSettings, SharedArguments, check_whole
from tokenmill.load.state import check_state
from tokenmill.order.rows import Kind
from tokenmill.store.tokens import Tokens

__all__ = ["Batch", "DocumentedBatch", "Documents", "Loader", "TokenBatches", "TokenRows"]

_CURE = (
    "To resume with other workers, ranks or batches, pass `start=ROW`, the number of rows consumed."
)


class Batch(NamedTuple):
    """Inputs, and targets: the same tokens shifted by one. Each is (rows, seq_len)."""

    inputs: torch.Tensor
    targets: torch.Tensor


class Documents(NamedTuple):
    """Which document each token of a batch is in; see `tokenmill.order.documents.DocumentBatch`."""

    ids: torch.Tensor
    positions: torch.Tensor
    cu_seqlens: torch.Tensor
    max_seqlen: int


class DocumentedBatch(NamedTuple):
    """A batch and its documents."""

    inputs: torch.Tensor
    targets: torch.Tensor
    documents: Documents


class _Arguments(SharedArguments, total=False):
    dtype: npt.DTypeLike | torch.dtype


class _LoaderArguments(_Arguments, total=False):
    device: str | torch.device


class _BatchesArguments(_Arguments, total=False):
    start: int


if TYPE_CHECKING:  # the default of a TypeVar is new in Python 3.13
    from typing_extensions import TypeVar

    B = TypeVar("B", bound=Batch | DocumentedBatch, default=Batch, covariant=True)
else:
    from typing import TypeVar

    B = TypeVar("B")


class Loader(LoaderAdapter[B]):
    """Like `tokenmill.Loader`, but batches are tensors on a device.

    `settings` are as in `tokenmill.Loader`. With `contiguous=False`, inputs and targets are views
    of one tensor. Making a batch then takes half the time on the CPU, but PyTorch refuses
    `targets.view(-1)`, and `targets.reshape(-1)` copies.

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
        documents: Literal[False] = ...,
        **settings: Unpack[_LoaderArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[DocumentedBatch],
        data: Tokens | Mixture,
        *,
        documents: Literal[True],
        **settings: Unpack[_LoaderArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[Batch | DocumentedBatch],
        data: Tokens | Mixture,
        *,
        documents: bool,
        **settings: Unpack[_LoaderArguments],
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
        self._is_on_cpu = self.device.type == "cpu"
        self._contiguous = contiguous
        # Copy rows to a device as one tensor, and split it there into inputs and targets. Copying
        # them separately would move twice as many bytes.
        split_here = contiguous and self._is_on_cpu
        self.arrays = _make_array_loader(data, {**settings, "contiguous": split_here})

    def __repr__(self) -> str:
        return f"<tokenmill.torch.{repr(self.arrays)[1:-1]}, on {self.device}>"

    def batch_from(self, row: int) -> B:
        """Return this rank's batch of the step that starts at `row`."""
        return self._convert(self.arrays.batch_from(row))

    def _convert(self, batch: ArrayBatch) -> B:
        if self._is_on_cpu:
            return cast(B, _make_tensors(batch))
        assert batch.tokens is not None
        tokens = self._move(torch.from_numpy(batch.tokens))
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if self._contiguous:
            inputs, targets = inputs.contiguous(), targets.contiguous()
        if batch.documents is None:
            return cast(B, Batch(inputs, targets))
        ids, positions, cu_seqlens, longest = _make_documents(batch)
        documents = Documents(
            self._move(ids), self._move(positions), self._move(cu_seqlens), longest
        )
        return cast(B, DocumentedBatch(inputs, targets, documents))

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()  # PyTorch keeps the pinned tensor until the copy is done
            return tensor.to(self.device, non_blocking=True)
        return tensor.to(self.device)  # waits for the copy, because the loader reuses the memory


class TokenBatches(IterableDataset[B]):
    """Whole batches, for a `DataLoader` with `batch_size=None`.

    With k workers, each worker makes every k-th batch. The `DataLoader` asks the workers in turn,
    so the order of batches does not depend on k. An iteration begins at row `start`, or resumes
    from a state.

    Each worker has its own copy of the dataset, with its own state: how many batches this copy has
    made. `StatefulDataLoader` saves and restores the states of all workers. To resume after `steps`
    steps with another number of workers or ranks, or another batch size, pass
    `start=steps * batch_size * world_size`.

    >>> batches = TokenBatches(Tokens.of(range(1_000)), batch_size=2, seq_len=4, limit_rows=4)
    >>> [inputs.shape for inputs, targets in torch.utils.data.DataLoader(batches, batch_size=None)]
    [torch.Size([2, 4]), torch.Size([2, 4])]
    """

    @overload
    def __init__(
        self: TokenBatches[Batch],
        data: Tokens | Mixture,
        *,
        documents: Literal[False] = ...,
        **settings: Unpack[_BatchesArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: TokenBatches[DocumentedBatch],
        data: Tokens | Mixture,
        *,
        documents: Literal[True],
        **settings: Unpack[_BatchesArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: TokenBatches[Batch | DocumentedBatch],
        data: Tokens | Mixture,
        *,
        documents: bool,
        **settings: Unpack[_BatchesArguments],
    ) -> None: ...

    def __init__(self, data: Tokens | Mixture, *, start: int = 0, **settings: Any) -> None:
        if "prefetch" in settings:
            raise UsageError(
                "`prefetch` does not apply to TokenBatches, since the workers of the DataLoader read "
                "ahead. Use DataLoader(prefetch_factor=...)."
            )
        self._loader = _make_array_loader(data, {"contiguous": True, **settings, "prefetch": 0})
        self.start = check_whole("start", start, 0)
        # The first row of this iteration, and the number of batches that this copy has made in it.
        self._first, self._given = start, 0
        self._resumes = False  # whether the next iteration continues this one

    def __len__(self) -> int:
        return self._loader.count_steps(self.start)

    def __iter__(self) -> Iterator[B]:
        worker, workers = _find_worker()
        if not self._resumes:
            self._first, self._given = self.start, 0
        self._resumes = False
        row = self._first + (worker + self._given * workers) * self._loader.global_batch
        for batch in self._loader.reader.iterate(row, stride=workers):
            self._given += 1
            yield cast(B, _make_tensors(batch))

    def set_epoch(self, epoch: int) -> None:  # noqa: ARG002
        """Raise an error if this dataset already divides its rows among ranks.

        Accelerate calls this method, and would then divide the batches among ranks a second time.
        """
        rank, world_size = self._loader.rank, self._loader.world_size
        if world_size > 1:
            raise UsageError(
                f"this dataset has only the rows of rank {rank} of {world_size}, and Accelerate "
                "would divide these rows again, so rows would be lost. Use "
                "tokenmill.huggingface.TokenRows, or pass `rank=0` and `world_size=1` to let "
                "Accelerate divide the rows."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this copy of the dataset. Each worker has its own copy."""
        return {
            **self._loader.state_dict(),
            "row": self._first,
            "given": self._given,
            "workers": _find_worker()[1],
            "global_batch": self._loader.global_batch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration resume from a state.

        The state must come from the worker with the same index and the same number of workers.
        """
        own = self.state_dict()
        given = state.get("given")
        if not isinstance(given, int) or given < 0:
            raise StateError(
                f"This state is damaged: its number of batches is {given!r}. Use another saved "
                "state."
            )
        # Other workers may be a batch ahead of this worker.
        rows = (given + 1) * own["workers"] * own["global_batch"]
        cure = self._loader.rows.find_growth_cure(state) or _CURE
        row = check_state({**state, "given": own["given"]}, own, cure=cure, after=rows)
        self._first, self._given, self._resumes = row, given, True


class TokenRows(Dataset[Batch]):
    """A map-style dataset of rows: the first `limit_rows` rows, or one epoch by default.

    A `Mixture` needs `limit_rows`, because each of its sources has its own epochs. A `DataLoader`
    asks for all rows of a batch at once, so they are read together. The rows are already in their
    final order, so do not shuffle them.

    After `set_epoch(epoch)`, index i is row `epoch * len(rows) + i`. Accelerate calls `set_epoch`
    automatically. With `order="sequential"`, all epochs have the same rows, as validation needs.

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
        block_rows: int | None = None,
        group_blocks: int | None = None,
        limit_rows: int | None = None,
    ) -> None:
        settings = RowSettings(
            seq_len=seq_len,
            seed=seed,
            order=order,
            block_rows=block_rows,
            group_blocks=group_blocks,
        )
        self.rows = RunRows(data, settings)
        self._length = check_whole("limit_rows", self.rows.count_epoch(limit_rows), 0)
        # The epoch is in shared memory, so that `set_epoch` also reaches persistent workers, which
        # have their own copy of the dataset.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._epoch.share_memory_()  # a copy is not in shared memory

    def set_epoch(self, epoch: int) -> None:
        """Move to the rows of an epoch. Epochs have `len(self)` rows and count from 0."""
        self._epoch.fill_(check_whole("epoch", epoch, 0))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> Batch:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Batch]:
        return [Batch(row[:-1], row[1:]) for row in self.read(rows)]

    def read(self, rows: Sequence[int]) -> torch.Tensor:
        """Return the tokens of some rows as an int64 tensor of shape (rows, seq_len + 1).

        >>> TokenRows(Tokens.of(range(100)), seq_len=4, order="sequential").read([2, 0])
        tensor([[ 8,  9, 10, 11, 12],
                [ 0,  1,  2,  3,  4]])
        """
        numbers = np.array(rows, np.int64)
        numbers[numbers < 0] += self._length
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self._length:
            raise IndexError(f"rows go from 0 to {self._length - 1:,}")
        if self.rows.settings.order != "sequential":
            numbers += int(self._epoch) * self._length
        out = np.empty((len(numbers), self.rows.seq_len + 1), np.int64)
        return torch.from_numpy(self.rows.read(self.rows.locate(numbers), out))


def _make_array_loader(data: Tokens | Mixture, settings: Mapping[str, Any]) -> ArrayLoader:
    """Return a NumPy loader. By default, the rank comes from an initialized torch.distributed."""
    settings = dict(settings)
    if isinstance(dtype := settings.get("dtype"), torch.dtype):
        settings["dtype"] = str(dtype).removeprefix("torch.")
    has_ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not has_ranks or settings.get("rank") is not None:
        return ArrayLoader(data, **settings)
    settings["rank"] = torch.distributed.get_rank()
    settings["world_size"] = torch.distributed.get_world_size()
    loader = ArrayLoader(data, **settings)
    compare_ranks(loader)
    return loader


def compare_ranks(loader: ArrayLoader) -> None:
    """Raise an error if a loader differs in settings from that of the rank that called this first.

    That rank's settings are in the store of torch.distributed, so no rank waits for another.
    """
    store = torch.distributed.distributed_c10d._get_default_store()
    # A worker process is a fork of its rank and shares the rank's connection to the store.
    if loader.world_size == 1 or store is None or get_worker_info() is not None:
        return

    def post(key: str, value: str) -> str:
        return store.compare_set(key, "", value).decode()

    check_same_settings(loader.shared_settings, loader.rank, post)


def _make_tensors(batch: ArrayBatch) -> Batch | DocumentedBatch:
    inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
    if batch.documents is None:
        return Batch(inputs, targets)
    return DocumentedBatch(inputs, targets, _make_documents(batch))


def _make_documents(batch: ArrayBatch) -> Documents:
    found = batch.documents
    assert found is not None
    ids, positions = torch.from_numpy(found.ids), torch.from_numpy(found.positions)
    return Documents(ids, positions, torch.from_numpy(found.cu_seqlens), found.max_seqlen)


def _collate(
    samples: Sequence[Batch | DocumentedBatch], *, collate_fn_map: Any
) -> Batch | DocumentedBatch:
    """Stack rows into a batch. Raise an error if they are whole batches."""
    if samples[0].inputs.dim() > 1:
        raise UsageError(
            "TokenBatches gives whole batches, and this DataLoader would stack them into batches of "
            "batches. Use DataLoader(batches, batch_size=None), and set the rows per batch with "
            "TokenBatches(batch_size=...)."
        )
    columns = zip(*samples, strict=True)
    return Batch(*(collate(column, collate_fn_map=collate_fn_map) for column in columns))


# The check is in a collate function, because a dataset cannot ask its DataLoader for `batch_size`.
default_collate_fn_map.update({Batch: _collate, DocumentedBatch: _collate})


def _find_worker() -> tuple[int, int]:
    """Return the index of this `DataLoader` worker and the number of workers, or (0, 1)."""
    worker = get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)
