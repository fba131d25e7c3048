"""Choose which near duplicates to remove, from the edges: the verified pairs of similar documents.

One task goes through the edges in the order of their later documents. It removes a document if an
earlier one that stays is similar to it, so no chain of similar documents removes one that resembles
nothing that stays. It names the most similar of those that stay.

The task writes two files:

    gone     one bit for each document: whether it is removed
    removed  an `EDGE` for each removed document: which one it resembles, and how much

Memory is a block of edges. The bits are in a file without a name, mapped into memory.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenmill.preparation.engine import Worker
from tokenmill.preparation.key_files import read_range
from tokenmill.preparation.near_edges import EDGE, Edges, read_edges
from tokenmill.preparation.repeats import reserve
from tokenmill.preparation.segment import Bundle, Receipt
from tokenmill.preparation.shingle_sets import Catalog
from tokenmill.storage.files import create_unnamed
from tokenmill.storage.object_path import ObjectPath

_COPY = 4 << 20  # bytes to copy at once


@dataclass(frozen=True, kw_only=True)
class ChooseRemovals:
    """A task: decide for each document whether it is removed."""

    name: str
    folder: Path  # of the edges, and for the bundle
    segments: Path
    files: Path  # the file that stores a `SetFiles`
    edges: tuple[str, ...]  # names of files, in the order of the later documents

    def run(self, worker: Worker) -> Receipt:
        """Write the decisions to a bundle, and return its receipt."""
        catalog = Catalog.read(self.segments, self.files)
        size = -(-catalog.total // 8)
        counts = np.zeros(len(catalog.files.segments), np.int64)
        here = Path(tempfile.gettempdir()) if isinstance(self.folder, ObjectPath) else self.folder
        with Bundle(self.folder, self.name) as bundle, create_unnamed(here) as file:
            reserve(file, max(1, size))
            bundle.write("removed", b"")
            with closing(mmap.mmap(file.fileno(), max(1, size))) as gone:
                for edges in read_by_document(self.folder / name for name in self.edges):
                    removed = _choose(edges, gone)
                    bundle.write("removed", removed.data)
                    parts = catalog.bases.searchsorted(removed["later"], "right") - 1
                    counts += np.bincount(parts, minlength=len(counts))
                    worker.report(edges.nbytes)
                for start in range(0, size, _COPY):
                    bundle.write("gone", gone[start : min(size, start + _COPY)])
                spanning = [
                    one.part
                    for one in catalog.files.spanning
                    if _is_gone(gone, catalog.number_of(one))
                ]
            starts = np.concatenate(([0], np.cumsum(counts))).tolist()
            return bundle.finish(
                {"documents": catalog.total, "starts": starts, "spanning": spanning}
            )


def read_by_document(paths: Iterable[Path]) -> Iterator[Edges]:
    """Yield the edges in some files in order. The edges of a later document are in one array."""
    held = np.zeros(0, EDGE)
    for path in paths:
        with path.open("rb") as file:
            for edges in read_edges(file, path):
                joined = np.concatenate((held, edges))
                cut = int(joined["later"].searchsorted(joined["later"][-1]))
                yield joined[:cut]
                held = joined[cut:]
    yield held


def _is_gone(gone: mmap.mmap, number: int) -> bool:
    return bool(gone[number >> 3] >> (number & 7) & 1)


def _choose(edges: Edges, gone: mmap.mmap) -> Edges:
    """Remove the later documents of edges whose earlier document stays. Returns an edge for each."""
    chosen: list[int] = []
    best, last = -1.0, -1
    similarity = (edges["shared"] / np.maximum(edges["total"], 1)).tolist()
    pairs = zip(edges["later"].tolist(), edges["earlier"].tolist(), similarity, strict=True)
    for place, (later, earlier, alike) in enumerate(pairs):
        if gone[earlier >> 3] >> (earlier & 7) & 1:
            continue
        if later != last:
            last, best = later, alike
            gone[later >> 3] |= 1 << (later & 7)
            chosen.append(place)
        elif alike > best:
            best = alike
            chosen[-1] = place
    return edges[chosen]


@dataclass(frozen=True, kw_only=True)
class Removals:
    """Which documents are removed, for all parts."""

    path: Path  # of the file with an edge for each
    starts: Sequence[int]  # where those of each part begin in the file
    bases: Sequence[int]  # the number of the first document of each part

    def of(self, part: int) -> PartRemovals:
        """Return the removals of one part."""
        return PartRemovals(self.path, self.starts[part], self.starts[part + 1], self.bases[part])


@dataclass(frozen=True)
class PartRemovals:
    """Which documents of a part are removed: a range of a file of edges."""

    path: Path
    start: int
    stop: int
    base: int  # the number of the part's first document

    def read(self, limit: int) -> Iterator[Edges]:
        """Yield the edges in order, at most `limit` at a time."""
        if self.start < self.stop:
            with self.path.open("rb") as file:
                for start in range(self.start, self.stop, limit):
                    count = min(limit, self.stop - start)
                    data = read_range(file, EDGE.itemsize * start, EDGE.itemsize * count)
                    yield np.frombuffer(data, EDGE)
