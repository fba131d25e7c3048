"""Check every byte of a prepared split, and find documents that are in two splits.

Guarantees: every file matches its checksum, all ids are in the vocabulary, and documents cover all
tokens without overlap and have the end-of-text id in the right place. No document is in two splits:
a validation text that is also trained on would make the validation loss wrong. Texts are compared
by their 128-bit keys.

Costs: every file is read from start to end, in chunks. Compressed shards are read a second time to
decompress them, and document tables to find where the end-of-text ids must be. Memory is a few
chunks for shards of any size.

Splits are compared in two steps. First, up to `Limits.keys` keys of a smaller split are loaded into
memory. Then the document tables of the larger splits are searched for these keys, chunk by chunk.
Usually all keys of the validation split fit in memory, so each table is read only once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.dataset.problems import Problems
from tokenmill.formats.prepared import read_contents
from tokenmill.storage.reading import DamagedFileError, check_size, open_inside
from tokenmill.store.documents import read_table_header
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest, Split
from tokenmill.store.tables import Shard

OVERLAP_CURE = (
    "Run the same tokenmill prepare command with --restart: it puts equal texts in one split."
)

Integers = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]  # row 0: the upper halves of the keys, row 1: the lower halves


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on memory use."""

    chunk: int = 4 << 20  # bytes
    keys: int = 2 << 20  # keys of 16 bytes: 32 MB, and 64 MB more while they are sorted

    @property
    def records(self) -> int:
        """How many records of a document table fit in a chunk."""
        return self.chunk // DOCUMENT_DTYPE.itemsize


def check_split(
    folder: Path,
    manifest: Manifest,
    name: str,
    problems: Problems,
    advance: Callable[[int], None],
    limits: Limits,
) -> None:
    """Check a split, and add what is wrong to `problems`. Report bytes read to `advance`."""
    _SplitCheck(folder, manifest, name, problems, advance, limits).run()


class _SplitCheck:
    """Checks the shards of a split, one after the other."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        name: str,
        problems: Problems,
        advance: Callable[[int], None],
        limits: Limits,
    ) -> None:
        self.folder, self.manifest, self.limits = folder, manifest, limits
        self.problems, self.advance = problems, advance
        self.split = manifest.splits[name]
        self.shards = read_contents(folder, manifest).splits[name]
        self.total = self.split.tokens
        self.dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self.buffer = np.empty(limits.chunk, np.uint8)
        # Where the next document must start; None after a damaged table.
        self.due: int | None = 0
        # The last token that was read; None at the start of the split or after an unreadable shard.
        self.previous: int | None = None
        self.previous_path = ""

    def run(self) -> None:
        start = documents = 0
        for number, shard in enumerate(self.split.shards):
            is_tiled = False
            try:
                is_tiled = self.check_table(shard, start, documents)
            except DamagedFileError as error:
                self.problems.add_error(error)
                self.due = None
            try:
                self.check_tokens(number, is_tiled)
            except DamagedFileError as error:
                self.problems.add_error(error)
                self.previous = None
            start += shard.tokens
            documents += shard.documents
        if not self.split.shards:
            return
        last = self.split.shards[-1]
        if self.due is not None and self.due != self.total:
            self.problems.add(
                last.documents_path,
                f"ends its last document at token {self.due:,}, but the split has {self.total:,} "
                "tokens",
            )
        eot = self.manifest.eot_id
        if self.manifest.eot == "after" and self.previous not in (None, eot):
            self.problems.add(
                last.path, f"ends with the token {self.previous}, not with the end-of-text id {eot}"
            )

    def check_table(self, shard: Shard, start: int, number: int) -> bool:
        """Check a document table; return whether it is sound, without gaps between documents.

        `start` is the position of the shard's first token in the split. `number` is the number of
        the shard's first document in the split.
        """
        path, is_tiled = shard.documents_path, True
        digest = xxhash.xxh3_128()
        buffer = self.buffer[: self.limits.records * DOCUMENT_DTYPE.itemsize]
        with open_inside(self.folder, path) as file:
            offset = read_table_header(file, path, shard.documents)
            file.seek(0)
            digest.update(file.read(offset))
            while len(chunk := _read(file, path, buffer)):
                digest.update(chunk.data)
                records = _view(chunk, DOCUMENT_DTYPE)
                is_tiled &= self.check_records(records, shard, start, number)
                number += len(records)
                self.advance(len(chunk))
        if not self.matches(path, digest.hexdigest(), shard.documents_xxh3_128):
            self.due = None  # so that the next table is not reported for this damage
            return False
        return is_tiled

    def check_records(
        self, records: npt.NDArray[Any], shard: Shard, start: int, number: int
    ) -> bool:
        def report(bad: Any, what: str) -> bool:
            if not bad.any():
                return False
            count, first = np.count_nonzero(bad), number + int(bad.argmax())
            self.problems.add(
                shard.documents_path,
                f"has {count:,} documents {what}; the first is document {first:,}",
            )
            return True

        report(~records["key"].any(axis=1), "without a key")
        sources = len(self.manifest.sources)
        report(
            np.greater_equal(records["source"], sources),
            f"whose source is not one of the {sources:,} sources",
        )
        # Checked in this order, the unsigned sums below cannot overflow.
        firsts, lengths = records["first"], records["length"]
        if report(firsts >= shard.tokens, "that do not start in the shard"):
            self.due = None
            return False
        starts = firsts + np.uint64(start)
        if report(
            (lengths == 0) | (lengths > np.uint64(self.total) - starts),
            "that are empty or longer than the split",
        ):
            self.due = None
            return False
        ends = starts + lengths
        due = np.roll(ends, 1)
        due[0] = starts[0] if self.due is None else self.due
        self.due = int(ends[-1])
        return not report(starts != due, "that do not start where the previous document ends")

    def check_tokens(self, number: int, is_tiled: bool) -> None:
        """Check the checksum and ids of a shard and, if `is_tiled`, its end-of-text ids.

        `is_tiled` is the result of `check_table`: whether the document table is sound.
        """
        manifest, shard = self.manifest, self.split.shards[number]
        path = shard.path
        digest = xxhash.xxh3_128()
        is_bounded = manifest.vocab_size <= int(np.iinfo(self.dtype).max)
        with open_inside(self.folder, path) as file:
            check_size(file, path, shard.measure_file(self.dtype.itemsize))
            starts = None
            if is_tiled and manifest.eot != "none":
                table = open_inside(self.folder, shard.documents_path)
                starts = _DocumentStarts(table, shard, self.limits.records)
            try:
                done = 0
                for chunk in self.read_tokens(number, file):
                    digest.update(chunk.data)
                    ids = _view(chunk, self.dtype)
                    if is_bounded and len(ids) and int(ids.max()) >= manifest.vocab_size:
                        place = int((ids >= manifest.vocab_size).argmax())
                        self.problems.add(
                            path,
                            f"has the id {ids[place]} at token {done + place:,}, but the "
                            f"vocabulary has {manifest.vocab_size:,} ids",
                        )
                    if starts and len(ids):
                        self.check_end_of_text(path, ids, done, starts.before(done + len(ids)))
                    done += len(ids)
                    if len(ids):
                        self.previous, self.previous_path = int(ids[-1]), path
                    self.advance(len(chunk))
            finally:
                if starts:
                    starts.file.close()
        self.matches(path, digest.hexdigest(), shard.xxh3_128)

    def read_tokens(self, number: int, file: BinaryIO) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the uncompressed bytes of a shard's ids, in chunks."""
        shard = self.split.shards[number]
        if shard.compressed is None:
            while len(chunk := _read(file, shard.path, self.buffer)):
                yield chunk
            return
        digest = xxhash.xxh3_128()
        while len(chunk := _read(file, shard.path, self.buffer)):
            digest.update(chunk.data)
        self.matches(shard.path, digest.hexdigest(), shard.compressed.xxh3_128)
        step = self.limits.chunk // self.dtype.itemsize
        for first in range(0, shard.tokens, step):
            ids = self.shards.read(number, first, min(first + step, shard.tokens))
            yield ids.view(np.uint8)

    def check_end_of_text(
        self, path: str, ids: npt.NDArray[Any], done: int, starts: Integers
    ) -> None:
        """Check that the end-of-text id is where the manifest says: before or after documents.

        "before" means that the first token of each document must be the end-of-text id. "after"
        means that the last token must be.
        """
        eot = self.manifest.eot_id
        places = starts - done
        if self.manifest.eot == "after":
            if len(places) and places[0] == 0:
                if self.previous not in (None, eot):
                    self.problems.add(
                        self.previous_path,
                        f"has the token {self.previous} where a document ends, "
                        f"not the end-of-text id {eot}",
                    )
                places = places[1:]
            places = places - 1
        wrong = ids[places] != eot
        if wrong.any():
            place = done + int(places[wrong.argmax()])
            side = "end" if self.manifest.eot == "after" else "start"
            self.problems.add(
                path,
                f"has {np.count_nonzero(wrong):,} documents that do not {side} with the "
                f"end-of-text id {eot}; the first wrong token is {place:,}",
            )

    def matches(self, path: str, found: str, expected: str) -> bool:
        if found != expected:
            self.problems.add(
                path, f"does not match its checksum: it has {found}, the manifest says {expected!r}"
            )
        return found == expected


class _DocumentStarts:
    """Reads where the documents of a shard start, in order, block by block."""

    def __init__(self, file: BinaryIO, shard: Shard, records: int) -> None:
        self.file = file
        self.path = shard.documents_path
        self.buffer = np.empty(records * DOCUMENT_DTYPE.itemsize, np.uint8)
        self.file.seek(read_table_header(file, shard.documents_path, shard.documents))
        self.block = np.empty(0, np.int64)

    def before(self, end: int) -> Integers:
        """Return where documents start before token `end` of the shard.

        Starts that earlier calls returned are not returned again.
        """
        found = []
        while True:
            count = int(np.searchsorted(self.block, end))
            found.append(self.block[:count])
            self.block = self.block[count:]
            if len(self.block) or not self.refill():
                return np.concatenate(found)

    def refill(self) -> bool:
        records = _view(_read(self.file, self.path, self.buffer), DOCUMENT_DTYPE)
        self.block = records["first"].astype(np.int64)
        return len(self.block) > 0


def _read(file: BinaryIO, path: str, buffer: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Read the next bytes of a file into `buffer`. The result is empty at the end of the file."""
    try:
        return buffer[: file.readinto(buffer)]  # type: ignore[attr-defined]
    except OSError as error:  # a failing disk
        raise DamagedFileError(path, f"cannot be read: {error.strerror or error}") from error


def _view(chunk: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """View a chunk as ids or records. An incomplete id or record at its end is omitted."""
    return chunk[: len(chunk) - len(chunk) % dtype.itemsize].view(dtype)


def check_overlap(folder: Path, manifest: Manifest, problems: Problems, limits: Limits) -> None:
    """Report each document table with documents that are also in a split with fewer documents."""
    by_size = sorted(manifest.splits, key=lambda name: manifest.splits[name].documents)
    for place, small in enumerate(by_size):
        larger = by_size[place + 1 :]
        if not larger:
            return
        for held in _read_in_batches(folder, manifest.splits[small], limits):
            ordered = held[:, np.lexsort((held[1], held[0]))]
            for large in larger:
                _compare(folder, manifest.splits[large], ordered, small, problems, limits)


def _compare(
    folder: Path, split: Split, held: Keys, small: str, problems: Problems, limits: Limits
) -> None:
    file, count, example = "", 0, ""

    def report() -> None:
        if count:
            problems.add(
                file,
                f"has {count:,} documents that are also in split {small!r}, such as the one "
                f"with the key {example}",
                OVERLAP_CURE,
            )

    for path, keys in _read_keys(folder, split, limits):
        if path != file:
            report()
            file, count = path, 0
        found = keys[:, find_keys(held, keys)]
        if found.size and not count:
            example = f"{found[0, 0]:016x}{found[1, 0]:016x}"
        count += found.shape[1]
    report()


def _read_in_batches(folder: Path, split: Split, limits: Limits) -> Iterator[Keys]:
    batch: list[Keys] = []
    size = 0
    for _, keys in _read_keys(folder, split, limits):
        batch.append(keys)
        size += keys.shape[1]
        if size + limits.records > limits.keys:
            yield np.concatenate(batch, axis=1)
            batch, size = [], 0
    if batch:
        yield np.concatenate(batch, axis=1)


def _read_keys(folder: Path, split: Split, limits: Limits) -> Iterator[tuple[str, Keys]]:
    """Yield blocks of a split's keys, with the names of their tables. Skip unreadable tables."""
    for shard in split.shards:
        try:
            with open_inside(folder, shard.documents_path) as file:
                file.seek(read_table_header(file, shard.documents_path, shard.documents))
                while data := file.read(limits.records * DOCUMENT_DTYPE.itemsize):
                    records: npt.NDArray[Any] = np.frombuffer(
                        data, DOCUMENT_DTYPE, len(data) // DOCUMENT_DTYPE.itemsize
                    )
                    yield shard.documents_path, np.ascontiguousarray(records["key"].T)
        except (DamagedFileError, OSError):
            continue


def find_keys(held: Keys, keys: Keys) -> npt.NDArray[np.bool_]:
    """Return a mask of the `keys` that are also in `held`. `held` must be sorted.

    >>> held = np.array([[1, 1, 2], [5, 7, 0]], np.uint64)
    >>> find_keys(held, np.array([[1, 1, 2, 3], [7, 6, 0, 0]], np.uint64)).tolist()
    [True, False, True, False]
    """
    result = np.zeros(keys.shape[1], np.bool_)
    start = np.searchsorted(held[0], keys[0])
    (maybe,) = np.nonzero(held[0, np.minimum(start, held.shape[1] - 1)] == keys[0])
    # NumPy cannot search for pairs. So a second binary search finds the lower halves among equal
    # upper halves. A scan would be too slow for a hostile dataset in which all upper halves are
    # equal.
    upper, lower, low = keys[0, maybe], keys[1, maybe], start[maybe]
    high = end = np.searchsorted(held[0], upper, side="right")
    while (unsure := low < high).any():
        middle = np.where(unsure, (low + high) // 2, 0)
        is_below = held[1, middle] < lower
        low = np.where(unsure & is_below, middle + 1, low)
        high = np.where(unsure & ~is_below, middle, high)
    result[maybe] = (low < end) & (held[1, np.minimum(low, held.shape[1] - 1)] == lower)
    return result
