"""`tokenmill info`: what is in a dataset."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from tokenmill.cli.commands import find_flags
from tokenmill.cli.console import show, show_next, show_table, typed, typed_options
from tokenmill.cli.flags import name_flags
from tokenmill.cli.opening import RECOGNISED, Opening, parse_path
from tokenmill.dataset.caching import CacheReport
from tokenmill.inspect.info import Info, describe
from tokenmill.wording import count, counted, size

SOURCES_SHOWN = 10


def info(
    path: Annotated[Path, Parameter(name="PATH", converter=parse_path)],
    /,
    *,
    opening: Opening = RECOGNISED,
    cache_dir: Path | None = None,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Show what a dataset contains: its splits, settings, sources and dropped documents.

    Parameters
    ----------
    path
        Dataset folder, or a file or folder of tokens in another format.
    cache_dir
        Folder of the cache on local disk, to show how much of the data it holds. By default,
        ~/.cache/tokenmill, for data in object stores.
    json
        Print all information as JSON.
    """
    found = describe(path, **opening.options, cache_dir=cache_dir)
    if json:
        # ASCII: every terminal can show it, and it contains no control characters.
        values = {
            **asdict(found),
            "generations": [asdict(one) for one in found.generations],
            "compression": msgspec.to_builtins(found.compression),
            "sources": [asdict(one) for one in found.sources],
            "cache": None if found.cache is None else _list_cache(found.cache),
        }
        print(json_format.dumps(values, indent=2).replace("\x7f", "\\u007f"))
        return 0
    _show(found)
    _show_cache(found)
    here = typed(path) + typed_options(opening.options)
    # Showing text needs a tokenizer, which only the user can name.
    unknown = " --tokenizer NAME" if found.tokenizer is None else ""
    show_next(f"tokenmill peek {here}{unknown}", f"tokenmill verify {here}")
    return 0


def _describe_storage(found: Info) -> str:
    if found.compression is None:
        return found.dtype
    frame = counted(found.compression.tokens_per_frame, "token")
    return f"{found.dtype}, {found.compression.name} in frames of {frame}"


def _show(found: Info) -> None:
    documents = "" if found.documents is None else f" of {counted(found.documents, 'document')}"
    show(f"{found.path}: {count(found.tokens)} tokens{documents}")
    per_token = []
    if found.characters_per_token is not None and found.bytes_per_token is not None:
        per_token = [
            (
                "a token is",
                f"{found.characters_per_token:.2f} characters, {found.bytes_per_token:.2f} bytes",
            )
        ]
    eot = {
        "after": f"{found.eot_id} after each document",
        "before": f"{found.eot_id} before each document",
        "none": "none",
    }[found.eot if found.eot_id is not None else "none"]
    if found.eot_id is None and found.eot != "none":
        eot = "unknown"
    vocabulary = "unknown size" if found.vocab_size is None else count(found.vocab_size)
    show_table(
        None,
        ("", ""),
        [
            *([("format", found.format)] if found.tokenizer_fingerprint is None else []),
            ("tokenizer", f"{found.tokenizer or 'unknown'}, vocabulary of {vocabulary}"),
            *(
                [("fingerprint", found.tokenizer_fingerprint)]
                if found.tokenizer_fingerprint
                else []
            ),
            ("stored as", _describe_storage(found)),
            ("end of text", eot),
            *per_token,
        ],
    )
    show_table(
        "Splits",
        ("split", "tokens", "documents", "shards", "size"),
        [
            (
                one.name,
                count(one.tokens),
                "unknown" if one.documents is None else count(one.documents),
                count(one.shards),
                size(one.bytes),
            )
            for one in found.splits
        ],
    )
    if found.generations:
        show_table(
            "Generations",
            ("", "tokens", "documents", "shards", "added files"),
            [
                (
                    count(one.number),
                    count(one.tokens),
                    count(one.documents),
                    count(one.shards),
                    count(one.sources),
                )
                for one in found.generations
            ],
        )
    if found.tokenizer_fingerprint is not None:
        _show_origin(found)


def _show_cache(found: Info) -> None:
    if found.cache is None:
        return
    shown = [
        (one.name, size(one.cached), f"{100 * one.cached / max(1, one.bytes):.0f}%")
        for one in found.cache.splits
    ]
    title = f"In the cache {found.cache.folder}, which holds {size(found.cache.limit)}"
    show_table(title, ("split", "size", "share"), shown)


def _list_cache(cache: CacheReport) -> dict[str, Any]:
    return {
        "folder": str(cache.folder),
        "limit": cache.limit,
        "splits": [asdict(one) for one in cache.splits],
    }


def _show_origin(found: Info) -> None:
    settings = list(_flat(found.settings))
    if settings:
        show_table("Settings", ("", ""), settings)
    if found.documents_in is not None:
        rows = [
            ("documents in", count(found.documents_in), size(found.bytes_in or 0)),
            *(
                (f"dropped: {one.reason}", count(one.documents), size(one.bytes))
                for one in found.dropped
            ),
            ("kept", count(found.documents or 0), size(found.bytes_kept or 0)),
        ]
        show_table("Ledger", ("", "documents", "size"), rows)
        if found.text_bytes is not None:
            show(f"The text kept is {size(found.text_bytes)} after cleaning.")
        if found.repaired_documents:
            show(f"{counted(found.repaired_documents, 'document')} had invalid UTF-8 repaired.")
        if found.duplicate_lines:
            show(f"{counted(found.duplicate_lines, 'repeated line')} removed.")
    if found.set_aside:
        flags = find_flags(["prepare"])
        shown = [
            (one.source, name_flags(one.reason, flags)) for one in found.set_aside[:SOURCES_SHOWN]
        ]
        show_table(f"Set aside ({count(len(found.set_aside))})", ("file", "reason"), shown)
        _more(len(found.set_aside))
    sources = [(one.path, size(one.bytes)) for one in islice(found.sources, SOURCES_SHOWN)]
    whole = size(found.sources.bytes)
    show_table(f"Sources ({count(len(found.sources))}): {whole}", ("file", "size"), sources)
    _more(len(found.sources))


def _more(number: int) -> None:
    if number > SOURCES_SHOWN:
        show(f"… and {count(number - SOURCES_SHOWN)} more")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Flatten settings into (name, value) pairs; skips unset settings."""
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            rows.append((f"{prefix}{name}", "yes" if value else "no"))
        elif isinstance(value, list):
            rows += [(f"{prefix}{name}", ", ".join(map(str, value)))] if value else []
        elif value is not None and value not in ([], ""):
            rows.append((f"{prefix}{name}", count(value) if isinstance(value, int) else str(value)))
    return rows
