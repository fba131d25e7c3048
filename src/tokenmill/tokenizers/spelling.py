"""From ids back to text, by a table of what each id spells.

Used for looking at tokens, so it is exact rather than fast: about three million ids a second. An id
that the vocabulary does not have is an error that names it, never a silent gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TokenizerError


def check_ids(
    ids: Sequence[int] | npt.NDArray[Any], vocab_size: int, name: str
) -> npt.NDArray[np.int64]:
    """Ids as one flat array, after a check that all are integers in `[0, vocab_size)`.

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
            f"ids must be a flat sequence of integers, not {array.ndim}-dimensional {array.dtype}"
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
    """The text of ids; what is not valid UTF-8 shows as U+FFFD.

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
