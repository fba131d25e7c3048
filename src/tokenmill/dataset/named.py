"""Parse and open the data of a mixture: several datasets, each as NAME=PATH:WEIGHT."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.dataset.opening import Dataset
from tokenmill.dataset.opening import open as open_dataset
from tokenmill.dataset.paths import AnyPath, AnyPaths
from tokenmill.errors import UsageError
from tokenmill.hub.paths import is_hub_path

_NAMED = re.compile(r"(?P<name>[^=/\\:]+)=(?P<path>.+):(?P<weight>[^:/\\]+)", re.DOTALL)


class NamedPath(NamedTuple):
    """One dataset of several. A single path without a name has the name "" and the weight 1."""

    name: str
    path: str
    weight: float

    def __str__(self) -> str:
        return f"{self.name}={self.path}:{self.weight!r}" if self.name else self.path


def parse_named(data: Sequence[AnyPath]) -> list[NamedPath]:
    """Return the name, path and weight of each dataset. Several datasets must have different names.

    >>> parse_named(["web=data/web:0.7", "code=s3://bucket/code:0.3"])[1]
    NamedPath(name='code', path='s3://bucket/code', weight=0.3)
    >>> parse_named(["data/web"])
    [NamedPath(name='', path='data/web', weight=1.0)]
    """
    parsed = [_parse_one(os.fspath(text)) for text in data]
    names = [one.name for one in parsed]
    for name, path, _ in parsed:
        if len(parsed) > 1 and not name:
            raise UsageError(
                f"{path!r} is one of several datasets; each needs a name and a weight: NAME={path}:0.5"
            )
        if names.count(name) > 1:
            raise UsageError(f"two of the datasets are named {name!r}; give each its own name.")
    return parsed


def open_named(data: AnyPaths, **options: Any) -> dict[str, tuple[Dataset, float]]:
    """Open a dataset, or the datasets of a mixture; return each with its weight, by its name.

    Paths without names are one dataset, as for `tokenmill.open`; its name is "". `options` are those
    of `tokenmill.open`.
    """
    given = [data] if isinstance(data, (str, os.PathLike)) else list(data)
    if not any(_parse_one(os.fspath(one)).name for one in given):
        return {"": (open_dataset(given, **options), 1.0)}
    return {
        name: (open_dataset(path, **options), weight) for name, path, weight in parse_named(given)
    }


def _parse_one(text: str) -> NamedPath:
    named = _NAMED.fullmatch(text)
    if named is None or is_hub_path(text) or _exists(text):
        return NamedPath("", text, 1.0)
    try:
        weight = float(named["weight"])
    except ValueError:
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise UsageError(
            f"{text} in `data` has the weight {named['weight']!r}; it must be a number, 0 or more, "
            f"as in {named['name']}={named['path']}:0.5"
        )
    return NamedPath(named["name"], named["path"], weight)


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False
