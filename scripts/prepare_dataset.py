"""Prepare a dataset of token shards, with the flags and defaults of the sharded-dataset guide.

    python scripts/prepare_dataset.py --input_files wiki.txt books.txt --out_dir data/corpus

It runs `tokenmill prepare` and also accepts the flags of that command: see `tokenmill prepare --help`.
"""

from __future__ import annotations

import argparse
import sys

from tokenmill.cli import main as tokenmill


def main() -> int:
    """Translate the guide's flags."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,  # unknown flags are passed on to `tokenmill prepare`
    )
    parser.add_argument("--input_files", nargs="+", required=True, help="text files, in order")
    parser.add_argument("--out_dir", required=True, help="the dataset's folder")
    parser.add_argument("--tokenization", default="gpt2", help="a tokenizer (default: gpt2)")
    parser.add_argument("--tokens_per_shard", default="10000000", help="default: 10,000,000")
    parser.add_argument("--no_normalize", action="store_true", help="keep the text as it is")
    parser.add_argument("--no_dedup", action="store_true", help="keep repeated lines")
    args, rest = parser.parse_known_args()
    command = ["prepare", *args.input_files, "--out", args.out_dir]
    command += ["--tokenizer", args.tokenization, "--tokens-per-shard", args.tokens_per_shard]
    command += ["--val-fraction", "0.1", "--dedup", "none" if args.no_dedup else "lines"]
    if args.no_normalize:
        command.append("--no-normalize")
    own = {
        "inputs": "--input_files",
        "out": "--out_dir",
        "tokenizer": "--tokenization",
        "tokens_per_shard": "--tokens_per_shard",
    }
    return tokenmill([*command, *rest], flags=own)


if __name__ == "__main__":
    sys.exit(main())
