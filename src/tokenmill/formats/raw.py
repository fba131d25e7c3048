"""Files of ids and nothing else: `x.bin`, folders of such, OLMo's headerless `.npy`.

Nothing in such a file tells its dtype, so it is opened only where something else does: the user, a
JSON file beside it (`x.json` or `meta.json` for `x.bin`, with `dtype`, and `vocab_size` and `eot_id`
if known), or the manifest of the dataset that the file is a shard of. All that can be checked is
that the size is a multiple of an id's.

A folder of raw files needs the dtype from the user or from its `meta.json`. It is split by its names
(`val`, `test`), or by its subfolders `train`, `val` and `test`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats import llmc, npy
from tokenmill.formats.folder import check_gaps, list_shards, split_by_name
from tokenmill.formats.protocol import Asked, Contents, NotThisFormat, parse_dtype
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, open_foreign
from tokenmill.store.manifest import Manifest, find_manifest, is_own
from tokenmill.store.shards import FileShards

NAME = "raw"
LONGEST_JSON = 1 << 20


def read(asked: Asked) -> Contents:
    """What a raw file or a folder of them holds."""
    if not asked.is_folder:
        told: dict[str, Any] = (
            {"dtype": asked.dtype} if asked.dtype is not None else read_beside(asked.path)
        )
        if not told:
            raise NotThisFormat("nothing says its dtype; give it: `dtype='uint16'` or another")
        name = asked.path.name
        files = {name: asked.path.stat().st_size}
        return Contents(
            splits={"train": make_shards(asked.folder, [name], files, told.pop("dtype"))}, **told
        )
    told = (
        {"dtype": asked.dtype}
        if asked.dtype is not None
        else read_metadata(asked.path / "meta.json")
    )
    if not told:
        raise NotThisFormat(
            "no meta.json says the dtype of its files; give it: `dtype='uint16'` or another"
        )
    dtype = told.pop("dtype")
    names = {split: some for split, some in _list(asked).items() if some}
    if "train" not in names:
        raise NotThisFormat("it has no .bin files for training, nor has its subfolder train")
    return Contents(
        splits={
            split: make_shards(asked.path, list(some), some, dtype, choose_check(asked))
            for split, some in names.items()
        },
        **told,
    )


def _list(asked: Asked) -> dict[str, dict[str, int]]:
    """The files of each split with their sizes, in order."""
    if names := list(asked.chosen or list_shards(asked, ".bin")):
        parts = split_by_name(names)
        for some in parts.values():
            check_gaps(asked, some)
        return {split: {name: asked.files[name] for name in parts[split]} for split in parts}
    splits = {}
    for split in ("train", "val", "test"):
        inner = replace(asked, path=asked.path / split)
        if inner.is_folder:
            names = list_shards(inner, ".bin")
            check_gaps(inner, names)
            splits[split] = {f"{split}/{name}": inner.files[name] for name in names}
    return splits


def make_shards(
    folder: Path,
    names: list[str],
    files: Mapping[str, int],
    dtype: np.dtype[Any],
    check: Callable[[BinaryIO, str], None] | None = None,
) -> FileShards:
    """Shards of files that are ids and nothing else. `check` is as in `FileShards`; the first and
    the last are checked at once."""
    dtype = dtype if dtype.byteorder == ">" else dtype.newbyteorder("<")
    sizes = np.fromiter(map(files.__getitem__, names), np.int64, len(names))
    wrong = sizes % dtype.itemsize != 0
    if wrong.any():
        number = int(wrong.argmax())
        raise DamagedFileError(
            names[number],
            f"has {sizes[number]:,} bytes, which is not a whole number of {dtype.name}",
            f"{FOREIGN_CURE} Or give its `dtype`.",
        )
    if check is not None:
        for name in {names[0], names[-1]}:
            with open_foreign(folder, name) as file:
                check(file, name)
    return FileShards(
        folder=folder.absolute(),
        names=names,
        dtype=dtype,
        counts=sizes // dtype.itemsize,
        offsets=np.zeros_like(sizes),
        sizes=sizes,
        check=check,
        foreign=True,
    )


def choose_check(asked: Asked) -> Callable[[BinaryIO, str], None] | None:
    """What looks for headers in files that were taken for raw, unless the user said that they are."""
    return None if asked.format else refuse_header


def refuse_header(file: BinaryIO, name: str) -> None:
    """Refuse a file that begins with a header, and so is not ids alone."""
    file.seek(0)
    head = file.read(8)
    whose = (
        "NumPy" if head.startswith(npy.MAGIC) else "llm.c" if llmc.begins_like_shard(head) else None
    )
    if whose:
        raise DamagedFileError(
            name,
            f"begins with a header of {whose}, and was taken for ids alone",
            "Move it away from files without one; or, if it is ids alone, name the format.",
        )


def read_beside(path: Path) -> dict[str, Any]:
    """What is known of a raw file from what lies beside it; nothing if nothing does."""
    for name in (f"{path.stem}.json", f"{path.name}.json", "meta.json"):
        if told := read_metadata(path.with_name(name)):
            return told
    for root in path.absolute().parents[:2]:
        data = find_manifest(root)
        if data is not None and is_own(data):
            manifest = Manifest.from_json(data, root)
            place = path.absolute().relative_to(root).as_posix()
            if any(place in split.shards.path for split in manifest.splits.values()):
                return {
                    "dtype": np.dtype(manifest.dtype),
                    "eot_id": manifest.eot_id if manifest.eot != "none" else None,
                    "eot": manifest.eot,
                    "vocab_size": manifest.vocab_size,
                    "tokenizer": manifest.tokenizer,
                    "shard_of": root,
                }
    return {}


def read_metadata(path: Path) -> dict[str, Any]:
    """The `dtype`, `vocab_size` and `eot_id` in a JSON file; nothing without it or a dtype in it."""
    try:
        if not path.is_file() or path.stat().st_size > LONGEST_JSON:
            return {}
        told = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise DatasetError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(told, dict) or "dtype" not in told:
        return {}
    known: dict[str, Any] = {}
    try:
        known["dtype"] = parse_dtype(told["dtype"])
    except UsageError as error:
        raise DatasetError(f"{path} cannot be used: {error}") from None
    for key in ("vocab_size", "eot_id"):
        value = told.get(key)
        if value is not None and (type(value) is not int or not 0 <= value < 1 << 63):
            raise DatasetError(f"{path} cannot be used: {key} is {str(value)[:40]!r}.")
        known[key] = value
    return known
