"""The record of a run: a loss for each row, and lines up to a checkpoint and no more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenmill.training.run_folder import Record, find_values, read_metrics


def fill(folder: Path, steps: int, *, first: int = 0, every: int = 3) -> Record:
    """The record of a run with four rows per step; row n has the loss n."""
    record = Record(folder, step=first, row=4 * first)
    for step in range(first, steps):
        record.add_losses(4 * step, np.arange(4 * step, 4 * step + 4, dtype=np.float32))
        if (step + 1) % every == 0:
            row = 4 * (step + 1)
            record.add({"step": step + 1, "row": row, "loss": record.mean_loss(row)})
    return record


def test_losses_are_stored_by_row(tmp_path: Path) -> None:
    fill(tmp_path, 5).close()
    losses = np.fromfile(tmp_path / "row_losses.f32", "<f4")
    assert losses.tolist() == list(range(20))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    reached=st.integers(0, 12), back=st.integers(0, 12), torn=st.integers(0, 30), junk=st.booleans()
)
def test_resuming_from_any_step_leaves_the_record_of_an_uninterrupted_run(
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


def test_lost_row_losses_are_nan_rather_than_zero(tmp_path: Path) -> None:
    fill(tmp_path, 5).close()
    (tmp_path / "row_losses.f32").unlink()
    Record(tmp_path, step=5, row=20).close()
    losses = np.fromfile(tmp_path / "row_losses.f32", "<f4")
    assert len(losses) == 20
    assert np.isnan(losses).all()


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


def test_values_belong_to_one_metric(tmp_path: Path) -> None:
    record = fill(tmp_path, 6)
    record.add({"step": 6, "val_loss": 2.0})
    assert find_values(record.lines, "loss") == ([3, 6], [5.5, 17.5])
    assert find_values(record.lines, "val_loss") == ([6], [2.0])
    record.flush()
    record.close()
    with pytest.raises(OSError):
        record.flush()
