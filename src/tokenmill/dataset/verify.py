"""Check every byte of a dataset.

Guarantees, if `verify` finds no problem in a prepared dataset:

- Every file matches its checksum in the manifest, and no link leads out of the folder.
- All ids are in the vocabulary, and the stored tokenizer is the one that the manifest names.
- Documents cover all tokens without overlap, with the end-of-text id in the right place.
- No document is in two splits.
- The counts in the manifest add up.

For other formats, see `_examine_foreign`. `verify` does not stop at the first problem, but reports
at most a few problems per file. The reports `rejected.jsonl`, `repaired.jsonl`, `excluded.jsonl`
and `removed.jsonl.zst` have no checksums and are not checked.

Costs: shards are read once, or twice if they are compressed, at the speed of the disk. Memory is
some tens of megabytes for shards of any size; `verify_split` has the details.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.dataset.opening import Dataset, open, read_saved_tokenizer
from tokenmill.dataset.paths import AnyPaths, find_all
from tokenmill.dataset.problems import Findings, ProblemList, Problems
from tokenmill.dataset.verify_split import Limits, check_overlap, check_split
from tokenmill.errors import TokenmillError
from tokenmill.formats.prepared import Prepared, open_fields
from tokenmill.progress import Watcher, watching
from tokenmill.storage.files import hash_file
from tokenmill.storage.listing import walk_files
from tokenmill.storage.names import (
    MANIFEST_NAME,
    REPORT_NAMES,
    TOKENIZER_NAME,
    WORK_NAME,
)
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, check_size, open_inside
from tokenmill.store.manifest import DOCUMENT_DTYPE, Manifest
from tokenmill.store.shards import Shards

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
) -> ProblemList:
    """Check tokens on disk, and return a list of problems; an empty list means no problem.

    Raise a DatasetError if the tokens cannot be opened. `progress` and `watcher` work as in
    `tokenmill.prepare`, the other options as in `tokenmill.open`.

    >>> verify("no/such/folder")
    Traceback (most recent call last):
    ...
    tokenmill.errors.DatasetError: no/such/folder does not exist. Make a dataset with: \
tokenmill prepare TEXTS --out no/such/folder
    """
    found = examine(
        path,
        progress=progress,
        watcher=watcher,
        dtype=dtype,
        format=format,
        vocab_size=vocab_size,
        column=column,
    )
    return ProblemList(found.problems)


def examine(
    path: AnyPaths,
    *,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> Findings:
    """Check tokens like `verify`, but return counts and notes too. `limits` bounds memory use."""
    first, *others = find_all(path)
    has_manifest = False
    with suppress(OSError):  # if the folder cannot be read, `open` raises the error below
        has_manifest = not others and (first / MANIFEST_NAME).exists()
    if has_manifest and options.get("format") in (None, Prepared.name):
        with watching(watcher, progress) as shown:
            return _examine_prepared(first, shown, limits or Limits())
    dataset = open([first, *others], cache_bytes=0, **options)
    with watching(watcher, progress) as shown:
        return _examine_foreign(dataset, shown)


def _examine_prepared(folder: Path, watcher: Watcher, limits: Limits) -> Findings:
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
    known = _list_known_files(manifest)
    _check_links(folder, known - _list_reports(manifest), problems)
    _check_names(manifest, problems)
    _check_ledger(manifest, problems)
    _check_tokenizer(folder, manifest, problems)
    try:
        manifest.sources.check()
    except DamagedFileError as error:
        problems.add_error(error)
    for name in manifest.splits:
        _check_fields(folder, manifest, name, problems)
        check_split(folder, manifest, name, problems, watcher.advance, limits)
    check_overlap(folder, manifest, problems, limits)
    return Findings(
        problems=problems.all(),
        notes=_list_unknown_files(folder, known),
        shards=len(shards),
        tokens=tokens,
        documents=documents,
        bytes=to_read,
    )


def _relative(path: Path, folder: Path) -> str:
    # A file name may be invalid Unicode, which cannot be printed.
    return path.relative_to(folder).as_posix().encode("utf-8", "backslashreplace").decode()


def _list_reports(manifest: Manifest) -> set[str]:
    """Return the names of the reports of all generations."""
    return {file for name in REPORT_NAMES for file in manifest.list_files(name)}


def _list_known_files(manifest: Manifest) -> set[str]:
    """Return the paths of all files that belong to a dataset, relative to its folder."""
    known = {MANIFEST_NAME, TOKENIZER_NAME, *_list_reports(manifest)}
    known.update(one.path for one in manifest.sources.parts)
    for split in manifest.splits.values():
        for shard in split.shards:
            known.update((Path(shard.path).as_posix(), Path(shard.documents_path).as_posix()))
    known.update(_list_fields(manifest))
    return known


def _list_fields(manifest: Manifest) -> list[str]:
    files = manifest.fields.files.values() if manifest.fields else ()
    return [Path(file.path).as_posix() for file in files]


def _check_fields(folder: Path, manifest: Manifest, split: str, problems: Problems) -> None:
    """Check the file with the kept fields of a split: its checksum, and that every line is an object."""
    if manifest.fields is None:
        return
    if (kept := manifest.fields.files.get(split)) is None:
        if documents := manifest.splits[split].documents:
            what = f"names no file with the kept fields of the {documents:,} documents of {split!r}"
            problems.add(MANIFEST_NAME, what)
        return
    try:
        with open_inside(folder, kept.path) as file:
            check_size(file, kept.path, kept.bytes)
            if hash_file(file) != kept.xxh3_128:
                problems.add(kept.path, "does not match its checksum")
                return
        reader = open_fields(folder, manifest, split)
        if reader is not None:
            for line in reader.read_lines():
                reader.parse(line)
    except DamagedFileError as error:
        problems.add_error(error)


def _check_links(folder: Path, known: set[str], problems: Problems) -> None:
    root = folder.resolve()
    opened = known - {MANIFEST_NAME}  # a link is checked when the file is opened
    for path in walk_files(folder, WORK_NAME):
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
                "Replace it with the file that it leads to, or delete it.",
            )


def _check_names(manifest: Manifest, problems: Problems) -> None:
    """Check that the manifest names no file twice, and that the shards of a split are equally long.

    Only the last shard that a generation added may be shorter.
    """
    seen = {MANIFEST_NAME, TOKENIZER_NAME, *_list_reports(manifest)}
    seen.update(one.path for one in manifest.sources.parts)
    for path in _list_fields(manifest):
        if path in seen:
            problems.add(path, "is named more than once in the manifest")
        seen.add(path)
    for name, split in manifest.splits.items():
        starts = [0, *(one.splits[name].shards for one in manifest.generations)]
        ends = {*starts[1:], len(split.shards)}
        for number, shard in enumerate(split.shards):
            for path in (shard.path, shard.documents_path):
                if path in seen:
                    problems.add(path, "is named more than once in the manifest")
                seen.add(path)
            first = starts[bisect_right(starts, number) - 1]
            size, last = int(split.shards.tokens[first]), number + 1 in ends
            if shard.tokens > size or (shard.tokens < size and not last):
                problems.add(
                    shard.path,
                    f"has {shard.tokens:,} tokens, but the first shard of {name!r} has {size:,}; "
                    "only the last shard may have fewer"
                    if not first
                    else f"has {shard.tokens:,} tokens, but shard {first:,} of {name!r}, the first of "
                    f"its generation, has {size:,}; only the last one may have fewer",
                )


def _check_ledger(manifest: Manifest, problems: Problems) -> None:
    """Check the manifest's ledger: the documents and bytes that were read, kept and dropped.

    What was kept and what was dropped must add up to what was read, and the totals must match the
    splits.
    """
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
                f"has a ledger that does not add up: {came:,} {what} read, {kept:,} kept, "
                f"{lost:,} dropped",
            )
    there = {
        "tokens": sum(split.tokens for split in manifest.splits.values()),
        "documents_kept": sum(split.documents for split in manifest.splits.values()),
    }
    for key, counted in there.items():
        if (said := number(ledger, key)) != counted:
            problems.add(
                MANIFEST_NAME, f"says {said:,} {key} in its ledger, but the splits have {counted:,}"
            )
    if number(ledger, "characters") > number(ledger, "text_bytes"):
        problems.add(MANIFEST_NAME, "has more characters than bytes of text in its ledger")


def _check_tokenizer(folder: Path, manifest: Manifest, problems: Problems) -> None:
    try:
        tokenizer, saved = read_saved_tokenizer(folder)
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
                TOKENIZER_NAME, f"has the {what} {found!r}, but the manifest says {said!r}"
            )
    # The fingerprint does not cover unused entries, so compare the whole state.
    again = orjson.dumps(tokenizer.state(), option=orjson.OPT_SORT_KEYS)
    if again != orjson.dumps(saved, option=orjson.OPT_SORT_KEYS):
        problems.add(TOKENIZER_NAME, "differs from the file that its tokenizer would save")


def _list_unknown_files(folder: Path, known: set[str]) -> list[str]:
    """Return notes about files that do not belong to the dataset. These files are harmless."""
    notes: list[str] = []
    more = 0
    for path in sorted(walk_files(folder, WORK_NAME)):
        name = _relative(path, folder)
        if name in known:
            continue
        if len(notes) == MOST_NOTES:
            more += 1
        elif name == WORK_NAME:
            notes.append(f"{name} is left over from preparing; you can delete it.")
        else:
            notes.append(f"{name} is not part of the dataset.")
    return notes + ([f"{more:,} more files are not part of the dataset."] if more else [])


def _examine_foreign(dataset: Dataset, watcher: Watcher) -> Findings:
    """Check tokens that are not a prepared dataset.

    Without checksums, only these problems can be found: a wrong header or size, an id that is not
    in the vocabulary, and documents that overlap or do not cover their file.
    """
    contents = dataset.contents
    splits = contents.splits.values()
    to_read = sum(int(shards.counts.sum()) * shards.dtype.itemsize for shards in splits)
    watcher.begin("checking", to_read)
    problems = Problems()
    ends = 0
    for split, shards in contents.splits.items():
        start = 0
        for number, count in enumerate(shards.counts.tolist()):
            try:
                if split in contents.documents and count:
                    # Looking up one document makes the table check all documents of the file.
                    contents.documents[split].at(start)
            except DamagedFileError as error:
                problems.add_error(error)
            start += count
            try:
                for first, ids in _read_chunks(shards, number):
                    _check_ids(shards.name(number), first, ids, dataset.vocab_size, problems)
                    if dataset.eot_id is not None:
                        ends += int(np.count_nonzero(ids == dataset.eot_id))
                    watcher.advance(ids.nbytes)
            except DamagedFileError as error:
                problems.add_error(error)
    notes = []
    if dataset.vocab_size is None:
        notes.append(
            "the vocabulary size is unknown, so it was not checked whether ids are too large."
        )
    documents = None if dataset.eot_id is None else ends
    if len(contents.documents) == len(contents.splits) and not problems.all():
        documents = sum(len(table) for table in contents.documents.values())
    return Findings(
        problems=problems.all(),
        notes=notes,
        shards=sum(len(shards.counts) for shards in splits),
        tokens=sum(int(shards.counts.sum()) for shards in splits),
        documents=documents,
        bytes=to_read,
    )


def _read_chunks(shards: Shards, number: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    count = int(shards.counts[number])
    step = max(1, Limits().chunk // shards.dtype.itemsize)
    for first in range(0, count, step):
        yield first, shards.read(number, first, min(first + step, count))


def _check_ids(
    name: str, first: int, ids: npt.NDArray[Any], vocab_size: int | None, problems: Problems
) -> None:
    largest, smallest = int(ids.max()), int(ids.min())
    if vocab_size is not None and largest >= vocab_size:
        place = int((ids >= vocab_size).argmax())
        problems.add(
            name,
            f"has the id {ids[place]} at token {first + place:,}, but the vocabulary has "
            f"{vocab_size:,} ids",
            f"{FOREIGN_CURE} Or pass another `dtype` or `vocab_size`.",
        )
    if smallest < 0:
        place = int((ids < 0).argmax())
        problems.add(
            name, f"has the negative id {ids[place]} at token {first + place:,}", FOREIGN_CURE
        )
