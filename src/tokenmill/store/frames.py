"""The bytes of a compressed shard: zstd frames that can be decoded one by one, and their table.

Each frame has `tokens_per_frame` ids; the last frame has the rest. After the frames comes the seek
table of zstd's "seekable format": a skippable frame with the compressed and the decompressed size
of every frame. `zstd -d` skips this table and restores the plain shard.

Guarantees: every frame has a checksum of its content (zstd's own, the lower half of XXH64). A frame
that does not match its checksum is refused. So is a frame whose size differs from the table or the
manifest; sizes are compared before memory is allocated. With the same version of libzstd, the same
ids give the same bytes. Other versions may compress differently, so the manifest names the version.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError
from tokenmill.storage.reading import DamagedFileError

# `benchmarks/compression.py` measures both settings. Larger frames compress better, but a shuffled
# row decodes one or two whole frames. Higher levels save 5 to 10% and take 4 to 10 times as long.
TOKENS_PER_FRAME = 4096
LEVEL = 3
MOST_TOKENS = 1 << 18  # of a frame
_FRAME = b"\x28\xb5\x2f\xfd"
_SKIPPABLE, _SEEKABLE = 0x184D2A5E, 0x8F92EAB1
_HEAD = struct.Struct("<II")  # of the table: its magic number, and how many bytes follow
_FOOT = struct.Struct("<IBI")  # the number of frames, flags, and the magic number
_ENTRY = np.dtype([("packed", "<u4"), ("plain", "<u4")])
_NO_MEMORY = "Allocation error"  # in the text of libzstd's error
_LEAST = 3 + 4  # bytes of a frame after its header: one block's header, and the checksum

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Compress = Literal["none", "zstd"]


class Compression(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How shards are compressed. `library` is the version of libzstd, which affects the bytes."""

    name: Literal["zstd"]
    level: Annotated[int, msgspec.Meta(ge=-(1 << 17), le=22)]
    tokens_per_frame: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
    library: Annotated[str, msgspec.Meta(max_length=100)]


def choose_compression(name: Compress) -> Compression | None:
    """Return the compression with a name, with default settings; None for "none".

    >>> choose_compression("zstd").tokens_per_frame, choose_compression("none")
    (4096, None)
    """
    if name not in get_args(Compress):
        raise UsageError(f"`compress` is {name!r}; it must be one of none, zstd.")
    if name == "none":
        return None
    import zstandard

    return Compression(
        name=name,
        level=LEVEL,
        tokens_per_frame=TOKENS_PER_FRAME,
        library=".".join(map(str, zstandard.ZSTD_VERSION)),
    )


def describe_compression(compression: Compression | None) -> dict[str, str]:
    """Return the entry `compress` for a manifest's settings; an empty dict for plain shards."""
    return {} if compression is None else {"compress": compression.name}


class Packer:
    """Compresses the bytes of a shard, given in blocks of any size.

    >>> packer = Packer(level=3, frame_bytes=8)
    >>> data = packer.pack(b"to be or ") + packer.pack(b"not to be") + packer.finish()
    >>> import zstandard
    >>> zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    b'to be or not to be'
    """

    def __init__(self, *, level: int, frame_bytes: int) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
        self._frame_bytes = frame_bytes
        self._rest = b""
        self._sizes: list[tuple[int, int]] = []

    def pack(self, data: Any) -> bytes:
        """Add bytes. Returns the frames that are now complete."""
        view = memoryview(data).cast("B")
        frames, place = [], 0
        if self._rest:
            place = min(self._frame_bytes - len(self._rest), len(view))
            self._rest += view[:place]
            if len(self._rest) < self._frame_bytes:
                return b""
            frames.append(self.pack_frame(self._rest))
        while len(view) - place >= self._frame_bytes:
            frames.append(self.pack_frame(view[place : place + self._frame_bytes]))
            place += self._frame_bytes
        self._rest = bytes(view[place:])
        return b"".join(frames)

    def finish(self) -> bytes:
        """Return the last frame, if bytes are left, and the table of frames."""
        last = self.pack_frame(self._rest) if self._rest else b""
        table = np.array(self._sizes, "<u4").tobytes()
        head = _HEAD.pack(_SKIPPABLE, len(table) + _FOOT.size)
        return last + head + table + _FOOT.pack(len(self._sizes), 0, _SEEKABLE)

    def pack_frame(self, data: bytes | memoryview) -> bytes:
        """Return the frame for some bytes of any size up to 2 MiB."""
        try:
            frame = self._compressor.compress(data)
        except self._error as error:  # out of memory is the only possible reason
            raise MemoryError(str(error)) from error
        assert frame.startswith(make_header(len(data)))
        self._sizes.append((len(frame), len(data)))
        return frame


@lru_cache(maxsize=64)
def make_header(size: int) -> bytes:
    """Return the header of a frame that has `size` bytes of content, a checksum and no dictionary.

    A frame with any other header is refused: it could ask for more memory, or lack a checksum.

    >>> make_header(8192).hex(" ")
    '28 b5 2f fd 64 00 1f'
    """
    if size < 1 << 8:
        flag, field = 0, size.to_bytes(1, "little")
    elif size < (1 << 16) + 256:
        flag, field = 1, (size - 256).to_bytes(2, "little")
    else:
        flag, field = 2, size.to_bytes(4, "little")
    single_segment, checksum = 1 << 5, 1 << 2
    return _FRAME + bytes([flag << 6 | single_segment | checksum]) + field


def count_frames(tokens: Any, tokens_per_frame: int) -> Any:
    """Return how many frames some tokens take. `tokens` may be an array of counts."""
    return -(-tokens // tokens_per_frame)


def measure_table(frames: int) -> int:
    """Return the size in bytes of a table of `frames` frames."""
    return _HEAD.size + frames * _ENTRY.itemsize + _FOOT.size


class FrameTable:
    """Where the frames of a file are. Takes an eighth of a byte of memory per frame, besides `data`.

    `data` is the bytes of the table, and `size` is the size of the file. Decoded, the file has
    `plain` bytes, and a frame has `frame_bytes`. `name` is the file's name for errors.

    >>> packer = Packer(level=3, frame_bytes=4)
    >>> file = packer.pack(b"to be") + packer.finish()
    >>> table = np.frombuffer(file[-measure_table(2):], np.uint8)
    >>> starts, ends = FrameTable(table, len(file), 5, 4, "x").find(np.array([0, 1]))
    >>> starts[0], ends[0] == starts[1], ends[1] == len(file) - len(table)
    (np.int64(0), np.True_, np.True_)
    """

    _STEP = 64  # frames per offset that is kept in memory

    def __init__(self, data: Bytes, size: int, plain: int, frame_bytes: int, name: str) -> None:
        count = count_frames(plain, frame_bytes)
        head = _HEAD.unpack(data[: _HEAD.size].tobytes())
        foot = _FOOT.unpack(data[-_FOOT.size :].tobytes())
        if head != (_SKIPPABLE, len(data) - _HEAD.size) or foot != (count, 0, _SEEKABLE):
            raise DamagedFileError(name, f"does not end with a table of {count:,} frames")
        entries = data[_HEAD.size : -_FOOT.size].view(_ENTRY)
        self._sizes = entries["packed"]
        # In blocks: a hostile table may have billions of entries in a sparse file.
        steps = [np.zeros(1, np.int64)]
        for first in range(0, count, self._STEP << 10):
            some = entries[first : first + (self._STEP << 10)]
            self._check(some, first, plain, frame_bytes, name)
            starts = np.arange(0, len(some), self._STEP)
            steps.append(np.add.reduceat(some["packed"], starts, dtype=np.int64))
        self._offsets = np.cumsum(np.concatenate(steps))
        if (found := int(self._offsets[-1]) + len(data)) != size:
            raise DamagedFileError(
                name, f"has {size:,} bytes, but its table describes a file of {found:,}"
            )

    def _check(
        self, entries: npt.NDArray[Any], first: int, plain: int, frame_bytes: int, name: str
    ) -> None:
        expected = np.full(len(entries), frame_bytes)
        expected[-1] = min(frame_bytes, plain - (first + len(entries) - 1) * frame_bytes)
        headers = np.full(len(entries), len(make_header(frame_bytes)))
        headers[-1] = len(make_header(int(expected[-1])))
        packed = entries["packed"]
        wrong = entries["plain"] != expected
        wrong |= (packed < headers + _LEAST) | (packed > 2 * expected + 64)
        if wrong.any():
            number = first + int(wrong.argmax())
            raise DamagedFileError(name, f"has a wrong size for frame {number:,} in its table")

    def find(self, numbers: Integers) -> tuple[Integers, Integers]:
        """Return where frames start and end in the file, in bytes."""
        before, place = np.divmod(numbers, self._STEP)
        columns = np.arange(self._STEP)
        places = (before * self._STEP)[:, None] + columns
        sizes = self._sizes[np.minimum(places, len(self._sizes) - 1)]
        starts = self._offsets[before] + np.where(columns < place[:, None], sizes, 0).sum(
            axis=1, dtype=np.int64
        )
        return starts, starts + self._sizes[numbers]


class FrameError(Exception):
    """A frame cannot be decoded. `place` is its index in the argument of `decode`."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place, self.reason = place, reason


def decode(frames: Sequence[Any], sizes: Integers) -> tuple[list[object], Integers]:
    """Decode frames; returns the memory with all decoded frames, and the address of each.

    `sizes[n]` is the size of frame n after decoding. Most consecutive frames are next to each other
    in memory. Other threads can run meanwhile.
    """
    import zstandard

    packed = zstandard.ZstdDecompressor()
    try:
        memory = packed.multi_decompress_to_buffer(
            list(frames), decompressed_sizes=sizes.astype("=u8").tobytes(), threads=1
        )
    except zstandard.ZstdError as error:
        for place, frame in enumerate(frames):
            try:
                packed.multi_decompress_to_buffer(
                    [frame], decompressed_sizes=sizes[place : place + 1].astype("=u8").tobytes()
                )
            except zstandard.ZstdError as reason:
                if _NO_MEMORY in str(reason):
                    raise MemoryError(str(reason)) from reason
                raise FrameError(place, str(reason).partition(": ")[2]) from None
        raise MemoryError(str(error)) from error  # each frame alone can be decoded
    # Each offset is counted from the start of a buffer, so an offset of 0 begins a new buffer.
    offsets = np.array([memory[place].offset for place in range(len(frames))], np.int64)
    firsts = np.flatnonzero(offsets == 0)
    segments: list[Any] = [memory[place] for place in firsts.tolist()]
    starts = [np.frombuffer(one, np.uint8).ctypes.data for one in segments]
    counts = np.diff(firsts, append=len(frames))
    return [memory], np.repeat(np.array(starts, np.int64), counts) + offsets
