"""Folders whose `index.json` lists their files: those of LitData and of MosaicML streaming.

The index is a stranger's: every entry is checked to be what it must be, and no name in it may lead
out of the folder. A folder may also have its splits as folders, `train` and `val`, each with an
index.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import orjson

from tokenmill.errors import DatasetError
from tokenmill.formats.protocol import Asked, NotThisFormat

INDEX = "index.json"
_LONGEST = 1 << 28  # bytes of an index that is read
_FOLDERS = {"train": "train", "val": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True)
class Entry:
    """A part of an index, whose values are taken out with suspicion."""

    where: str
    value: Any

    def get(self, key: str, kind: type, *, default: Any = ...) -> Any:
        """The value of a key; a number is never negative."""
        value = self.value.get(key) if isinstance(self.value, dict) else None
        if value is None and default is not ...:
            return default
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.fail(f"its {key!r} is {str(value)[:40]!r}")
        if isinstance(value, int) and not 0 <= value < 1 << 56:
            raise self.fail(f"its {key!r} is {str(value)[:40]}")
        return value

    def name(self, key: str) -> str:
        """The name of a file in the folder."""
        value = str(self.get(key, str))
        pure = PurePosixPath(value)
        if not value.isprintable() or not pure.name or pure.is_absolute() or "\\" in value:
            raise self.fail(f"the name {value[:80]!r} is not a file of the folder")
        if ".." in pure.parts:
            raise self.fail(f"the name {value[:80]!r} leads out of the folder")
        return value

    def entries(self, key: str) -> list[Entry]:
        """A list of parts."""
        found = self.get(key, list)
        if not all(isinstance(one, dict) for one in found):
            raise self.fail(f"its {key!r} are not entries")
        return [Entry(self.where, one) for one in found]

    def entry(self, key: str) -> Entry:
        """A part."""
        return Entry(self.where, self.get(key, dict))

    def fail(self, what: str) -> DatasetError:
        return DatasetError(f"{self.where} is damaged: {what}. Copy or download it again.")


def read_indexes(asked: Asked, key: str) -> dict[str, tuple[Asked, Entry]]:
    """The splits of a folder, each with its folder and its index, which must have a `key`."""
    if not asked.is_folder:
        raise NotThisFormat(f"it is a file, and this is a folder with {INDEX}")
    if (asked.path / INDEX).is_file():
        return {"train": (asked, _read(asked, key))}
    found = {}
    for folder, split in _FOLDERS.items():
        inner = replace(asked, path=asked.path / folder)
        if split not in found and (inner.path / INDEX).is_file():
            found[split] = (inner, _read(inner, key))
    if not found:
        raise NotThisFormat(f"neither it nor a folder train in it has {INDEX}")
    return found


def _read(asked: Asked, key: str) -> Entry:
    path = asked.path / INDEX
    if path.stat().st_size > _LONGEST:
        raise DatasetError(f"{path} has {path.stat().st_size:,} bytes, too many for an index.")
    try:
        told = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise NotThisFormat(f"{INDEX} is not JSON ({error})") from None
    if not isinstance(told, dict) or key not in told:
        raise NotThisFormat(f"{INDEX} has no {key!r}")
    return Entry(str(path), told)
