"""Which of how many processes this one is, as the launcher tells it through the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tokenmill.errors import UsageError

# Whoever starts JAX by hand; torchrun and most others; srun, only inside a step, because a batch script
# itself is no rank; MPI.
_LAUNCHERS = (
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def find_rank(
    rank: int | None, world_size: int | None, environment: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """The rank and the world size: as given, else by the environment, else 0 of 1.

    >>> find_rank(None, None, {"RANK": "3", "WORLD_SIZE": "8"})
    (3, 8)
    """
    if (rank is None) != (world_size is None):
        raise UsageError("give `rank` and `world_size` together, or neither.")
    if rank is None or world_size is None:
        rank, world_size = _told(os.environ if environment is None else environment)
    if not 0 <= rank < world_size:
        raise UsageError(
            f"rank {rank} of {world_size} cannot be: ranks go from 0 to world_size - 1."
        )
    return rank, world_size


def leave_none_out(rows: int, batch_size: int, world_size: int) -> int:
    """So many of some rows that the last batch has at least one for each rank.

    A rank without any would have a loss of NaN, or end one step before the others.

    >>> leave_none_out(18, 2, 4), leave_none_out(20, 2, 4), leave_none_out(16, 2, 4)
    (16, 20, 16)
    """
    rest = rows % (batch_size * world_size)
    return rows - rest if rest < world_size else rows


def _told(environment: Mapping[str, str]) -> tuple[int, int]:
    for names in _LAUNCHERS:
        told = [environment.get(name, "") for name in names]
        if all(told):
            try:
                return int(told[0]), int(told[1])
            except ValueError:
                raise UsageError(
                    f"{names[0]}={told[0]!r} and {names[1]}={told[1]!r} in the environment are not a "
                    "rank and world size. Give `rank` and `world_size` yourself."
                ) from None
    return 0, 1
