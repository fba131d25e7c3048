"""Make the bundles of a stage: find those that are finished, make the others, and handle bad files.

A bundle is the set of files that a stage of `prepare` writes for one part of the input, or for one
partition of the keys. Its receipt, a JSON file, is written last; see `segment.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from tokenmill.errors import InputError
from tokenmill.preparation.engine import Engine, Task
from tokenmill.preparation.folder import PreparationFolder
from tokenmill.preparation.part import Skipped, TooLargeError
from tokenmill.preparation.plan import Plan
from tokenmill.preparation.segment import CheckBundle, Receipt, find_bundle
from tokenmill.progress import Watcher
from tokenmill.sources.files import BadFileError
from tokenmill.storage.listing import list_names
from tokenmill.storage.reading import for_each_file
from tokenmill.wording import counted

_LISTED_FAILURES = 20


@dataclass(frozen=True)
class Run:
    """A plan that is being carried out, with its folder and its engine."""

    plan: Plan
    folder: PreparationFolder
    engine: Engine
    watcher: Watcher


@dataclass(frozen=True)
class Bundles:
    """The bundles of all parts, made by this run or by an earlier one.

    A bundle is the set of files that a stage writes for one part.
    """

    receipts: list[Receipt]
    done_before: int
    bytes_read: int

    def paths(self, folder: Path) -> list[Path]:
        """Return, for each bundle, the path of its files without their suffixes."""
        return [folder / receipt["name"] for receipt in self.receipts]


class BundleTask(Task, Protocol):
    """A task that makes a bundle (a set of files) and returns its receipt."""

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> Path: ...


def make_bundles(
    run: Run,
    stage: str,
    kind: type[Any],
    names: list[str],
    make_task: Callable[..., Task],
    skipped: Skipped,
) -> Bundles:
    """Run a stage: make a bundle (a set of files) for each part that has none.

    Returns the bundles of all parts. `names` has the name of each part's bundle, `kind` is the type
    of the receipts, `make_task` makes the task for a part, and `skipped` are bad files to omit.
    Unless `skip_bad_files` is set, a bad file ends the run, but only after the bundles of all other
    files are made. A file that is skipped in one of its parts is skipped in all of them.
    """
    plan = run.plan
    receipts = {
        name: receipt
        for name, receipt in _find_bundles(run, run.folder.segments, names, kind).items()
        # A file that an earlier run could not read may be readable now.
        if not receipt["facts"]["skipped"]
    }
    missing = [i for i, name in enumerate(names) if name not in receipts]
    done_before = len(names) - len(missing)
    left = sum(plan.parts[i].size for i in missing)
    run.watcher.begin(stage, plan.size, plan.size - left)
    while True:
        tasks = [
            make_task(i, name=names[i], skipped=tuple(_skipped_of(plan, i, skipped).items()))
            for i in missing
        ]
        failures: list[BadFileError] = []
        for number, result in run.engine.run(tasks, run.watcher.advance):
            if isinstance(result, BadFileError):
                failures.append(result)
                continue
            receipts[names[missing[number]]] = result
            if not plan.settings.skip_bad_files:
                failures += [
                    BadFileError(plan.sources[source].path, reason)
                    for source, reason in skipped_in([result]).items()
                ]
        if failures:
            raise _explain_failures(run, failures)
        skipped = skipped | skipped_in(receipts.values())
        missing = [
            i
            for i, name in enumerate(names)
            if _skipped_of(plan, i, skipped).keys() != skipped_in([receipts[name]]).keys()
        ]
        if not missing:
            return Bundles([receipts[name] for name in names], done_before, left)


def complete_bundles(
    run: Run, stage: str, kind: type[Any], tasks: Sequence[BundleTask], total: int
) -> list[Receipt]:
    """Run the tasks whose bundles (sets of files) are missing. Returns the receipts of all tasks.

    The receipts are in the order of the tasks. `kind` is the type of the receipts, and `total` is
    the number of bytes that all tasks report as progress.
    """
    folder = tasks[0].folder
    receipts = _find_bundles(run, folder, [task.name for task in tasks], kind)
    missing = [task for task in tasks if task.name not in receipts]
    run.watcher.begin(stage, total if len(missing) == len(tasks) else 0)
    for number, receipt in run.engine.run(missing, run.watcher.advance):
        receipts[missing[number].name] = receipt
    return [receipts[task.name] for task in tasks]


def _find_bundles(
    run: Run, folder: Path, names: Iterable[str], kind: type[Any]
) -> dict[str, Receipt]:
    """Return the receipts of the intact bundles (sets of files) of earlier runs, by name."""
    present = set(list_names(folder))
    candidates = [name for name in names if f"{name}.json" in present]
    read: dict[str, Receipt | None] = {}

    def find(name: str) -> None:
        read[name] = find_bundle(folder, name, kind, run.plan.keys)

    for_each_file(folder, find, candidates)
    found = {name: receipt for name in candidates if (receipt := read[name]) is not None}
    checks = [CheckBundle(folder, receipt) for receipt in found.values()]
    for number, intact in run.engine.run(checks, run.watcher.advance):
        if not intact:
            del found[checks[number].receipt["name"]]
    return found


def skipped_in(receipts: Iterable[Receipt]) -> Skipped:
    """Return the bad files that these receipts list as skipped."""
    return dict(chain.from_iterable(receipt["facts"]["skipped"] for receipt in receipts))


def _skipped_of(plan: Plan, part: int, skipped: Skipped) -> Skipped:
    sources = (one.source for one in plan.parts[part].ranges)
    return {source: skipped[source] for source in sources if source in skipped}


def _explain_failures(run: Run, failures: list[BadFileError]) -> InputError:
    """Return the error that lists the bad files, and record their paths.

    A resumed run allows the recorded files to differ, because the user may have fixed them.
    """
    reasons = {failure.source: failure.reason for failure in failures}
    run.folder.note_failures(list(reasons))
    for part in run.plan.parts:
        # The user may replace a bad file, so scan the lines of its parts again.
        if any(run.plan.sources[one.source].path in reasons for one in part.ranges):
            (run.folder.segments / f"{part.scan_name}.json").unlink(missing_ok=True)
    hidden = len(reasons) - _LISTED_FAILURES
    cure = [
        "Repair or replace them and run the same command, which resumes here;",
        "or add `skip_bad_files=True` to skip them.",
    ]
    if all(isinstance(failure, TooLargeError) for failure in failures):
        cure = ["Then run the same command, which resumes here."]
    lines = [
        f"{counted(len(reasons), 'file')} could not be read; everything else is done and kept:",
        *(f"  {source}: {reason}" for source, reason in sorted(reasons.items())[:_LISTED_FAILURES]),
        *([f"  … and {hidden:,} more"] if hidden > 0 else []),
        *cure,
    ]
    return InputError("\n".join(lines))
