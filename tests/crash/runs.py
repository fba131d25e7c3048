"""Starts, watches and ends real `tokenmill` processes, and compares the files that they leave."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("tokenmill"))
PATIENCE = 60.0  # seconds after which a test gives up on a process


def run(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        **options,  # type: ignore[call-overload]
    )


def start(*arguments: str | Path, **options: object) -> subprocess.Popen[str]:
    """Start a command as the leader of a session of its own, so that all of it can be found."""
    return subprocess.Popen(
        [COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,  # type: ignore[call-overload]
    )


def kill_all(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    """Send a signal to a whole session; waits for the end only if nothing survives the signal."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    if number == signal.SIGKILL:
        process.communicate(timeout=PATIENCE)


def members(session: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            state, _, _, its_session = stat.rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                found.append(int(entry))
    return found


def workers(process: subprocess.Popen[str]) -> list[int]:
    """The worker processes of a run."""
    return [number for number in members(process.pid) if number != process.pid]


def wait_until(true: Callable[[], object], patience: float = PATIENCE) -> bool:
    """Wait until a condition holds, with a time limit; returns whether it does."""
    end = time.monotonic() + patience
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder; folders are listed with a slash and no bytes."""
    return {
        path.relative_to(folder).as_posix() + ("/" if path.is_dir() else ""): (
            b"" if path.is_dir() else path.read_bytes()
        )
        for path in folder.rglob("*")
    }


def temporaries(folder: Path) -> list[str]:
    """Half-written files below a folder."""
    return [name for name in contents(folder) if ".tmp" in name]


def library_text(size: int) -> str:
    """Some MB of text with a few repetitions: Python's standard library, as documents."""
    texts = []
    held = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text("utf-8", errors="replace")
        texts.append(text)
        held += len(text)
        if held > size:
            break
    return "<|endoftext|>".join(texts)[:size]


def words(count: int, seed: int) -> str:
    """Generated words that repeat neither each other nor themselves, in lines."""
    rng = random.Random(seed)
    made = [f"{rng.getrandbits(40):x}" for _ in range(count)]
    return "\n".join(" ".join(made[i : i + 8]) for i in range(0, count, 8))


def make_corpus(folder: Path, *, plain: int = 17 << 20, zipped: int = 6) -> Path:
    """A folder of three parts: a plain file makes two, and small compressed files share one."""
    folder.mkdir()
    text = library_text(2_000_000)
    documents = [words(4_000, seed) for seed in range(40)]
    some = text + "<|endoftext|>" + "<|endoftext|>".join(documents)
    whole = (some + "<|endoftext|>") * (plain // len(some) + 1)
    (folder / "plain.txt").write_text(whole[:plain])
    for i in range(zipped):
        data = "<|endoftext|>".join([text[i * 50_000 : i * 50_000 + 150_000], words(9_000, i)])
        with gzip.open(folder / f"zipped{i}.txt.gz", "wb", compresslevel=1) as file:
            file.write(data.encode() + b"<|endoftext|>a caf\xe9 to be repaired, number %d" % i)
    return folder
