"""Every exception that tokenmill raises on purpose, in one tree.

Each message says what happened, which value is at fault and what to do about it. The command line
prints the message without a traceback and exits with `exit_status`.

    TokenmillError
    ├── UsageError        an invalid setting or argument (exit 2)
    ├── InputError        an input file that cannot be used
    ├── FolderError       an output folder in use, not made by tokenmill, or with other settings
    ├── DatasetError      a dataset that is damaged or incomplete, or a path that is not a dataset
    ├── TokenizerError    a tokenizer that cannot be loaded, or is not the expected one
    │   └── UnregisteredTokenizerError    a dataset's tokenizer class that is not registered
    ├── TooLongError      a text that cannot be split and does not fit in memory
    ├── StateError        a saved state that belongs to another run
    ├── StorageError      an object store that refuses access or does not answer
    └── WorkError         work that was interrupted (disk full, worker killed) and can be resumed
"""

from __future__ import annotations

import errno

__all__ = [
    "DatasetError",
    "FolderError",
    "InputError",
    "StateError",
    "StorageError",
    "TokenizerError",
    "TokenmillError",
    "TooLongError",
    "UnregisteredTokenizerError",
    "UsageError",
    "WorkError",
]

_NOT_MAPPED = ("failed to map segment", "cannot allocate memory")


class TokenmillError(Exception):
    """The base class of all errors that tokenmill raises on purpose."""

    exit_status = 1


class UsageError(TokenmillError):
    """A setting or an argument is invalid."""

    exit_status = 2


class InputError(TokenmillError):
    """An input file is missing, unreadable or damaged."""


class FolderError(TokenmillError):
    """An output folder is in use, not made by tokenmill, or made with other settings."""


class DatasetError(TokenmillError):
    """A dataset is damaged or incomplete, or the path is not a dataset."""


class TokenizerError(TokenmillError):
    """A tokenizer cannot be loaded, or is not the one that made the tokens."""


class UnregisteredTokenizerError(TokenizerError):
    """A dataset needs a tokenizer class that is not registered in this process."""


class TooLongError(TokenmillError):
    """A text cannot be split, and is too long for the memory limit."""

    def __init__(self, size: int, reason: str) -> None:
        super().__init__(reason)
        self.size = size


class StateError(TokenmillError):
    """A saved state is damaged or belongs to another run."""


class StorageError(TokenmillError):
    """An object store refuses access, or does not answer."""


class WorkError(TokenmillError):
    """Work was interrupted by an external cause, and can be resumed with the same command."""


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out.

    >>> lacks_memory(ImportError("libarrow.so: failed to map segment from shared object"))
    True
    >>> lacks_memory(RuntimeError("can't start new thread"))
    True
    """
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, ImportError):  # the dynamic loader gives the reason only in its message
        said = str(error).lower()
        cause = error.__cause__
        return any(mark in said for mark in _NOT_MAPPED) or (
            cause is not None and lacks_memory(cause)
        )
    if isinstance(error, RuntimeError):  # there is no memory for the stack of a new thread
        return str(error) == "can't start new thread"
    return isinstance(error, MemoryError)
