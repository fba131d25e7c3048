"""Find the documents of an input file, or of a place in it, and explain which records have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import UsageError
from tokenmill.inspect.where.absence import (
    NO_RECORD,
    SET_ASIDE,
    UNKNOWN,
    describe_change,
    explain,
    find_report,
    find_set_aside,
    read_settings,
)
from tokenmill.inspect.where.described import Describer
from tokenmill.inspect.where.keys import open_tables
from tokenmill.inspect.where.source_places import (
    SourceDocuments,
    SourcePlace,
    find_sources,
    parse_place,
)
from tokenmill.inspect.where.source_record import (
    SourceRecord,
    find_input,
    find_line,
    find_start,
    read_record,
)
from tokenmill.inspect.where.whereabouts import Absence, FileContents, Whereabouts
from tokenmill.preparation.settings import PrepareSettings
from tokenmill.progress import Watcher
from tokenmill.sources.encodings import AUTO
from tokenmill.sources.files import SourceFile
from tokenmill.sources.read import is_converted, read_blocks
from tokenmill.storage.addresses import is_address
from tokenmill.store.documents import Document
from tokenmill.store.tables import Source
from tokenmill.wording import count, one_line

_NO_TEXT = "the file has no text"


class FileFinder:
    """Finds input files and places in them, in prepared datasets."""

    def __init__(
        self, datasets: Mapping[str, Dataset], describer: Describer, limit: int, watcher: Watcher
    ) -> None:
        self._datasets = datasets
        self.describer, self.limit, self.watcher = describer, limit, watcher

    def find_source(self, what: str) -> Whereabouts | None:
        """Find a source, or a place in one. Returns None if no source has that name.

        A source is an input file that a dataset was made from.
        """
        for place in dict.fromkeys((SourcePlace(name=what), parse_place(what))):
            found: list[Whereabouts] = []
            for name, dataset in self._datasets.items():
                assert dataset.manifest is not None
                sources = dataset.manifest.sources
                numbers = find_sources(sources, place.name)
                if len({sources[number].path for number in numbers}) > 1:
                    shown = ", ".join(one_line(sources[number].path) for number in numbers[:5])
                    more = ", …" if len(numbers) > 5 else ""
                    raise UsageError(
                        f"{one_line(place.name)} may be several sources: {shown}{more}. Give more of "
                        "the path."
                    )
                # Several generations of the dataset may have read the same file.
                ones = [_OneSource(self, name, dataset, number, place) for number in numbers]
                if place.number is None:
                    found += [one.list() for one in ones]
                else:
                    answers = [one.find() for one in ones]
                    found += [one for one in answers if one.documents] or answers[-1:]
            if found:
                return _join(what, found)
        return None

    def find_other_file(self, what: str) -> Whereabouts | None:
        """Find documents with the text of a record of a file that is not an input of the dataset.

        Returns None if the file does not exist.
        """
        place = SourcePlace(name=what)
        source = find_input(what)
        if source is None:
            place = parse_place(what)
            source = None if place.number is None else find_input(place.name)
        if source is None:
            return None
        found = []
        known = Source(path=source.path, bytes=source.size, unit=source.unit)
        for name, dataset in self._datasets.items():
            if (settings := read_settings(dataset)) is None:
                continue
            number = self._find_number(source, known, place, settings)
            start = find_start(source, settings, number) if source.unit == "byte" else 0
            record = self.read(source, settings, number, start or 0)
            absence = self.explain(name, dataset, settings, known, number, record, is_source=False)
            note = (
                f"{one_line(source.path)} is not a source of {dataset.path}. The text of its record was "
                "compared with all documents."
            )
            one = Whereabouts(what=what, kind="file", notes=(note,))
            if absence.twins:
                found.append(replace(one, documents=absence.twins))
            else:
                found.append(replace(one, absences=(absence,)))
        return _join(what, found) if found else None

    def _find_number(
        self, source: SourceFile, known: Source, place: SourcePlace, settings: PrepareSettings
    ) -> int:
        """Return the offset in bytes, or the row, of a place."""
        unit = choose_unit(known, place)
        if place.number is None:
            return 0
        if unit != "line":
            return place.number
        return find_line(source, place.number, self.watcher, settings.encoding)

    def read(
        self, source: SourceFile, settings: PrepareSettings, place: int, start: int
    ) -> SourceRecord | None:
        """Return the record at a place of a source; None if there is none."""
        return read_record(source, settings, place, start=start, watcher=self.watcher)

    def explain(
        self,
        name: str,
        dataset: Dataset,
        settings: PrepareSettings,
        source: Source,
        place: int,
        record: SourceRecord | None,
        *,
        is_source: bool = True,
    ) -> Absence:
        """Return why a record of a file is not in a dataset."""
        absence = Absence(
            name=name,
            path=str(dataset.path),
            source=source.path,
            unit=source.unit,
            reason=NO_RECORD,
            detail=f"row {count(place)} does not exist"
            if source.unit == "row"
            else f"the line at byte {count(place)} is blank",
            start=place,
        )
        if record is None:
            return absence
        why = explain(dataset, settings, source.path, record, self.watcher, is_source=is_source)
        return replace(
            absence,
            reason=why.reason,
            detail=why.detail,
            start=record.start,
            key=record.key,
            text=record.text[:400].decode("utf-8", "replace"),
            twins=tuple(self.describer.describe(name, dataset, twin) for twin in why.twins),
        )


class _OneSource:
    """One source of a dataset, and the place in it that the user asked about."""

    def __init__(
        self, finder: FileFinder, name: str, dataset: Dataset, number: int, place: SourcePlace
    ) -> None:
        assert dataset.manifest is not None
        self._finder, self._name, self._dataset, self._place = finder, name, dataset, place
        self._source = dataset.manifest.sources[number]
        self._documents = SourceDocuments(open_tables(dataset), number)
        self._settings = read_settings(dataset)
        self._fault = find_set_aside(dataset, self._source.path)
        self._notes: list[str] = []

    def list(self) -> Whereabouts:
        """Count the documents of the file. If there is exactly one, describe it."""
        counts = self._documents.counts
        total = sum(counts.values())
        first = tuple(islice(self._documents, self._finder.limit))
        file = FileContents(
            name=self._name,
            path=str(self._dataset.path),
            source=self._source,
            documents={split: number for split, number in counts.items() if number},
            first=first,
            fault=self._fault,
        )
        answer = self._answer(first[:1] if total == 1 else ())
        if not total and self._fault is None and self._settings is not None:
            opened = self._open()
            if self._is_empty(opened):
                answer = self._absent(None, "empty", _NO_TEXT)
            elif opened is not None:
                record = self._finder.read(opened, self._settings, 0, 0)
                answer = replace(answer, absences=(self._explain(0, record),))
        return replace(answer, files=(file,), notes=tuple(self._notes))

    def find(self) -> Whereabouts:
        """Find the document at the place, or explain why there is none."""
        unit, number = choose_unit(self._source, self._place), self._place.number or 0
        if self._fault is not None:
            return self._absent(number, SET_ASIDE, self._fault)
        opened = self._open()
        if number == int(unit == "line") and self._is_empty(opened):
            return self._absent(0, "empty", _NO_TEXT)
        if unit == "line":
            if opened is None:
                return self._find_rejected(line=number)
            encoding = self._settings.encoding if self._settings else AUTO
            place = find_line(opened, number, self._finder.watcher, encoding)
        else:
            place = number
        before = self._documents.find_before(place)
        if before is not None and before.offset == place and not self._notes:
            return self._answer([before])
        if self._settings is None:
            return self._find_imported(before, place)
        if opened is None:
            return self._find_unread(before, place)
        is_plain = unit != "row" and not opened.compression
        is_plain = is_plain and not is_converted(opened, self._settings.encoding)
        if is_plain and place >= max(1, opened.size):
            raise UsageError(
                f"{one_line(opened.path)} has no byte {count(place)}: it has {count(opened.size)} bytes."
            )
        start = find_start(opened, self._settings, place) if unit != "row" else None
        if before is not None and before.offset == start and not self._notes:
            return self._answer([before])
        begin = start
        if begin is None:
            begin = (before.offset or 0) if is_plain and before is not None else 0
        record = self._finder.read(opened, self._settings, place, begin)
        if record is None and start is None and begin:
            record = self._finder.read(opened, self._settings, place, 0)
        if before is not None and record is not None and record.start == before.offset:
            is_same = self._settings.dedup == "lines" or record.key == before.key
            if is_same or not self._notes:
                return self._answer([before])
        return replace(self._answer(()), absences=(self._explain(place, record),))

    def _open(self) -> SourceFile | None:
        """Return how to read the file, or None if it is missing. Adds a note if its size changed."""
        # Try the name that the user typed first. Open a remote address only if the user typed it: the
        # sources of an untrusted dataset may name any address.
        for path in (self._place.name, self._source.path):
            if is_address(path) and path != self._place.name:
                continue
            opened = find_input(path)
            if opened is not None:
                if opened.size != self._source.bytes and self._settings is not None:
                    note = describe_change(self._source.bytes, opened.size, one_line(opened.path))
                    self._notes.append(note)
                return opened
        return None

    def _is_empty(self, opened: SourceFile | None) -> bool:
        """Return whether the file has no text, and had none when the dataset was made."""
        if opened is None or opened.size != self._source.bytes or not opened.size:
            return not (self._source.bytes or (opened and opened.size))
        return bool(opened.compression) and not any(read_blocks(opened))

    def _explain(self, place: int, record: SourceRecord | None) -> Absence:
        assert self._settings is not None
        dataset, source = self._dataset, self._source
        return self._finder.explain(self._name, dataset, self._settings, source, place, record)

    def _find_imported(self, before: Document | None, place: int) -> Whereabouts:
        """Find the document with a token of an imported file. The documents of one leave no gaps."""
        if before is not None and place < (before.offset or 0) + before.length:
            return self._answer([before])
        return self._absent(place, NO_RECORD, "no document of this file has that token")

    def _find_rejected(self, line: int) -> Whereabouts:
        """Find a line of a missing file in the lists of rejected and of excluded records."""
        path = one_line(self._source.path)
        if (found := find_report(self._dataset, self._source.path, line=line)) is not None:
            return self._absent(found[0], found[1].reason, found[1].detail)
        raise UsageError(
            f"{path} does not exist, so line {count(line)} cannot be found. Give the place as a byte, "
            f"{path}:byte=BYTE, or the path where the file is now."
        )

    def _find_unread(self, before: Document | None, place: int) -> Whereabouts:
        """Find a place in a missing file, from what the dataset itself records."""
        path, unit = one_line(self._source.path), self._source.unit
        if (found := find_report(self._dataset, self._source.path, place=place)) is not None:
            return self._absent(place, found[1].reason, found[1].detail)
        if unit == "row" or before is None:
            detail = f"no document starts here, and without {path} the reason cannot be found"
            return self._absent(place, UNKNOWN, detail)
        self._notes.append(
            f"{path} does not exist. This is the last document that starts before byte {count(place)}; "
            "a dropped record may lie between them."
        )
        return self._answer([before])

    def _absent(self, place: int | None, reason: str, detail: str) -> Whereabouts:
        absence = Absence(
            name=self._name,
            path=str(self._dataset.path),
            source=self._source.path,
            unit=self._source.unit,
            reason=reason,
            detail=detail,
            start=place,
        )
        return replace(self._answer(()), absences=(absence,))

    def _answer(self, documents: Sequence[Document]) -> Whereabouts:
        describe = self._finder.describer.describe
        return Whereabouts(
            what=self._place.name,
            kind="file",
            documents=tuple(describe(self._name, self._dataset, one) for one in documents),
            notes=tuple(self._notes),
        )


def choose_unit(source: Source, place: SourcePlace) -> str:
    """Return the unit of a place in a source: line, byte or row. A wrong unit is a UsageError."""
    usual = "row" if source.unit == "row" else "line"
    if place.unit is not None and (place.unit == "row") != (source.unit == "row"):
        given = f"{place.unit}={place.number}"
        wanted = "row=ROW, counted from 0" if source.unit == "row" else "byte=BYTE, or a line"
        raise UsageError(f"{one_line(source.path)} has no {given}. Give {wanted}.")
    return place.unit or usual


def _join(what: str, found: Sequence[Whereabouts]) -> Whereabouts:
    """Join the answers for several datasets."""
    return Whereabouts(
        what=what,
        kind="file",
        documents=tuple(document for one in found for document in one.documents),
        is_all=all(one.is_all for one in found),
        absences=tuple(absence for one in found for absence in one.absences),
        files=tuple(file for one in found for file in one.files),
        notes=tuple(dict.fromkeys(note for one in found for note in one.notes)),
    )
