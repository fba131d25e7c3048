"""How a run reads its data: from steps and ranks to rows, from rows to tokens, and back.

A `RunView` describes a run of `tokenmill train` or of any loader; `run_opening.py` makes it. `span`
returns the tokens of a row, and `find_rows` all rows that hold certain tokens. Both are exact for
every order, mixture and change of batch size.

Costs: a row, step or token costs as much at the end of a long run as at its start. The exception is
`find_rows` for the order `random`: it computes every row of the range that it searches, at about
10 ns each.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import DatasetError, UsageError
from tokenmill.load.rows import RunRows
from tokenmill.load.settings import check_whole
from tokenmill.load.state import MOST_ROWS
from tokenmill.order.rows import RowOrder
from tokenmill.storage.reading import open_inside
from tokenmill.store.tokens import Tokens
from tokenmill.training.run_folder import DATA_NAME, LOSSES_NAME
from tokenmill.wording import brief, one_line

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_CHUNK = 1 << 20  # rows, or windows (rows of one epoch), to compute at once
_FLOAT = np.dtype("<f4")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Consecutive steps with the same batch size and number of ranks.

    `batch_rows` is the number of rows per step, on all ranks together. The rows of each step are
    divided into `world_size` equal parts; rank r reads part r.
    """

    step: int
    row: int
    batch_rows: int
    world_size: int


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a row is read: its step, its rank, and its `index` in the batch of the rank.

    `epoch` is the epoch of the row's source, counted from 0.
    """

    row: int
    step: int
    rank: int
    index: int
    epoch: int


@dataclass(frozen=True, kw_only=True)
class RowSpan:
    """What a row holds: the tokens [start, stop) of the source's split, `seq_len` + 1 of them."""

    row: int
    source: str
    start: int
    stop: int


class RunView:
    """How a run reads its data.

    `folder` is the folder of a run of `tokenmill train`, else None. `datasets` are the datasets by
    the name of their source, which is "" if there is no mixture. `whole` are the same as they are on
    disk: without the splits that `val_fraction` makes of them.

    >>> import tempfile
    >>> from tokenmill.inspect.run_opening import view_data
    >>> file = Path(tempfile.mkdtemp()) / "ids.npy"
    >>> np.save(file, np.arange(1_000))
    >>> view = view_data(file, seq_len=10, batch_size=4, world_size=2, seed=1)
    >>> view.step_rows(30), view.step_rows(30, rank=1)
    (range(240, 248), range(244, 248))
    >>> view.span(245)
    RowSpan(row=245, source='', start=310, stop=321)
    >>> view.place(245)
    Place(row=245, step=30, rank=1, index=1, epoch=2)
    >>> view.find_rows("", 311, 312, last_row=300).tolist()
    [41, 142, 245]
    """

    def __init__(
        self,
        *,
        datasets: Mapping[str, Dataset],
        rows: RunRows,
        phases: Sequence[Phase],
        split: str = "train",
        folder: Path | None = None,
        whole: Mapping[str, Dataset] | None = None,
        val_fraction: float | None = None,
    ) -> None:
        self.folder, self.datasets, self.split = folder, datasets, split
        self.rows, self.phases = rows, tuple(phases)
        self.whole, self.val_fraction = datasets if whole is None else whole, val_fraction

    def __repr__(self) -> str:
        where = "" if self.folder is None else f"{self.folder}: "
        return f"<RunView {where}rows of {self.rows.seq_len:,} tokens of {self.rows.data!r}>"

    @property
    def seq_len(self) -> int:
        """The number of inputs of a row. A row has one token more."""
        return self.rows.seq_len

    @property
    def row_count(self) -> int | None:
        """How many rows the run has read and recorded so far; None without a run's folder."""
        return None if self.folder is None else self.losses_count

    def tokens(self, source: str) -> Tokens:
        """Return the tokens of a source."""
        return self.rows.tokens[self._find_source(source)]

    def order(self, source: str) -> RowOrder:
        """Return the order of a source's rows."""
        return self.rows.orders[self._find_source(source)]

    def find_unread(self, source: str, split: str, start: int, stop: int) -> str | None:
        """Return why no step reads some of the tokens [start, stop) of a split; None if there is no
        reason. The end of an epoch, where less than a row is left, is no such reason.

        Positions are those in the dataset on disk, as in `whole`.
        """
        reads = "No step" if self.folder is None else "No training step"
        if split != self.split:
            is_val = split == "val"
            why = "which is held out for validation" if is_val else f"and steps read {self.split}"
            return f"{reads} reads it: it is in split {one_line(split)}, {why}."
        read = len(self.tokens(source))
        if stop <= read:
            return None
        what = "it" if start >= read else f"its tokens from {read} on"
        return (
            f"{reads} reads {what}: the tokens of the split from {read} on are held out for validation "
            f"(val_fraction {self.val_fraction:g})."
        )

    def _find_source(self, source: str) -> int:
        try:
            return self.rows.names.index(source)
        except ValueError:
            known = ", ".join(map(one_line, self.rows.names))
            what = (
                f"the sources are {known}" if known else "there is a single source, without a name"
            )
            raise UsageError(f"unknown source {one_line(repr(source))}: {what}.") from None

    def step_rows(self, step: int, rank: int | None = None) -> range:
        """Return the rows of a step or, with `rank`, those that one rank reads."""
        step = check_whole("step", step, 0)
        phase = self._pick_phase(self._phase_steps, step, "step")
        first = phase.row + (step - phase.step) * phase.batch_rows
        if first + phase.batch_rows > MOST_ROWS:
            raise UsageError(
                f"`step` is {brief(step)}; the first row of a step must be below 2**62."
            )
        if rank is None:
            return range(first, first + phase.batch_rows)
        if not 0 <= rank < phase.world_size:
            raise UsageError(
                f"`rank` is {rank}, but step {step:,} has {phase.world_size} "
                f"rank{'s' if phase.world_size != 1 else ''}, numbered from 0."
            )
        part = phase.batch_rows // phase.world_size
        return range(first + rank * part, first + (rank + 1) * part)

    def place(self, row: int) -> Place:
        """Return the step, rank and epoch of a row."""
        return self.places([row])[0]

    def places(self, rows: Sequence[int] | Integers) -> list[Place]:
        """Return the step, rank and epoch of each row. Faster than calling `place` for each."""
        numbers = np.array([_check_row(row) for row in rows], np.int64)
        windows, firsts = np.array([order.windows for order in self.rows.orders]), numbers
        sources = np.zeros_like(numbers)
        if self.rows.mixture is not None:
            sources, firsts = self.rows.mixture.assign(numbers)
        epochs = (firsts // windows[sources]).tolist()
        return [
            self._place(row, epoch) for row, epoch in zip(numbers.tolist(), epochs, strict=True)
        ]

    def _place(self, row: int, epoch: int) -> Place:
        phase = self._pick_phase(self._phase_rows, row, "row")
        steps, inside = divmod(row - phase.row, phase.batch_rows)
        rank, index = divmod(inside, phase.batch_rows // phase.world_size)
        return Place(row=row, step=phase.step + steps, rank=rank, index=index, epoch=epoch)

    @cached_property
    def _phase_steps(self) -> list[int]:
        return [one.step for one in self.phases]

    @cached_property
    def _phase_rows(self) -> list[int]:
        return [one.row for one in self.phases]

    def _pick_phase(self, firsts: Sequence[int], number: int, what: str) -> Phase:
        phase = bisect_right(firsts, number) - 1
        if phase < 0:
            raise DatasetError(
                f"{self.folder} does not say which batch {what} {number:,} is in: {DATA_NAME} begins "
                f"at {what} {firsts[0]:,}. Ask for a later {what}."
            )
        return self.phases[phase]

    def spans(self, rows: Integers) -> tuple[Integers, Integers]:
        """Return the index of each row's source in `rows.names`, and its first token in the source."""
        return self.rows.locate_in_sources(rows)

    def span(self, row: int) -> RowSpan:
        """Return which tokens a row holds."""
        sources, starts = self.spans(np.array([_check_row(row)]))
        start, name = int(starts[0]), self.rows.names[int(sources[0])]
        return RowSpan(row=row, source=name, start=start, stop=start + self.seq_len + 1)

    def find_rows(
        self, source: str, start: int, stop: int, *, first_row: int = 0, last_row: int
    ) -> Integers:
        """Return all rows in [first_row, last_row) that hold a token of [start, stop), ascending.

        `start` and `stop` are positions in the split of a source. In each epoch, a token is in one
        row, or in two if it is the last of one row and the first of another. The last few tokens of
        a source may be in no row.
        """
        number = self._find_source(source)
        order, mixture = self.rows.orders[number], self.rows.mixture
        if first_row >= last_row or start >= stop:
            return np.empty(0, np.int64)
        first, last = first_row, last_row
        if mixture is not None:
            first, last = (int(mixture.counts(row)[number]) for row in (first_row, last_row))
        found = np.concatenate([np.empty(0, np.int64), *_find_own(order, start, stop, first, last)])
        found.sort()
        return found if mixture is None else mixture.rows_of(number, found)

    def find_epoch_end(self, source: str, epoch: int) -> int:
        """Return the first row of the run after an epoch of a source.

        If the weight of the source becomes 0 for good during the epoch, returns the row after the
        source's last one.
        """
        number = self._find_source(source)
        rows = (epoch + 1) * self.rows.orders[number].windows
        mixture = self.rows.mixture
        return rows if mixture is None else mixture.find_end(number, rows)

    def read(self, rows: Integers) -> npt.NDArray[Any]:
        """Return the tokens of rows, as an array of shape (rows, seq_len + 1)."""
        return self.rows.read(self.rows.locate(np.asarray(rows, np.int64)))

    @property
    def losses_count(self) -> int:
        """How many rows have a loss in the run's folder; 0 without a folder."""
        with ExitStack() as stack:
            file = self._open_losses(stack)
            return 0 if file is None else os.fstat(file.fileno()).st_size // _FLOAT.itemsize

    def losses(self, first: int, last: int) -> Floats:
        """Return the losses of the rows [first, last), NaN where unknown. Empty without a folder."""
        if self.folder is None:
            return np.empty(0, np.float32)
        losses = np.full(max(0, last - first), np.nan, np.float32)
        with ExitStack() as stack:
            if (file := self._open_losses(stack)) is not None:
                # The system refuses places that no file can have.
                file.seek(min(first * _FLOAT.itemsize, os.fstat(file.fileno()).st_size))
                data = file.read(losses.nbytes)
                known = np.frombuffer(
                    data[: len(data) // _FLOAT.itemsize * _FLOAT.itemsize], _FLOAT
                )
                losses[: len(known)] = known
        return losses

    def _open_losses(self, stack: ExitStack) -> BinaryIO | None:
        if self.folder is None or not (self.folder / LOSSES_NAME).exists():
            return None
        return stack.enter_context(open_inside(self.folder, LOSSES_NAME))


def _check_row(row: int) -> int:
    row = check_whole("row", row, 0)
    if row >= MOST_ROWS:
        raise UsageError(f"`row` is {brief(row)}; it must be below 2**62.")
    return row


def _find_own(order: RowOrder, start: int, stop: int, first: int, last: int) -> list[Integers]:
    """Return the rows of one source in [first, last) that hold a token of [start, stop).

    The result is in pieces, in any order. Uses the cheaper of two ways: to compute the row of each
    window (a row's worth of tokens) that has these tokens, or to compute the tokens of each row.
    """
    windows = order.find_windows(start, stop)
    epochs = range(first // order.windows, (last - 1) // order.windows + 1)
    found: list[Integers] = []
    if first >= last or (not windows and order.kind != "random"):
        return found
    if order.kind == "random" or len(windows) * len(epochs) > last - first:
        for low in range(first, last, _CHUNK):
            rows = np.arange(low, min(low + _CHUNK, last))
            starts = order.starts(rows)
            found.append(rows[(starts < stop) & (starts + order.seq_len >= start)])
        return found
    for low in range(0, len(windows) * len(epochs), _CHUNK):
        # Invert the windows of one epoch together: each epoch has a key, and changing keys is slow.
        numbers = np.arange(low, min(low + _CHUNK, len(windows) * len(epochs)))
        at, offsets = np.divmod(numbers, len(windows))
        rows = order.rows_of(windows.start + offsets, epochs.start + at)
        found.append(rows[(rows >= first) & (rows < last)])
    return found
