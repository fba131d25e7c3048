"""The command `python -m tests.lab.fuzz`; the package says what it does."""

from __future__ import annotations

import argparse
import base64
import json
import time
import zlib
from pathlib import Path

from . import __doc__ as _usage
from .campaign import Campaign, prepare_all
from .case import Case, Parser, write_files
from .forks import Failure, make_case, run_batch
from .minimize import minimize

_MOST_KEPT = 20_000  # bytes
FOUND = Path(__file__).with_name("found")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.fuzz",
        description=_usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parsers", nargs="*", help="parsers; all by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="run only this case, of one parser")
    parser.add_argument("--cases", type=int, default=100, help="cases of each parser")
    parser.add_argument("--minutes", type=float, help="run for this long instead")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--save", action="store_true", help="keep the case, minimized, in found/")
    parser.add_argument("--write", type=Path, help="write the files of the case to this folder")
    parser.add_argument("--found", action="store_true", help="run the kept cases")
    parser.add_argument("--sound", action="store_true", help="run the cases without changes")
    arguments = parser.parse_args()
    if arguments.case is not None:
        return run_one(arguments)
    if arguments.found:
        return run_found(arguments.parsers)
    if arguments.sound:
        return run_sound(arguments.parsers)
    return run_many(arguments)


def run_many(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    campaign = Campaign(arguments.seed, arguments.parsers, arguments.jobs)
    batches = campaign.count(arguments.cases)
    if arguments.minutes:
        batches = campaign.until(time.monotonic() + 60 * arguments.minutes)
    for batch, fresh in batches:
        for failure in fresh:
            show(failure)
            if arguments.save:
                keep(batch.parser, failure)
    seconds = time.monotonic() - started
    for name, cases in campaign.cases.items():
        failed = {
            cause: len(some) for (one, cause), some in campaign.failures.items() if one == name
        }
        rate = cases / max(campaign.seconds[name], 1e-3)
        print(f"{name:16} {cases:9,} cases  {rate:7,.0f}/s  {sum(failed.values()):6,} failures")
        for cause, count in failed.items():
            print(f"{'':16} {count:9,} {cause}")
    total = sum(campaign.cases.values())
    print(f"{total:,} cases in {seconds:.0f} s, {len(campaign.failures):,} causes of failures")
    return 1 if campaign.failures else 0


def show(failure: Failure) -> None:
    print(f"FAILED {failure.parser}: {failure.what}\n  {failure.command}", flush=True)


def run_one(arguments: argparse.Namespace) -> int:
    (name,) = arguments.parsers
    parser = prepare_all([name])[name]
    case = make_case(parser, arguments.seed, arguments.case)
    if arguments.write:
        write_files(arguments.write, case.files)
        print(json.dumps(case.facts))
    batch = run_batch(parser, arguments.seed, arguments.case, arguments.case + 1)
    for failure in batch.failures:
        show(failure)
    if not batch.failures:
        print("The case was read or refused, as it should be.")
    elif arguments.save:
        keep(parser, batch.failures[0])
    return 1 if batch.failures else 0


def keep(parser: Parser, failure: Failure) -> None:
    """Keep the minimized case of a failure in found/."""
    case = make_case(parser, failure.seed, failure.case)
    case = minimize(parser, case, failure.cause)
    keep_case(parser.name, failure.what.partition("\n")[0], case)


def keep_case(name: str, what: str, case: Case) -> None:
    """Keep a case in found/."""
    files = {
        key: base64.b85encode(zlib.compress(data, 9)).decode() for key, data in case.files.items()
    }
    text = json.dumps(
        {
            "parser": name,
            "what": what,
            "facts": case.facts,
            "files": files,
        },
        indent=1,
    )
    if len(text) > _MOST_KEPT:
        print(f"Not kept: {len(text):,} bytes are too many.")
        return
    path = FOUND / f"{name}-{zlib.crc32(text.encode()):08x}.json"
    FOUND.mkdir(exist_ok=True)
    path.write_text(text + "\n")
    print(f"Kept as {path}, {len(text):,} bytes.")


def read_found(names: list[str] | None = None) -> dict[str, list[tuple[str, Case]]]:
    """The kept cases of each parser, with their file names."""
    found: dict[str, list[tuple[str, Case]]] = {}
    for path in sorted(FOUND.glob("*.json")):
        body = json.loads(path.read_text())
        files = {
            key: zlib.decompress(base64.b85decode(data)) for key, data in body["files"].items()
        }
        if not names or body["parser"] in names:
            found.setdefault(body["parser"], []).append((path.name, Case(files, body["facts"])))
    return found


def run_sound(names: list[str]) -> int:
    """Every sound file must be accepted, or its mutations would be refused for the wrong reason."""
    failures = 0
    for parser in prepare_all(names).values():
        cases = [Case(one.files, {**one.facts, "intact": True}) for one in parser.list_sound()]
        for failure in run_batch(parser, 0, 0, len(cases), cases).failures:
            failures += 1
            print(f"FAILED sound case {failure.case} of {parser.name}: {failure.what}")
        print(f"{parser.name}: {len(cases)} sound cases")
    return 1 if failures else 0


def run_found(names: list[str]) -> int:
    found = read_found(names)
    failures = 0
    for name, parser in prepare_all(list(found)).items() if found else ():
        cases = [case for _, case in found[name]]
        for failure in run_batch(parser, 0, 0, len(cases), cases).failures:
            failures += 1
            print(f"FAILED {found[name][failure.case][0]}: {failure.what}")
    print(f"{sum(map(len, found.values())):,} kept cases, {failures:,} failures")
    return 1 if failures else 0
