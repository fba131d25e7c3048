"""A bar for work that is counted in tokens, shown on a terminal alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tokenmill.cli.console import stderr


@contextmanager
def show_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function that receives the amount done and the total."""
    columns = (TextColumn(what), BarColumn(24), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=stderr, transient=True, disable=not stderr.is_terminal
    ) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, whole: progress.update(task, completed=done, total=whole)
