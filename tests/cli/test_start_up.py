"""`tokenmill --help` and `import tokenmill` answer at once and load nothing heavy."""

from __future__ import annotations

import pytest
from shell import python, run

HEAVY = (
    "numpy pyarrow gigatoken torch jax jaxlib grain tensorflow lightning ray datasets pandas "
    "tokenizers tiktoken sentencepiece huggingface_hub multiprocessing"
).split()
COMMANDS = [
    "prepare",
    "pretokenize",
    "download",
    "info",
    "peek",
    "verify",
    "export",
    "import",
    "reshard",
    "train",
    "sample",
    "tokenizer",
    "tokenizer train",
]


@pytest.mark.parametrize(
    "code",
    [
        "import tokenmill",
        "import tokenmill.cli",
        "from tokenmill.cli import main; main(['--help'])",
        "from tokenmill.cli import main; main(['--version'])",
    ],
)
def test_nothing_heavy_is_loaded(code: str) -> None:
    told = python("-c", f"{code}; import sys; print('loaded', *sys.modules)")
    loaded = told.stdout.rpartition("loaded ")[2].split()
    assert "tokenmill" in loaded
    assert sorted(set(HEAVY) & set(loaded)) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_explained_line_for_each_option(command: str) -> None:
    told = run(*command.split(), "--help")
    assert told.returncode == 0
    assert told.stderr == ""
    assert f"Usage: tokenmill {command}" in told.stdout
    assert "\x1b" not in told.stdout


@pytest.mark.parametrize(
    ("command", "explained"),
    [
        ("prepare", "The same command resumes after any interruption."),
        ("download", "Without REPO it downloads three shards"),
        ("train", "torchrun --nproc-per-node 8"),
        ("verify", "The exit status is 0"),
    ],
)
def test_help_of_a_command_says_more_than_the_list_of_commands(
    command: str, explained: str
) -> None:
    assert explained in " ".join(run(command, "--help").stdout.split())


def test_every_command_is_covered_here() -> None:
    told = run("--help").stdout
    listed = {line.split()[1] for line in told.splitlines() if line.startswith("│ ")}
    commands = {name for name in listed if not name.startswith("--")}
    assert commands == {name.split()[0] for name in COMMANDS}
