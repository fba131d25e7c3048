"""The command `tokenmill`: signals, errors and exit statuses.

This module imports almost nothing, so that Ctrl-C is handled before the first slow import. The
commands are listed in `tokenmill.cli.commands`. The file of a command parses its arguments, calls one
function of the library and prints the result.
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

from tokenmill.errors import TokenmillError

_POLL = 0.005  # seconds, while waiting for an import to end


def main(arguments: Sequence[str] | None = None, flags: Mapping[str, str] | None = None) -> int:
    """Run the command line; returns the exit status.

    `flags` maps arguments to the names that a calling script uses for them, for error messages.

    >>> main(["info", "no/such/folder"])
    1
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not every terminal can show all characters
            stream.reconfigure(errors="backslashreplace")
    try:
        with _stoppable():
            from tokenmill.cli.commands import run

            return run(arguments, flags or {})
    except TokenmillError as error:
        from tokenmill.cli.flags import name_flags
        from tokenmill.wording import harmless

        print(f"tokenmill: {harmless(name_flags(str(error)))}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `tokenmill peek … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except SystemExit as leave:  # rich raises it when a pipe is closed
        return leave.code if isinstance(leave.code, int) else 2


@contextmanager
def _stoppable() -> Iterator[None]:
    """Treat SIGTERM, which batch systems send, like Ctrl-C.

    Both wait for a running import to end, because interrupting the import of a native module can crash.
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
