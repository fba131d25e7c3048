"""A part to a segment: read, decode, clean, tokenize, key each document.

Parts know nothing of each other, so they can be ground in any order, anywhere. A segment is a
bundle of files: the tokens, one record a document, and what was rejected. Work goes through the
part in chunks of a few MB, and the loops over documents are in native code but for one hash call.

If a document begins before the part or ends after it, the part has only some of its text. That text
goes into the bundle too, because the key can be computed only from the whole document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from tokenmill.errors import TokenizerError, TooLongError
from tokenmill.preparation.bundle import Bundle
from tokenmill.preparation.encode import Encoder
from tokenmill.preparation.lines import LineRemover, line_keys
from tokenmill.preparation.part import Batch, Job, PartReader, TooLargeError, too_large
from tokenmill.preparation.texts import Prepared, prepare_chunk
from tokenmill.sources.read import BadFileError
from tokenmill.sources.records import Chunk
from tokenmill.tokenizers import Tokenizer

RECORD = np.dtype(
    [
        ("key", "<u8", (2,)),
        ("length", "<u8"),  # tokens, the end-of-text token included
        ("source", "<u4"),
        ("line", "<u4"),  # line of the first replaced byte within its piece, from 1; 0: unknown
        ("offset", "<u8"),
        ("raw", "<u8"),  # bytes as they were read
        ("text", "<u8"),  # bytes after cleaning
        ("characters", "<u8"),
        ("flags", "<u4"),
        ("replaced", "<u4"),  # bytes that were not UTF-8
    ]
)
CONTINUES, GOES_ON = 1, 2  # flags of a record, beside those of the text

Progress = Callable[[int, int, int, int], None]  # bytes read, tokens, documents, dropped


@dataclass
class _Counts:
    documents: int = 0
    bytes: int = 0
    dropped: dict[str, list[int]] = field(default_factory=dict)

    @property
    def dropped_documents(self) -> int:
        return sum(entry[0] for entry in self.dropped.values())

    def drop(self, reason: str, size: int) -> None:
        entry = self.dropped.setdefault(reason, [0, 0])
        entry[0] += 1
        entry[1] += size


def grind(job: Job, tokenizer: Tokenizer, progress: Progress) -> dict[str, Any]:
    """Make the segment of a part; returns its receipt."""
    return _with_bad_files_aside(job, lambda aside: _grind(job, tokenizer, progress, aside))


def scan_lines(job: Job, progress: Progress) -> dict[str, Any]:
    """Make the bundle of a part's line keys; returns its receipt."""
    return _with_bad_files_aside(job, lambda aside: _scan(job, progress, aside))


Aside = dict[int, BadFileError]


def _with_bad_files_aside(job: Job, work: Callable[[Aside], dict[str, Any]]) -> dict[str, Any]:
    """Do the work, and begin again without each file that turns out to be bad.

    The receipt says which; whether the run may go on without them is not decided here. A file
    whose lines were scanned must be read, or the marks would belong to other lines.
    """
    aside = {number: BadFileError(job.sources[number].path, why) for number, why in job.aside}
    while True:
        try:
            return work(aside)
        except BadFileError as error:
            number = next(n for n in job.sources if job.sources[n].path == error.source)
            # The dataset must not depend on `memory`, so this file is never left out.
            if (
                job.repeated_lines is not None
                or number in aside
                or isinstance(error, TooLargeError)
            ):
                raise
            aside[number] = error


def _aside_facts(aside: Aside) -> list[dict[str, Any]]:
    return [{"source": number, "reason": error.reason} for number, error in sorted(aside.items())]


def _scan(job: Job, progress: Progress, aside: Aside) -> dict[str, Any]:
    count = 0
    with Bundle(job.folder, job.name) as bundle:
        bundle.write("lines", b"")
        for batch in PartReader(job, aside):
            chunk = batch.chunk
            prepared = prepare_chunk(chunk, job.settings, batch.source)
            keys = _line_keys(prepared, chunk, job.settings.min_line)
            bundle.write("lines", keys)
            count += len(keys) // 16
            progress(chunk.read, 0, 0, 0)
        return bundle.finish({"lines": count, "set_aside": _aside_facts(aside)})


def _line_keys(prepared: Prepared, chunk: Chunk, min_line: int) -> bytes:
    """The keys of a chunk's lines. Pieces of documents, and texts with NUL bytes, go one by one."""
    if prepared.block is not None and not (chunk.continues or chunk.goes_on):
        return line_keys(prepared.block, min_line, block=True)
    last = len(prepared.texts) - 1
    return b"".join(
        line_keys(
            text,
            min_line,
            continues=chunk.continues and i == 0,
            mid_line=chunk.mid_line and i == last,
        )
        for i, text in enumerate(prepared.texts)
    )


def _grind(job: Job, tokenizer: Tokenizer, progress: Progress, aside: Aside) -> dict[str, Any]:
    with Bundle(job.folder, job.name) as bundle:
        segment = _Segment(job, tokenizer, bundle)
        reader = PartReader(job, aside)
        for batch in reader:
            segment.add(batch, progress)
        segment.finish()
        facts = segment.facts() | {"lines": reader.lines, "set_aside": _aside_facts(aside)}
        return bundle.finish(facts)


class _Segment:
    """The segment of a part while it grows."""

    def __init__(self, job: Job, tokenizer: Tokenizer, bundle: Bundle) -> None:
        self.job = job
        self.tokenizer = tokenizer
        self.bundle = bundle
        self.encoder = Encoder(tokenizer, job.most)
        self.counts = _Counts()
        self.tokens = self.records = 0
        self.open: _OpenDocument | None = None
        self.remover: LineRemover | None = None
        if job.repeated_lines is not None:
            marks, start, end = job.repeated_lines
            flags = np.fromfile(marks, np.uint8, count=end - start, offset=start)
            settings = job.settings
            self.remover = LineRemover(flags, settings.min_line, tidy=settings.normalize)
        for file in ("tokens", "docs"):
            bundle.write(file, b"")

    def add(self, batch: Batch, progress: Progress) -> None:
        """Grind some documents."""
        tokens, documents = self.tokens, self.counts.documents
        dropped = self.counts.dropped_documents
        self._add(batch)
        progress(
            batch.chunk.read,
            self.tokens - tokens,
            self.counts.documents - documents,
            self.counts.dropped_documents - dropped,
        )

    def finish(self) -> None:
        """Flush a document that continues in the next part."""
        if self.open is not None:
            ids = self.encoder.finish()
            self.bundle.write("tokens", ids.astype(self.job.dtype).data)
            self.tokens += len(ids)
            self.open.lengthen(len(ids))
            self._write_records([self.open.record(GOES_ON)])
            self.open = None

    def _add(self, batch: Batch) -> None:
        chunk = batch.chunk
        self.counts.documents += len(chunk.offsets) - chunk.continues
        self.counts.bytes += sum(map(len, chunk.texts))
        prepared = prepare_chunk(chunk, self.job.settings, batch.source)
        self._reject(batch)
        if not len(prepared.sizes):
            return
        if len(prepared.sizes) != len(batch.sources):  # some left; a batch like that is of one file
            batch.sources = batch.sources[: len(prepared.sizes)]
        was_empty = prepared.text_sizes == 0
        if self.remover is not None:
            prepared = self._without_repeated_lines(self.remover, prepared, chunk)
        filled = prepared.text_sizes > 0
        filled[0] |= chunk.continues
        filled[-1] |= chunk.goes_on
        if not filled.all():
            for i in np.flatnonzero(~filled).tolist():
                # Empty before lines were removed, or because of it.
                reason = "empty" if was_empty[i] else "only repeated lines"
                self.counts.drop(reason, int(prepared.sizes[i]))
            prepared, batch.sources = prepared.only(filled), batch.sources[filled]
        if len(prepared.sizes):
            self._tokenize(prepared, batch)

    def _without_repeated_lines(
        self, remover: LineRemover, prepared: Prepared, chunk: Chunk
    ) -> Prepared:
        facts = prepared.offsets, prepared.sizes, prepared.marks
        if prepared.block is not None and not (chunk.continues or chunk.goes_on):
            return Prepared(None, remover.remove_from_block(prepared.block), *facts)
        texts = remover.remove(
            prepared.texts,
            continues=chunk.continues,
            goes_on=chunk.goes_on,
            mid_line=chunk.mid_line,
        )
        return Prepared.of(texts, *facts)

    def _reject(self, batch: Batch) -> None:
        chunk = batch.chunk
        for rejection in chunk.rejections:
            in_pieces = rejection.kind == "invalid UTF-8" and (
                (chunk.continues and rejection.offset == chunk.offsets[0])
                or (chunk.goes_on and rejection.offset == chunk.offsets[-1])
            )
            if rejection.kind != "invalid UTF-8":  # that one was read as a text, and is counted
                self.counts.documents += 1
                self.counts.bytes += rejection.size
            if not in_pieces:
                self.counts.drop(rejection.kind, rejection.size)
            line = None if rejection.line is None else batch.lines_before + rejection.line
            entry = [batch.number, line, rejection.offset, rejection.reason]
            self.bundle.write("rejected", orjson.dumps(entry) + b"\n")

    def _tokenize(self, prepared: Prepared, batch: Batch) -> None:
        settings, chunk = self.job.settings, batch.chunk
        try:
            ids, offsets = self.encoder.encode(prepared, chunk)
        except TooLongError as error:
            raise too_large(batch.source.path, error, self.job) from None
        if len(ids) and int(ids.max()) >= self.tokenizer.vocab_size:
            raise TokenizerError(
                f"tokenizer {self.tokenizer.name} gave the id {int(ids.max())}, beyond its "
                f"vocabulary of {self.tokenizer.vocab_size}."
            )
        tokens, lengths = place_eot(
            ids,
            offsets,
            settings.eot,
            self.tokenizer.eot_id,
            continues=chunk.continues,
            goes_on=chunk.goes_on,
        )
        self.bundle.write("tokens", tokens.astype(self.job.dtype).data)
        self.tokens += len(tokens)

        records = np.zeros(len(lengths), RECORD)
        views = prepared.views
        digests = b"".join(map(xxhash.xxh3_128_digest, views))
        records["key"] = np.frombuffer(digests, ">u8").reshape(-1, 2)
        records["length"] = lengths
        records["source"] = batch.sources
        records["offset"] = prepared.offsets
        records["raw"] = prepared.sizes
        records["text"] = prepared.text_sizes
        records["characters"] = prepared.characters
        if prepared.marks is not None:
            records["flags"], records["replaced"] = (
                prepared.marks["flags"],
                prepared.marks["replaced"],
            )
            lines = prepared.marks["line"].astype(np.int64)
            lines[lines > 0] += batch.lines_before
            records["line"] = np.where(lines < 1 << 32, lines, 0)
        self._close_and_open(views, records, chunk.continues, chunk.goes_on)

    def _close_and_open(
        self,
        texts: Sequence[Any],
        records: npt.NDArray[np.void],
        continues: bool,
        goes_on: bool,
    ) -> None:
        """Write the records of whole documents; join those of a document in pieces."""
        first, last = 0, len(texts)
        if continues:
            if self.open is None:
                self.open = _OpenDocument(records[0].copy(), CONTINUES)
            else:
                self.open.add(records[0])
            self._keep_text(texts[0])
            first = 1
            if not (goes_on and last == 1):
                self._write_records([self._close()])
        if goes_on and last > first:
            last -= 1
        self._write_records(records[first:last])
        if goes_on and last < len(texts):
            self.open = _OpenDocument(records[last].copy(), 0)
            self._keep_text(texts[last])

    def _keep_text(self, text: Any) -> None:
        assert self.open is not None
        self.open.hash.update(text)
        self.bundle.write("text", text)

    def _close(self) -> Any:
        """The finished record of the open document."""
        assert self.open is not None
        record = self.open.record(0)
        if not self.open.flags & CONTINUES:
            # All of it was in this part, so its key is known and its text not needed.
            self.bundle.cut_back("text", int(record["text"]))
        self.open = None
        return record

    def _write_records(self, records: Any) -> None:
        if len(records):
            array = np.asarray(records, RECORD)
            self.bundle.write("docs", array.tobytes())
            self.records += len(array)

    def facts(self) -> dict[str, Any]:
        """What the rest of the run needs to know of the segment, beside its files."""
        return {
            "tokens": self.tokens,
            "records": self.records,
            "documents_in": self.counts.documents,
            "bytes_in": self.counts.bytes,
            "dropped": self.counts.dropped,
            "repeated_lines": self.remover.removed if self.remover else 0,
        }


class _OpenDocument:
    """A document of which some pieces have been seen."""

    def __init__(self, record: Any, flags: int) -> None:
        self._record = record
        self.flags = flags
        self.hash = xxhash.xxh3_128()

    def add(self, record: Any) -> None:
        for name in ("length", "raw", "text", "characters"):
            self._record[name] += record[name]
        self._record["flags"] |= record["flags"]
        replaced = int(self._record["replaced"]) + int(record["replaced"])
        self._record["replaced"] = min(replaced, 2**32 - 1)
        self._record["line"] = self._record["line"] or record["line"]

    def lengthen(self, tokens: int) -> None:
        self._record["length"] += tokens

    def record(self, flags: int) -> Any:
        """The record so far. Its key is 0 while the whole document is not known."""
        self._record["flags"] |= self.flags | flags
        whole = not (self.flags | flags) & (CONTINUES | GOES_ON)
        digest = self.hash.digest() if whole else bytes(16)
        self._record["key"] = np.frombuffer(digest, ">u8")
        return self._record


def place_eot(
    ids: npt.NDArray[np.uint32],
    offsets: npt.NDArray[np.int64],
    place: str,
    eot_id: int | None,
    *,
    continues: bool,
    goes_on: bool,
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Texts that each end with a terminator, to tokens as they stand on disk and their lengths.

    >>> ids, offsets = np.array([5, 6, 0, 7, 0], np.uint32), np.array([0, 3, 5])
    >>> tokens, lengths = place_eot(ids, offsets, "before", 0, continues=False, goes_on=False)
    >>> tokens.tolist(), lengths.tolist()
    ([0, 5, 6, 0, 7], [3, 2])
    """
    lengths = np.diff(offsets)
    if place == "none":
        inside = np.ones(len(ids), np.bool_)
        inside[offsets[1:] - 1] = False
        return ids[inside], lengths - 1
    if place == "after":
        if goes_on:
            lengths[-1] -= 1
            return ids[:-1], lengths
        return ids, lengths
    # The terminator behind a text is the one before the next text.
    tokens = ids[:-1]
    if continues:
        lengths[0] -= 1
        return tokens, lengths
    return np.concatenate([np.array([eot_id], np.uint32), tokens]), lengths
