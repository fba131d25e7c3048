"""MosaicML Streaming's MDS shards of tokens: a folder with `index.json`, raw or compressed.

Tokens are in one column: the column that the user names, else `tokens`, else `input_ids`, else the
only column. A sample of this column is one of these:

    an array of any length, such as `ndarray:uint16`   each sample is a document
    an array of a fixed shape                          all samples form one stream of tokens
    `bytes`, if lengths differ                         each sample is a document
    `bytes`, if all lengths are equal                  all samples form one stream of tokens

In a stream, only the end-of-text id separates documents. For `bytes`, the user passes the dtype.

Between the tokens of two samples, a shard stores sizes and other columns. So the tokens of a shard
are copied into memory when it is used, and `KEPT_BYTES` of shards stay in memory. Reading one
random row may require reading a whole shard: run `tokenmill import` before training. An
uncompressed shard with nothing between its tokens is memory-mapped instead.

Checked at opening: the index and, except for arrays of a fixed shape, the header of every sample.
For this check, a compressed shard is decompressed once, up to the size in the index. A size above
`MOST_BYTES` is refused.

Exports are not compressed. They have one sample per document in the column `tokens`, as
`ndarray:uint16` or `ndarray:uint32`. The bytes are those that `MDSWriter` writes without a size
limit. MDS cannot store empty arrays, so empty documents are omitted.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DatasetError
from tokenmill.formats.base import (
    DTYPES,
    Contents,
    OpenRequest,
    check_same_dtype,
    fix_byte_order,
)
from tokenmill.formats.document_starts import SpilledStarts
from tokenmill.formats.file_documents import DocumentIndexes, DocumentStarts, FileDocuments
from tokenmill.formats.indexed_folder import (
    Entry,
    IndexedFolder,
    WrittenFile,
    check_offsets,
    read_indexes,
)
from tokenmill.formats.mds_samples import (
    ARRAY,
    BYTES,
    FIXED,
    Layout,
    find_samples,
    load_shard,
    measure_samples,
    write_samples,
)
from tokenmill.formats.writing import Advance, TokenRange
from tokenmill.storage.files import AtomicFile
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError
from tokenmill.store.documents import sums

KEPT_BYTES = 256 << 20
MOST_BYTES = 1 << 30
_COLUMNS = ("tokens", "input_ids")
_COMPRESSIONS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli"}

Integers = npt.NDArray[np.int64]


class Mds(IndexedFolder):
    """Reads and writes a folder of shards, or a folder with a subfolder of shards per split."""

    name = "mds"
    keeps_empty = False
    file_name = "shard.{:05}.mds"
    wide_dtype = "<u4"

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self.kept_bytes = kept_bytes

    def read(self, request: OpenRequest) -> Contents:
        splits, documents = {}, {}
        for split, (inner, index) in read_indexes(request, "shards").items():
            shards = _read_shards(inner, index, self.kept_bytes)
            splits[split] = shards
            if shards.layout.kind == ARRAY or (shards.layout.kind == BYTES and shards.vary()):
                indexes = DocumentIndexes(
                    names=[file.zipped or file.name for file in shards.files],
                    counts=[file.samples for file in shards.files],
                    read=partial(_read_starts, shards),
                )
                documents[split] = FileDocuments(indexes, shards.counts, split, shards.kept)
        check_same_dtype(request.path, splits)
        return Contents(splits=splits, documents=documents)

    def write_shard(self, part: TokenRange, path: Path, advance: Advance) -> None:
        config = json.dumps(_make_config(part.dtype), sort_keys=True).encode()
        with (
            SpilledStarts(part.tokens, part.start, part.stop, path.parent, empty=False) as spilled,
            AtomicFile(path) as file,
        ):
            place = 4 * (spilled.count + 2) + len(config)
            file.write(spilled.count.to_bytes(4, "little"))
            for starts in spilled.blocks():
                ends = place + np.cumsum(measure_samples(np.diff(starts), part.dtype.itemsize))
                check_offsets(part.tokens, int(ends[-1]))
                file.write(np.concatenate(([place], ends[:-1])).astype("<u4"))
                place = int(ends[-1])
            file.write(place.to_bytes(4, "little"))
            file.write(config)
            for starts in spilled.blocks():
                write_samples(file, part, (starts + part.start).tolist(), advance)
            file.finish()

    def make_index(
        self, files: list[WrittenFile], dtype: np.dtype[Any], _tokens_per_shard: int
    ) -> bytes:
        shards = [
            {
                **_make_config(dtype),
                "raw_data": {"basename": file.name, "bytes": file.size, "hashes": {}},
                "samples": file.documents,
                "zip_data": None,
            }
            for file in files
        ]
        return json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode()


def _make_config(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the settings that are stored both in the index and in every shard."""
    return {
        "column_encodings": [f"ndarray:{dtype.name}"],
        "column_names": ["tokens"],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": None,
        "version": 2,
    }


@dataclass(frozen=True, kw_only=True)
class _File:
    """A shard: the file `name` or, if that is missing, the compressed file `zipped`.

    `size` is the number of bytes when decompressed.
    """

    name: str
    size: int
    samples: int
    zipped: str | None
    compression: str | None


def _read_shards(request: OpenRequest, index: Entry, kept_bytes: int) -> MdsShards:
    entries = index.entries("shards")
    if not entries:
        raise DatasetError(f"{index.where} lists no shards. Copy or download it again.")
    layout = _find_layout(request, entries[0])
    files = []
    for entry in entries:
        for key in ("format", "column_names", "column_encodings", "column_sizes"):
            if entry.value.get(key) != entries[0].value.get(key):
                raise entry.damaged(f"its shards have different values of {key!r}")
        file = _read_file(request.path, entry)
        # A shard has 32-bit offsets, so it is smaller than 4 GiB.
        if not 4 * (file.samples + 2) + file.samples * layout.least <= file.size < 1 << 32:
            raise entry.damaged(f"{file.samples:,} samples cannot fit in {file.size:,} bytes")
        files.append(file)
    return MdsShards(
        folder=request.path.absolute(), files=tuple(files), layout=layout, kept_bytes=kept_bytes
    )


def _read_file(folder: Path, entry: Entry) -> _File:
    raw = entry.entry("raw_data")
    name, size = raw.name("basename"), raw.get("bytes", int)
    zipped = compression = None
    if entry.value.get("zip_data") is not None and not (folder / name).is_file():
        zipped = entry.entry("zip_data").name("basename")
        method = str(entry.get("compression", str)).partition(":")[0]
        compression = _COMPRESSIONS.get(method)
        if compression is None:
            raise DatasetError(
                f"{zipped} is compressed with {method[:40]!r}, which is not supported (only "
                f"{', '.join(_COMPRESSIONS)}). Decompress the file to {name}, next to it."
            )
        if size > MOST_BYTES:
            raise DatasetError(
                f"{zipped} has {size:,} bytes when decompressed; at most {MOST_BYTES:,} may be "
                f"loaded into memory. Decompress the file to {name}, next to it."
            )
    return _File(
        name=name,
        size=size,
        samples=entry.get("samples", int),
        zipped=zipped,
        compression=compression,
    )


def _find_layout(request: OpenRequest, entry: Entry) -> Layout:
    """Return where the tokens are in a sample, according to the first entry of an index."""
    if entry.value.get("format") != "mds" or entry.value.get("version") != 2:
        raise DatasetError(
            f"{entry.where} has shards of the format {str(entry.value.get('format'))[:20]!r}, "
            f"version {str(entry.value.get('version'))[:20]}; only mds, version 2, is supported. "
            "Write the shards again with streaming.MDSWriter."
        )
    names, encodings, sizes = (
        entry.get(key, list) for key in ("column_names", "column_encodings", "column_sizes")
    )
    if not len(names) == len(encodings) == len(sizes) or not all(
        size is None or (type(size) is int and 0 <= size < 1 << 32) for size in sizes
    ):
        raise entry.damaged("a column lacks a name, an encoding or a valid size")
    wanted = [request.column] if request.column else [one for one in _COLUMNS if one in names]
    column = wanted[0] if wanted else names[0] if len(names) == 1 else None
    if column not in names:
        there = ", ".join(map(str, names))[:200]
        raise DatasetError(
            f"{request.path} has the columns {there}. Pass the column with the tokens: `column=NAME`."
        )
    place = names.index(column)
    return _parse_encoding(request, entry, str(encodings[place]), tuple(sizes), place)


def _parse_encoding(
    request: OpenRequest, entry: Entry, encoding: str, sizes: tuple[int | None, ...], place: int
) -> Layout:
    kind, _, rest = encoding.partition(":")
    name, _, shape = rest.partition(":")
    if kind == "bytes" and not rest and sizes[place] is None:
        if request.dtype is None:
            raise DatasetError(
                f"{entry.where} stores tokens as bytes without their dtype. Pass the dtype, "
                "such as `dtype='int64'`."
            )
        dtype = fix_byte_order(request.dtype)
        return Layout(kind=BYTES, dtype=dtype, count=0, sizes=sizes, place=place)
    if kind != "ndarray" or name not in DTYPES:
        raise DatasetError(
            f"{entry.where} stores tokens as {encoding[:40]!r}, which is not supported. Write them as "
            "arrays of integers with a dtype, such as ndarray:uint16, or as bytes."
        )
    dtype = np.dtype(name).newbyteorder("<")
    request.check_dtype(dtype, entry.where)
    if not shape:
        if sizes[place] is not None:
            raise entry.damaged(f"{encoding!r} has no fixed shape, but its column has a fixed size")
        return Layout(kind=ARRAY, dtype=dtype, count=0, sizes=sizes, place=place)
    dimensions = shape.split(",")
    if not all(re.fullmatch("[0-9]{1,9}", one) for one in dimensions) or len(dimensions) > 8:
        raise entry.damaged(f"{encoding[:40]!r} has an invalid shape")
    count = 1
    for one in dimensions:
        count *= int(one)
    if not count or sizes[place] != count * dtype.itemsize:
        raise entry.damaged(
            f"{encoding[:40]!r} needs {count * dtype.itemsize:,} bytes per sample; this must be "
            "above 0 and equal to the size of its column"
        )
    return Layout(kind=FIXED, dtype=dtype, count=count, sizes=sizes, place=place)


@dataclass(frozen=True, kw_only=True)
class MdsShards:
    """The shards of a folder. The ids of a shard are collected from its samples."""

    folder: Path
    files: tuple[_File, ...]
    layout: Layout
    kept_bytes: int

    @cached_property
    def counts(self) -> Integers:
        """The number of ids in each shard. If a shard changes later, reading it raises an error."""
        if self.layout.kind == FIXED:
            counts = [file.samples * self.layout.count for file in self.files]
        else:
            numbers = range(len(self.files))
            counts = [int(self.find_samples(number).starts[-1]) for number in numbers]
        return np.array(counts, np.int64)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.layout.dtype

    @property
    def checksum(self) -> None:
        return None

    @property
    def kept(self) -> int:
        return max(1, self.kept_bytes // max(file.size for file in self.files))

    def name(self, number: int) -> str:
        file = self.files[number]
        return file.zipped or file.name

    def map(self, number: int) -> npt.NDArray[Any]:
        return self._gather(number, 0, int(self.counts[number]))

    def read(self, number: int, first: int, last: int) -> npt.NDArray[Any]:
        return self._gather(number, first, last).copy()

    def find_samples(self, number: int) -> _Samples:
        """Return where the ids of each sample are in a shard."""
        file, name = self.files[number], self.name(number)
        try:
            changed = (self.folder / name).stat().st_mtime_ns
        except (OSError, ValueError):
            changed = 0  # `_find_samples` raises the error
        return _find_samples(self.folder, name, changed, file, self.layout)

    def vary(self) -> bool:
        """Return whether samples differ in their number of ids."""
        seen: set[int] = set()
        for number in range(len(self.files)):
            seen.update(np.unique(np.diff(self.find_samples(number).starts))[:2].tolist())
        return len(seen) > 1

    def _gather(self, number: int, first: int, last: int) -> npt.NDArray[Any]:
        samples, width = self.find_samples(number), self.dtype.itemsize
        raw, offsets, starts = samples.raw, samples.offsets, samples.starts
        if int(starts[-1]) != self.counts[number]:
            what = "changed since it was opened"
            raise DamagedFileError(self.name(number), what, FOREIGN_CURE)
        if samples.contiguous:
            place = int(offsets[0]) + first * width
            return raw[place : place + (last - first) * width].view(self.dtype)
        ids = np.empty(last - first, self.dtype)
        low = int(np.searchsorted(starts, first, side="right")) - 1
        high = int(np.searchsorted(starts, last, side="left"))
        for sample in range(max(low, 0), high):
            start, stop = max(int(starts[sample]), first), min(int(starts[sample + 1]), last)
            place = int(offsets[sample]) + (start - int(starts[sample])) * width
            some = raw[place : place + (stop - start) * width].view(self.dtype)
            ids[start - first : stop - first] = some
        return ids


@dataclass(frozen=True, kw_only=True)
class _Samples:
    """The samples of a shard.

    `raw` has the bytes of the shard, and `offsets` the byte where the ids of each sample begin.
    `starts` has the number of tokens before each sample; the last entry is the total.
    `contiguous` means that nothing is stored between the ids of one sample and the next.
    """

    raw: npt.NDArray[np.uint8]
    offsets: Integers
    starts: Integers
    contiguous: bool


@lru_cache(maxsize=1)  # consecutive reads are often in the same shard
def _find_samples(
    folder: Path,
    name: str,
    changed: int,  # noqa: ARG001  (part of the cache key)
    file: _File,
    layout: Layout,
) -> _Samples:
    raw = load_shard(folder, name, file.size, file.compression)
    offsets, counts = find_samples(name, raw, file.samples, layout)
    ends = offsets + counts * layout.dtype.itemsize
    contiguous = len(offsets) > 0 and bool((offsets[1:] == ends[:-1]).all())
    return _Samples(raw=raw, offsets=offsets, starts=sums(counts), contiguous=contiguous)


def _read_starts(shards: MdsShards, number: int) -> DocumentStarts:
    starts = shards.find_samples(number).starts
    return DocumentStarts(len(starts) - 1, starts.__getitem__)
