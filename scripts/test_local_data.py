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
BLOCK = 1 << 22  # tokens read at once


def main() -> int:
    """Check both files and print the results."""
    arguments = _parse()
    paths = arguments.train_data_path, arguments.val_data_path
    status = 0
    for name, path in zip(NAMES, paths, strict=True):
        try:
            _print_statistics(name, path, arguments.max_length, arguments.dtype)
        except TokenmillError as error:
            _print_error(error, arguments)
            status = error.exit_status
    if status:
        return status
    try:
        loaders = create_dataloaders(
            *paths,
            batch_size=arguments.batch_size,
            max_length=arguments.max_length,
            num_workers=arguments.num_workers,
            prefetch_factor=arguments.prefetch_factor,
            dtype=arguments.dtype,
        )
        for name, loader in zip(NAMES, loaders, strict=True):
            _print_speed(name, loader, arguments.batches)
    except TokenmillError as error:
        _print_error(error, arguments)
        return error.exit_status
    return 0


def _print_error(error: TokenmillError, arguments: argparse.Namespace) -> None:
    print(name_flags(str(error), {name: f"--{name}" for name in vars(arguments)}), file=sys.stderr)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--train_data_path", default=TRAIN_PATH, help=f"default: {TRAIN_PATH}")
    parser.add_argument("--val_data_path", default=VAL_PATH, help=f"default: {VAL_PATH}")
    parser.add_argument("--dtype", help="dtype of files without a header, such as int32")
    for name, default, least, what in (
        ("batch_size", 32, 1, "sequences in a batch"),
        ("max_length", 1024, 1, "tokens in a sequence"),
        ("num_workers", 8, 0, "worker processes of each loader"),
        ("prefetch_factor", 4, 1, "batches that each worker prefetches"),
        ("batches", 100, 1, "batches to read from each file"),
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

    parse.__name__ = "whole number"  # for argparse's error message
    return parse


def _print_statistics(name: str, path: str, max_length: int, dtype: str | None) -> None:
    dataset = LocalTokenizedDataset(open_local(path, name, dtype), max_length)
    tokens = dataset.tokens
    lowest = highest = tokens[0]
    for first in range(0, len(tokens), BLOCK):
        block = tokens[first : first + BLOCK]
        lowest, highest = min(lowest, int(block.min())), max(highest, int(block.max()))
    print(f"{name}: {path}")
    print(f"  tokens:     {len(tokens):,} of {tokens.dtype.name}")
    print(f"  sequences:  {dataset.num_sequences:,} of {max_length:,} tokens")
    print(f"  vocabulary: ids from {lowest:,} to {highest:,}")


def _print_speed(name: str, loader: DataLoader[Batch], batches: int) -> None:
    read = iter(loader)
    first = next(read, None)  # waits for the workers to start
    if first is None:
        print(f"{name}: no batches, because there are fewer sequences than ranks")
        return
    started, tokens = time.perf_counter(), 0
    for inputs, _ in islice(read, batches - 1):
        tokens += inputs.numel()
    seconds = time.perf_counter() - started
    rows, length = first.inputs.shape
    speed = f", {tokens / seconds:,.0f} tokens/s" if tokens else ""
    print(f"{name}: batches of {rows} x {length}, {len(loader):,} per epoch{speed}")


if __name__ == "__main__":
    sys.exit(main())
