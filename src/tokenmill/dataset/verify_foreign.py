"""Check every id and every document of tokens that tokenmill did not make.

There are no checksums to compare, so what can be wrong is little: a header or a size that does not
fit, an id that the vocabulary does not have, documents that do not follow each other through their
file from its first token to its last. Ids are read `CHUNK` bytes at a time and not mapped, so that
memory stays small whatever the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.opening import Dataset
from tokenmill.dataset.problems import Findings, Problems
from tokenmill.progress import Watcher
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError
from tokenmill.store.shards import Shards

CHUNK = 4 << 20


def examine_foreign(dataset: Dataset, watcher: Watcher) -> Findings:
    """All that can be told of a foreign file or folder."""
    contents = dataset.contents
    splits = contents.splits.values()
    to_read = sum(int(shards.counts.sum()) * shards.dtype.itemsize for shards in splits)
    watcher.begin("checking", to_read)
    problems = Problems()
    ends = 0
    for split, shards in contents.splits.items():
        start = 0
        for number, count in enumerate(shards.counts.tolist()):
            try:
                if split in contents.documents and count:
                    # Asked for one document of a file, the table looks at where all of them are.
                    contents.documents[split].at(start)
            except DamagedFileError as error:
                problems.add_error(error)
            start += count
            try:
                for first, ids in _chunks(shards, number):
                    _check_ids(shards.name(number), first, ids, dataset.vocab_size, problems)
                    if dataset.eot_id is not None:
                        ends += int(np.count_nonzero(ids == dataset.eot_id))
                    watcher.advance(ids.nbytes)
            except DamagedFileError as error:
                problems.add_error(error)
    notes = []
    if dataset.vocab_size is None:
        notes.append("the vocabulary is not known, so ids were not compared with it.")
    documents = None if dataset.eot_id is None else ends
    if len(contents.documents) == len(contents.splits) and not problems.all():
        documents = sum(len(table) for table in contents.documents.values())
    return Findings(
        problems=problems.all(),
        notes=notes,
        shards=sum(len(shards.counts) for shards in splits),
        tokens=sum(int(shards.counts.sum()) for shards in splits),
        documents=documents,
        bytes=to_read,
    )


def _chunks(shards: Shards, number: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    count = int(shards.counts[number])
    step = max(1, CHUNK // shards.dtype.itemsize)
    for first in range(0, count, step):
        yield first, shards.read(number, first, min(first + step, count))


def _check_ids(
    name: str, first: int, ids: npt.NDArray[Any], vocab_size: int | None, problems: Problems
) -> None:
    largest, smallest = int(ids.max()), int(ids.min())
    if vocab_size is not None and largest >= vocab_size:
        place = int((ids >= vocab_size).argmax())
        problems.add(
            name,
            f"holds the id {ids[place]} at token {first + place:,}, and the vocabulary has "
            f"{vocab_size:,}",
            f"{FOREIGN_CURE} Or it is not what it was taken for: another dtype, or vocabulary.",
        )
    if smallest < 0:
        place = int((ids < 0).argmax())
        problems.add(name, f"holds the id {ids[place]} at token {first + place:,}", FOREIGN_CURE)
