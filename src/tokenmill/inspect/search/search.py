"""Find every occurrence of a text, a regular expression or a sequence of ids in a dataset or mixture.

Guarantees: all occurrences are found, in order, wherever the tokenizer divided the text: they may
begin and end inside a token. Occurrences of a text or of ids may overlap; matches of a regular
expression do not, as in Python's `re`. If documents are known, from a document table or from the
end-of-text id, no occurrence crosses from one into the next. With an index, the result is the same.

Costs: without an index, all tokens are read once. Ids are compared with the ids that can be part of
the text, so almost nothing is decoded: several GB of text per second from memory
(`benchmarks/search.py`). Memory is bounded: a few chunks of a million tokens.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.named import open_named
from tokenmill.dataset.opening import Dataset
from tokenmill.dataset.paths import AnyPaths
from tokenmill.errors import TokenizerError, UsageError
from tokenmill.inspect.search.matches import Describer, Match
from tokenmill.inspect.search.pattern import IdPattern, Pattern, TextPattern
from tokenmill.inspect.search.regex import (
    Finder,
    Reader,
    compile_pattern,
    find_regex,
    find_required,
    find_text,
    search_documents,
)
from tokenmill.inspect.search.scan import Found, scan
from tokenmill.inspect.search.vocabulary import Vocabulary
from tokenmill.inspect.search.word_index import (
    IndexReport,
    Narrowed,
    UnusableIndexError,
    WordIndex,
    build,
    join_reports,
)
from tokenmill.progress import Watcher, watching
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers.base import Tokenizer
from tokenmill.wording import one_line

__all__ = ["Match", "count_matches", "index", "search"]

LONGEST = 1 << 16  # bytes of a text, or ids of a sequence, to search for


def search(
    data: AnyPaths | Dataset | Mapping[str, Dataset],
    text: str | None = None,
    *,
    regex: bool = False,
    tokens: Sequence[int] | None = None,
    ignore_case: bool = False,
    split: str | None = None,
    limit: int | None = None,
    start: int = 0,
    reached: Callable[[int], None] | None = None,
    use_index: bool = True,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    tokenizer: str | Tokenizer | None = None,
    dtype: npt.DTypeLike | None = None,
    format: str | None = None,
    column: str | None = None,
    eot_id: int | None = None,
) -> Generator[Match]:
    """Yield every occurrence of `text` in a dataset, or in those of a mixture, as they are found.

    >>> import pathlib, tempfile
    >>> import tokenmill
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("To be, or not to be.")
    >>> _ = tokenmill.prepare(folder / "a.txt", folder / "data", val_fraction=0)
    >>> for match in search(folder / "data", "be", limit=1):
    ...     print(match.token, match.byte, repr(match.before), match.found, repr(match.after))
    1 3 'To ' be ', or not to be.<|endoftext|>'

    Parameters
    ----------
    data
        A path as for `tokenmill.open`, or an opened dataset. Or several, which are searched one after
        the other: a list of "NAME=PATH:WEIGHT", or opened datasets by name.
    text
        What to find. Its case matters.
    regex
        Whether `text` is a regular expression, in the syntax of Python's `re`.
    tokens
        A sequence of ids to find, instead of a text.
    ignore_case
        Whether to treat upper and lower case as equal. If the text is ASCII, A to Z equal a to z;
        other texts, and regular expressions, follow the rules of Python's `re`.
    split
        The only split to search. By default, all splits. Datasets of a mixture may lack it, but not
        all of them.
    limit
        The number of occurrences after which to stop.
    start
        The token of each split to begin at. Occurrences that begin before it may be left out.
    reached
        Called with a token when all occurrences before it were yielded. An exception that it raises
        ends the search.
    use_index
        Whether to use the index that `index` makes, if there is one.
    progress, watcher
        As for `tokenmill.prepare`.
    tokenizer, dtype, format, column, eot_id
        As for `tokenmill.open`, if `data` is a path.
    """
    opened = _open(data, tokenizer, dtype=dtype, format=format, column=column, eot_id=eot_id)
    if limit is not None and limit < 1:
        raise UsageError(f"`limit` is {limit}; it must be 1 or more.")
    queries = [
        replace(
            _ask(dataset, text, tokens, regex=regex, ignore_case=ignore_case),
            name=name,
            start=max(0, start),
            reached=reached,
        )
        for name, dataset in _having(opened, split).items()
    ]

    def find(watcher: Watcher) -> Generator[Match]:
        for query in queries:
            with closing(query.search(split, watcher, use_index=use_index)) as found:
                for match in found:
                    yield replace(match, name=query.name) if query.name else match

    def run() -> Generator[Match]:
        with watching(watcher, progress) as watching_now, closing(find(watching_now)) as found:
            yield from islice(found, limit)

    return run()


def count_matches(
    data: AnyPaths | Dataset | Mapping[str, Dataset],
    text: str | None = None,
    *,
    regex: bool = False,
    tokens: Sequence[int] | None = None,
    ignore_case: bool = False,
    split: str | None = None,
    use_index: bool = True,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    tokenizer: str | Tokenizer | None = None,
    dtype: npt.DTypeLike | None = None,
    format: str | None = None,
    column: str | None = None,
    eot_id: int | None = None,
) -> dict[str, int]:
    """Return how many occurrences each split has. The parameters are those of `search`.

    The numbers of several datasets are added.

    >>> import pathlib, tempfile
    >>> import tokenmill
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("To be, or not to be.")
    >>> _ = tokenmill.prepare(folder / "a.txt", folder / "data", val_fraction=0)
    >>> count_matches(folder / "data", "be")
    {'train': 2}
    """
    opened = _open(data, tokenizer, dtype=dtype, format=format, column=column, eot_id=eot_id)
    queries = [
        replace(_ask(dataset, text, tokens, regex=regex, ignore_case=ignore_case), name=name)
        for name, dataset in _having(opened, split).items()
    ]
    counts: Counter[str] = Counter()
    with watching(watcher, progress) as watching_now:
        for query in queries:
            counts.update(query.count(split, watching_now, use_index=use_index))
    return dict(counts)


def index(
    data: AnyPaths | Dataset | Mapping[str, Dataset],
    *,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    tokenizer: str | Tokenizer | None = None,
    dtype: npt.DTypeLike | None = None,
    format: str | None = None,
    column: str | None = None,
) -> IndexReport:
    """Index the words of a dataset, so that `search` reads only the parts that can contain a text.

    An index that exists already is kept. Needs the extra `search`. The parameters are those of
    `search`. Each dataset of a mixture gets its own index.

    >>> import pathlib, tempfile
    >>> import tokenmill
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("To be, or not to be.")
    >>> _ = tokenmill.prepare(folder / "a.txt", folder / "data", val_fraction=0)
    >>> index(folder / "data").text_bytes
    33
    """
    opened = _open(data, tokenizer, dtype=dtype, format=format, column=column)
    vocabularies = {name: _read_bytes(dataset.tokenizer) for name, dataset in opened.items()}
    with watching(watcher, progress) as watching_now:
        made = {
            name: build(dataset, vocabularies[name], watching_now)
            for name, dataset in opened.items()
        }
    return made[""] if "" in made else join_reports(made)


def _read_bytes(tokenizer: Tokenizer) -> Vocabulary:
    vocabulary = read_vocabulary(tokenizer)
    if vocabulary is None:
        raise TokenizerError(
            f"the tokenizer {tokenizer.name!r} does not give the bytes of each id, which an index "
            "needs. Implement its method `spellings`."
        )
    return vocabulary


def _open(
    data: AnyPaths | Dataset | Mapping[str, Dataset],
    tokenizer: str | Tokenizer | None,
    **opening: Any,
) -> dict[str, Dataset]:
    """Return the datasets by name. A single dataset without a name has the name ""."""
    if not isinstance(data, Mapping):
        # Open remote data without a cache, since a search reads everything once.
        found = open_named(data, tokenizer=tokenizer, cache_bytes=0, **opening)
        return {name: dataset for name, (dataset, _) in found.items()}
    if tokenizer is not None or any(value is not None for value in opening.values()):
        raise UsageError(
            "`tokenizer` and other options of opening cannot be used with an opened dataset. "
            "Pass them to `tokenmill.open`."
        )
    if not data:
        raise UsageError("`data` has no dataset to search. Give one or more datasets by name.")
    return {"": data} if isinstance(data, Dataset) else dict(data)


def _having(opened: dict[str, Dataset], split: str | None) -> dict[str, Dataset]:
    """Return the datasets that have a split. Raises an error if none of them has it."""
    if split is None:
        return opened
    having = {name: dataset for name, dataset in opened.items() if split in dataset}
    if not having:
        next(iter(opened.values()))[split]  # raises an error that lists the splits
    return having


def read_vocabulary(tokenizer: Tokenizer) -> Vocabulary | None:
    """Return the bytes of a tokenizer's ids; None if it does not give them."""
    if type(tokenizer).__hash__ is None:
        return _read_vocabulary.__wrapped__(tokenizer)
    return _read_vocabulary(tokenizer)


@lru_cache(maxsize=2)
def _read_vocabulary(tokenizer: Tokenizer) -> Vocabulary | None:
    spellings = tokenizer.spellings()
    return None if spellings is None else Vocabulary(spellings)


def _ask(
    dataset: Dataset,
    text: str | None,
    tokens: Sequence[int] | None,
    *,
    regex: bool,
    ignore_case: bool,
) -> _Query:
    """Check what to find, and return how to find it."""
    if (text is None) == (tokens is None):
        raise UsageError("pass what to find: either `text` or `tokens`.")
    if tokens is not None:
        if regex or ignore_case:
            raise UsageError("`regex` and `ignore_case` are for text, not for `tokens`.")
        return _ask_for_ids(dataset, tokens)
    assert text is not None
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} is not valid UTF-8. Type the text in UTF-8.") from None
    if not 0 < len(data) <= LONGEST:
        raise UsageError(
            f"the text to find has {len(data):,} bytes; it must have from 1 to {LONGEST:,}."
        )
    tokenizer = dataset.tokenizer
    vocabulary = read_vocabulary(tokenizer)
    reader = Reader(vocabulary=vocabulary, tokenizer=tokenizer)
    is_plain = not regex and (text.isascii() or not ignore_case)
    if is_plain and vocabulary is not None:
        pattern = TextPattern(vocabulary, data, ignore_case=ignore_case)
        return _Query(dataset, vocabulary, pattern=pattern, words=text)
    if is_plain and not ignore_case:
        return _Query(dataset, vocabulary, reader=reader, finder=find_text(text))
    compiled = compile_pattern(text if regex else re.escape(text), ignore_case=ignore_case)
    required = find_required(compiled) if vocabulary is not None else None
    if required is None or vocabulary is None:
        return _Query(dataset, vocabulary, reader=reader, finder=find_regex(compiled))
    needed = TextPattern(
        vocabulary, required.encode(), ignore_case=bool(compiled.flags & re.IGNORECASE)
    )
    return _Query(
        dataset,
        vocabulary,
        pattern=needed,
        words=required,
        reader=reader,
        finder=find_regex(compiled),
    )


def _ask_for_ids(dataset: Dataset, tokens: Sequence[int]) -> _Query:
    ids = [int(one) for one in tokens]
    if not 0 < len(ids) <= LONGEST:
        raise UsageError(f"`tokens` has {len(ids):,} ids; it must have from 1 to {LONGEST:,}.")
    most = dataset.vocab_size or np.iinfo(dataset.dtype).max + 1
    wrong = next((one for one in ids if not 0 <= one < most), None)
    if wrong is not None:
        raise UsageError(f"{wrong} is not an id of these tokens. Ids are 0 to {most - 1:,}.")
    vocabulary = None
    with suppress(TokenizerError):  # without a tokenizer, the ids themselves are shown
        vocabulary = read_vocabulary(dataset.tokenizer)
    return _Query(dataset, vocabulary, pattern=IdPattern(vocabulary, ids))


@dataclass(frozen=True)
class _Query:
    """What to find, and how.

    - With only a `pattern`, all of its hits are results.
    - With only a `finder`, it searches all documents, whose text comes from `reader`.
    - With both, the finder searches the documents that have a hit.

    If `words` is given, every result contains this text.
    """

    dataset: Dataset
    vocabulary: Vocabulary | None
    pattern: Pattern | None = None
    words: str | None = None
    reader: Reader | None = None
    finder: Finder | None = None
    name: str = ""
    start: int = 0
    reached: Callable[[int], None] | None = None

    def search(self, split: str | None, watcher: Watcher, *, use_index: bool) -> Generator[Match]:
        """Yield all results in a split, or in all splits."""
        for tokens, ranges in self._plan(split, watcher, use_index=use_index):
            if self.finder is not None and self.reader is not None:
                yield from self._search_documents(tokens, ranges, watcher)
                continue
            describer = Describer(tokens, self.vocabulary)
            for found in self._scan(tokens, ranges, watcher):
                for number in range(len(found.hits)):
                    yield describer.describe(found, number)

    def count(self, split: str | None, watcher: Watcher, *, use_index: bool) -> dict[str, int]:
        """Return the number of results in a split, or in each split."""
        counts = {}
        for tokens, ranges in self._plan(split, watcher, use_index=use_index):
            if self.finder is not None:
                results: Iterator[Any] = self._search_documents(tokens, ranges, watcher)
                counts[tokens.split] = sum(1 for _ in results)
            else:
                found = self._scan(tokens, ranges, watcher, with_ids=False)
                counts[tokens.split] = sum(len(one.hits) for one in found)
        return counts

    def _plan(
        self, split: str | None, watcher: Watcher, *, use_index: bool
    ) -> Iterator[tuple[Tokens, Iterator[tuple[int, int]] | None]]:
        """Yield each split with the ranges of tokens to scan; None means all tokens."""
        splits = [self.dataset[name] for name in ([split] if split is not None else self.dataset)]
        opened = self._open_index(watcher) if use_index and self.words is not None else None
        of_name = f" of {one_line(self.name)}" if self.name else ""
        if opened is None:
            what = f"searching {one_line(self.name)}" if self.name else "searching"
            watcher.begin(what, sum(map(len, splits)), unit="tokens")
        for tokens in splits:
            narrowed = None
            if opened is not None and self.words is not None:
                narrowed = self._narrow(opened, tokens.split, watcher)
                if narrowed is None:
                    watcher.begin(f"searching {tokens.split}", len(tokens), unit="tokens")
                else:
                    watcher.note(
                        f"Using the index: {narrowed.pieces:,} of {narrowed.of:,} pieces of "
                        f"{tokens.split}{of_name} can contain it."
                    )
            ranges = None if narrowed is None else narrowed.ranges
            if self.start:
                whole = iter([(0, len(tokens))])
                ranges = _begin_at(self.start, whole if ranges is None else ranges)
            yield tokens, ranges

    def _open_index(self, watcher: Watcher) -> WordIndex | None:
        try:
            return WordIndex.find(self.dataset)
        except UnusableIndexError as error:
            watcher.note(f"The index is not used. {error}")
        except UsageError as error:  # tantivy is not installed
            watcher.note(f"The index is not used. {error}")
        return None

    def _narrow(self, opened: WordIndex, split: str, watcher: Watcher) -> Narrowed | None:
        try:
            return opened.narrow(self.words or "", split)
        except UnusableIndexError as error:
            watcher.note(f"The index is not used. {error}")
        return None

    def _scan(
        self,
        tokens: Tokens,
        ranges: Iterator[tuple[int, int]] | None,
        watcher: Watcher,
        *,
        with_ids: bool = True,
    ) -> Iterator[Found]:
        assert self.pattern is not None
        return scan(
            tokens, self.pattern, watcher, ranges=ranges, with_ids=with_ids, reached=self.reached
        )

    def _search_documents(
        self, tokens: Tokens, ranges: Iterator[tuple[int, int]] | None, watcher: Watcher
    ) -> Iterator[Match]:
        assert self.finder is not None
        assert self.reader is not None
        candidates = None
        if self.pattern is not None:
            found = self._scan(tokens, ranges, watcher, with_ids=False)
            candidates = (token for one in found for token in one.hits.first.tolist())
        return search_documents(
            tokens,
            self.finder,
            self.reader,
            watcher,
            candidates=candidates,
            first=self.start,
            reached=self.reached,
        )


def _begin_at(start: int, ranges: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges without the tokens before `start`."""
    return ((max(low, start), high) for low, high in ranges if high > start)
