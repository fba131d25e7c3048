"""Translate Python arguments in the library's messages into flags of the running command.

The library names its arguments in backticks: `out`, `restart=True`, `text_field=NAME`. On the
command line they are flags: --out, --restart, --text-field NAME. Only arguments of the running
command are translated; all other text in backticks stays as it is.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping, Sequence

_ARGUMENT = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`\n]+))?`")
_command: Sequence[str] = ()
_renamed: Mapping[str, str] = {}


def set_command(arguments: Sequence[str], renamed: Mapping[str, str]) -> None:
    """Set the running command, as it was typed, and other names for some of its flags."""
    global _command, _renamed
    _command, _renamed = arguments, renamed


def find_flags(command: Sequence[str]) -> dict[str, str]:
    """The flag, or the positional name, of each argument of a command.

    >>> find_flags(["reshard"])
    {'path': 'PATH', 'out': '--out', 'tokens_per_shard': '--tokens-per-shard'}
    """
    from tokenmill.cli import app

    _, apps, _ = app.parse_commands(command)
    arguments = apps[-1].assemble_argument_collection() if len(apps) > 1 else ()
    return {one.field_info.name: one.names[0] for one in arguments if one.names[0] != "*"}


def name_flags(text: str, flags: Mapping[str, str] | None = None) -> str:
    """A message with its Python arguments as flags, by default those of the running command.

    >>> flags = {"out": "--out", "restart": "--restart", "eot": "--eot", "normalize": "--normalize"}
    >>> name_flags("Choose another `out`, or add `restart=True`; see `jq`.", flags)
    'Choose another --out, or add --restart; see `jq`.'
    >>> name_flags("Give `eot='none'`, `eot=WHERE` or `normalize=False`.", flags)
    'Give --eot none, --eot WHERE or --no-normalize.'
    """
    if not _ARGUMENT.search(text):
        return text
    known = {**find_flags(_command), **_renamed} if flags is None else flags

    def translate(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in known:
            return match[0]
        if value is None or value == "True":
            return known[name]
        if value == "False":
            return known[name].replace("--", "--no-", 1)
        return f"{known[name]} {_type_value(value)}"

    return _ARGUMENT.sub(translate, text)


def _type_value(value: str) -> str:
    """A value as it must be typed: a string without Python's quotes."""
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError):  # a placeholder, such as NAME
        return value
    return shlex.quote(found) if isinstance(found, str) else value
