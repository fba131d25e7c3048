"""Decode untrusted JSON. If a text cannot be used, a ValueError says why in a few words.

A limit on the size of the text is not enough: a list of empty lists takes 20 times its size in
memory. So the number of values is limited as well. Counting them takes three searches of the text.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import orjson

MOST_VALUES = 1 << 22  # in one JSON text: at most about 500 MB of Python objects
_LONGEST = 300  # characters of an error's text

T = TypeVar("T")


def check_values(data: bytes, most: int = MOST_VALUES) -> None:
    """Raise ValueError if a JSON text has more than `most` values.

    Counts commas and opening brackets, so those inside strings count as values too.

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
    """Parse JSON of any size.

    If memory runs out, raises MemoryError; orjson alone would report invalid JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("Not enough memory"):
            raise MemoryError from error
        raise


def decode(data: bytes | memoryview, kind: type[T]) -> T:
    """Decode JSON as the type `kind`. Raises ValueError if the JSON is invalid or of another type.

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
    """Convert a decoded JSON value to the type `kind`. Raises ValueError if it does not fit."""
    try:
        return msgspec.convert(value, kind)
    except ValueError as error:
        raise ValueError(str(error)[:_LONGEST]) from error
