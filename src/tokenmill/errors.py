"""Every exception that tokenmill raises for users, as one tree.

The text of each says what happened, the value at fault and what to do about it. The command
line prints that text without a traceback and exits with `exit_status`.

    TokenmillError
    ├── UsageError        an invalid setting or argument (exit 2)
    ├── InputError        input files that cannot be used
    ├── FolderError       an output folder in the wrong state: busy, foreign, changed settings
    ├── DatasetError      a dataset that is damaged, incomplete or not one
    ├── TokenizerError    a tokenizer that cannot be loaded, or is not the expected one
    │   └── UnregisteredTokenizerError    a dataset's tokenizer class that is not registered
    ├── TooLongError      a text that cannot be cut and is too long to hold in memory
    ├── StateError        a saved state that belongs to another run
    └── WorkError         work that stopped half-way (disk full, worker killed) and can be resumed
"""

from __future__ import annotations

__all__ = [
    "DatasetError",
    "FolderError",
    "InputError",
    "StateError",
    "TokenizerError",
    "TokenmillError",
    "TooLongError",
    "UnregisteredTokenizerError",
    "UsageError",
    "WorkError",
]


class TokenmillError(Exception):
    """The root: catch this to catch everything that tokenmill raises on purpose."""

    exit_status = 1


class UsageError(TokenmillError):
    """A setting or an argument that cannot be."""

    exit_status = 2


class InputError(TokenmillError):
    """Input files are missing, unreadable or damaged."""


class FolderError(TokenmillError):
    """An output folder is busy, foreign, or belongs to a run with other settings."""


class DatasetError(TokenmillError):
    """A dataset is damaged, incomplete or not a dataset at all."""


class TokenizerError(TokenmillError):
    """A tokenizer cannot be loaded, or is not the one that the tokens were made with."""


class UnregisteredTokenizerError(TokenizerError):
    """A dataset was made with a tokenizer class that is not registered in this process."""


class TooLongError(TokenmillError):
    """A text cannot be cut and does not fit in the memory that may be used."""

    def __init__(self, size: int, reason: str) -> None:
        super().__init__(reason)
        self.size = size


class StateError(TokenmillError):
    """A saved state is damaged, or belongs to another run."""


class WorkError(TokenmillError):
    """Work stopped half-way for an external reason; the same command resumes."""
