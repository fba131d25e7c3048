"""Compare the speed of batches for JAX, Grain and TensorFlow with the usual code for each.

The usual code takes shuffled rows from a memory map and lets the framework stack them. All read a
file in the page cache and return inputs and targets as int32 arrays of the framework. The contestants
take turns in one run, each in its own process, and drop the batches that were read ahead before the
measurement. The result is the best of several rounds.

    python benchmarks/frameworks.py [--tokens 50] [--rounds 3]     tokens in millions
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from results import record

import tokenmill

BATCH, LENGTH = 32, 1024
START = 600  # batches: more than Grain reads ahead
STRETCHES, SECONDS = 4, 0.75
SETTINGS: dict[str, Any] = {"batch_size": BATCH, "seq_len": LENGTH, "seed": 42}

Ids = npt.NDArray[np.uint16]


def rate(step: Callable[[], Any]) -> float:
    """Millions of tokens per second: the best of several intervals."""
    for _ in range(START):
        step()
    best = 0.0
    for _ in range(STRETCHES):
        started, steps = time.perf_counter(), 0
        while (spent := time.perf_counter() - started) < SECONDS:
            step()
            steps += 1
        best = max(best, steps * BATCH * LENGTH / spent / 1e6)
    return best


def open_ids(path: Path) -> Ids:
    """Open the file as a memory map, as most programs do."""
    return np.memmap(path, np.uint16, "r")


def open_tokens(path: Path) -> tokenmill.Tokens:
    """The file as tokenmill opens it."""
    return tokenmill.open(path, dtype="uint16")["train"]


def row(ids: Ids, number: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """A window of the file as inputs and targets."""
    tokens = ids[number * LENGTH : number * LENGTH + LENGTH + 1].astype(np.int32)
    return tokens[:-1], tokens[1:]


def run_jax(path: Path) -> float:
    """`tokenmill.jax.Loader`."""
    import tokenmill.jax

    loader = tokenmill.jax.Loader(open_tokens(path), **SETTINGS)
    return rate(lambda: _wait(next(loader)))


def run_jax_stack(path: Path) -> float:
    """Slices of a memory map, stacked and put on the device."""
    import jax

    ids, random = open_ids(path), np.random.default_rng(0)

    def step() -> None:
        starts = random.integers(0, len(ids) - LENGTH, BATCH)
        inputs = np.stack([ids[start : start + LENGTH].astype(np.int32) for start in starts])
        targets = np.stack(
            [ids[start + 1 : start + LENGTH + 1].astype(np.int32) for start in starts]
        )
        _wait(jax.device_put((inputs, targets)))

    return rate(step)


def run_jax_index(path: Path) -> float:
    """A memory map indexed by all tokens of the batch."""
    import jax

    ids, random = open_ids(path), np.random.default_rng(0)

    def step() -> None:
        starts = random.integers(0, len(ids) - LENGTH, BATCH)
        tokens = ids[starts[:, None] + np.arange(LENGTH + 1)].astype(np.int32)
        _wait(jax.device_put((tokens[:, :-1], tokens[:, 1:])))

    return rate(step)


def _wait(arrays: Any) -> None:
    for array in arrays:
        array.block_until_ready()


def run_grain(path: Path) -> float:
    """`tokenmill.grain.make_dataset`."""
    import tokenmill.grain

    dataset = tokenmill.grain.make_dataset(open_tokens(path), **SETTINGS)
    batches = iter(dataset.to_iter_dataset(tokenmill.grain.READ_OPTIONS))
    return rate(lambda: next(batches))


class Windows:
    """A Grain source that slices a memory map, as most programs do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ids = open_ids(path)

    def __len__(self) -> int:
        return (len(self.ids) - 1) // LENGTH

    def __getitem__(self, number: int) -> Any:
        return row(self.ids, number)

    def __reduce__(self) -> Any:
        return Windows, (self.path,)


def run_grain_rows(path: Path, threads: str, workers: str) -> float:
    """A memory map through Grain, row by row."""
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    options = grain.ReadOptions() if threads == "default" else grain.ReadOptions(num_threads=0)
    dataset: Any = grain.MapDataset.source(Windows(path)).shuffle(seed=1).repeat().batch(BATCH)
    dataset = dataset.to_iter_dataset(options)
    if workers != "0":
        dataset = dataset.mp_prefetch(
            grain.multiprocessing.MultiprocessingOptions(num_workers=int(workers))
        )
    batches = iter(dataset)
    return rate(lambda: next(batches))


def run_tensorflow(path: Path) -> float:
    """`tokenmill.tensorflow.make_dataset`."""
    import tokenmill.tensorflow

    batches = iter(tokenmill.tensorflow.make_dataset(open_tokens(path), **SETTINGS))
    return rate(lambda: next(batches))


def run_tensorflow_rows(path: Path, way: str) -> float:
    """A memory map through tf.data, row by row; or all of it copied into memory first."""
    import tensorflow as tf

    ids = open_ids(path)
    count = (len(ids) - 1) // LENGTH
    auto = tf.data.AUTOTUNE

    def rows() -> Iterator[Any]:
        for number in np.random.default_rng(0).permutation(count):
            yield row(ids, number)

    def read(number: tf.Tensor) -> Any:
        return tf.numpy_function(lambda n: row(ids, n), [number], (tf.int32, tf.int32))

    def split(tokens: tf.Tensor) -> Any:
        tokens = tf.cast(tokens, tf.int32)
        return tokens[:, :-1], tokens[:, 1:]

    if way == "generator":
        spec = tf.TensorSpec((LENGTH,), tf.int32)
        dataset = tf.data.Dataset.from_generator(rows, output_signature=(spec, spec))
        dataset = dataset.repeat().batch(BATCH)
    elif way == "map":
        dataset = tf.data.Dataset.range(count).shuffle(count).repeat()
        dataset = dataset.map(read, num_parallel_calls=auto).batch(BATCH)
    else:
        windows = np.lib.stride_tricks.sliding_window_view(ids, LENGTH + 1)[::LENGTH]
        dataset = tf.data.Dataset.from_tensor_slices(np.ascontiguousarray(windows))
        dataset = dataset.shuffle(count).repeat().batch(BATCH).map(split)
    batches = iter(dataset.prefetch(auto))
    return rate(lambda: next(batches))


CONTESTANTS = {
    "`tokenmill.jax.Loader`": ["jax"],
    "JAX, slices of a memory map stacked": ["jax_stack"],
    "JAX, a memory map indexed": ["jax_index"],
    "`tokenmill.grain.make_dataset`": ["grain"],
    "Grain, rows of a memory map, its default of 16 threads": ["grain_rows", "default", "0"],
    "Grain, rows of a memory map, no threads": ["grain_rows", "none", "0"],
    "Grain, rows of a memory map, 2 workers": ["grain_rows", "none", "2"],
    "`tokenmill.tensorflow.make_dataset`": ["tensorflow"],
    "tf.data, `from_generator` of rows of a memory map": ["tensorflow_rows", "generator"],
    "tf.data, `map` over rows of a memory map": ["tensorflow_rows", "map"],
    "tf.data, the whole file in a tensor": ["tensorflow_rows", "memory"],
}


def measure(path: Path, words: list[str]) -> float:
    """One measurement in a fresh process."""
    command = [sys.executable, __file__, "--contestant", *words, "--path", str(path)]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, env=quiet)
    if done.returncode:
        sys.exit(done.stderr)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokens", type=int, default=50, help="millions of tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestant", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contestant:
        name, *words = args.contestant
        print(globals()[f"run_{name}"](args.path, *words), flush=True)
        os._exit(0)  # do not wait for batches that the framework is still reading ahead
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ids.bin"
        ids = np.random.default_rng(0).integers(0, 50257, args.tokens * 1_000_000)
        ids.astype(np.uint16).tofile(path)
        del ids
        best = dict.fromkeys(CONTESTANTS, 0.0)
        for _ in range(args.rounds):
            for name, words in CONTESTANTS.items():
                speed = measure(path, words)
                best[name] = max(best[name], speed)
                print(f"{name:<56} {speed:8.0f} M tokens/s", flush=True)
    rows = [
        {"what": name, "M tokens/s": round(speed), "tokenmill against it": _compare(name, best)}
        for name, speed in best.items()
    ]
    record("frameworks", {"tokens": args.tokens * 1_000_000, "rounds": args.rounds}, rows)


def _compare(name: str, best: dict[str, float]) -> str:
    """How many times as fast tokenmill is in the same framework."""
    own = next(
        other
        for other in CONTESTANTS
        if other.startswith("`") and CONTESTANTS[name][0].startswith(CONTESTANTS[other][0])
    )
    return "" if name == own else f"{best[own] / best[name]:.1f} times"


if __name__ == "__main__":
    main()
