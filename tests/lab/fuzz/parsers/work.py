"""Files that other processes of tokenmill wrote: the disk cache, key files and mark files."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np

from tokenmill.preparation.key_files import (
    KeyLayout,
    KeyRanges,
    KeyWriter,
    PartMarks,
    encode_starts,
    mark_path,
)
from tokenmill.storage import cache

from ..case import Case, Parser, read_files, refused, require, write_files
from ..mutate import change_bytes, change_fields

_LAYOUT = KeyLayout(partitions=4, run_keys=16)
_KEYS = 41


class CacheParser(Parser):
    """A damaged cache has the right pieces, or none; afterwards it can be used."""

    name = "cache"

    def prepare(self, folder: Path) -> None:
        random = Random(1)
        self.pieces = {
            cache.make_piece_key("a", number): random.randbytes(random.choice((0, 1, 700, 5_000)))
            for number in range(40)
        }
        made = cache.PieceCache(folder, cache.SET_BYTES)
        for key, data in self.pieces.items():
            made.put(key, data)
        # Small slots would be another format: only the part with pieces is kept.
        self.sound = read_files(folder)
        self.sound["pieces.bin"] = self.sound["pieces.bin"].rstrip(b"\0")

    def make(self, random: Random) -> Case:
        name = random.choice(("index.bin", "index.bin", "pieces.bin"))
        data = self.sound[name]
        if name == "index.bin" and random.randrange(2):
            record = 64 * random.randrange(len(data) // 64)
            data = change_fields(
                random, data, [(record + place, "<Q") for place in range(0, 56, 8)]
            )
        elif name == "index.bin" and random.randrange(3) == 0:  # a record at another slot
            first, second = (64 * random.randrange(len(data) // 64) for _ in range(2))
            data = data[:second] + data[first : first + 64] + data[second + 64 :]
        else:
            data = change_bytes(random, data)
        return Case({**self.sound, name: data})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        made = cache.PieceCache(folder, cache.SET_BYTES)
        for key, data in self.pieces.items():
            made.has(key)
            found = made.get(key)
            require(found is None or found == data, "the cache gives other bytes")
            require(found is not None or not case.facts.get("intact"), "a piece is missing")
        key = cache.make_piece_key("b", 1)
        made.put(key, b"new")
        require(made.get(key) == b"new", "the cache cannot be used afterwards")
        sizes = sum(path.stat().st_size for path in folder.iterdir())
        require(sizes <= cache.SET_BYTES, "the cache exceeds its limit")


class KeyFilesParser(Parser):
    """Work files without a checksum of their own: damage is refused, or the counts are right."""

    name = "key-files"

    def prepare(self, folder: Path) -> None:
        keys = np.random.default_rng(1).integers(0, 1 << 63, (_KEYS, 2), np.uint64) * np.uint64(2)
        data: list[bytes] = []
        writer = KeyWriter(_LAYOUT, lambda some: data.append(bytes(some)))
        writer.add(keys)
        writer.flush()
        (folder / "part.keys").write_bytes(b"".join(data))
        for partition in range(_LAYOUT.partitions):
            ranges = KeyRanges.find(folder / "part.keys", _KEYS, _LAYOUT, partition)
            starts = np.concatenate(([0], np.cumsum(ranges.counts)))[:-1]
            marks = bytes(encode_starts(starts)) + bytes(int(ranges.counts.sum()))
            mark_path(folder, "x", partition).write_bytes(marks)
        self.sound = read_files(folder)

    def make(self, random: Random) -> Case:
        name = random.choice(["part.keys", *self.sound])
        data = self.sound[name]
        if random.randrange(2):
            fields = [(place, "<Q") for place in range(0, min(len(data) - 7, 80), 8)]
            data = change_fields(random, data, fields)
        else:
            data = change_bytes(random, data)
        return Case({**self.sound, name: data})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        path = folder / "part.keys"
        for partition in range(_LAYOUT.partitions):
            with refused():
                ranges = KeyRanges.find(path, _KEYS, _LAYOUT, partition)
                found = sum(len(keys) for keys in ranges.read())
                require(found == ranges.counts.sum(), "keys are missing")
        marks = PartMarks(
            keys=path, count=_KEYS, first_run=0, marks=folder, context="x", layout=_LAYOUT
        )
        require(sum(map(len, marks.read())) == _KEYS, "marks are missing")


PARSERS = [CacheParser(), KeyFilesParser()]
