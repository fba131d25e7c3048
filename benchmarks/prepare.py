"""Compare the speed of `prepare` with tokenizing alone and with other tokenizers.

The contestants take turns on the same files, each in its own process that starts with an empty
tokenizer cache. The result is the median of several rounds, because machines are noisy. `prepare`
does everything that the command does by default: cleaning, deduplication, split, checksums, document
tables, flushing to the disk, and starting its workers. The others only turn text into ids in memory.

    python benchmarks/prepare.py [--size 512] [--rounds 5]     size in MB
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from corpus import EOT, make_corpus
from results import record

SAMPLE = 16 << 20  # bytes for the slow tokenizers
CONTESTANTS = {
    "gigatoken, bare `encode_files`": ["gigatoken"],
    "tokenmill prepare": ["prepare", "documents"],
    "tokenmill prepare --dedup lines": ["prepare", "lines"],
    "tokenizers, `encode_batch`": ["tokenizers"],
}


def _gpt2() -> str:
    """GPT-2's tokenizer.json, without special tokens."""
    from tokenmill.tokenizers.gpt2 import read_gpt2

    document = {**read_gpt2(), "added_tokens": []}
    document["pre_tokenizer"]["trim_offsets"] = True  # required by `tokenizers`
    return json.dumps(document)


def run_gigatoken(files: list[Path]) -> tuple[float, int]:
    """Tokenize all files with gigatoken's fastest method, on all cores."""
    import gigatoken

    tokenizer = gigatoken.Tokenizer.from_json(_gpt2())
    source = gigatoken.TextFileSource([str(path) for path in files], separator=EOT)
    started = time.perf_counter()
    tokenizer.encode_files(source)
    return time.perf_counter() - started, sum(path.stat().st_size for path in files)


def run_prepare(files: list[Path], dedup: Literal["documents", "lines"]) -> tuple[float, int]:
    """Run `tokenmill.prepare`."""
    import tokenmill

    out = files[0].parent.parent / "dataset"
    shutil.rmtree(out, ignore_errors=True)
    started = time.perf_counter()
    tokenmill.prepare([str(path) for path in files], out, dedup=dedup)
    spent = time.perf_counter() - started
    shutil.rmtree(out)
    return spent, sum(path.stat().st_size for path in files)


def _sample(files: list[Path]) -> list[str]:
    """Some of the documents, spread over the files."""
    texts = []
    for path in files:
        with path.open("rb") as file:
            file.seek(path.stat().st_size // 2)
            block = file.read(SAMPLE // len(files))
        texts += [text.decode("utf-8", "ignore") for text in block.split(EOT)[1:-1]]
    return texts


def run_tokenizers(files: list[Path]) -> tuple[float, int]:
    """Tokenize a sample with Hugging Face's tokenizers, on all cores."""
    from tokenizers import Tokenizer

    texts = _sample(files)
    tokenizer = Tokenizer.from_str(_gpt2())
    started = time.perf_counter()
    tokenizer.encode_batch(texts)
    return time.perf_counter() - started, sum(len(text.encode()) for text in texts)


def measure(words: list[str], files: list[Path]) -> float:
    """MB/s of one round, in a fresh process."""
    command = [sys.executable, __file__, "--contestant", *words, "--files", *map(str, files)]
    result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return float(result["bytes"] / result["seconds"] / 1e6)


def compare(kind: str, size: int, rounds: int) -> list[dict[str, Any]]:
    """All contestants on one kind of text."""
    rates: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    with tempfile.TemporaryDirectory() as folder:
        files = make_corpus(Path(folder) / "text", size * 1_000_000, kind)
        for number in range(rounds):
            for name, words in CONTESTANTS.items():
                if number and words == ["tokenizers"]:
                    continue  # slow enough to be measured once
                rates[name].append(measure(words, files))
                print(f"{kind:<6} {name:<34} {rates[name][-1]:7.1f} MB/s", flush=True)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    bare = middle["gigatoken, bare `encode_files`"]
    return [
        {"what": name, "MB/s": round(rate, 1), "of bare gigatoken": round(rate / bare, 2)}
        for name, rate in middle.items()
    ]


def main() -> None:
    """Measure all contestants and record the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", type=int, default=512, help="MB of text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contestant", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--files", nargs="+", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contestant:
        name, *rest = args.contestant
        seconds, size = globals()[f"run_{name}"](args.files, *rest)
        print(json.dumps({"seconds": seconds, "bytes": size}))
        return
    for kind in ("real", "prose"):
        conditions = {"text": f"{args.size} MB of {kind} text", "rounds": args.rounds}
        record(f"prepare-{kind}", conditions, compare(kind, args.size, args.rounds))


if __name__ == "__main__":
    main()
