"""`tokenmill.reshard`: write a prepared dataset with shards of another size, compressed, or without
some documents.

The result has the bytes that `prepare` would write with the new settings: the same tokens,
documents, keys and origins. The copy of a dataset that has grown has one generation. Batches do not change, unless documents are left out. The checksums of
the source are verified first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from tokenmill.convert.shard_writer import (
    MARKS,
    RECORD,
    SplitData,
    check_checksums,
    read_finished,
    refuse_other_dataset,
    write_manifest,
    write_splits,
)
from tokenmill.convert.without import LeftOut, RecordsWithout, check_change, leaving_out
from tokenmill.dataset.opening import Dataset, open
from tokenmill.errors import UsageError
from tokenmill.formats.prepared import open_fields
from tokenmill.preparation.exclusion import Exclude, choose_lists
from tokenmill.progress import Watcher, watching
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import AtomicFile
from tokenmill.storage.names import EXCLUDED_NAME, REPORT_NAMES, TOKENIZER_NAME
from tokenmill.storage.object_path import as_path
from tokenmill.storage.output import OutputFolder
from tokenmill.storage.reading import DamagedFileError, open_inside, read_inside
from tokenmill.store.documents import read_table_header, sums
from tokenmill.store.fields import DOCUMENTS_PER_FRAME, FieldsWriter, KeptFields, find_library
from tokenmill.store.frames import Compress, choose_compression, describe_compression
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest, Split
from tokenmill.store.tables import SourceTable
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers.limits import MOST_BYTES

_BLOCK = 1 << 16  # records that are read at once: 3 MB


def reshard(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    tokens_per_shard: int | None = None,
    compress: Compress | None = None,
    exclude: Exclude = None,
    progress: bool | None = None,
    watcher: Watcher | None = None,
) -> Manifest:
    """Write a copy of a prepared dataset with other shards, or resume writing it.

    `compress` is "zstd" or "none". If `tokens_per_shard` or `compress` is omitted, it stays as in
    the source. The copy leaves out the documents in the source's list (see `tokenmill.exclude`) and
    in the lists `exclude`; `exclude=False` keeps all documents.

    >>> import tempfile, tokenmill
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("To be, or not to be.")
    >>> _ = tokenmill.prepare(folder / "a.txt", folder / "a", tokenizer="bytes", val_fraction=0)
    >>> made = reshard(folder / "a", folder / "b", tokens_per_shard=10)
    >>> [shard.tokens for shard in made.splits["train"].shards]
    [10, 10, 1]
    """
    if tokens_per_shard is not None and not 1 <= tokens_per_shard < 1 << 62:
        raise UsageError(
            f"`tokens_per_shard` is {tokens_per_shard}; it must be positive, and below 2**62."
        )
    dataset = open(source, cache_bytes=0)
    manifest = dataset.manifest
    if manifest is None:
        raise UsageError(
            f"{source} is in the format {dataset.format}, not a prepared dataset. Import it first: "
            f"tokenmill import {source} --out FOLDER"
        )
    wanted = _change_settings(manifest, tokens_per_shard, compress)
    is_same = tokens_per_shard is None and compress is None
    lists = choose_lists(exclude, source)
    with (
        explain_disk_errors(),
        watching(watcher, progress) as shown,
        leaving_out(dataset, _read_splits(dataset, manifest), lists, shown) as (splits, left_out),
    ):
        if is_same:
            check_change(lists, left_out)
        if left_out is not None:
            settings, ledger = left_out.change(wanted)
            wanted = replace(wanted, settings=settings, ledger=ledger)
        with OutputFolder(as_path(out), marks=MARKS) as folder:
            return _write(dataset, manifest, wanted, splits, left_out, folder, shown)


def _read_splits(dataset: Dataset, manifest: Manifest) -> dict[str, SplitData]:
    nothing = Tokens.of(np.empty(0, dataset.dtype))  # stands in for empty splits
    return {
        name: (dataset.get(name, nothing), _TableRecords(dataset.path, split))
        for name, split in manifest.splits.items()
    }


def _write(
    dataset: Dataset,
    manifest: Manifest,
    wanted: Manifest,
    splits: Mapping[str, SplitData],
    left_out: LeftOut | None,
    folder: OutputFolder,
    watcher: Watcher,
) -> Manifest:
    """Write the dataset `wanted` from the splits of `dataset`, or resume writing it."""
    gone = {} if left_out is None else left_out.documents
    counts = [
        (name, len(splits[name][0]), documents - gone.get(name, 0))
        for name, _, documents in _count_contents(manifest)
    ]
    tokens_per_shard = wanted.settings["tokens_per_shard"]
    if there := read_finished(folder.path):
        same = _without_shards(there) == _without_shards(wanted)
        if not same or _count_contents(there) != counts:
            refuse_other_dataset(folder.path)
        return there
    settings = {
        "reshard": [split.shards.xxh3_128 for split in manifest.splits.values()],
        "tokens_per_shard": tokens_per_shard,
        **describe_compression(wanted.compression),
        **({} if left_out is None else {"exclude": wanted.settings["exclude"]}),
    }
    folder.remember(RECORD, settings)
    if left_out is not None:
        left_out.announce(watcher)
    check_checksums(dataset.path, manifest)
    made_splits, _ = write_splits(
        folder.path,
        splits,
        dtype=dataset.dtype,
        vocab_size=manifest.vocab_size,
        tokens_per_shard=tokens_per_shard,
        compression=wanted.compression,
        watcher=watcher,
    )
    fields = _copy_fields(dataset.path, folder.path, manifest, splits, made_splits)
    made = replace(wanted, splits=made_splits, fields=fields)
    _compare_ids(manifest, made)
    for name in REPORT_NAMES:
        more = left_out.report if left_out is not None and name == EXCLUDED_NAME else None
        _copy(dataset.path, manifest.list_files(name), folder.path / name, more)
    state = read_inside(dataset.path, TOKENIZER_NAME, MOST_BYTES)
    write_manifest(folder.path, made, state)
    return made


def _change_settings(
    manifest: Manifest, tokens_per_shard: int | None, compress: Compress | None
) -> Manifest:
    """Return the manifest with new settings. None keeps a setting."""
    if tokens_per_shard is None:
        lengths = [shard for split in manifest.splits.values() for shard in split.shards.tokens]
        given = manifest.settings.get("tokens_per_shard")
        is_known = isinstance(given, int) and 1 <= given < 1 << 62
        tokens_per_shard = given if is_known else int(max(lengths, default=1)) or 1
    if compress is None:
        compress = "none" if manifest.compression is None else "zstd"
    compression = choose_compression(compress)
    settings = {key: value for key, value in manifest.settings.items() if key != "compress"}
    settings |= {"tokens_per_shard": tokens_per_shard, **describe_compression(compression)}
    one = replace(manifest, settings=settings, compression=compression, generations=())
    if manifest.generations:  # the copy has one generation, and one list of sources
        one = replace(one, sources=SourceTable.of(manifest.sources))
    return one


def _compare_ids(source: Manifest, made: Manifest) -> None:
    """Raise `DamagedFileError` if the ids of a shard have changed.

    Only splits whose shards have the same lengths as before can be compared.
    """
    for name, split in made.splits.items():
        before = source.splits[name].shards
        if np.array_equal(before.tokens, split.shards.tokens):
            for path, old, new in zip(
                split.shards.path, before.xxh3_128, split.shards.xxh3_128, strict=True
            ):
                if old != new:
                    raise DamagedFileError(path, "does not have the ids of its source")


def _copy(source: Path, names: Sequence[str], target: Path, more: BinaryIO | None) -> None:
    """Join the reports of all generations, those that there are, and append more to them."""
    there = [name for name in names if (source / name).is_file()]
    if there or more is not None:
        with AtomicFile(target) as copy:
            for name in there:
                with open_inside(source, name) as file:
                    _append(file, copy)
            if more is not None:
                _append(more, copy)
            if there or copy.size:
                copy.finish()


def _copy_fields(
    source: Path,
    target: Path,
    manifest: Manifest,
    splits: Mapping[str, SplitData],
    made: Mapping[str, Split],
) -> KeptFields | None:
    """Write the kept fields of the documents that stay. Returns the entry for the manifest."""
    if manifest.fields is None:
        return None
    files = {}
    for name, (_, records) in splits.items():
        reader = open_fields(source, manifest, name)
        if reader is None or not made[name].documents:
            continue
        lines = reader.read_lines()
        if isinstance(records, RecordsWithout):
            length = int(manifest.splits[name].tokens)
            lines = compress(lines, records.find_kept(length))
        with FieldsWriter(target, name) as writer:
            for line in lines:
                writer.add(line + b"\n")
            files[name] = writer.finish()
    return KeptFields(
        names=manifest.fields.names,
        documents_per_frame=DOCUMENTS_PER_FRAME,
        library=find_library(),
        files=files,
    )


def _append(file: BinaryIO, copy: AtomicFile) -> None:
    while block := file.read(4 << 20):
        copy.write(block)


def _without_shards(manifest: Manifest) -> Manifest:
    """Return the manifest without its shards, to compare the contents of two datasets."""
    return replace(manifest, splits={}, compression=None, fields=None)


def _count_contents(manifest: Manifest) -> list[tuple[str, int, int]]:
    return [(name, split.tokens, split.documents) for name, split in manifest.splits.items()]


class _TableRecords:
    """The `DocumentRecords` of a prepared split: reads the records for any range of its tokens."""

    def __init__(self, folder: Path, split: Split) -> None:
        self.folder, self.split = folder, split
        self.starts = sums(split.shards.tokens)

    def facts(self) -> dict[str, bool]:
        return {}

    def read(self, start: int, stop: int) -> Iterator[npt.NDArray[np.void]]:
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        last = int(np.searchsorted(self.starts, stop, side="left"))
        for number in range(first, last):
            shard, before = self.split.shards[number], int(self.starts[number])
            with open_inside(self.folder, shard.documents_path) as file:
                file.seek(read_table_header(file, shard.documents_path, shard.documents))
                while data := file.read(_BLOCK * DOCUMENT_DTYPE.itemsize):
                    table = np.frombuffer(bytearray(data), DOCUMENT_DTYPE)
                    places = table["first"].astype(np.int64) + before
                    inside = (places >= start) & (places < stop)
                    table["first"] = places - start
                    yield table[inside]
