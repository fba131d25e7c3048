"""Reporting the progress of a conversion."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]  # given the tokens done and all


def tell_nobody(done: int, whole: int) -> None:
    """A `Progress` without a reader."""
