"""Search tokens for text, against `grep -F` over the decoded text, and with an index of words.

The data are GPT-2 ids of the Python installation's source code and of generated prose, with some
text in other scripts; and, for the table of prose, of generated prose alone, where a token is more
text. Both sides read from the page cache. Each search runs several times in a row,
alternating with grep; the table has the fastest run of each. The number of occurrences is compared
with grep's (`grep -c` counts lines, `grep -o` occurrences).

    python benchmarks/search.py [--bytes 600000000]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corpus import make_corpus
from results import record

import tokenmill
from tokenmill.inspect.search.search import count_matches
from tokenmill.inspect.search.vocabulary import Vocabulary

SCRIPTS = "\nThe lighthouse keeper wrote: 我们今天去公园看花。 Then: السلام عليكم يا صديقي. Finally 🎉🙂 done. \n"
QUERIES = {
    "rare word": "lighthouse",
    "common word": "return",
    "very common word": " the",
    "phrase": "in the middle of the",
    "no hit": "qwertyuiop zxcvbnm",
    "no hit, short": "Qz7",
    "Chinese": "公园看花",
    "Arabic": "السلام عليكم",
    "emoji": "🎉🙂",
    "code": "def __init__(self",
}
RUNS = 7


def make_data(folder: Path, size: int, kind: str = "mixed") -> None:
    """Make a dataset in `folder/data`, and its decoded text in `folder/all.txt`, unless there is one."""
    if (folder / "all.txt").exists():
        return
    paths = make_corpus(folder / "texts", size, kind)
    for number, path in enumerate(paths):
        data = path.read_bytes()
        middle = data.index(b"\n", len(data) // 2)
        path.write_bytes(data[:middle] + SCRIPTS.encode() * (number + 1) + data[middle:])
    tokenmill.prepare(folder / "texts", folder / "data", val_fraction=0, dedup="none")
    dataset = tokenmill.open(folder / "data")
    vocabulary = Vocabulary(dataset.tokenizer.spellings() or ())
    tokens = dataset["train"]
    with (folder / "all.txt").open("wb") as file:
        for start in range(0, len(tokens), 1 << 20):
            file.write(vocabulary.join(tokens[start : start + (1 << 20)])[0])


def time_best(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return the shortest time of some runs, the least CPU time, both in seconds, and the result."""
    times, used, result = [], [], None
    for _ in range(RUNS):
        started, before = time.perf_counter(), measure_cpu()
        result = call()
        times.append(time.perf_counter() - started)
        used.append(measure_cpu() - before)
    return min(times), min(used), result


def measure_cpu() -> float:
    """Return the CPU time of this process and of finished children, in seconds."""
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


def grep(text: Path, wanted: str, flag: str) -> int:
    """Return how many lines (`-c`), or else occurrences (`-ob`), grep finds."""
    command = ["grep", "-aF", flag, "--", wanted, str(text)]
    environment = {**os.environ, "LC_ALL": "C"}
    if flag == "-c":
        found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
        return int(found.stdout)
    lines = 0
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while block := process.stdout.read(1 << 20):
            lines += block.count(b"\n")
    return lines


def measure_peak(data: Path, wanted: str) -> float:
    """Return how much memory a search takes in a fresh process, in MB."""
    code = (
        "import sys, pathlib\n"
        "from tokenmill.inspect.search.search import count_matches\n"
        "count_matches(sys.argv[1], sys.argv[2], use_index=False)\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "print(int(status.partition('VmHWM:')[2].split()[0]) / 1024)"
    )
    command = [sys.executable, "-c", code, str(data), wanted]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def describe(folder: Path) -> dict[str, Any]:
    """Return the size of the text, and how many bytes of it a token is."""
    size = (folder / "all.txt").stat().st_size
    tokens = len(tokenmill.open(folder / "data")["train"])
    return {"text_bytes": size, "bytes_per_token": round(size / tokens, 2)}


def compare(folder: Path) -> list[dict[str, Any]]:
    """Search for each query with both, without an index."""
    dataset = tokenmill.open(folder / "data")
    text = folder / "all.txt"
    size = text.stat().st_size
    text.read_bytes()  # into the page cache
    rows = []
    for what, wanted in QUERIES.items():
        ours, our_cpu, count = time_best(
            lambda: count_matches(dataset, wanted, use_index=False)["train"]  # noqa: B023
        )
        lines, their_cpu, _ = time_best(lambda: grep(text, wanted, "-c"))  # noqa: B023
        started = time.perf_counter()
        expected = grep(text, wanted, "-ob")
        each = time.perf_counter() - started
        assert count == expected, (wanted, count, expected)
        rows.append(
            {
                "what": f"{what}: `{wanted}`",
                "occurrences": f"{count:,}",
                "tokenmill (GB/s)": round(size / ours / 1e9, 2),
                "`grep -Fc` (GB/s)": round(size / lines / 1e9, 2),
                "`grep -Fob` (GB/s)": round(size / each / 1e9, 2),
                "faster than `-Fc`": f"{lines / ours:.1f}×",
                "in CPU time": f"{their_cpu / our_cpu:.1f}×",
            }
        )
        print(rows[-1], flush=True)
    return rows


def compare_index(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Build the index, and search with it and without it."""
    dataset = tokenmill.open(folder / "data")
    report = tokenmill.index(dataset)
    built = [
        {
            "what": f"{report.text_bytes / 1e6:,.0f} MB of text",
            "seconds": round(report.seconds, 1),
            "MB/s": round(report.text_bytes / max(report.seconds, 1e-3) / 1e6, 1),
            "size (MB)": round(report.bytes / 1e6, 1),
            "share of the text": f"{100 * report.bytes / report.text_bytes:.1f}%",
        }
    ]
    rows = []
    for what, wanted in QUERIES.items():
        scan, _, count = time_best(lambda: count_matches(dataset, wanted, use_index=False))  # noqa: B023
        indexed, _, again = time_best(lambda: count_matches(dataset, wanted))  # noqa: B023
        assert count == again, wanted
        rows.append(
            {
                "what": f"{what}: `{wanted}`",
                "scan (ms)": round(1e3 * scan, 1),
                "index (ms)": round(1e3 * indexed, 1),
                "faster": f"{scan / indexed:.1f}×",
            }
        )
    return built, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--bytes", type=int, default=600_000_000, help="of each of the two texts")
    parser.add_argument("--folder", type=Path, help="keep the data here")
    parser.add_argument("--no-index", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        prose, small = folder / "prose", folder / "small"
        make_data(folder, args.bytes)
        make_data(prose, args.bytes, "prose")
        make_data(small, args.bytes // 8)
        conditions = describe(folder)
        record("search", conditions, compare(folder))
        record("search-prose", describe(prose), compare(prose))
        memory = [
            {
                "what": f"{(one / 'all.txt').stat().st_size / 1e6:,.0f} MB of text",
                **{
                    f"{what} (MB)": round(measure_peak(one / "data", QUERIES[what]))
                    for what in ("rare word", "very common word")
                },
            }
            for one in (small, folder)
        ]
        record("search-memory", conditions, memory)
        if not args.no_index:
            built, rows = compare_index(folder)
            record("search-index", conditions, built)
            record("search-indexed", conditions, rows)


if __name__ == "__main__":
    main()
