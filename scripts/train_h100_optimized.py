"""Train on local .npy files of GPT-2 ids, with the flags of their guide and settings for one H100.

    python scripts/train_h100_optimized.py
    python scripts/train_h100_optimized.py --train_data_path train.npy --val_data_path val.npy \\
        --batch_size 64

A step has 524,288 tokens; --batch_size is the number of sequences that the GPU processes at once. It
changes the memory used, not the result. It runs `tokenmill train` with these settings and accepts its
flags too; see `tokenmill train --help`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tokenmill.cli import main as tokenmill


def main() -> int:
    """Translate the guide's flags."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,  # unknown flags are for `tokenmill train`
    )
    default = "training_data/owt_train_tokens.npy"
    parser.add_argument("--train_data_path", default=default, help=f"default: {default}")
    default = "training_data/owt_valid_tokens.npy"
    parser.add_argument("--val_data_path", default=default, help=f"default: {default}")
    parser.add_argument("--model_name", default="h100", help="the run is in runs/MODEL_NAME")
    parser.add_argument("--batch_size", type=int, help="default: 32")
    parser.add_argument("--max_length", type=int, help="default: 1024")
    parser.add_argument("--seed", type=int, help="default: 42")
    for name in ("--num_workers", "--prefetch_factor"):
        parser.add_argument(name, help="not needed: one thread reads ahead")
    given, rest = parser.parse_known_args()
    for name, path in (("Training", given.train_data_path), ("Validation", given.val_data_path)):
        if not Path(path).exists():
            print(f"❌ {name} data file not found: {path}", file=sys.stderr)
            print(
                f"Make it with: tokenmill pretokenize {Path(path).with_suffix('.txt')}",
                file=sys.stderr,
            )
            return 1
    typed = {argument.partition("=")[0] for argument in rest}
    if "--config" not in typed:  # a file of settings replaces these defaults
        given.max_length, given.batch_size = given.max_length or 1024, given.batch_size or 32
        given.seed = 42 if given.seed is None else given.seed
    flags = {
        "--name": given.model_name,
        "--tokenizer": "gpt2",
        "--data": given.train_data_path,
        "--val": given.val_data_path,
        "--config": "124M",
        "--seq-len": given.max_length,
        "--micro-batch": given.batch_size,
        "--seed": given.seed,
    }
    kept = [
        f"{name}={value}"
        for name, value in flags.items()
        if value is not None and name not in typed
    ]
    own = {
        "name": "--model_name",
        "data": "--train_data_path",
        "val": "--val_data_path",
        "seq_len": "--max_length",
        "micro_batch": "--batch_size",
    }
    return tokenmill(["train", *kept, *rest], flags=own)


if __name__ == "__main__":
    sys.exit(main())
