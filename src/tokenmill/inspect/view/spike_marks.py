"""Spikes of runs: marks in the chart and lines of the table, with links to rows and documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenmill.inspect.view.charts import Mark, Series
from tokenmill.inspect.view.loss_charts import LossCharts
from tokenmill.inspect.view.run_curves import RunCurves


@dataclass(frozen=True, kw_only=True)
class ShownSpike:
    number: int
    run: str
    step: int


def list_spikes(number: int, run: RunCurves) -> list[ShownSpike]:
    return []


def find_marks(
    charts: LossCharts, curves: Sequence[Series], spikes: Sequence[ShownSpike]
) -> list[Mark]:
    return []
