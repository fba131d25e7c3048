"""A document that arrives in fragments: its record, and what is computed from its whole text."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from tokenmill.preparation.examples import SHOWN_BYTES
from tokenmill.preparation.judges import Hearing
from tokenmill.preparation.segment import BAD_TEXT, CONTINUES, UNFINISHED
from tokenmill.preparation.shingles import Shingler
from tokenmill.preparation.texts import MOST_REPLACED


class OpenDocument:
    """A document that arrives in fragments, before its last fragment is read."""

    def __init__(self, record: Any, flags: int, hearing: Hearing | None) -> None:
        self._record = record
        self.flags = flags
        self.hash = xxhash.xxh3_128()
        self.hearing = hearing  # None if the document is not judged here
        self.beginning = bytearray()
        self.shingler: Shingler | None = None

    @property
    def is_bad(self) -> bool:
        return bool(self._record["flags"] & BAD_TEXT)

    def keep(self, text: Any) -> None:
        """Take the text of the next fragment."""
        self.hash.update(text)
        if self.shingler is not None:
            self.shingler.add(text)
        if self.hearing is not None:
            self.hearing.add(text)
            self.beginning += text[: max(0, SHOWN_BYTES - len(self.beginning))]

    def add(self, record: Any) -> None:
        for name in ("length", "raw", "text", "characters"):
            self._record[name] += record[name]
        self._record["flags"] |= record["flags"]
        replaced = int(self._record["replaced"]) + int(record["replaced"])
        self._record["replaced"] = min(replaced, MOST_REPLACED)
        self._record["line"] = self._record["line"] or record["line"]

    def lengthen(self, tokens: int) -> None:
        self._record["length"] += tokens

    def record(self, flags: int) -> Any:
        """Return the record of all fragments so far, with `flags` added.

        Its key is 0 unless the whole document is in this part.
        """
        self._record["flags"] |= self.flags | flags
        whole = not (self.flags | flags) & (CONTINUES | UNFINISHED)
        digest = self.hash.digest() if whole else bytes(16)
        self._record["key"] = np.frombuffer(digest, ">u8")
        return self._record
