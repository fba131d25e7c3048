"""Charts of a run's losses: `loss.svg` for a browser, and characters for a terminal.

A curve is drawn with at most a few hundred points, so the file stays small for any run. If there
are more, neighbouring points are averaged. The scale is logarithmic if losses differ by a factor of
three or more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from tokenmill.training.scale import Floats, Scale, nice_ticks

MOST_POINTS = 400
_WIDTH, _HEIGHT = 800, 450
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 36, 60, 48
_COLOURS = ("#3b6fb6", "#d1603d", "#4c956c", "#8d6cab")
_RATIO = 3.0  # if the largest loss is this many times the smallest, the scale is logarithmic
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # bits of the 4 x 2 braille dots
_MARK = "o"


@dataclass(frozen=True)
class Curve:
    """A named series of values by step. NaN and infinity are omitted."""

    name: str
    steps: npt.ArrayLike
    values: npt.ArrayLike

    def binned(self, most: int = MOST_POINTS) -> tuple[Floats, Floats]:
        """Return the steps and values of at most `most` points.

        If the curve has more points, neighbouring points are averaged.

        >>> Curve("train", [1, 2, 3, 4], [8, 6, 4, 2]).binned(2)
        (array([1.5, 3.5]), array([7., 3.]))
        """
        steps, values = np.asarray(self.steps, np.float64), np.asarray(self.values, np.float64)
        finite = np.isfinite(values)
        steps, values = steps[finite], values[finite]
        if len(steps) <= most:
            return steps, values
        edges = np.linspace(0, len(steps), most + 1).astype(np.int64)
        sizes = np.diff(edges)
        return np.add.reduceat(steps, edges[:-1]) / sizes, (
            np.add.reduceat(values, edges[:-1]) / sizes
        )


class _Axes:
    """Maps steps to fractions of the chart's width, and losses to fractions of its height."""

    def __init__(self, curves: list[tuple[Floats, Floats]]) -> None:
        steps = np.concatenate([points[0] for points in curves] or [np.empty(0)])
        values = np.concatenate([points[1] for points in curves] or [np.empty(0)])
        self.last = float(steps.max(initial=1.0))
        is_log = bool(len(values) and values.min() > 0 and values.max() / values.min() >= _RATIO)
        self.values = Scale.around(values, is_log=is_log)

    def across(self, steps: npt.ArrayLike) -> Floats:
        return np.asarray(steps, np.float64) / self.last

    def step_ticks(self) -> list[float]:
        return [tick for tick in nice_ticks(0, self.last) if tick == round(tick)]


def draw_svg(curves: list[Curve], title: str) -> str:
    """Return the text of an SVG file that shows the curves.

    >>> svg = draw_svg([Curve("train", [0, 1], [3, 2])], "a < b")
    >>> svg[:4], svg.count("<polyline"), "a &lt; b" in svg
    ('<svg', 1, True)
    """
    points = [curve.binned() for curve in curves]
    axes = _Axes(points)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="24" font-size="15" fill="#222222">{escape(title)}</text>',
    ]
    for tick in axes.values.ticks():
        y = _TOP + height * (1 - float(axes.values.place(tick)))
        parts.append(f'<path d="M{_LEFT} {y:.1f}h{width}" stroke="#e3e3e3"/>')
        parts.append(_label(_LEFT - 8, y + 4, "end", f"{tick:g}"))
    for tick in axes.step_ticks():
        x = _LEFT + width * float(axes.across(tick))
        parts.append(f'<path d="M{x:.1f} {_TOP + height}v5" stroke="#888888"/>')
        parts.append(_label(x, _TOP + height + 20, "middle", f"{tick:,.0f}"))
    parts.append(f'<path d="M{_LEFT} {_TOP}v{height}h{width}" fill="none" stroke="#888888"/>')
    parts.append(_label(_LEFT + width / 2, _HEIGHT - 10, "middle", "step"))
    scale = "loss, logarithmic" if axes.values.is_log else "loss"
    parts.append(_label(_LEFT - 48, _TOP - 10, "start", scale))
    for number, (curve, (steps, values)) in enumerate(zip(curves, points, strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        across = _LEFT + width * axes.across(steps)
        down = _TOP + height * (1 - axes.values.place(values))
        parts += _line(across, down, colour)
        y = _TOP + 8 + 18 * number
        last = f" {values[-1]:.4g}" if len(values) else ""
        parts.append(f'<path d="M{_WIDTH - 190} {y}h22" stroke="{colour}" stroke-width="2"/>')
        parts.append(_label(_WIDTH - 160, y + 4, "start", f"{curve.name}{last}"))
    return "\n".join([*parts, "</svg>\n"])


def _line(across: Floats, down: Floats, colour: str) -> list[str]:
    places = [f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True)]
    made = [
        f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" '
        'stroke-width="1.6" stroke-linejoin="round"/>'
    ]
    if len(places) <= 40:  # few enough to show each point
        made += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>'
            for x, y in zip(across, down, strict=True)
        ]
    return made


def _label(x: float, y: float, anchor: str, text: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#444444">{escape(text)}</text>'
    )


def draw_text(curves: list[Curve], *, width: int = 72, height: int = 14) -> str:
    """Return a chart in characters: the first curve in braille dots, over it the others as `o`.

    >>> print(draw_text([Curve("train", [0, 1, 2], [4, 2, 1])], width=10, height=3))
       4 ┤⠒⠤⣀
       2 ┤   ⠉⠒⠤⣀
       1 ┤       ⠉⠒⠤
         └──────────
          0        2
    train 1
    """
    points = [curve.binned(2 * width) for curve in curves]
    axes = _Axes(points)
    cells = [[" "] * width for _ in range(height)]
    for number, (steps, values) in enumerate(points):
        across, up = axes.across(steps), axes.values.place(values)
        if number == 0:
            _draw_dots(cells, across, up)
            continue
        columns = np.minimum((across * width).astype(np.int64), width - 1)
        lines = np.clip(((1 - up) * height).astype(np.int64), 0, height - 1)
        for column, line in zip(columns.tolist(), lines.tolist(), strict=True):
            cells[line][column] = _MARK
    labels = [""] * height
    for tick in axes.values.ticks():
        place = (1 - float(axes.values.place(tick))) * height
        labels[min(max(int(place), 0), height - 1)] = f"{tick:g}"
    margin = max(4, *map(len, labels))
    lines_made = [
        f"{label:>{margin}} {'┤' if label else '│'}{''.join(row)}".rstrip()
        for label, row in zip(labels, cells, strict=True)
    ]
    last = f"{axes.last:,.0f}"
    lines_made.append(f"{'':{margin}} └{'─' * width}")
    lines_made.append(f"{'':{margin}}  0{last:>{width - 1}}")
    last_values = [
        f"{curve.name}{f' ({_MARK})' if number else ''} {values[-1]:.4g}"
        for number, (curve, (_, values)) in enumerate(zip(curves, points, strict=True))
        if len(values)
    ]
    return "\n".join([*lines_made, ", ".join(last_values) or "no losses yet"])


def _draw_dots(cells: list[list[str]], across: Floats, up: Floats) -> None:
    """Draw a line through points into `cells`, in braille characters of 2 x 4 dots each.

    Point n is at the fractions `across[n]` of the width and `up[n]` of the height.
    """
    width, height = 2 * len(cells[0]), 4 * len(cells)
    if not len(across):
        return
    columns = np.arange(width)
    first, last = across[0] * (width - 1), across[-1] * (width - 1)
    columns = columns[(columns >= math.floor(first)) & (columns <= math.ceil(last))]
    rows = np.interp(columns, across * (width - 1), (1 - up) * (height - 1))
    masks = np.zeros((len(cells), len(cells[0])), np.int64)
    before = None
    for column, row in zip(columns.tolist(), np.rint(rows).astype(int).tolist(), strict=True):
        # Fill the gaps of a steep line.
        low, high = sorted((row, row if before is None else before))
        for dot in range(low + (before == low and low < high), high + 1 - (before == high > low)):
            masks[dot // 4, column // 2] |= _DOTS[dot % 4][column % 2]
        before = row
    for place in zip(*np.nonzero(masks), strict=True):
        cells[place[0]][place[1]] = chr(0x2800 + int(masks[place]))
