"""Charts of the viewer are well-formed, bounded, and show each value where it belongs."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.inspect.view.charts import LEFT, TOP, Chart, Mark, Series, draw_chart
from tokenmill.training.scale import Scale

VALUES = st.floats(1e-6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -3.0])


def draw(values: list[float], *, is_log: bool = False, width: int = 800, name: str = "a") -> str:
    array = np.array(values)
    known = array[np.isfinite(array) & ((array > 0) | (not is_log))]
    steps = np.arange(len(values), dtype=np.float64)
    one = Series(
        id="0:train", name=name, colour=0, steps=steps, values=array, low=array, high=array
    )
    chart = Chart(
        id="loss",
        label=name,
        x=Scale(low=0, high=max(len(values) - 1, 1)),
        y=Scale.around(known, is_log=is_log and len(known) > 0),
        width=width,
        height=300,
        x_name="step",
        y_name="loss",
        series=[one],
        marks=[Mark(step=0, value=1, colour=0, label=name, link=f"/batches?run={name}")],
    )
    return draw_chart(chart)


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)]


@settings(max_examples=100, deadline=None)
@given(st.lists(VALUES, max_size=80), st.booleans(), st.integers(280, 2400))
def test_known_values_are_drawn_inside_the_plot(
    values: list[float], is_log: bool, width: int
) -> None:
    svg = draw(values, is_log=is_log, width=width)
    root = ElementTree.fromstring(svg)
    (line,) = [one for one in root.iter("path") if one.get("class") == "line"]
    drawn = points(line.get("d", ""))
    shown = [v for v in values if math.isfinite(v) and (v > 0 or not is_log)]
    inside = [
        (x, y) for x, y in drawn if LEFT <= x <= width - 16 and TOP <= y <= 300 and abs(y) < 1e4
    ]
    assert len(inside) >= len(shown)
    assert "nan" not in svg.lower()
    texts = [one for one in root.iter("text") if one.get("class") == "tick"]
    assert len(texts) <= 40


@settings(max_examples=100, deadline=None)
@given(st.floats(-1e6, 1e9), st.floats(1e-3, 1e9), st.integers(280, 2400))
def test_labels_of_the_axes_do_not_overlap(low: float, length: float, width: int) -> None:
    chart = Chart(
        id="c",
        label="",
        x_name="step",
        y_name="loss",
        series=[],
        x=Scale(low=low, high=low + length),
        y=Scale(low=low, high=low + length),
        width=width,
        height=300,
    )
    root = ElementTree.fromstring(draw_chart(chart))
    texts = [one for one in root.iter("text") if one.get("class") == "tick"]
    below = [one for one in texts if one.get("text-anchor") == "middle"]
    boxes = [(float(one.get("x", "")), 3.7 * len(one.text or "")) for one in below]
    for (x, half), (other, other_half) in itertools.pairwise(boxes):
        assert x + half < other - other_half
    heights = sorted(float(one.get("y", "")) for one in texts if one not in below)
    assert all(b - a >= 12 for a, b in itertools.pairwise(heights))


def test_charts_of_long_runs_have_bounded_size() -> None:
    assert len(draw([3.0] * 1000)) < 60_000


def test_names_cannot_leave_their_place() -> None:
    evil = '"><script>alert(1)</script><a href=\'"'
    svg = draw([3.0, 2.0], name=evil)
    assert "<script" not in svg
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == evil
    assert not root.findall(".//script")


def test_a_spike_is_a_link_above_its_point() -> None:
    root = ElementTree.fromstring(draw([1.0, 2.0]))
    (mark,) = root.findall("a")
    assert mark.get("href") == "/batches?run=a"
    assert mark.get("aria-label") == "a"


@pytest.mark.parametrize(("low", "high"), [(1.0, 1000.0), (2.1, 2.6), (1e-9, 1e9)])
def test_logarithmic_ticks_are_few_and_inside(low: float, high: float) -> None:
    scale = Scale(low=math.log10(low), high=math.log10(high), is_log=True)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 10
    assert all(low * 0.99 <= tick <= high * 1.01 for tick in ticks)
