"""Run commands in forks of this process, under faults, and judge what they leave.

A bench has one folder for each scenario, in memory if the machine has /dev/shm. Before each case the
folder is reset to the scenario's inputs; afterwards every byte in it is compared with an undisturbed
run. Forks save the start of Python and its imports. Worker processes of `prepare` are forks as well,
except in every tenth case, in which they are fresh interpreters as always.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import control, results
from .control import Control, Fault
from .processes import Ended, Limits, Process

Contents = dict[str, bytes]
Normalize = Callable[
    [str, bytes], bytes | None
]  # removes times; None is a file that does not count
_PREFIX = "tokenmill-lab-"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A command with its inputs. It runs in a folder with these inputs and nothing else.

    With a `program`, the arguments only name what it does.
    """

    name: str
    arguments: tuple[str, ...]
    make_inputs: Callable[[Bench, Path], None]
    set_up: Callable[[], None] = lambda: None  # in the fork, before the command
    normalize: Normalize = lambda _, data: data
    slow: bool = False  # takes seconds
    program: Callable[[], None] | None = None  # runs instead of the command


@dataclass
class Bench:
    """Where scenarios run."""

    seed: int = 0
    real_workers: bool | None = None  # None: in every tenth case
    root: Path = field(init=False)

    def __post_init__(self) -> None:
        assert control.is_preloaded()
        memory = Path("/dev/shm")
        place = memory if os.access(memory, os.W_OK) else None
        _remove_old(place or Path(tempfile.gettempdir()))
        prefix = f"{_PREFIX}{os.getpid()}-"
        self.root = Path(tempfile.mkdtemp(prefix=prefix, dir=place)).resolve()
        self.random = random.Random(self.seed)
        self.control = Control(self.root / "control")
        self.trace = self.root / "trace"
        self._expected: dict[str, Contents] = {}
        self._counts: dict[str, dict[str, int]] = {}
        self._seconds: dict[str, float] = {}
        self._modules: dict[str, list[str]] = {}
        self._ending: list[Callable[[], object]] = []
        self._runs = 0

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ending:
            end()
        shutil.rmtree(self.root, ignore_errors=True)

    def at_end(self, end: Callable[[], object]) -> None:
        """Call a function when the bench is cleared."""
        self._ending.append(end)

    def folder(self, scenario: Scenario) -> Path:
        """Where a scenario runs."""
        return self.root / "work" / scenario.name

    def reset(self, scenario: Scenario) -> None:
        """Leave only the inputs of a scenario in its folder."""
        inputs = self.root / "inputs" / scenario.name
        if not inputs.exists():
            inputs.mkdir(parents=True)
            scenario.make_inputs(self, inputs)
        folder = self.folder(scenario)
        _remove(folder)
        shutil.copytree(inputs, folder)

    def restore_times(self, scenario: Scenario) -> None:
        """Give the inputs in the folder of a scenario their times: a change would be refused."""
        inputs = self.root / "inputs" / scenario.name
        for path in inputs.rglob("*"):
            about, copy = path.stat(), self.folder(scenario) / path.relative_to(inputs)
            if copy.exists():
                os.utime(copy, ns=(about.st_atime_ns, about.st_mtime_ns))

    def start(
        self,
        scenario: Scenario,
        *,
        armed: bool = False,
        alone: bool = False,
        limits: Limits | None = None,
        real_workers: bool | None = None,
        modules: Path | None = None,
        fresh: bool = False,
    ) -> Process:
        """Start the command of a scenario in its folder. If `armed`, it meets the faults.

        If `alone`, the programs that it starts do not meet them. If `fresh`, it runs in a new
        interpreter.
        """
        if real_workers is None:
            real_workers = self.real_workers
        if real_workers is None:
            real_workers = self._runs % 10 == 9
        self._runs += 1

        def run() -> int:
            from tokenmill.cli import main

            if not real_workers:
                fork_workers()
            scenario.set_up()
            faulthandler.enable()
            os.environ["PYTHONFAULTHANDLER"] = "1"
            control.attach(self.control.path if armed else None, alone=alone)
            (limits or Limits()).set()
            if fresh:
                os.environ["OPENBLAS_NUM_THREADS"] = "1"
                command = [sys.executable, *_find_program(scenario)]
                os.execv(command[0], command)
            program = scenario.program
            status = run_program(program) if program else main(scenario.arguments)
            if modules is not None:
                modules.write_text("\n".join(sys.modules))
            return status

        return Process(run, self.folder(scenario), self.root / f"output{self._runs % 8}")

    def run(self, scenario: Scenario, **options: Any) -> Ended:
        """Run the command of a scenario to its end."""
        return self.start(scenario, **options).wait()

    def found(self, scenario: Scenario) -> Contents:
        """Every file in the folder of a scenario; folders are listed with a slash."""
        return read_folder(self.folder(scenario), scenario.normalize)

    def expected(self, scenario: Scenario) -> Contents:
        """Every file after an undisturbed run."""
        if scenario.name not in self._expected:
            modules = self.root / "modules"
            self.reset(scenario)
            ended = self.run(scenario, modules=modules, real_workers=False)
            assert ended.status == 0, f"{scenario.name}: {ended.stderr}"
            first = self.found(scenario)
            self._modules[scenario.name] = modules.read_text().split("\n")
            _import_all(self._modules[scenario.name])
            self.reset(scenario)
            self.control.arm(self.folder(scenario))
            started = time.monotonic()
            ended = self.run(scenario, armed=True, real_workers=False)
            assert ended.status == 0, f"{scenario.name}: {ended.stderr}"
            self._seconds[scenario.name] = time.monotonic() - started
            same = difference(first, self.found(scenario))
            assert same is None, f"{scenario.name}: two undisturbed runs differ: {same}"
            self._expected[scenario.name] = first
            self._counts[scenario.name] = self.control.counts
        return self._expected[scenario.name]

    def counts(self, scenario: Scenario) -> dict[str, int]:
        """The number of calls of each operation in an undisturbed run."""
        self.expected(scenario)
        return self._counts[scenario.name]

    def modules(self, scenario: Scenario) -> list[str]:
        """The modules that the command loaded in an undisturbed run."""
        self.expected(scenario)
        return self._modules[scenario.name]

    def seconds(self, scenario: Scenario) -> float:
        """How long an undisturbed run took."""
        self.expected(scenario)
        return self._seconds[scenario.name]

    def compare(self, scenario: Scenario) -> str | None:
        """How the folder differs from that of an undisturbed run; None if it does not."""
        return difference(self.expected(scenario), self.found(scenario))

    def check_success(self, scenario: Scenario) -> str | None:
        """What is wrong after a command that reported success.

        It may leave a file behind that it could not remove, if the same command removes it.
        """
        expected, found = self.expected(scenario), self.found(scenario)
        kept = {name: data for name, data in found.items() if name in expected}
        if different := difference(expected, kept):
            return f"it ended as success, but {different}"
        return self.resume(scenario) if found != expected else None

    def resume(self, scenario: Scenario) -> str | None:
        """Run the command again; returns what is wrong afterwards."""
        ended = self.run(scenario)
        if ended.status != 0:
            return (
                f"the same command did not resume: status {ended.status}, {shorten(ended.stderr)}"
            )
        different = self.compare(scenario)
        return different and f"after resuming, {different}"


def _find_program(scenario: Scenario) -> tuple[str, ...]:
    """What a fresh interpreter runs."""
    if scenario.program is None:
        return ("-m", "tokenmill.cli", *scenario.arguments)
    paths = (str(results.ROOT), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    lines = (
        "from tests.lab.bench import run_program",
        "from tests.lab.scenarios import SCENARIOS",
        f"one = SCENARIOS[{scenario.name!r}]",
        "raise SystemExit(run_program(one.set_up) or run_program(one.program))",
    )
    return ("-c", "\n".join(lines))


def run_program(program: Callable[[], object]) -> int:
    """Run a function as a command would; returns the exit status."""
    from tokenmill.cli.failures import report

    try:
        program()
    except BaseException as error:
        return report(error)
    return 0


def fork_workers() -> None:
    """Have the workers of `prepare` be forks, not fresh interpreters."""
    from tokenmill.preparation import engine

    class Forked:
        DEVNULL = subprocess.DEVNULL

        class Popen:
            def __init__(self, command: list[str], pass_fds: list[int], **_: object) -> None:
                self._status: int | None = None
                self.pid = os.fork()
                if self.pid == 0:
                    for number in set(range(3, 256)) - set(pass_fds):
                        with suppress(OSError):
                            os.close(number)
                    try:
                        engine.serve(int(command[-1]))
                    except BaseException:
                        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
                    finally:
                        os._exit(1)

            def kill(self) -> None:
                if self._status is None:
                    os.kill(self.pid, signal.SIGKILL)

            def wait(self) -> int:
                if self._status is None:
                    self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                return self._status

    engine.subprocess = Forked  # type: ignore[assignment]


def read_folder(folder: Path, normalize: Normalize) -> Contents:
    """Every file below a folder; folders are listed with a slash, links with their target."""
    found: dict[str, bytes | None] = {}
    for where, folders, files in os.walk(folder):
        inside = Path(where)
        for name in folders:
            shown = (inside / name).relative_to(folder).as_posix() + "/"
            found[shown] = normalize(shown, b"")
        for name in files:
            path = inside / name
            data = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            shown = path.relative_to(folder).as_posix()
            found[shown] = normalize(shown, data)
    return {name: data for name, data in found.items() if data is not None}


def difference(expected: Contents, found: Contents) -> str | None:
    """How two folders differ, in words.

    >>> difference({"a": b"x", "b": b""}, {"a": b"y", "c": b""})
    'b is missing; c is left behind; a has other bytes (1, expected 1)'
    """
    said = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    said += [f"{name} is left behind" for name in sorted(found.keys() - expected.keys())]
    said += [
        f"{name} has other bytes ({len(found[name])}, expected {len(expected[name])})"
        for name in sorted(expected.keys() & found.keys())
        if expected[name] != found[name]
    ]
    return "; ".join(said[:5]) or None


def judge(bench: Bench, scenario: Scenario, fault: Fault, ended: Ended) -> str | None:
    """What is wrong after a fault: with how the command ended, with the bytes, or with resuming."""
    what = fault.what.removesuffix("+")
    if ended.status is None:
        return "the command hangs"
    if ended.status == 0:
        # What is kept beside a dataset may be lost: it is computed again.
        is_kept = "/.tokenmill/" in bench.control.place
        if what in ("EIO", "ENOSPC") and fault.operation == "fsync" and not is_kept:
            return f"a failed fsync of {bench.control.place} ended as success"
        return bench.check_success(scenario)
    killed = what in ("kill", "tear", "die")
    if what in ("EINTR", "short") or what.endswith("ms"):
        return f"status {ended.status} instead of success: {shorten(ended.stderr)}"
    if not ended.is_clean_error and not (killed and ended.status == -signal.SIGKILL):
        return f"status {ended.status} without a clear error: {shorten(ended.stderr)}"
    return bench.resume(scenario)


def shorten(text: str) -> str:
    """The end of an output, in one line."""
    return " | ".join(text.strip().splitlines()[-6:])[-600:] or "no output"


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _import_all(names: list[str]) -> None:
    """Import what the command imported, so that forks need not."""
    for name in names:
        if name not in sys.modules and not name.startswith(("__mp_main__", "tests")):
            with suppress(BaseException):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _remove_old(place: Path) -> None:
    """Remove the folders of benches that were killed."""
    for folder in place.glob(f"{_PREFIX}*-*/"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            shutil.rmtree(folder, ignore_errors=True)
