"""datatrove's tokenized files: `x.ds` (ids), `x.ds.index` (where documents end), `x.ds.metadata`.

Files are sorted by name, and assigned to splits by words in their names, such as `val`. The number
of bytes per id comes from the metadata, or is computed from the index and the size of the file.
Without metadata and index, the user passes the dtype. `x.ds.loss` is ignored. No document crosses
files.

A datatrove task without documents leaves an empty `00001_unshuffled.ds` with an empty index, even
if the other files are shuffled and named `00000_00000_doc_shuffled.ds`. Such empty files are
skipped.

Checked at opening: the size of every file, against its index and its metadata. Checked when the
documents of a file are first used: that the entries of the index are in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.errors import DatasetError
from tokenmill.formats.base import Contents, Format, NotThisFormat, OpenRequest
from tokenmill.formats.document_starts import find_document_starts
from tokenmill.formats.file_documents import DocumentIndexes, DocumentStarts, FileDocuments
from tokenmill.formats.raw import make_shards
from tokenmill.formats.shard_names import check_gaps, list_shards, sort_names, split_by_name
from tokenmill.formats.writing import Advance, FileJob, TokenRange, WriteRequest
from tokenmill.storage.files import AtomicFile, write_file
from tokenmill.storage.mapping import map_file
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, check_size, open_foreign

_WIDTHS: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
# Other names in the metadata are ignored. The file is untrusted, and loading a tokenizer by an
# arbitrary name could open a path or use the network.
_TOKENIZERS = {"gpt2": "gpt2", "openai-community/gpt2": "gpt2"}
_LONGEST = 1 << 16  # bytes of metadata that are read
_UNSHUFFLED = re.compile(r"(.*?)([0-9]+)_unshuffled\.ds")


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """What the index and the metadata of a file say: tokenizer, bytes per id (`width`) and counts.

    A value that neither gives is None.
    """

    tokenizer: str | None = None
    width: int | None = None
    tokens: int | None = None
    documents: int | None = None


class Datatrove(Format):
    """Reads and writes .ds files: one file, or a folder of files."""

    name = "datatrove"
    keeps_documents = True
    keeps_empty = True
    names_tokenizer = True

    def read(self, request: OpenRequest) -> Contents:
        names = list_shards(request, ".ds")
        if not names:
            raise NotThisFormat("it is neither a .ds file nor a folder of such files")
        files, splits = _find_sizes(request.path), {"train": names}
        if request.is_folder:
            files, splits = request.files, split_by_name(names)
            for some in splits.values():
                check_gaps(request, sort_names([*some, *_find_stand_ins(some, files)]))
        facts = {name: _read_beside(request.folder, name, files) for name in names}
        splits = {
            split: [name for name in some if files[name] or facts[name].documents]
            for split, some in splits.items()
        }
        splits = {split: some for split, some in splits.items() if some}
        if not splits:
            raise DatasetError(f"{request.path} has no tokens. Copy or download it again.")
        dtype = _choose_dtype(request, facts)
        shards, documents = {}, {}
        for split, some in splits.items():
            shards[split] = make_shards(request.folder, some, files, dtype)
            found = [facts[name].documents for name in some]
            counts = [count for count in found if count is not None]
            if len(counts) == len(some):
                indexed = [f"{name}.index" for name in some]
                read = partial(_read_starts, request.folder.absolute(), indexed, counts)
                indexes = DocumentIndexes(names=indexed, counts=counts, read=read)
                documents[split] = FileDocuments(indexes, shards[split].counts, split)
        tokenizers = {one.tokenizer for one in facts.values()}
        tokenizer = tokenizers.pop() if len(tokenizers) == 1 else None
        return Contents(
            splits=shards, documents=documents, tokenizer=_TOKENIZERS.get(tokenizer or "")
        )

    def plan(self, request: WriteRequest) -> Iterator[FileJob]:
        dtype, tokenizer = request.choose_dtype(), request.tokenizer or "Unknown Tokenizer"
        for split in request.splits:
            for number, part in enumerate(request.cut_between_documents(split, dtype)):
                name = f"{number:05}_{split}.ds"
                metadata = f"{tokenizer}|{dtype.itemsize}\n{len(part)}\n{_humanize(len(part))}"
                write = partial(_write_text, metadata)
                # The ids come last: if a `.ds` file exists, its index and metadata exist too.
                yield FileJob(name=f"{name}.metadata", tokens=0, write=write)
                yield FileJob(name=f"{name}.index", tokens=0, write=partial(_write_index, part))
                yield FileJob(name=name, tokens=len(part), write=part.write)


def _humanize(count: int) -> str:
    """Shorten a number of tokens, as datatrove does with the package humanize.

    >>> [_humanize(count) for count in (950, 90048, 999_999, 1_234_567)]
    ['950 T', '90.0 kT', '1.00 MT', '1.23 MT']
    """
    thousands, digits = divmod(len(str(count)) - 1, 3)
    amount = f"{count / 1000**thousands:.{2 - digits}f}"
    if amount == "1000":
        amount, thousands = "1.00", thousands + 1
    return f"{amount} {('', *'kMGTPE')[thousands]}T"


def _write_text(text: str, path: Path, _: Advance) -> None:
    write_file(path, text.encode())


def _write_index(part: TokenRange, path: Path, _: Advance) -> None:
    """Write the position where each document ends."""
    with AtomicFile(path) as file:
        for number, starts in enumerate(find_document_starts(part.tokens, part.start, part.stop)):
            file.write((starts[not number :] - part.start).astype("<u8"))
        file.write(len(part).to_bytes(8, "little"))
        file.finish()


def _find_stand_ins(names: list[str], files: Mapping[str, int]) -> list[str]:
    """Return the names that empty unshuffled files would have if they were shuffled.

    A datatrove task without documents leaves an empty unshuffled file. With the shuffled name in
    the list as a stand-in, `check_gaps` does not report the file of this task as missing.

    >>> _find_stand_ins(["00000_00000_doc_shuffled.ds", "00001_unshuffled.ds"],
    ...            {"00000_00000_doc_shuffled.ds": 4, "00001_unshuffled.ds": 0})
    ['00001_00000_doc_shuffled.ds']
    """
    empty = [found for name in names if not files[name] and (found := _UNSHUFFLED.fullmatch(name))]
    stand_ins = set()
    for before, rank in (found.groups() for found in empty):
        for name in names:
            rest = name.removeprefix(before)
            if name.startswith(before) and rest[: len(rank)].isdigit():
                stand_ins.add(before + rank + rest[len(rank) :])
    return sorted(stand_ins.difference(names))


def _find_sizes(path: Path) -> Mapping[str, int]:
    """Return the sizes of a file, its index and its metadata, by name. Omit missing files."""
    beside = [path, *(path.with_name(path.name + end) for end in (".index", ".metadata"))]
    return {one.name: one.stat().st_size for one in beside if one.is_file()}


def _read_beside(folder: Path, name: str, files: Mapping[str, int]) -> _Facts:
    facts = _read_metadata(folder, name, files)
    index = f"{name}.index"
    if index not in files:
        return facts
    size = files[index]
    if size % 8:
        what = f"has {size:,} bytes, expected 8 for each document"
        raise DamagedFileError(index, what, FOREIGN_CURE)
    tokens = 0
    if size:
        with open_foreign(folder, index) as file:
            file.seek(size - 8)
            tokens = int.from_bytes(file.read(8), "little")
    width = next((width for width in _WIDTHS if tokens * width == files[name]), None)
    if width is None:
        raise DamagedFileError(
            name,
            f"has {files[name]:,} bytes, expected {tokens:,} tokens of 2 or 4 bytes according to "
            "its index",
            FOREIGN_CURE,
        )
    for what, one, other in (
        ("size of an id", width, facts.width),
        ("number of tokens", tokens, facts.tokens),
    ):
        if other not in (None, one) and files[name]:
            raise DamagedFileError(
                f"{name}.metadata",
                f"says that the {what} is {other:,}, but {index} says {one:,}",
                FOREIGN_CURE,
            )
    width_known = width if tokens else None
    return replace(facts, width=width_known, tokens=tokens, documents=size // 8)


def _read_metadata(folder: Path, name: str, files: Mapping[str, int]) -> _Facts:
    metadata = f"{name}.metadata"
    if metadata not in files:
        return _Facts()
    with open_foreign(folder, metadata) as file:
        lines = file.read(_LONGEST).decode(errors="replace").split("\n")
    tokenizer, _, width = lines[0].rpartition("|")
    try:
        facts = _Facts(
            tokenizer=tokenizer or None,
            width=int(width),
            tokens=_parse_count(lines[1] if len(lines) > 1 else ""),
        )
    except ValueError:
        facts = _Facts()
    if facts.width not in _WIDTHS:
        raise DamagedFileError(
            metadata,
            f"begins with the lines {lines[:2]!r:.80}; expected TOKENIZER|2 or TOKENIZER|4 in the "
            "first line, and the number of tokens or nothing in the second",
            FOREIGN_CURE,
        )
    if facts.tokens is not None and facts.tokens * (facts.width or 0) != files[name]:
        raise DamagedFileError(
            name,
            f"has {files[name]:,} bytes, expected {facts.tokens:,} tokens of {facts.width} bytes "
            "according to its metadata",
            FOREIGN_CURE,
        )
    return facts


def _parse_count(text: str) -> int | None:
    """Parse a token count. datatrove writes a negative number if it did not count the tokens."""
    number = int(text) if text.strip() else -1
    return number if number >= 0 else None


def _choose_dtype(request: OpenRequest, facts: Mapping[str, _Facts]) -> np.dtype[Any]:
    """Return the dtype of the ids; raise an error if it is not the same in all files."""
    widths = {one.width: name for name, one in facts.items() if one.width is not None}
    if len(widths) > 1:
        names = " and ".join(f"{name} has {width} bytes per id" for width, name in widths.items())
        raise DatasetError(
            f"{request.path} has ids of different sizes: {names}. Open the files of each size "
            "separately."
        )
    if not widths:
        if request.dtype is None:
            raise NotThisFormat("no .ds.index or .ds.metadata gives its dtype; pass `dtype`")
        return request.dtype
    [(width, name)] = widths.items()
    request.check_dtype(_WIDTHS[width], name)
    return _WIDTHS[width]


def _read_starts(folder: Path, names: list[str], counts: list[int], number: int) -> DocumentStarts:
    name, count = names[number], counts[number]
    with open_foreign(folder, name) as file:
        check_size(file, name, 8 * count, foreign=True)
        ends = map_file(file, name, np.dtype("<i8"), count, 0)
    return DocumentStarts(
        count, lambda numbers: np.where(numbers > 0, ends[np.maximum(numbers - 1, 0)], 0)
    )
