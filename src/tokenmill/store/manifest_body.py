"""The bytes of a manifest: the types of its entries, the rules between them, and its checksum.

An untrusted manifest is decoded once. If that fails, a second pass finds the most basic fault and
reports it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import orjson
import xxhash

from tokenmill.storage.decoding import check_values, decode
from tokenmill.storage.reading import DamagedFileError
from tokenmill.store.tables import Count, Name, Shard
from tokenmill.wording import brief, harmless

FORMAT = "tokenmill"
VERSION = 3
MOST_SPLITS = 1_000

# The entries of the file. `_count_strings` relies on every entry being required.


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """An object in the manifest; unknown entries are refused."""


class _Tokenizer(_Entry):
    name: Name
    fingerprint: Name


class _EndOfText(_Entry):
    place: Literal["after", "before", "none"]
    id: Count | None


class _Split(_Entry):
    tokens: Count
    documents: Count
    shards: list[Shard]


class _Sources(_Entry):
    path: Name
    count: Count
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    xxh3_128: Name


class Body(_Entry):
    """The whole manifest."""

    format: Literal["tokenmill"]
    version: Literal[3]
    dtype: Literal["uint16", "uint32"]
    vocab_size: Count
    tokenizer: _Tokenizer
    eot: _EndOfText
    splits: Annotated[dict[Name, _Split], msgspec.Meta(max_length=MOST_SPLITS)]
    settings: msgspec.Raw
    ledger: msgspec.Raw
    sources: _Sources
    xxh3_128: Name


class _Kind(msgspec.Struct):
    """The entries that say how to read the others."""

    format: Any = None
    version: Any = None


_DECODER = msgspec.json.Decoder(Body)
_NAMES = {
    name
    for kind in (Body, _Tokenizer, _EndOfText, _Split, _Sources, Shard)
    for name in kind.__struct_fields__
}


def read_kind(data: bytes) -> _Kind:
    """The entries that say how to read the others."""
    return msgspec.json.decode(data, type=_Kind)


def decode_manifest(data: bytes, name: str) -> tuple[Body, dict[str, Any], dict[str, Any]]:
    """The entries of a manifest, its settings and its ledger, checked; `name` is for errors."""
    try:
        body = _DECODER.decode(data)
        settings, ledger = (
            _read_open(body.settings, "settings"),
            _read_open(body.ledger, "ledger"),
        )
        _check_body(body, data, settings, ledger)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise _explain(name, data, error) from None
    return body, settings, ledger


def _explain(name: str, data: bytes, error: Exception) -> DamagedFileError:
    """The error for a manifest that cannot be used; it names the most basic fault."""
    try:
        kind = read_kind(data)
    except msgspec.ValidationError:
        return DamagedFileError(name, "is damaged: it is not a JSON object")
    except (ValueError, RecursionError) as broken:
        return DamagedFileError(name, f"is damaged: it is not JSON ({broken})")
    if kind.format != FORMAT:
        return DamagedFileError(
            name,
            f'is not a tokenmill manifest, or is damaged: "format" is {_name(kind.format)}, '
            f"not {FORMAT!r}",
            "If the files beside it contain only ids, open them with their `dtype` and "
            "`format='raw'`.",
        )
    if type(kind.version) is not int or kind.version != VERSION:
        is_older = kind.version in (1, 2)
        return DamagedFileError(
            name,
            f"has version {_name(kind.version)}, but this tokenmill reads only version {VERSION}",
            "Prepare the dataset again: run the same tokenmill prepare command with --restart."
            if is_older
            else "Use the tokenmill that wrote it, or a newer one.",
        )
    if not _has_seal(data):
        return DamagedFileError(name, "is damaged: it does not match its own checksum")
    # The names are untrusted: show them without escape sequences, and shortened.
    text = harmless(str(error)[:300]).replace("`", "'")
    text = text[:1].lower() + text[1:]
    if unknown := re.search("unknown field '(.*?)'", text):
        near = difflib.get_close_matches(unknown[1], _NAMES, 1)
        text += f" (did you mean {near[0]!r}?)" if near else ""
    return DamagedFileError(name, f"is damaged: {text}")


def _name(value: Any) -> str:
    return "missing" if value is None else brief(value)


def _read_open(raw: msgspec.Raw, name: str) -> dict[str, Any]:
    """Parse an entry that may hold anything, if it is not too large; raises a ValueError."""
    data = bytes(raw)
    try:
        check_values(data)
        value = decode(data, dict[str, Any])
        orjson.dumps(value)  # fails now if the value could not be written again
    except ValueError as error:
        raise ValueError(f"{error} in {name!r}") from None
    except orjson.JSONEncodeError:
        raise ValueError(f"{name!r} is nested too deeply, or has a number beyond 64 bits") from None
    return value


def _check_body(body: Body, data: bytes, settings: dict[str, Any], ledger: dict[str, Any]) -> None:
    """Check the rules that types cannot express; raises a ValueError."""
    if not _has_seal(data):
        raise ValueError
    if _count_quotes(data) != 2 * sum(map(_count_strings, (body, settings, ledger))):
        raise ValueError(f"it has the entry {_find_repeated_key(data)!r} twice")
    if body.vocab_size > int(np.iinfo(body.dtype).max) + 1:
        raise ValueError(f"a vocabulary of {body.vocab_size} does not fit in {body.dtype}")
    eot = body.eot
    if (eot.id is None and eot.place != "none") or (eot.id or 0) >= max(body.vocab_size, 1):
        raise ValueError(
            f"the end-of-text id is {_name(eot.id)}, with a vocabulary of {body.vocab_size}"
        )
    _check_path(body.sources.path)
    for name, split in body.splits.items():
        _check_printable(name, "split name")
        for what in ("tokens", "documents"):
            said: int = getattr(split, what)
            if said != (found := sum(getattr(shard, what) for shard in split.shards)):
                raise ValueError(f"split {name!r} says {said} {what}, but its shards have {found}")
        _check_paths([shard.path for shard in split.shards])
        _check_paths([shard.documents_path for shard in split.shards])


def _check_paths(paths: list[str]) -> None:
    # All at once first, for speed: one by one, 300,000 paths take half a second.
    for first in range(0, len(paths), 10_000):
        some = paths[first : first + 10_000]
        lines = "\n" + "\n".join(some)
        is_plain = "" not in some and " ".join(some).isprintable()
        if not is_plain or any(sign in lines for sign in ("..", "\\", "\n/")):
            for path in some:
                _check_path(path)


def _check_path(path: str) -> None:
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\\" in path:
        raise ValueError(f"the path {path!r} leads out of the folder")
    _check_printable(path, "path")


def _check_printable(value: str, what: str) -> None:
    # Names are printed on terminals, so they must not contain escape sequences.
    if not value or not value.isprintable():
        raise ValueError(f"the {what} {brief(value)} is empty or has control characters")


def _count_quotes(data: bytes) -> int:
    """How many quotes in a JSON text begin or end a string."""
    if b"\\" in data:
        data = re.sub(rb"\\.", b"", data, flags=re.DOTALL)
    return data.count(b'"')


def _count_strings(value: Any) -> int:
    """How many strings JSON needs for a value, keys included.

    If an entry is repeated, decoding silently keeps the last one; the text then has more strings than
    the value. Counting them costs a hundredth of decoding.
    """
    if isinstance(value, str):
        return 1
    if isinstance(value, msgspec.Struct):
        return _count_strings(msgspec.structs.asdict(value))
    if isinstance(value, dict):
        return len(value) + sum(map(_count_strings, value.values()))
    if isinstance(value, list):
        if value and isinstance(value[0], Shard):  # all shards have the same entries
            return len(value) * _count_strings(value[0])
        return sum(map(_count_strings, value))
    return 0


def _find_repeated_key(data: bytes) -> str:
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        counts = Counter(name for name, _ in pairs)
        repeated.extend(name for name, count in counts.items() if count > 1)

    json.loads(data, object_pairs_hook=look)
    return repeated[0]


def seal(head: bytes | memoryview) -> bytes:
    """The end of a manifest: the checksum of everything before it, and the closing brace."""
    return f'"xxh3_128": "{xxhash.xxh3_128(head).hexdigest()}"\n}}\n'.encode()


def _has_seal(data: bytes) -> bool:
    end = max(len(data) - len(seal(b"")), 0)
    return data[end:] == seal(memoryview(data)[:end])
