"""Compare the two loaders of the guide about Grain, on the same text and the same batches.

    python scripts/benchmark_data_loading.py --num_batches 100 --batch_size 512

Each runs in a process of its own, and ends with arrays on JAX's device, which are waited for. The
text is tokenized before, once, and that is told apart.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import tokenmill.compat
from tokenmill.cli.flags import name_flags
from tokenmill.errors import TokenmillError

LOADERS = {"grain": "Grain, load_text_dataset", "tf": "tf.data, load_text_dataset_tf_fallback"}
WORDS = "the of and to in that was his he it with is for as had you not be her on at by".split()


def main() -> int:
    """Measure what was not skipped, and print a table."""
    told = _parse()
    if told.only:
        print(json.dumps(_measure(told)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        told.cache_dir = folder
        if told.dataset_name is None:
            told.dataset_name = _write_text(Path(folder) / "stories.txt", told)
        try:
            started = time.perf_counter()
            source = tokenmill.compat.TextDataSource(
                told.dataset_name, "train", told.tokenizer_name, told.maxlen, cache_dir=folder
            )
        except TokenmillError as error:
            flags = {name: f"--{name}" for name in vars(told)} | {"max_length": "--maxlen"}
            print(name_flags(str(error), flags), file=sys.stderr)
            return error.exit_status
        seconds = time.perf_counter() - started
        print(f"{len(source):,} examples of {told.maxlen:,} tokens, ready in {seconds:.1f} s")
        print(f"{'loader':<42} {'first batch':>12} {'batches/s':>12} {'tokens/s':>15}")
        for name, title in LOADERS.items():
            if not getattr(told, f"skip_{name}"):
                first, rate = _run(name, told)
                tokens = rate * told.batch_size * told.maxlen
                print(f"{title:<42} {first:>10.2f} s {rate:>12,.1f} {tokens:>15,.0f}", flush=True)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--num_batches", type=int, default=100, help="default: 100")
    parser.add_argument("--batch_size", type=int, default=512, help="default: 512")
    parser.add_argument("--maxlen", type=int, default=256, help="tokens of an example: 256")
    parser.add_argument("--dataset_name", help="a text, or a prepared dataset; else one is made up")
    parser.add_argument("--tokenizer_name", default="gpt2", help="default: gpt2")
    parser.add_argument("--skip_tf", action="store_true", help="leave TensorFlow out")
    parser.add_argument("--skip_grain", action="store_true", help="leave Grain out")
    parser.add_argument("--only", choices=list(LOADERS), help=argparse.SUPPRESS)
    parser.add_argument("--cache_dir", help=argparse.SUPPRESS)
    return parser.parse_args()


def _write_text(path: Path, told: argparse.Namespace) -> str:
    """Some stories of words, with as many examples as the batches need."""
    words = random.Random(0)
    stories = (
        " ".join(words.choices(WORDS, k=words.randrange(20, 2 * told.maxlen)))
        for _ in range(min(told.num_batches * told.batch_size, 50_000))
    )
    path.write_text("<|endoftext|>".join(stories))
    return str(path)


def _run(name: str, told: argparse.Namespace) -> tuple[float, float]:
    command = [sys.executable, __file__, "--only", name]
    for setting in ("num_batches", "batch_size", "maxlen", "dataset_name", "tokenizer_name"):
        command += [f"--{setting}", str(getattr(told, setting))]
    command += ["--cache_dir", told.cache_dir]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(ended.stderr)
    first, rate = json.loads(ended.stdout.splitlines()[-1])
    return first, rate


def _measure(told: argparse.Namespace) -> tuple[float, float]:
    """How long the first batch takes, once all is imported, and how many follow in a second."""
    import jax

    data = {
        "dataset_name": told.dataset_name,
        "batch_size": told.batch_size,
        "cache_dir": told.cache_dir,
    }
    # More epochs than can be asked for, so that a small text is enough.
    configs = (data, {"maxlen": told.maxlen}, {"num_epochs": 1_000_000}, told.tokenizer_name, None)
    jax.devices()
    load: Any = getattr(tokenmill.compat, LOADERS[told.only].partition(", ")[2])
    started = time.perf_counter()
    batches = load(*configs)
    batches = iter(batches) if told.only == "grain" else batches.as_numpy_iterator()
    next(batches)
    first = time.perf_counter() - started
    started = time.perf_counter()
    count = 0
    for batch in islice(batches, told.num_batches):
        for part in batch:
            jax.device_put(part).block_until_ready()
        count += 1
    return first, count / (time.perf_counter() - started)


if __name__ == "__main__":
    sys.exit(main())
