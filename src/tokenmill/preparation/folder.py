"""The output folder of `prepare`, which may hold the work and the settings of an earlier run.

A folder with `.work` and no manifest holds an interrupted run. The same command resumes it; a
command with other settings or input is refused. A folder with a manifest holds a finished dataset,
which is not changed. With `restart`, either is discarded first.

With `append`, the folder must hold a finished dataset. The plan in `.work` then says which generation
of the dataset the run makes, and from which manifest. If the dataset has that generation already, the
run had finished, and was killed before it removed its work. With `restart`, only the unfinished work
is discarded.

In an object store, `.work` has the plan. A run on a cluster also keeps its unfinished work there. A run
on one machine keeps its unfinished work in a folder of that machine. Without that folder, the run
starts over; it never trusts a shard without a receipt.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import orjson

from tokenmill.errors import FolderError
from tokenmill.preparation.base import Base, check_base
from tokenmill.preparation.plan import Plan
from tokenmill.preparation.settings import SPLITS
from tokenmill.sources.files import SourceFile
from tokenmill.storage.files import make_subfolder, remove, remove_temporaries
from tokenmill.storage.listing import list_names
from tokenmill.storage.names import (
    MANIFEST_NAME,
    REPORT_NAMES,
    SOURCES_NAME,
    TOKENIZER_NAME,
    WORK_NAME,
    is_of_generation,
)
from tokenmill.storage.object_path import ObjectPath
from tokenmill.storage.output import OutputFolder, describe_changes
from tokenmill.storage.reading import DamagedFileError, read_json
from tokenmill.store.manifest import Manifest

_LOCK_NAME = "lock"
_PLAN_NAME = "plan.json"
# In the order of removal. The manifest is first, because a folder with a manifest counts as complete.
_WRITTEN = (MANIFEST_NAME, *SPLITS, SOURCES_NAME, TOKENIZER_NAME, *REPORT_NAMES)
_CHOICE = (
    "Use the earlier settings and input, choose another `out`, or add `restart=True` to discard the "
    "unfinished run and start over."
)
# A larger file in `.work` counts as damaged. For a saved plan, the limit is higher if the plan of
# this run is large.
_MOST_BYTES = 64 << 20

T = TypeVar("T")


class PreparationFolder(OutputFolder):
    """The output folder of `prepare`. Working files are in `.work`; shards are written in place.

    `work` is the folder for unfinished work, if it is not in the output folder. `append` means that
    the run adds to the finished dataset in the folder.
    """

    def __init__(
        self, path: Path, *, restart: bool, work: Path | None = None, append: bool = False
    ) -> None:
        self._appends = append
        self.work = work or path / WORK_NAME
        self.segments = self.work / "segments"
        self.marks = self.work / "marks"
        self.fates = self.work / "fates"
        self.shards = self.work / "shards"
        self._folders = (self.segments, self.marks, self.fates, self.shards)
        super().__init__(
            path,
            marks=(MANIFEST_NAME, WORK_NAME),
            lock=f"{WORK_NAME}/{_LOCK_NAME}",
            work=work,
        )
        try:
            if restart and append:
                self._empty_work()
            elif restart:
                self._discard()
            self._make_folders()
        except BaseException:
            self.close()
            raise

    def _make_folders(self) -> None:
        is_inside = self.work == self.path / WORK_NAME
        for folder in self._folders:
            make_subfolder(self.path if is_inside else self.work, folder)

    def _discard(self) -> None:
        """Remove everything that `prepare` writes, and nothing else; the lock stays."""
        for name in _WRITTEN:
            if name in SPLITS and not (self.path / name).is_symlink():
                for shard in (self.path / name).glob("shard_*"):
                    remove(shard)
                with suppress(OSError):  # the folder is missing, or holds files of the user
                    (self.path / name).rmdir()
            else:
                remove(self.path / name)
        for name in filter(is_of_generation, list_names(self.path)):
            remove(self.path / name)
        self._empty_work()

    def _empty_work(self) -> None:
        for entry in self.work.iterdir():
            if entry.name != _LOCK_NAME:
                remove(entry)
        if self.work != self.path / WORK_NAME:
            remove(self.path / WORK_NAME)

    def remove_temporaries(self) -> None:
        """Remove half-written files of any process."""
        super().remove_temporaries()
        below = (path for path in self._folders if path.is_dir())
        remove_temporaries(*(path for path in below if not path.is_symlink()))

    def finished(self, plan: Plan) -> Manifest | None:
        """Return the manifest of the finished dataset, or None if there is none.

        If the dataset has grown, its first generation is compared. With `append`, the dataset is
        finished if an earlier run has added the input.

        Raises `FolderError` if a dataset has other settings or input than the plan, or lacks files.
        """
        if plan.base is not None:
            return self._find_appended(plan, plan.base)
        if not (self.path / MANIFEST_NAME).exists():
            return None
        manifest = Manifest.read(self.path)
        first = manifest.at(1)
        before = dict(first.settings)
        if not plan.are_lists_given:  # the dataset's own list may change: `is_stale` says so
            before["exclude"] = plan.describe_settings().get("exclude")
        differences = _differences(
            {**before, "tokenizer": manifest.tokenizer_fingerprint},
            {**plan.describe_settings(), "tokenizer": plan.tokenizer.fingerprint},
        )
        was = [(source.path, source.bytes) for source in first.sources]
        now = [(source.path, source.size) for source in plan.sources]
        if was != now:
            differences.append(f"the input was {_files(was)}, is {_files(now)}")
        if differences:
            self.clean_up()
            raise FolderError(
                f"{self.path} holds a finished dataset that was made differently:\n  "
                + "\n  ".join(differences)
                + "\nChoose another `out`, or add `restart=True` to discard that dataset and start over."
            )
        if wrong := manifest.find_incomplete(self.path):
            self.clean_up()
            raise FolderError(
                f"{self.path} holds a finished dataset, but {wrong} is missing or cut short.\n"
                "Restore that file from a copy, or add `restart=True` to make the dataset again."
            )
        return manifest

    def _find_appended(self, plan: Plan, base: Base) -> Manifest | None:
        """Return the dataset's manifest if an earlier run has added the input of a plan, else None.

        Removes the work of runs that have ended.
        """
        check_base(base, self.path)
        manifest, record = base.manifest, self._read_plan()
        newest = [(source.path, source.bytes) for source in manifest.sources.parts[-1]]
        is_newest = newest == [(source.path, source.size) for source in plan.sources]
        if record is not None and record.base != base.checksum:
            self._empty_work()  # of a run that has finished, or for a dataset that is gone
            self._make_folders()
            if (
                is_newest
                and record.generation == manifest.generation
                and _is_same_input(record, plan)
            ):
                return manifest
        # Without deduplication the documents are not compared, so compare the files.
        return manifest if is_newest and plan.settings.dedup == "none" else None

    def _read_plan(self) -> _PlanRecord | None:
        """Return the plan of the unfinished run, or of one that was killed when it had finished."""
        path = self.path / WORK_NAME / _PLAN_NAME
        return _load(path, _PlanRecord, 4 * _MOST_BYTES) if path.exists() else None

    def remember_plan(self, plan: Plan) -> None:
        """Record this run's settings and input. Raises `FolderError` if an unfinished run had others.

        Only files that the unfinished run could not read may have changed, because the user may
        have fixed them.
        """
        name = f"{WORK_NAME}/{_PLAN_NAME}"
        record = orjson.dumps(plan.record())
        if not self.write_first(name, record):
            before = _load(self.path / name, _PlanRecord, max(_MOST_BYTES, 2 * len(record)))
            now = plan.describe_settings()
            was: dict[str, Any] = dict(before.settings)
            if not isinstance(self.path, ObjectPath):
                # If the lists of excluded documents change, the documents are chosen again. In an
                # object store, which has no locks, the other run may still be writing its shards.
                was["exclude"] = now.get("exclude")
            base = plan.base.checksum if plan.base else None
            differences = _differences(
                {**was, "tokenizer": before.tokenizer, "append": before.base},
                {**now, "tokenizer": plan.tokenizer.fingerprint, "append": base},
            )
            differences += self._changed_sources(before.sources, plan.sources)
            if differences:
                raise FolderError(
                    f"{self.path} holds an unfinished run with different settings or input:\n  "
                    + "\n  ".join(differences[:10])
                    + f"\n{_CHOICE}"
                )
            self.write(name, record)

    def _changed_sources(
        self, before: Sequence[SourceFile], now: Sequence[SourceFile]
    ) -> list[str]:
        if [source.path for source in before] != [source.path for source in now]:
            was, new = ([(source.path, 0) for source in one] for one in (before, now))
            return [f"the input was {_files(was)}, is {_files(new)}"]
        failed = set(self.failed_files())
        return [
            f"{new.path} changed since the run began"
            for old, new in zip(before, now, strict=True)
            if old != replace(new, copy=None) and new.path not in failed
        ]

    def failed_files(self) -> list[str]:
        """Return the paths of files that the previous run could not read."""
        path = self.path / WORK_NAME / "failed.json"
        return _load(path, list[str], _MOST_BYTES) if path.exists() else []

    def note_failures(self, paths: list[str]) -> None:
        """Record the paths of files that could not be read."""
        self.write(f"{WORK_NAME}/failed.json", orjson.dumps(sorted(set(paths))))

    def clean_up(self) -> None:
        """Remove the working files of a finished dataset, and the lock last.

        The work of an unfinished run that adds to the dataset stays, unless this is that run.
        """
        if not self._appends and self._has_unfinished_append():
            self.close()
            return
        self._empty_work()
        self.close(remove_lock=True)
        with suppress(OSError):  # the next run may have started already
            self.work.rmdir()

    def _has_unfinished_append(self) -> bool:
        try:
            record = self._read_plan()
        except FolderError:  # damaged
            return False
        if record is None or record.generation is None:
            return False
        return Manifest.read(self.path).generation < record.generation


class _PlanRecord(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a saved plan; see `Plan.record`."""

    settings: dict[str, str | int | float | bool | dict[str, str | int] | list[str] | None]
    tokenizer: str
    sources: list[SourceFile]
    generation: int | None = None  # that the run makes, if it adds to a dataset
    base: str | None = None  # the checksum of that dataset's manifest


def _is_same_input(record: _PlanRecord, plan: Plan) -> bool:
    return (
        dict(record.settings) == plan.describe_settings()
        and record.tokenizer == plan.tokenizer.fingerprint
        and record.sources == list(plan.sources)
    )


def _load(path: Path, kind: type[T], most: int) -> T:
    try:
        return read_json(path.parent, path.name, kind, most)
    except DamagedFileError as error:
        raise FolderError(f"{path} {error.what}. Add `restart=True` to start over.") from None


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    # `skip_bad_files` may change: the user may decide after an error about a bad file.
    return describe_changes({**before, "skip_bad_files": None}, {**now, "skip_bad_files": None})


def _files(sources: list[tuple[str, int]]) -> str:
    size = sum(source[1] for source in sources)
    first = sources[0][0] if sources else "nothing"
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    return f"{first}{more}" + (f" ({size:,} bytes)" if size else "")
