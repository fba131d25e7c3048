"""Options for opening tokens in other formats, shared by all commands that open tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cyclopts import Parameter, Token

from tokenmill.storage.object_path import as_path


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Opening:
    """How to open tokens whose format is not recognized.

    Parameters
    ----------
    dtype
        Type of the ids in input files without a header: uint16, uint32, ...
    format
        Format of the input, such as npy, llmc, nanogpt or raw. By default, tokenmill recognizes the
        format.
    column
        Name of the column that contains the tokens, for input formats with several columns.
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


def parse_path(_: Any, tokens: Sequence[Token]) -> Path:
    """Convert an argument to a local path, or to a path in an object store."""
    return as_path(tokens[0].value)


def parse_paths(_: Any, tokens: Sequence[Token]) -> tuple[Path, ...]:
    """Convert arguments to local paths, or to paths in an object store. A negative flag gives none."""
    return tuple(as_path(token.value) for token in tokens if token.value)


RECOGNISED = Opening()
