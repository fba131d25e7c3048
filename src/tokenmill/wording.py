"""Numbers, sizes and times in readable form, and text that is safe to print.

Text in a dataset may be untrusted. `harmless` shows its control characters as visible
escapes, so that it can neither move the cursor nor recolour the terminal.
"""

from __future__ import annotations

import re

from rich.filesize import decimal

# C0 without tab and newline, DEL, C1, and the marks that change the text direction.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def harmless(text: str) -> str:
    r"""Text with its control characters made visible.

    >>> harmless("a\x1b[31mb\tc")
    'a\\x1b[31mb\tc'
    """
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


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
    ('999 bytes', '1.5 kB', '2.0 GB')
    """
    return decimal(int(number))


def duration(seconds: float) -> str:
    """A duration in readable form.

    >>> duration(4.2), duration(75), duration(8000)
    ('4 s', '1 min 15 s', '2 h 13 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
