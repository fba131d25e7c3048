"""Cast ids to another integer dtype. An id that does not fit raises an error; it never wraps around."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.store.row_source import RowReader

_can_cast = lru_cache(maxsize=64)(np.can_cast)


def cast_rows(read: RowReader, out: npt.NDArray[Any], dtype: np.dtype[Any], piece: int) -> None:
    """Read rows, and cast them to `out`, `piece` bytes at a time, so that they stay in the CPU cache."""
    rows, length = out.shape
    step = max(1, piece // (length * dtype.itemsize))
    for first in range(0, rows, step):
        cast(read(first, first + step), out[first : first + step])


def cast(ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Copy ids to an array of another integer dtype. Raises DatasetError if an id does not fit."""
    if not _can_cast(ids.dtype, out.dtype):
        limits = np.iinfo(out.dtype)
        for one in (ids.min(initial=0), ids.max(initial=0)):
            if not limits.min <= int(one) <= limits.max:
                raise DatasetError(
                    f"the tokens contain the id {one}, which does not fit in {out.dtype}. Use a wider "
                    "dtype, such as int64. If your vocabulary has no such id, the file was opened with "
                    "the wrong dtype or format."
                )
    np.copyto(out, ids, casting="unsafe")
