"""Check a dataset of any format for evaluation texts. The dataset is not changed.

Guarantees: the text of each document is decoded, and searched as `prepare --decontaminate` searches it
(`contamination/matching.py`). N-grams that occur in more than `common` documents do not count; all
documents are counted, so they are reported after the last one was read.

Costs: one pass over the tokens, at 50 to 100 MB of text per second on one core. Memory: about 200 MB,
and the table of the evaluation texts. Hits are kept in a temporary file without a name, 32 bytes each.
If the tokenizer does not give the bytes of its ids, documents are decoded one by one, and a document
of more than `_WINDOW` tokens in windows; a passage across the border of two windows may be missed.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tokenmill.contamination.evaluation import Matching, Paths, check_size, read_protected
from tokenmill.contamination.findings import describe_passages
from tokenmill.contamination.matching import Hits, Stream, find_passages
from tokenmill.contamination.protected import Protected
from tokenmill.dataset.opening import Dataset
from tokenmill.dataset.opening import open as open_dataset
from tokenmill.errors import UsageError
from tokenmill.formats.document_starts import find_document_starts
from tokenmill.html import ROWS, render
from tokenmill.inspect.search.search import read_vocabulary
from tokenmill.inspect.search.vocabulary import Vocabulary
from tokenmill.progress import Watcher, watching
from tokenmill.storage.files import create_unnamed
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import Tokenizer
from tokenmill.wording import count, one_line

_WINDOW = 1 << 19  # tokens decoded at once
_HIT = np.dtype(
    [("split", "<u4"), ("unit", "<u4"), ("text", "<i8"), ("place", "<i8"), ("token", "<i8")]
)
_BLOCK = 1 << 16  # hits read at once
_MOST_HITS = 1 << 20  # of a document, held at once


@dataclass(frozen=True, kw_only=True)
class Contaminated:
    """A passage of an evaluation text in a document of the dataset.

    `document` is the number of the document in the split, and `token` is where the document starts.
    `key`, `source` and `offset` are known for prepared datasets. `record` counts what `unit` says:
    lines and documents of the evaluation file, or rows. `words` are the matching words, in lower case
    and without punctuation, at most 100 of them; `count` is their number.
    """

    split: str
    document: int
    token: int
    key: str | None
    source: str | None
    offset: int | None
    evaluation: str
    record: int
    unit: str
    count: int
    words: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Contamination:
    """The result of `contaminated`: iterating over it yields each passage that was found.

    `documents` were read, and `contaminated` of them have a passage. Of the `texts` of the evaluation
    files, `too_short` were not looked for. `common_ngrams` were found in too many documents to count.
    """

    path: Path
    documents: int
    contaminated: int
    texts: int
    too_short: int
    templates: int
    common_ngrams: int
    _dataset: Dataset
    _protected: Protected
    _spill: _Spill = field(compare=False)

    def __iter__(self) -> Iterator[Contaminated]:
        splits = list(self._dataset)
        for split, text, token, hits in self._spill.documents():
            tokens = self._dataset[splits[split]]
            known = tokens.documents[text] if tokens.documents is not None else None
            source = known.source if known is not None else None
            for found in describe_passages(find_passages(hits, self._protected), self._protected):
                yield Contaminated(
                    split=splits[split],
                    document=text,
                    token=token,
                    key=known.key if known is not None else None,
                    source=source.path if source is not None else None,
                    offset=known.offset if known is not None else None,
                    **found,
                )

    def __repr__(self) -> str:
        path = repr(one_line(self.path)[-200:])
        return f"<Contamination of {path}: {count(self.contaminated)} of {count(self.documents)} documents>"

    def _repr_html_(self) -> str:
        names = ("documents", "contaminated", "texts", "too_short", "templates", "common_ngrams")
        facts = [(name, count(getattr(self, name))) for name in names]
        rows = []
        for one in self:
            rows.append(
                (one.split, count(one.document), f"{one.evaluation}, {one.record}", one.words)
            )
            if len(rows) == ROWS:
                break
        heads = ("split", "document", "evaluation text", "words")
        tables = [("First passages", heads, rows)] if rows else []
        return render(f"Contamination of {self.path}", facts, *tables)


def contaminated(
    data: str | os.PathLike[str] | Dataset,
    evaluation: Paths,
    *,
    words: int = 13,
    common: int = 100,
    text_field: str = "text",
    split: str | None = None,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    tokenizer: str | Tokenizer | None = None,
    dtype: npt.DTypeLike | None = None,
    format: str | None = None,
    column: str | None = None,
    eot_id: int | None = None,
) -> Contamination:
    """Find the documents of a dataset that contain texts of evaluation files.

    >>> import tempfile
    >>> import tokenmill
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("fine\\nTo be, or not to be: that is it.")
    >>> _ = (folder / "eval.txt").write_text("to be or not to be")
    >>> options = {"tokenizer": "bytes", "documents": "line", "val_fraction": 0}
    >>> _ = tokenmill.prepare(folder / "a.txt", folder / "data", **options)
    >>> found = contaminated(folder / "data", folder / "eval.txt", words=6)
    >>> found.documents, found.contaminated, [(one.document, one.words) for one in found]
    (2, 1, [(1, 'to be or not to be')])

    Parameters
    ----------
    data
        A path as for `tokenmill.open`, or an opened dataset.
    evaluation
        Files of evaluation texts: JSON lines, Parquet, or plain text with a text in each line; or
        datasets, whose documents are decoded.
    words
        Number of words in a row that a document must share with an evaluation text.
    common
        Ignore words in a row that occur in more than this number of documents, or of evaluation
        texts.
    text_field
        Name of the JSON field or Parquet column of evaluation files that contains the text.
    split
        The only split to check. By default, all splits.
    progress, watcher
        As for `tokenmill.prepare`.
    tokenizer, dtype, format, column, eot_id
        As for `tokenmill.open`, if `data` is a path.
    """
    check_size(words, "words")
    if common < 1:
        raise UsageError(f"`common` is {common}; it must be 1 or more.")
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "dtype": dtype,
        "format": format,
        "column": column,
        "eot_id": eot_id,
    }
    if not isinstance(data, Dataset):
        data = open_dataset(data, cache_bytes=0, **options)
    elif any(value is not None for value in options.values()):
        raise UsageError(
            "`tokenizer` and other options of opening cannot be used with an opened dataset. "
            "Pass them to `tokenmill.open`."
        )
    splits = [data[name] for name in ([split] if split is not None else data)]
    reader = _Reader(data.tokenizer)
    protected = read_protected(evaluation, Matching(size=words, common=common, field=text_field))
    spill = _Spill()
    names = list(data)
    with watching(watcher, progress) as shown:
        shown.begin("looking for evaluation texts", sum(map(len, splits)), unit="tokens")
        documents = sum(
            spill.fill(names.index(tokens.split), _search(tokens, reader, protected, shown))
            for tokens in splits
        )
    common_ngrams = spill.drop_common(len(protected.hashes), common)
    return Contamination(
        path=data.path,
        documents=documents,
        contaminated=sum(1 for _ in groupby(spill.documents(), lambda one: one[:2])),
        **protected.count(),
        common_ngrams=common_ngrams,
        _dataset=data,
        _protected=protected,
        _spill=spill,
    )


Found = tuple[
    int, Hits, npt.NDArray[np.int64]
]  # documents so far, hits, and their documents' starts


def _search(
    tokens: Tokens, reader: _Reader, protected: Protected, watcher: Watcher
) -> Iterator[Found]:
    """Yield the hits in a split. The text of a hit is the number of its document."""
    stream = Stream(protected)
    number, start = -1, 0  # the document that continues
    for low in range(0, len(tokens), _WINDOW):
        high = min(low + _WINDOW, len(tokens))
        starts = _find_starts(tokens, low, high)
        hits = stream.feed(reader.read(tokens, low, high, starts))
        known = np.concatenate(([start], starts))
        yield number + 1 + len(starts), hits, known[hits.texts - number]
        number, start = number + len(starts), int(known[-1])
        watcher.advance(high - low)
    hits = stream.finish()
    yield number + 1, hits, np.full(len(hits), start)


def _find_starts(tokens: Tokens, low: int, high: int) -> npt.NDArray[np.int64]:
    """Return where documents start in [low, high). If that is unknown, there is one document."""
    if tokens.documents is None and tokens.eot_id is None:
        return np.zeros(0 if low else 1, np.int64)
    return np.concatenate([np.zeros(0, np.int64), *find_document_starts(tokens, low, high)])


class _Reader:
    """Decodes tokens into texts, joined by NUL bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: Vocabulary | None = read_vocabulary(tokenizer)

    def read(self, tokens: Tokens, low: int, high: int, starts: npt.NDArray[np.int64]) -> bytes:
        """Return the text of tokens [low, high), with a NUL byte before each document but the first."""
        ids = tokens.read(low, high)
        places = starts - low
        if tokens.eot_id is not None:
            kept = ids != tokens.eot_id
            places = np.concatenate(([0], np.cumsum(kept)))[places]
            ids = ids[kept]
        if self._vocabulary is None:
            decode = self._tokenizer.decode
            texts = [
                decode(some).encode("utf-8", "replace").replace(b"\0", b" ")
                for some in np.split(ids, places)
            ]
        else:
            joined, begins = self._vocabulary.join(self._vocabulary.trim(ids))
            data = bytes(joined).replace(b"\0", b" ")
            borders = [0, *begins[places].tolist(), len(data)]
            texts = [data[a:b] for a, b in pairwise(borders)]
        if not low:  # the first document begins here
            return texts[0] + b"\0".join(texts[1:])
        return b"\0".join(texts)


class _Spill:
    """Hits in a temporary file, in order."""

    def __init__(self) -> None:
        self._file: BinaryIO = create_unnamed(Path(tempfile.gettempdir()))
        weakref.finalize(self, self._file.close)
        self._ignored = np.zeros(0, np.bool_)

    def fill(self, split: int, found: Iterator[Found]) -> int:
        """Add the hits of a split. Returns how many documents it has."""
        documents = 0
        for documents, hits, starts in found:  # noqa: B007
            rows = np.zeros(len(hits), _HIT)
            rows["split"], rows["unit"], rows["text"] = split, hits.units, hits.texts
            rows["place"], rows["token"] = hits.places, starts
            self._file.write(rows.tobytes())
        return documents

    def drop_common(self, units: int, common: int) -> int:
        """Ignore the units that occur in more than `common` documents. Returns how many they are."""
        counts = np.zeros(units, np.int64)
        last = np.full(units, -1, np.int64)  # the document in which a unit was counted last
        before, number = None, 0
        for rows in self._rows():
            found = np.unique(rows["unit"])
            number += _name(rows) != before
            before = _name(rows)
            counts[found] += last[found] != number
            last[found] = number
        self._ignored = counts > common
        return int(np.count_nonzero(self._ignored))

    def documents(self) -> Iterator[tuple[int, int, int, Hits]]:
        """Yield the split, number, start and hits of each document that has hits that count."""
        for rows in self._rows():
            left = rows[~self._ignored[rows["unit"]]]
            if len(left):
                texts, places = left["text"].astype(np.int64), left["place"].astype(np.int64)
                hits = Hits(texts, places, left["unit"].astype(np.int64))
                first = left[0]
                yield int(first["split"]), int(first["text"]), int(first["token"]), hits

    def _rows(self) -> Iterator[npt.NDArray[np.void]]:
        """Yield the hits of each document. Those of a document with very many come in pieces."""
        place, held = 0, np.zeros(0, _HIT)
        while True:
            self._file.seek(place)
            data = self._file.read(_BLOCK * _HIT.itemsize)
            place += len(data)
            held = np.concatenate((held, np.frombuffer(data, _HIT)))
            if not len(held):
                return
            other = (held["text"][1:] != held["text"][:-1]) | (
                held["split"][1:] != held["split"][:-1]
            )
            borders = [0, *(np.flatnonzero(other) + 1).tolist()]
            if not data or len(held) - borders[-1] > _MOST_HITS:
                borders.append(len(held))
            for start, stop in pairwise(borders):
                yield held[start:stop]
            held = held[borders[-1] :]


def _name(rows: npt.NDArray[np.void]) -> tuple[int, int]:
    return int(rows[0]["split"]), int(rows[0]["text"])
