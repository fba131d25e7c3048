"""Which tests execute which line of the package, child processes included.

Runs the whole suite once under coverage.py. A pytest plugin (this file) names the running test in
the environment, so a child process that the test starts records its lines under the same name.
Lines that run in a process that ends by SIGKILL are not seen.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CONTEXT = "TOKENMILL_RUNNING_TEST"
_BODY = 30  # lines
CONFIGURATION = """\
[run]
source_pkgs = tokenmill
data_file = {data}
context = ${{{context}-none}}
parallel = True
concurrency = thread,multiprocessing
patch = fork,_exit
sigterm = True
disable_warnings = no-data-collected,couldnt-parse,module-not-imported,module-not-measured
"""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    """Record what follows under the name of this test."""
    import coverage

    os.environ[CONTEXT] = item.nodeid
    current = coverage.Coverage.current()
    if current is not None:
        current.switch_context(item.nodeid)
    yield


class Reached:
    """Tests by the line that they reach, with the seconds that each takes."""

    def __init__(self, folder: Path) -> None:
        import coverage

        data = coverage.CoverageData(basename=str(folder / "lines"))
        data.read()
        lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for name in data.measured_files():
            # A child process without PYTHONPATH imports another copy of the same file.
            path = name[name.rfind("/src/tokenmill/") + 1 :]
            for line, tests in data.contexts_by_lineno(name).items():
                lines[path][line] |= {test.removeprefix("none|") for test in tests if "::" in test}
        self.lines = {
            path: {line: sorted(tests) for line, tests in found.items()}
            for path, found in lines.items()
        }
        self.seconds: dict[str, float] = defaultdict(float)
        for record in (folder / "seconds").read_text().splitlines():
            seconds, _, test = record.partition(" ")
            self.seconds[test] += float(seconds)

    def tests(self, path: str, line: int) -> list[str]:
        """The tests that execute this line, in the order in which to try them.

        Tests in a file named after the module come first, then those in a folder named after its
        package, then the others. In each of these, every test function runs once before any runs
        with other parameters, and fast ones run before slow ones.
        """
        package, stem = Path(path).parts[-2], Path(path).stem
        lines = self.lines.get(path, {})
        # Default values run at import, outside of any test: take the first lines of the body.
        near = (tests for place in range(line, line + _BODY) if (tests := lines.get(place)))
        found = sorted(next(near, []), key=lambda test: self.seconds[test])
        seen: Counter[str] = Counter()
        keys = {}
        for test in found:
            file, function = test.split("::", 1)
            is_far = stem not in Path(file).stem, package not in Path(file).parts
            name = f"{file}::{function.partition('[')[0]}"
            keys[test] = (sum(is_far), seen[name])
            seen[name] += 1
        return sorted(found, key=lambda test: keys[test])

    def files(self, path: str) -> list[str]:
        """Test files that execute any line of a module, those named after it first.

        For lines that run once, at import, and so belong to no test.
        """
        stem = Path(path).stem
        found = {
            test.split("::")[0] for tests in self.lines.get(path, {}).values() for test in tests
        }
        return sorted(found, key=lambda name: (stem not in name, name))


def record_reached(root: Path, folder: Path, workers: int, tests: list[str]) -> None:
    """Run the tests once, by default all, and keep their lines and durations in `folder`."""
    import coverage

    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("lines*"):
        old.unlink()
    configuration = folder / "coverage.ini"
    configuration.write_text(CONFIGURATION.format(data=folder / "lines", context=CONTEXT))
    environment = os.environ | {
        "COVERAGE_PROCESS_START": str(configuration),
        "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)]),
    }
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={configuration}", "-m", "pytest"]
    command += ["-n", str(workers), "-p", "tests.mutation.reached", "--durations=0", "-vv", *tests]
    start = time.monotonic()
    done = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True)
    took = [
        line.split() for line in done.stdout.splitlines() if "s call " in line or "s setup " in line
    ]
    (folder / "seconds").write_text(
        "".join(f"{words[0].rstrip('s')} {' '.join(words[2:])}\n" for words in took)
    )
    data = coverage.Coverage(config_file=str(configuration))
    data.combine([str(folder)], strict=True)
    data.save()
    last = done.stdout.strip().splitlines()[-1]
    print(f"Ran the tests once in {time.monotonic() - start:.0f} s: {last}")
