"""Check the two token files of the guide about local data: statistics, batches, speed.

    python scripts/test_local_data.py --train_data_path train.npy --val_data_path val.npy

The files are read as `tokenmill.compat.create_dataloaders` reads them. Exit status 1 if one is
missing or damaged.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from itertools import islice

from torch.utils.data import DataLoader

from tokenmill.cli.flags import name_flags
from tokenmill.compat.local import (
    TRAIN_PATH,
    VAL_PATH,
    LocalTokenizedDataset,
    create_dataloaders,
    open_local,
)
from tokenmill.errors import TokenmillError
from tokenmill.torch import Batch

NAMES = ("Training", "Validation")
PIECE = 1 << 22  # tokens that are looked at together


def main() -> int:
    """Check both files, and tell."""
    told = _parse()
    paths = told.train_data_path, told.val_data_path
    status = 0
    for name, path in zip(NAMES, paths, strict=True):
        try:
            _tell_statistics(name, path, told.max_length, told.dtype)
        except TokenmillError as error:
            _complain(error, told)
            status = error.exit_status
    if status:
        return status
    try:
        loaders = create_dataloaders(
            *paths,
            batch_size=told.batch_size,
            max_length=told.max_length,
            num_workers=told.num_workers,
            prefetch_factor=told.prefetch_factor,
            dtype=told.dtype,
        )
        for name, loader in zip(NAMES, loaders, strict=True):
            _tell_speed(name, loader, told.batches)
    except TokenmillError as error:
        _complain(error, told)
        return error.exit_status
    return 0


def _complain(error: TokenmillError, told: argparse.Namespace) -> None:
    print(name_flags(str(error), {name: f"--{name}" for name in vars(told)}), file=sys.stderr)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--train_data_path", default=TRAIN_PATH, help=f"default: {TRAIN_PATH}")
    parser.add_argument("--val_data_path", default=VAL_PATH, help=f"default: {VAL_PATH}")
    parser.add_argument("--dtype", help="of files that are ids without a header, such as int32")
    for name, default, least, what in (
        ("batch_size", 32, 1, "sequences in a batch"),
        ("max_length", 1024, 1, "tokens in a sequence"),
        ("num_workers", 8, 0, "worker processes of each loader"),
        ("prefetch_factor", 4, 1, "batches that each of them makes ahead"),
        ("batches", 100, 1, "how many batches to read of each file"),
    ):
        parser.add_argument(
            f"--{name}", type=_at_least(least), default=default, help=f"{what}: {default}"
        )
    return parser.parse_args()


def _at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if (number := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return number

    parse.__name__ = "whole number"  # as argparse calls it where the text is none
    return parse


def _tell_statistics(name: str, path: str, max_length: int, dtype: str | None) -> None:
    dataset = LocalTokenizedDataset(open_local(path, name, dtype), max_length)
    tokens = dataset.tokens
    lowest = highest = tokens[0]
    for first in range(0, len(tokens), PIECE):
        piece = tokens[first : first + PIECE]
        lowest, highest = min(lowest, int(piece.min())), max(highest, int(piece.max()))
    print(f"{name}: {path}")
    print(f"  tokens:     {len(tokens):,} of {tokens.dtype.name}")
    print(f"  sequences:  {dataset.num_sequences:,} of {max_length:,} tokens")
    print(f"  vocabulary: ids from {lowest:,} to {highest:,}")


def _tell_speed(name: str, loader: DataLoader[Batch], batches: int) -> None:
    read = iter(loader)
    first = next(read, None)  # which waits for the workers to start
    if first is None:
        print(f"{name}: no batch, because there are fewer sequences than ranks")
        return
    started, tokens = time.perf_counter(), 0
    for inputs, _ in islice(read, batches - 1):
        tokens += inputs.numel()
    seconds = time.perf_counter() - started
    rows, length = first.inputs.shape
    speed = f", {tokens / seconds:,.0f} tokens/s" if tokens else ""
    print(f"{name}: batches of {rows} x {length}, {len(loader):,} an epoch{speed}")


if __name__ == "__main__":
    sys.exit(main())
