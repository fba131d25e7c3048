"""Find the columns of a Parquet file that `text_field` names, and join their values to texts.

A dot leads into a column of structs, unless a column has the whole name. The values of a template
are joined in native code, after their sizes have been checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tokenmill.errors import TooLongError
from tokenmill.sources.fields import Field, TextField, list_names
from tokenmill.sources.files import BadFileError
from tokenmill.sources.kept_fields import encode_fields
from tokenmill.sources.records import PARSED
from tokenmill.wording import one_line


class Column(NamedTuple):
    """A column of text: the names that lead to it. The first one is in the schema."""

    field: Field
    path: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name by which Arrow finds it in a file."""
        return ".".join(self.path)


@dataclass(frozen=True)
class TextColumns:
    """The columns that a text consists of. An optional one that a file does not have is None."""

    text: TextField
    columns: tuple[Column | None, ...]

    @classmethod
    def find(cls, schema: Any, text: TextField, path: str) -> TextColumns:
        """Find the columns in the schema of the file `path`. Raises BadFileError if one is missing."""
        found = tuple(_find_column(schema, field, path) for field in text.fields)
        if not any(found):
            _find_column(schema, Field(text.fields[0].name), path)  # raises the error
        return cls(text, found)

    @property
    def names(self) -> list[str]:
        """The names of the columns to read, each once."""
        return list(dict.fromkeys(column.name for column in self.columns if column))

    def read(self, batch: Any, row: int, hold_limit: int) -> Texts:
        """Return the texts of a batch, whose first row is `row`.

        Raises TooLongError for a text that is too large to hold.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = [
            pa.array([b""], pa.large_binary()).take(pa.array(np.zeros(len(batch), np.int64)))
            if column is None
            else _values(batch, column.path)
            for column in self.columns
        ]
        sizes = sum(
            pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
            for column in columns
        )
        if len(batch) and (longest := int(sizes.max())) > PARSED * hold_limit:
            reason = f"the text in row {row + int(sizes.argmax())} has {longest:,} bytes"
            raise TooLongError(longest // PARSED, reason)
        if not self.text.is_template:
            return Texts(columns[0], sizes, [(self.text.fields[0].name, columns[0])])
        needed, pieces, rest = [], [], iter(columns)
        for piece in self.text.pieces:
            if isinstance(piece, str):
                pieces.append(pa.scalar(piece.encode(), pa.large_binary()))
                continue
            values = next(rest)
            if piece.is_optional:
                values = pc.fill_null(values, b"")
            else:
                needed.append((piece.name, values))
            pieces.append(values)
        joined = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))
        is_empty = pc.and_(pc.is_valid(joined), pa.array(sizes == 0))
        joined = pc.if_else(is_empty, pa.scalar(b"", pa.large_binary()), joined)
        sizes = pc.fill_null(pc.binary_length(joined), 0).to_numpy(zero_copy_only=False)
        return Texts(joined, sizes, needed)


class Texts(NamedTuple):
    """The texts of a batch, the size of each, and the columns without which a row has no text."""

    values: Any
    sizes: Any
    needed: list[tuple[str, Any]]

    def why_none(self, place: int) -> str:
        """Return the name of a field that is null in a row without text."""
        return next(name for name, values in self.needed if not values[place].is_valid)


def _values(batch: Any, path: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return _pick(batch, path).cast(pa.large_binary())


def _pick(batch: Any, path: tuple[str, ...]) -> Any:
    import pyarrow.compute as pc

    values = batch.column(batch.schema.get_field_index(path[0]))
    if path[1:]:
        values = pc.struct_field(values, path[1:])
    return values


class _Found(NamedTuple):
    """The names that lead to a column, and its type; `kind` is None if there is no such column.

    `inside` has the names beside the first one that is missing, and `before` what leads to them.
    """

    path: tuple[str, ...]
    kind: Any
    before: str
    inside: list[str]


def _resolve(schema: Any, field: Field, path: str) -> _Found:
    """Find a column by its whole name, or else in structs. Raises BadFileError if there are two."""
    import pyarrow as pa

    found = _Found((), None, "", schema.names)
    for names in ([field.name], field.path):
        inside, kind, before = list(schema), None, ""
        for name in names:
            kinds = [one.type for one in inside if one.name == name]
            if len(kinds) > 1:
                what = f"{len(kinds)} columns are named {field.name!r}"
                raise BadFileError(path, f"{what}; rename all but the one to read")
            if not kinds:
                is_inside = bool(before and inside)
                shown = [one.name for one in inside] if is_inside else schema.names
                found = _Found((), None, before if is_inside else "", shown)
                kind = None
                break
            kind, before = kinds[0], f"{before}.{name}" if before else name
            inside = list(kind) if pa.types.is_struct(kind) else []
        if kind is not None:
            return _Found(tuple(names), kind, "", [])
    return found


def _find_column(schema: Any, field: Field, path: str) -> Column | None:
    found = _resolve(schema, field, path)
    if found.kind is None:
        if field.is_optional:
            return None
        owner = repr(found.before) if found.before else "it"
        texts = list_texts(schema)
        uses = " or ".join(f"`text_field={name!r}`" for name in texts[:5])
        cure = f"; use {uses}" if texts else "; none of them holds text"
        shown = list_names(found.inside)
        raise BadFileError(path, f"no column {field.name!r}; {owner} has {shown}{cure}")
    if not is_text(found.kind):
        shown = one_line(str(found.kind)[:80])
        cure = "; name the column of text with `text_field=NAME`"
        raise BadFileError(path, f"column {field.name!r} holds {shown}, not text{cure}")
    return Column(field, found.path)


@dataclass(frozen=True)
class KeptColumns:
    """The columns of the fields to keep. Those that a file does not have are left out."""

    columns: tuple[Column, ...]

    @classmethod
    def find(cls, schema: Any, fields: tuple[Field, ...], path: str) -> KeptColumns:
        """Find the columns. Raises BadFileError for one whose values are lists or maps."""
        columns = []
        for field in fields:
            found = _resolve(schema, field, path)
            if found.kind is None:
                continue
            if not _is_scalar(found.kind):
                shown = one_line(str(found.kind)[:80])
                reason = f"column {field.name!r} holds {shown}, which `keep_fields` cannot keep"
                raise BadFileError(path, reason)
            columns.append(Column(field, found.path))
        return cls(tuple(columns))

    @property
    def names(self) -> list[str]:
        """The names of the columns to read."""
        return [column.name for column in self.columns]

    def read(self, batch: Any, low: int, high: int) -> list[bytes]:
        """Return the fields of some rows, each as a JSON object."""
        import pyarrow as pa

        names = [column.field.name for column in self.columns]
        values = []
        for column in self.columns:
            some = _pick(batch, column.path)[low:high]
            if pa.types.is_temporal(some.type) or pa.types.is_decimal(some.type):
                some = some.cast(pa.string())
            values.append(some.to_pylist())
        if not values:
            return [b"{}"] * (high - low)
        return [
            encode_fields(dict(zip(names, row, strict=True))) for row in zip(*values, strict=True)
        ]


def _is_scalar(kind: Any) -> bool:
    import pyarrow as pa

    tests = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_null,
        pa.types.is_temporal,
        pa.types.is_decimal,
        is_text,
    )
    return any(test(kind) for test in tests)


def list_texts(schema: Any, most: int = 100) -> list[str]:
    """Return the names of the columns that hold text, with those in structs."""
    import pyarrow as pa

    found: list[str] = []
    waiting = [(one.name, one.type) for one in reversed(list(schema))]
    while waiting and len(found) < most:
        name, kind = waiting.pop()
        if is_text(kind):
            found.append(name)
        elif pa.types.is_struct(kind):
            waiting += [(f"{name}.{one.name}", one.type) for one in reversed(list(kind))]
    return found


def is_text(kind: Any) -> bool:
    """Return whether a column of an Arrow type holds text."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests: list[Callable[[Any], bool]] = [
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
    ]
    return any(test(kind) for test in tests)
