"""Losses of steps in buckets equal those computed step by step, for any phases and any growth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.inspect.view.step_losses import StepLosses, bucket_steps, find_width


@dataclass(frozen=True)
class Phase:
    step: int
    row: int
    batch_rows: int


LOSSES = st.lists(
    st.floats(0, 20, width=32) | st.just(math.nan) | st.just(5.0), min_size=1, max_size=300
)


@st.composite
def runs(draw: st.DrawFn) -> tuple[np.ndarray, list[Phase]]:
    """The losses of a run's rows, and its phases: the batch size changes at some steps."""
    losses = np.array(draw(LOSSES), np.float32)
    phases, step, row = [], 0, 0
    for _ in range(draw(st.integers(1, 3))):
        batch = draw(st.integers(1, 9))
        phases.append(Phase(step, row, batch))
        steps = draw(st.integers(1, 20))
        step, row = step + steps, row + steps * batch
    return losses, phases


def brute(losses: np.ndarray, phases: list[Phase]) -> list[float]:
    """The mean loss of each complete step, without NaN; NaN if it has nothing else."""
    means, row, step = [], 0, 0
    while True:
        batch = [phase for phase in phases if phase.step <= step][-1].batch_rows
        if row + batch > len(losses):
            return means
        known = [float(loss) for loss in losses[row : row + batch] if not math.isnan(loss)]
        means.append(math.fsum(known) / len(known) if known else math.nan)
        row, step = row + batch, step + 1


@settings(max_examples=150, deadline=None)
@given(runs(), st.data())
def test_buckets_have_the_lowest_highest_and_mean_loss_of_their_steps(
    run: tuple[np.ndarray, list[Phase]], data: st.DataObject
) -> None:
    losses, phases = run
    means = brute(losses, phases)
    # Few buckets are kept, so that narrow ones have to be read again.
    found = StepLosses(
        lambda first, last: losses[first:last], phases, most_buckets=data.draw(st.integers(1, 40))
    )
    known = 0
    while known < len(losses):  # the run grows
        known = data.draw(st.integers(known + 1, len(losses)))
        found.follow(known)
    assert found.steps == len(means)
    first = data.draw(st.integers(0, len(means)))
    last = data.draw(st.integers(first, len(means) + 3))
    width = 1 << data.draw(st.integers(0, 5))
    buckets = found.find(first, last, width)
    assert buckets.width == width
    last = min(last, len(means))
    wanted = range(first // width, -(-last // width)) if last > first else range(0)
    assert len(buckets) == len(wanted)
    for at, bucket in enumerate(wanted):
        own = [mean for mean in means[bucket * width : (bucket + 1) * width] if mean == mean]
        assert buckets.starts[at] == bucket * width
        assert buckets.count[at] == len(own)
        if own:
            assert buckets.low[at] == pytest.approx(min(own))
            assert buckets.high[at] == pytest.approx(max(own))
            assert buckets.means[at] == pytest.approx(sum(own) / len(own))


@settings(max_examples=100, deadline=None)
@given(runs(), st.integers(1, 40))
def test_moving_means_equal_the_mean_of_the_steps_in_the_window(
    run: tuple[np.ndarray, list[Phase]], window: int
) -> None:
    losses, phases = run
    means = brute(losses, phases)
    found = StepLosses(lambda first, last: losses[first:last], phases)
    found.follow(len(losses))
    smooth = found.smooth(np.arange(len(means), dtype=np.float64), window)
    for step, value in enumerate(smooth):
        inside = [
            mean
            for other, mean in enumerate(means)
            if step - window / 2 <= other < step + window / 2 and mean == mean
        ]
        assert value == pytest.approx(
            sum(inside) / len(inside) if inside else math.nan, nan_ok=True
        )


@settings(max_examples=100, deadline=None)
@given(runs())
def test_rows_and_steps_are_inverse(run: tuple[np.ndarray, list[Phase]]) -> None:
    losses, phases = run
    found = StepLosses(lambda first, last: losses[first:last], phases)
    row = 0
    for step in range(60):
        rows = found.rows_of(step)
        assert rows.start == row
        assert {found.step_at(one) for one in rows} == {step}
        row = rows.stop


def test_a_long_run_takes_bounded_memory_and_keeps_its_spike() -> None:
    steps = 3_000_000

    def read(first: int, last: int) -> np.ndarray:
        rows = np.arange(first, min(last, 4 * steps))
        return np.where(rows // 4 == 1_234_567, 90, 3 + rows % 4).astype(np.float32)

    found = StepLosses(read, [Phase(0, 0, 4)])
    found.follow(4 * steps)
    assert found.steps == steps
    all_steps = found.find(0, steps, find_width(0, steps, 500))
    assert len(all_steps) <= 500
    assert all_steps.high.max() == 90
    assert np.median(all_steps.means) == 4.5
    assert len(found._kept) <= 1 << 20
    near = found.find(1_234_560, 1_234_570, 1)
    assert near.means.tolist() == [4.5] * 7 + [90.0] + [4.5] * 2


@given(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(1, 2000))
def test_widths_are_the_smallest_that_fit(first: int, length: int, most: int) -> None:
    def fits(width: int) -> bool:
        return -(-(first + length) // width) - first // width <= most

    width = find_width(first, first + length, most)
    assert width & (width - 1) == 0
    assert fits(width) or width >= first + length
    assert width == 1 or not fits(width // 2)


def test_a_bucket_without_any_loss_is_unknown() -> None:
    buckets = bucket_steps(0, np.array([math.nan, math.nan, 3.0]), 2)
    assert buckets.count.tolist() == [0, 1]
    assert math.isnan(buckets.means[0])
    assert buckets.steps.tolist() == [0.0, 2.0]
