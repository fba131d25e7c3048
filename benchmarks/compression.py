"""Measure compressed shards: their size, and the speed of writing and loading them, beside plain ones.

Two texts are measured with GPT-2's ids: source code, and documentation in English. Rates are millions
of tokens per second of wall time, the best of several rounds. Writing takes one core; loading may use
two, on any machine: the loader's thread and the caller both decode. Loading reads one file that counts
as 250 shards, so that the dataset is far larger than the cache of decoded frames. `shuffled` reads
random rows, each of which decodes its own frames. `blocks` is the order of that name as it is by
default: groups of 256 MB, larger than the cache. Groups of 32 MB fit in the cache. `in order` does not
shuffle.

    python benchmarks/compression.py [--tokens 6] [--rounds 3]     tokens of each text, in millions

Five minutes, on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import ast
import os
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import numpy.typing as npt
import zstandard
from results import record

import tokenmill
from tokenmill.store.compressed import CompressedShards
from tokenmill.store.frame_cache import CACHE
from tokenmill.store.frames import LEVEL, TOKENS_PER_FRAME, Packer
from tokenmill.store.shards import FileShards, Shards
from tokenmill.tokenizers import load_tokenizer

Ids = npt.NDArray[np.uint16]
FRAMES = (2048, 4096, 8192, 16384, 65536)
LEVELS = (1, 3, 9)
ROWS, LENGTH = 32, 1024
SHARDS = 250
SECONDS = 0.6
CORES = 2
GOAL = 100  # million tokens per second on two cores
ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "blocks": {"order": "blocks"},
    "blocks, groups of 32 MB": {"order": "blocks", "group_blocks": 32},
    "in order": {"order": "sequential"},
}


def documentation() -> Iterator[bytes]:
    """Text files and long docstrings of the Python installation: English about programming."""
    seen: set[bytes] = set()
    paths = sysconfig.get_paths()
    for path in (
        one for root in ("stdlib", "purelib") for one in sorted(Path(paths[root]).rglob("*.*"))
    ):
        text = b""
        if path.suffix in (".md", ".rst", ".txt"):
            text = path.read_bytes()
        elif path.suffix == ".py":
            text = _find_docstrings(path.read_bytes())
        if len(text) > 500 and text not in seen:
            seen.add(text)
            yield text


def _find_docstrings(source: bytes) -> bytes:
    try:
        with warnings.catch_warnings(action="ignore"):
            nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return b""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    found = (ast.get_docstring(node) for node in nodes if isinstance(node, kinds))
    return "\n\n".join(text for text in found if text and len(text) > 300).encode(
        "utf-8", "replace"
    )


def tokenize(texts: Iterator[bytes], count: int) -> Ids:
    """The first `count` ids of texts."""
    tokenizer, parts, total = load_tokenizer("gpt2"), [], 0
    for text in texts:
        cleaned = text.decode("utf-8", "ignore").encode()
        ids, _ = tokenizer.encode_terminated([cleaned])
        parts.append(ids.astype("<u2"))
        total += len(ids)
        if total >= count:
            break
    return np.concatenate(parts)[:count]


def best_rate(work: Callable[[], int], rounds: int) -> float:
    """Millions of tokens per second."""
    best = 0.0
    for _ in range(rounds):
        started = time.perf_counter()
        done = work()
        best = max(best, done / (time.perf_counter() - started) / 1e6)
    return best


def pack(ids: Ids, frame: int, level: int) -> bytes:
    """A compressed shard."""
    packer = Packer(level=level, frame_bytes=2 * frame)
    return packer.pack(ids) + packer.finish()


def measure_loading(shards: Shards, order: str, rounds: int) -> float:
    """The rate of `tokenmill.Loader`, in millions of tokens per second."""
    CACHE.reset()
    data = tokenmill.Tokens(shards, "train")
    loader = tokenmill.Loader(data, batch_size=ROWS, seq_len=LENGTH, seed=1, **ORDERS[order])

    def work() -> int:
        steps, started = 0, time.perf_counter()
        while time.perf_counter() - started < SECONDS:
            next(loader)
            steps += 1
        return steps * ROWS * LENGTH

    work()
    rate = best_rate(work, rounds)
    loader.close()
    return rate


def write_shard(folder: Path, ids: Ids, packed: bytes | None, frame: int) -> Shards:
    """Shards that all are the same file, compressed or not."""
    path = folder / "shard"
    path.write_bytes(ids.tobytes() if packed is None else packed)
    sizes = np.full(SHARDS, path.stat().st_size)
    kind = np.dtype("<u2") if packed is None else np.dtype(np.uint8)
    files = FileShards(
        folder=folder,
        names=[path.name] * SHARDS,
        dtype=kind,
        counts=sizes // kind.itemsize,
        offsets=np.zeros(SHARDS, np.int64),
        sizes=sizes,
    )
    if packed is None:
        return files
    return CompressedShards(files, np.dtype("<u2"), np.full(SHARDS, len(ids)), frame)


def measure(name: str, ids: Ids, frame: int | None, level: int, rounds: int) -> dict[str, Any]:
    """A row of the table."""
    is_usual = (frame, level) == (TOKENS_PER_FRAME, LEVEL)
    what = "plain" if frame is None else f"{frame:,} tokens, level {level}"
    row: dict[str, Any] = {"frames": f"**{name}, {what}**" if is_usual else f"{name}, {what}"}
    packed = None if frame is None else pack(ids, frame, level)
    row["bits per token"] = 16.0 if packed is None else round(8 * len(packed) / len(ids), 2)
    row["write"] = ""
    if frame is not None:
        row["write"] = round(best_rate(lambda: len(ids) * bool(pack(ids, frame, level)), rounds))
    row |= dict.fromkeys(ORDERS, "")
    if level == LEVEL:
        with tempfile.TemporaryDirectory() as folder:
            shards = write_shard(Path(folder), ids, packed, frame or 1)
            row |= {order: round(measure_loading(shards, order, rounds)) for order in ORDERS}
    return row


def measure_layouts(texts: dict[str, Ids]) -> list[dict[str, Any]]:
    """Bits per token of frames whose ids are arranged differently before compression."""
    layouts: dict[str, Callable[[Ids], bytes]] = {
        "ids as they are": lambda ids: ids.tobytes(),
        "all lower bytes, then all upper bytes": lambda ids: np.ascontiguousarray(
            ids.view(np.uint8).reshape(-1, 2).T
        ).tobytes(),
        "differences of neighbours": lambda ids: np.diff(ids, prepend=ids[:1]).tobytes(),
    }
    packer = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    rows = []
    for what, arrange in layouts.items():
        row: dict[str, Any] = {"layout": what}
        for name, ids in texts.items():
            frames = [
                ids[at : at + TOKENS_PER_FRAME] for at in range(0, len(ids), TOKENS_PER_FRAME)
            ]
            size = sum(len(packer.compress(arrange(frame))) + 8 for frame in frames)
            row[f"{name}, bits per token"] = round(8 * size / len(ids), 2)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    count = int(arguments.tokens * 1e6)
    texts = {
        "code": tokenize(corpus.real_documents(), count),
        "English": tokenize(documentation(), count),
    }
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)
    settings = [(None, LEVEL), *((frame, LEVEL) for frame in FRAMES)]
    settings += [(TOKENS_PER_FRAME, level) for level in LEVELS if level != LEVEL]
    rows = []
    for name, ids in texts.items():
        for frame, level in settings:
            rows.append(measure(name, ids, frame, level, arguments.rounds))
            print(rows[-1], flush=True)
    usual = [row for row in rows if row["frames"].startswith("**")]
    fast = [order for order in ORDERS if all(row[order] >= GOAL for row in usual)]
    print(
        f"Orders with {GOAL} M tokens/s or more on {len(cores)} cores: {', '.join(fast) or 'none'}"
    )
    conditions = {
        "tokens": {name: len(ids) for name, ids in texts.items()},
        "libzstd": ".".join(map(str, zstandard.ZSTD_VERSION)),
        "rows": f"{ROWS} × {LENGTH}",
        "cores used": len(cores),
        f"orders with {GOAL} M tokens/s": fast,
    }
    record("compression", conditions, rows)
    record("compression-layouts", conditions, measure_layouts(texts))


if __name__ == "__main__":
    main()
