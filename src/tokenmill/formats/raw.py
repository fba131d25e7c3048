"""Files that hold only ids: `x.bin`, folders of such files, and OLMo's `.npy` without a header.

Such a file does not store its dtype. It is opened only if the dtype comes from one of these:

    the user      the option `dtype`
    a JSON file   `x.json`, `x.bin.json` or `meta.json` next to `x.bin`, with `dtype` and, if known,
                  `vocab_size` and `eot_id`
    a manifest    if the file is a shard of a prepared dataset

The only possible check is that the file holds a whole number of ids.

For a folder, the dtype comes from the user or from `meta.json` in the folder. The files of a folder
are assigned to splits by words in their names, such as `val`, or by the subfolders `train`, `val`
and `test`.
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
from tokenmill.formats.base import (
    Contents,
    Format,
    NotThisFormat,
    OpenRequest,
    fix_byte_order,
    parse_dtype,
)
from tokenmill.formats.shard_names import check_gaps, list_shards, split_shards
from tokenmill.storage.decoding import load_json
from tokenmill.storage.reading import FOREIGN_CURE, DamagedFileError, open_foreign
from tokenmill.store.manifest import Manifest, find_manifest, is_own
from tokenmill.store.shards import FileShards

LONGEST_JSON = 1 << 20


class Raw(Format):
    """Reads a file that holds only ids, or a folder of such files."""

    name = "raw"

    def read(self, request: OpenRequest) -> Contents:
        known: dict[str, Any] = {"dtype": request.dtype}
        if request.dtype is None and request.is_folder:
            known = read_metadata(request.path / "meta.json")
        elif request.dtype is None:
            known = _read_beside(request.path)
        if not known:
            missing = "no meta.json gives the" if request.is_folder else "no other file gives the"
            raise NotThisFormat(f"{missing} dtype; pass it, such as `dtype='uint16'`")
        dtype = known.pop("dtype")
        if not request.is_folder:
            # A single file named by the user is read as raw ids, even if it seems to have a header.
            shards = make_shards(request.folder, [request.path.name], request.files, dtype)
            return Contents(splits={"train": shards}, **known)
        splits = {split: files for split, files in _list_splits(request).items() if files}
        if "train" not in splits:
            raise NotThisFormat("neither it nor its subfolder train has .bin files for training")
        check = choose_check(request)
        return Contents(
            splits={
                split: make_shards(request.path, list(files), files, dtype, check)
                for split, files in splits.items()
            },
            **known,
        )


def _list_splits(request: OpenRequest) -> dict[str, dict[str, int]]:
    """Return, for each split, its files in order: a map from each name to the file's size."""
    if names := list(request.chosen or list_shards(request, ".bin")):
        return {
            split: {name: request.files[name] for name in some}
            for split, some in split_shards(request, names).items()
        }
    splits = {}
    for split in ("train", "val", "test"):
        inner = replace(request, path=request.path / split)
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
    """Make shards of files that hold only ids.

    `check` is called now for the first and the last file, and later for every file that is opened.
    """
    dtype = fix_byte_order(dtype)
    sizes = np.fromiter(map(files.__getitem__, names), np.int64, len(names))
    wrong = sizes % dtype.itemsize != 0
    if wrong.any():
        number = int(wrong.argmax())
        raise DamagedFileError(
            names[number],
            f"has {sizes[number]:,} bytes, which is not a multiple of the size of {dtype.name}",
            f"{FOREIGN_CURE} Or pass another `dtype`.",
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


def choose_check(request: OpenRequest) -> Callable[[BinaryIO, str], None] | None:
    """Return a function that refuses files with a header; None if the user named the format."""
    return None if request.format else _refuse_header


def _refuse_header(file: BinaryIO, name: str) -> None:
    """Raise an error if a file starts with a header."""
    file.seek(0)
    head = file.read(8)
    owner = (
        "NumPy's" if head.startswith(npy.MAGIC) else "llm.c's" if llmc.has_header(head) else None
    )
    if owner:
        raise DamagedFileError(
            name,
            f"starts with what looks like {owner} header, but was opened as ids without a header",
            "Move the file to another folder. If it really has only ids, pass `format='raw'`.",
        )


def _read_beside(path: Path) -> dict[str, Any]:
    """Return facts about a raw file, such as the dtype; {} if no JSON file or manifest has them."""
    if path.suffix == ".json":  # the file to open is itself a JSON file
        return {}
    for name in (f"{path.stem}.json", f"{path.name}.json", "meta.json"):
        if known := read_metadata(path.with_name(name)):
            return known
    for root in path.absolute().parents[:2]:
        data = find_manifest(root)
        if data is not None and is_own(data):
            manifest = Manifest.from_json(data, root)
            place = path.absolute().relative_to(root).as_posix()
            if any(place in split.shards.path for split in manifest.splits.values()):
                if manifest.compression is not None:
                    raise DatasetError(
                        f"{path} is a compressed shard. Open its dataset: {root}. Or decompress it: "
                        f"zstd -d {path}"
                    )
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
    """Read `dtype`, `vocab_size` and `eot_id` from a JSON file; return {} if it has no `dtype`."""
    try:
        if not path.is_file() or path.stat().st_size > LONGEST_JSON:
            return {}
        metadata = load_json(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise DatasetError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(metadata, dict) or "dtype" not in metadata:
        return {}
    known: dict[str, Any] = {}
    try:
        known["dtype"] = parse_dtype(metadata["dtype"])
    except UsageError as error:
        raise DatasetError(f"{path} cannot be used: {error}") from None
    for key in ("vocab_size", "eot_id"):
        value = metadata.get(key)
        if value is not None and (type(value) is not int or not 0 <= value < 1 << 63):
            raise DatasetError(
                f"{path} cannot be used: {key} is {str(value)[:40]!r}; it must be an integer "
                "from 0 to 2**63 - 1. Correct or remove that file."
            )
        known[key] = value
    return known
