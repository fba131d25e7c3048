"""Lines of metrics are complete in a file and never wider than a terminal."""

from __future__ import annotations

import pytest

from tokenmill.training.display import format_line

LINE = {
    "loss": 11.0259,
    "rate": 1.0,
    "tokens_per_second": 1_234_567.8,
    "waiting": 0.012,
    "memory": 52_345_678_901,
    "mfu": 0.412,
}


@pytest.mark.parametrize("steps", [1_000, 5_000, 600_000])
@pytest.mark.parametrize("left", [9.0, 3_599.0, 86_000.0])
def test_a_line_fits_into_80_columns_with_the_main_numbers(steps: int, left: float) -> None:
    line = format_line({"step": 1, **LINE}, steps, left, 80)
    assert len(line) <= 80
    for word in ("step ", "loss 11.0259", "1,234,568 tokens/s", " left"):
        assert word in line


def test_a_line_in_a_file_or_a_wide_terminal_has_every_number() -> None:
    whole = format_line({"step": 1, **LINE}, 1_000, 75)
    for word in ("rate 100%", "data  1.2%", "52.3 GB", "mfu 41.2%", "1 min 15 s left"):
        assert word in whole
    assert format_line({"step": 1, **LINE}, 1_000, 75, 120) == whole


def test_all_lines_of_a_run_omit_the_same_numbers() -> None:
    lines = [format_line({"step": n, **LINE}, 1_000, 4.0 * (1_000 - n), 80) for n in (1, 500, 999)]
    assert len({len(line) for line in lines}) == 1
