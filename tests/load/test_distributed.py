import pytest

from tokenmill.errors import UsageError
from tokenmill.load.distributed import find_rank


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        ({"RANK": "1"}, (0, 1)),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3"}, (2, 3)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),  # a batch script, not a step
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, (0, 2)),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "9"},
            (0, 2),
        ),
    ],
)
def test_the_rank_comes_from_the_launcher(environment, found):
    assert find_rank(None, None, environment) == found


def test_arguments_take_precedence_over_the_environment():
    assert find_rank(1, 3, {"RANK": "0", "WORLD_SIZE": "8"}) == (1, 3)


def test_an_invalid_environment_is_named():
    with pytest.raises(UsageError, match="RANK='x'"):
        find_rank(None, None, {"RANK": "x", "WORLD_SIZE": "8"})
