"""Find out where a document is, why it is not in a dataset, and when a run reads it.

The reverse of `explain`. A document is named by its place in an input file, by its key, by some of
its text, or by its number or one of its tokens.

Guarantees: what is said about a record of an input file follows from reading that record again, with
the functions and settings that made the dataset. Memory is bounded for any corpus and any record.

Costs: a place in a file takes two binary searches, and a read of the record if it is not the start of
a document. A key takes some milliseconds with an index (`keys.py`). A text takes a search.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import tokenmill.dataset.opening
from tokenmill.dataset.named import parse_named
from tokenmill.dataset.opening import Dataset
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.inspect.absence import (
    NO_RECORD,
    UNKNOWN,
    describe_change,
    explain,
    find_rejection,
    find_set_aside,
    read_settings,
)
from tokenmill.inspect.keys import DIGITS, find_key, is_key, open_tables
from tokenmill.inspect.run_view import RunView, open_run, view_data
from tokenmill.inspect.search.search import search
from tokenmill.inspect.source_places import (
    SourceDocuments,
    SourcePlace,
    find_nearest,
    find_sources,
    parse_place,
)
from tokenmill.inspect.source_record import (
    SourceRecord,
    find_input,
    find_line,
    find_start,
    read_record,
)
from tokenmill.inspect.visits import find_visits
from tokenmill.inspect.whereabouts import Absence, FileContents, FoundDocument, Whereabouts
from tokenmill.preparation.settings import PrepareSettings
from tokenmill.progress import Watcher, watching
from tokenmill.sources.files import SourceFile
from tokenmill.storage.addresses import is_address
from tokenmill.store.documents import Document
from tokenmill.store.tables import Source
from tokenmill.wording import count, counted, one_line

Kind = Literal["file", "key", "text", "token", "document"]

_NUMBERED = re.compile(r"(token|document)[=: ]([0-9][0-9,]{0,24})")
_ENDING = re.compile(r"\S*\.[A-Za-z0-9]{1,8}")
_SHOWN = 40  # tokens of a document that are shown as text
_VISITS = 5


def where(
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    what: str,
    *,
    kind: Kind | None = None,
    split: str | None = None,
    limit: int = 10,
    run: str | os.PathLike[str] | None = None,
    seq_len: int | None = None,
    batch_size: int = 1,
    world_size: int = 1,
    seed: int = 0,
    order: Literal["shuffled", "blocks", "sequential", "random"] = "shuffled",
    block_rows: int | None = None,
    group_blocks: int | None = None,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    **opening: Any,
) -> Whereabouts:
    """Find a document: its split and tokens, why it is absent, and the steps that read it.

    >>> import tempfile
    >>> import tokenmill
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("to be\\nor not\\nto be\\n")
    >>> _ = tokenmill.prepare(
    ...     folder / "a.txt", folder / "data", tokenizer="bytes", documents="line", val_fraction=0
    ... )
    >>> found = where(folder / "data", "a.txt:2")
    >>> found.documents[0].split, found.documents[0].start, found.documents[0].length
    ('train', 6, 7)
    >>> absence = where(folder / "data", "a.txt:3").absences[0]
    >>> absence.reason, absence.twins[0].document.offset
    ('duplicate', 0)

    Parameters
    ----------
    data
        A dataset, or several as NAME=PATH:WEIGHT. May be None if `run` is given.
    what
        FILE, FILE:LINE, FILE:byte=BYTE or FILE:row=ROW; a key or at least its first 6 digits;
        token=TOKEN or document=DOCUMENT; or text to search for.
    kind
        What `what` is: file, key, text, token or document. By default, this is found out.
    split
        The split of a token or a document, or the only split to search for text.
    limit
        The number of documents to return.
    run
        The folder of a run of `tokenmill.train`, to find out at which steps it reads the document.
    seq_len, batch_size, world_size, seed, order, block_rows, group_blocks
        Settings of a loader, to find out the same without a run. `seq_len` is needed, and
        `batch_size` counts the rows of one rank.
    progress, watcher
        As for `tokenmill.prepare`.
    opening
        `tokenizer`, `dtype`, `format`, `column` and other options of `tokenmill.open`.
    """
    if limit < 1:
        raise UsageError(f"`limit` is {limit}; it must be 1 or more.")
    if data is None and run is None:
        raise UsageError("give `data` or `run`: where to look.")
    paths = [data] if isinstance(data, (str, os.PathLike)) else list(data or ())
    view = None
    if run is not None:
        view = open_run(run, data=[os.fspath(path) for path in paths])
    elif seq_len is not None:
        view = view_data(
            [os.fspath(path) for path in paths],
            seq_len=seq_len,
            batch_size=batch_size,
            world_size=world_size,
            seed=seed,
            order=order,
            block_rows=block_rows,
            group_blocks=group_blocks,
            **opening,
        )
    if view is not None:
        datasets = {name: _without_held_out(one) for name, one in view.datasets.items()}
    else:
        datasets = {
            one.name: tokenmill.dataset.opening.open(one.path, cache_bytes=0, **opening)
            for one in parse_named(paths)
        }
    with watching(watcher, progress) as shown:
        return Finder(datasets, view, limit=limit, split=split, watcher=shown).find(what, kind)


def _without_held_out(dataset: Dataset) -> Dataset:
    """Return a prepared dataset with its own splits, even if a run held out another part."""
    if dataset.manifest is None:
        return dataset
    return tokenmill.dataset.opening.open(dataset.path, cache_bytes=0)


class Finder:
    """Finds documents in some datasets, by name; and in a run, if there is a `view` of one."""

    def __init__(
        self,
        datasets: dict[str, Dataset],
        view: RunView | None,
        *,
        limit: int,
        split: str | None,
        watcher: Watcher,
    ) -> None:
        self._datasets, self._view = datasets, view
        self._limit, self._split, self._watcher = limit, split, watcher
        # Only documents of prepared datasets have keys and sources.
        self._prepared = {
            name: one for name, one in datasets.items() if one.manifest is not None
        }

    def find(self, what: str, kind: Kind | None) -> Whereabouts:
        """Find out what `what` is, unless `kind` says it, and find it."""
        if not what:
            raise UsageError("`what` is empty; give a file, a key or some text.")
        if kind in ("file", "key") and not self._prepared:
            for dataset in self._datasets.values():
                open_tables(dataset)  # raises the error
        numbered = _NUMBERED.fullmatch(what)
        if kind in ("token", "document") or (kind is None and numbered):
            return self._find_number(what, kind, numbered)
        if kind in (None, "file") and (found := self._find_in_sources(what)):
            return found
        if kind == "key" or (kind is None and is_key(what)):
            found = self._find_key(what)
            if found.documents or kind == "key" or len(what) == DIGITS:
                return found
        if kind in (None, "file") and (found := self._find_other_file(what)):
            return found
        if kind == "file" or (kind is None and self._prepared and _ENDING.fullmatch(what)):
            raise self._no_source(parse_place(what).name)
        return self._find_text(what)

    def _find_number(
        self, what: str, kind: Kind | None, numbered: re.Match[str] | None
    ) -> Whereabouts:
        digits = what.replace(",", "") if numbered is None else numbered[2].replace(",", "")
        kind = kind if numbered is None or numbered[1] == kind else numbered[1]  # type: ignore[assignment]
        if kind is None or not (digits.isascii() and digits.isdigit() and len(digits) <= 24):
            raise UsageError(f"{what!r} is not a number. Give {kind}=NUMBER, counted from 0.")
        number, split = int(digits), self._split or "train"
        if len(self._datasets) != 1:
            names = ", ".join(self._datasets)
            raise UsageError(f"a number needs one dataset, not several ({names}). Give one of them.")
        ((name, dataset),) = self._datasets.items()
        tokens = dataset[split]
        documents = tokens.documents
        if kind == "document" and documents is None:
            raise UsageError(f"{dataset.path} has no document table. Give token=TOKEN instead.")
        length = len(documents) if kind == "document" and documents is not None else len(tokens)
        if number >= length:
            raise UsageError(
                f"split {split!r} has no {kind} {number}: it has {length:,} {kind}s, numbered 0 to "
                f"{length - 1}."
            )
        if documents is None:
            place = self._describe_tokens(name, dataset, split, number, 1)
            found = replace(place, visits=self._find_visits(place))
        else:
            document = documents.at(number) if kind == "token" else documents[number]
            found = self._describe(name, dataset, document)
        return Whereabouts(what=what, kind=kind, documents=(found,))

    def _find_key(self, key: str) -> Whereabouts:
        documents: list[FoundDocument] = []
        keys: set[str] = set()
        is_all = True
        for name, dataset in self._prepared.items():
            found = find_key(dataset, key, most=self._limit + 1, watcher=self._watcher)
            keys |= {one.key for one in found if one.key is not None}
            is_all &= len(found) <= self._limit
            documents += [self._describe(name, dataset, one) for one in found[: self._limit]]
        if len(keys) > 1:
            shown = ", ".join(sorted(keys)[:3])
            raise UsageError(
                f"{key!r} is the beginning of several keys, such as {shown}. Give more digits."
            )
        return Whereabouts(what=key, kind="key", documents=tuple(documents), is_all=is_all)

    def _find_text(self, text: str) -> Whereabouts:
        documents: list[FoundDocument] = []
        is_all = True
        for name, dataset in self._datasets.items():
            matches = search(dataset, text, split=self._split, watcher=self._watcher)
            seen: set[tuple[str, int]] = set()
            for match in matches:
                document = match.document
                start = match.token if document is None else document.start
                if (match.split, start) in seen:
                    continue
                if len(documents) == self._limit:
                    is_all = False
                    break
                seen.add((match.split, start))
                if document is None:
                    place = self._describe_tokens(name, dataset, match.split, match.token, 1)
                    place = replace(place, visits=self._find_visits(place))
                else:
                    place = self._describe(name, dataset, document)
                shown = one_line(match.before[-40:] + match.found[:80] + match.after[:40])
                documents.append(replace(place, found=match.token, text=shown))
        return Whereabouts(what=text, kind="text", documents=tuple(documents), is_all=is_all)

    def _find_in_sources(self, what: str) -> Whereabouts | None:
        """Find a source file, or a place in it. Returns None if no source has that name."""
        for place in dict.fromkeys((SourcePlace(name=what), parse_place(what))):
            found: list[Whereabouts] = []
            for name, dataset in self._prepared.items():
                assert dataset.manifest is not None
                sources = dataset.manifest.sources
                numbers = find_sources(sources, place.name)
                if len(numbers) > 1:
                    shown = ", ".join(one_line(sources[number].path) for number in numbers[:5])
                    more = ", …" if len(numbers) > 5 else ""
                    raise UsageError(
                        f"{place.name!r} may be several sources: {shown}{more}. Give more of the path."
                    )
                for number in numbers:
                    one = _SourceFinder(self, name, dataset, number, place)
                    found.append(one.find_file(what) if place.number is None else one.find(what))
            if found:
                return _join(found)
        return None

    def _find_other_file(self, what: str) -> Whereabouts | None:
        """Find a record of a file that is not a source. Returns None if there is no such file."""
        place = parse_place(what)
        source = find_input(what)
        if source is not None:
            place = SourcePlace(name=what)
        else:
            source = None if place.number is None else find_input(place.name)
        if source is None:
            return None
        found = []
        for name, dataset in self._prepared.items():
            if (settings := read_settings(dataset)) is None:
                continue
            known = Source(path=source.path, bytes=source.size, unit=source.unit)
            unit = _choose_unit(known, place)
            number = place.number or 0
            if unit == "line" and place.number is not None:
                number = find_line(source, number, self._watcher)
            start = find_start(source, settings, number) if source.unit == "byte" else 0
            record = read_record(source, settings, number, start=start or 0, watcher=self._watcher)
            note = f"{one_line(source.path)} is not a source of {dataset.path}; its text was compared."
            absence = self.explain(name, dataset, settings, known, number, record)
            documents = absence.twins
            if documents:
                found.append(
                    Whereabouts(what=what, kind="file", documents=documents, notes=(note,))
                )
                continue
            if absence.reason == UNKNOWN:
                absence = replace(absence, detail="no document of the dataset has its text")
            found.append(Whereabouts(what=what, kind="file", absences=(absence,), notes=(note,)))
        return _join(found) if found else None

    def explain(
        self,
        name: str,
        dataset: Dataset,
        settings: PrepareSettings,
        source: Source,
        place: int,
        record: SourceRecord | None,
    ) -> Absence:
        """Return why a record of a source is not in a dataset."""
        absence = Absence(
            name=name,
            path=str(dataset.path),
            source=source.path,
            unit=source.unit,
            reason=NO_RECORD,
            detail=f"there is no record at {source.unit} {count(place)}: the line is blank",
            start=place,
        )
        if record is None:
            if source.unit == "row":
                detail = f"there is no row {count(place)}"
                return replace(absence, detail=detail)
            return absence
        why = explain(dataset, settings, record, self._watcher)
        return replace(
            absence,
            reason=why.reason,
            detail=why.detail,
            start=record.start,
            key=record.key,
            text=record.text[:400].decode("utf-8", "replace"),
            twins=tuple(self._describe(name, dataset, twin) for twin in why.twins),
        )

    def _no_source(self, name: str) -> UsageError:
        path = ", ".join(str(dataset.path) for dataset in self._prepared.values())
        hint = ""
        for dataset in self._prepared.values():
            assert dataset.manifest is not None
            if not hint and (near := find_nearest(dataset.manifest.sources, name)):
                hint = f" Did you mean {one_line(near)}?"
        return UsageError(
            f"{path} has no source {name!r}, and there is no such file.{hint} To search for it as text, "
            "add `kind='text'`."
        )

    def describe(self, name: str, dataset: Dataset, document: Document) -> FoundDocument:
        """Return a document with its place and its visits."""
        return self._describe(name, dataset, document)

    def _describe(self, name: str, dataset: Dataset, document: Document) -> FoundDocument:
        split, start, length = document.split, document.start, document.length
        found = self._describe_tokens(name, dataset, split, start, length)
        return replace(found, document=document, visits=self._find_visits(found))

    def _describe_tokens(
        self, name: str, dataset: Dataset, split: str, start: int, length: int
    ) -> FoundDocument:
        tokens = dataset[split]
        shard, shard_token = tokens.locate(min(start, len(tokens) - 1))
        try:
            text = dataset.tokenizer.decode(tokens[start : start + min(length, _SHOWN)])
        except (TokenmillError, ValueError, IndexError):
            text = None  # the tokenizer is unknown, or the ids are not its own
        return FoundDocument(
            name=name,
            path=str(dataset.path),
            split=split,
            start=start,
            length=length,
            shard=tokens.shard_name(shard),
            shard_token=shard_token,
            text=text,
        )

    def _find_visits(self, found: FoundDocument) -> Any:
        view = self._view
        if view is None or found.split != view.split or not found.length:
            return None
        stop = min(found.start + found.length, len(view.datasets[found.name][view.split]))
        if found.start >= stop:  # a run held out this part of the split
            return None
        return find_visits(view, found.name, found.start, stop, _VISITS)

    @property
    def limit(self) -> int:
        """How many documents to return."""
        return self._limit

    @property
    def watcher(self) -> Watcher:
        """Receives the progress."""
        return self._watcher


def _join(found: Sequence[Whereabouts]) -> Whereabouts:
    """Join the answers for several datasets."""
    first = found[0]
    return replace(
        first,
        documents=tuple(document for one in found for document in one.documents),
        is_all=all(one.is_all for one in found),
        absences=tuple(absence for one in found for absence in one.absences),
        files=tuple(file for one in found for file in one.files),
        notes=tuple(dict.fromkeys(note for one in found for note in one.notes)),
    )
