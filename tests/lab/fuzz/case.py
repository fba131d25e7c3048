"""What a parser of the fuzzer is: how to make a case, and what must hold for it."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tokenmill.errors import TokenmillError


class WrongResultError(AssertionError):
    """Damaged data was accepted and gave other results than the sound data."""


@dataclass(frozen=True)
class Case:
    """Files to read, by their paths, and facts about them that `check` needs; JSON can hold both."""

    files: dict[str, bytes]
    facts: dict[str, Any] = field(default_factory=dict)


class Parser(ABC):
    """A reader of foreign bytes.

    Subclasses make cases from sound files, `self.sound`, which `prepare` fills. `check` may raise
    TokenmillError; anything else is a failure.
    """

    name: ClassVar[str]
    sound: dict[str, bytes]

    @abstractmethod
    def prepare(self, folder: Path) -> None:
        """Make the sound files. It runs once, in a process that then forks."""

    @abstractmethod
    def make(self, random: Random) -> Case:
        """A case; it depends on nothing but the random numbers and the sound files."""

    def list_sound(self) -> list[Case]:
        """Cases without changes, which must be accepted."""
        return [Case(self.sound)]

    @abstractmethod
    def check(self, case: Case, folder: Path) -> None:
        """Read a case. The folder is empty; `write_files` writes the files. If the fact `intact` is set,
        a refusal is an error too."""


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write the files of a case. Names that no file can have, or that leave the folder, are skipped."""
    for name, data in files.items():
        with suppress(OSError, ValueError):
            path = folder / name
            if path.resolve().is_relative_to(folder.resolve()):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)


def read_files(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their relative paths."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@contextmanager
def refused() -> Iterator[None]:
    """What is in this block may be refused with tokenmill's own errors."""
    with suppress(TokenmillError):
        yield


def require(condition: bool, what: str) -> None:
    """Raise WrongResultError unless the condition holds."""
    if not condition:
        raise WrongResultError(what)


def empty_folder(folder: Path) -> None:
    """Remove everything in a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
