"""Decode untrusted JSON. A ValueError says briefly why a text cannot be used.

A limit on the size of the text is not enough: a list of empty lists takes 20 times its size in
memory. So the number of values is limited as well. Counting them takes three searches of the text.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import orjson

MOST_VALUES = 1 << 22  # in one JSON text: at most about 500 MB of Python objects
_LONGEST = 300  # characters of a reason

T = TypeVar("T")


def check_values(data: bytes, most: int = MOST_VALUES) -> None:
    """Raise ValueError if a JSON text has more than `most` values.

    >>> check_values(b"[[], [], []]", most=3)
    Traceback (most recent call last):
    ...
    ValueError: it has more than 3 values
    """
    if len(data) > most and sum(map(data.count, (b",", b"[", b"{"))) > most:
        raise ValueError(f"it has more than {most:,} values")


def parse_json(data: bytes, most: int = MOST_VALUES) -> Any:
    """Parse JSON of any type with at most `most` values.

    >>> parse_json(b'{"a": [1, 2]}')
    {'a': [1, 2]}
    """
    check_values(data, most)
    return load_json(data)


def load_json(data: bytes) -> Any:
    """Parse JSON of any size. Raises MemoryError where orjson would report invalid JSON instead."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("Not enough memory"):
            raise MemoryError from error
        raise


def decode(data: bytes | memoryview, kind: type[T]) -> T:
    """Decode JSON as a type.

    Does not limit the number of values. If the type allows anything and the text may be large, call
    `check_values` first.

    >>> decode(b'{"step": true}', dict[str, int])
    Traceback (most recent call last):
    ...
    ValueError: Expected `int`, got `bool` - at `$[...]`
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:  # msgspec's errors, and text that is not UTF-8
        raise ValueError(str(error)[:_LONGEST]) from error


def convert(value: Any, kind: type[T]) -> T:
    """Like `decode`, for a value that is already decoded as a more general type."""
    try:
        return msgspec.convert(value, kind)
    except ValueError as error:
        raise ValueError(str(error)[:_LONGEST]) from error
