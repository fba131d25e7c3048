"""A Lightning data module whose rows continue across epochs, checkpoints and changes of ranks.

Guarantees: the trainer sees the rows 0, 1, 2, ... of the run, each once. An epoch of the trainer is
just a number of steps: the next epoch continues with the next rows. A Lightning checkpoint stores
how many rows the trainer has finished. So a resumed run neither repeats nor skips rows, even with
another batch size or number of devices. Validation uses the same rows each time.

`tokenmill.torch.Loader` makes the batches, on the trainer's device. With `num_workers`, the workers
of a `DataLoader` make the batches instead. Rank and world size come from the trainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

try:
    import lightning.pytorch as pl
    import torch
    from torch.utils.data import DataLoader
except ModuleNotFoundError as error:
    error.add_note("Install it with: pip install 'tokenmill[lightning]'")
    raise

from tokenmill.errors import UsageError
from tokenmill.load.distributed import trim_last_step
from tokenmill.load.mixture import Mixture
from tokenmill.load.settings import LoaderSettings, check_whole
from tokenmill.store.tokens import Tokens
from tokenmill.torch import Batch, DocumentedBatch, Loader, TokenBatches, compare_ranks

__all__ = ["TokenDataModule"]

_SET_BY_TRAINER = {"rank", "world_size", "device", "limit_rows", "limit_tokens", "limit_epochs"}

AnyBatch: TypeAlias = Batch | DocumentedBatch


class TokenDataModule(pl.LightningDataModule):
    """Training rows that continue from epoch to epoch, and a fixed set of validation rows.

    >>> module = TokenDataModule(Tokens.of(range(1_000)), batch_size=2, seq_len=4, seed=1)
    >>> inputs, targets = next(iter(module.train_dataloader()))
    >>> targets
    tensor([[441, 442, 443, 444],
            [525, 526, 527, 528]])
    >>> module.state_dict()["row"]
    2

    Parameters
    ----------
    train
        The tokens to train on, such as `tokenmill.open(path)["train"]`, or a Mixture.
    val
        The tokens to validate on, read in sequential order.
    batch_size
        Rows per batch, on each device.
    seq_len, seed
        As for `tokenmill.Loader`.
    epoch_steps
        Steps per epoch of the trainer. The default is one pass over the data, without an incomplete
        last step. For a mixture, the default is computed from the total size of all sources.
    val_rows
        How many rows to validate on; by default all rows. If the last step has fewer rows than
        there are devices, that step is omitted.
    num_workers
        How many `DataLoader` workers make the batches. With 0, a thread makes them. That is faster.
    settings
        Other arguments of `tokenmill.Loader`: order, block_rows, group_blocks, dtype, documents,
        in_memory, prefetch.
    """

    def __init__(
        self,
        train: Tokens | Mixture,
        val: Tokens | None = None,
        *,
        batch_size: int,
        seq_len: int,
        seed: int = 0,
        epoch_steps: int | None = None,
        val_rows: int | None = None,
        num_workers: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__()
        if refused := _SET_BY_TRAINER & settings.keys():
            raise UsageError(
                f"`{min(refused)}` is set by the trainer. Omit it, and set devices, max_steps or "
                "max_epochs of the trainer."
            )
        if unknown := settings.keys() - {field.name for field in fields(LoaderSettings)}:
            raise UsageError(
                f"`{min(unknown)}` is not an argument of tokenmill.Loader. Omit it, or correct its "
                "name."
            )
        if epoch_steps is not None:
            epoch_steps = check_whole("epoch_steps", epoch_steps, 1)
        if val is not None and not len(val):  # an empty split means no validation
            val = None
        if settings.pop("in_memory", False):
            train, val = train.in_memory(), val.in_memory() if val is not None else None
        self._train, self._val = train, val
        self._settings = {**settings, "batch_size": batch_size, "seq_len": seq_len, "seed": seed}
        self._epoch_steps, self._val_rows, self._workers = epoch_steps, val_rows, num_workers
        self._steps: _TrainingSteps | None = None
        if val is None:  # Lightning skips validation only if this method is not overridden
            self.__dict__["val_dataloader"] = super().val_dataloader

    def setup(self, stage: str) -> None:
        """Make the training loader for the rank of this device."""
        if stage == "fit":
            self._training_steps()

    def teardown(self, stage: str) -> None:
        """Stop the thread that reads ahead."""
        if stage == "fit" and self._steps is not None:
            self._steps.close()

    def train_dataloader(self) -> _TrainingSteps:
        """Return the steps of an epoch, which start at the current row of the run."""
        return self._training_steps()

    def val_dataloader(self) -> _FixedSteps:
        """Return the validation batches, which are the same each time."""
        assert self._val is not None
        blocks = {"block_rows": None, "group_blocks": None}
        settings = {**self._settings, "order": "sequential", **blocks}
        return _FixedSteps(self._make_factory(self._val, settings), self._val_rows)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run. Lightning saves it in its checkpoints."""
        return self._training_steps().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume a run. Lightning calls this method when it restores a checkpoint."""
        if (
            self.trainer is None or self.trainer.state.fn == "fit"
        ):  # validation does not resume a run
            self._training_steps().load_state_dict(state_dict)

    def _training_steps(self) -> _TrainingSteps:
        """Return the steps of the current trainer. A new trainer continues at the same row."""
        steps = self._steps
        if steps is None or steps.trainer is not self.trainer:
            self._steps = _TrainingSteps(
                self._make_factory(self._train, self._settings), self._epoch_steps, self.trainer
            )
            if steps is not None:
                self._steps.load_state_dict(steps.state_dict())
        assert self._steps is not None
        return self._steps

    def _make_factory(self, data: Tokens | Mixture, settings: Mapping[str, Any]) -> _BatchFactory:
        if self.trainer is None:
            return _BatchFactory(data, settings, self._workers, torch.device("cpu"))
        ranks = {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}
        device = self.trainer.strategy.root_device
        return _BatchFactory(data, {**settings, **ranks}, self._workers, device)


@dataclass(frozen=True)
class _BatchFactory:
    """Makes iterators of batches. If `workers` is not 0, worker processes make the batches."""

    data: Tokens | Mixture
    settings: Mapping[str, Any]
    workers: int
    device: torch.device

    def make_loader(self, **limit: Any) -> Loader:
        return Loader(self.data, device=self.device, **self.settings, **limit)

    def iterate(self, loader: Loader, row: int) -> Iterator[AnyBatch]:
        """Return an iterator of the batches from `row` on.

        Without workers, the iterator is `loader` itself, which must be at `row`.
        """
        if not self.workers:
            return loader
        settings = {name: value for name, value in self.settings.items() if name != "prefetch"}
        dataset = TokenBatches(self.data, start=row, **settings, limit_rows=loader.arrays.limit)
        pins = self.device.type == "cuda"
        workers = DataLoader(dataset, batch_size=None, num_workers=self.workers, pin_memory=pins)
        return iter(workers)


class _TrainingSteps:
    """Yields the batches of one epoch in each iteration, from the current row of the run on.

    `__len__` is needed: without it, Lightning would fetch a batch in advance, and checkpoints would
    be one batch ahead.
    """

    def __init__(
        self, factory: _BatchFactory, steps: int | None, trainer: pl.Trainer | None
    ) -> None:
        self.trainer = trainer
        self._factory, self._loader = factory, factory.make_loader()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            compare_ranks(self._loader.arrays)
        rows = self._loader.arrays.rows
        windows = sum(order.windows for order in rows.orders)
        self._length = steps or max(1, windows // self._loader.arrays.global_batch)
        self._row = 0
        # For the first batch that the trainer has not finished: how many batches were finished
        # before it, and its first row.
        self._unfinished: tuple[int, int] = (-1, 0)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[AnyBatch]:
        if getattr(
            self.trainer, "overfit_batches", 0
        ):  # overfitting needs the same batches each epoch
            self.load_state_dict({**self._loader.state_dict(), "row": 0})
        batches = self._factory.iterate(self._loader, self._row)
        for _ in range(self._length):
            if (finished := self._count_finished()) != self._unfinished[0]:
                self._unfinished = finished, self._row
            batch = next(batches)
            self._row += self._loader.arrays.global_batch
            yield batch

    def state_dict(self) -> dict[str, Any]:
        # After a signal or an exception, a checkpoint may be saved in the middle of a step. Then
        # the state is the first row of the unfinished batch.
        finished, row = self._unfinished
        if self.trainer is None or self._count_finished() != finished:
            row = self._row
        return {**self._loader.state_dict(), "row": row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
        self._row = self._loader.row
        self._unfinished = (-1, 0)

    def close(self) -> None:
        self._loader.close()

    def _count_finished(self) -> int:
        """Return how many batches the trainer has finished."""
        if self.trainer is None:
            return 0
        total: Any = self.trainer.fit_loop.epoch_loop.batch_progress.total
        return int(total.processed)


class _FixedSteps:
    """Yields the same batches each time it is iterated. All ranks get the same number of batches."""

    def __init__(self, factory: _BatchFactory, rows: int | None) -> None:
        loader = factory.make_loader().arrays
        windows = loader.rows.orders[0].windows
        rows = windows if rows is None else min(rows, windows)
        self._rows = trim_last_step(rows, loader.batch_size, loader.world_size)
        if not self._rows:
            raise UsageError(
                f"validation has {rows} rows of {loader.seq_len:,} tokens, and each of the "
                f"{loader.world_size} devices needs at least one row. Use more tokens or a "
                "smaller `seq_len`."
            )
        self._factory, self._global_batch = factory, loader.global_batch

    def __len__(self) -> int:
        return -(-self._rows // self._global_batch)

    def __iter__(self) -> Iterator[AnyBatch]:
        return iter(self._factory.iterate(self._factory.make_loader(limit_rows=self._rows), 0))
