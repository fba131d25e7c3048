"""Keep fields of a record besides its text: one JSON object per document.

A value keeps its type. A string longer than `LONGEST` characters is cut and gets an ellipsis. Any
other value whose JSON is longer becomes a string of that JSON, cut in the same way. If all values
together take more than `MOST_BYTES`, each is cut after `SHORTER` characters. A field that a record
does not have is absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson

from tokenmill.errors import UsageError
from tokenmill.sources.fields import Field

LONGEST = 1000  # characters of a value
SHORTER = 100
MOST_BYTES = 32_000  # of a JSON object
MOST_FIELDS = 32
_MOST_NAMES = 4000  # characters of all names


@lru_cache(maxsize=64)
def parse_kept_fields(text: str) -> tuple[Field, ...]:
    """Parse the setting `keep_fields`: names with commas between them.

    >>> [field.name for field in parse_kept_fields("url, meta.date")]
    ['url', 'meta.date']
    """
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if (
        "" in names
        or len(set(names)) < len(names)
        or len(names) > MOST_FIELDS
        or len(text) > _MOST_NAMES
    ):
        raise UsageError(
            f"`keep_fields` is {text!r}; give up to {MOST_FIELDS} different names with commas between "
            "them, such as url,date,lang."
        )
    return tuple(Field(name) for name in names)


def keep_fields(record: Any, fields: tuple[Field, ...]) -> bytes:
    """Return the fields of a record as a JSON object; an empty one if it is not an object.

    >>> keep_fields({"url": "u", "n": [1], "text": "words"}, parse_kept_fields("n,url,date"))
    b'{"n":[1],"url":"u"}'
    """
    if not isinstance(record, dict):
        return b"{}"
    found = {}
    for field in fields:
        try:
            found[field.name] = field.find(record)
        except (KeyError, TypeError):
            continue
    return encode_fields(found)


def encode_fields(values: Mapping[str, Any]) -> bytes:
    """Return values by name as a JSON object on one line.

    >>> encode_fields({"a": "x" * 1001})[-6:].decode()
    'x…"}'
    """
    data = orjson.dumps({name: _shorten(value, LONGEST) for name, value in values.items()})
    if len(data) > MOST_BYTES:
        data = orjson.dumps({name: _shorten(value, SHORTER) for name, value in values.items()})
    return data


def _shorten(value: Any, longest: int) -> Any:
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and abs(value) < 1 << 63:
        return value
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return _cut(value, longest)
    try:
        data = orjson.dumps(value)
    except (TypeError, RecursionError):  # huge numbers, or text that is not Unicode
        return _cut(json.dumps(value, ensure_ascii=False), longest)
    return value if len(data) <= longest else _cut(data.decode(), longest)


def _cut(text: str, longest: int) -> str:
    if len(text) > longest:
        text = f"{text[:longest]}…"
    # Bytes that are not UTF-8 arrive as surrogates; others are lone halves of pairs.
    return text.encode("utf-8", "surrogateescape" if _is_escaped(text) else "replace").decode(
        "utf-8", "replace"
    )


def _is_escaped(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
