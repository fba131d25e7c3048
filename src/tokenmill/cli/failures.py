"""Print errors of the command: the reason and the next step instead of a traceback.

tokenmill's own errors already contain the next step. This module adds it to errors from Python and
the operating system. With TOKENMILL_DEBUG=1, the traceback is printed first.
"""

from __future__ import annotations

import errno
import os
import select
import sys
import traceback
from contextlib import suppress

from tokenmill.errors import TokenmillError, lacks_memory

_STOPPED = 130
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_AGAIN = "run the same command again"


def report(error: BaseException, least: int = 1) -> int:
    """Print what happened and the next step on stderr, and return the exit status.

    The status of an error is at least `least`.
    """
    if isinstance(error, SystemExit):  # rich exits when a pipe is closed
        return error.code if isinstance(error.code, int) else 2
    if isinstance(error, KeyboardInterrupt):
        _print("Stopped.")
        return _STOPPED
    if isinstance(error, BrokenPipeError) and _is_closed_pipe(1):  # `tokenmill peek … | head`
        return 0
    said = _explain(error)
    with suppress(MemoryError):  # if memory runs out, print the message unchanged
        from tokenmill.cli.flags import name_flags
        from tokenmill.wording import harmless

        if os.environ.get("TOKENMILL_DEBUG"):
            _print(harmless("".join(traceback.format_exception(error)).rstrip()))
        said = name_flags(harmless(said))
    _print(f"tokenmill: {said}")
    return max(least, error.exit_status if isinstance(error, TokenmillError) else 1)


def _explain(error: BaseException) -> str:
    if isinstance(error, TokenmillError):
        return str(error)
    if lacks_memory(error):
        return (
            "Memory ran out. Free some memory, or use less of it (for example fewer workers or a "
            f"smaller batch), and {_AGAIN}. Finished work is kept."
        )
    if isinstance(error, RecursionError):
        return (
            "A file is nested too deeply to be read. Check the files that you passed. To see "
            f"where reading failed, set TOKENMILL_DEBUG=1 and {_AGAIN}."
        )
    if isinstance(error, OSError):
        return _explain_system_error(error)
    reason = " ".join(str(error).split())[:300]
    return (
        f"{type(error).__name__}: {reason}\nThis is a bug in tokenmill. Set TOKENMILL_DEBUG=1, "
        f"{_AGAIN}, and report the command with everything that it prints."
    )


def _explain_system_error(error: OSError) -> str:
    from tokenmill.storage.reading import find_cure

    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    if not _has_working_folder():
        return f"The current folder was deleted. Go to another folder with cd, and {_AGAIN}."
    if error.errno in _NO_SPACE:
        where = f"{error.filename!r}" if error.filename else "The output"
        return f"{where} cannot be written: {reason}. Free some space on its disk, and {_AGAIN}."
    where = f"{error.filename!r}" if error.filename else "The output or a file"
    cure = find_cure(error, f"Fix that, and {_AGAIN}.")
    return f"{where} cannot be read or written: {reason}. {cure}"


def _has_working_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109  (the same call, and pathlib is not needed here)
    except OSError:
        return False
    return True


def _is_closed_pipe(descriptor: int) -> bool:
    """Return whether the process that reads the pipe has closed its end."""
    if not hasattr(select, "poll"):  # Windows
        return True
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))


def _print(text: str) -> None:
    with suppress(OSError, ValueError):  # stderr may be closed, or its disk full
        print(text, file=sys.stderr, flush=True)


def fill_closed_streams() -> None:
    """Open /dev/null in place of closed standard streams.

    Otherwise a data file could get the descriptor of stdout, and printed text would end up in the
    file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115


def drop_unwritten() -> None:
    """Discard output that cannot be written to stdout or stderr. Otherwise Python fails at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                devnull = os.open(os.devnull, os.O_WRONLY)
                os.dup2(devnull, stream.fileno())
                os.close(devnull)
