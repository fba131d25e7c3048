"""How commands talk to people: one console, numbers that can be read, text that cannot bite.

Text out of a dataset is a stranger's. `harmless` shows its control characters as visible escapes,
so that it can neither move the cursor nor recolour the terminal; rich's markup is never parsed
in it.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from rich.console import Console

from tokenmill.errors import UsageError

__all__ = [
    "count",
    "counted",
    "duration",
    "harmless",
    "parse_size",
    "size",
    "stderr",
    "stdout",
    "typed",
]

stdout = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
stderr = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, stderr=True)

# C0 without tab and newline, DEL, C1, and the marks that change the direction of writing.
_BITES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def harmless(text: str) -> str:
    r"""Text with its control characters made visible.

    >>> harmless("a\x1b[31mb\tc")
    'a\\x1b[31mb\tc'
    """
    return _BITES.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def typed(path: Path) -> str:
    """A path as it must be typed in a command.

    >>> typed(Path("a b")), typed(Path("-x"))
    ("'a b'", './-x')
    """
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def count(number: int) -> str:
    """A number with separators.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{number:,}"


def counted(number: int, thing: str) -> str:
    """A number of things.

    >>> counted(1, "document"), counted(2000, "document")
    ('1 document', '2,000 documents')
    """
    return f"{count(number)} {thing}" if number == 1 else f"{count(number)} {thing}s"


def size(number: float) -> str:
    """A number of bytes in decimal units.

    >>> size(999), size(1_500), size(2_000_000_000)
    ('999 B', '1.5 kB', '2.0 GB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError("unreachable")


def parse_size(text: str) -> int:
    """A number of bytes as people write it.

    >>> parse_size("2GB"), parse_size("1.5 GiB"), parse_size("4096")
    (2000000000, 1610612736, 4096)
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKmMgGtT]?)(i?)[bB]?\s*", text)
    if not match:
        raise UsageError(f"{text!r} is not a size; write it like 2GB or 512MiB.")
    power = " kmgt".index(match[2].lower() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(4.2), duration(75), duration(8000)
    ('4 s', '1 min 15 s', '2 h 13 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
