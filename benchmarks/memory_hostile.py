"""Peak memory of the whole process tree for inputs with very few places to cut.

python benchmarks/memory_hostile.py [--megabytes 50 100] [--memory 300MB] [--workers 1 2] [NAME …]

Each input is made at each size. The peak, sampled every 20 ms, is the resident memory of all
processes of `tokenmill prepare`; it must not grow with the size. Text that must be held whole and does
not fit is refused by name: then the table has the refusal, and the peak up to it.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from memory import tree_memory
from results import record

_STEP = 3_000_000  # bytes made at once


def _random_text(low: int, high: int, line: int = 0, end: str = "") -> Callable[[int], bytes]:
    """Makes random characters of a range, in lines of a given length and line end."""
    rng = np.random.default_rng(low)

    def make(size: int) -> bytes:
        codes = rng.integers(low, high, size, dtype=np.uint32)
        text = codes.astype("<u4").tobytes().decode("utf-32-le")
        if not line:
            return text.encode()
        return "".join(text[i : i + line] + end for i in range(0, len(text), line)).encode()

    return make


def _numbers(size: int) -> bytes:
    rng = np.random.default_rng(size)
    rows = rng.integers(0, 100_000, (size // 24 + 1, 4)).tolist()
    return "".join(f"{a},{b},{c}.{d}\n" for a, b, c, d in rows).encode()


def _base64(size: int) -> bytes:
    return base64.b64encode(np.random.default_rng(size).bytes(size * 3 // 4))


def _base64_lines(size: int) -> bytes:
    data = _base64(size)
    return b"".join(data[i : i + 76] + b"\n" for i in range(0, len(data), 76))


def _words(size: int) -> bytes:
    """Words that hardly ever repeat."""
    letters = np.random.default_rng(size).integers(97, 123, size, np.uint8)
    letters[9::10] = 32
    letters[99::100] = 10
    return letters.tobytes()


def _scripts(size: int) -> bytes:
    """Words of letters from many scripts that hardly ever repeat."""
    letters = np.array([c for c in range(0x250, 0xD7A0) if chr(c).isalpha()], np.uint32)
    codes = letters[np.random.default_rng(size).integers(0, len(letters), size // 3 + 1)]
    codes[9::10], codes[99::100] = 32, 10
    return codes.astype("<u4").tobytes().decode("utf-32-le").encode()


MAKERS: dict[str, Callable[[int], bytes]] = {
    "Chinese, lines end in 。": _random_text(0x4E00, 0x9FA5, 40, "。\n"),
    "Chinese without an end": _random_text(0x4E00, 0x9FA5),
    "a": lambda size: b"a" * size,
    "base64": _base64,
    "base64 in lines": _base64_lines,
    "numeric CSV": _numbers,
    "digits": _random_text(48, 58),
    "one emoji": lambda size: "😀".encode() * (size // 4),
    "spaces": lambda size: b" " * size,
    "newlines": lambda size: b"\n" * size,
    "combining marks": lambda size: "\u0301\u0323".encode() * (size // 4),
    "new words": _words,
    "new words of many scripts": _scripts,
}


def _blocks(name: str, size: int) -> Iterator[bytes]:
    made = 0
    while made < size:
        block = MAKERS[name](min(_STEP, size - made) if "Chinese" not in name else _STEP // 3)
        made += len(block)
        yield block


def make_input(folder: Path, name: str, size: int) -> Path:
    """A file of about `size` bytes: one document."""
    kind, _, words = name.partition(": ")
    if kind == "JSON line":
        path = folder / "one.jsonl"
        path.write_bytes(b'{"text": "' + b"".join(_blocks(words, size)) + b'"}\n')
        return path
    if kind in ("Parquet value", "Parquet cells of 3 MB"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = folder / "one.parquet"
        texts = [block.decode() for block in _blocks(words, size)]
        pq.write_table(pa.table({"text": texts if "cells" in kind else ["".join(texts)]}), path)
        return path
    path = folder / "one.txt"
    with path.open("wb") as file:
        file.writelines(_blocks(name, size))
    return path


NAMES = [*MAKERS, "JSON line: base64", "Parquet value: base64", "Parquet cells of 3 MB: digits"]


def measure(path: Path, out: Path, memory: str, workers: int) -> dict[str, Any]:
    """The peak of one run in MB, its duration in seconds, and its error message if it failed."""
    shutil.rmtree(out, ignore_errors=True)
    options = ["--out", out, "--memory", memory, "--workers", workers]
    words = [sys.executable, "-m", "tokenmill.cli", "prepare", path, *options]
    started, peak = time.monotonic(), 0
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([*map(str, words)], stdout=subprocess.DEVNULL, stderr=said)
        while process.poll() is None:
            peak = max(peak, tree_memory(process.pid))
            time.sleep(0.02)
        said.seek(0)
        errors = said.read().decode()
    seconds = time.monotonic() - started
    return {
        "peak": peak / 1e6,
        "seconds": seconds,
        "refused": errors.strip() if process.returncode else "",
    }


def main() -> None:
    """Measure each input at each size with each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--memory", default="300MB")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in args.names:
        for size in args.megabytes:
            with tempfile.TemporaryDirectory() as folder:
                path = make_input(Path(folder), name, size * 1_000_000)
                row: dict[str, Any] = {"input": f"{path.stat().st_size / 1e6:.0f} MB: {name}"}
                for workers in args.workers:
                    found = measure(path, Path(folder) / "out", args.memory, workers)
                    note = " (refused)" if found["refused"] else ""
                    row[f"--workers {workers}"] = f"{found['peak']:.0f} MB{note}"
                    print(row, f"{found['seconds']:.1f} s", found["refused"][:600], flush=True)
                rows.append(row)
    if args.names == NAMES:
        record("memory_hostile", {"memory": args.memory}, rows)


if __name__ == "__main__":
    main()
