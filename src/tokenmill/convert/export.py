"""`tokenmill.export`: tokens as another program's files.

Guarantees: ids and documents are those of the source, in its order. Both are checked by reading the
files back through `tokenmill.open`. A format without a table of documents separates them only by the
end-of-text id, which is moved to the side of documents where its readers look for it.
`Exported.notes` says which documents were changed or lost. A prepared source is refused if a
checksum does not match. After a kill at any moment, the same call resumes with the file that it was
writing.

Costs: the source is read in blocks, at most four times (checksums, copy, comparison of ids and of
documents).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.convert.borders import Integers, count_empty, count_same, find_starts, skip_empty
from tokenmill.convert.checksums import check_checksums
from tokenmill.convert.end_of_text import find_movable, move_eot
from tokenmill.convert.targets import TARGETS
from tokenmill.convert.targets.protocol import BLOCK, choose_dtype
from tokenmill.dataset.opening import Dataset, open
from tokenmill.dataset.paths import AnyPaths
from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats import OTHER_NAMES, llmc
from tokenmill.progress import Watcher, watching
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.output import OutputFolder
from tokenmill.store.tokens import Tokens

RECORD = ".tokenmill-export.json"
TOKENS_PER_SHARD = 100_000_000


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What `export` made: the tokens of each split, and all files, including those made earlier.

    `documents` is the number of documents that readers of the files find in each split, or None if
    they find none or different ones. `notes` describe all differences from the source's documents.
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

    `source` is anything that `tokenmill.open` opens, with its `options`, or an open dataset. `out` is
    a new or empty folder. `to` is one of llmc, nanogpt, npy, megatron, datatrove, mds, litdata;
    docs/formats.md describes them. `tokens_per_shard` is for formats with several files.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "x.npy", np.array([5, 6, 0, 7, 0]))
    >>> made = export(folder / "x.npy", folder / "out", to="megatron", eot_id=0, vocab_size=8)
    >>> made.files, made.documents
    (('train.bin', 'train.idx'), {'train': 2})
    >>> [one.length for one in open(folder / "out" / "train")["train"].documents]
    [3, 2]
    """
    to = OTHER_NAMES.get(to, to)
    if to not in TARGETS:
        raise UsageError(f"`to` is {to!r}; it must be one of {', '.join(TARGETS)}.")
    if tokens_per_shard < 1:
        raise UsageError(f"`tokens_per_shard` is {tokens_per_shard}; it must be positive.")
    dataset = source if isinstance(source, Dataset) else open(source, **options)
    if not dataset:
        raise DatasetError(f"{dataset.path} holds no tokens to export.")
    if Path(out).resolve() == dataset.path.resolve():
        raise UsageError(f"{out} is the source of the export. Choose another folder for `out`.")
    job = _Export(dataset, to, Path(out))
    about = {
        "to": to,
        "tokens_per_shard": tokens_per_shard,
        "splits": {split: [len(tokens), tokens.fingerprint] for split, tokens in dataset.items()},
    }
    if job.moved:
        about["eot"] = job.target.eot
    with (
        explain_disk_errors(),
        OutputFolder(Path(out), marks=[RECORD]) as folder,
        watching(watcher, progress) as shown,
    ):
        folder.remember(RECORD, about)
        return job.run(tokens_per_shard, shown)


class _Export:
    def __init__(self, source: Dataset, to: str, folder: Path) -> None:
        self.folder = folder
        self.to, self.target = to, TARGETS[to]
        self.source, self.dataset, self.moved = source, source, []
        if self.target.eot is not None:
            self.moved = find_movable(source, self.target.eot)
            self.dataset = move_eot(source, self.target.eot)
        self.total = sum(map(len, source.values()))

    def run(self, tokens_per_shard: int, watcher: Watcher) -> Exported:
        if self.dataset.manifest is not None:
            check_checksums(self.dataset.path, self.dataset.manifest)
        names, before, splits = [], 0, list(self.dataset)
        # Writing is one half of the work, comparing the other.
        advance = watcher.advance
        watcher.begin("exporting", 2 * self.total, unit="tokens")
        for job in self.target.plan(self.dataset, splits, tokens_per_shard):
            path = self.folder / job.name
            names.append(job.name)
            if path.exists():
                before += 1
                advance(job.tokens)
                continue
            path.parent.mkdir(exist_ok=True)
            job.write(path, advance)
        written = self.target.open(self.folder, splits, self.dataset.eot_id)
        for split in splits:
            compare(self.dataset[split], written[split], advance)
        documents = {split: self.count_documents(split, written[split]) for split in splits}
        return Exported(
            path=self.folder,
            format=self.to,
            tokens={split: len(tokens) for split, tokens in self.dataset.items()},
            files=tuple(names),
            files_done_before=before,
            documents=documents,
            notes=tuple(describe_documents(self.source, self.to, self.moved, documents)),
        )

    def count_documents(self, split: str, written: Tokens) -> int | None:
        """How many documents readers find, if they are those of the source."""
        if not self.target.keeps_documents and not has_eot(self.source):
            return None
        count = count_same(self.find_starts(split), find_starts(written, 0, len(written)))
        if count is None and self.target.keeps_documents:
            raise _differ(written, "has other documents")
        return count

    def find_starts(self, split: str) -> Iterator[Integers]:
        """Where documents of the source begin for readers of the target."""
        is_moved = split in self.moved
        tokens = (self.dataset if is_moved else self.source)[split]
        starts = find_starts(tokens, 0, len(tokens))
        if not self.target.keeps_empty:
            starts = skip_empty(starts, len(tokens))
        if self.target.keeps_documents or is_moved:
            return starts
        # A split that was cut within a document lacks the id at that end, so no id was moved. If
        # ids are not on the side that readers expect, each belongs to the neighbouring document.
        sides = {"before": 0, "after": 1}
        shift = sides[self.target.eot or ""] - sides[self.source.contents.eot]
        return (np.where(some > 0, some + shift, 0) for some in starts)


def has_eot(source: Dataset) -> bool:
    """Whether a known end-of-text id separates documents."""
    return source.eot_id is not None and source.contents.eot != "none"


def describe_documents(
    source: Dataset, to: str, moved: Sequence[str], documents: Mapping[str, int | None]
) -> Iterator[str]:
    """Notes on how documents differ from those of the source."""
    target = TARGETS[to]
    if moved:
        yield (
            f"the end-of-text id {source.eot_id} was moved from {source.contents.eot} each document "
            f"to {target.eot} it, where readers of {to} look for it (split {' and '.join(moved)})."
        )
    kind = llmc.find_kind(choose_dtype(source)) if to == llmc.NAME else None
    if kind is not None and has_eot(source) and source.eot_id != kind.eot_id:
        yield (
            f"readers of {to} take {kind.eot_id} for the end-of-text id unless they are given "
            f"another, and here it is {source.eot_id}."
        )
    for split, tokens in source.items():
        if empty := 0 if target.keeps_empty else count_empty(tokens):
            number = f"{empty:,} empty document{'s' if empty > 1 else ''}"
            yield f"{number} of split {split!r} cannot be stored in {to} and were left out."
        if documents[split] is not None or (tokens.documents is None and not has_eot(source)):
            continue
        if has_eot(source):
            yield (
                f"the documents of split {split!r} cannot be told apart in {to}: it has no table of "
                f"them, and the end-of-text id {source.eot_id} does not stand "
                f"{source.contents.eot} each."
            )
        else:
            yield (
                f"the documents of split {split!r} cannot be told apart in {to}: it has no table of "
                "them, and the source has no end-of-text id between them. To keep them, export to "
                f"{', '.join(name for name, one in TARGETS.items() if one.keeps_documents)}."
            )


def compare(one: Tokens, other: Tokens, advance: Callable[[int], None]) -> None:
    """Refuse two splits whose tokens differ, and say where."""
    if len(one) != len(other):
        raise _differ(other, f"has {len(other):,} tokens, not {len(one):,}")
    for low in range(0, len(one), BLOCK):
        stop = min(low + BLOCK, len(one))
        mine, theirs = one.read(low, stop), other.read(low, stop)
        if not np.array_equal(mine, theirs):
            place = int((mine != theirs).argmax())
            raise _differ(other, f"holds the id {theirs[place]} at token {low + place:,}")
        advance(len(mine))


def _differ(other: Tokens, what: str) -> DatasetError:
    return DatasetError(
        f"what was written of split {other.split!r} {what}, unlike its source. Delete it and export "
        "again; if it happens again, the disk or tokenmill is at fault."
    )
