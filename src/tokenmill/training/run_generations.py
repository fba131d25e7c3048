"""Open the data of a run as the run began with it, even if the dataset has grown since.

A run records the number of its tokens and their fingerprint in `data.json`. The generation of the
dataset with these tokens is opened again, so the run resumes with its exact rows.

Costs: opens the manifest once for each generation that is tried, and compares a sample of the tokens
of those that have the right length.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.dataset.opening import Dataset
from tokenmill.dataset.opening import open as open_dataset
from tokenmill.errors import DatasetError, UsageError
from tokenmill.store.tokens import Tokens, is_same_data
from tokenmill.training.run_folder import DATA_NAME
from tokenmill.training.run_reading import SavedSource, read_run_data


def read_sources(folder: Path) -> Mapping[str, SavedSource]:
    """Return the training tokens of each source of a run, by name; empty if they are unknown."""
    if not (folder / DATA_NAME).exists():
        return {}
    try:
        return read_run_data(folder).rows.sources
    except DatasetError:  # damaged: the checkpoint will show whether the data is the same
        return {}


class Opened(NamedTuple):
    """A dataset, and the same as a run reads it: perhaps with the end of `train` held out."""

    whole: Dataset
    read: Dataset


def open_saved(
    path: str,
    saved: SavedSource | None,
    *,
    val_fraction: float | None = None,
    keeps_val: bool = False,
    **options: Any,
) -> Opened:
    """Open the generation of a dataset that has saved tokens in `train`; the newest if none has.

    With `val_fraction`, the end of `train` is held out; with `keeps_val` only if there is no `val`.
    """
    if saved is not None:
        manifest = open_dataset(path, **options).manifest
        last = 1 if manifest is None else manifest.generation
        numbers = dict.fromkeys((min(saved.generation, last), *range(last, 0, -1)))
        for number in numbers if last > 1 else ():
            options_then = {**options, "generation": number}
            with suppress(UsageError):  # nothing can be held out of that generation
                found = _open(path, val_fraction, keeps_val, options_then)
                if "train" in found.read and _has(found.read["train"], saved):
                    return found
    return _open(path, val_fraction, keeps_val, options)


def _open(
    path: str, val_fraction: float | None, keeps_val: bool, options: Mapping[str, Any]
) -> Opened:
    whole = open_dataset(path, **options)
    if not val_fraction or (keeps_val and "val" in whole.splits):
        return Opened(whole, whole)
    return Opened(whole, open_dataset(path, **options, val_fraction=val_fraction))


def _has(tokens: Tokens, saved: SavedSource) -> bool:
    # Compare the lengths first: an identity may need reading.
    return len(tokens) == saved.tokens and is_same_data(saved.fingerprint, tokens.identity)
