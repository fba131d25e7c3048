"""Input files to documents: plain text, JSON lines and Parquet, compressed or not.

Files are read as streams, a block at a time. Compressed streams are read to their trailer: one
that is cut short or altered is a `BadFileError`, never a short file. A record that cannot be
used is a `Rejection` with its place; the records around it are kept.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import orjson

from tokenmill.errors import InputError
from tokenmill.mill.compression import Stream, decompress
from tokenmill.mill.records import BLOCK, Chunk, Cutter, Rejection, find_border, read_records

__all__ = ["BadFileError", "Origin", "count_row_groups", "is_utf8", "read_piece"]

_ROWS = 256  # rows of a Parquet file decoded at once


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
) -> Iterator[Chunk]:
    """The documents of one piece of a file: a range of bytes, or of row groups for Parquet.

    A compressed file is always one piece. `step` is the distance of the file's nominal borders;
    `border_cutter` says where a border may fall inside a document, `cutter` where a document may
    be handed on in pieces.
    """
    try:
        if origin.kind == "parquet":
            yield from _read_parquet(origin, start, end, text_field, cutter)
        elif origin.compression:
            yield from _read_compressed(origin, separator, text_field, cutter)
        else:
            with Path(origin.path).open("rb") as file:
                if origin.kind == "jsonl":
                    first, _ = find_border(file, start, origin.size, step, b"\n", None)
                    last, _ = find_border(file, end, origin.size, step, b"\n", None)
                    blocks = _blocks(file, origin, first, last)
                    yield from _read_json(blocks, first, text_field, cutter)
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
                    )
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise BadFileError(origin.path, _explain(error, origin.compression)) from error


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
            _refuse_wide(origin, block)
        place += len(block)
        yield block


def _refuse_wide(origin: Origin, head: bytes) -> None:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadFileError(
            origin.path, "the text is UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`"
        )


def _read_compressed(
    origin: Origin, separator: bytes | None, text_field: str, cutter: Cutter | None
) -> Iterator[Chunk]:
    if origin.size == 0:
        raise BadFileError(origin.path, f"the file is empty, which no {origin.compression} file is")
    with Path(origin.path).open("rb") as raw:
        stream = decompress(raw, origin.compression or "")  # Arrow's closes the file at its end
        blocks = _compressed_blocks(stream, origin)
        if origin.kind == "jsonl":
            chunks = _read_json(blocks, 0, text_field, cutter)
        else:
            chunks = read_records(blocks, 0, separator, cutter)
        place = 0
        for chunk in chunks:
            # Progress counts what is on the disk, so that the total is known beforehand.
            chunk.read, place = raw.tell() - place, raw.tell()
            yield chunk


def _compressed_blocks(stream: Stream, origin: Origin) -> Iterator[bytes]:
    first = True
    while block := stream.read(BLOCK):
        if first:
            _refuse_wide(origin, block)
            first = False
        yield block


def _read_json(
    blocks: Iterator[bytes], start: int, text_field: str, cutter: Cutter | None
) -> Iterator[Chunk]:
    held: list[bytes] = []  # the blocks of a line whose end has not come
    for block in _and_newline(blocks):
        held.append(block)
        if b"\n" not in block:
            continue
        whole = b"".join(held)
        lines = whole.split(b"\n")
        held = [lines.pop()]
        texts: list[bytes] = []
        offsets: list[int] = []
        chunk = Chunk(texts, offsets)
        chunk.whole, chunk.begin = whole, start
        for line in lines:
            try:
                text = orjson.loads(line)[text_field]
                texts.append(text.encode())
                offsets.append(start)
            except (ValueError, KeyError, TypeError, AttributeError):
                found = _read_odd_line(line, start, text_field, chunk)
                if found is not None:
                    texts.append(found)
                    offsets.append(start)
            start += len(line) + 1
            chunk.lines += 1
            chunk.read += len(line) + 1
        yield from _bounded(chunk, cutter)


def _and_newline(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks, with a line end behind the last line where the file has none."""
    last = b"\n"
    for block in blocks:
        yield block
        last = block[-1:]
    if last != b"\n":
        yield b"\n"


def _read_odd_line(line: bytes, start: int, text_field: str, chunk: Chunk) -> bytes | None:
    """The text in a line that the fast path refused, or a rejection that says why there is none."""
    if not line.strip():
        return None
    size = len(line)
    if start == 0:
        line = line.removeprefix(b"\xef\xbb\xbf")
    # Bytes that are no UTF-8 pass through as they are, for the rule on bad text to judge.
    errors = "strict" if is_utf8(line) else "surrogateescape"
    try:
        # The standard library reads what Python's own writers write: NaN, huge numbers.
        record = json.loads(line.decode("utf-8", errors))
        if not isinstance(record, dict):
            kind, reason = "not a JSON object", f"a JSON {_json_kind(record)}, not an object"
        elif text_field not in record:
            kind = reason = f"no field {text_field!r}"
        elif not isinstance(record[text_field], str):
            kind = f"field {text_field!r} is not a string"
            reason = f"field {text_field!r} is a {_json_kind(record[text_field])}, not a string"
        else:
            text: bytes = record[text_field].encode("utf-8", errors)
            return text
    except UnicodeEncodeError:
        kind, reason = "lone surrogate", f"field {text_field!r} holds a lone surrogate"
    except RecursionError:
        kind, reason = "not JSON", "not JSON: nested too deeply"
    except ValueError as error:
        kind, reason = "not JSON", f"not JSON: {error}"
    chunk.rejections.append(Rejection(chunk.lines, start, kind, reason, size))
    return None


def is_utf8(data: bytes) -> bool:
    """Whether some bytes are valid UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _json_kind(value: Any) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


def count_row_groups(path: str) -> list[int]:
    """The stored bytes of each row group; empty if the file's footer cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
    except (OSError, pa.ArrowException):
        return []
    return [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]


def _read_parquet(
    origin: Origin, start: int, end: int, text_field: str, cutter: Cutter | None
) -> Iterator[Chunk]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(origin.path, pre_buffer=False, page_checksum_verification=True) as file:
            column = _text_column(file.schema_arrow, text_field, origin, pa)
            groups = list(range(start, min(end, file.num_row_groups)))
            row = sum(file.metadata.row_group(i).num_rows for i in range(start))
            share = max(1, sum(file.metadata.row_group(i).num_rows for i in groups))
            size = origin.size * len(groups) / max(1, file.num_row_groups)
            batches = file.iter_batches(
                _ROWS, row_groups=groups, columns=[column], use_threads=False
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
                yield from _bounded(chunk, cutter)
    except (OSError, pa.ArrowException) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadFileError(origin.path, f"the Parquet file is damaged ({told})") from error


def _text_column(schema: Any, text_field: str, origin: Origin, pa: Any) -> str:
    if text_field not in schema.names:
        raise BadFileError(
            origin.path,
            f"no column {text_field!r}; it has {', '.join(schema.names)} (see --text-field)",
        )
    kind = schema.field(text_field).type
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
    if not any(test(kind) for test in tests):
        raise BadFileError(origin.path, f"column {text_field!r} holds {kind}, not text")
    return text_field


def _bounded(chunk: Chunk, cutter: Cutter | None) -> Iterator[Chunk]:
    """The same documents in chunks of about a block, long ones in pieces."""
    if sum(map(len, chunk.texts)) <= 2 * BLOCK:
        yield chunk
        return
    rest = Chunk([], [])
    rest.rejections, rest.lines, rest.read = chunk.rejections, chunk.lines, chunk.read
    yield rest
    texts: list[bytes] = []
    offsets: list[int] = []
    held = 0
    for text, offset in zip(chunk.texts, chunk.offsets, strict=True):
        if held and held + len(text) > BLOCK:
            yield Chunk(texts, offsets)
            texts, offsets, held = [], [], 0
        if len(text) > 2 * BLOCK and cutter is not None:
            pieces = (text[i : i + BLOCK] for i in range(0, len(text), BLOCK))
            for piece in read_records(pieces, 0, None, cutter):
                piece.offsets = [offset]
                piece.lines, piece.read, piece.whole = 0, 0, b""
                yield piece
        else:
            texts.append(text)
            offsets.append(offset)
            held += len(text)
    if texts:
        yield Chunk(texts, offsets)
