"""What stands out of losses: compared with brute force, one step at a time."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokenmill.inspect.run_view import Phase
from tokenmill.inspect.spikes import scan as loss_scan
from tokenmill.inspect.spikes.levels import HALF, LEAST, MOST_SCORE
from tokenmill.inspect.spikes.scan import GAP, MOST_ROWS, OWN, RowCurve, StepCurve, scan
from tokenmill.progress import Nobody

LOSS = st.one_of(
    st.floats(0, 20, width=32),
    st.sampled_from([float("nan"), float("inf"), -float("inf"), 3e38, 0.0, 2.5]),
)


def window(step: int, steps: int) -> range:
    """The neighbours of a step, by definition."""
    return range(max(0, step - HALF), min(steps, step + min(HALF, step) + 1))


def median(values) -> float:
    known = [value for value in values if math.isfinite(value) and abs(value) <= 1e30]
    return statistics.median(known) if known else math.nan


def mean(values) -> float:
    known = [value for value in values if math.isfinite(value) and abs(value) <= 1e30]
    return math.fsum(known) / len(known) if known else math.nan


def spread_of(series, usual, means, step) -> float:
    """The spread around a step: `usual` and `means` are distances of each step from its level."""
    steps = range(len(series))
    changes = [math.nan, *(abs(series[n] - series[n - 1]) for n in steps if n)]
    near = [median(values[n] for n in window(step, len(series))) for values in (usual, changes)]
    found = np.fmax(1.4826 * near[0], 1.0484 * near[1])
    if found == 0:
        found = 1.2533 * mean(means[n] for n in window(step, len(series)))
    return float(found)


def score_of(excess: float, spread: float) -> float:
    if math.isnan(excess) or math.isnan(spread):
        return math.nan
    if spread == 0:
        return 0.0 if excess == 0 else math.copysign(MOST_SCORE, excess)
    return max(-MOST_SCORE, min(MOST_SCORE, excess / spread))


def judge_steps(means: list[float]) -> list[tuple[float, float]]:
    """(excess, score) of each step, by brute force."""
    steps = len(means)
    levels = [median(means[n] for n in window(step, steps)) for step in range(steps)]
    far = [abs(value - level) for value, level in zip(means, levels, strict=True)]
    found = []
    for step in range(steps):
        excess = means[step] - levels[step]
        known = sum(math.isfinite(means[n]) for n in window(step, steps))
        score = score_of(excess, spread_of(means, far, far, step)) if known >= LEAST else math.nan
        found.append((excess, score))
    return found


def judge_rows(steps: list[list[float]]) -> list[tuple[float, float]]:
    """(excess, score) of each row, by brute force."""
    own = [median(rows) for rows in steps]
    levels = [median(own[n] for n in window(step, len(steps))) for step in range(len(steps))]
    for step, rows in enumerate(steps):
        if len(rows) >= OWN:
            levels[step] = float(np.fmax(levels[step], own[step]))
    far = [[abs(row - level) for row in rows] for rows, level in zip(steps, levels, strict=True)]
    usual, means = [median(values) for values in far], [mean(values) for values in far]
    found = []
    for step, rows in enumerate(steps):
        spread = spread_of(own, usual, means, step)
        known = sum(math.isfinite(own[n]) for n in window(step, len(steps)))
        for row in rows:
            clean = row if math.isfinite(row) and abs(row) <= 1e30 else math.nan
            excess = clean - levels[step] if known * len(rows) >= LEAST else math.nan
            found.append((excess, score_of(excess, spread)))
    return found


def curve_of(losses: np.ndarray, phases: list[tuple[int, int, int]]) -> RowCurve:
    made = [Phase(step=step, row=row, batch_rows=rows, world_size=1) for step, row, rows in phases]
    return RowCurve(made, len(losses), lambda first, last: losses[first:last])


def same(found: float, expected: float) -> bool:
    return (math.isnan(found) and math.isnan(expected)) or math.isclose(
        found, expected, rel_tol=1e-6, abs_tol=1e-6
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 25)), min_size=1, max_size=3),
    st.integers(0, 1 << 32),
    st.booleans(),
)
@example([(11, 3), (1, 1), (1, 1)], 3004312, True)  # the last step has no finite loss
def test_rows_and_steps_are_judged_as_by_brute_force(batches, seed, is_odd):
    random = Random(seed)
    phases, rows, steps = [], [], []
    for batch, count in batches:
        phases.append((len(steps), len(rows), batch))
        for _ in range(count):
            own = [random.choice([2.0, 2.5, random.gauss(3, 1)]) for _ in range(batch)]
            if is_odd and random.random() < 0.2:
                own[0] = random.choice([math.nan, math.inf, 1e35, 50.0])
            own = [float(np.float32(value)) for value in own]
            steps.append(own)
            rows += own
    curve = curve_of(np.array(rows, np.float32), phases)
    assert (curve.steps, curve.rows) == (len(steps), len(rows))
    found = scan(curve, 5.0, Nobody())
    every = np.arange(len(rows))
    assert curve.find_steps(every).tolist() == [n for n, own in enumerate(steps) for _ in own]
    excess, scores = found.judge(curve.find_steps(every), np.array(rows, np.float32))
    expected = judge_rows(steps)
    assert all(map(same, excess, [one for one, _ in expected]))
    assert all(map(same, scores, [one for _, one in expected]))
    assert found.high_rows == sum(score >= 5 for _, score in expected)
    means = [mean(own) for own in steps]
    jumped = {n for n, (high, score) in enumerate(judge_steps(means)) if score >= 5 and high > 0}
    spans = sorted(
        (range(jump.first, jump.last + 1) for jump in found.jumps), key=lambda span: span[0]
    )
    assert jumped <= {step for span in spans for step in span}
    assert all(span[0] in jumped and span[-1] in jumped for span in spans)
    assert all(after[0] - before[-1] > GAP for before, after in pairwise(spans))
    assert found.nans == sum(math.isnan(row) for row in rows)
    assert found.infinities == sum(abs(row) > 1e30 for row in rows)
    order = sorted(
        (n for n, (high, _) in enumerate(expected) if high > 0),
        key=lambda n: (-round(expected[n][0], 6), n),
    )
    assert len(found.worst.rows) == min(len(order), MOST_ROWS)
    for row, number in zip(found.worst.rows, order, strict=True):
        assert same(expected[row][0], expected[number][0])


@settings(max_examples=60, deadline=None)
@given(st.lists(LOSS, min_size=1, max_size=80))
def test_no_losses_crash_and_blocks_change_nothing(losses):
    values = np.array(losses, np.float32)
    with pytest.MonkeyPatch.context() as patch:
        whole = scan(StepCurve(values), 5.0, Nobody())
        patch.setattr(StepCurve, "block_steps", 7)
        blocks = scan(StepCurve(values), 5.0, Nobody())
    assert blocks.jumps == whole.jumps
    assert (blocks.nans, blocks.infinities) == (whole.nans, whole.infinities)
    rows = curve_of(values, [(0, 0, 3)])
    with pytest.MonkeyPatch.context() as patch:
        whole = scan(rows, 5.0, Nobody())
        patch.setattr(RowCurve, "block_steps", 5)
        patch.setattr(loss_scan, "_BLOCK", 4)
        blocks = scan(rows, 5.0, Nobody())
    assert blocks.worst.rows.tolist() == whole.worst.rows.tolist()
    assert np.array_equal(blocks.levels, whole.levels, equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=20, max_size=80),
    st.sampled_from([0.25, 0.5, 2.0, 8.0]),
    st.integers(-8, 8),
)
def test_scores_do_not_depend_on_scale_or_offset(losses, factor, offset):
    """Powers of 2 and whole numbers, so that floats are exact."""
    values = np.array(losses, np.float64)
    one = scan(StepCurve(values), 3.0, Nobody())
    other = scan(StepCurve(values * factor + offset), 3.0, Nobody())
    found = [(jump.first, jump.last, jump.score) for jump in one.jumps]
    expected = [(jump.first, jump.last, jump.score) for jump in other.jumps]
    assert found == expected


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 20), min_size=30, max_size=60),
    st.integers(0, 29),
    st.floats(0, 100),
)
def test_a_higher_loss_never_has_less_excess(losses, step, more):
    def find(values: list[float]) -> float:
        part = loss_scan.Part(0, np.array(values), len(values))
        return values[step] - float(loss_scan.find_medians(part, step, step + 1)[0][0])

    higher = list(losses)
    higher[step] += more
    assert find(higher) >= find(losses) - 1e-9


def test_equal_losses_have_no_jump_but_one_that_differs_does():
    values = np.full(200, 2.0)
    assert not scan(StepCurve(values), 5.0, Nobody()).jumps
    values[100] = 2.001
    (jump,) = scan(StepCurve(values), 5.0, Nobody()).jumps
    assert (jump.first, jump.peak, jump.last, jump.expected) == (100, 100, 100, 2.0)
    rows = curve_of(np.repeat(values, 4), [(0, 0, 4)])
    assert scan(rows, 5.0, Nobody()).worst.rows.tolist() == [400, 401, 402, 403]


def test_the_steep_fall_of_the_first_steps_is_no_jump():
    random = np.random.default_rng(3)
    steps = np.arange(1000)
    for scale in (0.5, 3, 20, 100):
        losses = 2 + 8 * np.exp(-steps / scale) + random.normal(0, 0.02, 1000)
        assert not scan(StepCurve(losses), 5.5, Nobody()).jumps
        losses[400] += 0.5
        losses[999] += 0.5  # the last step, as of a run that ended because it diverged
        assert {jump.first for jump in scan(StepCurve(losses), 5.5, Nobody()).jumps} == {400, 999}


def test_few_steps_are_not_judged():
    found = scan(StepCurve(np.array([9.0, 1, 50, 1, 2])), 5.0, Nobody())
    assert (found.judged, found.jumps) == (0, [])


def test_a_whole_step_that_is_higher_has_no_high_rows():
    random = np.random.default_rng(4)
    losses = random.normal(3, 0.2, (100, 32))
    losses[50:55] += 2
    losses[49, 7] += 4  # the row that broke the weights
    found = scan(curve_of(losses.astype(np.float32).ravel(), [(0, 0, 32)]), 6.0, Nobody())
    assert found.worst.rows[0] == 49 * 32 + 7
    assert found.high_rows == 1
    assert found.jumps[0].last == 54


def test_levels_of_long_runs_are_kept_for_some_steps_only(monkeypatch):
    monkeypatch.setattr(loss_scan, "_MOST_LEVELS", 10)
    random = np.random.default_rng(5)
    losses = random.normal(3, 0.2, 3000).astype(np.float32)
    losses[1234] = 9
    curve = curve_of(losses, [(0, 0, 3)])
    found = scan(curve, 6.0, Nobody())
    assert found.levels.shape == (10, 2)
    assert not np.isnan(found.levels).any()
    excess, _ = found.judge(curve.find_steps(np.array([1234])), losses[1234:1235])
    assert excess[0] == pytest.approx(6, abs=0.4)
    assert found.worst.rows[0] == 1234


def test_rows_are_read_in_any_places():
    losses = np.arange(100_000, dtype=np.float32)
    curve = curve_of(losses, [(0, 0, 10), (100, 1000, 90)])
    rows = np.array([0, 3, 5, 4000, 4001, 9999, 98_999])
    assert curve.read_rows(rows).tolist() == rows.tolist()
    assert curve.find_steps(rows).tolist() == [0, 0, 0, 133, 133, 199, 1188]
    assert curve.rows_of(100) == range(1000, 1090)
    assert curve.rows_of(99) == range(990, 1000)
