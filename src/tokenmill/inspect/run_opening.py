"""Open the `RunView` of a run: from its folder, or from its data and the settings of its loader.

Guarantees: the view of a folder is refused if the tokens are not those that the run was trained on,
and names the cure if they were moved or have changed. The folder of a run is untrusted: see
`training/run_reading.py`.

Costs: reads manifests and, for the folder of a run, hashes of a sample of the tokens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.dataset.named import NamedPath, parse_named
from tokenmill.dataset.opening import Dataset, load_saved_tokenizer
from tokenmill.dataset.opening import open as open_dataset
from tokenmill.dataset.paths import AnyPath
from tokenmill.errors import DatasetError, StateError, TokenmillError, UsageError
from tokenmill.formats.base import Contents
from tokenmill.hub.paths import is_hub_path
from tokenmill.inspect.run_view import Phase, RunView
from tokenmill.load.mixture import Mixture
from tokenmill.load.rows import RunRows
from tokenmill.load.settings import RowSettings, check_whole
from tokenmill.load.state import MOST_ROWS
from tokenmill.order.mixture import DEFAULT_BLOCK
from tokenmill.order.rows import Kind
from tokenmill.storage.addresses import is_address
from tokenmill.storage.names import TOKENIZER_NAME
from tokenmill.storage.reading import open_foreign
from tokenmill.store.shards import ArrayShard
from tokenmill.store.tokens import Tokens, is_same_data
from tokenmill.tokenizers import Tokenizer
from tokenmill.training.config import Config
from tokenmill.training.data import IN_MEMORY_VAL, open_data
from tokenmill.training.run_folder import CHECKPOINTS_NAME, CONFIG_NAME, DATA_NAME
from tokenmill.training.run_generations import open_saved
from tokenmill.training.run_reading import DataOrigin, RowIdentity, read_run_data
from tokenmill.wording import brief, one_line


def view_data(
    data: AnyPath | Sequence[AnyPath],
    *,
    seq_len: int,
    batch_size: int = 1,
    world_size: int = 1,
    seed: int = 0,
    order: Kind = "shuffled",
    block_rows: int | None = None,
    group_blocks: int | None = None,
    split: str = "train",
    changes: Mapping[int, Mapping[str, float]] | None = None,
    block: int = DEFAULT_BLOCK,
    **opening: Any,
) -> RunView:
    """Return how a loader with these settings reads `data`: a path, or several NAME=PATH:WEIGHT.

    `batch_size` is the number of rows per step on each rank. `changes` and `block` are as in
    `Mixture`, and the other arguments as in `Loader` and `tokenmill.open`.
    """
    settings = RowSettings(
        seq_len=seq_len, seed=seed, order=order, block_rows=block_rows, group_blocks=group_blocks
    )
    batch_size = check_whole("batch_size", batch_size, 1)
    world_size = check_whole("world_size", world_size, 1)
    named = parse_named([data] if isinstance(data, (str, os.PathLike)) else data)
    if not named:
        raise UsageError("`data` is empty. Give a dataset, or several as NAME=PATH:WEIGHT.")
    if batch_size * world_size >= MOST_ROWS:
        raise UsageError(
            f"a step would have {brief(batch_size * world_size)} rows: `batch_size` times `world_size` "
            "must be below 2**62."
        )
    options = {"cache_bytes": 0, **opening}  # without a cache, since only a few rows are read
    fraction = options.pop("val_fraction", None)
    whole = {one.name: open_dataset(one.path, **options) for one in named}
    datasets = _hold_out(named, whole, options, fraction)
    phase = Phase(step=0, row=0, batch_rows=batch_size * world_size, world_size=world_size)
    weights = {one.name: one.weight for one in named}
    tokens = _join(datasets, split, weights, changes or {}, block)
    rows = RunRows(tokens, settings)
    return RunView(
        datasets=datasets,
        rows=rows,
        phases=[phase],
        split=split,
        whole=whole,
        val_fraction=fraction,
    )


def open_run(
    folder: AnyPath,
    *,
    data: AnyPath | Sequence[AnyPath] = (),
    tokenizer: str | Tokenizer | None = None,
) -> RunView:
    """Return how a run of `tokenmill train` reads its data, from the run's folder.

    The folder says where the data is. If the data was moved, or was in memory, `data` names it, as
    for `tokenmill train`. If the tokens are not those of the run, raises an error. `tokenizer` is
    needed only if neither the data nor the run has one.
    """
    path = Path(folder)
    if not (path / DATA_NAME).exists():
        raise _lacks_data(path)
    record = read_run_data(path)
    given = [os.fspath(one) for one in ([data] if isinstance(data, (str, os.PathLike)) else data)]
    origin = record.origin
    if not given and origin is None:
        example = " ".join(f"{name}=PATH:WEIGHT" for name in record.rows.names or ()) or "PATH"
        raise UsageError(
            f"{path} does not say where its data is: it was made in Python, or its path is not UTF-8. Name the data: "
            f"`data={one_line(example)}`."
        )
    origin = origin or DataOrigin(data=[])
    try:
        datasets, whole, fraction = _open_data(path, origin, given, record.rows, tokenizer)
    except TokenmillError as error:
        if given or (missing := _find_missing(origin)) is None:
            raise
        cure = "Give its new place with `data`."
        if origin.input_file is not None:
            cure = "The run tokenized this text in memory: put it back."
        raise DatasetError(
            one_line(f"The data of the run {path} is missing: {missing} does not exist. ") + cure
        ) from error
    # Compare the data before its rows: other data may not even have one.
    _check_tokens(path, record.rows, datasets, is_given=bool(given))
    settings = RowSettings(
        seq_len=record.rows.seq_len,
        seed=record.rows.seed,
        order=record.rows.order,
        block_rows=record.rows.block_rows,
        group_blocks=record.rows.group_blocks,
    )
    weights, changes = _find_weights(record.rows)
    block = record.rows.block or DEFAULT_BLOCK
    rows = RunRows(_join(datasets, "train", weights, changes, block), settings)
    return RunView(
        datasets=datasets,
        rows=rows,
        phases=[
            Phase(step=one.step, row=one.row, batch_rows=one.batch_rows, world_size=one.world_size)
            for one in record.phases
        ],
        folder=path,
        whole=whole,
        val_fraction=fraction,
    )


def _open_data(
    path: Path,
    origin: DataOrigin,
    given: Sequence[str],
    rows: RowIdentity,
    tokenizer: str | Tokenizer | None,
) -> tuple[dict[str, Dataset], Mapping[str, Dataset], float | None]:
    """Open the data of a run, or the data that the user gave instead.

    Returns the datasets that the run reads, the same with what it holds out, and the fraction that
    is held out.
    """
    if not given and origin.input_file is not None:
        read, text, fraction = _open_text(path, origin)
        _check_names(path, rows, read)
        return read, text, fraction
    named = parse_named(given or origin.data)
    options = {"cache_bytes": 0, **_find_options(path, origin, tokenizer)}
    whole = {one.name: open_dataset(one.path, **options) for one in named}
    _check_names(path, rows, whole)
    datasets: dict[str, Dataset] = {}
    for one in named:
        try:
            whole[one.name], datasets[one.name] = open_saved(
                one.path,
                rows.sources[one.name],
                val_fraction=origin.val_fraction,
                keeps_val=bool(one.name),
                **options,
            )
        except UsageError:  # about `val_fraction`, which is the run's
            found = f"a part of it cannot be held out (val_fraction {origin.val_fraction:g}), as the run does"
            dataset = whole[one.name]
            raise _not_the_data(path, one.name, dataset, found, is_given=bool(given)) from None
    return datasets, whole, origin.val_fraction


def _find_missing(origin: DataOrigin) -> str | None:
    """Return the first local file or folder of a run's data that is no longer there."""
    if origin.input_file is not None:
        paths = [origin.input_file]
    else:
        paths = [one.path for one in parse_named(origin.data)]
    local = (path for path in paths if not is_address(path) and not is_hub_path(path))
    return next((path for path in local if not os.path.lexists(path)), None)


def _lacks_data(path: Path) -> DatasetError:
    if not path.exists():
        return DatasetError(f"{path} does not exist. Give the folder of a run, such as runs/NAME.")
    if any((path / name).exists() for name in (CONFIG_NAME, CHECKPOINTS_NAME)):
        return DatasetError(
            f"{path} has no {DATA_NAME}: the run was trained with an earlier version, so its folder "
            "does not say how it reads its data. Resume the run to add the file, or describe the run "
            "with `data` and the settings of its loader instead of `run`."
        )
    return DatasetError(
        f"{path} is not the folder of a run: it has no {DATA_NAME}. Give a folder such as runs/NAME."
    )


def _hold_out(
    named: Sequence[NamedPath],
    whole: Mapping[str, Dataset],
    options: Mapping[str, Any],
    fraction: float | None,
) -> dict[str, Dataset]:
    """Return the datasets with the end of each held out as `val`, as `tokenmill train` does."""
    datasets = {}
    for name, path, _ in named:
        datasets[name] = whole[name]
        if fraction and not (name and "val" in whole[name].splits):
            datasets[name] = open_dataset(path, **options, val_fraction=fraction)
    return datasets


def _find_weights(rows: RowIdentity) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
    """Return the weights at the start of a run, and the changes of weights by row."""
    if rows.names is None or not rows.weights:
        return {"": 1.0}, {}
    named = [(row, dict(zip(rows.names, each, strict=True))) for row, each in rows.weights]
    return named[0][1], dict(named[1:])


def _find_options(
    folder: Path, origin: DataOrigin, tokenizer: str | Tokenizer | None
) -> dict[str, Any]:
    names = ("dtype", "format", "vocab_size", "eot_id")
    options = {name: getattr(origin, name) for name in names}
    if tokenizer is not None:
        options["tokenizer"] = tokenizer
    elif origin.tokenizer is not None and (folder / TOKENIZER_NAME).exists():
        options["tokenizer"] = load_saved_tokenizer(folder)
    return options


def _open_text(
    folder: Path, origin: DataOrigin
) -> tuple[dict[str, Dataset], dict[str, Dataset], float]:
    """Tokenize the text file of a run in memory again, as `tokenmill train` does at every start.

    Returns the dataset that the run reads, the dataset of the whole text, and the fraction that is
    held out.
    """
    assert origin.input_file is not None
    with open_foreign(Path(origin.input_file).parent, Path(origin.input_file).name):
        pass  # a pipe is refused, because reading it may never end
    found = open_data(
        [],
        input_file=origin.input_file,
        tokenizer=load_saved_tokenizer(folder),
        config=Config(seq_len=1),  # or the part that is held out may be too short to be returned
        val_fraction=origin.val_fraction,
    )
    assert isinstance(found.train, Tokens)
    parts = [found.train] if found.val is None else [found.train, found.val]
    ids = np.concatenate([part[:] for part in parts])
    contents = Contents(
        splits={"train": ArrayShard(ids)}, eot_id=found.eot_id, vocab_size=found.vocab
    )
    whole = Dataset(Path(origin.input_file), "text", contents, found.tokenizer)
    read = replace(contents, splits={"train": ArrayShard(ids[: len(found.train)])})
    fraction = IN_MEMORY_VAL if origin.val_fraction is None else origin.val_fraction
    return {"": whole.with_contents(read)}, {"": whole}, fraction


def _join(
    datasets: Mapping[str, Dataset],
    split: str,
    weights: Mapping[str, float],
    changes: Mapping[int, Mapping[str, float]],
    block: int,
) -> Tokens | Mixture:
    if list(datasets) == [""]:
        if changes:
            raise UsageError("`changes` is for mixtures. Name each dataset: NAME=PATH:WEIGHT.")
        return datasets[""][split]
    # Use the order of the weights, because a mixture's rows depend on the order of its sources.
    sources = {name: (datasets[name][split], weight) for name, weight in weights.items()}
    return Mixture(sources, changes=changes, block=block)


def _check_names(folder: Path, there: RowIdentity, datasets: Mapping[str, Dataset]) -> None:
    expected = there.names or [""]
    if sorted(expected) != sorted(datasets):
        example = " ".join(f"{name}=PATH:WEIGHT" for name in there.names or ()) or "PATH"
        raise UsageError(
            f"{folder} was trained on {len(expected)} "
            f"dataset{'s' if len(expected) != 1 else ''}; `data` must name the same, as "
            f"{one_line(example)}."
        )


def _check_tokens(
    folder: Path, there: RowIdentity, datasets: Mapping[str, Dataset], *, is_given: bool
) -> None:
    """Raise `StateError` if the tokens are not those that the run was trained on."""
    for name, dataset in datasets.items():
        source, tokens = there.sources[name], dataset["train"]
        # Compare the lengths first: an identity may need reading.
        if source.tokens != len(tokens) or not is_same_data(source.fingerprint, tokens.identity):
            found = (
                f"expected {source.tokens:,} tokens, found {len(tokens):,} with another fingerprint"
            )
            raise _not_the_data(folder, name, dataset, found, is_given=is_given)


def _not_the_data(
    folder: Path, name: str, dataset: Dataset, found: str, *, is_given: bool
) -> StateError:
    """Return the error for data of another run, or for data that has changed."""
    source = f"source {one_line(name)}" if name else ""
    if is_given:
        place = f"{dataset.path} ({source})" if source else str(dataset.path)
        example = f"{one_line(name)}=PATH:WEIGHT" if name else "PATH"
        return StateError(
            f"The tokens of {place} are not those that the run {folder} was trained on: {found}. Give "
            f"the data of the run: `data={example}`."
        )
    place = f"{source} of the run" if source else "the run"
    return StateError(
        f"The data of {place} {folder} has changed since the training: {found}. Restore the data, or "
        "give its new place with `data`."
    )
