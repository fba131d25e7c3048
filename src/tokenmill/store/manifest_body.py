"""The bytes of a manifest: the types of its entries, the rules that they obey, and its checksum.

An untrusted manifest is decoded once. If that fails, a second pass finds the most basic fault and
reports it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, chain
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import orjson
import xxhash

from tokenmill.storage.decoding import check_values, decode
from tokenmill.storage.reading import DamagedFileError
from tokenmill.store.fields import FieldsFile, KeptFields
from tokenmill.store.frames import Compression
from tokenmill.store.tables import CompressedFile, Count, Name, Shard
from tokenmill.wording import brief, harmless

FORMAT = "tokenmill"
VERSION = 3
COMPRESSED_VERSION = 4  # the version of datasets with compressed shards
EXTENDED_VERSION = 5  # of datasets with kept fields or several generations, compressed or not
MOST_SPLITS = 1_000
MOST_GENERATIONS = 10_000

# The entries of the file. `_count_strings` relies on every entry being required, except those in
# `_OPTIONAL`; either all shards have the entry `compressed`, or none has it.


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


class SplitSize(_Entry):
    """How much of a split an earlier generation has: its first shards, and what is in them."""

    tokens: Count
    documents: Count
    shards: Count


class _Generation(_Entry):
    splits: Annotated[dict[Name, SplitSize], msgspec.Meta(max_length=MOST_SPLITS)]
    settings: msgspec.Raw
    ledger: msgspec.Raw
    sources: _Sources


class Body(_Entry, omit_defaults=True):
    """The whole manifest."""

    format: Literal["tokenmill"]
    version: Literal[3, 4, 5]
    dtype: Literal["uint16", "uint32"]
    vocab_size: Count
    tokenizer: _Tokenizer
    eot: _EndOfText
    splits: Annotated[dict[Name, _Split], msgspec.Meta(max_length=MOST_SPLITS)]
    settings: msgspec.Raw
    ledger: msgspec.Raw
    sources: _Sources
    xxh3_128: Name
    compression: Compression | None = None
    fields: KeptFields | None = None
    generations: (
        Annotated[list[_Generation], msgspec.Meta(min_length=1, max_length=MOST_GENERATIONS)] | None
    ) = None


class Opened(NamedTuple):
    """The two entries of a manifest, or of a generation, that may hold any JSON object."""

    settings: dict[str, Any]
    ledger: dict[str, Any]


class _Kind(msgspec.Struct):
    """The entries `format` and `version`, which say how to read the others."""

    format: Any = None
    version: Any = None


_DECODER = msgspec.json.Decoder(Body)
_OPTIONAL = ("compression", "compressed", "fields", "generations")  # absent instead of null
_VERSIONS = (VERSION, COMPRESSED_VERSION, EXTENDED_VERSION)
_NAMES = {
    name
    for kind in (
        *(Body, _Tokenizer, _EndOfText, _Split, _Sources, Compression, Shard, CompressedFile),
        *(KeptFields, FieldsFile, _Generation, SplitSize),
    )
    for name in kind.__struct_fields__
}


def read_kind(data: bytes) -> _Kind:
    """Return the format and version of a manifest. Nothing else is checked."""
    return msgspec.json.decode(data, type=_Kind)


def decode_manifest(data: bytes, name: str) -> tuple[Body, list[Opened]]:
    """Decode and check a manifest.

    Returns all entries, and `settings` and `ledger`, parsed: those of the earlier generations, and
    last those of the dataset itself. The ledger counts the documents that were read, kept and
    dropped. Errors call the file `name`.
    """
    try:
        body = _DECODER.decode(data)
        holders = [*(body.generations or ()), body]
        if len(holders) > 1:
            raws = (raw for one in holders for raw in (one.settings, one.ledger))
            check_values(b",".join(map(bytes, raws)))
        opened = [
            Opened(_read_open(one.settings, "settings"), _read_open(one.ledger, "ledger"))
            for one in holders
        ]
        _check_body(body, data, opened)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise _explain(name, data, error) from None
    return body, opened


def _explain(name: str, data: bytes, error: Exception) -> DamagedFileError:
    """Return the error for a manifest that cannot be used; it names the most basic fault."""
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
    if type(kind.version) is not int or kind.version not in _VERSIONS:
        is_older = kind.version in (1, 2)
        return DamagedFileError(
            name,
            f"has version {_name(kind.version)}, but this tokenmill reads only versions {VERSION} to "
            f"{EXTENDED_VERSION}",
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
    """Parse an entry that may hold any JSON object; raises ValueError if it is too large or deep."""
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


def _check_body(body: Body, data: bytes, opened: Sequence[Opened]) -> None:
    """Check the rules that types cannot express; raises a ValueError."""
    if not _has_seal(data):
        raise ValueError
    _check_compression(body)
    _check_version(body)
    _check_fields(body)
    if _count_quotes(data) != 2 * sum(map(_count_strings, (body, *chain.from_iterable(opened)))):
        raise ValueError(_explain_strings(data))
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
    _check_generations(body)


def _check_generations(body: Body) -> None:
    """Check that every earlier generation is a beginning of the next one."""
    generations = body.generations or []
    paths = {body.sources.path}
    for number, one in enumerate(generations, 1):
        _check_path(one.sources.path)
        if one.sources.path in paths:
            raise ValueError(f"it names {one.sources.path} twice")
        paths.add(one.sources.path)
        if one.splits.keys() != body.splits.keys():
            raise ValueError(f"generation {number} does not have the splits of the dataset")
    for name, split in body.splits.items() if generations else ():
        sizes = [one.splits[name] for one in generations]
        counts = [0, *(size.shards for size in sizes), len(split.shards)]
        if counts != sorted(counts):
            raise ValueError(f"a generation has more shards of split {name!r} than the next one")
        for what in ("tokens", "documents"):
            sums = [0, *accumulate(getattr(shard, what) for shard in split.shards)]
            for number, size in enumerate(sizes, 1):
                if (said := getattr(size, what)) != sums[size.shards]:
                    raise ValueError(
                        f"generation {number} says {said} {what} of split {name!r}, but its shards "
                        f"have {sums[size.shards]}"
                    )


def _check_compression(body: Body) -> None:
    """Check that all shards and the entry `compression` fit the version: compressed or plain."""
    is_compressed = body.compression is not None
    if body.version != EXTENDED_VERSION and is_compressed != (body.version == COMPRESSED_VERSION):
        raise ValueError(f"'compression' does not fit version {body.version}")
    for split in body.splits.values():
        for shard in split.shards:
            if (shard.compressed is not None) != is_compressed:
                raise ValueError(f"'compressed' of {shard.path} does not fit 'compression'")


def _check_version(body: Body) -> None:
    """Check that the version says whether there are kept fields or generations: never both."""
    is_extended = body.version == EXTENDED_VERSION
    entries = {"fields": body.fields, "generations": body.generations}
    found = [name for name, entry in entries.items() if entry is not None]
    if found and not is_extended:
        raise ValueError(f"{found[0]!r} does not fit version {body.version}")
    if is_extended and len(found) != 1:
        raise ValueError(f"version {body.version} needs either 'fields' or 'generations'")


def _check_fields(body: Body) -> None:
    """Check that the entry `fields` names files in the folder."""
    if body.fields is None:
        return
    for name in body.fields.names:
        if not name:
            raise ValueError("the name of a kept field is empty")
    for split, file in body.fields.files.items():
        if split not in body.splits:
            raise ValueError(f"'fields' has the split {brief(split)}, which does not exist")
        _check_path(file.path)


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
    """Return how many quotes in a JSON text begin or end a string."""
    if b"\\" in data:
        data = re.sub(rb"\\.", b"", data, flags=re.DOTALL)
    return data.count(b'"')


def _count_strings(value: Any) -> int:
    """Return how many strings, including keys, the JSON text of a decoded value has.

    This detects repeated entries. Decoding silently keeps only the last of them, so the original text
    has more strings than the decoded value. Counting takes a hundredth of the time of decoding.
    """
    if isinstance(value, str):
        return 1
    if isinstance(value, msgspec.Struct):
        return _count_strings(
            {
                name: one
                for name, one in msgspec.structs.asdict(value).items()
                if one is not None or name not in _OPTIONAL
            }
        )
    if isinstance(value, dict):
        return len(value) + sum(map(_count_strings, value.values()))
    if isinstance(value, list):
        if value and isinstance(value[0], Shard):  # all shards have the same entries
            return len(value) * _count_strings(value[0])
        return sum(map(_count_strings, value))
    return 0


def _explain_strings(data: bytes) -> str:
    """Return why a text and its decoded value differ in strings: an entry is repeated, or null."""
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        counts = Counter(name for name, _ in pairs)
        repeated.extend(name for name, count in counts.items() if count > 1)

    json.loads(data, object_pairs_hook=look)
    return f"it has the entry {repeated[0]!r} twice" if repeated else "an entry is null"


def seal(head: bytes | memoryview) -> bytes:
    """Return the end of a manifest: the checksum of everything before it, and the closing brace."""
    return f'"xxh3_128": "{xxhash.xxh3_128(head).hexdigest()}"\n}}\n'.encode()


def _has_seal(data: bytes) -> bool:
    end = max(len(data) - len(seal(b"")), 0)
    return data[end:] == seal(memoryview(data)[:end])
