"""Scales of charts: from values to places on an axis, and the numbers to print beside it.

A scale is linear or logarithmic. Ticks are few, round and inside the scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_ROOM = 0.05  # of an axis, above the highest value and below the lowest
_LARGEST = 1e300  # values beyond it are drawn at the edge; differences of larger ones overflow
_DIGITS = (1, 2, 3, 4, 5, 7)  # the first digits of ticks on a logarithmic scale

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps values to fractions of an axis: `low` to 0 and `high` to 1.

    If `is_log`, `low` and `high` are logarithms to base 10.

    >>> Scale(low=2, high=4).place([2, 3]), Scale(low=0, high=2, is_log=True).place([10, 100])
    (array([0. , 0.5]), array([0.5, 1. ]))
    """

    low: float
    high: float
    is_log: bool = False

    @classmethod
    def around(cls, values: npt.ArrayLike, *, is_log: bool = False) -> Scale:
        """Return a scale that shows all `values`, with some room at both ends.

        >>> Scale.around([2, 4])
        Scale(low=1.9, high=4.1, is_log=False)
        """
        found = np.asarray(values, np.float64)
        low, high = (float(found.min()), float(found.max())) if len(found) else (0.0, 1.0)
        if is_log:
            low, high = math.log10(low), math.log10(high)
        low, high = max(low, -_LARGEST), min(high, _LARGEST)
        room = _ROOM * (high - low) or _ROOM * abs(high) or 0.5
        return cls(low=low - room, high=high + room, is_log=is_log)

    def place(self, values: npt.ArrayLike) -> Floats:
        """Return where values are, as fractions of the axis; NaN where they have no logarithm."""
        scaled = np.asarray(values, np.float64)
        if self.is_log:
            scaled = np.log10(np.where(scaled > 0, scaled, np.nan))
        return (scaled - self.low) / (self.high - self.low)

    def ticks(self, about: int = 6) -> list[float]:
        """Return about `about` round values on the axis.

        >>> Scale(low=0, high=1, is_log=True).ticks()
        [1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0]
        """
        if not self.is_log:
            return nice_ticks(self.low, self.high, about)
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        if len(powers) > about + 2:  # only powers of ten, and not all of them
            apart = -(-len(powers) // about)
            return [10.0**power for power in powers if power % apart == 0 and self._has(power)]
        ticks = [digit * 10.0**power for power in powers for digit in _DIGITS]
        inside = [tick for tick in ticks if self._has(math.log10(tick))]
        if len(inside) > about + 2:
            inside = [tick for tick in inside if f"{tick:e}"[0] in "125"]
        if len(inside) > about + 4:
            inside = [tick for tick in inside if f"{tick:e}"[0] == "1"]
        return inside if len(inside) > 1 else self._linear_ticks(about)

    def _linear_ticks(self, about: int) -> list[float]:
        """Return ticks of a logarithmic scale that is so short that it is nearly linear."""
        return nice_ticks(10.0**self.low, 10.0**self.high, about)

    def _has(self, scaled: float) -> bool:
        return self.low <= scaled <= self.high


def nice_ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Return about `about` round numbers from `low` to `high`.

    >>> nice_ticks(0, 1000), nice_ticks(1.9, 3.1)
    ([0.0, 200.0, 400.0, 600.0, 800.0, 1000.0], [2.0, 2.2, 2.4, 2.6, 2.8, 3.0])
    """
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Rounded to the precision of the step, which 0.1 + 0.2 needs.
    digits = max(12, 2 - math.floor(math.log10(step)))
    return [round(number * step, digits) for number in range(first, last + 1)]
