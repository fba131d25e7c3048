"""The charts of runs' losses: which steps are shown, the curves, and the points of each curve.

A chart has at most one bucket, a group of consecutive steps, for every two pixels, however long the
runs are. The URL of the page says everything about what is shown, so a zoomed chart can be shared as
a link.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokenmill.inspect.view.charts import (
    LEAST_WIDTH,
    LEFT,
    MOST_WIDTH,
    RIGHT,
    Chart,
    Mark,
    Series,
)
from tokenmill.inspect.view.file_losses import FileLosses
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.run_curves import RunCurves
from tokenmill.inspect.view.step_losses import Floats, find_width
from tokenmill.inspect.view.viewer import make_link
from tokenmill.training.config import MOST_STEPS
from tokenmill.training.scale import Scale, nice_ticks
from tokenmill.wording import one_line

WINDOWS = (0, 10, 30, 100, 300, 1000, 3000, 10_000)
USUAL_WIDTH = 1060
_PIXELS = 2  # pixels per bucket
_MOST_VALIDATIONS = 300
_FILE_BUCKETS = 60  # points of a curve of a file, which is made from a sample
_NARROWEST = 8  # steps of the smallest range that is shown


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the charts show: the steps from `first` to `last`, or all of them if `last` is None.

    `window` is the number of steps of the moving mean, and `hidden` has the indices of hidden runs.
    """

    first: int = 0
    last: int | None = None
    window: int = 0
    is_log_x: bool = False
    is_log_y: bool = False
    hidden: frozenset[int] = frozenset()
    width: int = USUAL_WIDTH

    @classmethod
    def read(cls, query: Query) -> Shown:
        """Return what the parameters of a URL ask for.

        >>> Shown.read(Query({"from": "10", "to": "20", "smooth": "100"})).window
        100
        """
        first = query.number("from", 0, high=MOST_STEPS)
        last = query.number("to", -1, low=-1, high=MOST_STEPS)
        hidden = (number for number in query.text("hide").split(",") if number.isdecimal())
        return cls(
            first=min(first, last) if last >= 0 else 0,
            last=max(last, first + 1) if last >= 0 else None,
            window=int(query.choice("smooth", [str(window) for window in WINDOWS])),
            is_log_x=query.flag("logx"),
            is_log_y=query.flag("logy"),
            hidden=frozenset(int(number[:9]) for number in hidden),
            width=query.number("width", USUAL_WIDTH, low=LEAST_WIDTH, high=MOST_WIDTH),
        )

    @property
    def values(self) -> dict[str, str]:
        """The parameters of the URL, without the width."""
        zoomed = {} if self.last is None else {"from": str(self.first), "to": str(self.last)}
        given = {
            "smooth": str(self.window) if self.window else "",
            "logx": "1" if self.is_log_x else "",
            "logy": "1" if self.is_log_y else "",
            "hide": ",".join(map(str, sorted(self.hidden))),
        }
        return zoomed | {name: value for name, value in given.items() if value}

    @property
    def link(self) -> str:
        """The URL of the page that shows this."""
        return make_link("/runs", **self.values)

    def toggle(self, run: int) -> Shown:
        """Return a copy in which a run is toggled: shown if it was hidden, hidden if it was shown."""
        return replace(self, hidden=self.hidden ^ {run})

    def limit(self, first: float, last: float, end: int) -> Shown:
        """Return the same with the steps from `first` to `last`, moved and cut to fit in 0 to `end`."""
        length = max(_NARROWEST, round(last - first))
        if length >= end:
            return replace(self, first=0, last=None)
        begin = min(max(round(first), 0), end - length)
        return replace(self, first=begin, last=begin + length)


class LossCharts:
    """The charts of some runs, for one request. Hidden runs have no curves."""

    def __init__(self, runs: Sequence[RunCurves], shown: Shown) -> None:
        self.runs, self.shown = runs, shown
        self.visible = [(n, run) for n, run in enumerate(runs) if n not in shown.hidden]
        self.end = max((run.steps for _, run in self.visible), default=0)
        self.first = shown.first
        self.last = shown.last if shown.last is not None else self._last()
        self.x = self._scale_x()

    def _last(self) -> int:
        """Return the last step of the visible runs; if one is live, plus room for further points."""
        end = max(self.end, 1)
        if not any(run.is_live for _, run in self.visible):
            return end
        step = nice_ticks(0, end * 1.02, 10)[1] or 1
        return max(math.ceil(end * 1.02 / step) * round(step), 10) if step >= 1 else 10

    def _scale_x(self) -> Scale:
        if not self.shown.is_log_x:
            return Scale(low=self.first, high=max(self.last, self.first + 1))
        low = math.log10(max(self.first, 1))
        return Scale(low=low, high=max(math.log10(max(self.last, 2)), low + 0.1), is_log=True)

    @property
    def views(self) -> dict[str, Shown]:
        """What each button shows: zoomed in, zoomed out, moved left, moved right, and everything."""
        first, last, end = self.first, min(self.last, max(self.end, 1)), max(self.end, 1)
        middle, length = (first + last) / 2, last - first
        limit = self.shown.limit
        return {
            "in": limit(middle - length / 4, middle + length / 4, end),
            "out": limit(middle - length, middle + length, end),
            "left": limit(first - length / 2, last - length / 2, end),
            "right": limit(first + length / 2, last + length / 2, end),
            "all": replace(self.shown, first=0, last=None),
        }

    @property
    def bucket_width(self) -> int:
        """How many steps a bucket has, so that each bucket takes at least two pixels."""
        most = max(50, (self.shown.width - LEFT - RIGHT) // _PIXELS)
        return find_width(self.first, self.last + 1, most)

    def curves(self, after: Mapping[int, int] | None = None) -> list[Series]:
        """Return the curves of all losses.

        With `after`, which maps each run to a number of steps, returns only the points that may have
        changed since the run had that many steps.
        """
        found: list[Series] = []
        single = len(self.runs) == 1
        for number, run in self.visible:
            known = (after or {}).get(number, 0)
            found += self._run_curves(number, run, known, val_colour=1 if single else number)
        return found

    def _run_curves(
        self, number: int, run: RunCurves, after: int, *, val_colour: int
    ) -> list[Series]:
        window = self.shown.window
        buckets = run.losses.find(self.first, self.last + 1, self.bucket_width)
        if after:  # new steps change a moving mean up to half its window before them
            buckets = buckets.cut(after - window // 2 - 1, run.losses.steps)
        steps, means = buckets.steps, buckets.means
        is_wide = buckets.width > 1
        values = run.losses.smooth(steps, max(window, 1)) if window > buckets.width else means
        unknown = buckets.count == 0
        name = one_line(run.name)
        curves = [
            Series(
                id=f"{number}:train",
                name=f"{name} training",
                colour=number,
                start=float(buckets.first * buckets.width),
                steps=steps,
                values=values,
                low=np.where(unknown, np.nan, buckets.low) if is_wide else None,
                high=np.where(unknown, np.nan, buckets.high) if is_wide else None,
                faint=means if window > 1 and not is_wide else None,
            )
        ]
        if run.metrics.val_steps:
            val_steps, val_values = run.validation(
                max(self.first, after), self.last, _MOST_VALIDATIONS
            )
            curves.append(
                Series(
                    id=f"{number}:val",
                    name=f"{name} validation",
                    colour=val_colour,
                    steps=val_steps,
                    values=val_values,
                    is_dotted=True,
                )
            )
        return curves

    def source_curves(self, number: int) -> list[Series]:
        """Return the losses of a run by source, one curve for each source."""
        run = self.runs[number]
        buckets = run.losses.find(self.first, self.last + 1, self.bucket_width)
        window = self.shown.window // buckets.width
        return [
            Series(
                id=f"{number}:source:{source}",
                name=one_line(name),
                colour=source,
                steps=buckets.steps,
                values=move_mean(means, window),
            )
            for source, (name, means) in enumerate(
                zip(run.sources, run.find_by_source(buckets), strict=True)
            )
        ]

    def file_curves(self, number: int, files: FileLosses) -> list[Series]:
        """Return the losses of a run by source file, one curve for each file of a sample."""
        width = max(self.bucket_width, find_width(self.first, self.last + 1, _FILE_BUCKETS))
        curves = []
        for file, name in enumerate(files.names):
            steps, means = files.find(file, self.first, self.last + 1, width)
            curves.append(
                Series(
                    id=f"{number}:source:{file}",
                    name=one_line(name),
                    colour=file,
                    steps=steps,
                    values=move_mean(means, self.shown.window // width),
                )
            )
        return curves

    def chart(
        self,
        name: str,
        label: str,
        curves: list[Series],
        *,
        marks: Iterable[Mark] = (),
        height: int = 380,
    ) -> Chart:
        """Return a chart of some curves, at most `height` pixels high."""
        shown = self.shown
        return Chart(
            id=name,
            label=label,
            x=self.x,
            y=self._scale_y(curves),
            width=shown.width,
            height=min(height, max(240, shown.width * 3 // 8)),
            x_name="step" if not shown.is_log_x else "step, logarithmic",
            y_name="loss" if not shown.is_log_y else "loss, logarithmic",
            series=curves,
            marks=[mark for mark in marks if self.first <= mark.step <= self.last],
        )

    def _scale_y(self, curves: list[Series]) -> Scale:
        arrays = [
            array
            for one in curves
            for array in (one.values, one.low, one.high, one.faint)
            if array is not None
        ]
        values: Floats = np.concatenate(arrays) if arrays else np.empty(0)
        values = values[np.isfinite(values)]
        is_log = self.shown.is_log_y and bool((values > 0).any())
        if is_log:
            values = values[values > 0]
        return Scale.around(values, is_log=is_log)


def move_mean(values: Floats, window: int) -> Floats:
    """Return the mean of the `window` values around each one, without NaN.

    >>> move_mean(np.array([1.0, 2.0, 6.0]), 3).tolist()
    [1.5, 3.0, 4.0]
    """
    if window < 2 or not len(values):
        return values
    known = np.isfinite(values)
    totals = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    places = np.arange(len(values))
    low = np.maximum(places - window // 2, 0)
    high = np.minimum(places + (window + 1) // 2, len(values))
    with np.errstate(invalid="ignore"):
        return np.asarray((totals[high] - totals[low]) / (counts[high] - counts[low]))


def list_points(curve: Series) -> dict[str, Any]:
    """Return the points of a curve as values for JSON; None is unknown.

    `start` is a step: these points replace all older points from there on.

    >>> steps, values = np.array([1.0, 2.0]), np.array([3.0, np.nan])
    >>> list_points(Series(id="a", name="a", colour=0, steps=steps, values=values))
    {'id': 'a', 'name': 'a', 'colour': 0, 'start': 1.0, 'steps': [1.0, 2.0], 'values': [3.0, None]}
    """
    start = curve.start if curve.start is not None else float(curve.steps[0])
    points: dict[str, Any] = {
        "id": curve.id,
        "name": curve.name,
        "colour": curve.colour,
        "start": start,
    }
    for name in ("steps", "values", "low", "high", "faint"):
        array = getattr(curve, name)
        if array is not None:
            points[name] = [value if math.isfinite(value) else None for value in array.tolist()]
    return points
