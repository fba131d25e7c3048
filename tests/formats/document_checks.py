"""Shared by tests of formats with documents: a naive reader, and ways to damage files."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tokenmill
from tokenmill.errors import DatasetError

DOCUMENTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
IDS = list(range(1, 11))


def refused(path, match, **options):
    """The text of the error that opening and using a path raises."""
    with pytest.raises(DatasetError, match=match) as caught:
        use(tokenmill.open(path, **options)["train"])
    return str(caught.value)


def use(tokens):
    assert len(tokens[:]) == len(tokens)
    list(tokens.documents)


def check_documents(tokens, documents):
    """Compare with a naive reading of the documents: all numbers, all tokens, all rows."""
    ids = [one for document in documents for one in document]
    ends = np.cumsum([len(document) for document in documents]).tolist()
    starts = [end - len(document) for end, document in zip(ends, documents, strict=True)]
    assert tokens[:].tolist() == ids
    assert len(tokens.documents) == len(documents)
    found_documents = [(one.number, one.start, one.length) for one in tokens.documents]
    assert found_documents == list(
        zip(range(len(starts)), starts, map(len, documents), strict=True)
    )
    for token in range(len(ids)):
        holder = next(n for n, end in enumerate(ends) if token < end)
        assert tokens.documents.at(token).number == holder
    begins = {start for start, end in zip(starts, ends, strict=True) if start < end}
    for length in {1, 2, len(ids) // 2 + 1, len(ids)}:
        rows = np.arange(len(ids) - length + 1)
        expected = [(r, p) for r in rows for p in range(length) if r + p in begins]
        found = tokens.find_document_starts(rows[::-1].copy(), length)
        pairs = (divmod(edge, length) for edge in found.tolist())
        assert sorted((len(rows) - 1 - r, p) for r, p in pairs) == expected
        assert (np.diff(found) > 0).all()


def edit(files, name="index.json", **changes):
    """The files with values changed in the first entry of an index, or in its config."""
    index = json.loads(files[name])
    for key, value in changes.items():
        place = index["config"] if key in index.get("config", {}) else index
        for entry in index.get("chunks", index.get("shards", []))[:1]:
            place = entry if key in entry else place
        place[key] = value
    return {**files, name: json.dumps(index).encode()}


def overwrite(files, name, place, data):
    content = bytearray(files[name])
    content[place : place + len(data)] = data
    return {**files, name: bytes(content)}
