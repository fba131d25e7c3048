"""Printing for all commands: text, tables, progress, and the next command to type.

Text may come from an untrusted file, so rich's markup is never parsed and control characters are
printed as visible escapes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenmill.cli.flags import name_flags
from tokenmill.errors import UsageError
from tokenmill.progress import Display as PlainDisplay
from tokenmill.wording import find_hidden, harmless

_stdout = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
_stderr = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, stderr=True)


def show(text: str) -> None:
    """Print text on stdout."""
    _stdout.print(Text(harmless(text)))


def show_styled(text: Text, file: TextIO | None = None) -> None:
    """Print text with colours, if stdout is a terminal. It must have no control characters.

    While progress is displayed, pass as `file` the `sys.stdout` from before the display began.
    """
    if file is None or _stdout.is_terminal:
        _stdout.print(text)
    else:
        file.write(f"{text.plain}\n")


def warn(text: str) -> None:
    """Print text on stderr."""
    _stderr.print(Text(harmless(text)))


def show_next(*commands: str) -> None:
    """Print which commands to type next."""
    show("\nNext:  " + "\n       ".join(commands))


def show_table(title: str | None, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. In a file or a pipe, print aligned columns and never cut a line."""
    cells = [[harmless(cell).replace("\n", "\\n") for cell in row] for row in rows]
    numbers = [n > 0 and head not in ("", "reason", "example") for n, head in enumerate(heads)]
    show(f"\n{title}" if title else "")
    if _stdout.is_terminal:
        table = Table(box=box.SIMPLE, show_header=any(heads), pad_edge=False)
        for head, number in zip(heads, numbers, strict=True):
            table.add_column(head, justify="right" if number else "left", overflow="fold")
        for row in cells:
            table.add_row(*map(Text, row))
        _stdout.print(table, soft_wrap=False)
        return
    shown = [list(heads), *cells] if any(heads) else cells
    widths = [max((len(row[n]) for row in shown), default=0) for n in range(len(heads))]
    for row in shown:
        line = "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        )
        show(f"  {line}".rstrip())


class Display(PlainDisplay):
    """Shows progress, and translates argument names into flags."""

    def note(self, text: str) -> None:
        """Print a notice for the user."""
        super().note(name_flags(text))


def report_stopped(where: str) -> int:
    """Print how to resume after Ctrl-C, and return the exit status.

    `where` says where finished work is kept, such as "in DIR".
    """
    warn(f"Stopped. Finished work is kept {where}. To resume, run the same command again.")
    return 130


def quote(text: str) -> str:
    """Quote text for a shell command, on one line and without characters that `show` replaces.

    Text that has such characters is quoted as $'…', which bash, zsh and ksh understand.

    >>> quote("a.txt"), quote("a b")
    ('a.txt', "'a b'")
    >>> print(quote("a\\x1b[m\\n'b'"))
    $'a\\x1b[m\\x0a\\'b\\''
    """
    hidden = {*find_hidden(text), *(n for n, one in enumerate(text) if one in "\t\n")}
    if not hidden:
        return shlex.quote(text)
    quoted = ""
    for number, one in enumerate(text):
        if number in hidden:
            quoted += "".join(f"\\x{byte:02x}" for byte in one.encode("utf-8", "surrogateescape"))
        else:
            quoted += f"\\{one}" if one in "'\\" else one
    return f"$'{quoted}'"


def typed(path: Path) -> str:
    """Quote a path for a shell command.

    >>> typed(Path("a b")), typed(Path("-x"))
    ("'a b'", './-x')
    """
    text = str(path)
    return quote(f"./{text}" if text.startswith("-") else text)


def typed_options(options: Mapping[str, str | None]) -> str:
    """Format options for a shell command, with a leading space.

    >>> typed_options({"format": "raw", "dtype": None, "column": "my ids"})
    " --format raw --column 'my ids'"
    """
    given = ((name, value) for name, value in options.items() if value)
    return "".join(f" --{name} {quote(value)}" for name, value in given)


def draw_bar(share: float, width: int = 20) -> str:
    """Draw a share from 0 to 1 as a bar. A share above 0 is never empty.

    >>> len(draw_bar(0.5)), draw_bar(0), len(draw_bar(0.001))
    (10, '', 1)
    """
    encoding = (getattr(_stdout.file, "encoding", None) or "ascii").lower()
    length = round(width * min(share, 1))
    return ("█" if "utf" in encoding else "#") * max(length, int(share > 0))


def parse_count(text: str) -> int:
    """Parse a number of tokens such as 10B or 500M.

    >>> parse_count("10B"), parse_count("1.5M"), parse_count("4_096"), parse_count("2T")
    (10000000000, 1500000, 4096, 2000000000000)
    """
    match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]+)?)\s*([kKmMbBtT]?)\s*", text.replace("_", ""))
    if not match:
        raise UsageError(f"{text!r} is not a number of tokens. Write a number such as 10B or 500M.")
    return int(float(match[1]) * 1000 ** " kmbt".index(match[2].lower() or " "))


def parse_size(text: str) -> int:
    """Parse a number of bytes such as 2GB or 512MiB.

    >>> parse_size("2GB"), parse_size("1.5 GiB"), parse_size("4096")
    (2000000000, 1610612736, 4096)
    """
    match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]+)?)\s*([kKmMgGtT]?)(i?)[bB]?\s*", text)
    if not match:
        raise UsageError(f"{text!r} is not a size. Write a size such as 2GB or 512MiB.")
    power = " kmgt".index(match[2].lower() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)
