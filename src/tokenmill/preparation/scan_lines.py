"""Compute the keys (hashes) of a part's lines, to find lines that repeat earlier ones.

A part is the input of one task. Memory holds one chunk of a few MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from tokenmill.preparation.engine import Worker
from tokenmill.preparation.key_files import KeyWriter
from tokenmill.preparation.lines import line_keys
from tokenmill.preparation.part import PartReader, PartTask, Skipped, without_bad_files
from tokenmill.preparation.segment import Bundle, Receipt
from tokenmill.preparation.texts import Texts, clean_chunk
from tokenmill.sources.files import BadFileError
from tokenmill.sources.records import Chunk


@dataclass(frozen=True, kw_only=True)
class ScanLines(PartTask):
    """A task: compute the keys (hashes) of a part's lines, and write them to a bundle."""

    def run(self, worker: Worker) -> Receipt | BadFileError:
        """Write the keys. Returns the receipt, or the error if a bad file cannot be skipped."""
        return without_bad_files(self, lambda skipped: self._make(worker, skipped))

    def _make(self, worker: Worker, skipped: Skipped) -> Receipt:
        with Bundle(self.folder, self.name) as bundle:
            keys = KeyWriter(self.keys, partial(bundle.write, "lines"))
            for part_chunk in PartReader(self, skipped):
                chunk = part_chunk.chunk
                texts = clean_chunk(chunk, self.settings, part_chunk.source)
                found = _line_keys(texts, chunk, self.settings.min_line)
                keys.add(np.frombuffer(found, "<u8").reshape(-1, 2))
                worker.report(chunk.read)
            keys.flush()
            return bundle.finish({"lines": keys.count, "skipped": sorted(skipped.items())})


def _line_keys(texts: Texts, chunk: Chunk, min_line: int) -> bytes:
    """Return the keys (hashes) of a chunk's lines, 16 bytes each.

    If a text is a fragment or contains NUL bytes, the texts are scanned one by one.
    """
    if texts.block is not None and not (chunk.continues or chunk.unfinished):
        return line_keys(texts.block, min_line, block=True)
    last = len(texts.texts) - 1
    return b"".join(
        line_keys(
            text,
            min_line,
            continues=chunk.continues and i == 0,
            mid_line=chunk.mid_line and i == last,
        )
        for i, text in enumerate(texts.texts)
    )
