"""The bytes of one MDS shard: where the tokens of its samples are.

A shard is the number of its samples, where each begins and the last ends, JSON, and the samples. A
sample is a size for each column whose size varies, and then the columns. An array of a shape of its
own begins with a byte for the number and width of its dimensions, and these.

Everything is checked against the bytes that are there, for `_SAMPLES` samples at once. What is kept
is 16 bytes a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.storage.mapping import map_file
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, check_size, open_foreign

FIXED, ARRAY, BYTES = "fixed", "array", "bytes"
_BLOCK = 4 << 20
_SAMPLES = 1 << 16

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where tokens are in a sample: the column `place` of those whose `sizes` are given.

    `count` is the number of ids in a sample of a fixed shape.
    """

    kind: str
    dtype: np.dtype[Any]
    count: int
    sizes: tuple[int | None, ...]
    place: int

    @property
    def least(self) -> int:
        """The bytes that a sample takes at least."""
        return sum(4 if size is None else size for size in self.sizes)


def load(folder: Path, name: str, size: int, compression: str | None) -> Bytes:
    """A shard's `size` bytes: mapped, or decompressed into memory, and never more than that."""
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
        kind = "more" if len(data) > size else f"{len(data):,}"
        what = f"holds {kind} bytes when decompressed, and the index says {size:,}"
        raise DamagedFileError(name, what, FOREIGN_CURE)
    return np.frombuffer(data, np.uint8)


def find_samples(name: str, raw: Bytes, samples: int, layout: Layout) -> tuple[Integers, Integers]:
    """Where the ids of each sample begin in a shard's bytes, and how many there are."""
    found = int(raw[:4].view("<u4")[0]) if len(raw) >= 4 else -1
    header = 4 * (samples + 2)
    if found != samples or header > len(raw):
        raise _damaged(name, f"holds {found:,} samples, and the index says {samples:,}")
    offsets = raw[4:header].view("<u4")
    if offsets[0] < header or offsets[-1] != len(raw):
        raise _damaged(name, "has samples that are not in order or not within it")
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
    """Where the ids of some samples begin, and how many there are, of those between offsets."""
    begins, ends = offsets[:-1], offsets[1:]
    if (ends < begins).any() or ends[-1] > len(raw):
        raise _damaged(name, "has samples that are not in order or not within it")
    place = begins + 4 * sum(size is None for size in layout.sizes)
    if (place > ends).any():
        raise _damaged(name, "has a sample with no room for the sizes of its columns")
    starts, varying = [], 0
    for size in layout.sizes:
        starts.append(place)
        if size is None:
            place = place + _words(raw, begins + 4 * varying)
            varying += 1
        else:
            place = place + size
    if (place != ends).any():
        raise _damaged(name, "has a sample whose columns do not fill it")
    starts.append(place)
    first, last = starts[layout.place], starts[layout.place + 1]
    if layout.kind == ARRAY:
        first = first + _array_headers(name, raw, first, last)
    counts, rest = np.divmod(last - first, layout.dtype.itemsize)
    if (rest != 0).any() or (counts < 0).any():
        raise _damaged(name, f"has a sample that is not a whole number of {layout.dtype.name}")
    if layout.kind == ARRAY and (counts != _array_lengths(raw, starts[layout.place])).any():
        raise _damaged(name, "has a sample that is not as long as it says")
    return first, counts


def _array_headers(name: str, raw: Bytes, first: Integers, last: Integers) -> Integers:
    """The bytes before the values of arrays in one dimension."""
    if (first >= last).any():
        raise _damaged(name, "has an array without a shape")
    kinds = raw[first].astype(np.int64)
    if ((kinds >> 2) != 1).any():
        raise _damaged(name, "has tokens that are not in one dimension")
    sizes = 1 + (np.int64(1) << (kinds & 3))
    if (first + sizes > last).any():
        raise _damaged(name, "has an array without a shape")
    return sizes


def _array_lengths(raw: Bytes, first: Integers) -> Integers:
    """The lengths that arrays in one dimension tell; -1 for one that no file could hold."""
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
    """The 32-bit numbers at some places."""
    if not len(places):
        return np.zeros(0, np.int64)
    words: npt.NDArray[np.uint32] = raw[places[:, None] + np.arange(4)].view("<u4")
    return words[:, 0].astype(np.int64)


def _damaged(name: str, what: str) -> DamagedFileError:
    return DamagedFileError(name, what, FOREIGN_CURE)
