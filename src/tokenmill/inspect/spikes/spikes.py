"""Find where the loss of a run jumped, the rows and documents behind it, and what these share.

Guarantees: the report depends only on the losses and the data. Losses that are NaN or infinite are
counted and listed, and used for nothing else. Nothing is guessed: if there are too few steps, the
report says so, and it is an error if it is unclear whether a value belongs to a row or to a step.

Costs: one pass over the losses (see `scan.py`), then at most `SAMPLE` rows and a few dozen
documents are looked up, whatever the length of the run. Memory is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenmill.dataset.paths import AnyPath
from tokenmill.errors import DatasetError, UsageError
from tokenmill.html import Table, render
from tokenmill.inspect.explain import ExplainedRow, explain_rows, make_view
from tokenmill.inspect.row_documents import Integers, has_documents
from tokenmill.inspect.run_view import RunView
from tokenmill.inspect.spikes.groups import LossGroups, group_losses
from tokenmill.inspect.spikes.levels import HALF, LEAST
from tokenmill.inspect.spikes.losses import LossFile, Per, read_losses
from tokenmill.inspect.spikes.scan import GAP, Jump, RowCurve, Scan, StepCurve, scan
from tokenmill.inspect.spikes.suspects import Judge, Shared, Suspect, find_shared, find_suspects
from tokenmill.order.rows import Kind
from tokenmill.progress import Watcher, watching
from tokenmill.wording import count, counted

THRESHOLD = 6.0
LIMIT = 10
_ROWS_OF_SPIKE = 5
_GROUP_OF_STEPS = 64  # with fewer steps per group of blocks, rows of a step may be neighbours
_STEPS_OF_SPIKE = 4  # the first steps of a spike, among which the cause must be
_ROWS_OF_STEPS = 1 << 14  # rows to look up at most if only the losses of steps are known


@dataclass(frozen=True, kw_only=True)
class HighRow:
    """A row with a high loss: by `excess`, or `score` spreads, above the expected loss."""

    loss: float
    excess: float
    score: float
    explained: ExplainedRow


@dataclass(frozen=True, kw_only=True)
class Spike:
    """Steps whose loss jumped: from `step` to `last_step`, highest at `peak_step`.

    `loss`, `expected`, `excess` and `score` are those of the peak. `cause` is "rows" if the rows of
    the first step that stand out account for at least half of its excess. Otherwise it is "weights":
    most rows are higher, so an earlier update of the weights is the likely cause, and the worst rows
    of the step before are listed too. It is "unknown" if only the losses of steps are known. `rows`
    are the worst rows. `suspects` are indices into the report's suspects, of documents in the spike.
    """

    step: int
    last_step: int
    peak_step: int
    loss: float
    expected: float
    excess: float
    score: float
    cause: str
    rows: tuple[HighRow, ...]
    suspects: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class NotFinite:
    """How many losses of a step are NaN or infinite. They are unknown, or the run diverged."""

    step: int
    nan: int
    infinite: int


@dataclass(frozen=True, kw_only=True)
class SpikeReport:
    """The spikes of a run. `spikes`, `rows` and `suspects` begin with the worst.

    `per` says whether the losses are those of rows or of steps. `paths` has the path of the data of
    each source. `last_step` is the number of the last step. `judged_steps` counts the steps with enough neighbours to be judged. `spike_count`
    and `high_row_count` count all spikes and rows that stand out; `spikes` and `rows` list the worst.
    `nan` and `infinite` count losses, and `not_finite` lists the first steps with such losses.
    `groups` is None if only the losses of steps are known. `notes` say what limits the report.
    """

    per: Per
    split: str
    paths: Mapping[str, str]
    steps: int
    last_step: int
    row_count: int | None
    judged_steps: int
    threshold: float
    window: int
    spike_count: int
    spikes: tuple[Spike, ...]
    high_row_count: int | None
    rows: tuple[HighRow, ...]
    suspects: tuple[Suspect, ...]
    shared: tuple[Shared, ...]
    groups: LossGroups | None
    nan: int
    infinite: int
    not_finite: tuple[NotFinite, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        suspects = counted(len(self.suspects), "suspect")
        return (
            f"<SpikeReport: {counted(self.spike_count, 'spike')} in {counted(self.steps, 'step')}, "
            f"{suspects}>"
        )

    def _repr_html_(self) -> str:
        facts = [("steps", count(self.steps)), ("judged by the loss of each", self.per)]
        facts += [("spikes", count(self.spike_count))]
        if self.high_row_count is not None:
            facts.append(("rows that stand out", count(self.high_row_count)))
        if self.nan + self.infinite:
            facts.append(("NaN or infinite losses", count(self.nan + self.infinite)))
        facts += [("note", note) for note in self.notes]
        spikes = [
            (
                count(one.step),
                f"{one.loss:.4f}",
                f"{one.expected:.4f}",
                f"{one.score:.1f}",
                one.cause,
            )
            for one in self.spikes
        ]
        tables: list[Table] = []
        if spikes:
            heads = ("step", "loss", "expected", "spreads", "cause")
            tables.append(("Spikes, the worst first", heads, spikes))
        if self.suspects:
            heads = ("document", "source", "excess", "rows that stand out", "text")
            rows = [_list_suspect(one) for one in self.suspects]
            tables.append(("Documents that stand out", heads, rows))
        return render("Spikes of the loss", facts, *tables)


def _list_suspect(one: Suspect) -> tuple[str, ...]:
    document = one.document
    source = None if document is None else document.source
    return (
        f"at token {one.start}" if document is None else str(document.number),
        one.source if document is None or source is None else f"{source.path}, {document.offset}",
        f"{one.excess:.2f}",
        f"{count(one.high_rows)} of {count(one.rows)}",
        "" if one.text is None else repr(one.text),
    )


def spikes(
    run: AnyPath | None = None,
    *,
    losses: AnyPath | None = None,
    per: Per | None = None,
    first_step: int | None = None,
    data: AnyPath | Sequence[AnyPath] = (),
    seq_len: int | None = None,
    batch_size: int | None = None,
    world_size: int | None = None,
    seed: int | None = None,
    order: Kind | None = None,
    block_rows: int | None = None,
    group_blocks: int | None = None,
    split: str | None = None,
    threshold: float = THRESHOLD,
    limit: int = LIMIT,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    **opening: Any,
) -> SpikeReport:
    """Find where the loss of a run jumped, and the documents that may have caused it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tokenmill
    >>> folder = Path(tempfile.mkdtemp())
    >>> texts = ["To be, or not to be: that is the question."] * 100 + ["@#%&" * 30]
    >>> _ = (folder / "a.txt").write_text("<|endoftext|>".join(texts))
    >>> _ = tokenmill.prepare(folder / "a.txt", folder / "data", tokenizer="bytes", dedup="none")
    >>> view = tokenmill.Loader(tokenmill.open(folder / "data")["train"], batch_size=4, seq_len=32)
    >>> rows = [view.batch_from(row).inputs[0] for row in range(120)]
    >>> np.save(folder / "losses.npy", [2 + 5 * np.mean(row == ord("@")) for row in rows])
    >>> found = spikes(
    ...     losses=folder / "losses.npy", per="row", data=folder / "data", seq_len=32, batch_size=4
    ... )
    >>> found.suspects[0].text[:10], found.suspects[0].high_rows
    ('@#%&@#%&@#', 4)

    Parameters
    ----------
    run
        The folder of a run of `tokenmill train`, which has all that is needed.
    losses
        A file of the losses of any other training, instead of `run`: .npy; JSON lines, each with a
        `loss` and a `step` or `row`; or raw float32 (.f32).
    per
        Whether a loss in the file belongs to a "row" or to a "step", if the file does not say.
    first_step
        The number that the file gives to the first step of the run; by default 0.
    data
        The data that was trained on, as in `explain`; for a run, only if the data was moved.
    seq_len, batch_size, world_size, seed, order, block_rows, group_blocks
        The settings of the loader, as in `Loader`.
    split
        The split of the tokens; train by default.
    threshold
        By how many spreads (robust standard deviations) a loss must exceed its neighbours.
    limit
        How many spikes, rows and documents to list, at most.
    progress, watcher
        Whether to show progress, or what receives it.
    opening
        Options of `tokenmill.open`, such as `tokenizer`.
    """
    if run is None and losses is None:
        raise UsageError(
            "give the folder of a run, such as runs/NAME, or the losses of another training: "
            "`losses=FILE`."
        )
    settings: dict[str, Any] = {
        "seq_len": seq_len,
        "batch_size": batch_size,
        "world_size": world_size,
        "seed": seed,
        "order": order,
        "block_rows": block_rows,
        "group_blocks": group_blocks,
        "split": split,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    file = None if losses is None else read_losses(losses, per=per)
    view = make_view(data, run=run, settings=given, opening=opening)
    with watching(watcher, progress) as found:
        return find_spikes(
            view, file, first_step=first_step, threshold=threshold, limit=limit, watcher=found
        )


def find_spikes(
    view: RunView,
    losses: LossFile | None = None,
    *,
    first_step: int | None = None,
    threshold: float = THRESHOLD,
    limit: int = LIMIT,
    watcher: Watcher,
) -> SpikeReport:
    """Find the spikes of an opened run, in its own losses or in those of a file."""
    if not 0 < threshold < math.inf:
        raise UsageError(f"`threshold` is {threshold}; it must be a positive number.")
    if limit < 1:
        raise UsageError(f"`limit` is {limit}; it must be 1 or more.")
    if first_step is not None and first_step < 0:
        raise UsageError(f"`first_step` is {first_step}; it must be 0 or more.")
    notes: list[str] = []
    curve = _make_curve(view, losses, first_step, notes)
    found = scan(curve, threshold, watcher)
    judge = Judge(view, curve, found, threshold)
    if not found.judged:
        notes.append(
            f"Too few steps: {counted(curve.steps, 'step')} with a loss. A step is judged by at least "
            f"{LEAST} steps around it, so no jump can be found yet."
        )
    rows = _choose_rows(view, curve, found, threshold)
    suspects: tuple[Suspect, ...] = ()
    if has_documents(view):
        suspects = find_suspects(view, judge, rows, watcher)
    else:
        notes.append(
            "The documents are unknown, because the data has no document table and no end-of-text "
            "id. If it has such an id, pass `eot_id=ID`."
        )
    suspects = suspects[:limit]
    groups = None
    if isinstance(curve, RowCurve):
        groups = group_losses(view, curve, judge, watcher)
    else:
        notes.append(
            "Only the losses of steps are known, so every document of a step is a suspect. With the "
            "losses of rows, the rows and the documents in them are found."
        )
    return SpikeReport(
        per="row" if isinstance(curve, RowCurve) else "step",
        split=view.split,
        paths={name: str(dataset.path) for name, dataset in view.datasets.items()},
        steps=curve.steps,
        last_step=curve.number(curve.steps - 1),
        row_count=curve.rows,
        judged_steps=found.judged,
        threshold=threshold,
        window=2 * HALF + 1,
        spike_count=found.jump_count,
        spikes=tuple(_describe(view, curve, judge, jump, suspects) for jump in found.jumps[:limit]),
        high_row_count=found.high_rows if isinstance(curve, RowCurve) else None,
        rows=_explain(view, judge, found.worst.rows[found.worst.scores >= threshold][:limit]),
        suspects=suspects,
        shared=find_shared(view, suspects),
        groups=groups,
        nan=found.nans,
        infinite=found.infinities,
        not_finite=tuple(
            NotFinite(step=curve.number(step), nan=nans, infinite=infinities)
            for step, nans, infinities in found.not_finite
        ),
        notes=(*(losses.notes if losses is not None else ()), *notes),
    )


def _make_curve(
    view: RunView, file: LossFile | None, first_step: int | None, notes: list[str]
) -> RowCurve | StepCurve:
    """Return the losses by step. Add remarks for the user to `notes`."""
    is_ordered = _is_ordered(view)
    if file is None:
        known = view.losses_count
        if not known:
            raise DatasetError(
                f"{view.folder} has no losses of rows yet. Resume the run, or give a file: "
                "`losses=FILE`."
            )
        curve = RowCurve(view.phases, known, view.losses, is_ordered=is_ordered)
        return _check(curve, known, str(view.folder))
    if _is_per_step(view, file):
        numbers = file.numbers
        if first_step is None:
            first_step = _guess_first_step(file, notes)
        if numbers is not None:
            numbers = numbers - first_step
            if numbers[0] < 0:
                raise UsageError(
                    f"{file.path} has step {count(int(numbers[0]) + first_step)}, which is before "
                    f"`first_step` ({count(first_step)})."
                )
        return StepCurve(file.values, numbers)
    values, total = file.values, len(file.values)
    if file.numbers is not None:
        total = int(file.numbers[-1]) + 1
        if total > 2 * len(values) + (1 << 20):
            raise UsageError(
                f"{file.path} has a loss for only {count(len(values))} of {counted(total, 'row')}, too "
                "few to compare neighbours. Record the loss of every row."
            )
        values = np.full(total, np.nan, np.float32)
        values[file.numbers] = file.values
    curve = RowCurve(
        view.phases, total, lambda first, last: values[first:last], is_ordered=is_ordered
    )
    return _check(curve, total, str(file.path))


def _is_ordered(view: RunView) -> bool:
    """Return whether the rows of a step may be neighbours in the data, so that one document fills it."""
    kind = view.rows.settings
    if kind.order != "blocks" or kind.block_rows is None or kind.group_blocks is None:
        return kind.order == "sequential"
    largest = max(phase.batch_rows for phase in view.phases)
    return kind.block_rows * kind.group_blocks < _GROUP_OF_STEPS * largest


def _check(curve: RowCurve, rows: int, where: str) -> RowCurve:
    if not curve.steps:
        raise UsageError(
            f"{where} has the losses of {counted(rows, 'row')}, which is less than one step. Check "
            "`batch_size` and `world_size`."
        )
    return curve


def _is_per_step(view: RunView, file: LossFile) -> bool:
    """Return whether the losses of a file are those of steps. Raises an error if it is unclear."""
    if file.per is not None:
        return file.per == "step"
    phase, total = view.phases[0], len(file.values)
    if phase.batch_rows == 1:
        return False
    if len(view.phases) == 1 and total % phase.batch_rows:
        return True  # the losses of rows would end in the middle of a step
    raise UsageError(
        f"{file.path} has {counted(total, 'value')}: either as many steps, or the rows of "
        f"{counted(total // phase.batch_rows, 'step')}. Say which: `per='step'` or `per='row'`."
    )


def _guess_first_step(file: LossFile, notes: list[str]) -> int:
    numbers = file.numbers
    if numbers is None or not numbers[0]:
        return 0
    if int(numbers[-1]) == len(numbers):  # 1, 2, 3, …
        notes.append(f"{file.path} counts steps from 1; here, the first step is step 0.")
        return 1
    notes.append(
        f"{file.path} begins at step {count(int(numbers[0]))}. If it counts steps from 1, pass "
        "`first_step=1`, or the documents are those of the step after."
    )
    return 0


def _choose_rows(
    view: RunView, curve: RowCurve | StepCurve, found: Scan, threshold: float
) -> Integers:
    """Return the rows whose documents may be suspects."""
    if isinstance(curve, RowCurve):
        return found.worst.rows[found.worst.scores >= threshold]
    chosen: list[Integers] = []
    left = _ROWS_OF_STEPS
    for jump in found.jumps:
        for step in range(jump.first, min(jump.last, jump.first + GAP) + 1):
            rows = np.array(view.step_rows(curve.number(step)))
            rows = rows[:: 1 + len(rows) // (_ROWS_OF_STEPS // 16)][: max(left, 0)]
            left -= len(rows)
            chosen.append(rows)
    return np.concatenate([np.empty(0, np.int64), *chosen])


def _describe(
    view: RunView,
    curve: RowCurve | StepCurve,
    judge: Judge,
    jump: Jump,
    suspects: Sequence[Suspect],
) -> Spike:
    cause, rows = "unknown", np.empty(0, np.int64)
    if isinstance(curve, RowCurve):
        cause, rows = _find_cause(curve, judge, jump)
        steps = range(jump.first, jump.last + 1)
    else:
        steps = range(curve.number(jump.first), curve.number(jump.last) + 1)
    shown = _explain(view, judge, rows)
    return Spike(
        step=curve.number(jump.first),
        last_step=curve.number(jump.last),
        peak_step=curve.number(jump.peak),
        loss=jump.loss,
        expected=jump.expected,
        excess=jump.excess,
        score=jump.score,
        cause=cause,
        rows=shown,
        suspects=tuple(
            number
            for number, one in enumerate(suspects)
            if any(step in steps for step in one.first_steps)
        ),
    )


def _find_cause(curve: RowCurve, judge: Judge, jump: Jump) -> tuple[str, Integers]:
    """Return what made the loss jump, "rows" or "weights", and the worst rows of the first steps."""
    rows = np.array(curve.rows_of(jump.first))
    excess, is_high = judge.judge(rows)
    # In steps of few rows, the excess of a row is relative to the level of the steps around it, as
    # `first_excess` is. In larger ones, it is relative to the median of its own step, if that is
    # higher: if the weights raised all losses, few rows stand out.
    share = float(excess[is_high].sum()) / (max(jump.first_excess, 1e-300) * len(rows))
    cause = "rows" if is_high.any() and share >= 0.5 else "weights"
    first = max(0, jump.first - 1) if cause == "weights" else jump.first
    steps = range(first, min(jump.last, jump.first + _STEPS_OF_SPIKE - 1) + 1)
    rows = np.concatenate([np.array(curve.rows_of(step), np.int64) for step in steps])
    excess, is_high = judge.judge(rows)
    rows, excess = rows[is_high], excess[is_high]
    return cause, rows[np.lexsort((rows, -excess))][:_ROWS_OF_SPIKE]


def _explain(view: RunView, judge: Judge, rows: Integers) -> tuple[HighRow, ...]:
    order = np.argsort(rows)
    excess, scores, losses = judge.measure(rows[order])
    back = np.argsort(order)
    return tuple(
        HighRow(
            loss=float(losses[back[at]]),
            excess=float(excess[back[at]]),
            score=float(scores[back[at]]),
            explained=explained,
        )
        for at, explained in enumerate(explain_rows(view, rows) if len(rows) else ())
    )
