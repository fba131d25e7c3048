"""Progress for people: a bar on a terminal, a line now and then elsewhere.

Both tell what is done, the rate, tokens, documents kept and dropped, and the time that is left.
"""

from __future__ import annotations

import time

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tokenmill.cli.console import count, counted, duration, harmless, size, stderr
from tokenmill.cli.flags import name_flags

__all__ = ["Display", "tell_stopped"]

_STAGES = {
    "scan": "reading lines",
    "sort": "finding repeated lines",
    "grind": "tokenizing",
    "sift": "choosing documents",
    "pack": "writing shards",
}
_FIRST_LINE, _EVERY = 2.0, 10.0  # seconds, where there is no terminal


class Display:
    """Shows how the work goes; a `Watcher` for `prepare`."""

    def __init__(self) -> None:
        self.read = self.tokens = self.documents = self.dropped = 0
        self._stage = ""
        self._total = self._before = self._done = 0
        self._began = self._said = time.monotonic()
        self._live = Live(console=stderr, refresh_per_second=8, transient=True)

    def __enter__(self) -> Display:
        if stderr.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begin(self, stage: str, total: int, done: int) -> None:
        """A stage begins."""
        self._stage, self._total, self._before, self._done = stage, total, done, 0
        self._began = time.monotonic()
        self._said = self._began - _EVERY + _FIRST_LINE
        if done and total:
            amount = f"{size(done)} of {size(total)}" if stage != "pack" else counted(done, "token")
            self.note(f"{_STAGES.get(stage, stage)}: {amount} were done before and are skipped.")
        self._show()

    def advance(self, read: int, tokens: int, documents: int, dropped: int) -> None:
        """Work was done."""
        self._done += tokens if self._stage == "pack" else read
        if self._stage != "pack":
            self.tokens += tokens
            self.documents += documents
            self.dropped += dropped
        self._show()

    def note(self, text: str) -> None:
        """Something that the user should know."""
        stderr.print(Text(harmless(name_flags(text))))

    def _show(self) -> None:
        if self._live.is_started:
            self._live.update(self._picture())
        elif time.monotonic() - self._said >= _EVERY and self._total:
            self._said = time.monotonic()
            stderr.print(Text(f"{_STAGES.get(self._stage, self._stage)}: {self._words()}"))

    def _picture(self) -> Table:
        row = Table.grid(padding=(0, 1))
        name = _STAGES.get(self._stage, self._stage)
        if self._total:
            bar = ProgressBar(self._total, min(self._before + self._done, self._total), width=24)
            row.add_row(name, bar, self._words())
        else:
            row.add_row(name, "…")
        return row

    def _words(self) -> str:
        spent = max(1e-3, time.monotonic() - self._began)
        rate = self._done / spent
        done = min(self._before + self._done, self._total)
        left = (self._total - done) / rate if rate else 0
        words = [f"{100 * done / self._total:.0f}%"]
        if self._stage == "pack":
            words += [f"{count(done)} of {count(self._total)} tokens"]
        else:
            words += [f"{size(done)} of {size(self._total)}", f"{size(rate)}/s"]
            if self._stage == "grind":
                words += [
                    counted(self.tokens, "token"),
                    counted(self.documents - self.dropped, "document"),
                    f"{count(self.dropped)} dropped",
                ]
        if rate:
            words.append(f"{duration(left)} left")
        return ", ".join(words)


def tell_stopped(where: str) -> int:
    """What to say after Ctrl-C; returns the exit status for it."""
    stderr.print(
        Text(
            f"Stopped. What is done is kept {harmless(where)}; the same command goes on from there."
        )
    )
    return 130
