r"""Search the decoded text of documents: for a regular expression, or for a text.

A text is searched for in this way only if the tokenizer does not give the bytes of each id, or if
case is ignored and the text is not ASCII.

If every match must contain some text, such as `error` in `error: \d+`, the scan finds the documents
that contain that text, and only these are decoded. Otherwise, all documents are decoded: about
200 MB/s, plus the time that Python's `re` needs.

A document is searched in windows of `WINDOW` tokens, so memory is bounded. A match in a longer
document may be cut if it is longer than `OVERLAP` tokens.

Python's `re` can need exponential time for patterns such as `(a+)+b`. Ctrl-C stops it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tokenmill.errors import UsageError
from tokenmill.formats.document_starts import find_document_starts, skip_empty
from tokenmill.inspect.search.matches import CONTEXT, Match, find_start, find_stop
from tokenmill.inspect.search.vocabulary import AnyIds, Integers, Vocabulary
from tokenmill.progress import Watcher
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers.base import Tokenizer

WINDOW, OVERLAP = 1 << 19, 1 << 15  # tokens
# ASCII letters that equal a letter beyond ASCII if case is ignored: the Kelvin sign, long s, dotted I.
_UNEQUAL = frozenset("kKsSiI")


@dataclass(frozen=True, kw_only=True)
class Finder:
    """Something to find in text. `find(text, start)` yields where it begins and ends, in order."""

    find: Callable[[str, int], Iterator[tuple[int, int]]]
    overlapping: bool


def compile_pattern(pattern: str, *, ignore_case: bool) -> re.Pattern[str]:
    """Compile a regular expression. Raise a UsageError if it is invalid."""
    try:
        return re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(
            f"{pattern!r} is not a regular expression: {error}. To search for this text as it is, "
            "omit `regex`."
        ) from None


def find_regex(pattern: re.Pattern[str]) -> Finder:
    """Return a finder of the matches of a pattern; empty matches are skipped."""

    def find(text: str, start: int) -> Iterator[tuple[int, int]]:
        for match in pattern.finditer(text, start):
            if match.end() > match.start():
                yield match.span()

    return Finder(find=find, overlapping=False)


def find_text(wanted: str) -> Finder:
    """Return a finder of all occurrences of a text, including overlapping ones."""

    def find(text: str, start: int) -> Iterator[tuple[int, int]]:
        while (start := text.find(wanted, start)) >= 0:
            yield start, start + len(wanted)
            start += 1

    return Finder(find=find, overlapping=True)


def find_required(pattern: re.Pattern[str]) -> str | None:
    r"""Return the longest text that every match of a pattern is known to contain, or None.

    >>> find_required(re.compile(r"(error|warning): line \d+")), find_required(re.compile("a|b"))
    (': line ', None)
    >>> find_required(re.compile("Kelvin:", re.IGNORECASE))
    'elv'
    """
    try:
        from re import _parser  # type: ignore[attr-defined]

        tree = _parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
        runs = list(_list_runs(tree, ignore_case=bool(pattern.flags & re.IGNORECASE)))
    except (ImportError, AttributeError, TypeError, ValueError):  # another version of Python
        return None
    return max(runs, key=len) or None


def _list_runs(tree: Any, *, ignore_case: bool) -> Iterator[str]:
    """Yield texts that a match must contain: runs of literal characters in the parsed pattern."""
    run = ""
    for operation, argument in tree:
        name = str(operation)
        if name == "LITERAL" and _is_plain(argument, ignore_case):
            run += chr(argument)
            continue
        yield run
        run = ""
        if name == "SUBPATTERN" and not argument[1] and not argument[2]:  # without flags
            yield from _list_runs(argument[3], ignore_case=ignore_case)
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and argument[0] > 0:
            yield from _list_runs(argument[2], ignore_case=ignore_case)
        elif name == "ATOMIC_GROUP":
            yield from _list_runs(argument, ignore_case=ignore_case)
    yield run


def _is_plain(code: int, ignore_case: bool) -> bool:
    if 0xD800 <= code < 0xE000 or code == 0xFFFD:  # not in UTF-8; also shown for damaged UTF-8
        return False
    return not ignore_case or (code < 128 and chr(code) not in _UNEQUAL)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Turns ids into text: with the bytes of each id if known, otherwise with the tokenizer."""

    vocabulary: Vocabulary | None
    tokenizer: Tokenizer | None

    def read(self, ids: AnyIds) -> Text:
        """Return the text of some ids."""
        if self.vocabulary is not None:
            joined, starts = self.vocabulary.join(self.vocabulary.trim(ids))
            return _JoinedText(bytes(joined), starts)
        assert self.tokenizer is not None
        return _DecodedText(self.tokenizer, ids)


class Text(ABC):
    """The text of some ids, and which id each character comes from."""

    text: str

    def count_bytes(self, stop: int) -> int:
        """Return the number of bytes before a character."""
        return len(self.text[:stop].encode("utf-8", "surrogateescape"))

    def count_bytes_before_id(self, number: int) -> int:
        """Return the number of bytes before the id of that number."""
        return self.count_bytes(self.find_character(number))

    @abstractmethod
    def find_id(self, character: int) -> int:
        """Return the number of the id in which a character begins."""

    @abstractmethod
    def find_character(self, number: int) -> int:
        """Return the first character that begins in the id of that number, or after it."""


class _JoinedText(Text):
    def __init__(self, data: bytes, starts: Integers) -> None:
        # Each byte that is not valid UTF-8 becomes one character, so that places can be computed.
        self.text = data.decode("utf-8", "surrogateescape")
        self._data, self._starts = data, starts

    def count_bytes(self, stop: int) -> int:
        return stop if len(self.text) == len(self._data) else super().count_bytes(stop)

    def count_bytes_before_id(self, number: int) -> int:
        return int(self._starts[number])

    def find_id(self, character: int) -> int:
        return int(self._starts.searchsorted(self.count_bytes(character), "right")) - 1

    def find_character(self, number: int) -> int:
        place = int(self._starts[number])
        if len(self.text) == len(self._data):
            return place
        while place < len(self._data) and self._data[place] & 0xC0 == 0x80:
            place += 1
        return len(self._data[:place].decode("utf-8", "surrogateescape"))


class _DecodedText(Text):
    def __init__(self, tokenizer: Tokenizer, ids: AnyIds) -> None:
        self._tokenizer, self._ids = tokenizer, ids
        self.text = tokenizer.decode(ids)

    def _measure(self, count: int) -> int:
        return len(self._tokenizer.decode(self._ids[:count]))

    def find_id(self, character: int) -> int:
        """Return the number of the first id after which the text is longer than `character`."""
        return bisect_right(range(len(self._ids)), character, key=lambda n: self._measure(n + 1))

    def find_character(self, number: int) -> int:
        return self._measure(number)


def search_documents(
    tokens: Tokens,
    finder: Finder,
    reader: Reader,
    watcher: Watcher,
    *,
    candidates: Iterable[int] | None = None,
    first: int = 0,
    reached: Callable[[int], None] | None = None,
    window: int = WINDOW,
    overlap: int = OVERLAP,
) -> Iterator[Match]:
    """Yield the matches in all documents, in order.

    With `candidates`, positions of tokens in ascending order, only the documents with these tokens
    are searched. Otherwise, the first document is the one that contains the token `first`, and
    `reached` is called with the end of each document that was searched.
    """
    ranges = (
        list_documents(tokens, first) if candidates is None else _find_documents(tokens, candidates)
    )
    for start, stop in ranges:
        yield from _search_document(tokens, start, stop, finder, reader, window, overlap)
        if candidates is None:  # otherwise, the scan that finds them reports its progress
            watcher.advance(stop - start)
            if reached is not None:
                reached(stop)


def list_documents(tokens: Tokens, first: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each document that is not empty.

    The first document is the one that contains the token `first`. If documents are unknown, the
    whole split counts as one.
    """
    if tokens.documents is None and tokens.eot_id is None:
        yield 0, len(tokens)
        return
    if first >= len(tokens):
        return
    if first:
        table = tokens.documents
        first = find_start(tokens, first) if table is None else table.at(first).start
    before = None
    for starts in skip_empty(find_document_starts(tokens, first, len(tokens)), len(tokens)):
        for start in starts.tolist():
            if before is not None:
                yield before, start
            before = start
    if before is not None:
        yield before, len(tokens)


def _find_documents(tokens: Tokens, candidates: Iterable[int]) -> Iterator[tuple[int, int]]:
    stop = 0
    for token in candidates:
        if token < stop:
            continue
        if tokens.documents is not None:
            document = tokens.documents.at(token)
            start, stop = document.start, document.start + document.length
        elif tokens.eot_id is not None:
            start, stop = find_start(tokens, token), find_stop(tokens, token)
        else:
            start, stop = 0, len(tokens)
        yield start, stop


def _search_document(
    tokens: Tokens, start: int, stop: int, finder: Finder, reader: Reader, window: int, overlap: int
) -> Iterator[Match]:
    document, bytes_before, searched = None, 0, start
    # A window begins `overlap` tokens before the place from which it is searched, because a pattern
    # may look at the text before a match.
    for place in range(start, stop, window):
        low, high = max(place - overlap, start), min(place + window + overlap, stop)
        text = reader.read(tokens.read(low, high))
        # Only matches that begin before this character belong to this window.
        limit = (
            len(text.text) if place + window >= stop else text.find_character(place + window - low)
        )
        first = text.find_character(max(searched, place) - low)
        for begin, end in finder.find(text.text, first):
            if begin >= limit:
                break
            if document is None and tokens.documents is not None:
                document = tokens.documents.at(start)
            if not finder.overlapping:
                searched = low + text.find_id(end - 1) + 1
            yield Match(
                split=tokens.split,
                document=document,
                token=low + text.find_id(begin),
                byte=bytes_before + text.count_bytes(begin),
                before=_clean(text.text[max(begin - CONTEXT, 0) : begin]),
                found=_clean(text.text[begin:end]),
                after=_clean(text.text[end : end + CONTEXT]),
            )
        next_low = max(place + window - overlap, start)
        if next_low < stop:
            bytes_before += text.count_bytes_before_id(next_low - low)


def _clean(text: str) -> str:
    """Return a text with U+FFFD in place of each byte that is not valid UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
