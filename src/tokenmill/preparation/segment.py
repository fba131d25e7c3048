"""Segments and other bundles: the files that the tasks of `prepare` write and later stages read.

A bundle is a set of files, `NAME.tokens`, `NAME.docs`, …, and a receipt, `NAME.json`. The receipt is
written last, so a bundle without a receipt is unfinished. The files are not flushed to the disk one by
one, because that would take longer than making them. Instead, the receipt holds checksums of the files
and of itself, and a resumed run checks them. A bundle damaged by a crash is made again.

A segment is the bundle that a task makes from a part of the input. It has the tokens, one `RECORD`
per document, the keys (hashes) of documents, the rejected records, the kept fields, examples of the
documents that judges dropped, and the text of documents that begin or end in another part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.preparation.engine import Worker
from tokenmill.preparation.key_files import KeyLayout, damaged, mark_file_size
from tokenmill.storage.files import AtomicFile, hash_file, write_file
from tokenmill.storage.reading import DamagedFileError, check_size, measure_file, open_inside
from tokenmill.storage.receipts import encode_receipt, read_receipt
from tokenmill.store.tables import Count

RECORD = np.dtype(
    [
        ("key", "<u8", (2,)),
        ("length", "<u8"),  # tokens, including the end-of-text token
        ("source", "<u4"),
        ("line", "<u4"),  # of the first replaced byte, 1 at the start of the range; 0: unknown
        ("offset", "<u8"),
        ("raw", "<u8"),  # bytes as they were read
        ("text", "<u8"),  # bytes after cleaning
        ("characters", "<u8"),
        ("flags", "<u4"),
        ("replaced", "<u4"),  # bytes that were not UTF-8
    ]
)
# Flags of a record, in this order: the document begins in an earlier part; it ends in a later part;
# it is dropped because of invalid UTF-8; its invalid UTF-8 was repaired; it is not in the sample. The bits
# from `REASON` on are the number of the reason for which a judge drops the document (`judges.py`), or 0.
CONTINUES, UNFINISHED, BAD_TEXT, REPAIRED, UNSAMPLED = 1, 2, 4, 8, 16
REASON = 1 << 8

Records = npt.NDArray[np.void]  # of RECORD


Receipt = dict[str, Any]
_KEY_BYTES = 16
_Skipped = list[tuple[Count, str]]  # bad files: the number of the source, and its fault


class Fragment(NamedTuple):
    """The record of a fragment: the piece that one part has of a document that spans parts."""

    source: Count
    offset: Count
    flags: Count
    length: Count
    raw: Count
    text: Count
    characters: Count
    replaced: Count
    line: Count

    @classmethod
    def of(cls, record: Any) -> Fragment:
        """Make a fragment from a record, whose dtype is `RECORD`."""
        return cls(*(int(record[name]) for name in cls._fields))


class _ScanFacts(TypedDict):
    lines: Count
    skipped: _Skipped


class _SegmentFacts(TypedDict):
    tokens: Count
    records: Count
    keys: Count  # one for each record with `has_key`
    fragments: list[Fragment]  # of the first record, the last record, or both
    documents_in: Count
    bytes_in: Count
    dropped: dict[str, tuple[Count, Count]]  # documents and bytes by reason
    repeated_lines: Count
    counts: NotRequired[dict[str, Count]]  # what masks and judges count
    lines: list[Count]  # line ends of each range that was read
    skipped: _Skipped


class _KeyFacts(TypedDict):
    keys: Count


class _MarkFacts(TypedDict):
    keys: Count
    runs: Count
    repeats: Count
    spanning: list[tuple[Count, Count]]  # the first part of a spanning document, and its mark


class _SetFacts(TypedDict):
    documents: Count


class _BandFacts(TypedDict):
    keys: Count
    documents: Count


class _PairFacts(TypedDict):
    pairs: Count


class _EdgeFacts(TypedDict):
    edges: Count
    fresh: Count  # found in this round


class _RemovalFacts(TypedDict):
    documents: Count
    starts: list[
        Count
    ]  # where the removed documents of each part begin, and where the last ones end
    spanning: list[Count]  # the first part of each removed document that spans parts


class _FateFacts(TypedDict):
    records: Count
    tokens: list[Count]  # for each split
    kept: Count
    kept_bytes: Count
    text: Count
    characters: Count
    repaired: Count
    dropped: dict[str, tuple[Count, Count]]  # documents and bytes by reason
    # An entry for the first source, the last source, and each source with repairs: the source's
    # number, the offset of its first repaired document, how many bytes were replaced, and its size.
    sources: list[tuple[Count, Count, Count, Count]]


class ScanReceipt(TypedDict):
    """The receipt of the keys of a part's lines: size and checksum of the file, and counts."""

    name: str
    files: dict[Literal["lines"], tuple[Count, str]]
    facts: _ScanFacts


class SegmentReceipt(TypedDict):
    """The receipt of a segment: size and checksum of each file, and facts about the documents."""

    name: str
    files: dict[
        Literal[
            "tokens",
            "docs",
            "keys",
            "rejected",
            "text",
            "fields",
            "examples",
            "contaminated",
            "shingles",
            "sets",
        ],
        tuple[Count, str],
    ]
    facts: _SegmentFacts


class KeyReceipt(TypedDict):
    """The receipt of the keys of a segment's documents, if they are not in the segment."""

    name: str
    files: dict[Literal["keys"], tuple[Count, str]]
    facts: _KeyFacts


class MarkReceipt(TypedDict):
    """The receipt of a mark file, which has a mark for each key of a partition."""

    name: str
    files: dict[Literal["marks"], tuple[Count, str]]
    facts: _MarkFacts


class SetReceipt(TypedDict):
    """The receipt of the shingle sets of some documents that span parts."""

    name: str
    files: dict[Literal["shingles", "sets"], tuple[Count, str]]
    facts: _SetFacts


class BandReceipt(TypedDict):
    """The receipt of the band hashes of the documents of some parts."""

    name: str
    files: dict[Literal["bands"], tuple[Count, str]]
    facts: _BandFacts


class PairReceipt(TypedDict):
    """The receipt of pairs of documents that may be similar."""

    name: str
    files: dict[Literal["pairs"], tuple[Count, str]]
    facts: _PairFacts


class EdgeReceipt(TypedDict):
    """The receipt of verified pairs of similar documents."""

    name: str
    files: dict[Literal["edges"], tuple[Count, str]]
    facts: _EdgeFacts


class RemovalReceipt(TypedDict):
    """The receipt of the near duplicates to remove."""

    name: str
    files: dict[Literal["gone", "removed"], tuple[Count, str]]
    facts: _RemovalFacts


class FateReceipt(TypedDict):
    """The receipt of a segment's fates: the split of each document, or that it is dropped."""

    name: str
    files: dict[Literal["fates", "rejected", "repaired", "excluded", "removed"], tuple[Count, str]]
    facts: _FateFacts


_READ_BYTES = 4 << 20
SET_BYTES, EDGE_BYTES = 16, 24  # of an entry in the files `sets`, and `edges` or `removed`
# The files whose entries have a fixed size, with their count among the facts.
_COUNTED = {
    SetReceipt: ("sets", "documents", SET_BYTES),
    EdgeReceipt: ("edges", "edges", EDGE_BYTES),
}
_KEYED = {BandReceipt: ("bands", "keys"), PairReceipt: ("pairs", "pairs")}


class Bundle:
    """Writes a bundle: some files, and a receipt that lists them.

    If the `with` block ends without `finish`, the files are removed.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._files: dict[str, AtomicFile] = {}

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.__exit__()

    def _path(self, file: str) -> Path:
        return self._folder / f"{self._name}.{file}"

    def write(self, file: str, data: Any) -> None:
        """Append to one of the bundle's files."""
        if file not in self._files:
            self._files[file] = AtomicFile(self._path(file), durable=False)
        self._files[file].write(data)

    def cut_back(self, file: str, size: int) -> None:
        """Remove the last `size` bytes of a file."""
        self._files[file].cut_back(size)

    def finish(self, facts: dict[str, Any]) -> Receipt:
        """Give the files their final names, then write and return the receipt."""
        written = {name: [file.size, file.finish()] for name, file in self._files.items()}
        receipt = {"name": self._name, "files": written, "facts": facts}
        write_file(self._path("json"), encode_receipt(receipt), durable=False)
        return receipt


def find_bundle(folder: Path, name: str, kind: type[Any], layout: KeyLayout) -> Receipt | None:
    """Return the receipt of a bundle (set of files), or None if the receipt is absent or damaged.

    `kind` is the type of the receipt. The bundle's other files are not read; see `CheckBundle`.
    """
    receipt: Receipt | None = read_receipt(folder / f"{name}.json", kind)
    if receipt is None or receipt["name"] != name:
        return None
    facts, sizes = receipt["facts"], {file: size for file, (size, _) in receipt["files"].items()}
    # These counts decide how much memory is allocated, so they must fit the sizes of the files.
    if kind is ScanReceipt:
        is_right = sizes == {"lines": layout.size(facts["lines"])}
    elif kind is KeyReceipt:
        is_right = sizes == {"keys": layout.size(facts["keys"])}
    elif kind is MarkReceipt:
        is_right = sizes == {"marks": mark_file_size(facts["runs"], facts["keys"])}
    elif kind in _COUNTED:
        file, fact, entry = _COUNTED[kind]
        is_right = sizes.get(file) == entry * facts[fact]
    elif kind in _KEYED:
        file, fact = _KEYED[kind]
        is_right = sizes.get(file, -1) >= _KEY_BYTES * facts[fact]
    elif kind is RemovalReceipt:
        starts = facts["starts"]
        is_right = (
            sizes.get("removed") == EDGE_BYTES * starts[-1]
            and sizes.get("gone", 0) == -(-facts["documents"] // 8)
            and sorted(starts) == starts
        )
    elif kind is FateReceipt:
        is_right = sizes.get("fates") == facts["records"] and len(facts["tokens"]) == 2
    else:
        is_right = (
            "tokens" in sizes
            and sizes.get("docs") == facts["records"] * RECORD.itemsize
            and sizes.get("keys", 0) == layout.size(facts["keys"])
            and sizes.get("sets", SET_BYTES * facts["keys"]) == SET_BYTES * facts["keys"]
        )
    return receipt if is_right else None


def fingerprint(receipts: Iterable[Receipt]) -> str:
    """Return a hash of all names and checksums in some receipts."""
    digest = xxhash.xxh3_128()
    for receipt in receipts:
        checksums = sorted((file, checksum) for file, (_, checksum) in receipt["files"].items())
        digest.update(f"{receipt['name']} {checksums}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class CheckBundle:
    """A task: check the files that a receipt lists against their sizes and checksums."""

    folder: Path
    receipt: Receipt

    def run(self, worker: Worker) -> bool:  # noqa: ARG002  the interface of tasks
        """Return whether all files that the receipt lists are intact."""
        try:
            for file, (size, digest) in self.receipt["files"].items():
                path = f"{self.receipt['name']}.{file}"
                with open_inside(self.folder, path) as opened:
                    check_size(opened, path, size)
                    if hash_file(opened) != digest:
                        return False
        except (DamagedFileError, OSError):
            return False
        return True


def has_key(records: Records) -> npt.NDArray[np.bool_]:
    """Return which records have a key in the segment's key file.

    A document has none if it spans parts, if it is dropped because of invalid UTF-8 or by a judge, or if
    it is not in the sample.
    """
    flags = records["flags"]
    dropped = CONTINUES | UNFINISHED | BAD_TEXT | UNSAMPLED
    without: npt.NDArray[np.bool_] = (flags & dropped) == 0
    return without & (flags < REASON)


def read_document_records(segment: Path, count: int) -> Iterator[Records]:
    """Yield the records of a segment's documents, `count` at a time."""
    with segment.with_suffix(".docs").open("rb") as file:
        while data := file.read(count * RECORD.itemsize):
            yield np.frombuffer(data, RECORD)


def read_fragment(segment: Path, fragment: Fragment) -> Iterator[bytes]:
    """Yield the text of a fragment of a document, block by block.

    The file has at most two fragments: first the one of a document that began in an earlier part,
    then the one of a document that begins in this part and ends in a later one.
    """
    path = segment.with_suffix(".text")
    length = fragment.text
    with path.open("rb") as file:
        if not fragment.flags & CONTINUES:
            file.seek(max(0, measure_file(file) - length))
        while length > 0:
            block = file.read(min(_READ_BYTES, length))
            if not block:
                raise damaged(path)
            length -= len(block)
            yield block
