"""Compare the speed of loading batches with its limit, and with PyTorch's DataLoader.

The limit is a casting copy of a batch from the file's dtype to int64, with source and destination in
the cache: one copy if inputs and targets are views of one array, two if they are separate arrays. The
same copy of the whole file, in order and from the page cache, shows the memory bandwidth of one
thread. Everything else shuffles globally and reads a file in the page cache. The contestants take
turns in one run, each in its own process; the result is the best of several rounds, for the limit too.

With `--maps`, only the loader runs: through memory maps, and with `Tokens.unmapped`.

    python benchmarks/load.py [--tokens 50] [--rounds 4] [--maps]     tokens in millions
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from results import record

import tokenmill

SECONDS = 1.0  # duration of each measurement
SHARDS = 1_000
SHAPES = [(32, 1024), (8, 4096), (512, 256)]


def rate(step: Callable[[], Any], tokens: int) -> float:
    """Millions of tokens per second: the best of four intervals."""
    for _ in range(20):
        step()
    best = 0.0
    for _ in range(4):
        started, steps = time.perf_counter(), 0
        while (spent := time.perf_counter() - started) < SECONDS / 4:
            for _ in range(10):
                step()
            steps += 10
        best = max(best, steps * tokens / spent / 1e6)
    return best


def run_limit(folder: Path, batch: int, length: int, dtype: str, copies: int, *extra: str) -> float:
    """The casting copy alone: of the same batch each time, or of all batches of the file in order."""
    ids = np.memmap(folder / f"{dtype}.bin", dtype, "r")
    batches = ids[: len(ids) // (batch * length) * batch * length].reshape(-1, batch, length)
    sources = cycle(list(batches) if "file" in extra else [np.array(batches[0])])
    out = np.empty((batch, length), np.int64)

    def step() -> None:
        source = next(sources)
        for _ in range(copies):
            np.copyto(out, source)

    return rate(step, batch * length)


def _open(folder: Path, dtype: str) -> tokenmill.Tokens:
    return tokenmill.open(folder / f"{dtype}.bin", dtype=dtype, eot_id=0)["train"]


def _write_shards(folder: Path, ids: np.ndarray[Any, Any], count: int) -> None:
    """Write the same ids as files with llm.c's header."""
    folder.mkdir()
    for number, part in enumerate(np.array_split(ids.astype("<u2"), count)):
        header = np.zeros(256, "<i4")
        header[:3] = 20240520, 1, len(part)
        (folder / f"ids_train_{number:06}.bin").write_bytes(header.tobytes() + part.tobytes())


def run_loader(folder: Path, batch: int, length: int, dtype: str, *extra: str) -> float:
    """`tokenmill.Loader`, or `tokenmill.torch.Loader`."""
    data: Any = _open(folder, dtype)
    for name in {"shards", "prepared"} & {*extra}:
        data = tokenmill.open(folder / name)["train"]
    if "mixture" in extra:
        quarter = len(data) // 4
        weights = {"web": 0.5, "code": 0.25, "books": 0.15, "wiki": 0.1}
        sources = {
            name: (tokenmill.Tokens.of(data[i * quarter : (i + 1) * quarter]), weight)
            for i, (name, weight) in enumerate(weights.items())
        }
        data = tokenmill.Mixture(sources)
    if "unmapped" in extra:
        data = data.unmapped()
    settings: dict[str, Any] = {"batch_size": batch, "seq_len": length, "seed": 42}
    settings["documents"] = "documents" in extra
    if "inline" in extra:
        settings["prefetch"] = 0
    if "views" in extra:
        settings["contiguous"] = False
    loader: Any
    if "torch" in extra:
        from tokenmill import torch as tensors

        loader = tensors.Loader(data, **settings)
    else:
        loader = tokenmill.Loader(data, **settings)
    return rate(lambda: next(loader), batch * length)


def run_dataloader(folder: Path, batch: int, length: int, dtype: str, workers: int) -> float:
    """PyTorch's DataLoader over a memory map, as most programs use it."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
        def __init__(self) -> None:
            self.ids = np.memmap(folder / f"{dtype}.bin", dtype, "r")

        def __len__(self) -> int:
            return (len(self.ids) - 1) // length

        def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
            row = self.ids[number * length : number * length + length + 1].astype(np.int64)
            return torch.from_numpy(row[:-1]), torch.from_numpy(row[1:])

    loader = DataLoader(Windows(), batch_size=batch, shuffle=True, num_workers=workers)

    def forever() -> Iterator[Any]:
        while True:
            yield from loader

    batches = forever()
    return rate(lambda: next(batches), batch * length)


def measure(folder: Path, words: list[str]) -> float:
    """One measurement in a fresh process."""
    command = [sys.executable, __file__, "--contestant", *words, "--folder", str(folder)]
    return float(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


def contest(folder: Path, rounds: int, contestants: dict[str, list[str]]) -> dict[str, float]:
    """The best of each contestant."""
    best = dict.fromkeys(contestants, 0.0)
    for _ in range(rounds):
        for name, words in contestants.items():
            result = measure(folder, words)
            best[name] = max(best[name], result)
            print(f"{name:<56} {result:8.0f} M tokens/s", flush=True)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokens", type=int, default=50, help="millions of tokens")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--maps", action="store_true", help="only compare maps with reads")
    parser.add_argument("--contestant", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contestant:
        name, batch, length, dtype, *rest = args.contestant
        more = [int(word) if word.isdigit() else word for word in rest]
        print(globals()[f"run_{name}"](args.folder, int(batch), int(length), dtype, *more))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ids = np.random.default_rng(0).integers(1, 50257, args.tokens * 1_000_000)
        ids[np.random.default_rng(1).random(len(ids)) < 1 / 500] = 0  # end of text
        for dtype in ("uint16", "uint32"):
            ids.astype(dtype).tofile(folder / f"{dtype}.bin")
        _write_shards(folder / "shards", ids, SHARDS)
        del ids
        options: dict[str, Any] = {"dtype": "uint16", "eot_id": 0, "tokenizer": "gpt2"}
        tokenmill.import_dataset(folder / "uint16.bin", folder / "prepared", **options)
        if not args.maps:
            _compare(folder, args.rounds, args.tokens)
        _compare_maps(folder, args.rounds, args.tokens)


def _compare(folder: Path, rounds: int, tokens: int) -> None:
    cases = {
        f"{batch} × {length:,}": [str(batch), str(length), "uint16"] for batch, length in SHAPES
    }
    first = next(iter(cases.values()))
    wide = [*first[:2], "uint32"]
    contestants = {
        **{f"limit, {case}": ["limit", *words, "1"] for case, words in cases.items()},
        **{f"file, {case}": ["limit", *words, "1", "file"] for case, words in cases.items()},
        **{f"Loader, {case}": ["loader", *words] for case, words in cases.items()},
        "limit, uint32": ["limit", *wide, "1"],
        "file, uint32": ["limit", *wide, "1", "file"],
        "Loader, uint32": ["loader", *wide],
        "Loader, no thread": ["loader", *first, "inline"],
        "Loader, shards": ["loader", *first, "shards"],
        "Loader, four sources": ["loader", *first, "mixture"],
        "Loader, documents": ["loader", *first, "documents", "prepared"],
        "Loader, documents by id": ["loader", *first, "documents"],
        "limit, two copies": ["limit", *first, "2"],
        "file, two copies": ["limit", *first, "2", "file"],
        "torch Loader": ["loader", *first, "torch"],
        "torch Loader, views": ["loader", *first, "torch", "views"],
        **{f"DataLoader, {n} workers": ["dataloader", *first, str(n)] for n in (0, 1, 2)},
    }
    best = contest(folder, rounds, contestants)

    def row(what: str, name: str, limit: str) -> dict[str, Any]:
        return {
            "what": what,
            "M tokens/s": round(best[name]),
            "of the limit": round(best[name] / best[f"limit, {limit}"], 2),
            "of the file in order": round(best[name] / best[f"file, {limit}"], 2),
        }

    base = "32 × 1,024"
    rows = [row(f"Loader, {case}", f"Loader, {case}", case) for case in cases]
    rows += [
        row("Loader, 32 × 1,024, uint32 ids", "Loader, uint32", "uint32"),
        row("Loader, 32 × 1,024, without its thread", "Loader, no thread", base),
        row(f"Loader, 32 × 1,024, {SHARDS:,} shards", "Loader, shards", base),
        row("Loader, 32 × 1,024, four sources", "Loader, four sources", base),
        row("Loader, 32 × 1,024, documents by their table", "Loader, documents", base),
        row("Loader, 32 × 1,024, documents by end of text", "Loader, documents by id", base),
        row("`tokenmill.torch.Loader`, 32 × 1,024", "torch Loader", "two copies"),
        row("the same, `contiguous=False`", "torch Loader, views", base),
    ]
    peer = max((name for name in best if name.startswith("DataLoader")), key=best.__getitem__)
    rows.append(row(f"PyTorch {peer}, 32 × 1,024", peer, "two copies"))
    for name in ("Loader, 32 × 1,024", "torch Loader", "torch Loader, views"):
        print(f"{name} is {best[name] / best[peer]:.1f} times PyTorch's {peer}")
    record("load", {"tokens": tokens * 1_000_000, "rounds": rounds}, rows)


def _compare_maps(folder: Path, rounds: int, tokens: int) -> None:
    """Through maps, and from files with `Tokens.unmapped`."""
    cases = {
        f"{batch} × {length:,}": ["loader", str(batch), str(length), "uint16"]
        for batch, length in SHAPES
    }
    first = next(iter(cases))
    cases[f"{first}, {SHARDS:,} shards"] = [*cases[first], "shards"]
    ways: tuple[list[str], ...] = ([], ["unmapped"])
    best = contest(
        folder,
        rounds,
        {" ".join([case, *way]): [*words, *way] for case, words in cases.items() for way in ways},
    )
    rows = [
        {
            "M tokens/s": case,
            "mapped": round(best[case]),
            "`unmapped()`": round(best[f"{case} unmapped"]),
            "ratio": f"{best[case] / best[f'{case} unmapped']:.1f}",
        }
        for case in cases
    ]
    record("maps", {"tokens": tokens * 1_000_000, "rounds": rounds}, rows)


if __name__ == "__main__":
    main()
