"""The page of dropped documents: what each reason of the ledger means, and examples.

`prepare` lists rejected and excluded records in the dataset. At most `LISTED` records of each list
are read. Of duplicates and empty documents there is no list.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from tokenmill.dataset.opening import Dataset
from tokenmill.inspect.view.overview import describe_once
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.viewer import Page, Viewer
from tokenmill.preparation.filter_judge import name_reason
from tokenmill.preparation.language_judge import REASON as LANGUAGE
from tokenmill.storage.decoding import parse_json
from tokenmill.storage.names import DROPPED_NAME, EXCLUDED_NAME, REJECTED_NAME
from tokenmill.storage.reading import DamagedFileError, open_inside

LISTED = 50  # records of a list to show
_LONGEST_LINE = 1 << 16  # bytes of a line of a list; longer ones are not shown
_MEANINGS = {
    "duplicate": "An earlier document has the same text after cleaning. Duplicates are not listed.",
    "empty": "The record has no text, or nothing is left after cleaning. These are not listed.",
    "only repeated lines": "All lines are earlier in the input. These documents are not listed.",
    "not sampled": "The document is not in the sample that the settings ask for. These are not listed.",
    "no tokens": "The tokenizer removes all of the text. These documents are not listed.",
    "excluded": "The document is in a list of documents to exclude.",
    "near duplicate": "The document resembles one that stays; removed.jsonl.zst names both.",
    "contains evaluation text": "The document contains an evaluation text, in contaminated.jsonl.",
    "invalid UTF-8": "The text is not UTF-8, and the settings say to drop such documents.",
}
_REJECTED = "The record cannot be used, for the reason that the list of rejected records gives."


@dataclass(frozen=True, kw_only=True)
class Example:
    """A record of a list: its source, its place there, and why it is listed."""

    source: str
    place: str
    reason: str


def show_dropped(viewer: Viewer, query: Query) -> Page:
    """Return the page."""
    name, dataset = viewer.choose_dataset(query)
    info = describe_once(dataset)
    return Page(
        template="dropped.html",
        title="Dropped documents",
        section="/",
        values={
            "name": name,
            "dataset": dataset,
            "documents_in": info.documents_in or 0,
            "reasons": [(one, _explain(one.reason)) for one in info.dropped if one.documents],
            "lists": [
                (title, file, examples)
                for title, file in (
                    ("Rejected records", REJECTED_NAME),
                    ("Excluded documents", EXCLUDED_NAME),
                    ("Examples of filtered documents", DROPPED_NAME),
                )
                if (examples := read_examples(dataset, file))
            ],
            "listed": LISTED,
        },
    )


def _explain(reason: str) -> str:
    if reason == LANGUAGE or reason.startswith(name_reason("")):
        return "A filter dropped the document. A few are listed for each rule."
    return _MEANINGS.get(reason, _REJECTED)


def read_examples(dataset: Dataset, file: str) -> list[Example]:
    """Return the first records of a list; none if there is no list."""
    found: list[Example] = []
    for one in [] if dataset.manifest is None else dataset.manifest.list_files(file):
        with (
            suppress(DamagedFileError),
            open_inside(dataset.path, one) as opened,
        ):  # if there is one
            lines = islice(iter(partial(opened.readline, _LONGEST_LINE), b""), LISTED - len(found))
            found += [entry for line in lines if (entry := _describe(line)) is not None]
    return found


def _describe(line: bytes) -> Example | None:
    try:
        entry: Any = parse_json(line)
    except ValueError:  # damaged
        return None
    if not isinstance(entry, dict):
        return None
    places = [f"{name} {entry[name]}" for name in ("line", "row", "offset") if name in entry]
    return Example(
        source=str(entry.get("source", "")),
        place=", ".join(places).replace("offset", "byte"),
        reason=str(entry.get("reason", entry.get("key", ""))),
    )
