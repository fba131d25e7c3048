"""`tokenmill.export`: tokens as another program's files.

Guarantees: the ids are exactly those of the source, in its order, and so are the documents where
the format has them; both are compared with the source by reading what was written back through
`tokenmill.open`. A prepared source is refused if a checksum does not match. Killed at any moment,
the same call goes on with the file that it was at.

Costs: the source is read three times at most (checksums, copy, comparison), in blocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.convert.borders import find_starts
from tokenmill.convert.checksums import check_checksums
from tokenmill.convert.folder import OutputFolder, Progress, tell_nobody
from tokenmill.convert.targets import TARGETS
from tokenmill.convert.targets.protocol import BLOCK
from tokenmill.errors import DatasetError, UsageError
from tokenmill.mill.engines import disk_error
from tokenmill.store.dataset import Dataset, open
from tokenmill.store.tokens import Tokens

__all__ = ["Exported", "export"]

RECORD = ".tokenmill-export.json"
TOKENS_PER_SHARD = 100_000_000


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What `export` made: the tokens of each split, and the files; some were there before."""

    path: Path
    format: str
    tokens: dict[str, int]
    files: tuple[str, ...]
    files_done_before: int


def export(
    source: str | os.PathLike[str] | Dataset,
    to: str,
    out: str | os.PathLike[str],
    *,
    tokens_per_shard: int = TOKENS_PER_SHARD,
    progress: Progress = tell_nobody,
    **options: Any,
) -> Exported:
    """Write tokens as another program's files, or go on writing them.

    `source` is anything that `tokenmill.open` opens, with its `options`, or what it opened. `to` is
    one of llmc, nanogpt, npy, megatron, datatrove, mds, litdata; docs/formats.md tells what each holds.
    `tokens_per_shard` is for the formats that have several files.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "x.npy", np.array([5, 6, 0, 7, 0]))
    >>> made = export(folder / "x.npy", "megatron", folder / "out", eot_id=0, vocab_size=8)
    >>> made.files
    ('train.bin', 'train.idx')
    >>> [one.length for one in open(folder / "out" / "train")["train"].documents]
    [3, 2]
    """
    if to not in TARGETS:
        raise UsageError(f"`to` is {to!r}; it must be one of {', '.join(TARGETS)}.")
    if tokens_per_shard < 1:
        raise UsageError(f"`tokens_per_shard` is {tokens_per_shard}; it must be positive.")
    dataset = source if isinstance(source, Dataset) else open(source, **options)
    splits = [split for split in dataset.splits if len(dataset[split])]
    if not splits:
        raise DatasetError(f"{dataset.path} holds no tokens to export.")
    if Path(out).resolve() == dataset.path.resolve():
        raise UsageError(f"{out} is the dataset to export. Choose another folder for `out`.")
    about = {
        "to": to,
        "tokens_per_shard": tokens_per_shard,
        "splits": {split: [len(dataset[split]), dataset[split].fingerprint] for split in splits},
    }
    try:
        with OutputFolder(Path(out), about, record=RECORD) as folder:
            return _Export(dataset, splits, to, folder.path, progress).run(tokens_per_shard)
    except OSError as error:
        raise disk_error(error) from error


class _Export:
    def __init__(
        self, dataset: Dataset, splits: list[str], to: str, folder: Path, progress: Progress
    ) -> None:
        self.dataset, self.splits, self.folder = dataset, splits, folder
        self.to, self.target = to, TARGETS[to]
        self.progress = progress
        self.total = sum(len(dataset[split]) for split in splits)

    def run(self, tokens_per_shard: int) -> Exported:
        if self.dataset.manifest is not None:
            check_checksums(self.dataset.path, self.dataset.manifest)
        names, before = [], 0
        # Writing is one half of the work, comparing the other.
        advance = _Steps(self.progress, 2 * self.total).advance
        for job in self.target.plan(self.dataset, self.splits, tokens_per_shard):
            path = self.folder / job.name
            names.append(job.name)
            if path.exists():
                before += 1
                advance(job.tokens)
                continue
            path.parent.mkdir(exist_ok=True)
            job.write(path, advance)
        written = self.target.open(self.folder, self.splits)
        for split in self.splits:
            compare(self.dataset[split], written[split], advance)
            if self.target.keeps_documents:
                compare_documents(self.dataset[split], written[split])
        return Exported(
            path=self.folder,
            format=self.to,
            tokens={split: len(self.dataset[split]) for split in self.splits},
            files=tuple(names),
            files_done_before=before,
        )


class _Steps:
    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def advance(self, tokens: int) -> None:
        self.done += tokens
        self.progress(self.done, self.total)


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


def compare_documents(one: Tokens, other: Tokens) -> None:
    """Refuse two splits whose documents differ."""
    pairs = zip(find_starts(one, 0, len(one)), find_starts(other, 0, len(other)), strict=True)
    if not all(np.array_equal(mine, theirs) for mine, theirs in pairs):
        raise _differ(other, "has other documents")


def _differ(other: Tokens, what: str) -> DatasetError:
    return DatasetError(
        f"what was written of split {other.split!r} {what}, unlike its source. Delete it and export "
        "again; if it happens again, the disk or tokenmill is at fault."
    )
