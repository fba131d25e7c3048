"""`tokenmill where`: where a document is, or why it is missing, and when a run reads it."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tokenmill.cli.console import Display, quote, show, show_next, show_table, typed, typed_options
from tokenmill.cli.peek import describe_source
from tokenmill.cli.reading import FROM_RUN, Reading
from tokenmill.dataset.named import parse_named
from tokenmill.errors import UsageError
from tokenmill.inspect.where.where import where as find
from tokenmill.inspect.where.whereabouts import (
    Absence,
    FileContents,
    FoundDocument,
    Visit,
    Visits,
    Whereabouts,
)
from tokenmill.preparation.sift import EXCLUDED
from tokenmill.storage.object_path import as_path
from tokenmill.store.documents import Document
from tokenmill.wording import count, counted, one_line

_TEXT = 200  # characters of a document to show
_Part = FileContents | FoundDocument | Absence


def where(
    *arguments: Annotated[str, Parameter(name="DATA WHAT")],
    kind: Literal["file", "key", "text", "token", "document"] | None = None,
    limit: int = 10,
    run: Path | None = None,
    reading: Reading = FROM_RUN,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Show where a document is in a dataset, or why it is missing, and when a run reads it.

    The exit status is 0 if a document was found, 1 if not, and 2 after an error.

    Parameters
    ----------
    arguments
        First the data: a dataset, or several as NAME=PATH:WEIGHT. Omit it with --run. Then what to
        find: FILE, FILE:LINE, FILE:byte=BYTE or FILE:row=ROW, a key or its first digits,
        token=TOKEN, document=DOCUMENT, or text to search for.
    kind
        Kind of WHAT: file, key, text, token or document. By default, tokenmill works this out.
    limit
        Number of documents to show.
    run
        Folder of a run of tokenmill train, to show at which steps it reads the document. For any
        other run, give the settings of its loader.
    json
        Print the answer as JSON.
    """
    if len(arguments) + (run is not None) < 2:
        needs = "WHAT" if run is not None else "DATA and WHAT"
        raise UsageError(f"tokenmill where needs {needs}, such as a file, a key or some text.")
    *data, what = arguments
    with Display() as display:
        found = find(
            data,
            what,
            kind=kind,
            limit=limit,
            run=run,
            watcher=display,
            **reading.arguments,
        )
    is_found = bool(found.documents) or any(file.first for file in found.files)
    if json:
        # ASCII: every terminal can show it, and it contains no control characters.
        print(json_format.dumps(asdict(found), indent=2).replace("\x7f", "\\u007f"))
        return 0 if is_found else 1
    _show(found)
    if not found.is_all:
        show(f"\n… and more: there are more than --limit {limit}.")
    shown = [str(one._replace(path=str(as_path(one.path)))) for one in parse_named(data)]
    _show_next(found, shown, typed_options(reading.opening), run)
    return 0 if is_found else 1


def _show(found: Whereabouts) -> None:
    parts: list[_Part] = [*found.files, *found.documents, *found.absences]
    if not parts:
        what_kind = {"key": "No document has this key", "text": "No document has this text"}
        show(f"{what_kind.get(found.kind, 'Nothing was found')}: {one_line(found.what)}")
    for note in found.notes:
        show(f"note: {note}")
    for number, part in enumerate(parts):
        if number or found.notes:
            show("")
        if isinstance(part, FileContents):
            _show_file(part)
        elif isinstance(part, Absence):
            _show_absence(part)
        else:
            _show_document(part)


def _show_rows(rows: dict[str, str], indent: str = "") -> None:
    width = max(map(len, rows)) + 2
    for name, value in rows.items():
        show(f"{indent}{name + ':':{width}}{one_line(value)}")


def _list_facts(found: FoundDocument) -> dict[str, str]:
    rows: dict[str, str] = {}
    if found.name:
        rows["dataset"] = f"{found.name}, {found.path}"
    document = found.document
    if document is None:
        rows["token"] = f"{count(found.start)} of split {found.split}"
    else:
        rows["document"] = f"{count(document.number)} of split {found.split}"
        if (place := describe_source(document)) is not None:
            rows["source"] = place
        last = found.start + found.length - 1
        rows["tokens"] = f"{count(found.length)}: {found.start} to {last} of the split"
    rows["shard"] = f"{found.shard}, from its token {found.shard_token}"
    if document is not None and document.key is not None:
        rows["key"] = document.key
    if found.text:
        rows["text"] = found.text[:_TEXT]
    if found.found is not None and document is not None:
        rows["found at"] = f"token {found.found} of the split"
    return rows


def _show_document(found: FoundDocument) -> None:
    _show_rows(_list_facts(found))
    _show_reading(found)


def _show_reading(found: FoundDocument) -> None:
    if found.unread is not None:
        show(found.unread)
    if found.visits is not None:
        _show_visits(found.visits)


def _show_visits(visits: Visits) -> None:
    if not visits.first:
        show("It is never read: its tokens are after the last whole row of the split.")
        return
    if visits.rows is not None and visits.rows > 1:
        show(f"It is in {count(visits.rows)} rows of each epoch.")
    shown = list(visits.first)
    if visits.read is not None:
        times = {0: "It has not been read yet", 1: "It was read in 1 row"}
        text = times.get(visits.read, f"It was read in {count(visits.read)} rows")
        if visits.latest is not None:
            text += f", last at step {count(visits.latest.step)}"
        if visits.next is not None:
            text += f"; next at step {count(visits.next.step)}"
        show(f"{text}.")
        shown += [one for one in (visits.latest, visits.next) if one and one not in shown]
    shown.sort(key=lambda one: one.row)
    heads = ["epoch", "step", "rank", "index", "row", "places in the row"]
    rows = [_list_visit(one) for one in shown]
    if any(one.loss is not None for one in shown):
        heads.append("loss")
        for row, one in zip(rows, shown, strict=True):
            row.append("" if one.loss is None else f"{one.loss:.4f}")
    show_table("Read at", heads, rows)


def _list_visit(visit: Visit) -> list[str]:
    numbers = visit.epoch, visit.step, visit.rank, visit.index, visit.row
    return [*map(count, numbers), f"{visit.start} to {visit.stop - 1}"]


def _show_absence(absence: Absence) -> None:
    rows = {"dataset": f"{absence.name}, {absence.path}"} if absence.name else {}
    place = "" if absence.start is None else f", {absence.unit} {absence.start}"
    rows["source"] = f"{absence.source}{place}"
    rows["status"] = f"not in the dataset: {absence.reason}"
    rows["because"] = absence.detail
    if absence.key is not None:
        rows["key"] = absence.key
    if absence.text:
        rows["text"] = absence.text[:_TEXT]
    _show_rows(rows)
    if absence.twins:
        show("\nThe same text is in:")
    for twin in absence.twins:
        _show_rows(_list_facts(twin), indent="  ")
        _show_reading(twin)


def _show_file(file: FileContents) -> None:
    rows = {"dataset": f"{file.name}, {file.path}"} if file.name else {}
    rows["source"] = f"{file.source.path}, {counted(file.source.bytes, 'byte')}"
    parts = [f"{counted(number, 'document')} in {name}" for name, number in file.documents.items()]
    rows["holds"] = ", ".join(parts) or "no document of the dataset"
    if file.fault is not None:
        rows["status"] = f"the whole file was skipped: {file.fault}"
    _show_rows(rows)
    if sum(file.documents.values()) > 1:
        _show_first(file.first, file.source.unit)
        more = sum(file.documents.values()) - len(file.first)
        if more > 0:
            show(f"… and {count(more)} more: add --limit NUMBER")


def _show_first(documents: Sequence[Document], unit: str) -> None:
    show_table(
        "First documents",
        (unit, "split", "document", "first token", "tokens"),
        [
            (
                count(one.offset or 0),
                one.split,
                count(one.number),
                count(one.start),
                count(one.length),
            )
            for one in documents
        ],
    )


def _show_next(found: Whereabouts, data: Sequence[str], options: str, run: Path | None) -> None:
    twins = (twin for absence in found.absences for twin in absence.twins)
    shown = next((one for one in (*found.documents, *twins)), None)
    commands = []
    if shown is not None:
        split = "" if shown.split == "train" else f" --split {quote(shown.split)}"
        place = f" --token {shown.start}"
        if shown.document is not None:
            place = f" --document {shown.document.number}"
        unknown = " --tokenizer NAME" if shown.text is None else ""
        here = _type_path(shown, data)
        commands.append(f"tokenmill peek {here}{options}{unknown}{split}{place}")
    for file in found.files:
        if sum(file.documents.values()) > 1:
            place = f"{file.source.path}:{file.source.unit}={file.first[-1].offset}"
            which = " ".join(map(quote, [*data, place]))
            commands.append(f"tokenmill where {which}{options}")
    if run is not None and shown is not None and shown.visits and shown.visits.first:
        step = (shown.visits.latest or shown.visits.first[0]).step
        commands.append(f"tokenmill explain --run {typed(run)} --step {step}")
    is_unasked = shown is not None and shown.visits is None and shown.unread is None
    if run is None and is_unasked and shown is not None and shown.split == "train":
        asked = " ".join(map(quote, [*data, found.what]))
        commands.append(f"tokenmill where {asked}{options} --run runs/NAME")
    if shown is None and not commands:
        missing: list[_Part] = [*found.absences, *found.files]
        for one in missing[:1]:
            is_listed = isinstance(one, Absence) and one.reason == EXCLUDED
            command, show_list = ("exclude", " --list") if is_listed else ("info", "")
            commands.append(f"tokenmill {command} {_type_path(one, data)}{show_list}")
    if commands:
        show_next(*commands)


def _type_path(found: _Part, data: Sequence[str]) -> str:
    """Return the path of a dataset for a command: as the user typed it, if there is only one."""
    return typed(Path(data[0] if len(data) == 1 and not found.name else found.path))
