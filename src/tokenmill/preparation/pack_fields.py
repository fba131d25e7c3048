"""Write the kept fields of the documents of a split, in the order of the documents.

Segments have a line of fields for each record. The lines of the documents that stay are copied, so
memory holds one line, and a block of records. A resumed run writes the file again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path

import numpy as np
import orjson

from tokenmill.preparation.engine import Worker
from tokenmill.preparation.key_files import damaged
from tokenmill.preparation.segment import CONTINUES, read_document_records
from tokenmill.preparation.settings import SPLITS
from tokenmill.store.fields import FieldsFile, FieldsWriter


@dataclass(frozen=True, kw_only=True)
class PackFields:
    """A task: write the fields of a split. `fates` say which documents belong to it."""

    split: str
    segments: tuple[Path, ...]
    fates: tuple[Path, ...]
    folder: Path
    names: tuple[str, ...]  # of the fields
    records: int  # of a segment, read at once

    def run(self, worker: Worker) -> tuple[FieldsFile, set[str]]:
        """Write the file. Returns its entry for the manifest, and the fields that no document has."""
        missing = {orjson.dumps(name) + b":": name for name in self.names}
        with FieldsWriter(self.folder, self.split) as writer:
            for segment, fates in zip(self.segments, self.fates, strict=True):
                self._copy(segment, fates, writer, missing, worker)
            return writer.finish(), set(missing.values())

    def _copy(
        self,
        segment: Path,
        fates: Path,
        writer: FieldsWriter,
        missing: dict[bytes, str],
        worker: Worker,
    ) -> None:
        fate = 1 + SPLITS.index(self.split)
        path = segment.with_suffix(".fields")
        with path.open("rb") as lines, fates.open("rb") as fates_file:
            for records in read_document_records(segment, self.records):
                found = np.frombuffer(fates_file.read(len(records)), np.uint8)
                some = list(islice(lines, len(records)))
                if len(found) != len(records) or len(some) != len(records):
                    raise damaged(path)
                begins = (records["flags"] & CONTINUES) == 0
                for line in compress(some, ((found == fate) & begins).tolist()):
                    writer.add(line)
                    for key in [key for key in missing if key in line]:
                        del missing[key]
                worker.report(sum(map(len, some)))
            if lines.read(1):
                raise damaged(path)
