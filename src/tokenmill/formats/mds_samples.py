"""The bytes of one MDS shard: find the tokens of its samples, and write samples of tokens.

    shard    the number of samples, the start of each sample, the end of the last, JSON, the samples
    sample   the size of each column whose size is not fixed, then the columns
    array    if the shape is not fixed, a header: one byte for the number of dimensions and the
             number of bytes per length, then the length of each dimension; then the ids

Every offset and size is checked against the bytes of the shard, for `_SAMPLES` samples at once.
The positions that are found take 16 bytes of memory per sample.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.formats.writing import Advance, TokenRange
from tokenmill.storage.files import AtomicFile
from tokenmill.storage.mapping import map_file
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, check_size, open_foreign
from tokenmill.store.casting import cast

FIXED, ARRAY, BYTES = "fixed", "array", "bytes"
_BLOCK = 4 << 20
_SAMPLES = 1 << 16

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the tokens are in a sample: in column `place`, counted from 0.

    `sizes` has the size of each column in bytes, or None if the size is not fixed. `count` is the
    number of ids in a sample if samples have a fixed shape.
    """

    kind: str
    dtype: np.dtype[Any]
    count: int
    sizes: tuple[int | None, ...]
    place: int

    @property
    def least(self) -> int:
        """The smallest possible size of a sample, in bytes."""
        return sum(4 if size is None else size for size in self.sizes)


def load_shard(folder: Path, name: str, size: int, compression: str | None) -> Bytes:
    """Return the bytes of a shard, mapped or decompressed; there must be exactly `size` bytes.

    Decompressing stops once there are more than `size` bytes.
    """
    with open_foreign(folder, name) as file:
        if compression is None:
            check_size(file, name, size, foreign=True)
            return map_file(file, name, np.dtype("u1"), size, 0)
        import pyarrow as pa

        data = bytearray()
        try:
            stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), compression)
            while len(data) <= size and (block := stream.read(min(_BLOCK, size + 1 - len(data)))):
                data += block
        except (OSError, ValueError, pa.ArrowException) as error:
            what = f"cannot be decompressed: {error}"
            raise DamagedFileError(name, what, FOREIGN_CURE) from error
    if len(data) != size:
        found = f"over {size:,}" if len(data) > size else f"{len(data):,}"
        what = f"has {found} bytes when decompressed, expected {size:,} according to the index"
        raise DamagedFileError(name, what, FOREIGN_CURE)
    return np.frombuffer(data, np.uint8)


def find_samples(name: str, raw: Bytes, samples: int, layout: Layout) -> tuple[Integers, Integers]:
    """Return the byte where the ids of each sample begin, and how many ids each sample has."""
    found = int(raw[:4].view("<u4")[0]) if len(raw) >= 4 else -1
    header = 4 * (samples + 2)
    if found != samples or header > len(raw):
        raise _damaged(name, f"has {found:,} samples, expected {samples:,} according to the index")
    offsets = raw[4:header].view("<u4")
    if offsets[0] < header or offsets[-1] != len(raw):
        raise _damaged(name, "has samples out of order or beyond its end")
    blocks = [
        _find_some(name, raw, offsets[low : low + _SAMPLES + 1].astype(np.int64), layout)
        for low in range(0, samples, _SAMPLES)
    ]
    nothing = np.empty(0, np.int64)
    begins, counts = zip(*blocks, strict=True) if blocks else ([nothing], [nothing])
    return np.concatenate(begins), np.concatenate(counts)


def _find_some(
    name: str, raw: Bytes, offsets: Integers, layout: Layout
) -> tuple[Integers, Integers]:
    """Return the same as `find_samples`, for the samples between consecutive `offsets`."""
    begins, ends = offsets[:-1], offsets[1:]
    if (ends < begins).any() or ends[-1] > len(raw):
        raise _damaged(name, "has samples out of order or beyond its end")
    place = begins + 4 * sum(size is None for size in layout.sizes)
    if (place > ends).any():
        raise _damaged(name, "has a sample that is too short for the sizes of its columns")
    starts, varying = [], 0
    for size in layout.sizes:
        starts.append(place)
        if size is None:
            place = place + _words(raw, begins + 4 * varying)
            varying += 1
        else:
            place = place + size
    if (place != ends).any():
        raise _damaged(name, "has a sample that is longer or shorter than its columns")
    starts.append(place)
    first, last = starts[layout.place], starts[layout.place + 1]
    if layout.kind == ARRAY:
        first = first + _array_headers(name, raw, first, last)
    counts, rest = np.divmod(last - first, layout.dtype.itemsize)
    if (rest != 0).any() or (counts < 0).any():
        raise _damaged(
            name, f"has a sample whose size is not a multiple of the size of {layout.dtype.name}"
        )
    if layout.kind == ARRAY and (counts != _array_lengths(raw, starts[layout.place])).any():
        raise _damaged(name, "has a sample whose length differs from the length in its header")
    return first, counts


def _array_headers(name: str, raw: Bytes, first: Integers, last: Integers) -> Integers:
    """Return the size of each array's header in bytes. Each array must have one dimension."""
    if (first >= last).any():
        raise _damaged(name, "has an array without a shape")
    kinds = raw[first].astype(np.int64)
    if ((kinds >> 2) != 1).any():
        raise _damaged(name, "has tokens in several dimensions")
    sizes = 1 + (np.int64(1) << (kinds & 3))
    if (first + sizes > last).any():
        raise _damaged(name, "has an array without a shape")
    return sizes


def _array_lengths(raw: Bytes, first: Integers) -> Integers:
    """Read the length in the header of each array; -1 stands for an impossibly large length."""
    widths = np.int64(1) << (raw[first].astype(np.int64) & 3)
    lengths = np.zeros(len(first), np.int64)
    for byte in range(8):
        there = widths > byte
        values = raw[first[there] + 1 + byte].astype(np.int64)
        if byte > 4:
            lengths[np.flatnonzero(there)[values != 0]] = -1
        else:
            lengths[there] |= values << (8 * byte)
    return lengths


def _words(raw: Bytes, places: Integers) -> Integers:
    """Read the 32-bit numbers at these offsets."""
    words: npt.NDArray[np.uint32] = raw[places[:, None] + np.arange(4)].view("<u4")
    return words[:, 0].astype(np.int64)


def _damaged(name: str, what: str) -> DamagedFileError:
    return DamagedFileError(name, what, FOREIGN_CURE)


def measure_samples(lengths: Integers, width: int) -> Integers:
    """Return how many bytes `write_samples` writes for each sample.

    `lengths` has the number of ids of each sample, and `width` is the size of an id in bytes.
    """
    shape_widths = np.where(lengths < 1 << 8, 1, np.where(lengths < 1 << 16, 2, 4))
    return 4 + 1 + shape_widths + lengths * width


def write_samples(file: AtomicFile, part: TokenRange, starts: list[int], advance: Advance) -> None:
    """Write one sample per document. Short documents are written together in one call.

    `starts` has the position of each document's first token, and then the end of the last document.
    """
    low, width = 0, part.dtype.itemsize
    while low < len(starts) - 1:
        high = bisect_right(starts, starts[low] + part.block) - 1
        if high == low:  # a document that is longer than a block
            sample = replace(part, start=starts[low], stop=starts[low + 1])
            file.write(_make_header(len(sample), width))
            sample.copy(file, advance)
            low += 1
            continue
        ids = np.empty(starts[high] - starts[low], part.dtype)
        cast(part.tokens.read(starts[low], starts[high]), ids)
        data = ids.data.cast("B")
        parts: list[bytes | memoryview] = []
        for start, stop in pairwise(starts[low : high + 1]):
            parts.append(_make_header(stop - start, width))
            parts.append(data[(start - starts[low]) * width : (stop - starts[low]) * width])
        file.write(b"".join(parts))
        advance(len(ids))
        low = high


def _make_header(length: int, width: int) -> bytes:
    """Return the bytes before the ids of a sample: the size of the column, and the array's header.

    The array's header is one byte for the number of dimensions and the number of bytes per length,
    then the length.
    """
    shape_width = 1 if length < 1 << 8 else 2 if length < 1 << 16 else 4
    size = 1 + shape_width + length * width
    dimension = bytes([1 << 2 | shape_width.bit_length() - 1])
    return size.to_bytes(4, "little") + dimension + length.to_bytes(shape_width, "little")
