"""Augmentation on the fly: masked inputs, random inputs, and fill-in-the-middle.

Guarantees: the changes to a row depend only on (seed, row number), not on batches, ranks or
interruptions. Targets of masked and random inputs do not change. An id outside the vocabulary is an
error that names its row, and never reaches the model.

Costs: a keyed hash of each position, computed for all rows at once, takes about 10 ns per token for
each augmentation in use. There is no random state. Without augmentation, only the ids are checked.

In each chosen row, fill-in-the-middle takes the tokens of one document, cuts them at two positions
into prefix, middle and suffix, and writes PREFIX prefix SUFFIX suffix MIDDLE middle. The three
markers are the ids after the vocabulary, for which `padded_vocab` makes room. The markers would
make the row three tokens longer, so its last three tokens are omitted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError, UsageError
from tokenmill.order.permutation import derive_keys, make_key
from tokenmill.training.config import Config
from tokenmill.training.model import MARKERS

Ids = npt.NDArray[Any]
Numbers = npt.NDArray[np.uint64]


def augment(
    tokens: Ids, first_row: int, *, config: Config, vocab: int, eot_id: int | None
) -> tuple[Ids, Ids]:
    """Return inputs and targets (rows, seq_len), made from rows of tokens (rows, seq_len + 1).

    The rows are consecutive. First, some rows are rearranged for fill-in-the-middle. Then some
    inputs are replaced with the end-of-text id, and then some with random ids. Without
    augmentation, inputs and targets are views of `tokens`.

    >>> rows = np.arange(12).reshape(2, 6)
    >>> inputs, targets = augment(rows, 0, config=Config(), vocab=12, eot_id=None)
    >>> inputs.tolist()
    [[0, 1, 2, 3, 4], [6, 7, 8, 9, 10]]
    >>> inputs, targets = augment(rows, 0, config=Config(fim_fraction=1), vocab=12, eot_id=None)
    >>> np.hstack([inputs, targets[:, -1:]]).tolist()
    [[12, 13, 0, 1, 2, 14], [12, 6, 13, 14, 7, 8]]
    """
    check_ids(tokens, vocab, first_row)
    rows = np.arange(first_row, first_row + len(tokens))
    if config.fim_fraction:
        tokens = _rearrange(tokens, _keys(config, "fim", rows), config.fim_fraction, vocab, eot_id)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    if config.mask_fraction:
        if eot_id is None:
            raise UsageError(
                f"`mask_fraction` is {config.mask_fraction}, but the tokens have no end-of-text id to "
                "mask with. Give `eot_id`, or use `noise_fraction`."
            )
        chosen = _draw(_keys(config, "mask", rows), inputs.shape[1]) < _below(config.mask_fraction)
        inputs = np.where(chosen & (inputs < vocab), np.asarray(eot_id, tokens.dtype), inputs)
    if config.noise_fraction:
        keys = _keys(config, "noise", rows)
        chosen = _draw(keys, inputs.shape[1]) < _below(config.noise_fraction)
        wrong = _pick(_draw(keys, inputs.shape[1], 1), vocab)
        inputs = np.where(chosen & (inputs < vocab), wrong.astype(tokens.dtype), inputs)
    return inputs, targets


def check_ids(tokens: Ids, vocab: int, first_row: int | None = None) -> None:
    """Raise `DatasetError` unless all ids are from 0 to vocab - 1.

    The error names the row at fault. `first_row` is the number of the first row in the run, or None
    for rows of the validation set.

    >>> check_ids(np.array([[1, 2], [3, 70_000]]), 50_257, first_row=8)
    Traceback (most recent call last):
    ...
    tokenmill.errors.DatasetError: row 9 of the run contains the id 70000, but the vocabulary has the \
ids 0 to 50,256. Give the right `tokenizer` or `vocab_size`. If they are right already, the tokens \
are damaged or in another format.
    """
    if not tokens.size or (int(tokens.max()) < vocab and int(tokens.min()) >= 0):
        return
    row, place = np.argwhere((tokens >= vocab) | (tokens < 0))[0].tolist()
    where = (
        "a row of the validation set"
        if first_row is None
        else f"row {first_row + row:,} of the run"
    )
    raise DatasetError(
        f"{where} contains the id {tokens[row, place]}, but the vocabulary has the ids 0 to "
        f"{vocab - 1:,}. Give the right `tokenizer` or `vocab_size`. If they are right already, the "
        "tokens are damaged or in another format."
    )


def _rearrange(tokens: Ids, keys: Numbers, fraction: float, vocab: int, eot_id: int | None) -> Ids:
    """Return the rows, with one document rearranged for fill-in-the-middle in some of them."""
    length = tokens.shape[1]
    room = length - MARKERS
    draws = _draw(keys, 4)
    chosen = np.flatnonzero(draws[:, 0] < _below(fraction))
    if room < 2 or not len(chosen):
        return tokens
    some, draws = tokens[chosen], draws[chosen]
    start, end = _find_part(some[:, :room], _pick(draws[:, 1], room), eot_id)
    cuts = start[:, None] + _pick(draws[:, 2:], (end - start + 1)[:, None])
    first, second = cuts.min(axis=1, keepdims=True), cuts.max(axis=1, keepdims=True)
    start, end = start[:, None], end[:, None]
    # `origin` says, for each position of the new row, where in the old row its token is. Each
    # assignment replaces the positions left of a border, and the next border is further left.
    place = np.broadcast_to(np.arange(length), some.shape)
    suffix, middle = first + 2, first + 3 + end - second  # their first positions
    origin = place - 3
    origin = np.where(place < end + 3, place - middle + first, origin)
    origin = np.where(place < middle, place - suffix + second, origin)
    origin = np.where(place < suffix, place - 1, origin)
    origin = np.where(place < start, place, origin)
    wide = np.result_type(tokens.dtype, np.min_scalar_type(vocab + MARKERS - 1))
    made = np.take_along_axis(some, np.clip(origin, 0, length - 1), axis=1).astype(wide)
    for mark, at in enumerate((start, suffix - 1, middle - 1)):
        np.put_along_axis(made, at, vocab + mark, axis=1)
    rearranged = tokens.astype(wide)
    rearranged[chosen] = made
    return rearranged


def _find_part(
    rows: Ids, pivots: npt.NDArray[np.int64], eot_id: int | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For each row, find where the document around the row's pivot position starts and ends.

    The end-of-text ids on both sides are excluded. If they are adjacent, the range is empty.
    """
    count, length = rows.shape
    if eot_id is None:
        return np.zeros(count, np.int64), np.full(count, length)
    places = np.arange(length)
    ends = rows == eot_id
    before = np.where(ends & (places < pivots[:, None]), places, -1).max(axis=1)
    after = np.where(ends & (places >= pivots[:, None]), places, length).min(axis=1)
    return before + 1, after


def _keys(config: Config, kind: str, rows: npt.NDArray[np.int64]) -> Numbers:
    """Return a 64-bit key for each row number, from which `_draw` makes the row's random numbers.

    Each `kind` of augmentation has its own keys.
    """
    return derive_keys(make_key("augment", kind, config.seed), rows)


def _draw(keys: Numbers, count: int, series: int = 0) -> Numbers:
    """Return `count` random 53-bit numbers for each key, as an array (keys, count).

    The same key and `series` always give the same numbers; another series gives others.
    """
    numbers = np.arange(series * count, (series + 1) * count)
    return derive_keys(keys[:, None], numbers) >> np.uint64(11)


def _below(fraction: float) -> np.uint64:
    """Return the threshold t such that this fraction of all 53-bit numbers is below t."""
    return np.uint64(round(fraction * 2**53))


def _pick(draws: Numbers, sizes: Any) -> npt.NDArray[np.int64]:
    """Map numbers of 53 bits to integers from 0 to size - 1."""
    high = (draws >> np.uint64(21)).astype(np.int64)
    return np.asarray((high * sizes) >> 32, np.int64)
