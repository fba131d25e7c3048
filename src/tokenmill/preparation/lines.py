"""Compute the keys (hashes) of lines, and remove repeated lines from documents.

A line counts if it has at least `min_line` characters and is not blank. One stage computes the keys
of these lines. A later stage visits the same lines in the same order, with one mark for each line:
whether to remove it. Lines are found with NumPy in many documents at once, joined by NUL bytes: a NUL
byte ends a line as a newline does.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.preparation.key_files import REPEATED, Marks
from tokenmill.sources.records import Cutter

_NEWLINE, _RETURN = 10, 13
_WHITE = np.isin(np.arange(256), list(b" \t\r\v\f"))
_ANYWHERE = Cutter(anywhere=True)

Places = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Lines:
    """Where the lines of a text start and end, and which of them count.

    A line counts if it has at least `min_line` characters and is not blank.
    """

    starts: Places
    ends: Places
    # Like `ends`, but before the carriage return of a line that has one. Keys exclude carriage returns,
    # because a text may be cut before one.
    bare: Places
    counting: Places

    def spans(self) -> list[tuple[int, int]]:
        """Return where the lines that are long enough and not blank start and end."""
        starts, ends = self.starts[self.counting], self.bare[self.counting]
        return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _find_lines(
    text: bytes, min_line: int, *, block: bool, continues: bool = False, mid_line: bool = False
) -> _Lines:
    """Find the lines of a text. With `block`, lines also end at the NUL bytes between texts.

    `continues` means that the text begins in the middle of a line, `mid_line` that it ends in the
    middle of one. Such an incomplete line never counts.
    """
    array = np.frombuffer(text, np.uint8)
    is_end = array == _NEWLINE
    if block:
        is_end |= array == 0
    newlines = np.flatnonzero(is_end)
    starts, ends = np.concatenate(([0], newlines + 1)), np.append(newlines, len(text))
    bare = ends
    if b"\r" in text:
        bare = ends - ((ends > starts) & (array[ends - 1] == _RETURN))
    sizes = bare - starts
    if not text.isascii():
        # Sizes are in characters: subtract all bytes of a character except its first.
        continuing = np.flatnonzero(array.view(np.int8) < -64)
        sizes -= np.bincount(np.searchsorted(ends, continuing), minlength=len(ends))
    enough = sizes >= min_line
    enough[0] &= not continues
    enough[-1] &= not mid_line
    counting = np.flatnonzero(enough)
    # A blank line begins and ends with white space, which few other lines do.
    white = np.flatnonzero(_WHITE[array[starts[counting]]])
    white = white[_WHITE[array[bare[counting[white]] - 1]]]
    for i in counting[white].tolist():
        enough[i] = not text[starts[i] : bare[i]].isspace()
    return _Lines(starts, ends, bare, np.flatnonzero(enough) if len(white) else counting)


def line_keys(
    text: bytes,
    min_line: int,
    *,
    block: bool = False,
    continues: bool = False,
    mid_line: bool = False,
) -> bytes:
    """Return the 128-bit keys (hashes) of the lines that are long enough and not blank.

    With `block`, `text` is many texts joined by NUL bytes. `continues` means that it begins in the
    middle of a line, `mid_line` that it ends in the middle of one; these lines have no key.
    """
    lines = _find_lines(text, min_line, block=block, continues=continues, mid_line=mid_line)
    if b"\r" in text:
        return b"".join([xxhash.xxh3_128_digest(text[start:end]) for start, end in lines.spans()])
    chosen = np.zeros(len(lines.starts), np.uint8)
    chosen[lines.counting] = 1
    if block:
        text = text.replace(b"\0", b"\n")
    # Iterating over bytes is quick: small integers are preallocated.
    return b"".join(map(xxhash.xxh3_128_digest, compress(text.split(b"\n"), chosen.tobytes())))


class LineRemover:
    """Removes repeated lines from the documents of one part, in order.

    `repeated` says whether to remove a line, for each line that is long enough and not blank.
    Documents may arrive in fragments. Each fragment that is returned must end with a visible
    character. So if the last line of a fragment is removed, the end of the text before that line is
    held back, and the next fragment begins with it.
    """

    def __init__(self, repeated: Marks, min_line: int, *, tidy: bool) -> None:
        self._repeated = repeated
        self._min_line = min_line
        self._tidy = tidy
        self._held = b""
        self._end_gone = False  # whether the last line of the last fragment was removed
        # Whether any line of the current document is kept so far. If the document continues from
        # another part, that part has a kept line: the line before the cut is too short to be
        # removed.
        self._started = True
        self.removed = 0

    def remove_from_block(self, block: bytes) -> bytes:
        """Return a block of whole documents without their repeated lines."""
        lines = _find_lines(block, self._min_line, block=True)
        gone = lines.counting[self._take(len(lines.counting))]
        if not len(gone):
            return block
        kept = np.ones(len(lines.starts), np.bool_)
        kept[gone] = False
        # Number the document of each line. The line after a NUL byte begins the next document.
        last = np.append(np.frombuffer(block, np.uint8)[lines.ends[:-1]] == 0, True)
        documents = np.cumsum(last) - last
        if self._tidy:
            kept &= ~_surplus_blanks(lines.starts == lines.ends, kept, documents)
        return _copy_lines(block, lines, kept, last, documents)

    def _take(self, count: int) -> npt.NDArray[np.bool_]:
        """Return whether to remove each of the next `count` long-enough, non-blank lines."""
        flags = self._repeated.take(count) == REPEATED
        self.removed += int(np.count_nonzero(flags))
        return flags

    def remove(
        self, texts: list[bytes], *, continues: bool, unfinished: bool, mid_line: bool
    ) -> list[bytes]:
        """Return the texts without their repeated lines. The first and last text may be fragments."""
        last = len(texts) - 1
        return [
            self._one(
                text,
                continues=continues and i == 0,
                unfinished=unfinished and i == last,
                mid_line=mid_line and i == last,
            )
            for i, text in enumerate(texts)
        ]

    def _one(self, text: bytes, *, continues: bool, unfinished: bool, mid_line: bool) -> bytes:
        lines = _find_lines(
            text, self._min_line, block=False, continues=continues, mid_line=mid_line
        )
        flags = self._take(len(lines.counting))
        started = self._started and continues
        kept = np.ones(len(lines.starts), np.bool_)
        kept[lines.counting[flags]] = False
        if continues and self._end_gone and text.startswith(b"\r\n"):
            lines.starts[0] = 1  # the line end belongs to the line that was removed
        if continues and not started and lines.starts[0] == lines.ends[0]:
            kept[0] = False  # no line is kept before this newline, so it is removed too
        elif not flags.any() and not self._held:
            self._end_gone = False
            self._started = started or bool(text) or not self._tidy
            return text[lines.starts[0] :]
        result = self._held + _join_kept(text, lines, kept)
        self._held = b""
        if self._tidy:
            result = _tidied(result, begins=not started, ends=not unfinished)
        self._started = started or (bool(result) if self._tidy else bool(kept.any()))
        self._end_gone = unfinished and not kept[-1]
        if self._end_gone:
            cut = max(0, _ANYWHERE.last(result, 0, len(result)))
            result, self._held = result[:cut], result[cut:]
        return result


Mask = npt.NDArray[np.bool_]


def _surplus_blanks(blank: Mask, kept: Mask, documents: Places) -> Mask:
    """Return which of the kept lines are blank lines that cleaning would remove.

    These are all blank lines at both ends of a document, and all but one of several in a row.
    """
    surplus = np.zeros(len(blank), np.bool_)
    lines = np.flatnonzero(kept)
    here = blank[lines]
    filled = np.flatnonzero(~here)
    # A blank line between two filled ones stays.
    before = filled[_same_document_follows(documents[lines[filled]])]
    here[before + 1] = False
    surplus[lines[here]] = True
    return surplus


def _same_document_follows(documents: Places) -> Mask:
    """Return, for each entry, whether the next entry belongs to the same document."""
    same = np.zeros(len(documents), np.bool_)
    same[:-1] = documents[1:] == documents[:-1]
    return same


def _copy_lines(block: bytes, lines: _Lines, kept: Mask, last: Mask, documents: Places) -> bytes:
    """Return the kept lines of a block. Consecutive lines are copied together.

    `documents` has the number of each line's document, and `last` says which lines are the last of
    their documents. A newline stays between two kept lines of a document. All NUL bytes stay.
    """
    chosen = np.flatnonzero(kept)
    inner = chosen[_same_document_follows(documents[chosen])]
    # Two arrays with entries for the first line, its line end, the second line, and so on: whether
    # each stays, and where it begins.
    stays = np.zeros(2 * len(kept), np.bool_)
    stays[::2] = kept
    stays[1::2] = last
    stays[2 * inner + 1] = True
    stays[-1] = False  # the last line has no line end
    places = np.stack([lines.starts, lines.ends], 1).ravel()
    edges = np.flatnonzero(np.diff(stays, prepend=False))
    spans = places[edges].tolist()
    return b"".join([block[start:end] for start, end in zip(spans[::2], spans[1::2], strict=True)])


def _join_kept(text: bytes, lines: _Lines, kept: npt.NDArray[np.bool_]) -> bytes:
    """Return the kept lines of a text. Consecutive lines are copied together."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], kept, [False]))))
    starts, ends = lines.starts[edges[::2]], lines.ends[edges[1::2] - 1]
    return b"\n".join(
        [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    )


def _tidied(text: bytes, *, begins: bool, ends: bool) -> bytes:
    """Return a text, from which lines were removed, without the blank lines that cleaning removes.

    `begins` and `ends` say whether the text is the beginning and the end of its document.
    """
    while b"\n\n\n" in text:
        text = text.replace(b"\n\n\n", b"\n\n")
    if begins:
        text = text.lstrip(b"\n")
    return text.rstrip(b" \t\n") if ends else text
