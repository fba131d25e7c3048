"""Progress of commands, and the message when one is stopped."""

from __future__ import annotations

from rich.text import Text

from tokenmill.cli.console import stderr
from tokenmill.cli.flags import name_flags
from tokenmill.progress import Display as PlainDisplay
from tokenmill.wording import harmless


class Display(PlainDisplay):
    """Shows progress, and translates argument names into flags."""

    def note(self, text: str) -> None:
        """Something that the user should know."""
        super().note(name_flags(text))


def tell_stopped(where: str) -> int:
    """What to say after Ctrl-C; returns the exit status for it."""
    stderr.print(
        Text(f"Stopped. What is done is kept {harmless(where)}; the same command resumes.")
    )
    return 130
