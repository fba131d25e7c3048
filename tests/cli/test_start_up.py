"""`tokenmill --help` and `import tokenmill` answer at once and load nothing heavy."""

from __future__ import annotations

import pytest
from shell import python, run

HEAVY = (
    "numpy pyarrow gigatoken torch jax jaxlib grain tensorflow lightning ray datasets pandas "
    "tokenizers tiktoken sentencepiece huggingface_hub obstore multiprocessing starlette uvicorn jinja2 tantivy"
).split()
COMMANDS = [
    "prepare",
    "download",
    "info",
    "peek",
    "view",
    "explain",
    "where",
    "search",
    "index",
    "contaminated",
    "stats",
    "diff",
    "spikes",
    "exclude",
    "verify",
    "cache",
    "train",
    "sample",
    "tokenizer",
    "tokenizer train",
    "pretokenize",
    "import",
    "export",
    "reshard",
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
def test_no_heavy_library_is_loaded(code: str) -> None:
    result = python("-c", f"{code}; import sys; print('loaded', *sys.modules)")
    loaded = result.stdout.rpartition("loaded ")[2].split()
    assert "tokenmill" in loaded
    assert sorted(set(HEAVY) & set(loaded)) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.returncode == 0
    assert result.stderr == ""
    assert f"Usage: tokenmill {command}" in result.stdout
    assert "[ARGS]" not in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("command", "explained"),
    [
        ("prepare", "To resume after an interruption, run the same command again."),
        ("download", "Without REPO, the command downloads three shards"),
        ("train", "torchrun --nproc-per-node 8"),
        ("verify", "The exit status is 0"),
    ],
)
def test_the_help_of_a_command_is_its_docstring(command: str, explained: str) -> None:
    assert explained in " ".join(run(command, "--help").stdout.split())


def test_commands_are_listed_in_the_order_of_their_use() -> None:
    lines = run("--help").stdout.splitlines()
    listed = [line.split()[1] for line in lines if line.startswith("│ ")]
    commands = [name for name in listed if not name.startswith("--")]
    assert commands == [name for name in COMMANDS if " " not in name]


STOPPED_AT_START = """
import os, signal, sys

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "cyclopts":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Stop())
from tokenmill.cli import main
sys.exit(main(["info", "."]))
"""


def test_ctrl_c_during_the_first_imports_gives_no_traceback() -> None:
    result = python("-c", STOPPED_AT_START)
    assert (result.returncode, result.stderr) == (130, "Stopped.\n")
