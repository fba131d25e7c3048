"""Translate the names of Python arguments in messages into flags of the running command.

The library names its arguments in backticks: `out`, `restart=True`, `text_field=NAME`. On the
command line they are flags: --out, --restart, --text-field NAME. Only arguments of the running
command are translated; other text in backticks is not changed.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Mapping

_ARGUMENT = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`\n]+))?`")
_find_flags: Callable[[], Mapping[str, str]] = dict


def set_flags(find: Callable[[], Mapping[str, str]]) -> None:
    """Set the function that finds the flags of the running command."""
    global _find_flags
    _find_flags = find


def list_flags() -> list[str]:
    """Return the flags of the running command."""
    return list(_find_flags().values())


def name_flags(text: str, flags: Mapping[str, str] | None = None) -> str:
    """Replace Python arguments in a message with flags, by default those of the running command.

    >>> flags = {"out": "--out", "restart": "--restart", "eot": "--eot", "normalize": "--normalize"}
    >>> name_flags("Choose another `out`, or add `restart=True`; see `jq`.", flags)
    'Choose another --out, or add --restart; see `jq`.'
    >>> name_flags("Give `eot='none'`, `eot=WHERE` or `normalize=False`.", flags)
    'Give --eot none, --eot WHERE or --no-normalize.'
    >>> name_flags("Give the folder of a run: `run=runs/NAME`.", {"run": "RUN"})
    'Give the folder of a run: runs/NAME.'
    """
    if not _ARGUMENT.search(text):
        return text
    known = _find_flags() if flags is None else flags

    def translate(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in known:
            return match[0]
        if value is None or value == "True":
            return known[name]
        if not known[name].startswith("-"):  # the command takes it without a flag
            return _type_value(value)
        if value == "False":
            return known[name].replace("--", "--no-", 1)
        return f"{known[name]} {_type_value(value)}"

    return _ARGUMENT.sub(translate, text)


def _type_value(value: str) -> str:
    """Format a value for a shell command: a string loses its Python quotes."""
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError):  # a placeholder, such as NAME
        return value
    return shlex.quote(found) if isinstance(found, str) else value
