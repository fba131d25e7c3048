"""Input files to documents: plain text, JSON lines and Parquet, compressed or not.

Files are read as streams, a block at a time. Compressed streams are read to their trailer: one
that is cut short or altered is a `BadFileError`, never a short file. A record that cannot be
used is a `Rejection` with its place; the records around it are kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol
from urllib.parse import unquote_to_bytes

from tokenmill.errors import InputError, TooLongError
from tokenmill.sources.compression import (
    DAMAGED,
    LARGEST_WINDOW,
    USUAL_WINDOW,
    Stream,
    WindowError,
    decompress,
)
from tokenmill.sources.encodings import find_wide_encoding
from tokenmill.sources.json_lines import list_names, read_json_lines
from tokenmill.sources.memory import PARSED
from tokenmill.sources.records import (
    BLOCK,
    Chunk,
    Cutter,
    Rejection,
    bound,
    find_border,
    read_records,
)

LEAST_MEMORY = 128 << 20  # per worker, without the window of a zstd stream
_ROWS = 256  # rows of a Parquet file decoded at once
_URI = "file:///"


class BadFileError(InputError):
    """A file that cannot be read to its end. The rest of the input is not touched by it."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.source = source
        self.reason = reason

    def __reduce__(self) -> tuple[type[BadFileError], tuple[str, str]]:
        return BadFileError, (self.source, self.reason)


class Origin(Protocol):
    """What reading needs to know of an input file."""

    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def compression(self) -> str | None: ...
    @property
    def size(self) -> int: ...


def local_path(name: str) -> str:
    """The local path of a source. Manifests store a name that is not UTF-8 as a `file:` URI.

    >>> local_path("a.txt"), os.fsencode(local_path("file:///texts/caf%E9.txt"))
    ('a.txt', b'/texts/caf\\xe9.txt')
    """
    if name.startswith(_URI):
        return os.fsdecode(unquote_to_bytes(name[len(_URI) - 1 :]))
    return name


def open_source(name: str) -> BinaryIO:
    """Open a source for reading. A Path would take twice as long, which matters for small files."""
    return open(local_path(name), "rb")  # noqa: PTH123


def read_piece(
    origin: Origin,
    start: int,
    end: int,
    step: int,
    *,
    separator: bytes | None,
    text_field: str,
    cutter: Cutter | None,
    border_cutter: Cutter | None,
    most: int = 1 << 62,
    window: int = USUAL_WINDOW,
) -> Iterator[Chunk]:
    """The documents of one piece of a file: a range of bytes, or of row groups for Parquet.

    A compressed file is always one piece. `step` is the distance between the file's nominal borders.
    `border_cutter` says where a border may be inside a document, `cutter` where a document may be
    divided into pieces. `most` is how many bytes of a document may be held at once, `window` how
    many the window of a zstd stream may take.
    """
    try:
        if origin.kind == "parquet":
            yield from _read_parquet(origin, start, end, text_field, cutter, most)
        elif origin.compression:
            yield from _read_compressed(origin, separator, text_field, cutter, most, window)
        else:
            with open_source(origin.path) as file:
                if origin.kind == "jsonl":
                    first, _ = find_border(file, start, origin.size, step, b"\n", None)
                    last, _ = find_border(file, end, origin.size, step, b"\n", None)
                    blocks = _bounded_lines(_blocks(file, origin, first, last), first, most)
                    yield from read_json_lines(blocks, first, text_field, cutter)
                    return
                borders = separator, border_cutter
                first, whole = find_border(file, start, origin.size, step, *borders)
                last, complete = find_border(file, end, origin.size, step, *borders)
                if origin.size == 0:
                    yield Chunk([b""], [0])  # a document all the same, for the ledger
                elif first < last:
                    yield from read_records(
                        _blocks(file, origin, first, last),
                        first,
                        separator,
                        cutter,
                        continues=not whole,
                        to_be_continued=not complete,
                        most=most,
                    )
    except DAMAGED as error:
        raise BadFileError(origin.path, _explain(error, origin.compression)) from error


def read_head(origin: Origin, size: int) -> bytes:
    """The first bytes of a file of text or JSON lines, out of its compression."""
    try:
        with open_source(origin.path) as raw:
            stream = _decompress(raw, origin, LARGEST_WINDOW) if origin.compression else raw
            head = stream.read(size)
    except DAMAGED as error:
        raise BadFileError(origin.path, _explain(error, origin.compression)) from error
    return head


def _explain(error: Exception, compression: str | None) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    told = str(error).strip() or type(error).__name__
    if "runcated" in told or isinstance(error, EOFError) or "ended before" in told:
        return f"the {compression} stream ends too early; the file is cut short"
    return f"the {compression} stream is damaged ({told})"


def _blocks(file: BinaryIO, origin: Origin, start: int, end: int) -> Iterator[bytes]:
    file.seek(start)
    place = start
    while place < end:
        block = file.read(min(BLOCK, end - place))
        if not block:
            raise BadFileError(origin.path, "the file became shorter while it was read")
        if place == 0:
            refuse_wide(origin, block)
        place += len(block)
        yield block


def _bounded_lines(blocks: Iterator[bytes], start: int, most: int) -> Iterator[bytes]:
    """The same blocks; raises TooLongError if a line is too long to hold."""
    place = line_start = start
    for block in blocks:
        first, last = block.find(b"\n"), block.rfind(b"\n")
        size = place + (first if first >= 0 else len(block)) - line_start
        if size > PARSED * most:
            for more in blocks if first < 0 else ():
                size += more.find(b"\n") if b"\n" in more else len(more)
                if b"\n" in more:
                    break
            reason = f"the line at byte {line_start} has {size:,} bytes"
            raise TooLongError(size // PARSED, reason)
        yield block
        if last >= 0:
            line_start = place + last + 1
        place += len(block)


def refuse_wide(origin: Origin, head: bytes) -> None:
    """Raise BadFileError if these first bytes of a text are UTF-16 or UTF-32."""
    if encoding := find_wide_encoding(head):
        raise BadFileError(
            origin.path, f"the text is {encoding}; convert it with `iconv -f {encoding} -t UTF-8`"
        )


def _read_compressed(
    origin: Origin,
    separator: bytes | None,
    text_field: str,
    cutter: Cutter | None,
    most: int,
    window: int,
) -> Iterator[Chunk]:
    with open_source(origin.path) as raw:
        blocks = _compressed_blocks(_decompress(raw, origin, window), origin)
        if origin.kind == "jsonl":
            chunks = read_json_lines(_bounded_lines(blocks, 0, most), 0, text_field, cutter)
        else:
            chunks = read_records(blocks, 0, separator, cutter, most=most)
        place = 0
        try:
            for chunk in chunks:
                # Progress counts bytes on disk, because their total is known beforehand.
                chunk.read, place = raw.tell() - place, raw.tell()
                yield chunk
        except WindowError as error:
            # Not a bad file, because the dataset must not depend on `memory`.
            need = error.window + LEAST_MEMORY
            raise InputError(
                f"{origin.path} was compressed with a window of {error.window:,} bytes, which is "
                "more than a worker may use.\n"
                f"Pass `workers=1` and `memory={need}`, or as much for each worker; or compress "
                "the file again with a smaller window."
            ) from error


def _decompress(raw: BinaryIO, origin: Origin, window: int) -> Stream:
    if origin.size == 0:
        raise BadFileError(origin.path, f"the file is empty, which no {origin.compression} file is")
    return decompress(raw, origin.compression or "", window=window)


def _compressed_blocks(stream: Stream, origin: Origin) -> Iterator[bytes]:
    first = True
    while block := stream.read(BLOCK):
        if first:
            refuse_wide(origin, block)
            first = False
        yield block


def is_utf8(data: bytes) -> bool:
    """Whether some bytes are valid UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def count_row_groups(path: str) -> list[int]:
    """The stored bytes of each row group; empty if the file's footer cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_source(path) as raw:
            metadata = pq.read_metadata(raw)
    except (OSError, pa.ArrowException):
        return []
    return [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]


def measure_row_groups(path: str, text_field: str) -> list[tuple[int, int]]:
    """The uncompressed bytes of the text column, and the rows, of each row group.

    Empty if the footer cannot be read or has no such column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    measured = []
    try:
        with open_source(path) as raw:
            metadata = pq.read_metadata(raw)
        names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        column = names.index(text_field)
    except (OSError, ValueError, pa.ArrowException):
        return []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        measured.append((group.column(column).total_uncompressed_size, group.num_rows))
    return measured


def _read_parquet(
    origin: Origin, start: int, end: int, text_field: str, cutter: Cutter | None, most: int
) -> Iterator[Chunk]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with (
            open_source(origin.path) as raw,  # Arrow cannot open names that are not UTF-8
            pq.ParquetFile(raw, pre_buffer=False, page_checksum_verification=True) as file,
        ):
            column = _text_column(file.schema_arrow, text_field, origin, pa)
            groups = list(range(start, min(end, file.num_row_groups)))
            row = sum(file.metadata.row_group(i).num_rows for i in range(start))
            share = max(1, sum(file.metadata.row_group(i).num_rows for i in groups))
            size = origin.size * len(groups) / max(1, file.num_row_groups)
            rows = _rows_at_once(file.metadata, groups, column, row, most)
            batches = file.iter_batches(
                rows, row_groups=groups, columns=[column], use_threads=False
            )
            for batch in batches:
                texts: list[bytes] = []
                offsets: list[int] = []
                chunk = Chunk(texts, offsets)
                chunk.read = int(size * batch.num_rows / share)
                for value in batch.column(0).cast(pa.large_binary()).to_pylist():
                    if value is None:
                        kind = f"field {text_field!r} is not a string"
                        reason = f"field {text_field!r} is null"
                        chunk.rejections.append(Rejection(None, row, kind, reason, 0))
                    else:
                        texts.append(value)
                        offsets.append(row)
                    row += 1
                yield from bound(chunk, cutter)
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # errors of the file system say what is wrong
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadFileError(origin.path, f"the Parquet file is damaged ({told})") from error


def _rows_at_once(metadata: Any, groups: list[int], column: str, row: int, most: int) -> int:
    """How many rows to decode at once: about one block, by their average size."""
    largest = 1
    for number in groups:
        group = metadata.row_group(number)
        columns = (group.column(i) for i in range(group.num_columns))
        size = sum(
            entry.total_uncompressed_size
            for entry in columns
            if entry.path_in_schema.split(".")[0] == column
        )
        average = size // max(1, group.num_rows)
        if average > PARSED * most:
            reason = f"the texts from row {row} on have {average:,} bytes each"
            raise TooLongError(average // PARSED, reason)
        largest = max(largest, average)
        row += group.num_rows
    return max(1, min(_ROWS, BLOCK // largest))


def _text_column(schema: Any, text_field: str, origin: Origin, pa: Any) -> str:
    found = [column.type for column in schema if column.name == text_field]
    if not found:
        texts = [column.name for column in schema if _is_text(column.type, pa)]
        cure = (
            f"; use {' or '.join(f'`text_field={name!r}`' for name in texts[:5])}"
            if texts
            else ", none with text"
        )
        reason = f"no column {text_field!r}; it has {list_names(schema.names)}{cure}"
        raise BadFileError(origin.path, reason)
    if len(found) > 1:
        reason = f"{len(found)} columns are named {text_field!r}; rename all but the one to read"
        raise BadFileError(origin.path, reason)
    if not _is_text(found[0], pa):
        raise BadFileError(origin.path, f"column {text_field!r} holds {found[0]}, not text")
    return text_field


def _is_text(kind: Any, pa: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests: list[Callable[[Any], bool]] = [
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
    ]
    return any(test(kind) for test in tests)
