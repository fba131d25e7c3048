"""The parameters of a request, and their checks: ranges of numbers, lengths of texts.

>>> query = Query({"from": "12", "split": "val"})
>>> query.number("from", 0, low=0, high=100), query.choice("split", ("train", "val"))
(12, 'val')
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tokenmill.errors import UsageError
from tokenmill.wording import brief

MOST_TEXT = 1000  # characters
MOST_NUMBER = 1 << 62


class Query:
    """The parameters in a URL. A parameter that is missing or empty has its default value.

    Every method raises a UsageError, which becomes a page, if the value is not valid.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str, *, most: int = MOST_TEXT) -> str:
        """Return a text; empty if it is missing."""
        value = self._values.get(name, "")
        if len(value) > most:
            raise UsageError(f"{name} has {len(value):,} characters; at most {most:,} are allowed.")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{name} is not valid text.") from None
        return value

    def number(self, name: str, default: int, *, low: int = 0, high: int = MOST_NUMBER) -> int:
        """Return a number, which must be from `low` to `high`."""
        value = self._values.get(name, "").strip().replace(",", "")
        if not value:
            return default
        if not re.fullmatch("-?[0-9]{1,19}", value, re.ASCII) or not low <= int(value) <= high:
            bounds = f"{low:,} or more" if high == MOST_NUMBER else f"from {low:,} to {high:,}"
            raise UsageError(f"{name} must be a number {bounds}, got {brief(value[:60])}.")
        return int(value)

    def choice(self, name: str, options: Sequence[str], default: str | None = None) -> str:
        """Return one of some names; the default is the first."""
        value = self._values.get(name, "")
        if not value:
            return options[0] if default is None else default
        if value not in options:
            there = ", ".join(options[:20])
            raise UsageError(f"{name} is {brief(value[:60])}; it must be one of: {there}.")
        return value

    def flag(self, name: str) -> bool:
        """Return whether a parameter is set."""
        return self._values.get(name, "") not in ("", "0")
