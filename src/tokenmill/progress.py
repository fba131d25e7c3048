"""Progress of long-running work: a protocol for reporting it, and a display.

A `Watcher` receives the stages of the work and the amount done. `Display` is a watcher that shows
them in one line. On a terminal, it redraws the line, which is never wider than the terminal. In a
notebook, it updates one output. Elsewhere, it prints a new line every few seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tokenmill.wording import count, counted, duration, harmless, size

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Display", "Nobody", "Unit", "Watcher", "watching"]

Unit = Literal["bytes", "tokens"]  # what a stage counts

# Seconds before the first line and between lines, outside terminals and notebooks.
_FIRST_LINE, _EVERY = 2.0, 10.0
_REDRAW = 0.125  # seconds between updates in a notebook
_BAR = 24  # characters


class Watcher(Protocol):
    """Receives the progress of some work."""

    def begin(self, stage: str, total: int, done: int = 0, unit: Unit = "bytes") -> None:
        """Called when a stage such as "tokenizing" starts. It has `total` units of work.

        Earlier runs have already done `done` units. `total` is 0 if the amount of work is unknown.
        """

    def advance(self, amount: int, tokens: int = 0, documents: int = 0, dropped: int = 0) -> None:
        """Called when `amount` more units of the stage are done.

        These units contained `tokens` tokens and `documents` documents. `dropped` of the documents
        were not kept.
        """

    def note(self, text: str) -> None:
        """Called with a message for the user."""


class Nobody:
    """A watcher that ignores everything."""

    def begin(self, stage: str, total: int, done: int = 0, unit: Unit = "bytes") -> None: ...
    def advance(
        self, amount: int, tokens: int = 0, documents: int = 0, dropped: int = 0
    ) -> None: ...
    def note(self, text: str) -> None: ...


@contextmanager
def watching(watcher: Watcher | None, progress: bool | None) -> Iterator[Watcher]:
    """Yield the watcher for a library call.

    If `watcher` is given, yield it. Otherwise `progress` decides: True means a `Display`, and False
    means `Nobody`. None, the default, means a display in terminals and notebooks only, so that
    batch jobs and tests stay silent.

    >>> with watching(None, False) as watcher:
    ...     type(watcher).__name__
    'Nobody'
    """
    if watcher is not None:
        yield watcher
    elif progress or (progress is None and (_is_terminal() or in_notebook())):
        with Display() as display:
            yield display
    else:
        yield Nobody()


class Display:
    """A `Watcher` that shows progress."""

    def __init__(self) -> None:
        from rich.console import Console

        self.tokens = self.documents = self.dropped = 0
        self._console: Console = Console(
            highlight=False, markup=False, emoji=False, soft_wrap=True, stderr=True
        )
        self._live: Any = None
        self._output: Any = None
        self._stage, self._unit = "", "bytes"
        self._total = self._before = self._done = 0
        self._began = self._said = time.monotonic()

    def __enter__(self) -> Display:
        if in_notebook():
            display = import_module("IPython.display").display
            self._output = display({"text/plain": ""}, raw=True, display_id=True)
        elif self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._output is not None:
            self._output.update({"text/plain": ""}, raw=True)

    def begin(self, stage: str, total: int, done: int = 0, unit: Unit = "bytes") -> None:
        """Start to show a stage."""
        self._stage, self._total, self._before, self._done = stage, total, done, 0
        self._unit = unit
        self._began = time.monotonic()
        self._said = self._began - _EVERY + _FIRST_LINE
        if done and total:
            amount = f"{size(done)} of {size(total)}" if unit == "bytes" else counted(done, "token")
            self.note(f"{stage}: skipping {amount}, done by an earlier run.")
        self._show(now=True)

    def advance(self, amount: int, tokens: int = 0, documents: int = 0, dropped: int = 0) -> None:
        """Update the line after work was done."""
        self._done += amount
        self.tokens += tokens
        self.documents += documents
        self.dropped += dropped
        self._show()

    def note(self, text: str) -> None:
        """Print a message for the user."""
        self._print(harmless(text))

    def _print(self, text: str) -> None:
        from rich.text import Text

        with suppress(OSError):  # the work continues even if a log cannot be written
            self._console.print(Text(text))

    def _show(self, *, now: bool = False) -> None:
        since = time.monotonic() - self._said
        if self._live is not None:
            self._live.update(self._picture())
        elif self._output is not None:
            if now or since >= _REDRAW:
                self._said = time.monotonic()
                self._output.update({"text/plain": self._line(100)}, raw=True)
        elif since >= _EVERY and self._total:
            self._said = time.monotonic()
            self._print(f"{self._stage}: {', '.join(self._words())}")

    def _picture(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        width = self._console.width
        row = Table.grid(padding=(0, 1))
        if not self._total:
            row.add_row(self._stage, "…")
        elif len(line := self._line(width - _BAR - 1)) + _BAR < width and ", " in line:
            name, _, words = line.partition(": ")
            done = min(self._before + self._done, self._total)
            row.add_row(name, ProgressBar(self._total, done, width=_BAR), words)
        else:
            row.add_row(self._line(width - 1))
        return row

    def _line(self, width: int) -> str:
        """Return the line to show: the stage and its numbers, shortened to the terminal's width."""
        if not self._total:
            return f"{self._stage} …"
        words = self._words()
        for spare in ("dropped", "document", "token", " of ", "/s", "left"):
            if len(self._stage) + 2 + len(", ".join(words)) <= width:
                break
            words = [words[0], *(word for word in words[1:] if spare not in word)]
        return f"{self._stage}: {', '.join(words)}"[: max(width, 1)]

    def _words(self) -> list[str]:
        spent = max(1e-3, time.monotonic() - self._began)
        rate = self._done / spent
        done = min(self._before + self._done, self._total)
        left = (self._total - done) / rate if rate else 0
        words = [f"{100 * done / self._total:.0f}%"]
        if self._unit == "tokens":
            words += [f"{count(done)} of {count(self._total)} tokens"]
        else:
            words += [f"{size(done)} of {size(self._total)}", f"{size(rate)}/s"]
            if self.documents:
                words += [
                    counted(self.tokens, "token"),
                    counted(self.documents - self.dropped, "document"),
                    f"{count(self.dropped)} dropped",
                ]
        if rate:
            words.append(f"{duration(left)} left")
        return words


def _is_terminal() -> bool:
    with suppress(AttributeError, ValueError, OSError):  # stderr is missing or closed
        return sys.stderr.isatty()
    return False


def in_notebook() -> bool:
    """Return whether this process is a Jupyter kernel, without importing IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"
