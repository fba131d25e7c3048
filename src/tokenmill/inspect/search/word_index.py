"""An index of words: which pieces of the data contain a word.

The tokens of each split are cut into pieces of `PIECE` tokens. A piece is indexed together with the
`OVERLAP` tokens after it, so any short text that begins in a piece is entirely in what was indexed for
that piece. The index narrows a search to the pieces that contain all words of the searched text; only
these are then scanned. So results are exactly those of a scan: see `words`.

Guarantees: the index is in the folder `words` of the kept results of these tokens (`inspect.kept`).
The folder is complete, or it does not exist: it is built under another name and then renamed. The
index records the fingerprint of the tokenizer and the size of each of its files; if these do not
match, it is not used. Nor is it if the folder has anything but regular files: tantivy follows links,
and waits for pipes. If building is interrupted, the next call resumes after the last commit.

Costs: memory for building is bounded by `HEAP` and one block of text. docs/search.md has the rate
and the size.
"""

from __future__ import annotations

import os
import re
import stat
import time
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import DatasetError, TokenmillError, UsageError, WorkError
from tokenmill.inspect.kept import find_kept, identify, may_have_kept
from tokenmill.inspect.search.pattern import EMPTY
from tokenmill.inspect.search.vocabulary import Vocabulary
from tokenmill.inspect.search.words import LONG, Word, find_words, list_words
from tokenmill.progress import Watcher
from tokenmill.storage.files import make_folder, refuse_link, remove, sync_folder, write_file
from tokenmill.storage.lock import FileLock
from tokenmill.storage.reading import DamagedFileError, read_json
from tokenmill.wording import one_line

NAME, FACTS_NAME = "words", "tokenmill_index.json"
PIECE, OVERLAP = 4096, 192  # tokens
HEAP = 128 << 20  # bytes of memory for tantivy's writer
LONGEST = OVERLAP - EMPTY  # bytes of a searched text that are looked up
MOST = 0.2  # share of the pieces beyond which scanning everything is faster
_COMMIT = 1 << 14  # pieces to index between two commits
_BLOCK_BYTES = 64 << 20  # bytes of text in memory at once
_PAGE = 1 << 17  # pieces read from the index at once
_VERSION = 1
_MOST_FACTS = 1 << 20  # bytes of the JSON files


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What an index was made from, and its files. The index is used only if all of it matches."""

    version: int
    identity: str
    tokenizer: str
    characters: str
    piece: int
    overlap: int
    splits: dict[str, int]
    files: dict[str, int] = {}
    text_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class IndexReport:
    """A finished index: its folder, the sizes of the text and of the index, and the time it took.

    If the index existed already, `seconds` is 0. For a mixture, `parts` has the reports of its
    datasets by name; `folder` is None, and the numbers are totals.
    """

    folder: Path | None
    tokens: int
    text_bytes: int
    bytes: int
    seconds: float
    parts: Mapping[str, IndexReport] = field(default_factory=dict)


def join_reports(parts: Mapping[str, IndexReport]) -> IndexReport:
    """Return the report of a mixture."""
    reports = parts.values()
    return IndexReport(
        folder=None,
        tokens=sum(one.tokens for one in reports),
        text_bytes=sum(one.text_bytes for one in reports),
        bytes=sum(one.bytes for one in reports),
        seconds=sum(one.seconds for one in reports),
        parts=parts,
    )


class UnusableIndexError(DatasetError):
    """An index that exists but cannot be used."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. Build it again with: tokenmill index DATA")


def build(dataset: Dataset, vocabulary: Vocabulary, watcher: Watcher) -> IndexReport:
    """Build the index of a dataset, unless it exists."""
    tantivy = import_tantivy()
    kept = find_kept(dataset, make=True)
    expected = _describe(dataset)
    refuse_link(kept)
    lock = FileLock(kept / f"{NAME}.lock")
    lock.acquire_or_refuse(
        f"{kept} is being indexed by another process", "Wait until it has finished."
    )
    try:
        with suppress(UnusableIndexError):
            if (facts := _read_facts(kept / NAME, expected)) is not None:
                return _report(kept / NAME, facts, 0.0)
        started = time.monotonic()
        partial = kept / f"{NAME}.part"
        with _explaining(f"The index in {partial} cannot be written"):
            text_bytes = _fill(tantivy, dataset, vocabulary, partial, expected, watcher)
        facts = msgspec.structs.replace(expected, files=_measure(partial), text_bytes=text_bytes)
        write_file(partial / FACTS_NAME, msgspec.json.encode(facts))
        sync_folder(partial)
        remove(kept / NAME)
        partial.rename(kept / NAME)
        sync_folder(kept)
        return _report(kept / NAME, facts, time.monotonic() - started)
    finally:
        lock.release(remove=True)


def _fill(
    tantivy: Any,
    dataset: Dataset,
    vocabulary: Vocabulary,
    folder: Path,
    expected: Facts,
    watcher: Watcher,
) -> int:
    """Index all pieces that are not in the unfinished index yet. Returns the bytes of all text."""
    index, done, text_bytes = _open_partial(tantivy, folder, expected)
    total = sum(expected.splits.values())
    writer = index.writer(HEAP, 1)  # one thread, so that pieces are committed in order
    block = max(1, min(256, _BLOCK_BYTES // (PIECE * max(vocabulary.longest, 1))))
    number = uncommitted = 0
    begun = False
    for split, length in expected.splits.items():
        tokens = dataset[split]
        for low in range(0, length, PIECE * block):
            pieces = -(-min(PIECE * block, length - low) // PIECE)
            if number + pieces <= done:
                number += pieces
                continue
            if not begun:
                watcher.begin("indexing", total, min(done * PIECE, total), unit="tokens")
                begun = True
            high = min(low + PIECE * block, length)
            ids = vocabulary.trim(tokens.read(low, min(high + OVERLAP, length)))
            joined, starts = vocabulary.join(ids)
            for start in range(0, high - low, PIECE):
                if number >= done:
                    stop = min(start + PIECE + OVERLAP, len(ids))
                    text = bytes(joined[int(starts[start]) : int(starts[stop])])
                    document = tantivy.Document()
                    document.add_text("words", list_words(text))
                    document.add_integer("piece", number)
                    writer.add_document(document)
                    text_bytes += int(starts[min(start + PIECE, high - low)] - starts[start])
                    uncommitted += 1
                number += 1
            watcher.advance(high - low)
            if uncommitted >= _COMMIT:
                writer.commit()
                _write_progress(folder, number, text_bytes)
                uncommitted = 0
    writer.commit()
    writer.wait_merging_threads()
    (folder / _PROGRESS_NAME).unlink(missing_ok=True)
    return text_bytes


_PROGRESS_NAME = "progress.json"


class _Progress(msgspec.Struct):
    """How far an unfinished index is. The index itself says how many pieces were committed."""

    pieces: int
    text_bytes: int


def _write_progress(folder: Path, pieces: int, text_bytes: int) -> None:
    write_file(
        folder / _PROGRESS_NAME, msgspec.json.encode(_Progress(pieces, text_bytes)), durable=False
    )


def _open_partial(tantivy: Any, folder: Path, expected: Facts) -> tuple[Any, int, int]:
    """Return an unfinished index of the same data to continue, or a new one."""
    with suppress(Exception):
        _check_folder(folder)
        if read_json(folder, FACTS_NAME, Facts, _MOST_FACTS) == expected:
            index = tantivy.Index.open(str(folder))
            progress = read_json(folder, _PROGRESS_NAME, _Progress, _MOST_FACTS)
            if index.searcher().num_docs == progress.pieces:
                return index, progress.pieces, progress.text_bytes
    remove(folder)  # of a link, this removes only the link
    make_folder(folder)
    schema = tantivy.SchemaBuilder()
    schema.add_text_field("words", tokenizer_name="whitespace", index_option="basic")
    schema.add_integer_field("piece", fast=True)
    index = tantivy.Index(schema.build(), str(folder))
    write_file(folder / FACTS_NAME, msgspec.json.encode(expected))
    return index, 0, 0


def _describe(dataset: Dataset) -> Facts:
    return Facts(
        version=_VERSION,
        identity=identify(dataset),
        tokenizer=dataset.tokenizer.fingerprint,
        characters=unicodedata.unidata_version,  # the version of Unicode decides what is a letter
        piece=PIECE,
        overlap=OVERLAP,
        splits={split: len(dataset[split]) for split in sorted(dataset)},
    )


def _check_folder(folder: Path) -> None:
    """Raise UnusableIndexError unless this is a folder of regular files, without links."""
    for path in (folder.parent, folder):
        if path.is_symlink():
            raise UnusableIndexError(one_line(f"{path} is a symbolic link"))
    with os.scandir(folder) as entries:
        for entry in entries:
            if not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                raise UnusableIndexError(one_line(f"{entry.path} is not a regular file"))


def _measure(folder: Path) -> dict[str, int]:
    names = (path for path in folder.iterdir() if path.name != FACTS_NAME)
    return {
        path.name: path.stat().st_size
        for path in sorted(names)
        if not path.name.startswith(".")  # tantivy's locks
    }


def _report(folder: Path, facts: Facts, seconds: float) -> IndexReport:
    return IndexReport(
        folder=folder,
        tokens=sum(facts.splits.values()),
        text_bytes=facts.text_bytes,
        bytes=sum(facts.files.values()),
        seconds=seconds,
    )


def _read_facts(folder: Path, expected: Facts) -> Facts | None:
    """Return the facts of a finished index, or None if there is none.

    Raises UnusableIndexError if they are not the `expected` ones, or if a file has another size.
    """
    if not os.path.lexists(folder):
        return None
    try:
        _check_folder(folder)
        facts = read_json(folder, FACTS_NAME, Facts, _MOST_FACTS)
        sizes = _measure(folder)
    except DamagedFileError as error:
        raise UnusableIndexError(one_line(f"{folder}: {error.file} {error.what}")) from None
    except OSError as error:
        raise UnusableIndexError(f"{folder} cannot be read: {error}") from None
    if msgspec.structs.replace(facts, files={}, text_bytes=0) != expected:
        raise UnusableIndexError(f"{folder} was made with another version or another tokenizer")
    for name, size in facts.files.items():
        if sizes.get(name) != size:
            raise UnusableIndexError(f"{folder / name} is missing, or its size has changed")
    return facts


class WordIndex:
    """An index on disk."""

    def __init__(self, folder: Path, facts: Facts) -> None:
        self._facts = facts
        with _explaining(f"{folder} is damaged"):
            index = import_tantivy().Index.open(str(folder))
            self._schema, self._searcher = index.schema, index.searcher()
            pieces = sum(-(-length // PIECE) for length in facts.splits.values())
            if self._searcher.num_docs != pieces:
                raise UnusableIndexError(
                    f"{folder} has {self._searcher.num_docs} of {pieces} pieces"
                )
        self._folder, self._pieces = folder, pieces

    @classmethod
    def find(cls, dataset: Dataset) -> WordIndex | None:
        """Open the index of a dataset; None if it has none. Raises UnusableIndexError."""
        if not may_have_kept(dataset, NAME):
            return None
        folder = find_kept(dataset) / NAME
        facts = _read_facts(folder, _describe(dataset))
        return None if facts is None else cls(folder, facts)

    def narrow(self, text: str, split: str) -> Narrowed | None:
        """Return where a text can begin in a split; None if the index would not save enough work."""
        text = text.encode()[:LONGEST].decode("utf-8", "ignore")
        words = _choose(find_words(text))
        if not words:
            return None
        base = 0
        for name, length in self._facts.splits.items():
            if name == split:
                break
            base += -(-length // PIECE)
        with _explaining(f"{self._folder} is damaged"):
            query = self._combine([self._look_up(word) for word in words])
            top = base + -(-length // PIECE)
            result = self._search(query, base, top, 1)
            if result.count > MOST * self._pieces:
                return None
            return Narrowed(
                pieces=result.count,
                of=top - base,
                ranges=self._list_ranges(query, base, top, length),
            )

    def _look_up(self, word: Word) -> Any:
        query = import_tantivy().Query
        whole = query.term_query(self._schema, "words", word.text)
        if word.kind == "whole":
            return whole
        before = ".*" if word.kind in ("end", "part") else ""
        after = ".*" if word.kind in ("start", "part") else ""
        pattern = f"{before}{re.escape(word.text)}{after}"
        occur = import_tantivy().Occur.Should
        return query.boolean_query(
            [
                (occur, query.regex_query(self._schema, "words", pattern)),
                (occur, query.term_query(self._schema, "words", LONG)),
            ]
        )

    def _combine(self, queries: list[Any]) -> Any:
        tantivy = import_tantivy()
        return tantivy.Query.boolean_query([(tantivy.Occur.Must, query) for query in queries])

    def _search(self, query: Any, low: int, high: int, limit: int) -> Any:
        tantivy = import_tantivy()
        within = tantivy.Query.range_query(
            self._schema, "piece", tantivy.FieldType.Integer, low, high, include_upper=False
        )
        return self._searcher.search(
            self._combine([query, within]),
            limit,
            order_by_field="piece",
            order=tantivy.Order.Asc,
        )

    def _list_ranges(
        self, query: Any, base: int, top: int, length: int
    ) -> Iterator[tuple[int, int]]:
        """Yield ranges of tokens that cover the pieces found, in order. Joins neighbouring pieces."""
        low = base
        start = stop = -1
        while low < top:
            with _explaining(f"{self._folder} is damaged"):
                hits = self._search(query, low, top, _PAGE).hits
            for piece, _ in hits:
                begin = (int(piece) - base) * PIECE
                if begin != stop:
                    if stop > 0:
                        yield start, min(stop, length)
                    start = begin
                stop = begin + PIECE
            low = int(hits[-1][0]) + 1 if len(hits) == _PAGE else top
        if stop > 0:
            yield start, min(stop, length)


@dataclass(frozen=True, kw_only=True)
class Narrowed:
    """The part of a split that a search has to scan: `pieces` out of `of` pieces, as token ranges."""

    pieces: int
    of: int
    ranges: Iterator[tuple[int, int]]


def _choose(words: list[Word]) -> list[Word]:
    """Omit words that are slow to look up, if the other words narrow the search."""
    inner = [word for word in words if word.kind in ("whole", "start")]
    chosen = inner if any(len(word.text) > 2 for word in inner) else words
    return list({(word.text, word.kind): word for word in chosen}.values())


def import_tantivy() -> Any:
    """Import tantivy, or raise an error that says how to install it."""
    try:
        import tantivy
    except ImportError as error:
        raise UsageError(
            f"The index needs the package tantivy ({error}). Run: pip install 'tokenmill[search]'"
        ) from None
    return tantivy


@contextmanager
def _explaining(what: str) -> Iterator[None]:
    """Turn errors and panics of tantivy into an UnusableIndexError."""
    try:
        yield
    except (TokenmillError, OSError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if "No space left" in str(error):
            raise WorkError(
                f"{what}: no space left on the disk. Free some space, and repeat."
            ) from None
        raise UnusableIndexError(f"{what}: {str(error).partition(chr(10))[0][:200]}") from None
