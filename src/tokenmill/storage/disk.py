"""Turn disk errors into messages that say what is kept and how to resume."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from tokenmill.errors import WorkError


@contextmanager
def explain_disk_errors(kept: str = "nothing is lost") -> Iterator[None]:
    """Turn every OSError in a `with` block into a WorkError. `kept` says what work is not lost.

    >>> with explain_disk_errors("step 100 is kept"):
    ...     raise OSError(errno.ENOSPC, "No space left on device", "runs/a/model")
    Traceback (most recent call last):
    ...
    tokenmill.errors.WorkError: The disk is full (runs/a/model); step 100 is kept.
    Free some space, then run the same command again. It resumes where it stopped.
    """
    try:
        yield
    except OSError as error:
        raise disk_error(error, kept) from error


def disk_error(error: OSError, kept: str = "nothing is lost") -> WorkError:
    """Return the WorkError for an OSError."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WorkError(
            f"The disk is full{where}; {kept}.\n"
            "Free some space, then run the same command again. It resumes where it stopped."
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return WorkError(
            f"Too many files are open{where}; {kept}.\nLet the process open more, for example with "
            "ulimit -n 65536, then run the same command again. It resumes where it stopped."
        )
    return WorkError(
        f"Writing failed{where}: {error.strerror or error}; {kept}.\n"
        "Run the same command again once that is fixed. It resumes where it stopped."
    )
