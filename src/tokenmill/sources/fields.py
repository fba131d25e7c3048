r"""Choose the text of a record: one field, a field inside others, or several fields in a template.

| `text_field` | the text |
|---|---|
| `text` | the field `text` |
| `meta.text` | the field `meta.text`; in records without one, the field `text` of the object `meta` |
| `{title}\n\n{body}` | the fields `title` and `body`, with two line ends between them |
| `{title?}\n\n{body}` | the same; a `title` that is missing or null counts as empty |

In a template, `\n`, `\t` and `\r` are a line end, a tab and a carriage return, and `{{` and `}}` are
braces. If all fields of a template are empty, so is the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tokenmill.errors import UsageError
from tokenmill.wording import one_line

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r"}


class FieldError(Exception):
    """A record has no text. The ledger counts it under `kind`; `reason` is for the user."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record. A dot leads into an object, unless a field has the whole name."""

    name: str
    is_optional: bool = False

    @property
    def path(self) -> list[str]:
        """The names that lead to a nested field."""
        return self.name.split(".")

    def find(self, record: Mapping[str, Any]) -> Any:
        """Return the value in a record. Raises KeyError or TypeError if there is none.

        >>> Field("meta.text").find({"meta": {"text": "a"}})
        'a'
        >>> Field("meta.text").find({"meta": {"text": "a"}, "meta.text": "b"})
        'b'
        """
        if self.name in record:
            return record[self.name]
        value: Any = record
        for name in self.path:
            if not isinstance(value, dict):
                raise TypeError(name)
            value = value[name]
        return value

    def text(self, record: Mapping[str, Any]) -> str:
        """Return the text in a record. Raises FieldError if there is none."""
        try:
            value = self.find(record)
        except (KeyError, TypeError):
            if self.is_optional:
                return ""
            raise self._missing(record) from None
        if isinstance(value, str):
            return value
        if self.is_optional and value is None:
            return ""
        kind = f"field {self.name!r} is not a string"
        reason = f"field {self.name!r} is {_article(value)}, not a string"
        raise FieldError(kind, reason)

    def _missing(self, record: Mapping[str, Any]) -> FieldError:
        kind = f"no field {self.name!r}"
        value: Any = record
        before = ""
        for name in self.path:
            if not isinstance(value, dict):
                return FieldError(kind, f"{kind}: {before!r} is {_article(value)}, not an object")
            if name not in value:
                break
            value, before = value[name], f"{before}.{name}" if before else name
        owner = repr(before) if before else "it"
        return FieldError(kind, f"{kind}; {owner} has {list_names(value) or 'none'}")


@dataclass(frozen=True, slots=True)
class TextField:
    """What `text_field` names: literal texts and fields, in turn.

    `name` is the name of a field that needs no search, or None. This is the usual case, and readers
    have a fast path for it.
    """

    name: str | None
    pieces: tuple[str | Field, ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields, in order."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Field))

    @property
    def is_template(self) -> bool:
        """Whether the text may differ from the value of a single field."""
        return len(self.pieces) > 1 or self.fields[0].is_optional

    def text(self, record: Mapping[str, Any]) -> str:
        """Return the text of a record. Raises FieldError if it has none, TypeError if it is not an object.

        >>> parse_text_field("# {title?} #").text({"title": "Words"})
        '# Words #'
        >>> parse_text_field("# {title?} #").text({"title": None})
        ''
        """
        if not isinstance(record, dict):
            raise TypeError(json_kind(record))
        if len(self.pieces) == 1 and isinstance(self.pieces[0], Field):
            return self.pieces[0].text(record)
        return self.join(
            [piece if isinstance(piece, str) else piece.text(record) for piece in self.pieces]
        )

    def join(self, texts: list[str]) -> str:
        """Return the text for these texts of all pieces."""
        if any(
            text for text, piece in zip(texts, self.pieces, strict=True) if isinstance(piece, Field)
        ):
            return "".join(texts)
        return ""


@lru_cache(maxsize=64)
def parse_text_field(text: str) -> TextField:
    r"""Parse the setting `text_field`. Raises UsageError if it is an invalid template.

    >>> parse_text_field("text")
    TextField(name='text', pieces=(Field(name='text', is_optional=False),))
    >>> parse_text_field(r"{a}\n{b.c?}").pieces[1:]
    ('\n', Field(name='b.c', is_optional=True))
    """
    if not any(found[1] for found in _PIECE.finditer(text)):
        return TextField(None if "." in text else text, (Field(text),))
    pieces: list[str | Field] = []
    literal, end = "", 0
    for found in _PIECE.finditer(text):
        literal += _unescape(text[end : found.start()])
        end = found.end()
        if found[1] is None:
            if len(found[0]) == 1:
                raise UsageError(
                    f"`text_field` is {text!r}, a template with a single {found[0]!r}. Write a "
                    f"field as {{NAME}}, and a brace as {found[0] * 2}."
                )
            literal += found[0][0]
            continue
        pieces += [literal] if literal else []
        literal = ""
        name = found[1].removesuffix("?") or found[1]
        pieces.append(Field(name, is_optional=name != found[1]))
    literal += _unescape(text[end:])
    return TextField(None, (*pieces, literal) if literal else tuple(pieces))


def _unescape(text: str) -> str:
    for written, meant in _ESCAPES.items():
        text = text.replace(written, meant)
    return text


def list_names(names: Iterable[str]) -> str:
    """Return the names of fields or columns as text for an error message.

    Shows at most 20 names, and 40 characters of each.

    >>> list_names(["id", "x" * 50])
    'id, xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'
    >>> list_names([*"abcdefghijklmnopqrst"])[-4:], list_names([*"abcdefghijklmnopqrstu"])[-4:]
    ('s, t', 't, …')
    """
    names = list(names)
    shown = [one_line(name if len(name) <= 40 else f"{name[:40]}…") for name in names[:20]]
    return ", ".join([*shown, "…"] if len(names) > 20 else shown)


def json_kind(value: Any) -> str:
    """Return what JSON calls the type of a value."""
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


def _article(value: Any) -> str:
    kind = json_kind(value)
    return f"an {kind}" if kind[0] in "ao" else f"a {kind}"
