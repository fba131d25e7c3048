"""`tokenmill.export`: write tokens as another program's files.

Guarantees: the files hold the same ids and documents as the source, in the same order, except for
changes that `Exported.notes` lists. The files are read back and compared with the source. A
prepared source with a wrong checksum is refused. In a format without a document table, only the
end-of-text id separates documents. Some formats have this id before each document, others after
each document; the export moves the id accordingly.

After a kill at any moment, the same call resumes with the file that was being written. If existing
files differ from a prepared source, all files are written again. If existing files differ from a
source in another format, the export is refused, because the source itself may have changed.

Costs: the source is read in blocks, at most four times: to check it, to copy it, to compare ids and
to compare documents.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.convert.shard_writer import check_checksums
from tokenmill.dataset.opening import Dataset, open
from tokenmill.dataset.paths import AnyPaths
from tokenmill.errors import DatasetError, TokenizerError, UsageError
from tokenmill.formats import WRITABLE, find_writable
from tokenmill.formats.base import Format, NotThisFormat
from tokenmill.formats.document_starts import (
    Integers,
    count_empty,
    count_if_same,
    find_document_starts,
    skip_empty,
)
from tokenmill.formats.end_of_text import move_eot
from tokenmill.formats.writing import BLOCK, WriteRequest
from tokenmill.progress import Watcher, watching
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import make_subfolder, sync_folder
from tokenmill.storage.object_path import as_path
from tokenmill.storage.output import OutputFolder
from tokenmill.store.tokens import Tokens

RECORD = ".tokenmill-export.json"
TOKENS_PER_SHARD = 100_000_000


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The result of `export`.

    `tokens` has the number of tokens in each split. `files` names all files, including those from
    earlier runs, and `files_done_before` counts the latter. `documents` has the number of documents
    that a reader of the format finds in each split, or None if these are not the documents of the
    source. `notes` lists all differences from the source.
    """

    path: Path
    format: str
    tokens: dict[str, int]
    files: tuple[str, ...]
    files_done_before: int
    documents: dict[str, int | None]
    notes: tuple[str, ...] = ()


def export(
    source: AnyPaths | Dataset,
    out: str | os.PathLike[str],
    *,
    to: str,
    tokens_per_shard: int = TOKENS_PER_SHARD,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    **options: Any,
) -> Exported:
    """Write tokens as another program's files, or resume writing them.

    `source` is an open dataset, or a path for `tokenmill.open`, which also gets the `options`.
    `out` is a new or empty folder. `to` is the name of a format; docs/formats.md lists the formats
    that can be written. `tokens_per_shard` is only for formats with several files per split.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "x.npy", np.array([5, 6, 0, 7, 0]))
    >>> made = export(folder / "x.npy", folder / "out", to="megatron", eot_id=0, vocab_size=8)
    >>> made.files, made.documents
    (('train.idx', 'train.bin'), {'train': 2})
    >>> [one.length for one in open(folder / "out" / "train")["train"].documents]
    [3, 2]
    """
    format = find_writable(to)
    if not 1 <= tokens_per_shard < 1 << 62:
        raise UsageError(
            f"`tokens_per_shard` is {tokens_per_shard}; it must be positive, and below 2**62."
        )
    dataset = source if isinstance(source, Dataset) else open(source, cache_bytes=0, **options)
    if not dataset:
        raise DatasetError(f"{dataset.path} has no tokens to export.")
    target = as_path(out)
    if target.resolve() == dataset.path.resolve():
        raise UsageError(f"{out} is the source of the export. Choose another folder for `out`.")
    job = _Export(dataset, format, tokens_per_shard)
    settings: dict[str, Any] = {
        "to": format.name,
        "tokens_per_shard": tokens_per_shard,
        "splits": {split: [len(tokens), tokens.fingerprint] for split, tokens in dataset.items()},
    }
    if job.moved:
        settings["eot"] = format.eot
    with (
        explain_disk_errors(),
        OutputFolder(target, marks=[RECORD]) as folder,
        watching(watcher, progress) as shown,
    ):
        folder.remember(RECORD, settings)
        if dataset.manifest is not None:
            check_checksums(dataset.path, dataset.manifest)
        return job.run(folder.path, shown)


class _Export:
    """One export. In `splits`, the end-of-text id is already where the format needs it."""

    def __init__(self, source: Dataset, format: Format, tokens_per_shard: int) -> None:
        self.source, self.format = source, format
        arranged, self.moved = source, list[str]()
        if not format.keeps_documents:
            contents, self.moved = move_eot(source.contents, format.eot)
            arranged = source.with_contents(contents)
        self.splits = dict(arranged.items())
        self.has_eot = source.eot_id is not None and source.contents.eot != "none"
        self.request = WriteRequest(
            splits=self.splits,
            dtype=source.dtype,
            vocab_size=source.vocab_size,
            eot_id=source.eot_id if self.has_eot else None,
            tokenizer=_find_tokenizer_name(source) if format.names_tokenizer else None,
            tokens_per_shard=tokens_per_shard,
        )

    def run(self, folder: Path, watcher: Watcher) -> Exported:
        names, before = self.write_files(folder, watcher)
        try:
            documents = self.compare(folder, watcher)
        except DatasetError:
            if not before or self.source.manifest is None:
                raise
            watcher.note(
                f"Files of an earlier run in {folder} differ from the source; writing them again."
            )
            names, before = self.write_files(folder, watcher, keep=False)
            documents = self.compare(folder, watcher)
        return Exported(
            path=folder,
            format=self.format.name,
            tokens={split: len(tokens) for split, tokens in self.splits.items()},
            files=tuple(names),
            files_done_before=before,
            documents=documents,
            notes=tuple(self.describe_changes(documents)),
        )

    def write_files(
        self, folder: Path, watcher: Watcher, *, keep: bool = True
    ) -> tuple[list[str], int]:
        """Write the missing files or, if not `keep`, all files.

        Return the names of all files, and how many of them existed before. Indexes and metadata are
        always written again: they are small, and comparing ids and documents would not find every
        wrong byte in an index.
        """
        # Progress counts each token twice: when it is written and when it is compared.
        watcher.begin("exporting", 2 * sum(map(len, self.splits.values())), unit="tokens")
        names, before = [], 0
        for job in self.format.plan(self.request):
            path = folder / job.name
            names.append(job.name)
            is_there = keep and path.exists()
            before += is_there
            if is_there and job.tokens:
                watcher.advance(job.tokens)
                continue
            make_subfolder(folder, path.parent)
            job.write(path, watcher.advance)
        # An earlier run that wrote files may have been killed before it flushed their folders.
        for parent in {(folder / name).parent for name in names} if before else ():
            sync_folder(parent)
        return names, before

    def compare(self, folder: Path, watcher: Watcher) -> dict[str, int | None]:
        """Compare the written splits with the source; return the number of documents per split."""
        written = self.read_back(folder)
        for split, tokens in self.splits.items():
            compare(tokens, written[split], watcher.advance)
        return {split: self.count_documents(split, written[split]) for split in self.splits}

    def read_back(self, folder: Path) -> dict[str, Tokens]:
        """Read the written splits with the reader of the format."""
        name, splits = self.format.name, list(self.splits)
        try:
            contents = self.format.read_written(folder, splits)
        except NotThisFormat as reason:
            raise DatasetError(
                f"{folder} cannot be read back as {name}: {reason}. Delete it and export again."
            ) from None
        if lost := [split for split in splits if split not in contents.splits]:
            raise DatasetError(
                f"the format {name} has no split named {lost[0]!r}, so programs would not find it in "
                f"{folder}. Export to another format."
            )
        eot_id = None if self.format.keeps_documents else self.source.eot_id
        return {
            split: Tokens(
                contents.splits[split],
                split,
                documents=contents.documents.get(split),
                eot_id=eot_id,
                eot=contents.eot,
            )
            for split in splits
        }

    def count_documents(self, split: str, written: Tokens) -> int | None:
        """Count the documents in the written split; None if they differ from the source's."""
        if not self.format.keeps_documents and not self.has_eot:
            return None
        starts = find_document_starts(written, 0, len(written))
        count = count_if_same(self.find_expected_starts(split), starts)
        if count is None and self.format.keeps_documents:
            raise _differ(split, "has different documents")
        return count

    def find_expected_starts(self, split: str) -> Iterator[Integers]:
        """Yield the positions where the documents of a split should start in the written files."""
        is_moved = split in self.moved
        tokens = self.splits[split] if is_moved else self.source[split]
        starts = find_document_starts(tokens, 0, len(tokens))
        if not self.format.keeps_empty:
            starts = skip_empty(starts, len(tokens))
        if self.format.keeps_documents or is_moved:
            return starts
        # The end-of-text ids were not moved: they are already on the side that the format needs, or
        # the split begins or ends within a document. In the second case, readers of the format add
        # each end-of-text id to the document on its other side, so all document starts but the
        # first shift by one token.
        sides = {"before": 0, "after": 1}
        shift = sides[self.format.eot] - sides[self.source.contents.eot]
        return (np.where(some > 0, some + shift, 0) for some in starts)

    def describe_changes(self, documents: Mapping[str, int | None]) -> Iterator[str]:
        """Yield a note for each difference between the written documents and the source."""
        eot_id, side, to = self.source.eot_id, self.source.contents.eot, self.format.name
        if self.moved:
            yield (
                f"the end-of-text id {eot_id} was {side} each document and is now "
                f"{self.format.eot} each document, as {to} requires (split {' and '.join(self.moved)})."
            )
        kept = None if self.source.manifest is None else self.source.manifest.fields
        if kept is not None:
            yield f"the kept fields ({', '.join(kept.names)}) are not exported: {to} cannot store them."
        assumed = self.format.find_assumed_eot(self.request)
        if self.has_eot and assumed not in (None, eot_id):
            yield (
                f"programs that read {to} assume the end-of-text id {assumed} by default, but here "
                f"it is {eot_id}. Set {eot_id} in the program."
            )
        for split, tokens in self.source.items():
            if empty := 0 if self.format.keeps_empty else count_empty(tokens):
                number = f"{empty:,} empty document{'s' if empty > 1 else ''}"
                yield f"{number} of split {split!r} omitted: {to} cannot store empty documents."
            if documents[split] is not None or (tokens.documents is None and not self.has_eot):
                continue
            lost = (
                f"the documents of split {split!r} cannot be separated in {to}: this format has no "
                "document table,"
            )
            if self.has_eot:
                yield f"{lost} and the end-of-text id {eot_id} is not {side} every document."
            else:
                names = ", ".join(name for name, one in WRITABLE.items() if one.keeps_documents)
                yield (
                    f"{lost} and the source has no end-of-text id. To keep the documents separate, "
                    f"export to {names}."
                )


def _find_tokenizer_name(source: Dataset) -> str | None:
    if source.manifest is not None:
        return source.manifest.tokenizer
    try:
        return source.tokenizer.name
    except TokenizerError:
        return None


def compare(
    tokens: Tokens, written: Tokens, advance: Callable[[int], None], *, block: int = BLOCK
) -> None:
    """Raise `DatasetError`, naming the first difference, unless the written tokens are the same."""
    if len(tokens) != len(written):
        what = f"has {len(written):,} tokens, expected {len(tokens):,}"
        raise _differ(written.split, what)
    for low in range(0, len(tokens), block):
        stop = min(low + block, len(tokens))
        mine, theirs = tokens.read(low, stop), written.read(low, stop)
        if not np.array_equal(mine, theirs):
            place = int((mine != theirs).argmax())
            what = f"has the id {theirs[place]} at token {low + place:,}, expected {mine[place]}"
            raise _differ(written.split, what)
        advance(len(mine))


def _differ(split: str, what: str) -> DatasetError:
    return DatasetError(
        f"the written split {split!r} differs from its source: it {what}. Delete the output "
        "folder and export again; if this repeats, the disk is faulty or this is a bug in tokenmill."
    )
