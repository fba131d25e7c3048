"""The command `tokenmill`: signals, errors and exit statuses.

This module imports almost nothing, so that Ctrl-C is handled before the first slow import.
`tokenmill.cli.commands` lists the commands. Each command's module parses arguments, calls one
library function and prints the result.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from tokenmill.cli.failures import drop_unwritten, fill_closed_streams, report

_POLL = 0.005  # seconds between checks whether an import has ended
# Commands whose status 1 is an answer: nothing was found, or the datasets differ. As with grep and
# diff, their errors have status 2, so that a script cannot take an error for an answer.
_ANSWERING = frozenset({"contaminated", "diff", "search", "where"})


def main(arguments: Sequence[str] | None = None, flags: Mapping[str, str] | None = None) -> int:
    """Run the command line, and return the exit status.

    `flags` maps names of Python arguments to the flags of a calling script. Error messages show
    those flags.

    >>> main(["info", "no/such/folder"])
    1
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    fill_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not every terminal can show all characters
            stream.reconfigure(errors="backslashreplace")
    try:
        with _stoppable():
            _bound_terminal_size()
            from tokenmill.cli.commands import run

            status = run(arguments, flags or {})
            sys.stdout.flush()  # a full disk must be reported before Python exits
            return status
    except BaseException as error:
        return report(error, 2 if arguments and arguments[0] in _ANSWERING else 1)
    finally:
        drop_unwritten()


def _bound_terminal_size() -> None:
    """Set COLUMNS and LINES to sizes that rich can use.

    rich hangs in a terminal of two columns, and fails if a variable has digits that are not ASCII.
    """
    from shutil import get_terminal_size

    columns, lines = get_terminal_size()
    for name, size, least in (("COLUMNS", columns, 10), ("LINES", lines, 2)):
        if name in os.environ or size < least:
            os.environ[name] = str(min(max(size, least), 1000))


@contextmanager
def _stoppable() -> Iterator[None]:
    """Treat SIGTERM, which batch systems send, like Ctrl-C.

    If an import is running, both signals take effect after it ends: interrupting the import of a
    native module can crash Python.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    requested = False

    def stop(_: int, frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        if hasattr(signal, "setitimer") and _is_importing(frame):
            signal.setitimer(signal.ITIMER_REAL, _POLL)
        else:
            requested = False
            raise KeyboardInterrupt

    names = [name for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), stop) for name in names}
    try:
        yield
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
        if requested:
            raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
