"""The output folder: whose it is, what is done in it, and that only one run works in it.

    empty or missing     a new run begins
    .work, no manifest   an interrupted run: the same command resumes, another is refused
    a manifest           finished: not touched
    anything else        somebody's: refused

While a run works, all that is unfinished is in `.work`; finished shards are in their place.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from tokenmill.errors import FolderError
from tokenmill.preparation.plan import Plan, plan_record
from tokenmill.preparation.settings import Settings
from tokenmill.preparation.sift import SPLITS
from tokenmill.store.manifest import (
    MANIFEST_NAME,
    SOURCES_NAME,
    TOKENIZER_NAME,
    Manifest,
    write_atomically,
)

__all__ = ["REJECTED_NAME", "REPAIRED_NAME", "REPORT_NAMES", "WORK_NAME", "OutputFolder"]

WORK_NAME = ".work"
_LOCK_NAME = "lock"
REJECTED_NAME = "rejected.jsonl"
REPAIRED_NAME = "repaired.jsonl"
REPORT_NAMES = (REJECTED_NAME, REPAIRED_NAME)
# The manifest first: without the rest, a folder with a manifest would pass for a dataset.
_OURS = (MANIFEST_NAME, *SPLITS, SOURCES_NAME, TOKENIZER_NAME, *REPORT_NAMES, WORK_NAME)
_CHOICE = (
    "Change it back, choose another `out`, or add `restart=True` to discard what is done and start "
    "over."
)


class OutputFolder:
    """An output folder with the lock on it held."""

    def __init__(self, path: Path, *, restart: bool) -> None:
        self.path = path
        self.work = path / WORK_NAME
        self.segments = self.work / "segments"
        self.shards = self.work / "shards"
        self._refuse_if_foreign()
        self._lock = self._take_lock()
        try:
            if restart:
                self._discard()
            self.remove_temporaries()
            for folder in (self.segments, self.shards):
                folder.mkdir(exist_ok=True)
        except BaseException:
            self.close()
            raise

    def _refuse_if_foreign(self) -> None:
        if self.path.is_file():
            raise FolderError(f"{self.path} is a file; `out` must be a folder.")
        if not self.path.exists():
            return
        names = sorted(os.listdir(self.path))
        if names and MANIFEST_NAME not in names and WORK_NAME not in names:
            shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            raise FolderError(
                f"{self.path} holds other things ({shown}). Choose a new or empty folder for `out`."
            )

    def _take_lock(self) -> int:
        self.work.mkdir(parents=True, exist_ok=True)
        path = self.work / _LOCK_NAME
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # a run that finished just now has removed the folder
            return self._take_lock()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The run that had it may have finished and removed the file since it was opened.
            if not path.exists() or os.fstat(handle).st_ino != path.stat().st_ino:
                raise BlockingIOError
        except BlockingIOError:
            owner = os.read(handle, 32).decode(errors="replace").strip()
            os.close(handle)
            told = f" (process {owner})" if owner.isdigit() else ""
            raise FolderError(
                f"Another run is working in {self.path}{told}. Wait for it, or choose another `out`."
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        return handle

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove what is half-written, and let go of the lock."""
        if self._lock >= 0:
            with suppress(OSError):
                self.remove_temporaries()
            os.close(self._lock)
            self._lock = -1

    def _discard(self) -> None:
        """Remove all that tokenmill makes, and nothing else; the lock stays."""
        for name in _OURS:
            target = self.path / name
            if name == WORK_NAME:
                for entry in target.iterdir():
                    if entry.name != _LOCK_NAME:
                        _remove(entry)
            elif name in SPLITS:
                for shard in target.glob("shard_*"):
                    _remove(shard)
                with suppress(OSError):  # it holds something of the user's, or is not there
                    target.rmdir()
            else:
                _remove(target)

    def remove_temporaries(self) -> None:
        """Remove what a run left half-written, of whichever process."""
        splits = (self.path / split for split in SPLITS)
        for folder in (self.work, self.segments, self.shards, *splits):
            for stale in folder.glob("*.tmp"):
                stale.unlink(missing_ok=True)
        for name in (MANIFEST_NAME, SOURCES_NAME, TOKENIZER_NAME, *REPORT_NAMES):
            for stale in self.path.glob(f"{name}.*tmp"):
                stale.unlink(missing_ok=True)

    def finished(self, plan: Plan, settings: Settings, fingerprint: str) -> Manifest | None:
        """The manifest, if this very dataset is finished; an error if another one is."""
        if not (self.path / MANIFEST_NAME).exists():
            return None
        manifest = Manifest.read(self.path)
        differences = _differences(
            {**manifest.settings, "tokenizer": manifest.tokenizer_fingerprint},
            {**settings.to_json(), "tokenizer": fingerprint},
        )
        was = [(source.path, source.bytes) for source in manifest.sources]
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
        width = {"uint16": 2, "uint32": 4}[manifest.dtype]
        for split in manifest.splits.values():
            for shard in split.shards:
                if not _has_size(self.path / shard.path, shard.tokens * width):
                    self.clean_up()
                    raise FolderError(
                        f"{self.path} holds a dataset that was finished, but {shard.path} is missing "
                        "or cut short.\nCopy it again from its source, or add `restart=True` to make it "
                        "again."
                    )
        return manifest

    def remember(self, plan: Plan, settings: Settings, fingerprint: str) -> None:
        """Record the settings of this run; refuse to resume with others.

        A file that failed before may have been fixed since.
        """
        path = self.work / "plan.json"
        record = plan_record(plan, settings, fingerprint)
        if path.exists():
            before = _load(path)
            if not isinstance(before, dict) or before.keys() != record.keys():
                raise FolderError(f"{path} is damaged. Add `restart=True` to start over.")
            differences = _differences(
                {**before["settings"], "tokenizer": before["tokenizer"]},
                {**record["settings"], "tokenizer": fingerprint},
            )
            differences += self._changed_sources(before["sources"], record["sources"])
            if differences:
                raise FolderError(
                    f"{self.path} holds an unfinished run with something different:\n  "
                    + "\n  ".join(differences[:10])
                    + f"\n{_CHOICE}"
                )
        write_atomically(path, orjson.dumps(record))

    def _changed_sources(
        self, before: list[dict[str, Any]], now: list[dict[str, Any]]
    ) -> list[str]:
        if [source["path"] for source in before] != [source["path"] for source in now]:
            was = [(source["path"], 0) for source in before]
            return [f"the input was {_files(was)}, is {_files([(s['path'], 0) for s in now])}"]
        failed = set(self.failed_files())
        return [
            f"{new['path']} changed since the run began"
            for old, new in zip(before, now, strict=True)
            if old != new and new["path"] not in failed
        ]

    def failed_files(self) -> list[str]:
        """The files that the run before could not read."""
        path = self.work / "failed.json"
        return list(_load(path)) if path.exists() else []

    def note_failures(self, paths: list[str]) -> None:
        """Remember which files could not be read."""
        write_atomically(self.work / "failed.json", orjson.dumps(sorted(set(paths))))

    def clean_up(self) -> None:
        """Remove the scaffolding of a finished run, the lock last."""
        for entry in self.work.iterdir():
            if entry.name != _LOCK_NAME:
                _remove(entry)
        (self.work / _LOCK_NAME).unlink()
        with suppress(OSError):  # the next run may have come in already
            self.work.rmdir()
        self.close()


def _load(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise FolderError(
            f"{path} cannot be read ({error}). Add `restart=True` to start over."
        ) from error


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    # Whether to set bad files aside may be decided after seeing one.
    return [
        f"{name} was {before.get(name)!r}, is {now.get(name)!r}"
        for name in sorted(set(before) | set(now))
        if before.get(name) != now.get(name) and name != "skip_bad_files"
    ]


def _files(sources: list[tuple[str, int]]) -> str:
    size = sum(source[1] for source in sources)
    first = sources[0][0] if sources else "nothing"
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    return f"{first}{more}" + (f" ({size:,} bytes)" if size else "")
