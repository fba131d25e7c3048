"""Charts are well-formed, small, and show the right values inside the picture."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.training.chart import MOST_POINTS, Curve, draw_svg, draw_text
from tokenmill.training.scale import nice_ticks

SVG = "{http://www.w3.org/2000/svg}"


def places(svg: str) -> list[list[tuple[float, float]]]:
    """The points of each line."""
    lines = ElementTree.fromstring(svg).findall(f"{SVG}polyline")
    return [
        [tuple(map(float, place.split(","))) for place in line.get("points", "").split()]
        for line in lines
    ]


def labels(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_charts_of_long_runs_are_small_and_show_means() -> None:
    steps = np.arange(1, 1_000_001)
    values = 3 + np.sin(steps / 100_000)
    svg = draw_svg([Curve("train", steps, values)], "long")
    (line,) = places(svg)
    assert len(line) == MOST_POINTS
    assert len(svg) < 20_000
    across, means = Curve("train", steps, values).binned()
    assert across[0] == steps[:2500].mean()
    assert means[-1] == pytest.approx(values[-2500:].mean())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1e-3, 1e4) | st.sampled_from([0.0, math.nan, math.inf, -1.0]), max_size=60),
    st.lists(st.floats(0.5, 12), max_size=5),
)
def test_every_point_is_inside_the_picture(train: list[float], val: list[float]) -> None:
    curves = [
        Curve("train", range(1, len(train) + 1), train),
        Curve("validation", range(1, len(val) + 1), val),
    ]
    for line in places(draw_svg(curves, "x")):
        assert all(0 <= x <= 800 and 0 <= y <= 450 for x, y in line)
    drawn = draw_text(curves, width=40, height=8).splitlines()
    assert len(drawn) == 11
    assert all(len(re.split("[┤│]", line)[1]) <= 40 for line in drawn[:8])


def test_lower_losses_are_drawn_lower_and_text_is_escaped() -> None:
    svg = draw_svg([Curve("a<b", [1, 2, 3], [4.0, 3.0, 2.0])], '<script>alert("x")</script>')
    assert "<script" not in svg
    assert '<script>alert("x")</script>' in labels(svg)
    assert "a<b 2" in labels(svg)
    ((_, high), _, (_, low)) = places(svg)[0]
    assert high < low  # SVG counts from the top


def test_the_scale_is_logarithmic_for_a_wide_range() -> None:
    wide = draw_svg([Curve("train", [1, 2, 3], [16.0, 4.0, 1.0])], "x")
    (_, first), (_, middle), (_, last) = places(wide)[0]
    assert middle == pytest.approx((first + last) / 2, abs=0.2)
    assert "loss, logarithmic" in labels(wide)
    narrow = draw_svg([Curve("train", [1, 2, 3], [3.0, 2.5, 2.0])], "x")
    assert "loss" in labels(narrow)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_and_inside(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span)
    assert 1 <= len(ticks) <= 8
    assert all(low - span * 1e-3 <= tick <= low + span * 1.001 for tick in ticks)


def test_the_terminal_curve_falls_with_the_loss() -> None:
    drawn = draw_text([Curve("train", range(100), np.linspace(4, 3, 100))], width=20, height=5)
    rows = drawn.splitlines()[:5]
    first = [next(i for i, mark in enumerate(row) if "\u2800" < mark <= "\u28ff") for row in rows]
    assert first == sorted(first)
    assert first[0] < first[-1]


def test_the_terminal_curve_begins_and_ends_at_its_steps() -> None:
    drawn = draw_text([Curve("train", [80, 90, 100], [4.0, 3.5, 3.0])], width=20, height=5)
    columns = {
        2 * place + side
        for row in drawn.splitlines()[:5]
        for place, mark in enumerate(re.split("[┤│]", row)[1])
        for side, dots in enumerate((0x47, 0xB8))  # those on the left and on the right
        if mark > "\u2800" and ord(mark) - 0x2800 & dots
    }
    assert columns == set(range(31, 40))  # of 40: the steps from 80 of 100 on
