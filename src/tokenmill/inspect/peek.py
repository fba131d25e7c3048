"""Show some of a dataset's tokens as text, with their origin.

All tokens shown belong to one document, so they have one origin. Costs: two or three files are
opened, however large the dataset is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import DatasetError, UsageError
from tokenmill.store.documents import Document
from tokenmill.store.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class Peek:
    """A few consecutive tokens of a split: their `ids`, their `text`, and the text of each id.

    The first token is number `start` in the split, and number `shard_token` in the file `shard`. An
    incomplete character is shown as U+FFFD. `document` is the document that contains the tokens, or
    None if the dataset has no document table. `documents` and `tokens` count all documents and
    tokens of the split.
    """

    split: str
    document: Document | None
    documents: int
    tokens: int
    shard: str
    shard_token: int
    start: int
    ids: tuple[int, ...]
    text: str
    id_texts: tuple[str, ...]

    @property
    def end(self) -> int:
        """The position in the split after the last token shown."""
        return self.start + len(self.ids)


def peek(
    dataset: Dataset,
    *,
    split: str = "train",
    document: int | None = None,
    token: int | None = None,
    length: int = 400,
) -> Peek:
    """Return up to `length` tokens of one document: from its start, or around `token`.

    Documents and tokens count from 0; negative numbers count from the end. The default is the first
    document. Without a document table, the tokens start at `token`.
    """
    if document is not None and token is not None:
        raise UsageError("pass `document` or `token`, not both.")
    if length < 1:
        raise UsageError(f"`length` is {length}; it must be 1 or more.")
    tokens = dataset[split]
    found, start, end = _choose(dataset, tokens, document, token, length)
    ids = tokens[start:end]
    shard, shard_token = tokens.locate(start)
    path = tokens.shard_name(shard)
    check_vocabulary(dataset, ids, path)
    decode = dataset.tokenizer.decode
    by_id = {int(one): decode(np.array([one])) for one in np.unique(ids)}
    return Peek(
        split=split,
        document=found,
        documents=len(tokens.documents or ()),
        tokens=len(tokens),
        shard=path,
        shard_token=shard_token,
        start=start,
        ids=tuple(ids.tolist()),
        text=decode(ids),
        id_texts=tuple(by_id[one] for one in ids.tolist()),
    )


def check_vocabulary(dataset: Dataset, ids: npt.NDArray[Any], path: str) -> None:
    """Raise `DatasetError` if an id is outside of the vocabulary. `path` is the first id's shard."""
    if dataset.vocab_size is not None and len(ids) and int(ids.max()) >= dataset.vocab_size:
        raise DatasetError(
            f"{path} or a later shard has the id {ids.max()}, but the vocabulary has only "
            f"{dataset.vocab_size:,} ids. Find all problems with: tokenmill verify {dataset.path}"
        )


def _choose(
    dataset: Dataset, tokens: Tokens, document: int | None, token: int | None, length: int
) -> tuple[Document | None, int, int]:
    """Return the document (None without a document table) and the range of tokens to show."""
    documents, split = tokens.documents, tokens.split
    if documents is None:
        if document is not None:
            raise UsageError(f"{dataset.path} has no document table. Pass `token` instead.")
        place = _resolve(token or 0, len(tokens), "token", split)
        return None, place, min(place + length, len(tokens))
    if token is not None:
        place = _resolve(token, len(tokens), "token", split)
        found = documents.at(place)
        start = max(found.start, place - length // 2)
    else:
        found = documents[_resolve(document or 0, len(documents), "document", split)]
        start = found.start
    return found, start, min(start + length, found.start + found.length)


def _resolve(index: int, length: int, what: str, split: str) -> int:
    place = index + length if index < 0 else index
    if not 0 <= place < length:
        raise UsageError(
            f"split {split!r} has no {what} {index}: it has {length:,} {what}s, numbered 0 to "
            f"{length - 1}."
        )
    return place
