"""`tokenmill explain`: the documents that a training step, a row or a token comes from."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenmill.cli.console import quote, show, show_next, typed, typed_options
from tokenmill.cli.peek import describe_fields, describe_source
from tokenmill.cli.reading import FROM_RUN, Reading
from tokenmill.inspect.explain import (
    TEXT_LENGTH,
    ExplainedRow,
    ExplainedToken,
    Explanation,
    RowDocument,
)
from tokenmill.inspect.explain import explain as look_up
from tokenmill.inspect.run_view import RowSpan
from tokenmill.storage.object_path import as_path
from tokenmill.store.documents import Document
from tokenmill.wording import count, counted, one_line

_READS_SHOWN = 5


def explain(
    data: Annotated[list[str] | None, Parameter(json_list=False, negative="")] = None,
    *,
    run: Path | None = None,
    step: int | None = None,
    rank: int | None = None,
    row: int | None = None,
    token: int | None = None,
    source: str | None = None,
    reading: Reading = FROM_RUN,
    text_length: int = TEXT_LENGTH,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Show which documents a training step, a row or a token comes from.

    For a run of tokenmill train, --run is enough: tokenmill explain --run runs/NAME --step 1200. For
    any other run, give its data and the settings of its loader.

    Parameters
    ----------
    data
        Folder of a dataset, or tokens in any format that tokenmill opens. For a mixture, give each
        dataset a name and a weight: --data web=DIR:0.7 --data code=DIR:0.3.
    run
        Folder of a run of tokenmill train.
    step
        Training step to explain. The first step is step 0.
    rank
        Show only the rows of this rank.
    row
        Row to explain: one row of the run, counted from 0.
    token
        Position of a token in the split, counted from 0. Negative numbers count from the end. Shows
        the rows that hold this token.
    source
        Name of the dataset that contains --token, in a mixture.
    text_length
        Number of characters to show of each document.
    json
        Print all information as JSON.
    """
    found = look_up(
        data or [],
        run=run,
        step=step,
        rank=rank,
        row=row,
        token=token,
        source=source,
        text_length=text_length,
        **reading.arguments,
    )
    if json:
        # ASCII: every terminal can show it, and it contains no control characters.
        print(json_format.dumps(asdict(found), indent=2).replace("\x7f", "\\u007f"))
        return 0
    _show(found)
    _show_next(found, run, reading)
    return 0


def _show(found: Explanation) -> None:
    if found.token is not None:
        _show_token(found, found.token)
    if found.step is not None:
        where = "" if found.rank is None else f" on rank {found.rank}"
        first, last = found.rows[0].span.row, found.rows[-1].span.row
        rows = f"row {count(first)}" if first == last else f"rows {count(first)} to {count(last)}"
        show(f"Step {count(found.step)}{where}: {rows}, of {counted(found.seq_len, 'token')} each.")
    for number, row in enumerate(found.rows):
        if number or found.token is not None or found.step is not None:
            show("")
        _show_row(row)
    lasts = [row.span.row for row in found.rows]
    if found.token is None and found.row_count is not None and max(lasts) >= found.row_count:
        show(f"\nThe run has recorded losses of {counted(found.row_count, 'row')} so far.")


def _show_row(row: ExplainedRow) -> None:
    place, span = row.place, row.span
    loss = "" if row.loss is None else f", loss {row.loss:.4f}"
    show(
        f"row {count(span.row)}: step {count(place.step)}, rank {place.rank}, row {place.index} of "
        f"its batch, epoch {count(place.epoch)}{loss}"
    )
    source = f" of {one_line(span.source)}" if span.source else ""
    show(
        f"  tokens {span.start} to {span.stop - 1}{source}, in {one_line(row.shard)} from its token "
        f"{row.shard_token}"
    )
    width = len(str(span.stop - span.start))
    for part in row.documents:
        named = "" if part.document is None else f"  {_describe_part(part.document, span, part)}"
        shown = "" if part.text is None else f"  {part.text!r}"
        show(f"  {part.start:{width}}{one_line(named)}{one_line(shown)}")
        if part.document is not None and (fields := describe_fields(part.document)):
            show(f"  {'':{width}}  {one_line(fields)}")


def _describe_part(document: Document, span: RowSpan, part: RowDocument) -> str:
    before = span.start + part.start - document.start
    return _describe(document) + (f", from its token {before}" if before else "")


def _describe(document: Document) -> str:
    place = describe_source(document)
    return f"document {document.number}" + ("" if place is None else f", {place}")


def _show_token(found: Explanation, token: ExplainedToken) -> None:
    source = f" of {one_line(token.source)}" if token.source else ""
    show(
        f"Token {token.token}{source}: id {token.id}, in {one_line(token.shard)} as its token "
        f"{token.shard_token}"
    )
    if token.document is not None:
        place = token.token - token.document.start
        show(
            f"It is token {place} of {count(token.document.length)} of "
            f"{one_line(_describe(token.document))}."
        )
    if token.unread is not None:
        show(token.unread)
        return
    if token.times_read is not None and token.reads is not None:
        rows = ", ".join(count(row) for row in token.reads[:_READS_SHOWN])
        more = ", …" if token.times_read > _READS_SHOWN else ""
        if token.times_read:
            show(f"The run has read it in {counted(token.times_read, 'row')}: {rows}{more}.")
        else:
            show(f"The run has not read it in its first {counted(found.row_count or 0, 'row')}.")
    show("In its first epoch, it is in:" if found.rows else "No row of the first epoch holds it.")


def _show_next(found: Explanation, run: Path | None, reading: Reading) -> None:
    """Print the command that shows the whole document of the first row, or of the token."""
    text: str | None = ""
    if found.token is not None:
        source, document, token = found.token.source, found.token.document, found.token.token
    elif found.rows:
        first = found.rows[0]
        source, document, token = first.span.source, first.documents[0].document, first.span.start
    else:
        return
    if found.rows:
        text = found.rows[0].documents[0].text
    if document is None and run is not None and not source:
        show_next(f"tokenmill where --run {typed(run)} token={token}")
        return
    given = typed_options(reading.opening) + (" --tokenizer NAME" if text is None else "")
    split = f" --split {quote(found.split)}" if found.split != "train" else ""
    what = f"--token {token}" if document is None else f"--document {document.number}"
    show_next(f"tokenmill peek {typed(as_path(found.paths[source]))}{given}{split} {what}")
