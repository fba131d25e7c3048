"""Search a split for a text or for ids, for a limited time, and say where to continue."""

from __future__ import annotations

import re
import time
from contextlib import closing
from dataclasses import dataclass

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import UsageError
from tokenmill.inspect.search.search import Match, search
from tokenmill.progress import Nobody

SECONDS = 0.7


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to find: a text, or ids in decimal."""

    text: str
    is_ids: bool = False
    ignore_case: bool = False


@dataclass(frozen=True, kw_only=True)
class Part:
    """The matches among the tokens [first, last) of a split.

    `next` is the token to continue from, or None at the end of the split.
    """

    matches: tuple[Match, ...]
    first: int
    last: int
    next: int | None
    used_index: bool


class _TimeIsUpError(Exception):
    pass


class _Notes(Nobody):
    """A watcher that records whether the search uses the index of words."""

    used_index = False

    def note(self, text: str) -> None:
        self.used_index |= text.startswith("Using the index")


def find_matches(
    dataset: Dataset,
    wanted: Wanted,
    *,
    split: str,
    first: int,
    limit: int,
    seconds: float = SECONDS,
    per_document: bool = False,
) -> Part:
    """Return matches from token `first` of a split on: `limit` of them, or those found in `seconds`.

    With `per_document`, return at most one match of each document.
    """
    length = len(dataset[split])
    if first >= length:
        return Part(matches=(), first=first, last=length, next=None, used_index=False)
    until = time.monotonic() + seconds
    place, notes, found = first, _Notes(), list[Match]()

    def reach(token: int) -> None:
        nonlocal place
        place = max(place, token)
        if time.monotonic() >= until:
            raise _TimeIsUpError

    matches = search(
        dataset,
        None if wanted.is_ids else wanted.text,
        tokens=parse_ids(wanted.text) if wanted.is_ids else None,
        ignore_case=wanted.ignore_case and not wanted.is_ids,
        split=split,
        start=first,
        reached=reach,
        watcher=notes,
    )
    is_end = False
    with closing(matches) as open_matches:
        try:
            for match in open_matches:
                if match.token < first:
                    continue
                # End a page between two tokens, since several matches may begin in one token.
                is_full = len(found) >= limit or time.monotonic() >= until
                if found and is_full and match.token > found[-1].token:
                    place = _find_next(found[-1], per_document=per_document)
                    break
                if not (per_document and _is_same(found, match)):
                    found.append(match)
            else:
                is_end = True
        except _TimeIsUpError:
            is_end = place >= length
    is_end = is_end or place >= length
    return Part(
        matches=tuple(found),
        first=first,
        last=length if is_end else place,
        next=None if is_end else place,
        used_index=notes.used_index,
    )


def _find_next(last: Match, *, per_document: bool) -> int:
    if per_document and last.document is not None:
        return last.document.start + last.document.length
    return last.token + 1


def _is_same(found: list[Match], match: Match) -> bool:
    before = found[-1].document if found else None
    return (
        before is not None and match.document is not None and before.number == match.document.number
    )


def parse_ids(text: str) -> list[int]:
    """Return ids that are written in decimal, with spaces or commas between them.

    >>> parse_ids("50256, 464 11")
    [50256, 464, 11]
    """
    words = re.split(r"[\s,]+", text.strip())
    if not all(re.fullmatch("[0-9]{1,10}", word, re.ASCII) for word in words):
        raise UsageError("ids must be numbers, such as 50256 464.")
    return [int(word) for word in words]
