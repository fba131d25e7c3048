"""What a run leaves to look at: a loss at the place of its row, lines up to a checkpoint and no more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenmill.training.record import Record, read_metrics


def fill(folder: Path, steps: int, *, first: int = 0, every: int = 3) -> Record:
    """A record as a run of four rows a step leaves it; row n has the loss n."""
    record = Record(folder, step=first, row=4 * first)
    for step in range(first, steps):
        record.add_losses(4 * step, np.arange(4 * step, 4 * step + 4, dtype=np.float32))
        if (step + 1) % every == 0:
            row = 4 * (step + 1)
            record.add({"step": step + 1, "row": row, "loss": record.mean_loss(row)})
    return record


def test_losses_stand_at_the_place_of_their_row(tmp_path: Path) -> None:
    fill(tmp_path, 5).close()
    losses = np.fromfile(tmp_path / "row_losses.f32", "<f4")
    assert losses.tolist() == list(range(20))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    reached=st.integers(0, 12), back=st.integers(0, 12), torn=st.integers(0, 30), junk=st.booleans()
)
def test_going_on_from_any_step_leaves_what_an_undisturbed_run_leaves(
    tmp_path: Path, reached: int, back: int, torn: int, junk: bool
) -> None:
    for name in ("metrics.jsonl", "row_losses.f32"):
        (tmp_path / name).unlink(missing_ok=True)
    fill(tmp_path, reached).close()
    line = orjson.dumps({"step": reached + 1, "row": 4 * reached + 4, "loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b"\0\0\n" if junk else line[:torn])
    fill(tmp_path, 14, first=min(back, reached)).close()
    expected = [{"step": n, "row": 4 * n, "loss": 4 * n - 6.5} for n in (3, 6, 9, 12)]
    assert read_metrics(tmp_path) == expected
    assert len((tmp_path / "metrics.jsonl").read_bytes().splitlines()) == 4
    assert np.fromfile(tmp_path / "row_losses.f32", "<f4").tolist() == list(range(56))


def test_lost_losses_of_rows_are_no_numbers_rather_than_zero(tmp_path: Path) -> None:
    fill(tmp_path, 5).close()
    (tmp_path / "row_losses.f32").unlink()
    Record(tmp_path, step=5, row=20).close()
    losses = np.fromfile(tmp_path / "row_losses.f32", "<f4")
    assert len(losses) == 20
    assert np.isnan(losses).all()


def test_no_metrics_are_no_lines(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


def test_points_are_those_of_one_kind(tmp_path: Path) -> None:
    record = fill(tmp_path, 6)
    record.add({"step": 6, "val_loss": 2.0})
    assert record.points("loss") == ([3, 6], [5.5, 17.5])
    assert record.points("val_loss") == ([6], [2.0])
    record.flush()
    record.close()
    with pytest.raises(OSError):
        record.flush()
