"""Divide ids into the groups that a page shows: one token each, or several that share a character.

Guarantees: the joined `text` of all groups is the text of the ids. Tokens that together spell one
character are one group, as are a letter and the tokens of its combining marks, so that the browser
can draw them; but a group has at most `MOST_TOGETHER` tokens. In the `pieces` of a group,
characters that are invisible, that control a terminal or that reorder text are replaced by their
names; its `text` keeps them.

Costs: about 10 µs for each token.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import TokenizerError
from tokenmill.tokenizers import Tokenizer
from tokenmill.tokenizers.minimal import UnknownTokenizer
from tokenmill.wording import find_hidden

MOST_TOGETHER = 16
_REPLACEMENT = "\ufffd"
_JOINER = "\u200d"
_MOST_KNOWN = 1 << 17  # ids whose texts are remembered

_CONTROLS = (
    "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM "
    "SUB ESC FS GS RS US"
).split()
_SHORT_NAMES = {chr(number): name for number, name in enumerate(_CONTROLS)} | {
    "\x7f": "DEL",
    "\x85": "NEL",
    "\xad": "SHY",
    "\u061c": "ALM",
    "\u200b": "ZWSP",
    "\u200c": "ZWNJ",
    "\u200d": "ZWJ",
    "\u200e": "LRM",
    "\u200f": "RLM",
    "\u2028": "LSEP",
    "\u2029": "PSEP",
    "\u202a": "LRE",
    "\u202b": "RLE",
    "\u202c": "PDF",
    "\u202d": "LRO",
    "\u202e": "RLO",
    "\u2060": "WJ",
    "\u2066": "LRI",
    "\u2067": "RLI",
    "\u2068": "FSI",
    "\u2069": "PDI",
    "\ufeff": "BOM",
}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a text: plain text, a line end, or a character that is shown by its short name."""

    kind: Literal["text", "newline", "hidden"]
    text: str
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token: its position in the split, its id, and its bytes in hexadecimal, if known."""

    position: int
    id: int
    bytes: str | None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Consecutive tokens that are shown together, and their text.

    `special` is whether the group is a special token, such as the end of text.
    """

    tokens: tuple[Token, ...]
    text: str
    pieces: tuple[Piece, ...]
    special: bool = False

    @property
    def position(self) -> int:
        """The position of the first token in the split."""
        return self.tokens[0].position

    @property
    def about(self) -> str:
        """A description of the group's tokens, as lines of the form `name: value`."""
        lines = []
        for token in self.tokens:
            lines += [f"token: {token.position:,}", f"id: {token.id}"]
            lines += [f"bytes: {token.bytes}"] if token.bytes else []
        lines += [f"character: {piece.name}" for piece in self.pieces if piece.kind == "hidden"][:8]
        return "\n".join(lines)


class Speller:
    """Spells the ids of one dataset. Without a tokenizer, the text of an id is its number."""

    def __init__(self, tokenizer: Tokenizer | None, eot_id: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._specials: dict[int, str] = {}
        if tokenizer is not None:
            self._specials = {number: name for name, number in tokenizer.special_ids.items()}
        if eot_id is not None:
            self._specials.setdefault(eot_id, "end of text")
        self._known: dict[int, str] = {}

    @property
    def has_text(self) -> bool:
        """Whether the tokenizer is known, so that ids have a text."""
        return self._tokenizer is not None

    def warm_up(self) -> None:
        """Compute in advance what spelling the first text needs."""
        if self._tokenizer is not None:
            self.spell(np.zeros(1, np.int64), 0)
            len(self._lengths)

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """Return the text of some ids; without a tokenizer, the ids as numbers."""
        if self._tokenizer is None:
            return " ".join(map(str, ids.tolist()))
        try:
            return self._tokenizer.decode(ids)
        except TokenizerError:  # an id beyond the vocabulary
            return "".join(self._spell((number,)) for number in ids.tolist())

    def spell(self, ids: npt.NDArray[Any], start: int, *, is_first: bool = True) -> list[Group]:
        """Return the groups of some ids. The first id is token `start` of its split.

        `is_first` says whether it is also the first token of its text.
        """
        if self._tokenizer is None:
            return [self._make_bare(number, start + n) for n, number in enumerate(ids.tolist())]
        groups: list[Group] = []
        for place, numbers, text in self._divide(ids.tolist(), is_first=is_first):
            special = numbers[0] in self._specials
            tokens = self._describe(numbers, start + place, text)
            groups.append(Group(tokens=tokens, text=text, pieces=(), special=special))
        return _mark_hidden(_join_clusters(groups))

    def _make_bare(self, number: int, position: int) -> Group:
        text = self._specials.get(number, str(number))
        token = Token(position=position, id=number, bytes=None)
        piece = Piece(kind="text", text=text)
        return Group(tokens=(token,), text=text, pieces=(piece,), special=number in self._specials)

    def _divide(
        self, ids: Sequence[int], *, is_first: bool
    ) -> Iterator[tuple[int, tuple[int, ...], str]]:
        """Yield (place, ids, text) of each group."""
        place = 0
        while place < len(ids):
            number = ids[place]
            if number in self._specials:
                yield place, (number,), self._specials[number]
                place += 1
                continue
            text = self._spell((number,), first=is_first and place == 0)
            end = place + 1
            # Extend a group while the next id completes its last character: the joined text then differs.
            while (
                _REPLACEMENT in text
                and end < len(ids)
                and end - place < MOST_TOGETHER
                and ids[end] not in self._specials
            ):
                following = self._spell((ids[end],))
                if _REPLACEMENT not in following:
                    break
                together = self._spell(tuple(ids[place : end + 1]), first=is_first and place == 0)
                if together == text + following:
                    break
                text, end = together, end + 1
            yield place, tuple(ids[place:end]), text
            place = end

    def _spell(self, ids: tuple[int, ...], *, first: bool = False) -> str:
        """Return the text of ids inside a longer text; `first` says that they are its first ids."""
        if len(ids) == 1 and not first and (known := self._known.get(ids[0])) is not None:
            return known
        assert self._tokenizer is not None
        try:
            # Some tokenizers drop the space before the first word that they decode.
            anchor, said = self._anchor
            text = self._tokenizer.decode([*anchor, *ids])
            if first or not text.startswith(said):
                text = self._tokenizer.decode(list(ids))
            else:
                text = text[len(said) :]
        except TokenizerError:  # an id beyond the vocabulary
            text = "".join(f"[{number}]" for number in ids)
        if len(ids) == 1 and not first and len(self._known) < _MOST_KNOWN:
            self._known[ids[0]] = text
        return text

    @cached_property
    def _anchor(self) -> tuple[list[int], str]:
        """Ids to put before others when decoding, so that a space is not dropped, and their text."""
        assert self._tokenizer is not None
        try:
            ids = [int(number) for number in self._tokenizer.encode(b"a")][:1]
            said = self._tokenizer.decode(ids)
        except TokenizerError:
            return [], ""
        return (ids, said) if said and _REPLACEMENT not in said else ([], "")

    @cached_property
    def _lengths(self) -> npt.NDArray[np.int64]:
        assert self._tokenizer is not None
        try:
            return self._tokenizer.byte_lengths()
        except TokenizerError:
            return np.zeros(0, np.int64)

    def _describe(self, ids: tuple[int, ...], position: int, text: str) -> tuple[Token, ...]:
        """Return the tokens of a group, with the bytes of each one if they are known for certain."""
        data = text.encode("utf-8", "surrogatepass")
        is_certain = _REPLACEMENT not in text and ids[0] not in self._specials
        if len(ids) == 1:
            parts = [data.hex(" ") if is_certain else None]
        else:
            lengths = [int(self._lengths[n]) if n < len(self._lengths) else 0 for n in ids]
            ends = np.cumsum([0, *lengths]).tolist()
            is_certain = is_certain and ends[-1] == len(data)
            parts = [
                data[low:high].hex(" ") if is_certain else None for low, high in pairwise(ends)
            ]
        return tuple(
            Token(position=position + n, id=number, bytes=part)
            for n, (number, part) in enumerate(zip(ids, parts, strict=True))
        )


@lru_cache(maxsize=64)
def find_speller(dataset: Dataset) -> Speller:
    """Return the speller of a dataset; it spells numbers if the tokenizer is unknown."""
    try:
        tokenizer: Tokenizer | None = dataset.tokenizer
    except TokenizerError:
        if dataset.has_tokenizer:
            raise
        tokenizer = None
    if isinstance(tokenizer, UnknownTokenizer):
        tokenizer = None
    return Speller(tokenizer, dataset.eot_id)


def split_text(text: str) -> tuple[Piece, ...]:
    """Divide a text into pieces, so that line ends and hidden characters can be shown.

    >>> [piece.text for piece in split_text("a\\u202eb")]
    ['a', 'RLO', 'b']
    """
    return _split(text, set(find_hidden(text)), 0)


def _split(text: str, hidden: set[int], offset: int) -> tuple[Piece, ...]:
    pieces, start = [], 0
    for place, character in enumerate(text):
        if character != "\n" and place + offset not in hidden:
            continue
        if place > start:
            pieces.append(Piece(kind="text", text=text[start:place]))
        if character == "\n":
            pieces.append(Piece(kind="newline", text="\n"))
        else:
            short, name = _name(character)
            pieces.append(Piece(kind="hidden", text=short, name=name))
        start = place + 1
    if start < len(text):
        pieces.append(Piece(kind="text", text=text[start:]))
    return tuple(pieces)


def _name(character: str) -> tuple[str, str]:
    code = f"U+{ord(character):04X}"
    short = _SHORT_NAMES.get(character, code)
    return short, f"{unicodedata.name(character, short)}, {code}" if short != code else code


def _mark_hidden(groups: list[Group]) -> list[Group]:
    # Look at the whole text, because whether a joiner is hidden depends on its neighbours.
    hidden = set(find_hidden("".join(group.text for group in groups)))
    marked, offset = [], 0
    for group in groups:
        pieces = _split(group.text, hidden, offset)
        marked.append(
            Group(tokens=group.tokens, text=group.text, pieces=pieces, special=group.special)
        )
        offset += len(group.text)
    return marked


def _join_clusters(groups: list[Group]) -> list[Group]:
    """Join each group that continues a character, such as an accent, to the group before it."""
    joined: list[Group] = []
    for group in groups:
        before = joined[-1] if joined else None
        if (
            before is not None
            and not before.special
            and not group.special
            and before.text
            and group.text
            and len(before.tokens) + len(group.tokens) <= MOST_TOGETHER
            and (_continues(group.text[0]) or before.text[-1] == _JOINER)
        ):
            joined[-1] = Group(
                tokens=before.tokens + group.tokens, text=before.text + group.text, pieces=()
            )
        else:
            joined.append(group)
    return joined


def _continues(character: str) -> bool:
    if character < "\u0300":
        return False
    return (
        unicodedata.category(character)[0] == "M"
        or character == _JOINER
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin tones of emoji
    )
