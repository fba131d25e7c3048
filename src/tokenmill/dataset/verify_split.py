"""Check every byte of a split: checksums, ids, and the document tables against the tokens.

Every file is read once from its start to its end (a table twice where end-of-text tokens are
checked: the second time is for the places to look at), in chunks of `CHUNK` bytes that are hashed
and searched while they are in the processor's cache. Memory is a few chunks, whatever the shards.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.dataset.problems import Problems
from tokenmill.storage.reading import DamagedFileError, check_size, open_inside
from tokenmill.store.documents import read_table_header
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest
from tokenmill.store.tables import Shard

CHUNK = 4 << 20
RECORDS = CHUNK // DOCUMENT_DTYPE.itemsize


def check_split(
    folder: Path, manifest: Manifest, name: str, problems: Problems, advance: Callable[[int], None]
) -> None:
    """Add what is wrong with a split to `problems`; `advance` is told of bytes as they are read."""
    _Split(folder, manifest, name, problems, advance).check()


class _Split:
    """Goes through a split's shards in order and carries what spans them."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        name: str,
        problems: Problems,
        advance: Callable[[int], None],
    ) -> None:
        self.folder, self.manifest = folder, manifest
        self.problems, self.advance = problems, advance
        self.split = manifest.splits[name]
        self.total = self.split.tokens
        self.dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self.buffer = np.empty(CHUNK, np.uint8)
        # Where the next document must start; None after a table that could not be followed.
        self.due: int | None = 0
        # The token before the next one; None at the split's start or after an unreadable shard.
        self.previous: int | None = None
        self.previous_path = ""

    def check(self) -> None:
        start = number = 0
        for shard in self.split.shards:
            followed = False
            try:
                followed = self.check_table(shard, start, number)
            except DamagedFileError as error:
                self.problems.add_error(error)
                self.due = None
            try:
                self.check_tokens(shard, followed)
            except DamagedFileError as error:
                self.problems.add_error(error)
                self.previous = None
            start += shard.tokens
            number += shard.documents
        if not self.split.shards:
            return
        last = self.split.shards[-1]
        if self.due is not None and self.due != self.total:
            self.problems.add(
                last.documents_path,
                f"ends the documents at token {self.due:,} of the split's {self.total:,}",
            )
        eot = self.manifest.eot_id
        if self.manifest.eot == "after" and self.previous not in (None, eot):
            self.problems.add(
                last.path, f"ends with the token {self.previous}, not with the end of text, {eot}"
            )

    def check_table(self, shard: Shard, start: int, number: int) -> bool:
        """Whether the table is sound and its documents start each where the one before ends."""
        path, followed = shard.documents_path, True
        digest = xxhash.xxh3_128()
        with open_inside(self.folder, path) as file:
            offset = read_table_header(file, path, shard.documents)
            file.seek(0)
            digest.update(file.read(offset))
            while len(chunk := _read(file, path, self.buffer[: RECORDS * DOCUMENT_DTYPE.itemsize])):
                digest.update(chunk.data)
                records = _whole(chunk, DOCUMENT_DTYPE)
                followed &= self.check_records(records, shard, start, number)
                number += len(records)
                self.advance(len(chunk))
        if not self.matches(path, digest.hexdigest(), shard.documents_xxh3_128):
            self.due = (
                None  # what follows from a damaged table would be held against its neighbours
            )
            return False
        return followed

    def check_records(
        self, records: npt.NDArray[Any], shard: Shard, start: int, number: int
    ) -> bool:
        def report(bad: Any, what: str) -> bool:
            if not bad.any():
                return False
            count, first = np.count_nonzero(bad), number + int(bad.argmax())
            self.problems.add(
                shard.documents_path, f"has {count:,} documents, from document {first:,} on, {what}"
            )
            return True

        report(~records["key"].any(axis=1), "without a key")
        sources = len(self.manifest.sources)
        report(
            np.greater_equal(records["source"], sources),
            f"of a source that is not one of the {sources:,}",
        )
        # Unsigned and in this order, so that no sum here can overflow.
        firsts, lengths = records["first"], records["length"]
        if report(firsts >= shard.tokens, "that do not start in its shard"):
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
        return not report(starts != due, "that do not start where the one before ends")

    def check_tokens(self, shard: Shard, followed: bool) -> None:
        """Hash and search a shard's tokens; where `followed`, look at its documents' borders."""
        manifest, path = self.manifest, shard.path
        digest = xxhash.xxh3_128()
        bounded = manifest.vocab_size <= int(np.iinfo(self.dtype).max)
        with open_inside(self.folder, path) as file:
            check_size(file, path, shard.tokens * self.dtype.itemsize)
            borders = None
            if followed and manifest.eot != "none":
                borders = _Borders(open_inside(self.folder, shard.documents_path), shard)
            try:
                done = 0
                while len(chunk := _read(file, path, self.buffer)):
                    digest.update(chunk.data)
                    ids = _whole(chunk, self.dtype)
                    if bounded and len(ids) and int(ids.max()) >= manifest.vocab_size:
                        place = int((ids >= manifest.vocab_size).argmax())
                        self.problems.add(
                            path,
                            f"holds the id {ids[place]} at token {done + place:,}, and the "
                            f"vocabulary has {manifest.vocab_size:,}",
                        )
                    if borders and len(ids):
                        self.check_borders(path, ids, done, borders.below(done + len(ids)))
                    done += len(ids)
                    if len(ids):
                        self.previous, self.previous_path = int(ids[-1]), path
                    self.advance(len(chunk))
            finally:
                if borders:
                    borders.file.close()
        self.matches(path, digest.hexdigest(), shard.xxh3_128)

    def check_borders(
        self, path: str, ids: npt.NDArray[Any], done: int, starts: npt.NDArray[np.int64]
    ) -> None:
        """Look for the end of text on its side of the places where documents start."""
        eot = self.manifest.eot_id
        places = starts - done
        if self.manifest.eot == "after":
            if len(places) and places[0] == 0:
                if self.previous not in (None, eot):
                    self.problems.add(
                        self.previous_path,
                        f"has the token {self.previous} where a document ends, "
                        f"not the end of text, {eot}",
                    )
                places = places[1:]
            places = places - 1
        wrong = ids[places] != eot
        if wrong.any():
            place = done + int(places[wrong.argmax()])
            side = "end" if self.manifest.eot == "after" else "start"
            self.problems.add(
                path,
                f"has {np.count_nonzero(wrong):,} documents that do not {side} with the end of "
                f"text, {eot}, from token {place:,} on",
            )

    def matches(self, path: str, found: str, said: str) -> bool:
        if found != said:
            self.problems.add(
                path, f"does not match its checksum: it has {found}, the manifest says {said!r}"
            )
        return found == said


def _read(file: BinaryIO, path: str, buffer: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The next bytes of a file, in `buffer`; none at its end."""
    try:
        return buffer[: file.readinto(buffer)]  # type: ignore[attr-defined]
    except OSError as error:  # a disk that fails
        raise DamagedFileError(path, f"cannot be read: {error.strerror or error}") from error


def _whole(chunk: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A chunk as numbers or records; cut, if the file was while it was being read."""
    return chunk[: len(chunk) - len(chunk) % dtype.itemsize].view(dtype)


class _Borders:
    """The places in a shard where documents start, given out in order, a few at a time."""

    def __init__(self, file: BinaryIO, shard: Shard) -> None:
        self.file = file
        self.path = shard.documents_path
        self.buffer = np.empty(RECORDS * DOCUMENT_DTYPE.itemsize, np.uint8)
        self.file.seek(read_table_header(file, shard.documents_path, shard.documents))
        self.block = np.empty(0, np.int64)

    def below(self, end: int) -> npt.NDArray[np.int64]:
        """Those before `end` that were not given out yet."""
        pieces = []
        while True:
            cut = int(np.searchsorted(self.block, end))
            pieces.append(self.block[:cut])
            self.block = self.block[cut:]
            if len(self.block) or not self.refill():
                return np.concatenate(pieces)

    def refill(self) -> bool:
        records = _whole(_read(self.file, self.path, self.buffer), DOCUMENT_DTYPE)
        self.block = records["first"].astype(np.int64)
        return len(self.block) > 0
