"""Options for opening tokens in other formats, shared by all commands that open tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cyclopts import Parameter


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Opening:
    """How to open tokens whose format is not recognised.

    Parameters
    ----------
    dtype
        How ids are stored, for files of ids without a header: uint16, uint32, ...
    format
        The format, if it is not recognised: npy, llmc, nanogpt, raw, ...
    column
        The column of the tokens, in formats with several columns.
    """

    dtype: str | None = None
    format: str | None = None
    column: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The flags that were set, as keyword arguments of `tokenmill.open`.

        >>> Opening(dtype="uint16").options
        {'dtype': 'uint16'}
        """
        return {name: value for name, value in asdict(self).items() if value is not None}


RECOGNISED = Opening()
