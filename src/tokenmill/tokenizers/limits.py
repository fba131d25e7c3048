"""Limits on the contents of a tokenizer's file, checked before native code reads it.

gigatoken trusts the numbers in a file: it allocates one slot per id, and as many bytes as a character
map claims. A normalizer can lengthen a text at every step. So a small file could exhaust memory, which
ends the process. These checks keep memory and time in proportion to the file and the text:

- A file is at most 64 MiB, and its JSON has at most 8 million values (a value takes up to 85 bytes). The
  largest published vocabularies, with 262,144 tokens, take about 33 MB and have 2 million values.
- At most 1,048,576 ids below the largest id may be without a token. Each such id takes about 50
  bytes of memory.
- An added token has at most 256 characters: the time to compare added tokens grows with the
  square of their length.
- A normalizer has at most 32 steps, in sequences nested at most 8 deep, and makes a text at most 256
  times as long. SentencePiece's own normalizer, `nmt_nfkc`, makes a text up to 99 times as long.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from tokenmill.errors import TokenizerError
from tokenmill.storage.decoding import parse_json
from tokenmill.wording import brief

MOST_BYTES = 64 << 20
_MOST_VALUES = 1 << 23
_MOST_GAPS = 1 << 20
_LONGEST_ADDED = 256
_MOST_STEPS = 32
_DEEPEST = 8
_MOST_GROWTH = 256


def parse_object(data: bytes, where: str, what: str = "tokenizer.json") -> dict[str, Any]:
    """Parse a JSON text that contains an object. Error messages call the text `where`.

    >>> parse_object(b"[1]", "x.json")
    Traceback (most recent call last):
    ...
    tokenmill.errors.TokenizerError: x.json is not a tokenizer.json: it contains a list, not an object
    """
    try:
        document = parse_json(data, _MOST_VALUES)
    except orjson.JSONDecodeError as error:
        reason = f"it is not valid JSON ({error})"
    except ValueError as error:
        reason = str(error)
    else:
        if isinstance(document, dict):
            return document
        reason = f"it contains a {type(document).__name__}, not an object"
    raise TokenizerError(f"{where} is not a {what}: {reason}")


def check_id(token: str, number: Any, where: str) -> int:
    """Check an id from a file and return it: an integer from 0 to 2**32 - 2."""
    if type(number) is not int or not 0 <= number < 2**32 - 1:
        raise TokenizerError(
            f"{where} cannot be used as a tokenizer: its token {brief(token)} has the id "
            f"{brief(number)}, which is not an integer from 0 to 2**32 - 2"
        )
    return number


def check_gaps(vocab_size: int, tokens: int, where: str) -> None:
    """Refuse a vocabulary whose largest id is far above its number of tokens.

    >>> check_gaps((1 << 20) + 300, 300, "x.json")
    >>> check_gaps(1 << 28, 300, "x.json")
    Traceback (most recent call last):
    ...
    tokenmill.errors.TokenizerError: x.json cannot be used as a tokenizer: it has 300 tokens, but its \
largest id is 268,435,455. At most 1,048,576 ids may be without a token.
    """
    if vocab_size - tokens > _MOST_GAPS:
        raise TokenizerError(
            f"{where} cannot be used as a tokenizer: it has {tokens:,} tokens, but its largest id is "
            f"{vocab_size - 1:,}. At most {_MOST_GAPS:,} ids may be without a token."
        )


def check_added(content: Any, where: str) -> str:
    """Check the spelling of an added token and return it: text of 1 to 256 characters."""
    if not isinstance(content, str) or not 0 < len(content) <= _LONGEST_ADDED:
        raise TokenizerError(
            f"{where} cannot be used as a tokenizer: its added token {brief(content)} is not a text "
            f"of 1 to {_LONGEST_ADDED} characters"
        )
    return content


def list_steps(normalizer: Any, where: str, nested: str = "normalizers") -> list[Mapping[str, Any]]:
    """Return the steps of a normalizer, in order, with nested sequences flattened.

    For a pre-tokenizer, `nested` is the key of its steps.

    >>> nfc = {"type": "NFC"}
    >>> list_steps({"type": "Sequence", "normalizers": [nfc, nfc]}, "x.json")
    [{'type': 'NFC'}, {'type': 'NFC'}]
    """
    steps = []
    for step in _walk(normalizer, 0, where, nested) if normalizer is not None else ():
        steps.append(step)
        if len(steps) > _MOST_STEPS:
            raise _refuse_normalizer(where, f"has more than {_MOST_STEPS} steps")
    return steps


def _walk(normalizer: Any, depth: int, where: str, nested: str) -> Iterator[Mapping[str, Any]]:
    if normalizer["type"] != "Sequence":
        yield normalizer
        return
    if depth == _DEEPEST:
        raise _refuse_normalizer(where, f"is nested more than {_DEEPEST} deep")
    for step in normalizer[nested]:
        yield from _walk(step, depth + 1, where, nested)


def check_growth(steps: list[Mapping[str, Any]], where: str) -> None:
    """Refuse a SentencePiece normalizer that has an unsupported step or lengthens texts too much.

    >>> double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    >>> check_growth([double] * 8, "x.json")
    >>> check_growth([double] * 9, "x.json")
    Traceback (most recent call last):
    ...
    tokenmill.errors.TokenizerError: x.json cannot be used as a tokenizer: its normalizer makes a text \
more than 256 times as long
    """
    growth, prefix = 1.0, 0.0  # n bytes become at most growth * n + prefix
    for step in steps:
        if step["type"] == "Prepend":
            prefix += _measure(step["prepend"])
        else:
            factor = _measure_growth(step, where)
            growth, prefix = growth * factor, prefix * factor
        unknown = step.keys() - {"type", *_SETTINGS[step["type"]]}
        if unknown:
            raise _refuse_normalizer(
                where, f"has a {step['type']} with unknown settings: {brief(unknown)}"
            )
        if max(growth, prefix) > _MOST_GROWTH:
            raise _refuse_normalizer(where, f"makes a text more than {_MOST_GROWTH} times as long")


def check_steps(steps: list[Mapping[str, Any]], where: str) -> None:
    """Refuse a normalizer of the `tokenizers` library that lengthens texts too much.

    >>> check_steps([{"type": "NFKC"}, {"type": "Append", "append": "x" * 99}], "x.json")
    >>> check_steps([{"type": "Replace", "pattern": {"Regex": "b*"}, "content": "a" * 999}], "x.json")
    Traceback (most recent call last):
    ...
    tokenmill.errors.TokenizerError: x.json cannot be used as a tokenizer: its normalizer makes a text \
more than 256 times as long
    """
    growth, added = 1.0, 0.0  # n bytes become at most growth * n + added
    for step in steps:
        kind = step["type"]
        if kind in ("Prepend", "Append"):
            added += _measure(step[kind.lower()])
        else:
            if kind == "Precompiled":
                factor = _measure_map(step["precompiled_charsmap"], where)
            elif kind == "Replace":
                factor = 1.0 + _measure(step["content"])  # a pattern may match between characters
            elif kind in _GROWTH:
                factor = _GROWTH[kind]
            else:
                raise _refuse_normalizer(
                    where, f"has the step {brief(kind)}, which is not supported"
                )
            growth, added = growth * factor, added * factor
        if max(growth, added) > _MOST_GROWTH:
            raise _refuse_normalizer(where, f"makes a text more than {_MOST_GROWTH} times as long")


# The largest factor by which a normalizer of the `tokenizers` library can lengthen a text.
_GROWTH = {
    **dict.fromkeys(("Strip", "StripAccents", "Nmt"), 1.0),
    "NFC": 3.0,
    "NFD": 4.0,
    "NFKC": 12.0,
    "NFKD": 12.0,
    "Lowercase": 2.0,
    "ByteLevel": 2.0,
    "BertNormalizer": 8.0,
}
_SETTINGS = {
    "Prepend": ("prepend",),
    "Strip": ("strip_left", "strip_right"),
    "Replace": ("pattern", "content"),
    "Precompiled": ("precompiled_charsmap",),
}


def _measure_growth(step: Mapping[str, Any], where: str) -> float:
    """Return the largest factor by which a step can lengthen a text."""
    if step["type"] == "Strip":
        if all(isinstance(step.get(side, True), bool) for side in _SETTINGS["Strip"]):
            return 1.0
    elif step["type"] == "Precompiled":
        return _measure_map(step["precompiled_charsmap"], where)
    elif step["type"] == "Replace":
        # The one regular expression that gigatoken knows matches two spaces or more.
        patterns = step["pattern"].items()
        widths = [
            _measure(pattern) if kind == "String" else 2
            for kind, pattern in patterns
            if kind == "String" or (kind, pattern) == ("Regex", " {2,}")
        ]
        if len(patterns) == len(widths) == 1 and widths[0]:
            return max(1.0, _measure(step["content"]) / widths[0])
    raise _refuse_normalizer(where, f"has the step {brief(step)}, which is not supported")


def _measure_map(encoded: Any, where: str) -> float:
    """Return the length in bytes of the longest replacement text in a character map.

    A map holds the size of its trie, then the trie, then the replacement texts, each ending in NUL.
    """
    try:
        data = base64.b64decode(encoded.encode(), validate=True)
    except binascii.Error:
        raise _refuse_normalizer(where, "has a character map that is not base64") from None
    size = int.from_bytes(data[:4], "little")
    if size % 4 or not 4 <= size <= len(data) - 4:
        raise _refuse_normalizer(
            where, f"has a character map of {len(data):,} bytes whose trie claims {size:,} bytes"
        )
    return float(max(1, *map(len, data[4 + size :].split(b"\0"))))


def _measure(text: str) -> int:
    return len(text.encode())


def _refuse_normalizer(where: str, reason: str) -> TokenizerError:
    return TokenizerError(f"{where} cannot be used as a tokenizer: its normalizer {reason}")
