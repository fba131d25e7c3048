"""Check that the ranks of a run read the same data with the same settings.

Each rank posts the settings of its n-th loader where all ranks can read them, and compares them
with those of the rank that posted first. No rank waits for another, so a rank that makes no loader
blocks none of the others. Costs: one message per loader.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from tokenmill.errors import UsageError
from tokenmill.load.state import find_differences

_loaders = count(1)


def check_agreement(
    settings: Mapping[str, Any], rank: int, post: Callable[[str, str], str]
) -> None:
    """Refuse settings that differ from those of another rank.

    `post(key, value)` stores the value unless the key has one already, and returns the stored value.

    >>> kept = {}
    >>> check_agreement({"seed": 1}, 0, lambda key, value: kept.setdefault("loader", value))
    >>> check_agreement({"seed": 2}, 1, lambda key, value: kept.setdefault("loader", value))
    ... # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: loader ... of rank 1 differs from rank 0: seed is 1 there and 2 here.
    Make the same loaders in the same order on all ranks. If only some ranks need a loader, give it \
`rank=0` and `world_size=1`; then it is not compared.
    """
    number = next(_loaders)
    own = json.dumps({"rank": rank, "settings": settings})
    first = json.loads(post(f"tokenmill/loader/{number}", own))
    found = find_differences(first["settings"], settings, where=("there", "here"))
    if told := "; ".join(text for _, text in found):
        raise UsageError(
            f"loader {number} of rank {rank} differs from rank {first['rank']}: {told}.\nMake the "
            "same loaders in the same order on all ranks. If only some ranks need a loader, give it "
            "`rank=0` and `world_size=1`; then it is not compared."
        )
