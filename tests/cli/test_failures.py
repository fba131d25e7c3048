"""Every way to fail prints the reason and the next step, and never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from shell import COMMAND, QUICK, prepared, python

from tokenmill.errors import InputError
from tokenmill.training.config import Config
from tokenmill.training.data import open_data

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
# Root may read everything, unless these rights are dropped.
PLAIN = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if IS_ROOT else []
EACH = """
import json, sys
from tokenmill.cli import main
for arguments in json.loads(sys.argv[1]):
    print(f"\\0{main(arguments)}\\0", end="", file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("failures"), "some text " * 2000)


def shell(line: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `tokenmill` with arguments in a line of sh, where "$@" is the command."""
    return subprocess.run(
        ["sh", "-c", line, "sh", sys.executable, COMMAND, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


def run_each(
    commands: Sequence[str], *before: str, environment: dict[str, str] | None = None, cwd: Path
) -> Iterator[tuple[str, int, str]]:
    """Run commands one after another in one process; gives each, its status and its stderr."""
    result = subprocess.run(
        [*before, sys.executable, "-c", EACH, json.dumps([one.split() for one in commands])],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=60,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
    )
    found = result.stderr.split("\0")
    assert len(found) == 2 * len(commands) + 1, result.stderr
    return zip(commands, map(int, found[1::2]), found[::2], strict=False)


COMMANDS = ["info {}", "info {} --json", "peek {} --length 9999", "--help"]


@needs_full
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_under_stdout_is_one_line(data: Path, command: str) -> None:
    arguments = command.format(data).split()
    result = shell('"$@" > /dev/full', *arguments)
    assert result.returncode == 1
    assert result.stderr == (
        "tokenmill: The output cannot be written: No space left on device. Free some space on its "
        "disk, and run the same command again.\n"
    )


@needs_full
def test_a_full_disk_under_stderr_keeps_the_status_and_the_work(data: Path, tmp_path: Path) -> None:
    assert shell('"$@" 2> /dev/full', "info", "nowhere").returncode == 1
    assert shell('"$@" 2> /dev/full', "nonsense").returncode == 2
    command = ["prepare", __file__, "--out", tmp_path / "out", *QUICK]
    assert shell('"$@" 2> /dev/full', *command).returncode == 0
    log = "from tokenmill.progress import Display; d = Display(); d.begin('x', 9, 3); d.note('y')"
    result = subprocess.run(["sh", "-c", '"$0" -c "$1" 2> /dev/full', sys.executable, log])
    assert result.returncode in (0, 120)  # 120: Python's own status for a full stderr


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_end_up_in_data_files(tmp_path: Path, closed: str) -> None:
    """The system gives the number of a closed stream to the next file that is opened."""
    (tmp_path / "x.txt").write_text("some text\n" * 100)
    command = ["prepare", tmp_path / "x.txt", "--out", tmp_path / "out", *QUICK]
    assert shell(f'"$@" {closed}', *command, "--val-fraction", "0").returncode == 0
    shard = tmp_path / "out" / "train" / "shard_00000.bin"
    assert shard.read_bytes()[:40:2] == b"some text\nsome text\n"
    failed = shell(f'"$@" {closed}', "info", tmp_path / "nowhere")
    assert failed.returncode == 1
    assert failed.stdout == ""


UNEXPECTED = {
    "memory": ("MemoryError()", "Memory ran out."),
    "library": ("ImportError('x.so: failed to map segment from shared object')", "Memory ran out."),
    "mapping": ("OSError(12, 'Cannot allocate memory', 'x.bin')", "Memory ran out."),
    "nesting": ("RecursionError('deep')", "nested too deeply"),
    "disk": (
        "OSError(5, 'Input/output error', 'x.bin')",
        "'x.bin' cannot be read or written: Input",
    ),
    "space": ("OSError(28, 'No space left on device', 'x.bin')", "Free some space on its disk"),
    "files": ("OSError(24, 'Too many open files', 'x.bin')", "ulimit -n"),
    "pipe": ("BrokenPipeError(32, 'Broken pipe')", "cannot be read or written: Broken pipe"),
    "bug": ("KeyError('\\x1b[31mx')", "This is a bug in tokenmill. Set TOKENMILL_DEBUG=1"),
    "panic": ("type('Panic', (BaseException,), {})('native')", "Panic: native\nThis is a bug"),
}
FAIL = """
import sys
from tokenmill.cli import commands, main
def fail(*_):
    raise {}
commands.run = fail
sys.exit(main(["info", "x"]))
"""


@pytest.mark.parametrize("case", UNEXPECTED)
def test_any_exception_is_a_message_and_a_traceback_only_on_request(case: str) -> None:
    code, text = UNEXPECTED[case]
    result = python("-c", FAIL.format(code), environment={"TOKENMILL_DEBUG": ""})
    assert result.returncode == 1
    assert result.stderr.startswith("tokenmill: ")
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    assert "\x1b" not in result.stderr
    shown = python("-c", FAIL.format(code), environment={"TOKENMILL_DEBUG": "1"})
    assert shown.stderr.startswith("Traceback")
    assert shown.stderr.endswith(result.stderr)


def test_a_stopped_command_has_status_130() -> None:
    result = python("-c", FAIL.format("KeyboardInterrupt"))
    assert (result.returncode, result.stderr) == (130, "Stopped.\n")


@pytest.mark.parametrize(
    "command",
    ["info {}", "prepare {0}/x.txt --out {0}/new --tokenizer bytes", "train {}", "sample x"],
)
def test_a_deleted_working_folder_is_an_error_or_not_needed(
    data: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "x.txt").write_text("text")
    (tmp_path / "gone").mkdir()
    place = data if "{0}" not in command else tmp_path
    line = f'cd {tmp_path}/gone && rmdir ../gone && "$@"'
    result = shell(line, *command.format(place).split())
    assert "Traceback" not in result.stderr
    if command.startswith(("train", "sample")):
        assert result.returncode == 1
        assert result.stderr.startswith("tokenmill: The current folder was deleted. Go to")
    else:
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "environment",
    [
        {"HOME": "/proc/nothing", "XDG_CACHE_HOME": "/proc/nothing"},
        {"PYTHONIOENCODING": "latin-1", "LANG": "C", "COLUMNS": "20"},
        {"PYTHONIOENCODING": "ascii:strict", "LC_ALL": "C", "COLUMNS": "0", "TERM": "dumb"},
        {"COLUMNS": "2", "LINES": "²"},
        {"COLUMNS": "9" * 20, "LINES": "0"},
    ],
)
def test_unusual_environments_change_nothing(data: Path, environment: dict[str, str]) -> None:
    commands = [f"info {data}", f"peek {data}", f"verify {data}", "info nöwhere文", "info --help"]
    for command, status, stderr in run_each(commands, environment=environment, cwd=data):
        assert status == (1 if "文" in command else 0), stderr
        assert "Traceback" not in stderr
    alone = shell('env -u HOME "$@"', "info", data)
    assert alone.returncode == 0, alone.stderr


@pytest.mark.skipif(IS_ROOT and not shutil.which("setpriv"), reason="root may read everything")
def test_paths_without_permission_are_named(tmp_path: Path) -> None:
    for name in ("x.txt", "x.npy", "tokenizer.json"):
        (tmp_path / name).write_text("text")
        (tmp_path / name).chmod(0)
    (tmp_path / "open.txt").write_text("text")
    (tmp_path / "secret").mkdir(mode=0)
    commands = [
        "info secret",
        "verify secret",
        "info secret/data",
        "info x.npy",
        "prepare x.txt --out out --tokenizer bytes",
        "prepare secret --out out --tokenizer bytes",
        "prepare open.txt --out secret/out --tokenizer bytes",
        "pretokenize x.txt --tokenizer bytes",
        "import x.npy --out out --vocab-size 9",
        "export secret --to npy --out out",
        "tokenizer train x.txt --vocab-size 300 --out t.json",
    ]
    for command, status, stderr in run_each(commands, *PLAIN, cwd=tmp_path):
        assert status == 1, (command, stderr)
        assert stderr.startswith("tokenmill: "), command
        assert "ermission" in stderr, (command, stderr)
        assert "Traceback" not in stderr
        assert "bug in tokenmill" not in stderr


@pytest.mark.parametrize("path", ["/dev/zero", "fifo", "folder"])
def test_devices_pipes_and_folders_are_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "x.txt").write_text("text")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    commands = [
        f"info {path}",
        f"peek {path}",
        f"verify {path}",
        f"prepare {path} --out out --tokenizer bytes",
        f"prepare x.txt --out out --tokenizer {path}",
        f"pretokenize {path} --tokenizer bytes",
        f"import {path} --out out --vocab-size 9 --dtype uint16",
        f"export {path} --out out --to npy",
        f"reshard {path} --out out --tokens-per-shard 9",
        f"tokenizer train {path} --vocab-size 300 --out t.json",
    ]
    if path != "folder":
        commands += [
            f"prepare x.txt --out {path} --tokenizer bytes",
            f"export x.txt --out {path} --to npy --format raw --dtype uint16",
        ]
    for command, status, stderr in run_each(commands, cwd=tmp_path):
        assert status == 1, (command, stderr)
        assert stderr.startswith("tokenmill: "), command
        assert path in stderr
        assert "Traceback" not in stderr
        assert "bug in tokenmill" not in stderr


def test_a_device_as_the_text_to_train_on_is_refused() -> None:
    with pytest.raises(InputError, match="/dev/zero is a device, not a text file"):
        open_data([], input_file="/dev/zero", tokenizer="bytes", config=Config())
