"""Find this process's rank in a run, and check that all ranks have the same settings.

The rank comes from the launcher's environment variables. To compare settings, each rank offers the
settings of its n-th loader in a place that all ranks can read. The first offer is stored, and every
rank compares its own settings with the stored ones. No rank waits for another, so a rank that makes
no loader does not block the others. Costs: one message per loader.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from tokenmill.errors import UsageError
from tokenmill.load.state import find_differences

# The variables of JAX started by hand, torchrun and most others, srun, Open MPI and other MPIs, in
# this order. The batch script around srun is not a rank, so only variables that srun sets count.
_LAUNCHERS = (
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)

_loader_numbers = count(1)


def find_rank(
    rank: int | None, world_size: int | None, environment: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """Return the rank and the world size: from the arguments, else from the environment, else 0 of 1.

    >>> find_rank(None, None, {"RANK": "3", "WORLD_SIZE": "8"})
    (3, 8)
    """
    if (rank is None) != (world_size is None):
        raise UsageError("give `rank` and `world_size` together, or neither.")
    if rank is None or world_size is None:
        rank, world_size = _read_environment(os.environ if environment is None else environment)
    if not 0 <= rank < world_size:
        raise UsageError(
            f"rank {rank} of {world_size} is not valid: ranks go from 0 to world_size - 1."
        )
    return rank, world_size


def _read_environment(environment: Mapping[str, str]) -> tuple[int, int]:
    for names in _LAUNCHERS:
        values = [environment.get(name, "") for name in names]
        if all(values):
            try:
                return int(values[0]), int(values[1])
            except ValueError:
                raise UsageError(
                    f"{names[0]}={values[0]!r} and {names[1]}={values[1]!r} in the environment are "
                    "not a rank and a world size. Pass `rank` and `world_size` to the loader."
                ) from None
    return 0, 1


def trim_last_step(rows: int, batch_size: int, world_size: int) -> int:
    """Reduce a number of rows so that the last step has at least one row for each rank.

    A rank without rows would have a loss of NaN, or end one step before the others.

    >>> trim_last_step(18, 2, 4), trim_last_step(20, 2, 4), trim_last_step(16, 2, 4)
    (16, 20, 16)
    """
    rest = rows % (batch_size * world_size)
    return rows - rest if rest < world_size else rows


def check_same_settings(
    settings: Mapping[str, Any], rank: int, post: Callable[[str, str], str]
) -> None:
    """Raise an error if the settings differ from another rank's.

    `post(key, value)` stores the value unless the key has one already, and returns the stored
    value.

    >>> kept = {}
    >>> check_same_settings({"seed": 1}, 0, lambda key, value: kept.setdefault("loader", value))
    >>> check_same_settings({"seed": 2}, 1, lambda key, value: kept.setdefault("loader", value))
    ... # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: loader ... of rank 1 differs from rank 0: seed is 1 there and 2 here.
    Make the same loaders in the same order on all ranks. If only some ranks need a loader, give it \
`rank=0` and `world_size=1`; then it is not compared.
    """
    number = next(_loader_numbers)
    own = json.dumps({"rank": rank, "settings": settings})
    first = json.loads(post(f"tokenmill/loader/{number}", own))
    found = find_differences(first["settings"], settings, where=("there", "here"))
    if differences := "; ".join(text for _, text in found):
        raise UsageError(
            f"loader {number} of rank {rank} differs from rank {first['rank']}: {differences}.\n"
            "Make the same loaders in the same order on all ranks. If only some ranks need a loader, "
            "give it `rank=0` and `world_size=1`; then it is not compared."
        )
