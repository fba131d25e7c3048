"""Fuzzing guided by coverage: libFuzzer, through atheris, keeps changes that reach new branches.

    python -m tests.lab.guided PARSER SECONDS SEED FOLDER     one parser, in this process

One file of a parser's sound files is changed; what must hold is what `tests.lab.fuzz` checks. A case that
fails is kept in `tests/lab/fuzz/found`. Without atheris, which is not among the requirements, this part
is skipped. Only parsers that work within one process take part.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import results
from .fuzz import limit_threads
from .watcher import Watcher

PARSERS = (
    "manifest sources tables npy-header loader-state checkpoint metrics configuration npy llmc megatron "
    "datatrove olmo mds litdata nanogpt raw jsonl text gzip zstd bz2 xz parquet"
).split()
_SECONDS = 15  # for one file
_COUNT = re.compile(r"stat::number_of_executed_units: (\d+)|^#(\d+)\t", re.MULTILINE)
_FAILED = 70  # exit status of a child that has described its failure


def run(deadline: float, seed: int, watcher: Watcher) -> None:
    """Fuzz the files of one parser after another."""
    if importlib.util.find_spec("atheris") is None:
        watcher.say("skipped: needs atheris")
        return
    rng = random.Random(seed)
    while time.monotonic() < deadline:
        for name in rng.sample(PARSERS, len(PARSERS)):
            if (left := deadline - time.monotonic()) < 1:
                return
            cases, wrong = run_parser(name, min(_SECONDS, int(left) + 1), rng.randrange(1 << 31))
            watcher.advance(f"guided {name}", cases)
            results.record("fuzzing", name, "guided by coverage", cases, int(bool(wrong)), seed)
            if wrong:
                watcher.fail(f"python -m tests.lab.fuzz {name} --found", f"{name}: {wrong}")


def run_parser(name: str, seconds: int, seed: int) -> tuple[int, str | None]:
    """Fuzz a file of a parser in a child; returns the number of cases, and what is wrong."""
    from .fuzz.forks import make_folder

    folder = make_folder()
    command = [sys.executable, "-m", "tests.lab.guided", name, str(seconds), str(seed), str(folder)]
    try:
        child = subprocess.run(command, cwd=results.ROOT, capture_output=True, text=True)
        counts = [int(one or other) for one, other in _COUNT.findall(child.stderr)]
        cases = max(counts, default=0)
        if child.returncode == 0:
            return cases, None
        if child.returncode == _FAILED:
            return cases, (folder / "failure").read_text()
        return cases, _keep_artifact(folder, name, child)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _keep_artifact(folder: Path, name: str, child: subprocess.CompletedProcess[str]) -> str:
    """Keep the input that ended the process, which libFuzzer has written; returns what happened."""
    from .fuzz.case import Case
    from .fuzz.command import keep_case

    status = child.returncode
    what = f"status {status}" if status > 0 else signal.Signals(-status).name
    lines = [line for line in child.stderr.splitlines() if "ERROR: libFuzzer" in line]
    what = f"the process ended with {what}: {lines[-1] if lines else child.stderr[-300:]}"
    for artifact in folder.glob("*-*"):
        sound = json.loads((folder / "sound").read_text())
        files = {key: bytes.fromhex(data) for key, data in sound["files"].items()}
        files[sound["file"]] = artifact.read_bytes()
        keep_case(name, what, Case(files, sound["facts"]))
    return what


def main(name: str, seconds: str, seed: str, where: str) -> None:
    """Fuzz a file of a parser in this process, until the time is over or a case fails."""
    limit_threads()
    import atheris

    with atheris.instrument_imports(include=["tokenmill"]):
        from .fuzz.campaign import prepare_all
        from .fuzz.case import Case, TokenmillError, empty_folder
        from .fuzz.command import keep_case

        parser = prepare_all([name])[name]
    folder, rng = Path(where), random.Random(int(seed))
    sound = rng.choice(parser.list_sound())
    file = rng.choice(sorted(sound.files))
    files = {key: data.hex() for key, data in sound.files.items()}
    described = {"file": file, "facts": sound.facts, "files": files}
    (folder / "sound").write_text(json.dumps(described))
    (folder / "corpus").mkdir()
    (folder / "corpus" / "sound").write_bytes(sound.files[file])

    def check(data: bytes) -> None:
        case = Case({**sound.files, file: data}, dict(sound.facts))
        empty_folder(folder / "case")
        try:
            parser.check(case, folder / "case")
        except TokenmillError:
            pass
        except BaseException as error:
            what = f"{type(error).__name__}: {str(error)[:200]}"
            (folder / "failure").write_text(what)
            keep_case(name, what, case)
            os._exit(_FAILED)
        finally:
            os.chdir("/")

    options: dict[str, Any] = {"seed": seed, "max_total_time": seconds, "timeout": 5}
    options |= {"rss_limit_mb": 1500, "artifact_prefix": f"{folder}/", "print_final_stats": 1}
    flags = [f"-{key}={value}" for key, value in options.items()]
    atheris.Setup([sys.argv[0], *flags, str(folder / "corpus")], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
