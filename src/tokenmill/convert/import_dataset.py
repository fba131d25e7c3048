"""`tokenmill.import_dataset`: make a prepared dataset from tokens in any format.

The result has a manifest, checksums and document tables, like a dataset that `prepare` made. Ids
that are not in the tokenizer's vocabulary are refused. Empty documents are dropped and counted.

There is no text, so a document's key is the xxh3-128 hash of its ids as little-endian int64. A
document's source is the file in which it starts, and its offset is the position of its first token
in that file. The manifest says that the end-of-text id is after (or before) documents only if that
is true for every document.

Costs: the tokens are read twice, in blocks, and hashing takes one call per document.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from tokenmill.convert.shard_writer import (
    MARKS,
    RECORD,
    DocumentRecords,
    read_finished,
    refuse_other_dataset,
    write_manifest,
    write_splits,
)
from tokenmill.dataset.opening import Dataset, open
from tokenmill.dataset.paths import AnyPaths
from tokenmill.errors import DatasetError, TokenizerError, UsageError
from tokenmill.formats.document_starts import (
    count_empty,
    find_document_starts,
    find_next_start,
    skip_empty,
)
from tokenmill.formats.file_documents import DocumentIndexes, DocumentStarts, FileDocuments
from tokenmill.formats.writing import BLOCK
from tokenmill.progress import Watcher, watching
from tokenmill.sources.files import name_source
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.object_path import as_path
from tokenmill.storage.output import OutputFolder
from tokenmill.store.documents import sums
from tokenmill.store.frames import (
    Compress,
    Compression,
    choose_compression,
    describe_compression,
)
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest, Split
from tokenmill.store.shards import Shards
from tokenmill.store.tables import Source, SourceTable
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import Tokenizer
from tokenmill.tokenizers.minimal import UnknownTokenizer

TOKENS_PER_SHARD = 100_000_000


def import_dataset(
    source: AnyPaths,
    out: str | os.PathLike[str],
    *,
    tokens_per_shard: int = TOKENS_PER_SHARD,
    compress: Compress = "none",
    progress: bool | None = None,
    watcher: Watcher | None = None,
    **options: Any,
) -> Manifest:
    """Make a prepared dataset from tokens that `tokenmill.open` opens, or resume making it.

    `compress` is "zstd" or "none". `options` are passed to `tokenmill.open`. If the files do not
    name their tokenizer, pass `tokenizer`. To import the ids without a tokenizer, pass only
    `vocab_size`. If nothing separates documents, each file becomes one document.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "x.npy", np.array([72, 105, 256, 33, 256]))
    >>> made = import_dataset(folder / "x.npy", folder / "data", tokenizer="bytes")
    >>> made.splits["train"].documents, open(folder / "data").tokenizer.decode([72, 105])
    (2, 'Hi')
    """
    if not 1 <= tokens_per_shard < 1 << 62:
        raise UsageError(
            f"`tokens_per_shard` is {tokens_per_shard}; it must be positive, and below 2**62."
        )
    compression = choose_compression(compress)
    dataset = open(source, cache_bytes=0, **options)
    if dataset.manifest is not None:
        raise UsageError(
            f"{source} is already a prepared dataset. To change its shards, run: tokenmill reshard "
            f"{source} --out FOLDER --tokens-per-shard {tokens_per_shard}"
        )
    tokenizer = _choose_tokenizer(dataset, options.get("tokenizer"), options.get("vocab_size"))
    settings = {
        "imported": dataset.format,
        "tokens_per_shard": tokens_per_shard,
        "content": {
            split: f"{len(dataset[split])} {dataset[split].fingerprint}" for split in dataset.splits
        },
        **describe_compression(compression),
    }
    with (
        explain_disk_errors(),
        OutputFolder(as_path(out), marks=MARKS) as folder,
        watching(watcher, progress) as shown,
    ):
        if there := read_finished(folder.path):
            if there.settings != settings or there.tokenizer_fingerprint != tokenizer.fingerprint:
                refuse_other_dataset(folder.path)
            return there
        folder.remember(RECORD, {**settings, "tokenizer": tokenizer.fingerprint})
        return _import(dataset, tokenizer, folder.path, settings, compression, shown)


def _choose_tokenizer(dataset: Dataset, given: Any, vocab_size: int | None) -> Tokenizer:
    """Return the tokenizer of the ids, or a stand-in that only knows the vocabulary size."""
    try:
        found = dataset.tokenizer
    except TokenizerError as error:
        if vocab_size is None and given is None:
            raise TokenizerError(
                f"{error} Or pass `vocab_size=N` to import the ids without a tokenizer."
            ) from None
        if vocab_size is None:
            raise
        found = None
    if found is not None and (given is not None or vocab_size in (None, found.vocab_size)):
        return found
    assert vocab_size is not None
    return UnknownTokenizer(vocab_size, dataset.eot_id)


def _import(
    dataset: Dataset,
    tokenizer: Tokenizer,
    folder: Path,
    settings: dict[str, Any],
    compression: Compression | None,
    watcher: Watcher,
) -> Manifest:
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    sources: list[Source] = []
    splits: dict[str, tuple[Tokens, DocumentRecords]] = {}
    for name in dataset.splits:
        tokens, shards = dataset[name], dataset.contents.splits[name]
        counts = shards.counts
        if tokens.documents is None and tokens.eot_id is None:
            tokens = Tokens(shards, name, documents=_make_one_per_file(shards, name))
        splits[name] = tokens, HashedDocuments(tokens, counts, len(sources), tokenizer.eot_id)
        sources += _list_sources(dataset, name)
    made, facts = write_splits(
        folder,
        splits,
        dtype=dtype,
        vocab_size=tokenizer.vocab_size,
        tokens_per_shard=settings["tokens_per_shard"],
        compression=compression,
        watcher=watcher,
    )
    places = [place for place in ("after", "before") if all(one.get(place) for one in facts)]
    manifest = Manifest(
        dtype=dtype.name,
        vocab_size=tokenizer.vocab_size,
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint,
        eot=places[0] if places else "none",
        eot_id=tokenizer.eot_id,
        splits=made,
        sources=SourceTable.of(sources),
        settings=settings,
        ledger=_make_ledger(
            made,
            sum(source.bytes for source in sources),
            sum(count_empty(tokens) for tokens, _ in splits.values()),
        ),
        compression=compression,
    )
    state = orjson.dumps(tokenizer.state(), option=orjson.OPT_SORT_KEYS)
    write_manifest(folder, manifest, state + b"\n")
    return manifest


def _list_sources(dataset: Dataset, split: str) -> list[Source]:
    """Return the files of a split as the sources of its documents.

    The size of a source counts only the bytes of ids. Offsets in a source are in units of "byte" or
    "row". Here the unit is "row", because a document's offset in the file counts tokens, not bytes.
    """
    shards = dataset.contents.splits[split]
    width = shards.dtype.itemsize
    return [
        Source(path=_name_file(dataset, shards.name(number)), bytes=int(count) * width, unit="row")
        for number, count in enumerate(shards.counts)
    ]


def _name_file(dataset: Dataset, name: str) -> str:
    """Return the name of a file; a `file:` URI if the name has a newline or is not UTF-8."""
    if name_source(name) == name:
        return name
    path = dataset.path
    return name_source(str((path if path.is_dir() else path.parent) / name))


def _make_ledger(splits: dict[str, Split], size: int, empty: int) -> dict[str, Any]:
    """Make the manifest's ledger: how many documents and bytes were read, kept and dropped.

    Bytes and characters of text are 0, because the text is unknown.
    """
    documents = sum(split.documents for split in splits.values())
    return {
        "documents_in": documents + empty,
        "bytes_in": size,
        "documents_kept": documents,
        "bytes_kept": size,
        "dropped": {"empty": {"documents": empty, "bytes": 0}} if empty else {},
        "text_bytes": 0,
        "characters": 0,
        "repaired_documents": 0,
        "duplicate_lines": 0,
        "set_aside": [],
        "tokens": sum(split.tokens for split in splits.values()),
    }


def _make_one_per_file(shards: Shards, split: str) -> FileDocuments:
    """Make a document table in which each file is one document."""
    counts = shards.counts.tolist()
    indexes = DocumentIndexes(
        names=[shards.name(number) for number in range(len(counts))],
        counts=[int(count > 0) for count in counts],
        read=lambda file: DocumentStarts(int(counts[file] > 0), lambda some: some * counts[file]),
    )
    return FileDocuments(indexes, counts, split)


class HashedDocuments:
    """Makes document records for tokens. The key of a document is a hash of its ids.

    `facts` says whether every document ends with the end-of-text id, and whether every document
    begins with it. `counts` are the tokens per file, `first_source` is the number of the first file
    in the list of sources, and `block` is how many tokens are read at once.
    """

    def __init__(
        self,
        tokens: Tokens,
        counts: npt.NDArray[np.int64],
        first_source: int,
        eot_id: int | None,
        block: int = BLOCK,
    ) -> None:
        self.tokens, self.first_source, self.eot_id = tokens, first_source, eot_id
        self.block = block
        self.file_starts = sums(counts)
        self.after = self.before = eot_id is not None

    def facts(self) -> dict[str, bool]:
        facts = {"after": self.after, "before": self.before}
        self.after = self.before = self.eot_id is not None
        return facts

    def read(self, start: int, stop: int) -> Iterator[npt.NDArray[np.void]]:
        found = find_document_starts(self.tokens, start, stop, window=self.block)
        for starts in skip_empty(found, len(self.tokens)):
            if len(starts):
                end = find_next_start(self.tokens, int(starts[-1]) + 1, window=self.block)
                yield self._make_records(np.append(starts, end), start)

    def _make_records(self, starts: npt.NDArray[np.int64], start: int) -> npt.NDArray[np.void]:
        """Return the records of documents.

        `starts` has the start of each document, and then the end of the last one. In a record,
        `first` is the position of the document's first token, counted from token `start`.
        """
        table = np.empty(len(starts) - 1, DOCUMENT_DTYPE)
        keys = b"".join(self._hash(starts))
        table["key"] = np.frombuffer(keys, ">u8").reshape(-1, 2)
        table["first"] = starts[:-1] - start
        table["length"] = np.diff(starts)
        files = self.file_starts.searchsorted(starts[:-1], "right") - 1
        table["source"] = self.first_source + files
        table["offset"] = starts[:-1] - self.file_starts[files]
        return table

    def _hash(self, starts: npt.NDArray[np.int64]) -> Iterator[bytes]:
        """Yield the key of each document. Long documents are read block by block."""
        ids, low, stop = np.empty(0, np.int64), 0, int(starts[-1])
        for start, end in pairwise(starts.tolist()):
            if end > low + len(ids):
                low = start
                ids = self._read_ids(start, min(start + self.block, stop))
            self.before &= int(ids[start - low]) == self.eot_id
            digest = xxhash.xxh3_128(ids[start - low : end - low].data)
            for more in range(low + len(ids), end, self.block):  # a document longer than a block
                ids, low = self._read_ids(more, min(more + self.block, stop)), more
                digest.update(ids[: end - low].data)
            self.after &= int(ids[end - low - 1]) == self.eot_id
            yield digest.digest()

    def _read_ids(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        ids = self.tokens.read(start, stop)
        if ids.dtype.kind == "u" and ids.itemsize == 8 and ids.max(initial=0) >> 63:
            raise DatasetError(
                f"split {self.tokens.split!r} has an id above 2**63 - 1, so the file is damaged or "
                "in another format. Copy or download it again, or pass `format` or `dtype`."
            )
        return np.ascontiguousarray(ids, "<i8")
