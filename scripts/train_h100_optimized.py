"""Train on local .npy files of GPT-2 ids, with the flags of the guide about them and settings for one H100.

    python scripts/train_h100_optimized.py
    python scripts/train_h100_optimized.py --train_data_path train.npy --val_data_path val.npy \\
        --batch_size 64

A step has 524,288 tokens; --batch_size says how many sequences of them the GPU takes at once, and so
how much of its memory is used, not what is learned. It is the command `tokenmill train` with these
settings, which takes any of its own flags here too; see `tokenmill train --help`.
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
        allow_abbrev=False,  # what is not known here is for `tokenmill train`
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
    told, rest = parser.parse_known_args()
    for name, path in (("Training", told.train_data_path), ("Validation", told.val_data_path)):
        if not Path(path).exists():
            print(f"❌ {name} data file not found: {path}", file=sys.stderr)
            print(
                f"Make it with: tokenmill pretokenize {Path(path).with_suffix('.txt')}",
                file=sys.stderr,
            )
            return 1
    typed = {argument.partition("=")[0] for argument in rest}
    if "--config" not in typed:  # which otherwise says all that no flag says
        told.max_length, told.batch_size = told.max_length or 1024, told.batch_size or 32
        told.seed = 42 if told.seed is None else told.seed
    flags = {
        "--name": told.model_name,
        "--tokenizer": "gpt2",
        "--data": told.train_data_path,
        "--val": told.val_data_path,
        "--config": "124M",
        "--seq-len": told.max_length,
        "--micro-batch": told.batch_size,
        "--seed": told.seed,
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
