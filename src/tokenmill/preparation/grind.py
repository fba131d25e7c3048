"""Make a segment from a part: read, clean and tokenize its documents, and compute their keys.

A part is the input of one task. Parts are independent, so they can be processed in any order,
anywhere. A segment is a bundle of files: the tokens, one record per document, the documents' keys,
and the rejected records. A document's key is a hash of its cleaned text. Work proceeds in chunks of a
few MB. The loops over documents are in native code, except for one hash call per document.

Judges may drop documents before they are tokenized: see `judges.py`.

If a document begins before the part or ends after it, the part has only a fragment of its text. The
bundle then also contains the fragment, because a key is computed from the whole document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from tokenmill.errors import TokenizerError, TooLongError
from tokenmill.preparation.engine import Worker
from tokenmill.preparation.examples import Example, Examples, show_beginning
from tokenmill.preparation.findings import list_findings
from tokenmill.preparation.judges import Judged, Panel, Verdict, open_panel
from tokenmill.preparation.key_files import KeyWriter, Marks
from tokenmill.preparation.lines import LineRemover
from tokenmill.preparation.open_document import OpenDocument
from tokenmill.preparation.part import (
    PartChunk,
    PartReader,
    PartTask,
    Skipped,
    without_bad_files,
)
from tokenmill.preparation.sampling import NOT_SAMPLED, is_sampled
from tokenmill.preparation.segment import (
    CONTINUES,
    REASON,
    RECORD,
    UNFINISHED,
    UNSAMPLED,
    Bundle,
    Fragment,
    Receipt,
    has_key,
)
from tokenmill.preparation.shingle_sets import SetWriter
from tokenmill.preparation.shingles import Shingler
from tokenmill.preparation.texts import Encoder, Texts, clean_chunk
from tokenmill.sources.files import BadFileError
from tokenmill.sources.records import Chunk


@dataclass(frozen=True, kw_only=True)
class GrindPart(PartTask):
    """A task: make the segment of a part."""

    def run(self, worker: Worker) -> Receipt | BadFileError:
        """Make the segment. Returns its receipt, or the error if a bad file cannot be skipped."""
        return without_bad_files(self, lambda skipped: self._make(worker, skipped))

    def _make(self, worker: Worker, skipped: Skipped) -> Receipt:
        with Bundle(self.folder, self.name) as bundle:
            segment = _Segment(self, worker, bundle)
            reader = PartReader(self, skipped)
            for part_chunk in reader:
                segment.add(part_chunk)
            segment.finish()
            facts = segment.facts() | {"lines": reader.lines, "skipped": sorted(skipped.items())}
            return bundle.finish(facts)


@dataclass
class _Counts:
    documents: int = 0
    bytes: int = 0
    dropped: dict[str, list[int]] = field(default_factory=dict)

    @property
    def dropped_documents(self) -> int:
        return sum(entry[0] for entry in self.dropped.values())

    def drop(self, reason: str, size: int, documents: int = 1) -> None:
        entry = self.dropped.setdefault(reason, [0, 0])
        entry[0] += documents
        entry[1] += size


class _Segment:
    """The segment of a part while it is written."""

    def __init__(self, task: GrindPart, worker: Worker, bundle: Bundle) -> None:
        self.task = task
        self.worker = worker
        self.tokenizer = worker.workspace.tokenizer
        self.bundle = bundle
        self.encoder = Encoder(worker.workspace, task.reading.hold_limit)
        self.counts = _Counts()
        self.tokens = self.records = 0
        self.open: OpenDocument | None = None
        self.fragments: list[Fragment] = []
        self.panel: Panel = open_panel(task.judges)
        self.examples = Examples()
        self.ledger_counts: Counter[str] = Counter()
        self.remover: LineRemover | None = None
        self.keys: KeyWriter | None = None
        self.sets: SetWriter | None = None
        self.rates = task.rates
        settings = task.settings
        if task.repeated_lines is not None:
            marks = Marks(task.repeated_lines.read())
            self.remover = LineRemover(marks, settings.min_line, tidy=settings.normalize)
        if settings.removes_repeats:
            self.keys = KeyWriter(task.keys, partial(bundle.write, "keys"))
        if settings.dedup == "near":
            self.sets = SetWriter(bundle.write)
        files = ("tokens", "docs", "fields") if settings.keep_fields else ("tokens", "docs")
        for file in files:
            bundle.write(file, b"")

    def add(self, part_chunk: PartChunk) -> None:
        """Clean and tokenize the documents of a chunk, and write them to the segment."""
        tokens, documents = self.tokens, self.counts.documents
        dropped = self.counts.dropped_documents
        self._add(part_chunk)
        self.worker.workspace.check_memory()
        self.worker.report(
            part_chunk.chunk.read,
            self.tokens - tokens,
            self.counts.documents - documents,
            self.counts.dropped_documents - dropped,
        )

    def finish(self) -> None:
        """Write what is held back: the end of a document that spans parts, and the last keys."""
        if self.open is not None:
            ids = self.encoder.finish()
            self.bundle.write("tokens", ids.astype(self.task.dtype).data)
            self.tokens += len(ids)
            self.open.lengthen(len(ids))
            self._write_records([self.open.record(UNFINISHED)])
            self.open = None
        if self.keys is not None:
            self.keys.flush()
        if examples := self.examples.encode():
            self.bundle.write("examples", examples)

    def _add(self, part_chunk: PartChunk) -> None:
        chunk = part_chunk.chunk
        self.counts.documents += len(chunk.offsets) - chunk.continues
        self.counts.bytes += sum(map(len, chunk.texts))
        texts = clean_chunk(chunk, self.task.settings, part_chunk.source)
        self.ledger_counts.update(texts.masked)
        self._reject(part_chunk)
        if not len(texts.sizes):
            return
        if len(texts.sizes) != len(part_chunk.sources):
            # Texts were dropped for invalid UTF-8. Such a chunk comes from a single file, so its
            # sources are all equal.
            part_chunk.sources = part_chunk.sources[: len(texts.sizes)]
        was_empty = texts.text_sizes == 0
        if self.remover is not None:
            texts = self._without_repeated_lines(self.remover, texts, chunk)
        filled = texts.text_sizes > 0
        filled[0] |= chunk.continues
        filled[-1] |= chunk.unfinished
        if not filled.all():
            for i in np.flatnonzero(~filled).tolist():
                # The text was empty from the start, or removing lines has made it empty.
                reason = "empty" if was_empty[i] else "only repeated lines"
                self.counts.drop(reason, int(texts.sizes[i]))
            texts, part_chunk.sources = texts.only(filled), part_chunk.sources[filled]
        if self.rates is not None and len(texts.sizes):
            texts = self._take_sample(self.rates, texts, part_chunk)
        if self.panel and len(texts.sizes):
            texts = self._judge(texts, part_chunk)
        if len(texts.sizes):
            self._tokenize(texts, part_chunk)

    def _take_sample(
        self, rates: Mapping[int, float], texts: Texts, part_chunk: PartChunk
    ) -> Texts:
        """Remove the documents that are not in the sample. Fragments stay until the key is known."""
        keys = _hash_texts(texts.views)
        numbers, places = np.unique(part_chunk.sources, return_inverse=True)
        own = np.array([rates[number] for number in numbers.tolist()])[places]
        chosen = is_sampled(keys, own)
        chosen[0] |= part_chunk.chunk.continues
        chosen[-1] |= part_chunk.chunk.unfinished
        if chosen.all():
            return texts
        lost = texts.sizes[~chosen]
        self.counts.drop(NOT_SAMPLED, int(lost.sum()), len(lost))
        part_chunk.sources = part_chunk.sources[chosen]
        return texts.only(chosen)

    def _without_repeated_lines(self, remover: LineRemover, texts: Texts, chunk: Chunk) -> Texts:
        facts = texts.offsets, texts.sizes, texts.marks
        if texts.block is not None and not (chunk.continues or chunk.unfinished):
            return Texts(None, remover.remove_from_block(texts.block), *facts)
        left = remover.remove(
            texts.texts,
            continues=chunk.continues,
            unfinished=chunk.unfinished,
            mid_line=chunk.mid_line,
        )
        return Texts.of(left, *facts)

    def _judge(self, texts: Texts, part_chunk: PartChunk) -> Texts:
        """Drop or change the whole documents that the judges want to drop or change.

        Fragments stay as they are. A document in fragments is judged when it is closed.
        """
        chunk = part_chunk.chunk
        whole = np.ones(len(texts.sizes), np.bool_)
        whole[:1] &= not chunk.continues
        whole[-1:] &= not chunk.unfinished
        if not whole.any():
            return texts
        some = texts if whole.all() else texts.only(whole)
        judged = self.panel.judge(some)
        self.ledger_counts.update(judged.counts)
        places = np.flatnonzero(whole)
        views = some.views
        if judged.findings:
            self._list_findings(judged, texts, part_chunk, places)
        for i in np.flatnonzero(judged.numbers).tolist():
            number, place = int(judged.numbers[i]), int(places[i])
            self.counts.drop(self.panel.reasons[number - 1], int(texts.sizes[place]))
            key = xxhash.xxh3_128_hexdigest(views[i])
            if self.examples.wants(number, key):
                source, offset = int(part_chunk.sources[place]), texts.offsets[place]
                value = judged.values.get(i)
                shown = show_beginning(views[i])
                self.examples.add(Example(number, key, source, offset, value, shown))
        stays = ~whole
        stays[places[judged.numbers == 0]] = True
        part_chunk.sources = part_chunk.sources[stays]
        if some is texts:
            return judged.kept
        left = iter(judged.kept.texts)
        kept = [texts.texts[i] if not whole[i] else next(left) for i in np.flatnonzero(stays)]
        facts = texts.only(stays)
        return Texts.of(kept, facts.offsets, facts.sizes, facts.marks)

    def _list_findings(
        self, judged: Judged, texts: Texts, part_chunk: PartChunk, places: npt.NDArray[np.int64]
    ) -> None:
        """Write what was found in whole documents. A changed document has the key of the new text."""
        views, kept = texts.views, judged.kept.views
        numbers = np.cumsum(judged.numbers == 0) - 1
        for i, findings in sorted(judged.findings.items()):
            place = int(places[i])
            text = views[place] if judged.numbers[i] else kept[int(numbers[i])]
            source = self.task.sources[int(part_chunk.sources[place])]
            key = xxhash.xxh3_128_hexdigest(text)
            self.bundle.write(
                "contaminated", list_findings(source, texts.offsets[place], key, findings)
            )

    def _reject(self, part_chunk: PartChunk) -> None:
        chunk = part_chunk.chunk
        for rejection in chunk.rejections:
            in_fragments = rejection.kind == "invalid UTF-8" and (
                (chunk.continues and rejection.offset == chunk.offsets[0])
                or (chunk.unfinished and rejection.offset == chunk.offsets[-1])
            )
            if rejection.kind != "invalid UTF-8":  # `_add` has counted documents with bad text
                self.counts.documents += 1
                self.counts.bytes += rejection.size
            if not in_fragments:
                self.counts.drop(rejection.kind, rejection.size)
            if not rejection.reason:  # counted, but not listed
                continue
            line = None if rejection.line is None else part_chunk.lines_before + rejection.line
            entry = [part_chunk.number, line, rejection.offset, rejection.reason]
            self.bundle.write("rejected", orjson.dumps(entry) + b"\n")

    def _tokenize(self, texts: Texts, part_chunk: PartChunk) -> None:
        settings, chunk = self.task.settings, part_chunk.chunk
        try:
            ids, offsets = self.encoder.encode(texts, chunk)
        except TooLongError as error:
            raise self.task.too_large(part_chunk.source.path, error) from None
        if len(ids) and int(ids.max()) >= self.tokenizer.vocab_size:
            raise TokenizerError(
                f"tokenizer {self.tokenizer.name} returned the id {int(ids.max())}, but its ids must be "
                f"below {self.tokenizer.vocab_size}, the size of its vocabulary. Use another tokenizer."
            )
        tokens, lengths = place_eot(
            ids,
            offsets,
            settings.eot,
            self.tokenizer.eot_id,
            continues=chunk.continues,
            unfinished=chunk.unfinished,
        )
        self.bundle.write("tokens", tokens.astype(self.task.dtype).data)
        self.tokens += len(tokens)

        records = np.zeros(len(lengths), RECORD)
        views = texts.views
        records["key"] = _hash_texts(views)
        records["length"] = lengths
        records["source"] = part_chunk.sources
        records["offset"] = texts.offsets
        records["raw"] = texts.sizes
        records["text"] = texts.text_sizes
        records["characters"] = texts.characters
        if texts.marks is not None:
            records["flags"], records["replaced"] = (
                texts.marks["flags"],
                texts.marks["replaced"],
            )
            lines = texts.marks["line"].astype(np.int64)
            lines[lines > 0] += part_chunk.lines_before
            records["line"] = np.where(lines < 1 << 32, lines, 0)
        if settings.keep_fields:
            self._keep_fields(texts, part_chunk)
        self._close_and_open(texts, views, records, chunk.continues, chunk.unfinished)

    def _keep_fields(self, texts: Texts, part_chunk: PartChunk) -> None:
        """Write a line for each document that begins in these texts, or continues from another part.

        So the segment has as many lines as records. They have the same order.
        """
        first = int(part_chunk.chunk.continues and self.open is not None)
        places = zip(part_chunk.sources[first:].tolist(), texts.offsets[first:], strict=True)
        lines = [part_chunk.fields.get(place, b"{}") + b"\n" for place in places]
        self.bundle.write("fields", b"".join(lines))

    def _close_and_open(
        self,
        texts: Texts,
        views: Sequence[Any],
        records: npt.NDArray[np.void],
        continues: bool,
        unfinished: bool,
    ) -> None:
        """Write one record for each document that ends in these texts.

        If the first text `continues` a document, or the last text is `unfinished`, the records of
        that document's fragments are joined, and its text is kept.
        """
        first, last = 0, len(views)
        if continues:
            if self.open is None:
                self.open = OpenDocument(records[0].copy(), CONTINUES, None)
            else:
                self.open.add(records[0])
            self._keep_text(views[0])
            first = 1
            if not (unfinished and last == 1):
                self._write_records([self._close()])
        if unfinished and last > first:
            last -= 1
        if self.sets is not None and first < last:
            self.sets.add_texts(*texts.join(first, last), record=self.records)
        self._write_records(records[first:last])
        if unfinished and last < len(views):
            hearing = self.panel.begin() if self.panel else None
            self.open = OpenDocument(records[last].copy(), 0, hearing)
            if self.sets is not None:
                self.open.shingler = Shingler()
            self._keep_text(views[last])

    def _keep_text(self, text: Any) -> None:
        assert self.open is not None
        self.open.keep(text)
        self.bundle.write("text", text)

    def _close(self) -> Any:
        """Close the open document, and return its record."""
        assert self.open is not None
        if not self._is_in_sample(self.open):
            self.open.flags |= UNSAMPLED
        elif self.open.hearing is not None:
            self._judge_open(self.open, self.open.hearing.finish())
        record = self.open.record(0)
        if not self.open.flags & CONTINUES:
            # The whole document is in this part, so its key is known and its text is not needed.
            self.bundle.cut_back("text", int(record["text"]))
            shingler = self.open.shingler if has_key(np.asarray([record], RECORD))[0] else None
            if self.sets is not None and shingler is not None:
                self.sets.add(shingler, self.records)
        self.open = None
        return record

    def _is_in_sample(self, document: OpenDocument) -> bool:
        """Return whether a document is in the sample. One that begins in an earlier part seems to be."""
        if self.rates is None or document.is_bad or document.flags & CONTINUES:
            return True
        record = document.record(0)
        rate = np.array([self.rates[int(record["source"])]])
        return bool(is_sampled(record["key"].reshape(1, 2), rate)[0])

    def _judge_open(self, document: OpenDocument, verdict: Verdict) -> None:
        """Mark a document to be dropped, if the judges say so. `sift.py` drops and counts it."""
        if document.is_bad:
            return
        self.ledger_counts.update(verdict.counts)
        if verdict.findings:
            record = document.record(0)
            listed = list_findings(
                self.task.sources[int(record["source"])],
                int(record["offset"]),
                document.hash.hexdigest(),
                verdict.findings,
            )
            self.bundle.write("contaminated", listed)
        if verdict.number:
            document.flags |= REASON * verdict.number
            record = document.record(0)
            key = document.hash.hexdigest()
            shown = show_beginning(document.beginning)
            source, offset = int(record["source"]), int(record["offset"])
            example = Example(verdict.number, key, source, offset, verdict.value, shown)
            self.examples.add(example)

    def _write_records(self, records: Any) -> None:
        if len(records):
            array = np.asarray(records, RECORD)
            self.bundle.write("docs", array.tobytes())
            self.records += len(array)
            spans = (array["flags"] & (CONTINUES | UNFINISHED)) != 0
            self.fragments += map(Fragment.of, array[spans])
            if self.keys is not None:
                self.keys.add(array["key"][has_key(array)])

    def facts(self) -> dict[str, Any]:
        """Return the facts about the segment that later stages need besides its files."""
        return {
            "tokens": self.tokens,
            "records": self.records,
            "keys": self.keys.count if self.keys else 0,
            "fragments": self.fragments,
            "documents_in": self.counts.documents,
            "bytes_in": self.counts.bytes,
            "dropped": self.counts.dropped,
            "repeated_lines": self.remover.removed if self.remover else 0,
        } | ({"counts": dict(self.ledger_counts)} if self.ledger_counts else {})


def _hash_texts(texts: Sequence[Any]) -> npt.NDArray[np.uint64]:
    """Return the keys of some texts, of shape (n, 2)."""
    digests = b"".join(map(xxhash.xxh3_128_digest, texts))
    return np.frombuffer(digests, ">u8").reshape(-1, 2).astype(np.uint64)


def place_eot(
    ids: npt.NDArray[np.uint32],
    offsets: npt.NDArray[np.int64],
    place: str,
    eot_id: int | None,
    *,
    continues: bool,
    unfinished: bool,
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Put the end-of-text id after each text, before each text, or nowhere, as `place` says.

    `ids` and `offsets` are from `encode_terminated`: the end-of-text id, or 0 if there is none,
    follows each text. Returns the tokens to store, and the number of tokens of each document.
    `continues` means that the first text is not the start of its document, `unfinished` that the
    last text is not the end of its document: no end-of-text id goes there.

    >>> ids, offsets = np.array([5, 6, 0, 7, 0], np.uint32), np.array([0, 3, 5])
    >>> tokens, lengths = place_eot(ids, offsets, "before", 0, continues=False, unfinished=False)
    >>> tokens.tolist(), lengths.tolist()
    ([0, 5, 6, 0, 7], [3, 2])
    """
    lengths = np.diff(offsets)
    if place == "none":
        inside = np.ones(len(ids), np.bool_)
        inside[offsets[1:] - 1] = False
        return ids[inside], lengths - 1
    if place == "after":
        if unfinished:
            lengths[-1] -= 1
            return ids[:-1], lengths
        return ids, lengths
    # The terminator after a text serves as the one before the next text.
    tokens = ids[:-1]
    if continues:
        lengths[0] -= 1
        return tokens, lengths
    return np.concatenate([np.array([eot_id], np.uint32), tokens]), lengths
