"""Make the bundles of all parts: find finished ones, make the others, and handle bad files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tokenmill.errors import InputError
from tokenmill.preparation.engine import Engine, Task
from tokenmill.preparation.folder import PreparationFolder
from tokenmill.preparation.grind import Skipped
from tokenmill.preparation.part import TooLargeError
from tokenmill.preparation.plan import Plan
from tokenmill.preparation.segment import CheckBundle, Receipt, find_bundle
from tokenmill.progress import Watcher
from tokenmill.sources.files import BadFileError
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
    """The bundles of all parts, made now or before."""

    receipts: list[Receipt]
    done_before: int
    bytes_read: int

    def paths(self, folder: Path) -> list[Path]:
        """The paths of the bundles, without the suffixes of their files."""
        return [folder / receipt["name"] for receipt in self.receipts]


def make_bundles(
    run: Run,
    stage: str,
    kind: type[Any],
    names: list[str],
    make_task: Callable[..., Task],
    skipped: Skipped,
) -> Bundles:
    """Make the bundles that are missing. Their receipts are of type `kind`.

    Everything that can be made is made before a bad file ends the run. A file that is skipped in
    one of its parts is skipped in all.
    """
    plan = run.plan
    receipts = _find_bundles(run, names, kind)
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


def _find_bundles(run: Run, names: list[str], kind: type[Any]) -> dict[str, Receipt]:
    """The receipts of intact bundles of earlier runs."""
    folder = run.folder.segments
    found: dict[str, Receipt] = {}
    for name in names:
        receipt = find_bundle(folder, name, kind)
        # A file that an earlier run could not read may be readable now.
        if receipt is not None and not receipt["facts"]["skipped"]:
            found[name] = receipt
    checks = [CheckBundle(folder, receipt) for receipt in found.values()]
    for number, intact in run.engine.run(checks, run.watcher.advance):
        if not intact:
            del found[checks[number].receipt["name"]]
    return found


def skipped_in(receipts: Iterable[Receipt]) -> Skipped:
    """The bad files that were skipped when some bundles were made."""
    return dict(chain.from_iterable(receipt["facts"]["skipped"] for receipt in receipts))


def _skipped_of(plan: Plan, part: int, skipped: Skipped) -> Skipped:
    sources = (one.source for one in plan.parts[part].ranges)
    return {source: skipped[source] for source in sources if source in skipped}


def _explain_failures(run: Run, failures: list[BadFileError]) -> InputError:
    """The error for bad files. Records them, because they may be fixed before the run resumes."""
    reasons = {failure.source: failure.reason for failure in failures}
    run.folder.note_failures(list(reasons))
    for part in run.plan.parts:
        # The file may have been good when its lines were scanned.
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
