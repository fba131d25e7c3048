"""Collect the problems of a dataset, file by file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tokenmill.html import ROWS, render
from tokenmill.storage.reading import CURE, DamagedFileError
from tokenmill.wording import one_line

MOST_PER_FILE = 5


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A problem of one file. `what` continues a sentence that begins with `file`: "is missing"."""

    file: str
    what: str
    cure: str

    def __str__(self) -> str:
        return f"{one_line(f'{self.file} {self.what}')}. {self.cure}"


class ProblemList(list[Problem]):
    """The problems that `verify` found, as a list; an empty one if there are none."""

    def __repr__(self) -> str:
        more = f", … and {len(self) - ROWS:,} more" if len(self) > ROWS else ""
        return f"[{', '.join(map(repr, self[:ROWS]))}{more}]"

    def _repr_html_(self) -> str:
        if not self:
            return render("No problems")
        rows = [(one.file, one.what, one.cure) for one in self[: ROWS + 1]]
        title = f"{len(self):,} problem{'s' if len(self) != 1 else ''}"
        return render(title, (), ("", ("file", "problem", "cure"), rows))


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The result of checking a dataset. A dataset without problems is sound; notes are harmless.

    `documents` is None if it is unknown where documents start.
    """

    problems: list[Problem]
    notes: list[str]
    shards: int = 0
    tokens: int = 0
    documents: int | None = 0
    bytes: int = 0


class Problems:
    """Collects problems, at most a few per file, so that checking can continue after the first."""

    def __init__(self) -> None:
        self._found: list[Problem] = []
        self._times: Counter[str] = Counter()

    def add(self, file: str, what: str, cure: str = CURE) -> None:
        problem = Problem(file=file, what=what, cure=cure)
        if problem in self._found[-1:]:  # some checks are made twice
            return
        self._times[file] += 1
        if self._times[file] <= MOST_PER_FILE:
            self._found.append(problem)

    def add_error(self, error: DamagedFileError) -> None:
        self.add(error.file, error.what, error.cure)

    def all(self) -> list[Problem]:
        """Return the problems found; for a file with too many, one more entry counts the rest.

        >>> problems = Problems()
        >>> for n in range(7):
        ...     problems.add("a.bin", f"has fault {n}")
        >>> len(problems.all()), problems.all()[-1].what
        (6, 'has 2 more problems like these')
        """
        more = {file: n - MOST_PER_FILE for file, n in self._times.items() if n > MOST_PER_FILE}
        return self._found + [
            Problem(file=file, what=f"has {n:,} more problems like these", cure=CURE)
            for file, n in more.items()
        ]
