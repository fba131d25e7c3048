"""ArrayRecord files of tokens, written by their own package."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from document_checks import DOCUMENTS, check_documents

import tokenmill
from tokenmill.dataset.verify import examine
from tokenmill.errors import DatasetError
from tokenmill.formats.array_record import ArrayRecord
from tokenmill.formats.base import OpenRequest

module = pytest.importorskip("array_record.python.array_record_module")


def write(path, documents, dtype="<u2"):
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for document in documents:
        writer.write(np.asarray(document, dtype).tobytes())
    writer.close()


def test_records_are_documents(tmp_path):
    more = [[number] * (number % 5 + 1) for number in range(200)]
    write(tmp_path / "web-0.array_record", DOCUMENTS)
    write(tmp_path / "web-1.array_record", more)
    write(tmp_path / "web-val-0.array_record", [[1], [2, 3]])
    dataset = tokenmill.open(tmp_path, dtype="uint16")
    assert (dataset.format, dataset.splits) == ("array_record", ("train", "val"))
    check_documents(dataset["train"], [*DOCUMENTS, *more])
    request = OpenRequest(path=tmp_path, dtype=np.dtype("uint16"))
    dataset = dataset.with_contents(ArrayRecord(shard_bytes=50).read(request))
    assert dataset["train"].shard_count > 10
    check_documents(dataset["train"], [*DOCUMENTS, *more])
    check_documents(pickle.loads(pickle.dumps(dataset["val"])), [[1], [2, 3]])
    assert examine(tmp_path, dtype="uint16").problems == []


def test_records_of_one_length_are_cuts_through_a_stream(tmp_path):
    write(tmp_path / "x.array_record", [[1, 2], [3, 4]], "<i4")
    tokens = tokenmill.open(tmp_path / "x.array_record", dtype="int32", eot_id=3)["train"]
    assert tokens[:].tolist() == [1, 2, 3, 4]
    assert tokens.documents is None


def test_records_that_are_not_tokens_are_refused(tmp_path):
    path = tmp_path / "x.array_record"
    write(path, [[1, 2, 3]])
    with pytest.raises(DatasetError, match="does not store the dtype"):
        tokenmill.open(path)
    with pytest.raises(DatasetError, match="6 bytes in record 0"):
        tokenmill.open(path, dtype="uint32")
    tokens = tokenmill.open(path, dtype="uint16")["train"]
    write(path, [[1]])
    with pytest.raises(DatasetError, match="changed since"):
        tokens[:]
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DatasetError, match="cannot be read"):
        tokenmill.open(path, dtype="uint16")
