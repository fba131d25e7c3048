"""The output of a training run: one line on standard output for each line of metrics."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable
from typing import Any

from tokenmill.wording import count, duration, harmless, size


class Silent:
    """A `Watcher` that shows nothing."""

    def note(self, text: str) -> None:
        """Something about the run."""

    def warn(self, text: str) -> None:
        """A warning for the user."""

    def line(self, line: dict[str, Any], steps: int, seconds_left: float) -> None:
        """A line of metrics."""

    def expect(self, seconds: float) -> None:
        """The expected time of the rest of the run."""


class Display(Silent):
    """A `Watcher` that prints; `translate` can turn argument names into flags."""

    def __init__(self, translate: Callable[[str], str] = str) -> None:
        self._translate = translate

    def note(self, text: str) -> None:
        """Something about the run."""
        print(harmless(self._translate(text)), flush=True)

    def warn(self, text: str) -> None:
        """A warning for the user."""
        print(f"tokenmill: {harmless(self._translate(text))}", file=sys.stderr, flush=True)

    def line(self, line: dict[str, Any], steps: int, seconds_left: float) -> None:
        """A line of metrics."""
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(harmless(tell_line(line, steps, seconds_left, width)), flush=True)

    def expect(self, seconds: float) -> None:
        """The expected time of the rest of the run."""
        self.note(f"time      about {duration(seconds)}, estimated from the first micro-batches")


def is_watched() -> bool:
    """Whether standard output is a terminal or a notebook."""
    return sys.stdout.isatty() or "ipykernel" in sys.modules


def tell_line(
    line: dict[str, Any], steps: int, seconds_left: float, width: int | None = None
) -> str:
    """A line of metrics as text; one that is wider than `width` omits its least important numbers.

    >>> tell_line({"step": 20, "val_loss": 2.5, "bits_per_byte": 1.25}, 100, 3)
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
        words.append(f"{left:>16}")  # the longest is 59 min 59 s left: all lines omit the same
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
