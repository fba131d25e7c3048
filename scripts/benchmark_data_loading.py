"""Compare the two loaders of the guide about Grain, on the same text and the same batches.

    python scripts/benchmark_data_loading.py --num_batches 100 --batch_size 512

Each runs in its own process until its arrays are ready on JAX's device. The text is tokenized once,
before that, and timed separately.
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
    """Measure the loaders and print a table."""
    arguments = _parse()
    if arguments.only:
        print(json.dumps(_measure(arguments)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        arguments.cache_dir = folder
        if arguments.dataset_name is None:
            arguments.dataset_name = _write_text(Path(folder) / "stories.txt", arguments)
        try:
            started = time.perf_counter()
            source = tokenmill.compat.TextDataSource(
                arguments.dataset_name,
                "train",
                arguments.tokenizer_name,
                arguments.maxlen,
                cache_dir=folder,
            )
        except TokenmillError as error:
            flags = {name: f"--{name}" for name in vars(arguments)} | {"max_length": "--maxlen"}
            print(name_flags(str(error), flags), file=sys.stderr)
            return error.exit_status
        seconds = time.perf_counter() - started
        print(f"{len(source):,} examples of {arguments.maxlen:,} tokens, ready in {seconds:.1f} s")
        print(f"{'loader':<42} {'first batch':>12} {'batches/s':>12} {'tokens/s':>15}")
        for name, title in LOADERS.items():
            if not getattr(arguments, f"skip_{name}"):
                first, rate = _run(name, arguments)
                tokens = rate * arguments.batch_size * arguments.maxlen
                print(f"{title:<42} {first:>10.2f} s {rate:>12,.1f} {tokens:>15,.0f}", flush=True)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--num_batches", type=int, default=100, help="default: 100")
    parser.add_argument("--batch_size", type=int, default=512, help="default: 512")
    parser.add_argument("--maxlen", type=int, default=256, help="tokens per example: 256")
    parser.add_argument(
        "--dataset_name", help="a text or a prepared dataset; by default random text"
    )
    parser.add_argument("--tokenizer_name", default="gpt2", help="default: gpt2")
    parser.add_argument("--skip_tf", action="store_true", help="omit TensorFlow")
    parser.add_argument("--skip_grain", action="store_true", help="omit Grain")
    parser.add_argument("--only", choices=list(LOADERS), help=argparse.SUPPRESS)
    parser.add_argument("--cache_dir", help=argparse.SUPPRESS)
    return parser.parse_args()


def _write_text(path: Path, arguments: argparse.Namespace) -> str:
    """Write random stories, with enough examples for the batches."""
    words = random.Random(0)
    stories = (
        " ".join(words.choices(WORDS, k=words.randrange(20, 2 * arguments.maxlen)))
        for _ in range(min(arguments.num_batches * arguments.batch_size, 50_000))
    )
    path.write_text("<|endoftext|>".join(stories))
    return str(path)


def _run(name: str, arguments: argparse.Namespace) -> tuple[float, float]:
    command = [sys.executable, __file__, "--only", name]
    for setting in ("num_batches", "batch_size", "maxlen", "dataset_name", "tokenizer_name"):
        command += [f"--{setting}", str(getattr(arguments, setting))]
    command += ["--cache_dir", arguments.cache_dir]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(ended.stderr)
    first, rate = json.loads(ended.stdout.splitlines()[-1])
    return first, rate


def _measure(arguments: argparse.Namespace) -> tuple[float, float]:
    """The seconds until the first batch, after all imports, and the batches per second after it."""
    import jax

    data = {
        "dataset_name": arguments.dataset_name,
        "batch_size": arguments.batch_size,
        "cache_dir": arguments.cache_dir,
    }
    # Enough epochs that a small text never ends.
    configs = (
        data,
        {"maxlen": arguments.maxlen},
        {"num_epochs": 1_000_000},
        arguments.tokenizer_name,
        None,
    )
    jax.devices()
    load: Any = getattr(tokenmill.compat, LOADERS[arguments.only].partition(", ")[2])
    started = time.perf_counter()
    batches = load(*configs)
    batches = iter(batches) if arguments.only == "grain" else batches.as_numpy_iterator()
    next(batches)
    first = time.perf_counter() - started
    started = time.perf_counter()
    count = 0
    for batch in islice(batches, arguments.num_batches):
        for part in batch:
            jax.device_put(part).block_until_ready()
        count += 1
    return first, count / (time.perf_counter() - started)


if __name__ == "__main__":
    sys.exit(main())
