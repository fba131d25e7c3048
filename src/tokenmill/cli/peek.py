"""`tokenmill peek`: one document as text, and its origin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
from cyclopts import Parameter

from tokenmill.cli.console import quote, show, typed, typed_options
from tokenmill.cli.opening import RECOGNISED, Opening, parse_path
from tokenmill.dataset.opening import open as open_dataset
from tokenmill.inspect.peek import Peek
from tokenmill.inspect.peek import peek as look
from tokenmill.store.documents import Document
from tokenmill.wording import count, one_line


def peek(
    path: Annotated[Path, Parameter(name="PATH", converter=parse_path)],
    /,
    *,
    tokenizer: str | None = None,
    opening: Opening = RECOGNISED,
    split: str = "train",
    document: int | None = None,
    token: int | None = None,
    length: int = 400,
    ids: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Show the text and the origin of one document.

    Parameters
    ----------
    path
        Dataset folder, or a file or folder of tokens in another format.
    tokenizer
        Tokenizer that made the tokens, such as gpt2, bytes or a file. By default, the tokenizer
        comes from the data.
    split
        Split that contains the document.
    document
        Number of the document to show, counted from 0. Negative numbers count from the end. By
        default, the first document.
    token
        Position of a token in the split, counted from 0. Only the text around this token is shown.
    length
        Maximum number of tokens to show.
    ids
        Print one token per line: position, id and text.
    """
    dataset = open_dataset(path, tokenizer=tokenizer, cache_bytes=0, **opening.options)
    found = look(dataset, split=split, document=document, token=token, length=length)
    _show_origin(found)
    show("")
    if ids:
        _show_ids(found)
    else:
        show(found.text)
    show("")
    given = typed_options({"tokenizer": tokenizer, **opening.options})
    _show_next(found, f"tokenmill peek {typed(path)}{given}")
    return 0


def describe_source(document: Document) -> str | None:
    """Return the file of a document and its place in that file; None if they are unknown."""
    if document.source is None:
        return None
    return f"{document.source.path}, {document.source.unit} {document.offset}"


def describe_fields(document: Document) -> str:
    """Return the kept fields of a document in words; an empty string if it has none."""
    values = {
        name: value if isinstance(value, str) else orjson.dumps(value).decode()
        for name, value in document.metadata.items()
    }
    return ", ".join(f"{name}: {value}" for name, value in values.items())


def _show_origin(found: Peek) -> None:
    document = found.document
    if document is None:
        show(f"tokens:   {found.start} to {found.end - 1} of {count(found.tokens)}")
        show(f"shard:    {one_line(found.shard)}, from its token {found.shard_token}")
        return
    last = document.start + document.length - 1
    shown = ""
    if len(found.ids) < document.length:
        shown = f"; showing {found.start} to {found.end - 1}"
    rows = {"document": f"{document.number} of {count(found.documents)} in split {document.split}"}
    if (place := describe_source(document)) is not None:
        rows["source"] = place
    rows["tokens"] = f"{count(document.length)}: {document.start} to {last} of the split{shown}"
    rows["shard"] = f"{found.shard}, from its token {found.shard_token}"
    if document.key is not None:
        rows["key"] = document.key
    if fields := describe_fields(document):
        rows["fields"] = fields
    for name, value in rows.items():
        show(f"{name + ':':10}{one_line(value)}")


def _show_ids(found: Peek) -> None:
    width = len(str(found.end))
    for place, (one, text) in enumerate(zip(found.ids, found.id_texts, strict=True), found.start):
        show(f"{place:{width}}  {one:6}  {text!r}")


def _show_next(found: Peek, command: str) -> None:
    document = found.document
    command += f" --split {quote(found.split)}" if found.split != "train" else ""
    if document is None:
        if found.end < found.tokens:
            show(f"The next tokens:    {command} --token {found.end}")
        return
    if len(found.ids) < document.length:
        whole = f"{command} --document {document.number} --length {document.length}"
        show(f"The whole document: {whole}")
    if document.number + 1 < found.documents:
        show(f"The next document:  {command} --document {document.number + 1}")
    else:
        show("This is the last document of the split.")
