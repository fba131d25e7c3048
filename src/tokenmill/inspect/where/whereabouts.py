"""What `where` returns: documents, what became of records that are not documents, and when rows are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tokenmill.html import Table, render
from tokenmill.store.documents import Document
from tokenmill.store.tables import Source
from tokenmill.wording import counted, one_line


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A row with tokens of a document: when a run reads it, and which tokens are the document's.

    `index` is the place of the row in its rank's batch. The document has the tokens [start, stop) of
    the row. `loss` is the loss that a run recorded for the row, or None.
    """

    row: int
    epoch: int
    step: int
    rank: int
    index: int
    start: int
    stop: int
    loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class Visits:
    """The rows in which a document is read.

    `first` are the first of them. `read` is how many of them a run has read so far; `latest` is the
    last one that it has read, and `next` the first one that it will read. These are None without a
    run. `rows` is how many rows hold tokens of the document in each epoch; None for the order
    `random`, where the number differs between epochs.
    """

    first: tuple[Visit, ...]
    rows: int | None
    read: int | None = None
    latest: Visit | None = None
    next: Visit | None = None


@dataclass(frozen=True, kw_only=True)
class FoundDocument:
    """A document, or a token of data without document tables, in a dataset.

    `name` is the dataset's name in a mixture, or "". The tokens are [start, start + length) of the
    split; the first of them is token `shard_token` of the file `shard`. `text` is the beginning of
    the text, or None if the tokenizer is unknown. After a search for text, `found` is the token of
    the split at which the text was found. If a run or a loader was given, `visits` says when it reads
    the document; None if it never does. `unread` says why it does not read the document, or the end
    of it, as when it is held out for validation.
    """

    name: str
    path: str
    split: str
    start: int
    length: int
    shard: str
    shard_token: int
    document: Document | None = None
    text: str | None = None
    found: int | None = None
    visits: Visits | None = None
    unread: str | None = None


@dataclass(frozen=True, kw_only=True)
class Absence:
    """A record of an input file that is not a document of the dataset, and why.

    `reason` is a reason of the ledger, such as "duplicate" or "empty"; "rejected" if the dataset's
    list says so but the ledger's reason is not known; "skipped file" if the whole file was skipped;
    "no record" if there is none at this place; or "unknown". `start` is where the record starts.
    `twins` are the documents with the same text. `text` is the beginning of the record's text, if it
    could be read.
    """

    name: str
    path: str
    source: str
    unit: str
    reason: str
    detail: str
    start: int | None = None
    key: str | None = None
    text: str | None = None
    twins: tuple[FoundDocument, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FileContents:
    """An input file, and how many of its documents are in each split. `first` are the first of them.

    `fault` is why the whole file was skipped, or None.
    """

    name: str
    path: str
    source: Source
    documents: Mapping[str, int]
    first: tuple[Document, ...]
    fault: str | None = None


@dataclass(frozen=True, kw_only=True)
class Whereabouts:
    """The answer of `where`.

    `kind` is how `what` was understood. `documents` are the documents that were found; `is_all` says
    whether there are no more. `absences` are records that are not in the dataset. `files` describes
    whole input files. `notes` are remarks for the user.
    """

    what: str
    kind: Literal["file", "key", "text", "token", "document"]
    documents: tuple[FoundDocument, ...] = ()
    is_all: bool = True
    absences: tuple[Absence, ...] = ()
    files: tuple[FileContents, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        what = repr(one_line(self.what[:100]))
        more = "" if self.is_all else " and more"
        found = [f"{counted(len(self.documents), 'document')}{more}"] if self.documents else []
        found += [f"not in the dataset: {one_line(one.reason)[:100]}" for one in self.absences[:1]]
        found += [counted(len(self.files), "file")] if self.files else []
        return f"<Whereabouts of the {self.kind} {what}: {', '.join(found) or 'nothing found'}>"

    def _repr_html_(self) -> str:
        facts = [("note", note) for note in self.notes]
        tables: list[Table] = []
        if self.documents:
            heads = ("document", "split", "tokens", "source", "text", "read")
            tables.append(("Documents", heads, [_list_document(one) for one in self.documents]))
        if self.absences:
            cells = [
                (
                    one.source if one.start is None else f"{one.source}, {one.unit} {one.start}",
                    one.reason,
                    one.detail,
                    one.key or "",
                )
                for one in self.absences
            ]
            tables.append(("Not in the dataset", ("record", "reason", "because", "key"), cells))
            twins = [_list_document(twin) for one in self.absences for twin in one.twins]
            if twins:
                heads = ("document", "split", "tokens", "source", "text", "read")
                tables.append(("The same text", heads, twins))
        if self.files:
            rows = [
                (
                    one.source.path,
                    ", ".join(f"{n:,} in {name}" for name, n in one.documents.items()),
                )
                for one in self.files
            ]
            tables.append(("Files", ("file", "documents"), rows))
        return render(f"Whereabouts of {self.what}", facts, *tables)


def _list_document(found: FoundDocument) -> tuple[str, ...]:
    document, visits = found.document, found.visits
    source = None if document is None else document.source
    read = found.unread or ""
    if visits is not None and not read:
        steps = [f"step {visit.step:,}" for visit in visits.first]
        read = ", ".join(steps) if steps else "never"
    return (
        "" if document is None else f"{document.number:,}",
        found.split,
        f"{found.start} to {found.start + found.length - 1}",
        "" if document is None or source is None else f"{source.path}, {document.offset}",
        found.text or "",
        read,
    )
