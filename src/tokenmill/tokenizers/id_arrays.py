"""The ids of many texts as one flat array with offsets, and the decoding of ids.

A terminated array has one extra slot after each text, which holds the end-of-text id. Tokens are
written to disk in this form. So tokenizers make terminated arrays directly if they can; otherwise
`add_terminators` makes one, at the cost of a copy.

Decoding is meant for inspecting tokens. It decodes about three million ids a second. An id outside the
vocabulary is an error that names the id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TokenizerError

Ids = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]


def add_terminators(ids: Ids, offsets: Offsets, eot_id: int | None) -> tuple[Ids, Offsets]:
    """Return ids and offsets with the end-of-text id (0 if it is None) added after each text.

    >>> ids, offsets = add_terminators(np.array([7, 8], np.uint32), np.array([0, 2, 2]), 9)
    >>> ids.tolist(), offsets.tolist()
    ([7, 8, 9, 9], [0, 3, 4])
    """
    slots = np.arange(len(offsets), dtype=np.int64)
    terminated = np.empty(len(ids) + len(offsets) - 1, dtype=np.uint32)
    is_text = np.ones(len(terminated), dtype=bool)
    ends = offsets[1:] + slots[:-1]
    is_text[ends] = False
    terminated[is_text] = ids
    terminated[ends] = eot_id or 0
    return terminated, offsets + slots


def drop_terminators(ids: Ids, offsets: Offsets) -> tuple[Ids, Offsets]:
    """Remove the terminator after each text.

    >>> ids, offsets = drop_terminators(np.array([7, 8, 0, 0], np.uint32), np.array([0, 3, 4]))
    >>> ids.tolist(), offsets.tolist()
    ([7, 8], [0, 2, 2])
    """
    is_text = np.ones(len(ids), dtype=bool)
    is_text[offsets[1:] - 1] = False
    return ids[is_text], offsets - np.arange(len(offsets), dtype=np.int64)


def join_batches(batches: Sequence[tuple[Ids, Offsets]]) -> tuple[Ids, Offsets]:
    """Join the ids of several batches into one array, with offsets into that array.

    >>> one = np.array([5, 0], np.uint32), np.array([0, 2])
    >>> ids, offsets = join_batches([one, one])
    >>> ids.tolist(), offsets.tolist()
    ([5, 0, 5, 0], [0, 2, 4])
    """
    ids = np.concatenate([np.zeros(0, np.uint32), *(ids for ids, _ in batches)])
    lengths = [np.diff(offsets) for _, offsets in batches]
    return ids, np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths]))


def terminate_texts(texts: Sequence[Ids], eot_id: int | None) -> tuple[Ids, Offsets]:
    """Join the ids of several texts into one terminated array.

    >>> texts = [np.array([5, 6], np.uint32), np.array([], np.uint32)]
    >>> ids, offsets = terminate_texts(texts, 9)
    >>> ids.tolist(), offsets.tolist()
    ([5, 6, 9, 9], [0, 3, 4])
    """
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) + 1 for text in texts], out=offsets[1:])
    ids = np.empty(int(offsets[-1]), dtype=np.uint32)
    for text, start in zip(texts, offsets.tolist(), strict=False):
        ids[start : start + len(text)] = text
    ids[offsets[1:] - 1] = eot_id or 0
    return ids, offsets


def check_ids(
    ids: Sequence[int] | npt.NDArray[Any], vocab_size: int, name: str
) -> npt.NDArray[np.int64]:
    """Return ids as a flat array; raise an error unless all are integers in `[0, vocab_size)`.

    >>> check_ids([1, 7], 7, "tiny")
    Traceback (most recent call last):
    ...
    tokenmill.errors.TokenizerError: 7 is not an id of the tokenizer 'tiny', whose ids are 0 to 6
    """
    array = np.asarray(ids)
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TokenizerError(
            f"ids must be a flat sequence of integers, got {array.ndim}-dimensional {array.dtype}"
        )
    outside = (array < 0) | (array >= vocab_size)
    if outside.any():
        raise TokenizerError(
            f"{array[outside][0]} is not an id of the tokenizer {name!r}, "
            f"whose ids are 0 to {vocab_size - 1}"
        )
    return array.astype(np.int64)


def spell(
    ids: Sequence[int] | npt.NDArray[Any], spellings: Sequence[bytes | None], name: str
) -> str:
    """Decode ids to text. Bytes that are not valid UTF-8 become U+FFFD.

    `spellings[n]` is the bytes of id n, or None if the vocabulary has no such id. Error messages
    call the tokenizer `name`.

    >>> spell([0, 1, 0], [b"a", b"\\xff"], "tiny")
    'a\ufffda'
    """
    flat = check_ids(ids, len(spellings), name).tolist()
    try:
        text = b"".join([spellings[number] for number in flat])
    except TypeError:
        missing = next(number for number in flat if spellings[number] is None)
        raise TokenizerError(
            f"{missing} is not an id of the tokenizer {name!r}: its vocabulary has a gap there"
        ) from None
    return text.decode("utf-8", errors="replace")
