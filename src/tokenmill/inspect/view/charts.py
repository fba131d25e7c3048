"""Charts as SVG: complete without scripts, and with all numbers that a script needs to extend them.

A chart is drawn for a width in pixels, so its text has the same size on every screen. Colours and
fonts are in `charts.css`. All names are escaped. Costs: about 20 bytes for each point. The caller
bounds the number of points.

The `data-` attributes of a chart say where its plot is (`left`, `top`, `across`, `down`, in pixels)
and what its axes show (`x-low`, `x-high`, `x-log`, and the same for y), in the units of `Scale`.
`static/charts.js` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from tokenmill.training.scale import Floats, Scale

COLOURS = 8  # colours in charts.css; further series use them again
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 14, 42
LEAST_WIDTH, MOST_WIDTH = 280, 2400
_FARTHEST = 1e5  # pixels outside of the plot at which points farther away are drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """A curve: `values` by step. NaN leaves a gap.

    `low` and `high` are drawn as a band, `faint` as a thin line behind the curve. `is_dotted` draws
    a dot at each point, and dashes between the dots. `start` is the first step of the first point,
    which may stand for several steps.
    """

    id: str
    name: str
    colour: int
    steps: Floats
    values: Floats
    low: Floats | None = None
    high: Floats | None = None
    faint: Floats | None = None
    is_dotted: bool = False
    start: float | None = None


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A mark above a point, with a link to a page."""

    step: float
    value: float
    colour: int
    label: str
    link: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Chart:
    """Everything in a chart; `width` and `height` are in pixels."""

    id: str
    label: str
    x: Scale
    y: Scale
    width: int
    height: int
    x_name: str
    y_name: str
    series: Sequence[Series]
    marks: Sequence[Mark] = ()

    @property
    def across(self) -> int:
        """The width of the plot."""
        return self.width - LEFT - RIGHT

    @property
    def down(self) -> int:
        """The height of the plot."""
        return self.height - TOP - BOTTOM

    def place_x(self, steps: npt.ArrayLike) -> Floats:
        """Return where steps are, in pixels from the left of the chart."""
        return _bound(LEFT + self.across * self.x.place(steps))

    def place_y(self, values: npt.ArrayLike) -> Floats:
        """Return where values are, in pixels from the top of the chart."""
        return _bound(TOP + self.down * (1 - self.y.place(values)))


def draw_chart(chart: Chart) -> str:
    """Return a chart as SVG, to be put into a page.

    >>> line = Series(id="a", name="train", colour=0, steps=np.array([0.0, 1.0]), values=np.array([2.0, 1.0]))
    >>> x, y = Scale(low=0, high=1), Scale(low=1, high=2)
    >>> svg = draw_chart(Chart(id="c", label="Loss", x=x, y=y, width=272, height=156, x_name="step",
    ...     y_name="loss", series=[line]))
    >>> '<path class="line" d="M56.0 14.0L256.0 114.0"/>' in svg
    True
    """
    return "".join(_draw(chart))


def _draw(chart: Chart) -> Iterator[str]:
    numbers = {
        "left": LEFT,
        "top": TOP,
        "across": chart.across,
        "down": chart.down,
        "x-low": chart.x.low,
        "x-high": chart.x.high,
        "x-log": int(chart.x.is_log),
        "y-low": chart.y.low,
        "y-high": chart.y.high,
        "y-log": int(chart.y.is_log),
    }
    data = " ".join(f'data-{name}="{float(value):.17g}"' for name, value in numbers.items())
    yield (
        f'<svg class="plot" id="{escape(chart.id)}" viewBox="0 0 {chart.width} {chart.height}" '
        f'width="{chart.width}" height="{chart.height}" role="group" '
        f'aria-label="{escape(chart.label)}" {data}>'
    )
    yield (
        f'<clipPath id="{escape(chart.id)}-plot"><rect x="{LEFT}" y="{TOP - 8}" '
        f'width="{chart.across}" height="{chart.down + 8}"/></clipPath>'
    )
    yield from _draw_axes(chart)
    yield f'<g clip-path="url(#{escape(chart.id)}-plot)">'
    for one in chart.series:
        yield from _draw_series(chart, one)
    yield "</g>"
    for mark in chart.marks:
        yield _draw_mark(chart, mark)
    yield "</svg>"


def _draw_axes(chart: Chart) -> Iterator[str]:
    bottom = TOP + chart.down
    for tick in chart.y.ticks(max(3, chart.down // 50)):
        y = float(chart.place_y(tick))
        yield f'<path class="grid" d="M{LEFT} {y:.1f}h{chart.across}"/>'
        yield f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:.6g}</text>'
    right_end = -1e9
    for tick in chart.x.ticks(max(3, chart.across // 110)):
        if tick != round(tick) and abs(tick) < 1e15:
            continue
        x, text = float(chart.place_x(tick)), f"{tick:,.0f}"
        half = 4 * len(text)
        yield f'<path class="axis" d="M{x:.1f} {bottom}v5"/>'
        middle = min(x, chart.width - half - 1)
        if middle - half < right_end + 8:  # skip a label that would touch the one before it
            continue
        right_end = middle + half
        yield f'<text class="tick" x="{middle:.1f}" y="{bottom + 19}" text-anchor="middle">{text}</text>'
    yield f'<path class="axis" d="M{LEFT} {bottom}h{chart.across}"/>'
    middle = LEFT + chart.across / 2
    yield (
        f'<text class="axis-name" x="{middle:.1f}" y="{chart.height - 6}" text-anchor="middle">'
        f"{escape(chart.x_name)}</text>"
    )
    down = TOP + chart.down / 2
    yield (
        f'<text class="axis-name" x="12" y="{down:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 12 {down:.1f})">{escape(chart.y_name)}</text>'
    )


def _draw_series(chart: Chart, one: Series) -> Iterator[str]:
    x, y = chart.place_x(one.steps), chart.place_y(one.values)
    yield f'<g class="series colour-{one.colour % COLOURS}" data-id="{escape(one.id)}">'
    if one.low is not None and one.high is not None:
        yield f'<path class="band" d="{_band(x, chart.place_y(one.low), chart.place_y(one.high))}"/>'
    if one.faint is not None:
        yield f'<path class="faint" d="{_line(x, chart.place_y(one.faint))}"/>'
    kind = "line dashed" if one.is_dotted else "line"
    yield f'<path class="{kind}" d="{_line(x, y)}"/>'
    if one.is_dotted:
        yield f'<path class="dots" d="{_dots(x, y)}"/>'
    yield "</g>"


def _draw_mark(chart: Chart, mark: Mark) -> str:
    x = float(chart.place_x(mark.step))
    y = max(float(chart.place_y(mark.value)) - 6, 9.0)
    if not LEFT - 1 <= x <= LEFT + chart.across + 1:
        return ""
    return (
        f'<a class="spike colour-{mark.colour % COLOURS}" href="{escape(mark.link)}" '
        f'aria-label="{escape(mark.label)}"><title>{escape(mark.label)}</title>'
        f'<path class="target" d="M{x - 12:.1f} {y - 16:.1f}h24v22h-24z"/>'
        f'<path class="arrow" d="M{x:.1f} {y:.1f}l-5 -8h10z"/></a>'
    )


def _line(x: Floats, y: Floats) -> str:
    """Return the path of a line through points, with gaps at NaN."""
    parts, is_open = [], False
    for across, down in zip(x.tolist(), y.tolist(), strict=True):
        if down != down or across != across:
            is_open = False
            continue
        parts.append(f"{'L' if is_open else 'M'}{across:.1f} {down:.1f}")
        is_open = True
    return "".join(parts)


def _dots(x: Floats, y: Floats) -> str:
    """Return the path of points: lines of length 0, which the style's round ends make dots."""
    places = zip(x.tolist(), y.tolist(), strict=True)
    return "".join(
        f"M{across:.1f} {down:.1f}h0"
        for across, down in places
        if across == across and down == down
    )


def _band(x: Floats, low: Floats, high: Floats) -> str:
    """Return the path around the area between two lines. Points with a NaN are omitted."""
    known = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
    if not known.any():
        return ""
    x, low, high = x[known], low[known], high[known]
    return _line(np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]])) + "Z"


def _bound(places: Floats) -> Floats:
    return np.clip(places, -_FARTHEST, _FARTHEST)
