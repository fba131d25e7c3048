"""Read evaluation texts: from any file that `prepare` reads, or from the documents of a dataset.

Nothing is skipped silently: a record without text, such as one that lacks the field, is an error that
names the file and the line, because a text that is not read is not protected.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenmill.contamination.protected import EvaluationFile, Protected, Text, protect
from tokenmill.dataset.opening import open as open_dataset
from tokenmill.errors import DatasetError, InputError, TooLongError, UsageError
from tokenmill.formats.document_starts import find_document_starts, skip_empty
from tokenmill.sources.files import BadFileError, SourceFile, name_source
from tokenmill.sources.find import find_files
from tokenmill.sources.read import Reading, read_range
from tokenmill.sources.recognize import NOT_TEXT, why_not_text
from tokenmill.sources.records import Chunk
from tokenmill.storage.names import MANIFEST_NAME
from tokenmill.storage.object_path import as_path
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import Tokenizer

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_HOLD = 64 << 20  # bytes of one text
_MOST_TOKENS = 16 << 20  # of one document of a dataset
LEAST_SIZE, MOST_SIZE = 5, 100  # words of an n-gram


@dataclass(frozen=True, kw_only=True)
class Matching:
    """What counts as a hit. `field_setting` names the setting of `field`, for errors.

    An n-gram of `size` words counts, unless it is in more than `common` texts.
    """

    size: int = 13
    common: int = 100
    field: str = "text"
    field_setting: str = "text_field"


def check_size(size: int, name: str) -> None:
    """Raise `UsageError` unless an n-gram may have so many words."""
    if not LEAST_SIZE <= size <= MOST_SIZE:
        raise UsageError(
            f"`{name}` is {size}; it must be from {LEAST_SIZE} to {MOST_SIZE}. Texts have in common "
            "by chance what is shorter."
        )


def read_protected(paths: Paths, matching: Matching) -> Protected:
    """Read evaluation texts, and make the table to find them."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise UsageError("No evaluation text was given. Name at least one file or dataset.")
    files: list[EvaluationFile] = []
    texts = _read_all(given, matching, files)
    return protect(texts, files, size=matching.size, common=matching.common)


def _read_all(
    paths: Sequence[str | os.PathLike[str]], matching: Matching, files: list[EvaluationFile]
) -> Iterator[Text]:
    """Yield all texts, and add each file to `files` before its texts."""
    for given in paths:
        path = as_path(given)
        if _is_dataset(path):
            yield from _read_dataset(path, files)
            continue
        try:
            sources, _ = find_files([given])
        except InputError as error:
            if not path.is_dir():
                raise
            try:  # tokens in another format
                yield from _read_dataset(path, files)
            except DatasetError:
                raise error from None
            continue
        for source in sources:
            if source.fault:
                raise InputError(f"{source.path}: {source.fault}")
            if source.kind == "text" and why_not_text(source) == NOT_TEXT:
                yield from _read_dataset(as_path(source.path), files)
            else:
                yield from _read_file(source, matching, files)


def _is_dataset(path: Path) -> bool:
    try:
        return path.is_dir() and (path / MANIFEST_NAME).is_file()
    except OSError:
        return False


def _read_file(
    source: SourceFile, matching: Matching, files: list[EvaluationFile]
) -> Iterator[Text]:
    is_parquet = source.kind == "parquet"
    files.append(EvaluationFile(source.path, "row" if is_parquet else "line"))
    # In plain text, each line is a text.
    how = Reading(separator=b"\n", text_field=matching.field, hold_limit=_HOLD)
    lines = 0
    try:
        for chunk in read_range(source, 0, 1 << 62 if is_parquet else source.size, how):
            _refuse_rejected(source, chunk, lines, matching)
            for text, offset in zip(chunk.texts, chunk.offsets, strict=True):
                line = None if is_parquet else chunk.line_of(offset)
                yield Text(len(files) - 1, offset if line is None else lines + line + 1, text)
            lines += chunk.lines
    except TooLongError as error:
        raise InputError(
            f"{source.path}: {error}; an evaluation text may have at most {_HOLD:,} bytes."
        ) from None


def _refuse_rejected(source: SourceFile, chunk: Chunk, lines: int, matching: Matching) -> None:
    for rejection in chunk.rejections:
        place = (
            f"row {rejection.offset}"
            if rejection.line is None
            else f"line {lines + rejection.line + 1}"
        )
        raise BadFileError(
            source.path,
            f"{place}: {rejection.reason}. Every evaluation text must be readable: name the field "
            f"that holds it with `{matching.field_setting}=NAME`, or correct the file.",
        )


def _read_dataset(path: Path, files: list[EvaluationFile]) -> Iterator[Text]:
    dataset = open_dataset(path, cache_bytes=0)
    tokenizer = dataset.tokenizer
    for split, tokens in dataset.items():
        name = name_source(str(path))
        files.append(EvaluationFile(f"{name}, {split}", "document"))
        for number, text in enumerate(_decode_documents(tokens, tokenizer, str(path))):
            yield Text(len(files) - 1, number, text)


def _decode_documents(tokens: Tokens, tokenizer: Tokenizer, path: str) -> Iterator[bytes]:
    blocks = skip_empty(find_document_starts(tokens, 0, len(tokens)), len(tokens))
    before = None
    for starts in (*blocks, np.array([len(tokens)])):
        for stop in starts.tolist():
            if before is not None:
                if stop - before > _MOST_TOKENS:
                    raise InputError(
                        f"{path} has a document of {stop - before:,} tokens; an evaluation text may "
                        f"have at most {_MOST_TOKENS:,}."
                    )
                ids = tokens.read(before, stop)
                if tokens.eot_id is not None:
                    ids = ids[ids != tokens.eot_id]
                yield tokenizer.decode(ids).encode("utf-8", "replace")
            before = stop
