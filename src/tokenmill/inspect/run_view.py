"""How a run reads its data: from steps and ranks to rows, from rows to tokens, and back.

A `RunView` describes a run of `tokenmill train`, from its folder, or a run of any loader, from its
settings. `span` returns the tokens of a row, and `find_rows` all rows that hold certain tokens. Both
are exact for every order, mixture and change of batch size.

Costs: opening reads manifests and, for the folder of a run, hashes of a sample of the tokens. A row,
step or token costs as much at the end of a long run as at its start. The exception is `find_rows` for
the order `random`: it computes every row of the range that it searches, at about 10 ns each.

The folder of a run is untrusted: see `training/run_reading.py`.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.named import NamedPath, parse_named
from tokenmill.dataset.opening import Dataset, load_saved_tokenizer
from tokenmill.dataset.opening import open as open_dataset
from tokenmill.dataset.paths import AnyPath
from tokenmill.errors import DatasetError, StateError, TokenmillError, UsageError
from tokenmill.formats.base import Contents
from tokenmill.hub.paths import is_hub_path
from tokenmill.load.mixture import Mixture
from tokenmill.load.rows import RunRows
from tokenmill.load.settings import RowSettings, check_whole
from tokenmill.load.state import MOST_ROWS
from tokenmill.order.mixture import DEFAULT_BLOCK
from tokenmill.order.rows import Kind, RowOrder
from tokenmill.storage.addresses import is_address
from tokenmill.storage.names import TOKENIZER_NAME
from tokenmill.storage.reading import open_foreign, open_inside
from tokenmill.store.shards import ArrayShard
from tokenmill.store.tokens import Tokens, is_same_data
from tokenmill.tokenizers import Tokenizer
from tokenmill.training.config import Config
from tokenmill.training.data import IN_MEMORY_VAL, open_data
from tokenmill.training.run_folder import CHECKPOINTS_NAME, CONFIG_NAME, DATA_NAME, LOSSES_NAME
from tokenmill.training.run_reading import DataOrigin, RowIdentity, read_run_data
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


def view_data(
    data: AnyPath | Sequence[AnyPath],
    *,
    seq_len: int,
    batch_size: int = 1,
    world_size: int = 1,
    seed: int = 0,
    order: Kind = "shuffled",
    block_rows: int | None = None,
    group_blocks: int | None = None,
    split: str = "train",
    changes: Mapping[int, Mapping[str, float]] | None = None,
    block: int = DEFAULT_BLOCK,
    **opening: Any,
) -> RunView:
    """Return how a loader with these settings reads `data`: a path, or several NAME=PATH:WEIGHT.

    `batch_size` is the number of rows per step on each rank. `changes` and `block` are as in
    `Mixture`, and the other arguments as in `Loader` and `tokenmill.open`.
    """
    settings = RowSettings(
        seq_len=seq_len, seed=seed, order=order, block_rows=block_rows, group_blocks=group_blocks
    )
    batch_size = check_whole("batch_size", batch_size, 1)
    world_size = check_whole("world_size", world_size, 1)
    named = parse_named([data] if isinstance(data, (str, os.PathLike)) else data)
    if not named:
        raise UsageError("`data` is empty. Give a dataset, or several as NAME=PATH:WEIGHT.")
    if batch_size * world_size >= MOST_ROWS:
        raise UsageError(
            f"a step would have {brief(batch_size * world_size)} rows: `batch_size` times `world_size` "
            "must be below 2**62."
        )
    options = {"cache_bytes": 0, **opening}  # without a cache, since only a few rows are read
    fraction = options.pop("val_fraction", None)
    whole = {one.name: open_dataset(one.path, **options) for one in named}
    datasets = _hold_out(named, whole, options, fraction)
    phase = Phase(step=0, row=0, batch_rows=batch_size * world_size, world_size=world_size)
    weights = {one.name: one.weight for one in named}
    tokens = _join(datasets, split, weights, changes or {}, block)
    rows = RunRows(tokens, settings)
    return RunView(
        datasets=datasets,
        rows=rows,
        phases=[phase],
        split=split,
        whole=whole,
        val_fraction=fraction,
    )


def open_run(
    folder: AnyPath,
    *,
    data: AnyPath | Sequence[AnyPath] = (),
    tokenizer: str | Tokenizer | None = None,
) -> RunView:
    """Return how a run of `tokenmill train` reads its data, from the run's folder.

    The folder says where the data is. If the data was moved, or was in memory, `data` names it, as
    for `tokenmill train`. If the tokens are not those of the run, raises an error. `tokenizer` is
    needed only if neither the data nor the run has one.
    """
    path = Path(folder)
    if not (path / DATA_NAME).exists():
        raise _lacks_data(path)
    record = read_run_data(path)
    given = [os.fspath(one) for one in ([data] if isinstance(data, (str, os.PathLike)) else data)]
    origin = record.origin
    if not given and origin is None:
        example = " ".join(f"{name}=PATH:WEIGHT" for name in record.rows.names or ()) or "PATH"
        raise UsageError(
            f"{path} does not say where its data is: it was made in Python, or its path is not UTF-8. Name the data: "
            f"`data={one_line(example)}`."
        )
    origin = origin or DataOrigin(data=[])
    try:
        datasets, whole, fraction = _open_data(path, origin, given, record.rows, tokenizer)
    except TokenmillError as error:
        if given or (missing := _find_missing(origin)) is None:
            raise
        cure = "Give its new place with `data`."
        if origin.input_file is not None:
            cure = "The run tokenized this text in memory: put it back."
        raise DatasetError(
            one_line(f"The data of the run {path} is missing: {missing} does not exist. ") + cure
        ) from error
    # Compare the data before its rows: other data may not even have one.
    _check_tokens(path, record.rows, datasets, is_given=bool(given))
    settings = RowSettings(
        seq_len=record.rows.seq_len,
        seed=record.rows.seed,
        order=record.rows.order,
        block_rows=record.rows.block_rows,
        group_blocks=record.rows.group_blocks,
    )
    weights, changes = _find_weights(record.rows)
    block = record.rows.block or DEFAULT_BLOCK
    rows = RunRows(_join(datasets, "train", weights, changes, block), settings)
    return RunView(
        datasets=datasets,
        rows=rows,
        phases=[
            Phase(step=one.step, row=one.row, batch_rows=one.batch_rows, world_size=one.world_size)
            for one in record.phases
        ],
        folder=path,
        whole=whole,
        val_fraction=fraction,
    )


def _open_data(
    path: Path,
    origin: DataOrigin,
    given: Sequence[str],
    rows: RowIdentity,
    tokenizer: str | Tokenizer | None,
) -> tuple[dict[str, Dataset], Mapping[str, Dataset], float | None]:
    """Open the data of a run, or the data that the user gave instead.

    Returns the datasets that the run reads, the same with what it holds out, and the fraction that
    is held out.
    """
    if not given and origin.input_file is not None:
        read, text, fraction = _open_text(path, origin)
        _check_names(path, rows, read)
        return read, text, fraction
    named = parse_named(given or origin.data)
    options = {"cache_bytes": 0, **_find_options(path, origin, tokenizer)}
    whole = {one.name: open_dataset(one.path, **options) for one in named}
    _check_names(path, rows, whole)
    datasets: dict[str, Dataset] = {}
    for one in named:
        try:
            datasets |= _hold_out([one], whole, options, origin.val_fraction)
        except UsageError:  # about `val_fraction`, which is the run's
            found = f"a part of it cannot be held out (val_fraction {origin.val_fraction:g}), as the run does"
            dataset = whole[one.name]
            raise _not_the_data(path, one.name, dataset, found, is_given=bool(given)) from None
    return datasets, whole, origin.val_fraction


def _find_missing(origin: DataOrigin) -> str | None:
    """Return the first local file or folder of a run's data that is no longer there."""
    if origin.input_file is not None:
        paths = [origin.input_file]
    else:
        paths = [one.path for one in parse_named(origin.data)]
    local = (path for path in paths if not is_address(path) and not is_hub_path(path))
    return next((path for path in local if not os.path.lexists(path)), None)


def _lacks_data(path: Path) -> DatasetError:
    if not path.exists():
        return DatasetError(f"{path} does not exist. Give the folder of a run, such as runs/NAME.")
    if any((path / name).exists() for name in (CONFIG_NAME, CHECKPOINTS_NAME)):
        return DatasetError(
            f"{path} has no {DATA_NAME}: the run was trained with an earlier version, so its folder "
            "does not say how it reads its data. Resume the run to add the file, or describe the run "
            "with `data` and the settings of its loader instead of `run`."
        )
    return DatasetError(
        f"{path} is not the folder of a run: it has no {DATA_NAME}. Give a folder such as runs/NAME."
    )


def _hold_out(
    named: Sequence[NamedPath],
    whole: Mapping[str, Dataset],
    options: Mapping[str, Any],
    fraction: float | None,
) -> dict[str, Dataset]:
    """Return the datasets with the end of each held out as `val`, as `tokenmill train` does."""
    datasets = {}
    for name, path, _ in named:
        datasets[name] = whole[name]
        if fraction and not (name and "val" in whole[name].splits):
            datasets[name] = open_dataset(path, **options, val_fraction=fraction)
    return datasets


def _find_weights(rows: RowIdentity) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
    """Return the weights at the start of a run, and the changes of weights by row."""
    if rows.names is None or not rows.weights:
        return {"": 1.0}, {}
    named = [(row, dict(zip(rows.names, each, strict=True))) for row, each in rows.weights]
    return named[0][1], dict(named[1:])


def _find_options(
    folder: Path, origin: DataOrigin, tokenizer: str | Tokenizer | None
) -> dict[str, Any]:
    names = ("dtype", "format", "vocab_size", "eot_id")
    options = {name: getattr(origin, name) for name in names}
    if tokenizer is not None:
        options["tokenizer"] = tokenizer
    elif origin.tokenizer is not None and (folder / TOKENIZER_NAME).exists():
        options["tokenizer"] = load_saved_tokenizer(folder)
    return options


def _open_text(
    folder: Path, origin: DataOrigin
) -> tuple[dict[str, Dataset], dict[str, Dataset], float]:
    """Tokenize the text file of a run in memory again, as `tokenmill train` does at every start.

    Returns the dataset that the run reads, the dataset of the whole text, and the fraction that is
    held out.
    """
    assert origin.input_file is not None
    with open_foreign(Path(origin.input_file).parent, Path(origin.input_file).name):
        pass  # a pipe is refused, because reading it may never end
    found = open_data(
        [],
        input_file=origin.input_file,
        tokenizer=load_saved_tokenizer(folder),
        config=Config(seq_len=1),  # or the part that is held out may be too short to be returned
        val_fraction=origin.val_fraction,
    )
    assert isinstance(found.train, Tokens)
    parts = [found.train] if found.val is None else [found.train, found.val]
    ids = np.concatenate([part[:] for part in parts])
    contents = Contents(
        splits={"train": ArrayShard(ids)}, eot_id=found.eot_id, vocab_size=found.vocab
    )
    whole = Dataset(Path(origin.input_file), "text", contents, found.tokenizer)
    read = replace(contents, splits={"train": ArrayShard(ids[: len(found.train)])})
    fraction = IN_MEMORY_VAL if origin.val_fraction is None else origin.val_fraction
    return {"": whole.with_contents(read)}, {"": whole}, fraction


def _join(
    datasets: Mapping[str, Dataset],
    split: str,
    weights: Mapping[str, float],
    changes: Mapping[int, Mapping[str, float]],
    block: int,
) -> Tokens | Mixture:
    if list(datasets) == [""]:
        if changes:
            raise UsageError("`changes` is for mixtures. Name each dataset: NAME=PATH:WEIGHT.")
        return datasets[""][split]
    # Use the order of the weights, because a mixture's rows depend on the order of its sources.
    sources = {name: (datasets[name][split], weight) for name, weight in weights.items()}
    return Mixture(sources, changes=changes, block=block)


def _check_names(folder: Path, there: RowIdentity, datasets: Mapping[str, Dataset]) -> None:
    expected = there.names or [""]
    if sorted(expected) != sorted(datasets):
        example = " ".join(f"{name}=PATH:WEIGHT" for name in there.names or ()) or "PATH"
        raise UsageError(
            f"{folder} was trained on {len(expected)} "
            f"dataset{'s' if len(expected) != 1 else ''}; `data` must name the same, as "
            f"{one_line(example)}."
        )


def _check_tokens(
    folder: Path, there: RowIdentity, datasets: Mapping[str, Dataset], *, is_given: bool
) -> None:
    """Raise `StateError` if the tokens are not those that the run was trained on."""
    for name, dataset in datasets.items():
        source, tokens = there.sources[name], dataset["train"]
        # Compare the lengths first: an identity may need reading.
        if source.tokens != len(tokens) or not is_same_data(source.fingerprint, tokens.identity):
            found = (
                f"expected {source.tokens:,} tokens, found {len(tokens):,} with another fingerprint"
            )
            raise _not_the_data(folder, name, dataset, found, is_given=is_given)


def _not_the_data(
    folder: Path, name: str, dataset: Dataset, found: str, *, is_given: bool
) -> StateError:
    """Return the error for data of another run, or for data that has changed."""
    source = f"source {one_line(name)}" if name else ""
    if is_given:
        place = f"{dataset.path} ({source})" if source else str(dataset.path)
        example = f"{one_line(name)}=PATH:WEIGHT" if name else "PATH"
        return StateError(
            f"The tokens of {place} are not those that the run {folder} was trained on: {found}. Give "
            f"the data of the run: `data={example}`."
        )
    place = f"{source} of the run" if source else "the run"
    return StateError(
        f"The data of {place} {folder} has changed since the training: {found}. Restore the data, or "
        "give its new place with `data`."
    )
