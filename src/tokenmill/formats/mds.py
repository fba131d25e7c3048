"""MosaicML streaming's MDS shards of tokens: a folder with `index.json`, raw or compressed.

Tokens are a column of `ndarray:uint16` or the like, with or without a fixed shape, or of `bytes`,
whose dtype the user names. The column is the one that the user names, or `tokens`, `input_ids`, or
the only one. Where samples have shapes of their own, each is a document; samples of a fixed shape,
or bytes of one length throughout, are cuts through a stream, and documents are told by the
end-of-text id alone.

Between samples stand sizes and other columns, so that a shard is gathered into memory when it is
touched, and `KEPT_BYTES` of shards stay there: rows at random cost a shard each. For training,
`tokenmill import` first. A raw shard of nothing but a fixed shape is mapped as it is.

Checked at opening: the index, and where samples vary, the header of every one of them, for which
compressed shards are decompressed once. No more is decompressed than the index says, and nothing
above `MOST` bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.formats.json_index import Entry, read_indexes
from tokenmill.formats.mds_samples import ARRAY, BYTES, FIXED, Layout, find_samples, load
from tokenmill.formats.protocol import DTYPES, Asked, Contents
from tokenmill.formats.starts import FileDocuments, Starts
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError
from tokenmill.store.documents import sums

NAME = "mds"
KEPT_BYTES = 256 << 20
MOST = 1 << 30
_COLUMNS = ("tokens", "input_ids")
_COMPRESSIONS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli"}

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _File:
    """A shard: `size` bytes in `name`, or, if that is not there, `zipped` ones to decompress."""

    name: str
    size: int
    samples: int
    zipped: str | None
    compression: str | None


def read(asked: Asked) -> Contents:
    """What a folder of shards, or of splits, holds."""
    splits, documents = {}, {}
    for split, (inner, index) in read_indexes(asked, "shards").items():
        shards = _read_shards(inner, index)
        splits[split] = shards
        if shards.layout.kind == ARRAY or (shards.layout.kind == BYTES and shards.vary()):
            documents[split] = FileDocuments(_Indexes(shards), shards.counts, split, shards.kept)
    if len({one.dtype for one in splits.values()}) > 1:
        raise DatasetError(f"the splits of {asked.path} have ids of different dtypes. Open one.")
    return Contents(splits=splits, documents=documents)


def _read_shards(asked: Asked, index: Entry) -> MdsShards:
    entries = index.entries("shards")
    if not entries:
        raise DatasetError(f"{index.where} lists no shards.")
    layout = _find_layout(asked, entries[0])
    files = []
    for entry in entries:
        for key in ("format", "column_names", "column_encodings", "column_sizes"):
            if entry.value.get(key) != entries[0].value.get(key):
                raise entry.fail(f"its shards differ in {key!r}")
        file = _read_file(asked.path, entry)
        # Places in a shard have 32 bits, and a sample takes at least one of them.
        if not 4 * (file.samples + 2) + file.samples * layout.least <= file.size < 1 << 32:
            raise entry.fail(f"{file.samples:,} samples are not in {file.size:,} bytes")
        files.append(file)
    shards = MdsShards(
        folder=asked.path.absolute(),
        files=tuple(files),
        layout=layout,
        counts=np.empty(0, np.int64),
    )
    if layout.kind == FIXED:
        counts = [file.samples * layout.count for file in files]
    else:
        counts = [int(shards.look(number).borders[-1]) for number in range(len(files))]
    object.__setattr__(shards, "counts", np.array(counts, np.int64))
    return shards


def _read_file(folder: Path, entry: Entry) -> _File:
    raw = entry.entry("raw_data")
    name, size = raw.name("basename"), raw.get("bytes", int)
    zipped = compression = None
    if entry.value.get("zip_data") is not None and not (folder / name).is_file():
        zipped = entry.entry("zip_data").name("basename")
        told = str(entry.get("compression", str)).partition(":")[0]
        compression = _COMPRESSIONS.get(told)
        if compression is None:
            raise DatasetError(
                f"{zipped} is compressed with {told[:40]!r}, which is not read. Those that are: "
                f"{', '.join(_COMPRESSIONS)}. Decompress it to {name}."
            )
        if size > MOST:
            raise DatasetError(
                f"{zipped} has {size:,} bytes when decompressed, and at most {MOST:,} are held in "
                f"memory. Decompress it to {name}, which is then used in its place."
            )
    return _File(
        name=name,
        size=size,
        samples=entry.get("samples", int),
        zipped=zipped,
        compression=compression,
    )


def _find_layout(asked: Asked, entry: Entry) -> Layout:
    """Where the tokens are in a sample, by the first entry of an index."""
    if entry.value.get("format") != "mds" or entry.value.get("version") != 2:
        raise DatasetError(
            f"{entry.where} has shards of the format {str(entry.value.get('format'))[:20]!r}, "
            f"version {str(entry.value.get('version'))[:20]}, and only mds, version 2, holds tokens."
        )
    names, encodings, sizes = (
        entry.get(key, list) for key in ("column_names", "column_encodings", "column_sizes")
    )
    if not len(names) == len(encodings) == len(sizes) or not all(
        size is None or (type(size) is int and 0 <= size < 1 << 32) for size in sizes
    ):
        raise entry.fail("its columns have no sound names, encodings and sizes")
    wanted = [asked.column] if asked.column else [one for one in _COLUMNS if one in names]
    column = wanted[0] if wanted else names[0] if len(names) == 1 else None
    if column not in names:
        there = ", ".join(map(str, names))[:200]
        raise DatasetError(
            f"{asked.path} has the columns {there}. Name the one that holds the tokens: "
            "`column=NAME`."
        )
    place = names.index(column)
    return _parse_encoding(asked, entry, str(encodings[place]), tuple(sizes), place)


def _parse_encoding(
    asked: Asked, entry: Entry, encoding: str, sizes: tuple[int | None, ...], place: int
) -> Layout:
    kind, _, rest = encoding.partition(":")
    name, _, shape = rest.partition(":")
    if kind == "bytes" and not rest and sizes[place] is None:
        if asked.dtype is None:
            raise DatasetError(
                f"{entry.where} says that tokens are bytes, but not their dtype. Give it: "
                "`dtype='int64'` or another."
            )
        dtype = asked.dtype if asked.dtype.byteorder == ">" else asked.dtype.newbyteorder("<")
        return Layout(kind=BYTES, dtype=dtype, count=0, sizes=sizes, place=place)
    if kind != "ndarray" or name not in DTYPES:
        raise DatasetError(
            f"{entry.where} stores tokens as {encoding[:40]!r}. Supported are arrays of "
            "integers of a dtype, such as ndarray:uint16, and bytes."
        )
    dtype = np.dtype(name).newbyteorder("<")
    asked.agree(dtype, entry.where)
    if not shape:
        if sizes[place] is not None:
            raise entry.fail(f"{encoding!r} has a fixed size")
        return Layout(kind=ARRAY, dtype=dtype, count=0, sizes=sizes, place=place)
    dimensions = shape.split(",")
    if not all(one.isdecimal() and len(one) < 10 for one in dimensions) or len(dimensions) > 8:
        raise entry.fail(f"{encoding[:40]!r} has no sound shape")
    count = 1
    for one in dimensions:
        count *= int(one)
    if not count or sizes[place] != count * dtype.itemsize:
        raise entry.fail(f"{encoding[:40]!r} takes {count * dtype.itemsize:,} bytes a sample")
    return Layout(kind=FIXED, dtype=dtype, count=count, sizes=sizes, place=place)


@dataclass(frozen=True, kw_only=True)
class MdsShards:
    """The shards of a folder; ids are gathered from their samples."""

    folder: Path
    files: tuple[_File, ...]
    layout: Layout
    counts: Integers

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.layout.dtype

    @property
    def kept(self) -> int:
        return max(1, KEPT_BYTES // max(file.size for file in self.files))

    def name(self, number: int) -> str:
        file = self.files[number]
        return file.zipped or file.name

    def map(self, number: int) -> npt.NDArray[Any]:
        return self._gather(number, 0, int(self.counts[number]))

    def read(self, number: int, first: int, last: int) -> npt.NDArray[Any]:
        return self._gather(number, first, last).copy()

    def look(self, number: int) -> _Samples:
        """Where the ids of a shard are."""
        file, name = self.files[number], self.name(number)
        try:
            changed = (self.folder / name).stat().st_mtime_ns
        except (OSError, ValueError):
            changed = 0  # opening it will say what is wrong
        return _look(self.folder, name, changed, file, self.layout)

    def vary(self) -> bool:
        """Whether any two samples have different numbers of ids."""
        seen: set[int] = set()
        for number in range(len(self.files)):
            seen.update(np.unique(np.diff(self.look(number).borders))[:2].tolist())
        return len(seen) > 1

    def _gather(self, number: int, first: int, last: int) -> npt.NDArray[Any]:
        found, width = self.look(number), self.dtype.itemsize
        raw, begins, borders = found.raw, found.begins, found.borders
        if int(borders[-1]) != self.counts[number]:
            what = "changed since it was opened"
            raise DamagedFileError(self.name(number), what, FOREIGN_CURE)
        if found.in_a_row:
            start = int(begins[0]) + first * width
            return raw[start : start + (last - first) * width].view(self.dtype)
        ids = np.empty(last - first, self.dtype)
        low = int(np.searchsorted(borders, first, side="right")) - 1
        high = int(np.searchsorted(borders, last, side="left"))
        for sample in range(max(low, 0), high):
            start, stop = max(int(borders[sample]), first), min(int(borders[sample + 1]), last)
            place = int(begins[sample]) + (start - int(borders[sample])) * width
            part = raw[place : place + (stop - start) * width].view(self.dtype)
            ids[start - first : stop - first] = part
        return ids


@dataclass(frozen=True, kw_only=True)
class _Samples:
    """A shard's bytes, where each sample's ids begin in them, and the sums of their numbers."""

    raw: npt.NDArray[np.uint8]
    begins: Integers
    borders: Integers
    in_a_row: bool


@lru_cache(maxsize=1)  # the ids of one shard are often read some after others
def _look(
    folder: Path,
    name: str,
    changed: int,  # noqa: ARG001  (a file that changed is looked at anew)
    file: _File,
    layout: Layout,
) -> _Samples:
    raw = load(folder, name, file.size, file.compression)
    begins, counts = find_samples(name, raw, file.samples, layout)
    ends = begins + counts * layout.dtype.itemsize
    in_a_row = len(begins) > 0 and bool((begins[1:] == ends[:-1]).all())
    return _Samples(raw=raw, begins=begins, borders=sums(counts), in_a_row=in_a_row)


@dataclass(frozen=True)
class _Indexes:
    shards: MdsShards

    @property
    def counts(self) -> list[int]:
        return [file.samples for file in self.shards.files]

    def name(self, number: int) -> str:
        return self.shards.name(number)

    def read(self, number: int) -> Starts:
        borders = self.shards.look(number).borders
        return Starts(len(borders) - 1, borders.__getitem__)
