"""The parsers that the fuzzer knows, by name."""

from __future__ import annotations

from importlib import import_module

from ..case import Parser

MODULES = (
    "store states formats tokenizers texts containers records receipts hub commands models objects "
    "work inspected pages"
).split()


def load_parsers(names: list[str] | None = None) -> dict[str, Parser]:
    """All parsers, or those with some names; importing them takes a second or two."""
    found: dict[str, Parser] = {}
    for module in MODULES:
        for parser in import_module(f"{__name__}.{module}").PARSERS:
            found[parser.name] = parser
    if names and (unknown := [name for name in names if name not in found]):
        raise SystemExit(f"There is no parser {unknown[0]!r}; there are {', '.join(found)}.")
    return {name: parser for name, parser in found.items() if not names or name in names}
