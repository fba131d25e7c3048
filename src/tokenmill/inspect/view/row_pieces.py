"""Divide the tokens of a row into pieces of text that a page shows in different ways.

Every piece comes from consecutive tokens of one document. A character whose tokens are in two pieces
is shown as U+FFFD in both. Costs: a few decodings for each piece; callers bound the number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokenmill.inspect.view.charts import COLOURS
from tokenmill.inspect.view.spelling import Piece, split_text
from tokenmill.wording import one_line

Ids = npt.NDArray[Any]
Decode = Callable[[Ids], str]
MARKER_NAMES = (
    "prefix",
    "suffix",
    "middle",
)  # fill-in-the-middle markers, in the order of their ids


@dataclass(frozen=True, kw_only=True)
class Part:
    """The tokens [start, stop) of a row, all of one document; `number` chooses the colour."""

    start: int
    stop: int
    number: int

    @property
    def colour(self) -> int:
        """The colour of the document; documents that follow each other have different ones."""
        return self.number % COLOURS


@dataclass(frozen=True, kw_only=True)
class RowPiece:
    """Some text of a row. `part` is the index of its document in the row, or -1.

    `kind` is "text", "special" or "changed" (an input that differs from the data). For a changed
    input, `was` is the token in the data.
    """

    text: str
    part: int
    kind: Literal["text", "special", "changed"] = "text"
    was: str = ""
    is_first: bool = False  # whether it is the first piece of its part

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The text, divided so that line ends and hidden characters can be shown."""
        return split_text(self.text)


def cut_pieces(
    tokens: Ids,
    inputs: Ids,
    parts: Sequence[Part],
    decode: Decode,
    *,
    eot_id: int | None,
    vocab: int | None,
    most: int,
) -> list[RowPiece]:
    """Return the pieces of the first `most` tokens of a row.

    `tokens` are those of the data, and `inputs` those that the model sees, which may lack the last
    one. Ids from `vocab` on are the markers of fill-in-the-middle.

    >>> row = np.frombuffer(b"ab|c", np.uint8)
    >>> parts = [Part(start=0, stop=3, number=0), Part(start=3, stop=4, number=1)]
    >>> pieces = cut_pieces(row, row, parts, lambda ids: bytes(ids.tolist()).decode(),
    ...     eot_id=124, vocab=256, most=9)
    >>> [(piece.text, piece.part, piece.kind) for piece in pieces]
    [('ab', 0, 'text'), ('end of text', 0, 'special'), ('c', 1, 'text')]
    """
    count = min(most, len(tokens))
    own = tokens[:count].astype(np.int64)
    seen = own.copy()
    seen[: min(count, len(inputs))] = inputs[:count]
    changed = seen != own
    special = np.zeros(count, np.bool_)
    if eot_id is not None:
        special |= seen == eot_id
    if vocab is not None:
        special |= seen >= vocab
    places = np.full(count, -1)
    for index, one in enumerate(parts):
        places[one.start : one.stop] = index
    # A piece ends where anything differs; special and changed tokens are pieces of their own.
    alone = special | changed
    borders = np.flatnonzero((np.diff(places) != 0) | alone[1:] | alone[:-1]) + 1
    pieces, before = [], -2
    for start, stop in zip([0, *borders.tolist()], [*borders.tolist(), count], strict=True):
        if stop <= start:
            continue
        part = int(places[start])
        is_first, before = part != before, part
        text, was = _name(seen[start:stop], decode, eot_id, vocab), ""
        kind: Literal["text", "special", "changed"] = "special" if special[start] else "text"
        if changed[start]:
            kind, was = "changed", one_line(_name(own[start:stop], decode, eot_id, vocab))
        pieces.append(RowPiece(text=text, part=part, kind=kind, was=was, is_first=is_first))
    return pieces


def _name(ids: Ids, decode: Decode, eot_id: int | None, vocab: int | None) -> str:
    """Return ids as text that is safe to show."""
    if len(ids) == 1:
        number = int(ids[0])
        if number == eot_id:
            return "end of text"
        if vocab is not None and 0 <= number - vocab < len(MARKER_NAMES):
            return MARKER_NAMES[number - vocab]
    return decode(ids)
