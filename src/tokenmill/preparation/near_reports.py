"""List the near duplicates that were removed: which document each resembles, and how much.

A removed document and the one that it resembles may be in different parts and files. So the task of a
part reads the records of the others from their segments, and the names of all sources from a file,
`SourceNames`, since no task holds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tokenmill.preparation.key_files import damaged, read_range
from tokenmill.preparation.near_edges import Edges, similarity
from tokenmill.preparation.segment import RECORD, Records
from tokenmill.preparation.shingle_sets import Catalog, Place
from tokenmill.preparation.spanning import Whole
from tokenmill.sources.files import SourceFile
from tokenmill.storage.files import AtomicFile

_AT_ONCE = 1024  # documents


def write_sources(path: Path, sources: Sequence[SourceFile]) -> None:
    """Write the names of all sources to a file: where each begins, then JSON for each."""
    with AtomicFile(path, durable=False) as file:
        ends = np.zeros(len(sources) + 1, "<u8")
        place = ends.nbytes
        for number, source in enumerate(sources):
            ends[number] = place
            place += len(_describe(source))
        ends[len(sources)] = place
        file.write(ends.data)
        for source in sources:
            file.write(_describe(source))
        file.finish()


def _describe(source: SourceFile) -> bytes:
    return orjson.dumps([source.path, "row" if source.unit == "row" else "offset"])


@dataclass(frozen=True)
class RemovalReporter:
    """Writes the report about the near duplicates of one segment."""

    segments: Path  # the folder of segments
    files: Path  # the file that stores a `SetFiles`
    sources: Path  # the file that `write_sources` has written

    @cached_property
    def _catalog(self) -> Catalog:
        return Catalog.read(self.segments, self.files)

    def list_removed(self, removed: Records, edges: Edges, begins: Whole | None) -> Iterator[bytes]:
        """Yield JSON lines about removed documents. `edges` says which one each resembles.

        `begins` is the last document if it ends in a later part.
        """
        for start in range(0, len(edges), _AT_ONCE):
            some = edges[start : start + _AT_ONCE]
            numbers = some["earlier"].astype(np.int64)
            wanted, which = np.unique(numbers, return_inverse=True)
            kept = self._read_records(self._catalog.places(wanted))
            own = removed[start : start + _AT_ONCE]
            alike = similarity(some).tolist()
            sources = np.unique(np.concatenate((own["source"], kept["source"]))).tolist()
            names = self._read_names(sources)
            for i, record in enumerate(own):
                key = begins.key if begins is not None and start + i == len(edges) - 1 else None
                entry = _locate(record, names, key) | {
                    "similarity": round(alike[i], 6),
                    "resembles": _locate(kept[which[i]], names),
                }
                yield orjson.dumps(entry) + b"\n"

    def _read_records(self, places: Sequence[Place]) -> Records:
        """Return the records of some documents, with their keys."""
        records = np.zeros(len(places), RECORD)
        segments = self._catalog.files.segments
        part, file = -1, None
        try:
            for i, place in enumerate(places):
                if place.part != part:
                    if file is not None:
                        file.close()
                    part = place.part
                    file = (self.segments / segments[part][0]).with_suffix(".docs").open("rb")
                assert file is not None
                data = read_range(file, RECORD.itemsize * place.record, RECORD.itemsize)
                records[i] = np.frombuffer(data, RECORD)[0]
                if place.key is not None:
                    records["key"][i] = place.key
        finally:
            if file is not None:
                file.close()
        return records

    def _read_names(self, numbers: Sequence[int]) -> dict[int, tuple[str, str]]:
        """Return the path of each source, and what the places in it are: offsets or rows."""
        names = {}
        with self.sources.open("rb") as file:
            for number in numbers:
                start, end = np.frombuffer(read_range(file, 8 * number, 16), "<u8").tolist()
                if end < start:
                    raise damaged(self.sources)
                path, unit = orjson.loads(read_range(file, start, end - start))
                names[number] = (path, unit)
        return names


def _locate(
    record: Any, names: dict[int, tuple[str, str]], key: tuple[int, int] | None = None
) -> dict[str, Any]:
    path, unit = names[int(record["source"])]
    high, low = key or record["key"].tolist()
    return {"source": path, unit: int(record["offset"]), "key": f"{high:016x}{low:016x}"}
