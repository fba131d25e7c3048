"""Shell completion, in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PRESS_TAB = """
source ~/.bashrc
COMP_WORDS=({words}) COMP_CWORD={place} COMP_LINE="{words}" COMP_POINT={end} COMP_TYPE=9
$(complete -p tokenmill | sed -E 's/.*-F ([^ ]+).*/\\1/')
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("tokenmill tr", "train"),
        ("tokenmill train --max-s", "--max-steps"),
        ("tokenmill prepare --to", "--tokens-per-shard"),
    ],
)
def test_bash_completes_commands_and_flags(tmp_path: Path, words: str, offered: str) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "SHELL": shutil.which("bash") or ""}
    command = [sys.executable, "-m", "tokenmill.cli", "--install-completion"]
    installed = subprocess.run(command, env=env, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    script = PRESS_TAB.format(words=words, place=len(words.split()) - 1, end=len(words))
    pressed = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True)
    assert offered in pressed.stdout.split(), pressed.stderr
