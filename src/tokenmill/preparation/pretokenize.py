"""`pretokenize`: write the ids of one text file to one `.npy` file beside it.

It first runs `prepare` without cleaning, deduplication or a validation split, in a temporary folder
beside the text. So it has the speed and the memory limit of `prepare`, and can be resumed. Then it
copies the ids into one file, which is complete or absent. If a checksum does not match during the
copy, `pretokenize` makes the ids again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tokenmill.errors import FolderError, InputError, UsageError
from tokenmill.preparation.part import PartTask
from tokenmill.preparation.plan import make_plan
from tokenmill.preparation.prepare import prepare
from tokenmill.preparation.texts import clean_chunk
from tokenmill.progress import Watcher, watching
from tokenmill.sources.files import is_about_process
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import NpyFile, refuse_link, sync_folder
from tokenmill.storage.names import REJECTED_NAME, REPAIRED_NAME
from tokenmill.storage.output import OutputFolder
from tokenmill.storage.reading import DamagedFileError, check_size, open_inside
from tokenmill.store.manifest import Manifest
from tokenmill.tokenizers import Ids, Tokenizer, load_tokenizer

DTYPES = ("auto", "uint16", "uint32", "int32", "int64")
_UNCHANGED: dict[str, Any] = {
    "normalize": False,
    "dedup": "none",
    "val_fraction": 0.0,
    "tokens_per_shard": 1 << 60,  # all tokens in one shard
}
_COPY = 1 << 20
_ENDINGS = (".gz", ".zst", ".bz2", ".xz")


@dataclass(frozen=True, kw_only=True)
class Pretokenized:
    """The result of `pretokenize`.

    If the file already existed, `characters` and `documents` are None, and `dropped`, `repaired`
    and `rejected` keep their defaults.
    """

    path: Path
    tokens: int
    dtype: str
    characters: int | None
    documents: int | None
    was_there: bool
    dropped: Mapping[str, Any] = field(default_factory=dict)  # documents and bytes by reason
    repaired: int = 0  # documents that had invalid UTF-8
    rejected: Path | None = None  # where rejected records are listed, if there are any


def npy_path(text: str | os.PathLike[str]) -> Path:
    """Return the path of the file to which `pretokenize` writes the ids of a text file.

    >>> npy_path("data/wiki.txt").as_posix(), npy_path("a/b.jsonl.gz").as_posix()
    ('data/wiki.npy', 'a/b.npy')
    """
    path = Path(text)
    if path.suffix.lower() in _ENDINGS:
        path = path.with_suffix("")
    return path.with_suffix(".npy")


def pretokenize(
    text: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | Tokenizer = "gpt2",
    dtype: str = "auto",
    workers: int | None = None,
    memory: int | None = None,
    restart: bool = False,
    progress: bool | None = None,
    watcher: Watcher | None = None,
) -> Pretokenized:
    """Write the ids of a text file to a `.npy` file beside it.

    The text is not cleaned. Documents are split at `<|endoftext|>` if the file has it. The end-of-text
    id follows each document.

    >>> import tempfile
    >>> text = Path(tempfile.mkdtemp()) / "x.txt"
    >>> _ = text.write_text("Hello world")
    >>> np.load(pretokenize(text).path).tolist()
    [15496, 995, 50256]
    """
    source, target = Path(text), npy_path(text)
    if not source.is_file():
        raise InputError(f"There is no file {source}.")
    if target == source:
        raise InputError(f"{source} is a .npy file already, not a text.")
    tokenizer = load_tokenizer(tokenizer)
    kind = _kind(dtype, tokenizer)
    folder = target.with_name(f".{target.name}.work")
    refuse_link(folder)  # a link could lead to a folder that the user did not choose
    if target.exists() and not folder.exists() and not restart:
        return _check_existing(source, target, kind, tokenizer)
    with (
        explain_disk_errors(),
        OutputFolder(folder, marks=["."]),  # accept any content that a killed run may leave
        watching(watcher, progress) as shown,
    ):
        if target.exists() and not restart:
            found = _check_existing(source, target, kind, tokenizer)
            # A run that was killed just before it ended leaves its folder.
            shutil.rmtree(folder, ignore_errors=True)
            return found
        prepare_ids = partial(
            prepare,
            source,
            folder,
            tokenizer=tokenizer,
            workers=workers,
            memory=memory,
            watcher=shown,
            **_UNCHANGED,
        )
        report = prepare_ids(restart=restart)
        try:
            _copy(report.manifest, folder, folder / target.name, kind)
        except DamagedFileError:
            shown.note(f"The ids in {folder} changed after they were written; making them again.")
            report = prepare_ids(restart=True)
            _copy(report.manifest, folder, folder / target.name, kind)
        rejected = _move_report(folder / REJECTED_NAME, target)
        _move_report(folder / REPAIRED_NAME, target)
        (folder / target.name).replace(target)
        sync_folder(target.parent)
        shutil.rmtree(folder)
    ledger = report.manifest.ledger
    return Pretokenized(
        path=target,
        tokens=ledger["tokens"],
        dtype=kind.name,
        characters=ledger["characters"],
        documents=ledger["documents_kept"],
        was_there=False,
        dropped=ledger["dropped"],
        repaired=ledger["repaired_documents"],
        rejected=rejected,
    )


def _move_report(report: Path, target: Path) -> Path | None:
    """Move a report next to the ids. Returns its new path, or None if there is no report."""
    if not report.exists():
        return None
    return report.replace(target.with_suffix(f".{report.name}"))


def _kind(dtype: str, tokenizer: Tokenizer) -> np.dtype[Any]:
    if dtype not in DTYPES:
        raise UsageError(f"`dtype` is {dtype!r}; it must be one of {', '.join(DTYPES)}.")
    if dtype == "auto":
        dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    kind = np.dtype(dtype)
    if tokenizer.vocab_size - 1 > np.iinfo(kind).max:
        raise UsageError(
            f"ids go up to {tokenizer.vocab_size - 1}, which {dtype} cannot hold. Use `dtype='uint32'`."
        )
    return kind


def _check_existing(
    source: Path, target: Path, kind: np.dtype[Any], tokenizer: Tokenizer
) -> Pretokenized:
    """Return the result for ids that an earlier run wrote to `target`.

    Raises `FolderError` if the file is outdated, damaged, or not the ids of this text.
    """
    again = "Add `restart=True` to make it again."
    if target.stat().st_mtime_ns < source.stat().st_mtime_ns:
        raise FolderError(f"{target} is older than {source}. {again}")
    try:
        array = np.load(target, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy can raise any exception on damaged bytes
        if is_about_process(error):
            raise
        reason = str(error)[:200]
        raise FolderError(
            f"{target} exists but is not a valid .npy file ({reason}). {again}"
        ) from error
    if array.dtype != kind:
        raise FolderError(f"{target} holds {array.dtype}, not {kind}. {again}")
    # The file may be from another text, such as x.jsonl beside x.txt, or from another tokenizer.
    begin = _first_ids(source, target, tokenizer)
    if array.ndim != 1 or not np.array_equal(array[: len(begin)], begin):
        raise FolderError(
            f"{target} does not hold the ids that tokenizer {tokenizer.name} gives for {source}. {again}"
        )
    with explain_disk_errors():
        sync_folder(target.parent)  # the run that made the file may not have done this
    return Pretokenized(
        path=target,
        tokens=array.size,
        dtype=kind.name,
        characters=None,
        documents=None,
        was_there=True,
    )


def _first_ids(source: Path, target: Path, tokenizer: Tokenizer) -> Ids:
    """Return the ids of the first few MB of a text, to compare them with those in `target`."""
    out = target.with_suffix(".work")
    plan = make_plan(source, out, tokenizer=tokenizer, workers=1, **_UNCHANGED)
    part = plan.parts[0]
    for chunk in PartTask.of(plan, part, Path()).read(part.ranges[0]):
        cleaned = clean_chunk(chunk, plan.settings, plan.sources[0])
        if texts := [text for text in cleaned.texts if text]:
            ids, _ = tokenizer.encode_terminated(texts)
            return ids[:-1]  # the last text may be unfinished
    return np.zeros(0, np.uint32)


def _copy(manifest: Manifest, folder: Path, target: Path, kind: np.dtype[Any]) -> None:
    stored = np.dtype(manifest.dtype)
    with NpyFile(target, kind) as file:
        for shard in manifest.splits["train"].shards:
            digest = xxhash.xxh3_128()
            with open_inside(folder, shard.path) as tokens:
                check_size(tokens, shard.path, shard.tokens * stored.itemsize)
                while data := tokens.read(_COPY * stored.itemsize):
                    digest.update(data)
                    file.write(np.frombuffer(data, stored).astype(kind).view(np.uint8))
            if digest.hexdigest() != shard.xxh3_128:
                raise DamagedFileError(shard.path, "does not match its checksum")
        file.finish()
