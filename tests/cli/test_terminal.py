"""Progress on a terminal, and what stays on the screen after a run."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from shell import COMMAND

from tokenmill.progress import Display

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run_on_terminal(
    *arguments: str | Path,
    stop_after: str = "",
    columns: int = 160,
    command: Sequence[str | Path] = (COMMAND,),
) -> tuple[int, str]:
    """Run a command on a new terminal; returns its status and everything it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, *map(str, (*command, *arguments))],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)},
    )
    os.close(theirs)
    written = b""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                data = os.read(ours, 1 << 16)
            except OSError:  # Linux: the other side has closed
                break
            written += data
            if stop_after and stop_after.encode() in written:
                stop_after = ""
                os.killpg(process.pid, signal.SIGINT)
        elif process.poll() is not None:
            break
    os.close(ours)
    return process.wait(timeout=10), written.decode()


def screen(written: str) -> list[str]:
    """The lines on the screen at the end, after cursor moves and erasures."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token.startswith("\x1b"):
            if token.endswith("A"):
                row -= int(token[2:-1] or 1)
            elif token.endswith("K"):
                lines[row] = ""
        else:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + token + line[column + len(token) :]
            column += len(token)
    return lines


def make_text(folder: Path) -> Path:
    path = folder / "x.jsonl"
    with path.open("w") as file:
        for i in range(400_000):
            file.write(f'{{"text": "document {i} of the corpus that is prepared"}}\n')
        file.write("no JSON\n")
    return path


def test_progress_is_complete_and_leaves_a_clean_screen(tmp_path: Path) -> None:
    text = make_text(tmp_path)
    status, written = run_on_terminal(
        "prepare", text, "--out", tmp_path / "data", "--tokenizer", "bytes", "--workers", "1"
    )
    assert status == 0, written
    shown = ESCAPES.sub("", written)
    assert re.search(
        r"tokenizing .*\d+%, [\d.]+ MB of [\d.]+ MB, [\d.]+ MB/s, [\d,]+ tokens, "
        r"[\d,]+ documents, \d+ dropped, \d+ s left",
        shown,
    ), shown
    left = screen(written)
    assert not [line for line in left if "tokenizing" in line or "%" in line]
    assert [line for line in left if "Next:  tokenmill info" in line]
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is back


def frames(written: str) -> list[str]:
    """Every line that was drawn."""
    return [ESCAPES.sub("", line) for line in re.split(r"[\r\n]+", written)]


@pytest.mark.parametrize("columns", [60, 80])
def test_progress_never_wraps_on_a_narrow_terminal(tmp_path: Path, columns: int) -> None:
    text, data = make_text(tmp_path), tmp_path / "data"
    options = ("--tokenizer", "bytes", "--dedup", "lines", "--val-fraction", "0.5")
    status, written = run_on_terminal("prepare", text, "--out", data, *options, columns=columns)
    assert status == 0, written
    for command in (
        ("export", data, "--to", "npy", "--out", tmp_path / "npy"),
        ("reshard", data, "--out", tmp_path / "resharded", "--tokens-per-shard", "999999"),
        ("verify", data),
    ):
        status, more = run_on_terminal(*command, columns=columns)
        assert status == 0, more
        written += more
    drawn = [line for line in frames(written) if re.search(r"\d%", line)]
    assert [line for line in drawn if line.startswith("tokenizing") and "left" in line]
    assert max(map(len, drawn)) <= columns
    # A line that does not fit would be cut in the middle of a number.
    whole = r"(%|[kMG]?B|/s|tokens?|documents?|dropped|left|\d:\d\d|--)$"
    assert not [line for line in drawn if not re.search(whole, line.rstrip())]


SCRIPT = """
import sys, tokenmill
tokenmill.prepare(
    sys.argv[1], sys.argv[2], tokenizer="bytes", workers=1, progress=eval(sys.argv[3])
)
print("done")
"""


def test_a_stage_is_shown_when_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich treat stderr as a terminal
    with Display() as display:
        display.begin("looking for files", 0)
    assert "looking for files …" in capsys.readouterr().err


def test_prepare_from_python_shows_progress_only_on_a_terminal(tmp_path: Path) -> None:
    text = make_text(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    status, written = run_on_terminal(text, tmp_path / "a", "None", command=(script,))
    assert status == 0, written
    assert "tokenizing" in written
    assert [line for line in screen(written) if line.strip()] == ["done"]
    _, written = run_on_terminal(text, tmp_path / "b", "False", command=(script,))
    assert written.strip() == "done"
    result = subprocess.run(
        [sys.executable, script, text, tmp_path / "c", "None"], capture_output=True, text=True
    )
    assert (result.stdout, result.stderr) == ("done\n", "")


def test_ctrl_c_on_a_terminal_leaves_a_clean_screen(tmp_path: Path) -> None:
    text = make_text(tmp_path)
    arguments = ("prepare", text, "--out", tmp_path / "data", "--tokenizer", "bytes")
    status, written = run_on_terminal(*arguments, stop_after="tokenizing")
    assert status == 130, written
    left = [line for line in screen(written) if line.strip()]
    assert left[-1].startswith("Stopped. Finished work is kept in ")
    assert not [line for line in left if "tokenizing" in line]
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")


def test_wide_tables_and_hostile_names_stay_on_the_screen(tmp_path: Path) -> None:
    text = tmp_path / "[red]x\x1b[2J.txt"
    text.write_text("\x1b[31mred [bold]text[/]")
    data = tmp_path / "data"
    options = ("--tokenizer", "bytes", "--val-fraction", "0", "--no-normalize")
    for command in (("prepare", text, "--out", data, *options), ("info", data), ("peek", data)):
        status, written = run_on_terminal(*command)
        assert status == 0, written
        assert "\x1b[2J" not in written
        assert "\x1b[31m" not in written
    assert "[bold]text[/]" in written
