"""Keep a list of the documents of a dataset that later datasets leave out.

The dataset itself is never changed. The list is a file beside it (`exclusion.py`); `prepare` and
`reshard` read it.

The list names a document by its key, a hash of its cleaned text. So copies of the document are left
out as well, in other datasets too. Costs: the time to find the documents (see `where` and `search`);
the list is rewritten once for every 260,000 documents added, whose entries are in memory together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tokenmill.dataset.opening import Dataset, open
from tokenmill.errors import TokenmillError, UnregisteredTokenizerError, UsageError
from tokenmill.html import render
from tokenmill.inspect.search.search import search as find_text
from tokenmill.inspect.where.described import Describer
from tokenmill.inspect.where.file_finder import FileFinder
from tokenmill.inspect.where.keys import DIGITS, find_key, is_key, open_tables
from tokenmill.inspect.where.source_places import (
    SourceDocuments,
    find_nearest,
    find_sources,
    parse_place,
)
from tokenmill.preparation.edit_exclusions import add_exclusions, remove_exclusions
from tokenmill.preparation.exclusion import Exclusion, find_list, is_list, read_lines, read_list
from tokenmill.progress import Watcher, watching
from tokenmill.storage.object_path import ObjectPath, as_path
from tokenmill.store.documents import Document
from tokenmill.tokenizers import Tokenizer
from tokenmill.wording import count, one_line

_BATCH = 1 << 18  # documents added each time the list is rewritten
_SHOWN = 40  # tokens decoded for the beginning of a text
_BEGINNING = 80  # characters of the beginning of a text
_EXAMPLES = 10
_NUMBERED = re.compile(r"document[=: ]([0-9]{1,18})")


@dataclass(frozen=True, kw_only=True)
class Excluded:
    """The result of `exclude`. Iterating over it reads the entries of the list from disk.

    `added` and `removed` count the documents that were added to the list at `path` and removed from
    it; `known` counts those that it contained already. `tokens` is the total length of the added
    documents, and `examples` has the first documents that were added or removed.
    """

    path: Path
    added: int = 0
    known: int = 0
    removed: int = 0
    tokens: int = 0
    examples: tuple[Exclusion, ...] = ()

    def __iter__(self) -> Iterator[Exclusion]:
        return read_list(self.path)

    def __repr__(self) -> str:
        path = repr(one_line(self.path)[-200:])
        known = f", {count(self.known)} already listed" if self.known else ""
        return f"<Excluded {path}: {count(self.added)} added, {count(self.removed)} removed{known}>"

    def _repr_html_(self) -> str:
        names = ("added", "known", "removed", "tokens")
        facts = [(name, count(getattr(self, name))) for name in names]
        rows = [
            (
                entry.key,
                "" if entry.source is None else f"{entry.source}, {entry.offset}",
                entry.beginning or "",
                entry.because or "",
            )
            for entry in self.examples
        ]
        heads = ("key", "source", "beginning", "because")
        tables = [("First documents", heads, rows)] if rows else []
        return render(f"List of excluded documents {self.path}", facts, *tables)


def exclude(
    data: str | os.PathLike[str],
    *what: str,
    search: str | None = None,
    regex: bool = False,
    because: str | None = None,
    undo: str | Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    watcher: Watcher | None = None,
) -> Excluded:
    """Add documents to the list of those that later datasets leave out, or remove some from it.

    If no documents are given, nothing changes; iterate over the result to read the list.

    >>> import tempfile
    >>> import tokenmill
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("to be\\nbuy now\\nor not")
    >>> options = {"tokenizer": "bytes", "documents": "line", "val_fraction": 0}
    >>> _ = tokenmill.prepare(folder / "a.txt", folder / "data", **options)
    >>> made = exclude(folder / "data", search="buy", because="spam")
    >>> made.path.name, made.added, [entry.beginning for entry in made]
    ('data.exclude.jsonl', 1, ['buy now'])
    >>> clean = tokenmill.reshard(folder / "data", folder / "clean")
    >>> clean.ledger["dropped"]
    {'excluded': {'documents': 1, 'bytes': 7}}

    Parameters
    ----------
    data
        A prepared dataset.
    what
        The documents to add: a key or at least its first 6 digits; document=NUMBER for a document
        of the split train; FILE:LINE, FILE:byte=BYTE or FILE:row=ROW for the document at a place
        in an input file; or FILE for all documents of a file.
    search
        Add all documents in which this text occurs.
    regex
        Whether `search` is a regular expression.
    because
        The reason, to be stored with each entry.
    undo
        Keys to remove from the list, each with at least its first 6 digits.
    out
        The list. By default, DATA.exclude.jsonl, beside the dataset's folder.
    progress, watcher
        As for `tokenmill.prepare`.
    """
    path = find_list(data) if out is None else _check_out(as_path(out))
    keys = [undo] if isinstance(undo, str) else list(undo)
    if (what or search is not None) and keys:
        raise UsageError("give documents to add, or `undo`, not both.")
    if regex and search is None:
        raise UsageError("`regex` needs `search`.")
    if search == "":
        raise UsageError("`search` is empty, so every document would be listed.")
    try:
        (because or "").encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"`because` is {because!r}, which is not valid UTF-8. Type the reason in UTF-8."
        ) from None
    if keys:
        removed = remove_exclusions(path, _find_listed(path, keys))
        return Excluded(path=path, removed=len(removed), examples=tuple(removed[:_EXAMPLES]))
    if not what and search is None:
        if not is_list(path):
            open(data, cache_bytes=0)  # raises an error if there is no such dataset
        return Excluded(path=path)
    with watching(watcher, progress) as shown:
        dataset = open(data, cache_bytes=0)
        finder = _Finder(dataset, data, shown)
        return _add(path, finder, what, search, regex=regex, because=because)


def _check_out(path: Path) -> Path:
    if path.name in ("", "..") and not isinstance(path, ObjectPath):
        raise UsageError(
            f"`out` is {str(path)!r}, which names no file. Name a file, or omit `out`."
        )
    return path


def _add(
    path: Path,
    finder: _Finder,
    what: Sequence[str],
    search: str | None,
    *,
    regex: bool,
    because: str | None,
) -> Excluded:
    # Find every document that `what` names before writing, so that a wrong name changes nothing.
    named = [finder.find(one) for one in what]
    found: list[Iterable[Document]] = [*named]
    if search is not None:
        found.append(finder.search(search, regex=regex))
    documents = (document for some in found for document in some)
    added = known = tokens = 0
    examples: list[Exclusion] = []
    while batch := list(islice(documents, _BATCH)):
        lengths: dict[str, int] = {}
        for document in batch:
            assert document.key is not None
            lengths.setdefault(document.key, document.length)
        made = add_exclusions(path, (finder.describe(document, because) for document in batch))
        added, known = added + len(made), known + len(lengths) - len(made)
        tokens += sum(lengths[entry.key] for entry in made)
        examples += made[: _EXAMPLES - len(examples)]
    return Excluded(path=path, added=added, known=known, tokens=tokens, examples=tuple(examples))


def _find_listed(path: Path, keys: Sequence[str]) -> set[str]:
    """Return the keys in a list that begin with the given digits; each must match exactly one key."""
    for key in keys:
        if not is_key(key):
            raise UsageError(f"{one_line(key)!r} is not a key, or the first 6 digits of one.")
    found: dict[str, set[str]] = {key: set() for key in keys}
    for listed, _ in read_lines(path):
        for key in keys:
            if listed.startswith(key.lower()):
                found[key].add(listed)
    for key, whole in found.items():
        if not whole:
            raise UsageError(f"{path} does not list the key {key}.")
        if len(whole) > 1:
            raise UsageError(
                f"{key!r} is the beginning of {len(whole):,} keys in {path}. Give more digits."
            )
    return set().union(*found.values())


class _Finder:
    """Finds documents of one dataset, and describes them."""

    def __init__(self, dataset: Dataset, data: str | os.PathLike[str], watcher: Watcher) -> None:
        self._tables = open_tables(dataset)  # raises an error if documents have no keys
        self._dataset, self._watcher = dataset, watcher
        self._tokenizer: Tokenizer | None = None
        if dataset.has_tokenizer:
            with suppress(UnregisteredTokenizerError):
                self._tokenizer = dataset.tokenizer
        self._name = os.fspath(data)

    def find(self, what: str) -> Iterable[Document]:
        """Return the documents that a key, a number, a file or a place in a file names."""
        if numbered := _NUMBERED.fullmatch(what):
            return self._find_number(int(numbered[1]))
        assert self._dataset.manifest is not None
        sources = self._dataset.manifest.sources
        place = parse_place(what)
        if is_key(what) and not find_sources(sources, what):
            return self._find_key(what)
        numbers = find_sources(sources, what)
        if len(numbers) == 1:
            documents = SourceDocuments(self._tables, numbers[0])
            if not sum(documents.counts.values()):
                raise UsageError(f"{self._name} has no document from {one_line(what)}.")
            return documents
        files = FileFinder({"": self._dataset}, Describer(None), 2, self._watcher)
        found = files.find_source(what)
        if found is None:
            near = find_nearest(sources, place.name)
            hint = f" Did you mean {one_line(near)}?" if near else ""
            raise UsageError(
                f"{one_line(what)!r} is neither a key nor a source of {self._name}.{hint} To exclude all "
                "documents with a text, use `search=TEXT`."
            )
        if found.documents:
            return [one.document for one in found.documents if one.document is not None]
        for absence in found.absences:
            twins = [one.document for one in absence.twins if one.document is not None]
            if twins:  # a copy has the same key
                return twins
            raise UsageError(
                f"{one_line(what)} is not a document of {self._name}: {absence.reason}; {absence.detail}."
            )
        raise UsageError(f"{self._name} has no document at {one_line(what)}.")

    def search(self, text: str, *, regex: bool) -> Iterator[Document]:
        """Yield the documents in which a text occurs, each once."""
        before = None
        for match in find_text(self._dataset, text, regex=regex, watcher=self._watcher):
            document = match.document
            if document is not None and (document.split, document.number) != before:
                before = document.split, document.number
                yield document

    def describe(self, document: Document, because: str | None) -> Exclusion:
        """Return the entry of the list for a document."""
        assert document.key is not None
        stop = document.start + min(document.length, _SHOWN)
        tokens = self._dataset[document.split]
        beginning = None
        if self._tokenizer is not None:
            ids = tokens[document.start : stop]
            if tokens.eot_id is not None:
                ids = ids[ids != tokens.eot_id]
            with suppress(TokenmillError):  # the tokenizer cannot decode these ids
                beginning = self._tokenizer.decode(ids)[:_BEGINNING].rstrip("\ufffd")
        return Exclusion(
            key=document.key,
            split=document.split,
            document=document.number,
            source=None if document.source is None else document.source.path,
            offset=document.offset,
            beginning=beginning,
            because=because,
        )

    def _find_number(self, number: int) -> Iterable[Document]:
        table = self._dataset["train"].documents if "train" in self._dataset else None
        if table is None or number >= len(table):
            total = 0 if table is None else len(table)
            raise UsageError(
                f"split 'train' has no document {number}: it has {total:,} documents. For a document of "
                "another split, give its key, which tokenmill peek shows."
            )
        return [table[number]]

    def _find_key(self, key: str) -> Iterable[Document]:
        found = find_key(self._dataset, key.lower(), watcher=self._watcher)
        whole = sorted({one.key for one in found if one.key is not None})
        if len(whole) > 1:
            raise UsageError(
                f"{key!r} is the beginning of several keys, such as {', '.join(whole[:3])}. Give more "
                "digits."
            )
        if not found:
            hint = (
                ' To list it anyway, write a line into the list: {"key":"' + key.lower() + '"}'
                if len(key) == DIGITS
                else ""
            )
            raise UsageError(f"no document of {self._name} has the key {key}.{hint}")
        return found[:1]
