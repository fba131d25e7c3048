"""The display of a run: lines on standard output, TensorBoard and Weights & Biases.

The first loss appears after the first step. After that, a line appears for each line of
`metrics.jsonl`, and after 10 seconds of silence.
"""

from __future__ import annotations

import importlib
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from tokenmill.errors import UsageError
from tokenmill.progress import in_notebook
from tokenmill.training.backend import Backend
from tokenmill.training.config import Config
from tokenmill.training.run_folder import BOARD_NAME
from tokenmill.wording import count, duration, harmless, size

_SLOW = 10.0  # seconds; if the first micro-batch takes longer, its time is the estimate


class RunWatcher:
    """Receives the progress of a run, and ignores it; subclasses show it."""

    silence = 10.0  # seconds without a line after which the run sends one

    def note(self, text: str) -> None:
        """Receive a notice about the run."""

    def warn(self, text: str) -> None:
        """Receive a warning for the user."""

    def line(self, line: dict[str, Any], steps: int, seconds_left: float) -> None:
        """Receive a line of `metrics.jsonl`.

        `steps` is the total number of steps; `seconds_left` is NaN if unknown. Extra lines, with
        the loss so far, may arrive between those of the file.
        """

    def expect(self, seconds: float) -> None:
        """Receive the expected seconds until the end, estimated from the first micro-batches."""


class RunDisplay(RunWatcher):
    """Prints the progress.

    `translate` is applied to notices and warnings. It can turn argument names into flags.
    """

    def __init__(self, translate: Callable[[str], str] = str) -> None:
        self._translate = translate

    def note(self, text: str) -> None:
        """Print a notice about the run."""
        print(harmless(self._translate(text)), flush=True)

    def warn(self, text: str) -> None:
        """Print a warning on stderr."""
        print(f"tokenmill: {harmless(self._translate(text))}", file=sys.stderr, flush=True)

    def line(self, line: dict[str, Any], steps: int, seconds_left: float) -> None:
        """Print a line of metrics."""
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(harmless(format_line(line, steps, seconds_left, width)), flush=True)

    def expect(self, seconds: float) -> None:
        """Print the expected time until the end."""
        self.note(f"time      about {duration(seconds)}, estimated from the first micro-batches")


def choose_watcher(progress: bool | None) -> RunWatcher:
    """Return a display if `progress` is true, otherwise a silent watcher.

    None means true in a terminal or notebook, and false elsewhere.
    """
    shown = sys.stdout.isatty() or in_notebook() if progress is None else progress
    return RunDisplay() if shown else RunWatcher()


def format_line(
    line: dict[str, Any], steps: int, seconds_left: float, width: int | None = None
) -> str:
    """Format a line of metrics; if wider than `width`, the least important numbers are omitted.

    >>> format_line({"step": 20, "val_loss": 2.5, "bits_per_byte": 1.25}, 100, 3)
    'step  20/100  validation loss 2.5000  1.2500 bits per byte'
    """
    last = count(steps)
    words = [f"step {count(line['step']):>{len(last)}}/{last}"]
    if "loss" in line:
        words += [
            f"loss {line['loss']:.4f}",
            f"rate {line['rate']:4.0%}",
            f"{count(round(line['tokens_per_second'])):>9} tokens/s",
            f"data {line['waiting']:5.1%}",
            f"{size(line['memory']):>8}",
        ]
        if "mfu" in line:
            words.append(f"mfu {line['mfu']:.1%}")
        left = ""
        if line["step"] < steps and math.isfinite(seconds_left):
            left = f"{duration(seconds_left)} left"
        # As wide as "59 min 59 s left": lines of equal width omit the same numbers.
        words.append(f"{left:>16}")
        for spare in ("B", "data ", "mfu ", "rate "):
            if width is None or len("  ".join(words)) <= width:
                break
            words = [word for word in words if not (word.startswith(spare) or word.endswith(spare))]
        return "  ".join(words).rstrip()
    if "val_loss" in line:
        words.append(f"validation loss {line['val_loss']:.4f}")
        if "bits_per_byte" in line:
            words.append(f"{line['bits_per_byte']:.4f} bits per byte")
    elif "sample" in line:
        words.append(f"sample: {line['sample']}")
    return "  ".join(words)


class Clock:
    """Measures the time of steps, and the share of it spent waiting for data.

    >>> clock = Clock()
    >>> with clock.waiting():
    ...     time.sleep(0.01)
    >>> seconds, share = clock.lap()
    >>> seconds >= 0.01, 0.5 < share <= 1
    (True, True)
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._waited = self._aside = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the `with` block as time spent waiting for data."""
        began = time.perf_counter()
        yield
        self._waited += time.perf_counter() - began

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude the time of the `with` block, such as a validation, from the time of steps."""
        began = time.perf_counter()
        yield
        self._aside += time.perf_counter() - began

    def lap(self) -> tuple[float, float]:
        """Return the time of steps since the last lap, and the share spent waiting for data."""
        found = self.peek()
        self._began, self._waited, self._aside = time.perf_counter(), 0.0, 0.0
        return found

    def peek(self) -> tuple[float, float]:
        """Return the same as `lap`, without ending the lap."""
        seconds = max(1e-9, time.perf_counter() - self._began - self._aside)
        return seconds, self._waited / seconds


class Pulse:
    """Decides when a run has been silent too long, and measures its first micro-batches."""

    def __init__(self, *, compiles: bool, silence: float) -> None:
        self._silence = silence
        self._shown = time.monotonic()
        self._compiles = compiles
        self._began: float | None = None
        self._is_warm = self._is_timed = False

    def is_due(self) -> bool:
        """Return whether nothing was printed for too long."""
        return time.monotonic() - self._shown >= self._silence

    def restart(self) -> None:
        """Restart the timer. Call this after printing something."""
        self._shown = time.monotonic()

    def time_first(self, backend: Backend) -> float | None:
        """Return the seconds per micro-batch, once; all other calls return None.

        Call this before each micro-batch. The seconds are returned as soon as they are known.

        The first micro-batch also starts threads, allocates memory and compiles, so it can take ten
        times as long as the others. The second is timed instead. If nothing is compiled and the
        first is already slow, the first is timed.
        """
        if self._is_timed:
            return None
        backend.wait()
        now = time.perf_counter()
        began, self._began = self._began, now
        if began is None:
            return None
        if not self._is_warm and (self._compiles or now - began < _SLOW):
            self._is_warm = True
            return None
        self._is_timed = True
        return now - began


class Board(Protocol):
    """A program that shows the lines of `metrics.jsonl`, such as TensorBoard."""

    def add(self, line: dict[str, Any]) -> None:
        """Add a line of metrics."""

    def close(self) -> None:
        """Flush and close."""


class TensorBoard:
    """Writes event files to the run's folder. Resuming purges events after the resumed step."""

    def __init__(self, path: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise UsageError("`tensorboard` needs: pip install torch tensorboard") from error
        writer: Any = SummaryWriter
        self._writer = writer(str(path / BOARD_NAME), purge_step=step + 1)
        self.close = self._writer.close

    def add(self, line: dict[str, Any]) -> None:
        """Add a line of metrics."""
        for name, value in line.items():
            if name == "sample":
                self._writer.add_text(name, value, line["step"])
            elif name != "step":
                self._writer.add_scalar(name, value, line["step"])


class WeightsAndBiases:
    """Logs to a W&B run with this run's name, in the project tokenmill.

    A resumed run continues the same W&B run.
    """

    def __init__(self, path: Path, config: Config) -> None:
        try:
            wandb: Any = importlib.import_module("wandb")
        except ModuleNotFoundError as error:
            raise UsageError("`wandb` needs: pip install wandb") from error
        self._run = wandb.init(
            project="tokenmill",
            name=path.name,
            id=path.name,
            resume="allow",
            dir=str(path),
            config=asdict(config),
        )
        self.close = self._run.finish

    def add(self, line: dict[str, Any]) -> None:
        """Add a line of metrics."""
        self._run.log({name: value for name, value in line.items() if name != "step"}, line["step"])


def open_board(name: str, path: Path, *, step: int, config: Config) -> Board:
    """Open a board, `tensorboard` or `wandb`, for a run that continues after `step`."""
    if name == "tensorboard":
        return TensorBoard(path, step)
    if name == "wandb":
        return WeightsAndBiases(path, config)
    raise UsageError(f"unknown board {name!r}; expected tensorboard or wandb.")
