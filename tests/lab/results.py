"""Add up the cases of all runs of the laboratory, and write the table of docs/reliability.md.

    python -m tests.lab.results

Several processes may add results at the same time: the file is locked while it is changed.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(os.environ.get("LAB_RESULTS", Path(__file__).with_name("results.json")))
PAGE = ROOT / "docs" / "reliability.md"
_SWEEP = ("calls", "done", "failed", "sweeps")


def record(kind: str, scenario: str, fault: str, cases: int, failures: int, seed: int) -> None:
    """Add cases to the results.

    `kind` is the part of the laboratory ("faults", "fuzzing"), `scenario` the command or the parser,
    `fault` what was done to it ("write EIO", "flipped bits"). `seed` is kept if there are failures.
    """
    with _changing() as results:
        key = f"{kind}|{scenario}|{fault}"
        entry = results["cases"].setdefault(key, {"cases": 0, "failures": 0})
        entry["cases"] += cases
        entry["failures"] += failures
        if failures:
            entry["seeds"] = sorted({*entry.get("seeds", []), seed})[-20:]


def record_sweep(scenario: str, fault: str, calls: int, done: int, failed: int) -> None:
    """Note how many calls of a scenario a sweep has come through, and how many of them failed.

    `done` counts from the first call. `failed` is the number since the last note: a call that was
    not made again cannot fail.
    """
    with _changing() as results:
        entry = results["sweeps"].setdefault(f"{scenario}|{fault}", dict.fromkeys(_SWEEP, 0))
        entry["calls"] = calls
        entry["done"] = done % max(1, calls)
        entry["failed"] = entry.get("failed", 0) + failed
        entry["sweeps"] += done >= calls


def record_code(scenario: str, modules: Iterable[str]) -> None:
    """Note which modules of tokenmill a scenario loads. Sweeps of other code are forgotten.

    A process that ran other scenarios before has loaded more modules: those do not count that a
    scenario did without.
    """
    names = {name for name in modules if name.partition(".")[0] == "tokenmill"}
    with _changing() as results:
        was = results.setdefault("code", {}).get(scenario)
        if was is not None and was["digest"] == digest_code(was["modules"]):
            names &= set(was["modules"])
        else:
            _forget_sweeps(results, scenario)
        needed = sorted(names)
        results["code"][scenario] = {"modules": needed, "digest": digest_code(needed)}


def forget_changed() -> None:
    """Forget the sweeps of scenarios whose code has changed since they were swept."""
    with _changing() as results:
        code = results.setdefault("code", {})
        for scenario in {key.split("|")[0] for key in results["sweeps"]}:
            was = code.get(scenario)
            if was is None or was["digest"] != digest_code(was["modules"]):
                _forget_sweeps(results, scenario)


def _forget_sweeps(results: dict[str, dict[str, Any]], scenario: str) -> None:
    for key in [key for key in results["sweeps"] if key.split("|")[0] == scenario]:
        del results["sweeps"][key]


def digest_code(modules: Iterable[str]) -> str:
    """A hash of the statements of modules; comments, docstrings and texts of errors may change."""
    digest = hashlib.sha256()
    for name in modules:
        path = ROOT / "src" / name.replace(".", "/")
        found = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()]
        tree = ast.parse(found[0].read_text() if found else "")
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value = ast.Constant(None)
            for text in ast.walk(node) if isinstance(node, ast.Raise) else ():
                if isinstance(text, ast.JoinedStr):
                    text.values = [
                        one for one in text.values if isinstance(one, ast.FormattedValue)
                    ]
                elif isinstance(text, ast.Constant) and isinstance(text.value, str):
                    text.value = ""
        digest.update(f"{name} {ast.dump(tree)}\n".encode())
    return digest.hexdigest()[:16]


def find_sweep(scenario: str, fault: str, results: dict[str, dict[str, Any]]) -> tuple[int, int]:
    """How often all calls have failed with this fault, and how many in the sweep under way."""
    entry = results["sweeps"].get(f"{scenario}|{fault}", dict.fromkeys(_SWEEP, 0))
    return int(entry["sweeps"]), int(entry["done"])


def read() -> dict[str, dict[str, Any]]:
    """The results so far."""
    try:
        return json.loads(RESULTS.read_bytes())  # type: ignore[no-any-return]
    except FileNotFoundError:
        return {"cases": {}, "sweeps": {}}


def write_between(name: str, text: str) -> None:
    """Write text between the markers of this name in the page."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = PAGE.read_text().partition(start)
    _, _, after = rest.partition(end)
    PAGE.write_text(f"{before}{start}\n{text}\n{end}{after}")


def make_table(results: dict[str, dict[str, Any]]) -> str:
    """The cases of each kind for each scenario, in Markdown."""
    kinds = sorted({key.split("|")[0] for key in results["cases"]})
    rows: dict[str, Counter[str]] = {}
    for key, entry in sorted(results["cases"].items()):
        kind, scenario, _ = key.split("|", 2)
        for row in (rows.setdefault(scenario, Counter()), rows.setdefault("all", Counter())):
            row[kind] += entry["cases"]
            row["failures"] += entry["failures"]
    columns = [*kinds, "failures"]
    heads = ["scenario", "calls failed once", *columns]
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for scenario in sorted(rows, key=lambda name: (name == "all", "fuzzing" in rows[name], name)):
        cells = [f"{rows[scenario][column]:,}" for column in columns]
        lines.append(f"| {scenario} | {_first_sweep(results, scenario)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _first_sweep(results: dict[str, dict[str, Any]], scenario: str) -> str:
    """How many of the calls of a scenario failed in the sweep that fails each one once."""
    found = [
        entry
        for key, entry in results["sweeps"].items()
        if key.endswith(" each") and scenario in (key.split("|")[0], "all")
    ]
    failed, calls = (sum(entry[name] for entry in found) for name in ("failed", "calls"))
    return f"{min(failed, calls):,} of {calls:,}" if found else ""


@contextmanager
def _changing() -> Iterator[dict[str, dict[str, Any]]]:
    lock = os.open(RESULTS.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = read()
        yield results
        temporary = RESULTS.with_suffix(".tmp")
        temporary.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        temporary.replace(RESULTS)
    finally:
        os.close(lock)


if __name__ == "__main__":
    write_between("lab", make_table(read()))
