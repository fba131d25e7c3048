"""The console of all commands, which never parses rich's markup, and the wording of
`tokenmill.wording`.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from rich.console import Console

from tokenmill.errors import UsageError

stdout = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
stderr = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, stderr=True)


def typed(path: Path) -> str:
    """A path as it must be typed in a command.

    >>> typed(Path("a b")), typed(Path("-x"))
    ("'a b'", './-x')
    """
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


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
