"""Change the package in one small place at a time, and see whether the tests notice.

    python -m tests.mutation [--mutants 400] [--seed 1] [--minutes 60] [--only load store]

A seed picks the mutants, each package in proportion to its size. For each, the tests that execute
the changed line run, nearest and fastest first, until one fails. Outcomes add up in results.json:
a mutant whose function has not changed since is not tried again. `reasons.json` says of survivors
that are equivalent, or that no test should notice, why.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutation.reached import Reached, record_reached
from tests.mutation.sites import Mutant, apply, find_mutants

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SOURCE = ROOT / "src/tokenmill"
RESULTS = HERE / "results.json"
REASONS = HERE / "reasons.json"
MEMORY = 12 << 30  # bytes of address space; a mutant may loop and allocate
MARK = "TOKENMILL_MUTANT"


def main() -> None:
    """Sample mutants, try them, and print those that no test noticed."""
    arguments = _parse()
    cache = ROOT / ".mutation"
    trees = [_copy_tree(cache / f"tree{index}") for index in range(arguments.workers)]
    if arguments.map is not None or not (cache / "seconds").exists():
        print("Running the tests once to see which of them reaches which line.", flush=True)
        record_reached(trees[0], cache, arguments.workers, arguments.map or [])
    reached = Reached(cache)
    outcomes = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    chosen = sample(arguments.mutants, arguments.seed, arguments.only)
    reasons = _read_reasons()
    known = {
        name
        for name, found in outcomes.items()
        if not arguments.again or name in reasons or found["outcome"] in ("killed", "hung")
    }
    left = [m for m in chosen if m.name not in known]
    print(f"{len(chosen)} mutants, {len(left)} to try", flush=True)
    deadline = time.monotonic() + 60 * arguments.minutes
    trial = _Trial(reached, outcomes, len(left), deadline, arguments.budget)
    with ThreadPoolExecutor(arguments.workers) as pool:
        free = list(trees)
        for future in [pool.submit(trial.run, mutant, free) for mutant in left]:
            future.result()
    forget_false_alarms(outcomes, {m.name for m in left} & outcomes.keys(), trees[0])
    report(outcomes)


def sample(count: int, seed: int, only: list[str]) -> list[Mutant]:
    """The same mutants for the same seed and source, spread over all packages."""
    chance = random.Random(seed)
    packages: dict[str, list[Mutant]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE)
        package = name.parts[0]
        if not only or package in only or name.as_posix() in only:
            packages.setdefault(package, []).extend(find_mutants(ROOT, path))
    total = sum(map(len, packages.values()))
    chosen = []
    for mutants in packages.values():
        share = min(len(mutants), max(1, round(count * len(mutants) / max(1, total))))
        chosen += chance.sample(mutants, share)
    chance.shuffle(chosen)
    return chosen


class _Trial:
    """Mutants tried by several threads, each with a copy of the tree."""

    def __init__(
        self,
        reached: Reached,
        outcomes: dict[str, dict[str, str]],
        total: int,
        deadline: float,
        budget: float,
    ) -> None:
        self.reached = reached
        self.outcomes = outcomes
        self.total = total
        self.deadline = deadline
        self.budget = budget
        self.done = 0
        self.lock = threading.Lock()

    def run(self, mutant: Mutant, free: list[Path]) -> None:
        if time.monotonic() > self.deadline:
            return
        with self.lock:
            tree = free.pop()
        start = time.monotonic()
        try:
            outcome, by = self._try(mutant, tree)
        finally:
            with self.lock:
                free.append(tree)
        with self.lock:
            self.done += 1
            self.outcomes[mutant.name] = {"mutant": str(mutant), "outcome": outcome, "by": by}
            _write(self.outcomes)
            seconds = time.monotonic() - start
            print(
                f"{self.done}/{self.total} {outcome:9} {seconds:4.0f} s  {mutant.name} {mutant}",
                flush=True,
            )

    def _try(self, mutant: Mutant, tree: Path) -> tuple[str, str]:
        """The outcome, and the test that failed."""
        tests, expected = self._tests(mutant)
        if not tests:
            return "unreached", ""
        path = tree / mutant.path
        text = path.read_text(encoding="utf-8")
        path.write_text(apply(text, mutant), encoding="utf-8")
        try:
            status, failed = _run_tests(tree, tests, 3 * expected + 30, mutant.name, "-x")
        finally:
            path.write_text(text, encoding="utf-8")
        outcome = {None: "hung", 0: "survived", 4: "no tests", 5: "no tests"}.get(status, "killed")
        return outcome, failed[0] if failed else ""

    def _tests(self, mutant: Mutant) -> tuple[list[str], float]:
        found = self.reached.tests(mutant.path, mutant.line)
        if not found:
            return self.reached.files(mutant.path)[:3], self.budget
        chosen: list[str] = []
        expected = 0.0
        for test in found:
            if chosen and expected + self.reached.seconds[test] > self.budget:
                continue
            chosen.append(test)
            expected += self.reached.seconds[test]
            if len(chosen) == 1000:
                break
        return chosen, expected


def _run_tests(
    tree: Path, tests: list[str], seconds: float, name: str, *options: str
) -> tuple[int | None, list[str]]:
    """Run tests; returns the status of pytest, None if they hang, and the tests that failed."""
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as scratch:
        (Path(scratch) / "tests").write_text("\n".join(tests))
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": scratch,
            MARK: f"{os.getpid()}-{name}",
        }
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=no", "-rfE"]
        with (Path(scratch) / "output").open("w+") as output:
            run = subprocess.Popen(
                [*command, *options, f"@{scratch}/tests"],
                cwd=tree,
                env=environment,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
            )
            try:
                status: int | None = run.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end_all(f"{MARK}={os.getpid()}-{name}")
                run.wait()
            output.seek(0)
            lines = output.read().splitlines()
    said = [line.split(" ", 1)[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return status, [line.split(" - ", 1)[0] for line in said]


def forget_false_alarms(outcomes: dict[str, dict[str, str]], names: set[str], tree: Path) -> None:
    """Run the tests that noticed these mutants without any mutant; one that fails is not counted."""
    tests = sorted({outcomes[name]["by"] for name in names if outcomes[name]["by"]})
    if not tests:
        return
    print(f"Running the {len(tests)} tests that noticed a mutant without one.", flush=True)
    failed = _run_tests(tree, tests, 3600, "none")[1]
    for name in sorted(names):
        if outcomes[name]["by"] in failed:
            print(f"{outcomes[name]['by']} fails without a mutant: {outcomes[name]['mutant']}")
            del outcomes[name]
    _write(outcomes)


def _read_reasons() -> dict[str, str]:
    """Why no test notices a mutant, by its name."""
    return json.loads(REASONS.read_text()) if REASONS.exists() else {}


def _write(outcomes: dict[str, dict[str, str]]) -> None:
    text = json.dumps(outcomes, indent=1, sort_keys=True, ensure_ascii=False)
    RESULTS.write_text(text + "\n")


def _end_all(mark: str) -> None:
    """End the processes of one trial, those included that left its group."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue


def _copy_tree(tree: Path) -> Path:
    """A copy of the files under version control, without history."""
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def report(outcomes: dict[str, dict[str, str]]) -> None:
    """Print the share of mutants of today's source that tests noticed, and each that they did not."""
    reasons = _read_reasons()
    names = {m.name for path in SOURCE.rglob("*.py") for m in find_mutants(ROOT, path)}
    tried = [name for name in outcomes if name in names and outcomes[name]["outcome"] != "no tests"]
    noticed = [name for name in tried if outcomes[name]["outcome"] in ("killed", "hung")]
    survivors = [name for name in tried if name not in noticed]
    for name in sorted(survivors, key=lambda name: outcomes[name]["mutant"]):
        print(
            f"{name} {outcomes[name]['outcome']}: {outcomes[name]['mutant']}\n    {reasons.get(name, '?')}"
        )
    excused = [name for name in survivors if name in reasons]
    counted = len(tried) - len(excused)
    print(
        f"{len(tried)} mutants: {len(noticed)} noticed, {len(survivors)} survived, of which"
        f" {len(excused)} are equivalent or explained. {len(noticed) / max(1, counted):.1%} of the rest noticed."
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--mutants", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests for one mutant")
    parser.add_argument(
        "--only", nargs="*", default=[], help="packages or files: load, store/frames.py"
    )
    parser.add_argument("--again", action="store_true", help="also try mutants again that survived")
    parser.add_argument(
        "--map",
        nargs="*",
        metavar="TESTS",
        help="see which test, of all or these, reaches which line",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
