"""Decode untrusted JSON as a type with bounds."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")
_MOST_WORDS = 300  # characters of a reason


class DamageError(Exception):
    """Why a file of a run cannot be used."""


def decode(data: bytes | memoryview, kind: type[_T]) -> _T:
    """Decode JSON as a type; raises `DamageError` if it does not fit.

    >>> decode(b'{"step": true}', dict[str, int])
    Traceback (most recent call last):
    ...
    tokenmill.training.decoding.DamageError: Expected `int`, got `bool` - at `$[...]`
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise DamageError("it is nested too deeply") from error
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: it is not UTF-8
        raise DamageError(str(error)[:_MOST_WORDS]) from error


def convert(value: Any, kind: type[_T]) -> _T:
    """Like `decode`, for a value that is already decoded as a more general type."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise DamageError(str(error)[:_MOST_WORDS]) from error
