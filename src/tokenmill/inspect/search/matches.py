"""What a search finds: the text, what is around it, and the document that contains it.

Matches are made from the ids that the scan has read. More tokens are read only for the first match in
a document that began before these ids: all tokens from the document's start, to count their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenmill.html import render
from tokenmill.inspect.search.scan import MARGIN, Found
from tokenmill.inspect.search.vocabulary import Vocabulary
from tokenmill.store.documents import Document
from tokenmill.store.tokens import Tokens
from tokenmill.wording import one_line

CONTEXT = 100  # bytes of text before and after a match
_BLOCK = 1 << 20  # tokens read at once


@dataclass(frozen=True, kw_only=True)
class Match:
    """An occurrence in a split, with some text `before` and `after` it.

    `name` is that of the dataset if it is one of a mixture, and "" otherwise. `token` is the position
    in the split of the token in which the occurrence begins. `byte` is where it begins in the text of
    its document or, if documents are unknown, in the text of the split. This text includes special
    tokens as they are written. `document` is None if the data has no document table.
    """

    split: str
    document: Document | None
    token: int
    byte: int
    before: str
    found: str
    after: str
    name: str = ""

    def __repr__(self) -> str:
        place = f"document {self.document.number}, " if self.document is not None else ""
        text = repr(f"{self.before[-20:]}[{self.found[:40]}]{self.after[:20]}")
        return f"<Match in {one_line(self.split)}, {place}token {self.token}: {text}>"

    def _repr_html_(self) -> str:
        facts: list[tuple[str, object]] = [("split", self.split), ("token", self.token)]
        if self.document is not None:
            facts.insert(1, ("document", self.document.number))
            if self.document.source is not None:
                place = f"{self.document.source.path}, {self.document.offset}"
                facts.append(("source", place))
        facts += [("before", self.before), ("found", self.found), ("after", self.after)]
        return render("Match", facts)


class Describer:
    """Turns hits, positions found in the ids of one split, into matches. Hits must come in order."""

    def __init__(self, tokens: Tokens, vocabulary: Vocabulary | None) -> None:
        self._tokens, self._vocabulary = tokens, vocabulary
        self._document: Document | None = None
        # The text of the current document has `_bytes` bytes before token `_counted`.
        self._start = self._stop = self._counted = self._bytes = 0
        if tokens.documents is None and tokens.eot_id is None:
            self._stop = len(tokens)

    def describe(self, found: Found, number: int) -> Match:
        """Return a match for a hit of a chunk."""
        hits = found.hits
        first, last = int(hits.first[number]), int(hits.last[number])
        skip, end = int(hits.skip[number]), int(hits.end[number])
        self._enter(first, found)
        low = max(first - MARGIN, self._start, found.start)
        high = min(last + 1 + MARGIN, self._end(last, found))
        ids = found.ids[low - found.start : high - found.start]
        if self._vocabulary is None:
            shown = [str(one) for one in ids.tolist()]
            at, to = first - low, last + 1 - low
            texts = " ".join(shown[:at][-16:]), " ".join(shown[at:to]), " ".join(shown[to:][:16])
            before, text, after = f"{texts[0]} ", texts[1], f" {texts[2]}"
            place = 0
        else:
            joined, starts = self._vocabulary.join(self._vocabulary.trim(ids))
            begin, stop = int(starts[first - low]) + skip, int(starts[last - low]) + end
            before = _decode(bytes(joined[max(begin - CONTEXT, 0) : begin]), cut_before=True)
            text = bytes(joined[begin:stop]).decode("utf-8", "replace")
            after = _decode(bytes(joined[stop : stop + CONTEXT]), cut_after=True)
            place = self._count(first, found) + skip
        return Match(
            split=self._tokens.split,
            document=self._document,
            token=first,
            byte=place,
            before=before,
            found=text,
            after=after,
        )

    def _enter(self, token: int, found: Found) -> None:
        """Make the document of a token the current one."""
        if self._start <= token < self._stop:
            return
        table = self._tokens.documents
        if table is not None:
            self._document = document = table.at(token)
            self._start, self._stop = document.start, document.start + document.length
        else:
            self._start = find_start(self._tokens, token, found)
            self._stop = token + 1  # the end is unknown, so a later token is looked up again
            if self._start < self._counted:  # the same document as before
                return
        self._counted, self._bytes = self._start, 0

    def _end(self, last: int, found: Found) -> int:
        """Return where to stop showing text after a match."""
        stop = found.start + len(found.ids)
        if self._tokens.documents is not None or self._tokens.eot_id is None:
            return min(self._stop, stop)
        after = self._tokens.eot != "before"
        rest = found.ids[last + 1 - after - found.start :][: MARGIN + 1]
        ends = np.flatnonzero(rest == self._tokens.eot_id)
        return last + 1 + int(ends[0]) if len(ends) else stop

    def _count(self, token: int, found: Found) -> int:
        """Return how many bytes of the current document are before a token."""
        assert self._vocabulary is not None
        while self._counted < token:
            low = self._counted
            if low >= found.start:
                ids = found.ids[low - found.start : token - found.start]
            else:
                ids = self._tokens.read(low, min(low + _BLOCK, max(found.start, low + 1)))
            self._bytes += self._vocabulary.measure(self._vocabulary.trim(ids))
            self._counted += len(ids)
        return self._bytes


def find_start(tokens: Tokens, token: int, found: Found | None = None) -> int:
    """Return where the document of a token starts, by the end-of-text id."""
    after = tokens.eot != "before"
    high = token + 1 - after  # the last end-of-text id before this place starts the document
    block = 1 << 10
    while high > 0:
        low = max(high - block, 0)
        if found is not None and found.start <= low:
            ids = found.ids[low - found.start : high - found.start]
        else:
            ids = tokens.read(low, high)
        ends = np.flatnonzero(ids == tokens.eot_id)
        if len(ends):
            return low + int(ends[-1]) + after
        high, block = low, min(2 * block, _BLOCK)
    return 0


def find_stop(tokens: Tokens, token: int) -> int:
    """Return where the document of a token ends, by the end-of-text id."""
    after = tokens.eot != "before"
    low = token + 1 - after
    while low < len(tokens):
        high = min(low + _BLOCK, len(tokens))
        ends = np.flatnonzero(tokens.read(low, high) == tokens.eot_id)
        if len(ends):
            return low + int(ends[0]) + after
        low = high
    return len(tokens)


def _decode(data: bytes, *, cut_before: bool = False, cut_after: bool = False) -> str:
    """Decode text that may be cut inside a character; omit an incomplete character at a cut."""
    if cut_before:
        start = next((n for n, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
        data = data[start:]
    text = data.decode("utf-8", "replace")
    if cut_after and text.endswith("\ufffd"):
        for end in range(1, 4):
            head, tail = data[:-end], data[-end:]
            if tail and tail[0] >= 0xC0:
                return head.decode("utf-8", "replace")
    return text
