"""Make a failing case smaller: remove files and bytes while it fails for the same reason."""

from __future__ import annotations

from .case import Case, Parser
from .forks import run_batch

_TRIES = 60  # each takes a fork


def minimize(parser: Parser, case: Case, cause: str) -> Case:
    """A smaller case with the same cause of failure, or the same case."""
    tries = 0

    def fails(files: dict[str, bytes]) -> bool:
        nonlocal tries
        tries += 1
        found = run_batch(parser, 0, 0, 1, [Case(files, case.facts)]).failures
        return bool(found) and found[0].cause == cause

    files = dict(case.files)
    for name in list(files):
        fewer = {key: data for key, data in files.items() if key != name}
        if tries < _TRIES and fails(fewer):
            files = fewer
    for name in sorted(files, key=lambda key: -len(files[key])):
        size = len(files[name]) // 2
        while size and tries < _TRIES:
            place = 0
            while place < len(files[name]) and tries < _TRIES:
                data = files[name]
                fewer = {**files, name: data[:place] + data[place + size :]}
                if fails(fewer):
                    files = fewer
                else:
                    place += size
            size //= 4
    return Case(files, case.facts)
