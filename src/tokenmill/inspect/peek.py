"""Show some of a dataset's tokens as text, with where they came from.

What is shown is always of one document, so that the origin told is that of every token shown. It
costs opening two or three files, wherever in the dataset the document is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenmill.errors import DatasetError, UsageError
from tokenmill.store.dataset import Dataset
from tokenmill.store.documents import Document

__all__ = ["Peek", "peek"]


@dataclass(frozen=True, kw_only=True)
class Peek:
    """A view on one document. `start` and `ids` are what is shown, `start` counted in the split;
    `pieces` is the text of each id by itself (U+FFFD where an id is a part of a character)."""

    document: Document
    documents: int
    shard: str
    shard_token: int
    start: int
    ids: tuple[int, ...]
    text: str
    pieces: tuple[str, ...]

    @property
    def end(self) -> int:
        """The token of the split after the last one shown."""
        return self.start + len(self.ids)


def peek(
    dataset: Dataset,
    *,
    split: str = "train",
    document: int | None = None,
    token: int | None = None,
    length: int = 400,
) -> Peek:
    """At most `length` tokens of a document, or around a token of the split within its document.

    Documents and tokens count from 0, negative ones from the end; without either, the first
    document is shown. `shard` and `shard_token` are where the first token shown is stored.
    """
    if document is not None and token is not None:
        raise UsageError("give a document or a token to look at, not both.")
    if length < 1:
        raise UsageError(f"the number of tokens to show is {length}; it must be 1 or more.")
    tokens = dataset[split]
    if not tokens.documents:
        raise DatasetError(f"split {split!r} of {dataset.path} has no documents.")
    if token is not None:
        place = _count(token, len(tokens), "token", split)
        found = tokens.documents.at(place)
        start = max(found.start, place - length // 2)
    else:
        number = _count(document or 0, len(tokens.documents), "document", split)
        found = tokens.documents[number]
        start = found.start
    ids = tokens[start : min(start + length, found.start + found.length)]
    shard, shard_token = tokens.locate(start)
    path = tokens.shard_name(shard)
    if len(ids) and int(ids.max()) >= dataset.manifest.vocab_size:
        raise DatasetError(
            f"{path} or a shard after it holds the id {ids.max()}, and the vocabulary has "
            f"{dataset.manifest.vocab_size:,}. See what else is wrong: "
            f"tokenmill verify {dataset.path}"
        )
    decode = dataset.tokenizer.decode
    by_id = {int(one): decode(np.array([one])) for one in np.unique(ids)}
    return Peek(
        document=found,
        documents=len(tokens.documents),
        shard=path,
        shard_token=shard_token,
        start=start,
        ids=tuple(ids.tolist()),
        text=decode(ids),
        pieces=tuple(by_id[one] for one in ids.tolist()),
    )


def _count(index: int, length: int, what: str, split: str) -> int:
    place = index + length if index < 0 else index
    if not 0 <= place < length:
        raise UsageError(
            f"split {split!r} has {length:,} {what}s, numbered 0 to {length - 1}; "
            f"there is no {what} {index}."
        )
    return place
