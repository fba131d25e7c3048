"""Cut passages out of texts.

The words of a passage are removed, with what is between them and the punctuation that follows. White
space on both sides becomes one: the side with more line ends, or else the left one. So cleaned text
stays cleaned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenmill.contamination.folding import locate_words
from tokenmill.contamination.matching import find_in_texts
from tokenmill.contamination.protected import Protected

_WHITE = b" \t\n"
_PUNCTUATION = re.compile(rb"[!-/:-@\[-`{-~]*")  # of ASCII


def cut_passages(text: bytes, ranges: Iterable[tuple[int, int]]) -> bytes:
    """Return a text without the words in some ranges.

    >>> cut_passages(b"To be. Or not, to be!\\nThat is.", [(2, 6)])
    b'To be.\\nThat is.'
    """
    starts, ends = locate_words(text)
    left, place = bytearray(), 0
    for first, stop in _join(ranges):
        _append(left, text[place : int(starts[first])], is_first=not place)
        following = _PUNCTUATION.match(text, int(ends[stop - 1]))
        place = following.end() if following else int(ends[stop - 1])
    _append(left, text[place:], is_first=not place)
    return bytes(left if text[place:].strip(_WHITE) else left.rstrip(_WHITE))


def _append(left: bytearray, right: bytes, *, is_first: bool) -> None:
    """Append the text after a passage to the text before it. A blank text is left out."""
    if not right.strip(_WHITE):
        return
    if not left:
        left += right if is_first else right.lstrip(_WHITE)
        return
    before = len(left) - len(left.rstrip(_WHITE))
    after = right[: len(right) - len(right.lstrip(_WHITE))]
    if not before and not after:
        left += b" "
    elif after.count(b"\n") > left.count(b"\n", len(left) - before):
        del left[len(left) - before :]
    elif before:
        right = right[len(after) :]
    left += right


def _join(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return sorted ranges that do not overlap."""
    joined: list[tuple[int, int]] = []
    for first, stop in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((first, stop))
    return joined


def cut_protected(text: bytes, protected: Protected) -> bytes:
    """Return a text without its protected passages. What is left has none either."""
    while hits := find_in_texts(text.replace(b"\0", b" "), protected, most=len(text)):
        stops = hits.places + protected.lengths[hits.units]
        text = cut_passages(text, zip(hits.places.tolist(), stops.tolist(), strict=True))
    return text
