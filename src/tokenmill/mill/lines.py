"""Duplicate lines: their keys, and a document without them.

A line counts if it has at least `min_line` characters and is not blank. Scanning and removing
walk over the same lines in the same order, so the n-th key that a scan of a part gives belongs
to the n-th line that removal asks about: a bit a line is all that passes between them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.mill.records import Cutter

__all__ = ["LineRemover", "line_keys"]

_ANY_LINE = Cutter()


def _counting(lines: list[bytes], min_line: int, plain: bool) -> list[int]:
    """Which of the lines count; `plain` says that bytes are characters."""
    if plain:
        return [i for i, x in enumerate(lines) if len(x) >= min_line and not x.isspace()]
    sure = 4 * min_line  # no character has more bytes than that
    return [
        i
        for i, x in enumerate(lines)
        if len(x) >= min_line
        and (len(x) >= sure or len(x.decode()) >= min_line)
        and not x.isspace()
    ]


def _bare(lines: list[bytes], text: bytes) -> list[bytes]:
    """The lines of a text without the `\\r` of their ends, before which it may be cut."""
    return [line.removesuffix(b"\r") for line in lines] if b"\r" in text else lines


def _lines_of(
    text: bytes, min_line: int, *, continues: bool, mid_line: bool
) -> tuple[list[bytes], list[int]]:
    """The lines of a text and which of them count. Half a line never does: only one of more
    than a block is ever cut."""
    lines = text.split(b"\n")
    counting = _counting(_bare(lines, text), min_line, text.isascii())
    if continues and counting and counting[0] == 0:
        counting = counting[1:]
    if mid_line and counting and counting[-1] == len(lines) - 1:
        counting = counting[:-1]
    return lines, counting


def line_keys(texts: list[bytes], min_line: int, *, continues: bool, mid_line: bool) -> bytes:
    """The 128-bit keys of the lines that count, one after another."""
    keys: list[bytes] = []
    digest = xxhash.xxh3_128_digest
    for i, text in enumerate(texts):
        lines, counting = _lines_of(
            text,
            min_line,
            continues=continues and i == 0,
            mid_line=mid_line and i == len(texts) - 1,
        )
        lines = _bare(lines, text)
        keys.extend([digest(lines[j]) for j in counting])
    return b"".join(keys)


class LineRemover:
    """Takes repeated lines out of the documents of one part, met in order.

    `repeated` holds a flag for each line of the part that counts. A document that arrives in
    pieces leaves in pieces that are again cut after a letter: where the line before a cut was
    removed, the end of the piece is held back and leaves with the next one.
    """

    def __init__(self, repeated: npt.NDArray[np.uint8], min_line: int, *, tidy: bool) -> None:
        self._repeated = repeated
        self._min_line = min_line
        self._tidy = tidy
        self._next = 0
        self._held = b""
        self._end_gone = False  # whether the line that the last piece ends with was removed
        # Whether anything of the document at hand is kept so far. One that goes on from another
        # part has a line there that is too short to be removed.
        self._started = True
        self.removed = 0

    def remove(
        self, texts: list[bytes], *, continues: bool, goes_on: bool, mid_line: bool
    ) -> list[bytes]:
        """The texts without their repeated lines."""
        last = len(texts) - 1
        return [
            self._one(
                text,
                continues=continues and i == 0,
                goes_on=goes_on and i == last,
                mid_line=mid_line and i == last,
            )
            for i, text in enumerate(texts)
        ]

    def _one(self, text: bytes, *, continues: bool, goes_on: bool, mid_line: bool) -> bytes:
        lines, counting = _lines_of(text, self._min_line, continues=continues, mid_line=mid_line)
        flags = self._repeated[self._next : self._next + len(counting)]
        self._next += len(counting)
        started = self._started and continues
        if continues and self._end_gone and lines[0] == b"\r":
            text, lines[0] = text[1:], b""
        if continues and not started and lines[0] == b"":
            lines = lines[1:]  # the line end behind a line that was removed
            counting = [j - 1 for j in counting]
        elif not flags.any() and not self._held:
            self._end_gone = False
            self._started = started or bool(text if self._tidy else lines)
            return text
        gone = {j for j, flag in zip(counting, flags.tolist(), strict=True) if flag}
        self.removed += len(gone)
        kept = [line for j, line in enumerate(lines) if j not in gone]
        result = self._held + b"\n".join(kept)
        self._held = b""
        if self._tidy:
            result = _tidied(result, begins=not started, ends=not goes_on)
        self._started = started or bool(result if self._tidy else kept)
        self._end_gone = goes_on and len(lines) - 1 in gone
        if self._end_gone:
            cut = max(0, _ANY_LINE.last(result, 0, len(result)))
            result, self._held = result[:cut], result[cut:]
        return result


def _tidied(text: bytes, *, begins: bool, ends: bool) -> bytes:
    """What cleaning does about blank lines, once lines are gone."""
    while b"\n\n\n" in text:
        text = text.replace(b"\n\n\n", b"\n\n")
    if begins:
        text = text.lstrip(b"\n")
    return text.rstrip(b" \t\n") if ends else text
