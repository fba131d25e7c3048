"""Peak memory of export, import and reshard, and of verify, for tokens of growing size.

    python benchmarks/convert_memory.py [--sizes 40 400]     sizes in MB of uint16 ids

Counts the anonymous pages of the whole process tree. Pages of mapped files do not count, because the
system can reclaim them.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from memory import find_peak, process_tree
from results import record

from tokenmill.formats import WRITABLE

EOT = 50256
LENGTH = 400  # tokens of a document on average


def anonymous_memory(root: int) -> int:
    """Bytes of a process and all its descendants that are not backed by a file."""
    total = 0
    for number in process_tree(root):
        try:
            lines = Path(f"/proc/{number}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return total * 1024


def measure(*words: object) -> float:
    """Peak memory in MB of a `tokenmill` command."""
    return find_peak(words, anonymous_memory, every=0.005)


def make_tokens(path: Path, size: int) -> None:
    """A NumPy file of ids in documents, made a piece at a time."""
    rng = np.random.default_rng(size)
    ids = np.lib.format.open_memmap(path, "w+", "<u2", (size // 2,))
    for low in range(0, len(ids), 1 << 22):
        some = ids[low : low + (1 << 22)]
        some[:] = rng.integers(0, EOT, len(some))
        some[rng.integers(0, len(some), len(some) // LENGTH)] = EOT
    ids[-1] = EOT


def measure_size(size: int, folder: Path) -> dict[str, float]:
    """The peak of each command on tokens of `size` bytes."""
    source, data = folder / "tokens.npy", folder / "data"
    make_tokens(source, size)
    peaks = {"import": measure("import", source, "--tokenizer", "gpt2", "--out", data)}
    source.unlink()
    peaks["reshard"] = measure(
        "reshard", data, "--tokens-per-shard", size // 7, "--out", folder / "cut"
    )
    shutil.rmtree(folder / "cut")
    for to in WRITABLE:
        out, back = folder / to, folder / "back"
        peaks[f"export to {to}"] = measure("export", data, "--to", to, "--out", out)
        opened = out / "train" if to in ("megatron", "mds", "litdata") else out
        peaks[f"verify {to}"] = measure("verify", opened, "--vocab-size", EOT + 1)
        words = ("import", opened, "--tokenizer", "gpt2", "--val-fraction", 0, "--out", back)
        peaks[f"import of {to}"] = measure(*words)
        shutil.rmtree(out)
        shutil.rmtree(back)
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[40, 400], help="MB")
    sizes = parser.parse_args().sizes
    peaks = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            peaks[size] = measure_size(size * 1_000_000, Path(folder))
    rows: list[dict[str, Any]] = [
        {"command": name, **{f"{size} MB": f"{peaks[size][name]:.0f} MB" for size in sizes}}
        for name in peaks[sizes[0]]
    ]
    record("convert_memory", {"tokens": "uint16", "document": f"{LENGTH} tokens"}, rows)


if __name__ == "__main__":
    main()
