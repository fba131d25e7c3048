"""Check every byte of a dataset.

Guarantees for a prepared dataset (for other formats, see `verify_foreign`): if `verify` finds no
problem, every file matches its checksum in the manifest, all ids are in the vocabulary, the documents
tile the tokens and have the end-of-text id in the right place, no document is in two splits, the
counts add up, the tokenizer is the right one, and nothing in the folder leads out of it. It continues
after a problem and reports all of them, a few per file. `rejected.jsonl` and `repaired.jsonl` are
reports without checksums and are not checked.

Costs: reading the folder once at the speed of the disk, and some tens of megabytes of memory for
shards of any size (see `overlap` for the cost of comparing splits).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.dataset.opening import load_saved_tokenizer, open
from tokenmill.dataset.overlap import check_overlap
from tokenmill.dataset.paths import AnyPaths, find_all
from tokenmill.dataset.problems import Findings, Problem, Problems
from tokenmill.dataset.verify_foreign import examine_foreign
from tokenmill.dataset.verify_split import check_split
from tokenmill.errors import TokenmillError
from tokenmill.formats import prepared
from tokenmill.progress import Watcher, watching
from tokenmill.storage.names import MANIFEST_NAME, TOKENIZER_NAME, WORK_NAME
from tokenmill.storage.reading import DamagedFileError, open_inside
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest

REPORT_NAMES = ("rejected.jsonl", "repaired.jsonl")
MOST_NOTES = 20


def verify(
    path: AnyPaths,
    *,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    dtype: npt.DTypeLike | None = None,
    format: str | None = None,
    vocab_size: int | None = None,
    column: str | None = None,
) -> list[Problem]:
    """Everything that is wrong with tokens on disk; an empty list if they are sound.

    What cannot be opened is a DatasetError. `progress` and `watcher` are those of
    `tokenmill.prepare`, the other options those of `tokenmill.open`.

    >>> verify("no/such/folder")
    Traceback (most recent call last):
    ...
    tokenmill.errors.DatasetError: no/such/folder does not exist. Make a dataset with: \
tokenmill prepare TEXTS --out no/such/folder
    """
    return examine(
        path,
        progress=progress,
        watcher=watcher,
        dtype=dtype,
        format=format,
        vocab_size=vocab_size,
        column=column,
    ).problems


def examine(
    path: AnyPaths,
    *,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    dtype: npt.DTypeLike | None = None,
    format: str | None = None,
    vocab_size: int | None = None,
    column: str | None = None,
) -> Findings:
    """Check tokens on disk like `verify`, and tell what is there as well."""
    first, *others = find_all(path)
    has_manifest = False
    with suppress(OSError):  # of a folder that may not be looked into, opening tells
        has_manifest = not others and (first / MANIFEST_NAME).exists()
    if has_manifest and format in (None, prepared.NAME):
        with watching(watcher, progress) as shown:
            return _examine_prepared(first, shown)
    dataset = open(
        [first, *others], dtype=dtype, format=format, vocab_size=vocab_size, column=column
    )
    with watching(watcher, progress) as shown:
        return examine_foreign(dataset, shown)


def _examine_prepared(folder: Path, watcher: Watcher) -> Findings:
    problems = Problems()
    try:
        manifest = Manifest.read(folder)
    except DamagedFileError as error:
        problems.add(MANIFEST_NAME, error.what, error.cure)
        return Findings(problems=problems.all(), notes=[])

    itemsize = np.dtype(manifest.dtype).itemsize
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    tokens = sum(shard.tokens for shard in shards)
    documents = sum(shard.documents for shard in shards)
    to_read = tokens * itemsize + documents * DOCUMENT_DTYPE.itemsize
    watcher.begin("checking", to_read)
    known = _known(manifest)
    _check_links(folder, known, problems)
    _check_names(manifest, problems)
    _check_ledger(manifest, problems)
    _check_tokenizer(folder, manifest, problems)
    _check_sources(manifest, problems)
    for name in manifest.splits:
        check_split(folder, manifest, name, problems, watcher.advance)
    check_overlap(folder, manifest, problems)
    return Findings(
        problems=problems.all(),
        notes=_list_strangers(folder, known),
        shards=len(shards),
        tokens=tokens,
        documents=documents,
        bytes=to_read,
    )


def _walk(folder: Path) -> Iterator[Path]:
    """Every file and every link under a folder; links are not followed."""
    for place, folders, files in os.walk(folder):
        if Path(place) == folder and WORK_NAME in folders:
            folders.remove(WORK_NAME)
            yield folder / WORK_NAME
        links = (name for name in folders if (Path(place) / name).is_symlink())
        yield from (Path(place) / name for name in (*files, *links))


def _relative(path: Path, folder: Path) -> str:
    # A name need not be valid Unicode; it must be printable all the same.
    return path.relative_to(folder).as_posix().encode("utf-8", "backslashreplace").decode()


def _known(manifest: Manifest) -> set[str]:
    """The files that belong in the folder."""
    known = {MANIFEST_NAME, TOKENIZER_NAME, *REPORT_NAMES, manifest.source_table.path}
    for split in manifest.splits.values():
        for shard in split.shards:
            known.update((Path(shard.path).as_posix(), Path(shard.documents_path).as_posix()))
    return known


def _check_links(folder: Path, known: set[str], problems: Problems) -> None:
    root = folder.resolve()
    opened = known - {MANIFEST_NAME, *REPORT_NAMES}  # opening these checks their links
    for path in _walk(folder):
        if not path.is_symlink() or _relative(path, folder) in opened:
            continue
        try:
            inside = path.resolve().is_relative_to(root)
        except (OSError, RuntimeError):  # links in a circle
            inside = False
        if not inside:
            problems.add(
                _relative(path, folder),
                "is a link that leads out of the folder",
                "Put what it leads to in its place, or delete it.",
            )


def _check_names(manifest: Manifest, problems: Problems) -> None:
    """Every file once, and every shard of a split but the last equally long."""
    seen = {MANIFEST_NAME, TOKENIZER_NAME, *REPORT_NAMES, manifest.source_table.path}
    for name, split in manifest.splits.items():
        for number, shard in enumerate(split.shards):
            for path in (shard.path, shard.documents_path):
                if path in seen:
                    problems.add(path, "is named more than once in the manifest")
                seen.add(path)
            size, last = split.shards[0].tokens, number == len(split.shards) - 1
            if shard.tokens > size or (shard.tokens < size and not last):
                problems.add(
                    shard.path,
                    f"has {shard.tokens:,} tokens, and the first shard of {name!r} has {size:,}; "
                    "only the last one may have fewer",
                )


def _check_ledger(manifest: Manifest, problems: Problems) -> None:
    """Documents and bytes in = kept + dropped, and as many documents and tokens as are there."""
    ledger = manifest.ledger

    def number(where: Any, key: str) -> int:
        value = where.get(key) if isinstance(where, dict) else None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            problems.add(MANIFEST_NAME, f"has no count {key!r} in its ledger")
            return 0
        return value

    dropped = ledger.get("dropped")
    if not isinstance(dropped, dict):
        problems.add(MANIFEST_NAME, "has no 'dropped' in its ledger")
        return
    for what in ("documents", "bytes"):
        came, kept = number(ledger, f"{what}_in"), number(ledger, f"{what}_kept")
        lost = sum(number(entry, what) for entry in dropped.values())
        if came != kept + lost:
            problems.add(
                MANIFEST_NAME,
                f"has a ledger that does not add up: {came:,} {what} in, {kept:,} kept, "
                f"{lost:,} dropped",
            )
    there = {
        "tokens": sum(split.tokens for split in manifest.splits.values()),
        "documents_kept": sum(split.documents for split in manifest.splits.values()),
    }
    for key, counted in there.items():
        if (said := number(ledger, key)) != counted:
            problems.add(
                MANIFEST_NAME, f"says {said:,} {key} in its ledger, and the splits have {counted:,}"
            )
    if number(ledger, "characters") > number(ledger, "text_bytes"):
        problems.add(MANIFEST_NAME, "has more characters than bytes of text in its ledger")


def _check_tokenizer(folder: Path, manifest: Manifest, problems: Problems) -> None:
    try:
        tokenizer = load_saved_tokenizer(folder)
        with open_inside(folder, TOKENIZER_NAME) as file:
            saved = orjson.loads(file.read())
    except DamagedFileError as error:
        problems.add_error(error)
        return
    except TokenmillError as error:
        problems.add(TOKENIZER_NAME, f"cannot be used: {error.__cause__ or error}")
        return
    pairs = {
        "fingerprint": (tokenizer.fingerprint, manifest.tokenizer_fingerprint),
        "name": (tokenizer.name, manifest.tokenizer),
        "vocabulary": (tokenizer.vocab_size, manifest.vocab_size),
        "end of text": (tokenizer.eot_id, manifest.eot_id),
    }
    for what, (found, said) in pairs.items():
        if found != said:
            problems.add(
                TOKENIZER_NAME, f"has the {what} {found!r}, and the manifest says {said!r}"
            )
    # What the fingerprint leaves out, such as an entry that nothing reads, is compared here.
    again = orjson.dumps(tokenizer.state(), option=orjson.OPT_SORT_KEYS)
    if again != orjson.dumps(saved, option=orjson.OPT_SORT_KEYS):
        problems.add(TOKENIZER_NAME, "is not what its tokenizer would save")


def _check_sources(manifest: Manifest, problems: Problems) -> None:
    try:
        manifest.source_table.check()
    except DamagedFileError as error:
        problems.add_error(error)


def _list_strangers(folder: Path, known: set[str]) -> list[str]:
    """Files that the manifest does not know, as notes: they do no harm."""
    notes: list[str] = []
    more = 0
    for path in sorted(_walk(folder)):
        name = _relative(path, folder)
        if name in known:
            continue
        if len(notes) == MOST_NOTES:
            more += 1
        elif name == WORK_NAME:
            notes.append(f"{name} is left over from preparing; it may be deleted.")
        else:
            notes.append(f"{name} is not part of the dataset.")
    return notes + ([f"{more:,} more files are not part of the dataset."] if more else [])
