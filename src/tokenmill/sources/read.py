"""Read documents from input files: text, JSON, CSV, Parquet, Arrow, tar archives and WARC.

Files are read as streams, a block at a time. Compressed streams are read to their trailer: a
truncated or altered stream is a `BadFileError`, never a short file. A record that cannot be used is
a `Rejection` with its position; the records around it are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO

from tokenmill.errors import InputError, TooLongError
from tokenmill.sources.arrow import read_arrow
from tokenmill.sources.compression import (
    DAMAGED,
    LARGEST_WINDOW,
    USUAL_WINDOW,
    Stream,
    WindowError,
    decompress,
)
from tokenmill.sources.containers import Joiner
from tokenmill.sources.csv_rows import read_csv
from tokenmill.sources.encodings import AUTO, choose_encoding, convert
from tokenmill.sources.fields import Field
from tokenmill.sources.files import BadFileError, SourceFile, is_about_process, open_source
from tokenmill.sources.json_array import read_json_array
from tokenmill.sources.json_lines import read_json_lines
from tokenmill.sources.parquet import ROWS, read_parquet
from tokenmill.sources.records import BLOCK, PARSED, Chunk, Cutter, find_border, split_records
from tokenmill.sources.tar import ArchiveError, read_members
from tokenmill.sources.warc import (
    WITHOUT_TEXT,
    WarcError,
    find_text,
    open_page,
    read_warc_records,
)
from tokenmill.sources.web_pages import MissingExtractorError, decode_text, extract_text
from tokenmill.wording import one_line

_HEAD = 4096  # bytes that show whether a text is UTF-16 or UTF-32
LEAST_MEMORY = 128 << 20  # bytes per worker, without the window of a zstd or xz stream


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How to read a source.

    A file is divided into parts about every `step` bytes (see `records.find_border`). `border_cutter`
    says where a border between parts may be inside a document. `cutter` says where a document may be
    divided into fragments. `encoding` is that of text and JSON lines, outside of archives.
    """

    separator: bytes | None = None
    text_field: str = "text"
    keep: tuple[Field, ...] = ()  # fields to keep besides the text
    encoding: str = AUTO
    step: int = 1 << 62
    cutter: Cutter | None = None
    border_cutter: Cutter | None = None
    hold_limit: int = 1 << 62  # bytes of one document that may be held at once
    window: int = USUAL_WINDOW  # bytes that the window of a zstd or xz stream may take
    block: int = BLOCK
    rows: int = ROWS


def read_range(source: SourceFile, start: int, end: int, how: Reading) -> Iterator[Chunk]:
    """Yield the documents in the range [start, end) of a file, in chunks.

    For Parquet, the range counts row groups; for Arrow, record batches; otherwise it counts bytes. A
    compressed file and an archive are always read whole.
    """
    try:
        if source.kind == "parquet":
            yield from read_parquet(
                source,
                start,
                end,
                how.text_field,
                how.cutter,
                keep=how.keep,
                hold_limit=how.hold_limit,
                block=how.block,
                rows=how.rows,
            )
        elif source.kind == "arrow":
            yield from read_arrow(
                source,
                start,
                end,
                how.text_field,
                how.cutter,
                hold_limit=how.hold_limit,
                block=how.block,
            )
        elif source.is_stream:
            yield from _read_stream(source, how)
        elif source.size == 0 and source.kind == "text":
            open_source(source.place).close()
            yield Chunk([b""], [0])  # an empty document, for the ledger
        else:
            with open_source(source.place) as file:
                if choose_encoding(file.read(_HEAD), how.encoding) is None:
                    yield from _read_plain(file, source, start, end, how)
                    return
            if start == 0:  # borders between parts are found in UTF-8 only
                yield from _read_stream(source, how)
    except DAMAGED as error:
        if is_about_process(error):
            raise
        raise BadFileError(source.path, _explain(error, source.compression)) from error


def _read_plain(
    file: BinaryIO, source: SourceFile, start: int, end: int, how: Reading
) -> Iterator[Chunk]:
    is_text = source.kind == "text"
    separator, cutter = (how.separator, how.border_cutter) if is_text else (b"\n", None)
    (first, whole), (last, complete) = (
        find_border(file, place, source.size, how.step, separator, cutter, how.block)
        for place in (start, end)
    )
    blocks = _read_blocks(file, source, first, last, how.block)
    if not is_text:
        yield from _read_records(blocks, source.kind, source.path, first, how)
    elif first < last:
        yield from split_records(
            blocks,
            first,
            separator,
            how.cutter,
            continues=not whole,
            unfinished=not complete,
            hold_limit=how.hold_limit,
            block_bytes=how.block,
        )


def _read_blocks(
    file: BinaryIO, source: SourceFile, start: int, end: int, size: int
) -> Iterator[bytes]:
    file.seek(start)
    place = start
    while place < end:
        block = file.read(min(size, end - place))
        if not block:
            raise BadFileError(source.path, "the file became shorter while it was being read")
        place += len(block)
        yield block


def _refuse_long_lines(blocks: Iterator[bytes], start: int, hold_limit: int) -> Iterator[bytes]:
    """Yield the blocks unchanged. Raises TooLongError if a line is too long to hold."""
    place = line_start = start
    for block in blocks:
        first, last = block.find(b"\n"), block.rfind(b"\n")
        size = place + (first if first >= 0 else len(block)) - line_start
        if size > PARSED * hold_limit:
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


def _read_stream(source: SourceFile, how: Reading) -> Iterator[Chunk]:
    with open_source(source.place) as raw:
        stream = _decompress(raw, source, how.window) if source.compression else raw
        if source.kind == "tar":
            chunks = _read_archive(stream, source, how)
        elif source.kind == "warc":
            chunks = _read_warc(stream, source, how)
        else:
            blocks = _to_utf8(stream, how.encoding, how.block)
            chunks = _read_records(blocks, source.kind, source.path, 0, how)
        place = 0
        try:
            for chunk in chunks:
                # Progress counts bytes on disk, because their total is known beforehand.
                chunk.read, place = raw.tell() - place, raw.tell()
                yield chunk
        except WindowError as error:
            # Not a BadFileError: such files may be skipped, and then the dataset would depend on
            # `memory`.
            need = error.window + LEAST_MEMORY
            raise InputError(
                f"{source.path} was compressed with a window of {error.window:,} bytes, which is "
                "more than a worker may use.\n"
                f"Pass `workers=1` and `memory={need}` (or more workers, with that much "
                "memory for each), or compress the file again with a smaller window."
            ) from error


def _read_archive(stream: Stream, source: SourceFile, how: Reading) -> Iterator[Chunk]:
    joiner = Joiner()
    try:
        for member in read_members(stream, how.block):
            if member.why is not None:
                reason = f"{member.name} is {member.why}"
                yield from joiner.reject(member.offset, member.size, member.why, reason)
            elif member.size == 0 and member.kind == "text":
                yield from joiner.add(Chunk([b""], [member.offset]))
            else:
                for chunk in _read_records(
                    member.blocks, member.kind, source.path, member.offset, how
                ):
                    yield from joiner.add(chunk)
    except ArchiveError as error:
        raise BadFileError(source.path, f"the archive is damaged: {error}") from error
    yield from joiner.flush()


def _read_warc(stream: Stream, source: SourceFile, how: Reading) -> Iterator[Chunk]:
    joiner = Joiner()
    try:
        for record in read_warc_records(stream, how.block):
            found = find_text(record)
            if found is None:
                for _ in record.blocks:
                    pass
                yield from joiner.reject(record.offset, record.size, WITHOUT_TEXT, "")
                continue
            if found == "text":
                chunks = _read_whole(record.blocks, how)
            else:
                page = open_page(record, is_http=found == "http", most=how.hold_limit)
                if isinstance(page, str):
                    address = one_line(record.headers.get("warc-target-uri", "")[:300])
                    reason = f"{address} is {page}"
                    yield from joiner.reject(record.offset, record.size, page, reason)
                    continue
                make = extract_text if page.is_html else decode_text
                chunks = _read_whole(iter([make(page.content, page.charset)]), how)
            for chunk in chunks:
                chunk.offsets = [record.offset] * len(chunk.offsets)
                yield from joiner.add(chunk)
    except (WarcError, MissingExtractorError) as error:
        raise BadFileError(source.path, f"the WARC file cannot be read: {error}") from error
    yield from joiner.flush()


def _read_whole(blocks: Iterator[bytes], how: Reading) -> Iterator[Chunk]:
    """Yield a text that is one document."""
    first = True
    for chunk in split_records(
        blocks, 0, None, how.cutter, hold_limit=how.hold_limit, block_bytes=how.block
    ):
        yield chunk
        first = False
    if first:
        yield Chunk([b""], [0])


def _read_records(
    blocks: Iterator[bytes], kind: str, path: str, start: int, how: Reading
) -> Iterator[Chunk]:
    """Yield the documents in a stream of text or records, which begins at offset `start`."""
    if kind in ("json", "csv"):
        read = read_json_array if kind == "json" else read_csv
        return read(blocks, path, how.text_field, how.cutter, how.block, how.hold_limit, how.keep)
    if kind == "jsonl":
        lines = _refuse_long_lines(blocks, start, how.hold_limit)
        return read_json_lines(
            lines, start, how.text_field, how.cutter, how.block, how.hold_limit, how.keep
        )
    return split_records(
        blocks,
        start,
        how.separator,
        how.cutter,
        hold_limit=how.hold_limit,
        block_bytes=how.block,
    )


def _decompress(raw: BinaryIO, source: SourceFile, window: int) -> Stream:
    if source.size == 0:
        raise BadFileError(
            source.path, f"the file is empty, so it is not a valid {source.compression} file"
        )
    return decompress(raw, source.compression or "", window=window)


def _to_utf8(stream: Stream, named: str, size: int) -> Iterator[bytes]:
    """Yield the blocks of a text, in UTF-8."""
    first = stream.read(size)
    encoding = choose_encoding(first, named)
    blocks = chain([first] if first else [], iter(lambda: stream.read(size), b""))
    yield from blocks if encoding is None else convert(blocks, encoding, size)


def read_head(source: SourceFile, size: int, encoding: str | None = None) -> bytes:
    """Read about the first `size` bytes of a file, decompressed, and in UTF-8 if `encoding` is given.

    `encoding` is as in `Reading`.
    """
    try:
        with open_source(source.place) as raw:
            stream = _decompress(raw, source, LARGEST_WINDOW) if source.compression else raw
            head = stream.read(size)
            found = None if encoding is None else choose_encoding(head, encoding)
            return b"".join(convert([head], found, size)) if found else head
    except DAMAGED as error:
        if is_about_process(error):
            raise
        raise BadFileError(source.path, _explain(error, source.compression)) from error


def is_converted(source: SourceFile, encoding: str) -> bool:
    """Return whether a text is converted to UTF-8 while it is read. Its offsets are those of UTF-8.

    `encoding` is as in `Reading`.
    """
    if source.kind not in ("text", "jsonl"):
        return False
    return choose_encoding(read_head(source, _HEAD), encoding) is not None


def read_blocks(source: SourceFile, block: int = BLOCK, encoding: str = AUTO) -> Iterator[bytes]:
    """Yield all bytes of a text or JSON lines file, decompressed and in UTF-8, some at a time."""
    try:
        with open_source(source.place) as raw:
            stream = _decompress(raw, source, LARGEST_WINDOW) if source.compression else raw
            yield from _to_utf8(stream, encoding, block)
    except DAMAGED as error:
        if is_about_process(error):
            raise
        raise BadFileError(source.path, _explain(error, source.compression)) from error


def _explain(error: Exception, compression: str | None) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    detail = str(error).strip() or type(error).__name__
    if "runcated" in detail or isinstance(error, EOFError) or "ended before" in detail:
        return f"the {compression} stream ends too early; the file is cut short"
    return f"the {compression} stream is damaged ({detail})"
