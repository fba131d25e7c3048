"""The keys of the documents that a dataset has already, to find which added documents repeat them.

The tasks that find repeats in one run find these too (`partitions.py`): the keys of the dataset come
first, as if they were the first parts of the input. Tasks read them from the document tables, and
compare the tables with their checksums. Memory holds one block of records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.preparation.base import Base
from tokenmill.preparation.engine import Worker
from tokenmill.preparation.key_files import KeyLayout, KeyWriter
from tokenmill.preparation.plan import hash_names
from tokenmill.preparation.segment import Bundle, Receipt
from tokenmill.storage.reading import DamagedFileError, open_inside
from tokenmill.store.documents import read_table_header
from tokenmill.store.manifest import DOCUMENT_DTYPE
from tokenmill.store.tables import Shard

_DOCUMENTS = 1 << 20  # for one task, at least
_TASKS = 1024  # at most, about


@dataclass(frozen=True, kw_only=True)
class CollectEarlierKeys:
    """A task: write the keys in some document tables of the dataset to a bundle."""

    name: str
    folder: Path
    dataset: Path
    shards: tuple[Shard, ...]
    layout: KeyLayout
    records: int  # read at once

    def run(self, worker: Worker) -> Receipt:
        """Write the keys, and return the receipt of the bundle. Refuses a table that has changed."""
        with Bundle(self.folder, self.name) as bundle:
            keys = KeyWriter(self.layout, partial(bundle.write, "keys"))
            for shard in self.shards:
                for table in _read_table(self.dataset, shard, self.records):
                    keys.add(table["key"])
                    worker.report(table.nbytes)
            keys.flush()
            return bundle.finish({"keys": keys.count})


def _read_table(dataset: Path, shard: Shard, records: int) -> Iterator[npt.NDArray[np.void]]:
    """Yield the records of a document table, and compare the file with its checksum."""
    name = shard.documents_path
    with open_inside(dataset, name) as file:
        header = read_table_header(file, name, shard.documents)
        file.seek(0)
        digest = xxhash.xxh3_128(file.read(header))
        while data := file.read(records * DOCUMENT_DTYPE.itemsize):
            digest.update(data)
            yield np.frombuffer(data, DOCUMENT_DTYPE)
    if digest.hexdigest() != shard.documents_xxh3_128:
        raise DamagedFileError(name, "does not match its checksum")


def plan_earlier_keys(
    base: Base, dataset: Path, folder: Path, layout: KeyLayout, records: int
) -> list[CollectEarlierKeys]:
    """Return the tasks that write the keys of the dataset's documents to the folder `folder`."""
    shards = [shard for shard in base.shards if shard.documents]
    each = max(_DOCUMENTS, sum(shard.documents for shard in shards) // _TASKS)
    groups: list[list[Shard]] = []
    held = each
    for shard in shards:
        if held >= each:
            groups.append([])
            held = 0
        groups[-1].append(shard)
        held += shard.documents
    return [
        CollectEarlierKeys(
            name=hash_names("earlier", str(layout), *(one.documents_xxh3_128 for one in group)),
            folder=folder,
            dataset=dataset,
            shards=tuple(group),
            layout=layout,
            records=records,
        )
        for group in groups
    ]
