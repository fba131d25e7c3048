"""An index of all documents' keys: sorted, on disk, with checksums of its blocks.

The file `index.bin` has an entry for each document: the first 64 bits of its key, and its number in
all splits joined end to end. Entries are sorted by both and divided into blocks. After the entries
comes the directory: the first key and the checksum of each block. The receipt `index.json` names the
document tables that the index was made from, and has the checksum of the directory. A lookup reads
the receipt, the directory (4 bytes for 1,000 documents) and one or two blocks, and checks their
checksums. So damage is found before it can lead to a wrong answer.

Making the index reads all document tables once. Entries that do not fit in memory are first divided
among files by the leading bits of their keys. The index takes 16 bytes of disk for each document, and
twice that while it is made. Making it takes about 150 MB of memory for any number of documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.progress import Watcher
from tokenmill.storage.files import AtomicFile, temporary_folder, write_file
from tokenmill.storage.reading import DamagedFileError, check_size, open_inside
from tokenmill.storage.receipts import encode_receipt, read_receipt
from tokenmill.store.documents import Documents

FILE_NAME, RECEIPT_NAME = "index.bin", "index.json"
ENTRY = np.dtype([("key", "<u8"), ("number", "<u8")])
BLOCK = 4096  # entries of a block

_DIRECTORY = np.dtype([("first", "<u8"), ("checksum", "<u8")])
_FORMAT = 1
_SORTED = 1 << 21  # entries sorted in memory at once
_BITS = 8  # bits of the keys that choose a file
_READ = 1 << 18  # entries of a file read at once
_CURE = "The index is made again when it is next needed."

Entries = npt.NDArray[Any]  # of ENTRY


class KeyIndexReceipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an index was made from, and the checksum of its directory."""

    format: int
    tables: str  # see `hash_tables`
    documents: int
    directory: str


def hash_tables(tables: Sequence[Documents]) -> str:
    """Return a hash of the checksums of all document tables, in order."""
    digest = xxhash.xxh3_128()
    for table in tables:
        digest.update(f"{len(table)}\n".encode())
        for checksum in table.checksums:
            digest.update(f"{checksum}\n".encode())
    return digest.hexdigest()


class KeyIndex:
    """A finished index. Raises DamagedFileError wherever the file does not match its checksums."""

    def __init__(self, folder: Path, receipt: KeyIndexReceipt) -> None:
        self._folder, self._count = folder, receipt.documents
        blocks = -(-self._count // BLOCK)
        with open_inside(folder, FILE_NAME) as file:
            end = self._count * ENTRY.itemsize
            check_size(file, FILE_NAME, end + blocks * _DIRECTORY.itemsize)
            data = _read_at(file, end, blocks * _DIRECTORY.itemsize)
        if xxhash.xxh3_128_hexdigest(data) != receipt.directory:
            raise DamagedFileError(FILE_NAME, "has a damaged table of contents", _CURE)
        self._directory = np.frombuffer(data, _DIRECTORY)

    @classmethod
    def find(cls, folder: Path, tables: Sequence[Documents]) -> KeyIndex | None:
        """Return the index in a folder; None if there is none for these tables, or it is damaged."""
        receipt = read_receipt(folder / RECEIPT_NAME, KeyIndexReceipt)
        if (
            receipt is None
            or receipt.format != _FORMAT
            or receipt.documents != sum(map(len, tables))
            or receipt.tables != hash_tables(tables)
        ):
            return None
        try:
            return cls(folder, receipt)
        except DamagedFileError:
            return None

    def search(self, low: int, high: int) -> Iterator[Entries]:
        """Yield the entries with keys from `low` to `high`, in order, some at a time."""
        firsts = self._directory["first"]
        # Entries with an equal key may begin in the block before.
        first = max(0, int(firsts.searchsorted(np.uint64(low), "left")) - 1)
        last = int(firsts.searchsorted(np.uint64(high), "right"))
        with open_inside(self._folder, FILE_NAME) as file:
            for block in range(first, last):
                entries = self._read_block(file, block)
                start = int(entries["key"].searchsorted(np.uint64(low), "left"))
                stop = int(entries["key"].searchsorted(np.uint64(high), "right"))
                if start < stop:
                    yield entries[start:stop]

    def _read_block(self, file: BinaryIO, block: int) -> Entries:
        size = min(BLOCK, self._count - block * BLOCK) * ENTRY.itemsize
        data = _read_at(file, block * BLOCK * ENTRY.itemsize, size)
        if xxhash.xxh3_64_intdigest(data) != int(self._directory["checksum"][block]):
            raise DamagedFileError(FILE_NAME, f"is damaged in its block {block:,}", _CURE)
        return np.frombuffer(data, ENTRY)


def _read_at(file: BinaryIO, place: int, size: int) -> bytes:
    file.seek(place)
    data = file.read(size)
    if len(data) != size:
        raise DamagedFileError(FILE_NAME, "became shorter while it was being read", _CURE)
    return data


def make_index(folder: Path, tables: Sequence[Documents], watcher: Watcher) -> KeyIndex:
    """Write the index of all documents of some tables to a folder. The caller has locked the folder."""
    total = sum(map(len, tables))
    watcher.begin("reading keys", total * ENTRY.itemsize)
    with (
        temporary_folder(folder / "sorting") as spill,
        AtomicFile(folder / FILE_NAME) as file,
    ):
        writer = _Writer(file)
        _sort(_watched(_list_entries(tables), watcher), total, 64, spill, writer, watcher)
        directory = writer.finish()
        file.finish()
    receipt = KeyIndexReceipt(
        format=_FORMAT,
        tables=hash_tables(tables),
        documents=total,
        directory=xxhash.xxh3_128_hexdigest(directory),
    )
    write_file(folder / RECEIPT_NAME, encode_receipt(receipt))
    return KeyIndex(folder, receipt)


def _list_entries(tables: Sequence[Documents]) -> Iterator[Entries]:
    before = 0
    for table in tables:
        for number, records in table.read_records():
            entries = np.empty(len(records), ENTRY)
            entries["key"] = records["key"][:, 0]
            entries["number"] = np.arange(before + number, before + number + len(records))
            yield entries
        before += len(table)


def _watched(parts: Iterable[Entries], watcher: Watcher) -> Iterator[Entries]:
    for part in parts:
        yield part
        watcher.advance(part.nbytes)


def _sort(
    parts: Iterable[Entries], total: int, bits: int, spill: Path, writer: _Writer, watcher: Watcher
) -> None:
    """Sort all entries and pass them to the writer. `parts` has `total` entries, ordered by number.

    Their keys differ only in the last `bits` bits. Entries that do not fit in memory go through files
    in the folder `spill`.
    """
    if total <= _SORTED:
        entries = np.concatenate([np.empty(0, ENTRY), *parts])
        # The sort is stable, so entries with equal keys stay ordered by their numbers.
        writer.write(entries[np.argsort(entries["key"], kind="stable")])
        if bits < 64:
            watcher.advance(entries.nbytes)
        return
    if bits == 0:  # all keys are equal
        for part in _watched(parts, watcher):
            writer.write(part)
        return
    counts = _divide(parts, bits - _BITS, spill)
    if bits == 64:
        watcher.begin("sorting keys", total * ENTRY.itemsize)
    for number, count in enumerate(counts):
        path = spill / f"{bits:02}-{number:03}"
        if count:
            _sort(_read_entries(path), count, bits - _BITS, spill, writer, watcher)
        path.unlink()


def _divide(parts: Iterable[Entries], shift: int, spill: Path) -> list[int]:
    """Divide entries among files by 8 bits of their keys. Return the number of entries in each."""
    files = [(spill / f"{shift + _BITS:02}-{number:03}").open("wb") for number in range(1 << _BITS)]
    counts = np.zeros(len(files), np.int64)
    try:
        for entries in parts:
            chosen = (entries["key"] >> np.uint64(shift)).astype(np.uint8)
            ordered = entries[np.argsort(chosen, kind="stable")]  # bytes sort in linear time
            sizes = np.bincount(chosen, minlength=len(files))
            ends = np.cumsum(sizes)
            for number in np.flatnonzero(sizes).tolist():
                files[number].write(ordered[ends[number] - sizes[number] : ends[number]].data)
            counts += sizes
    finally:
        for file in files:
            file.close()
    found: list[int] = counts.tolist()
    return found


def _read_entries(path: Path) -> Iterator[Entries]:
    with path.open("rb") as file:
        while data := file.read(_READ * ENTRY.itemsize):
            yield np.frombuffer(data, ENTRY)


class _Writer:
    """Divides sorted entries into blocks and writes them; `finish` writes the directory."""

    def __init__(self, file: AtomicFile) -> None:
        self._file = file
        self._rest: Entries = np.empty(0, ENTRY)  # not written yet: less than a block
        self._directory = bytearray()

    def write(self, entries: Entries) -> None:
        """Add entries, and write the blocks that are complete."""
        joined = np.concatenate([self._rest, entries]) if len(self._rest) else entries
        whole = len(joined) - len(joined) % BLOCK
        self._write(joined[:whole])
        self._rest = joined[whole:].copy()

    def _write(self, entries: Entries) -> None:
        for start in range(0, len(entries), BLOCK):
            block = np.ascontiguousarray(entries[start : start + BLOCK])
            record = np.array([(block["key"][0], xxhash.xxh3_64_intdigest(block.data))], _DIRECTORY)
            self._directory += record.tobytes()
            self._file.write(block)

    def finish(self) -> bytes:
        """Write the last block and the directory. Returns the bytes of the directory."""
        self._write(self._rest)
        self._file.write(self._directory)
        return bytes(self._directory)
