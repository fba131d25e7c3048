"""nanoGPT's folders: raw ids in `train.bin` and, if they exist, `val.bin` and `test.bin`.

Ids are uint16 by nanoGPT's convention, unless the user or a `meta.json` says otherwise. Exports
have a `meta.json`, which nanoGPT does not read. `meta.pkl` is a pickle and is never loaded. The
files do not name a tokenizer. The end-of-text id, if there is one, is after each document.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import orjson

from tokenmill.errors import DatasetError
from tokenmill.formats.base import Contents, Format, NotThisFormat, OpenRequest
from tokenmill.formats.raw import choose_check, make_shards, read_metadata
from tokenmill.formats.shard_names import list_shards
from tokenmill.formats.writing import FileJob, WriteRequest
from tokenmill.storage.files import write_file


class NanoGPT(Format):
    """Reads and writes a folder with one file per split."""

    name = "nanogpt"

    def read(self, request: OpenRequest) -> Contents:
        if not request.is_folder:
            raise NotThisFormat("it is a file, not a folder with train.bin")
        names = list_shards(request, ".bin")
        if "train.bin" not in names:
            raise NotThisFormat("it has no train.bin")
        metadata = read_metadata(request.path / "meta.json")
        dtype = request.dtype or metadata.get("dtype") or np.dtype(np.uint16)
        check = choose_check(request)
        return Contents(
            splits={
                split: make_shards(request.path, [f"{split}.bin"], request.files, dtype, check)
                for split in ("train", "val", "test")
                if f"{split}.bin" in names
            },
            eot_id=metadata.get("eot_id"),
            vocab_size=metadata.get("vocab_size"),
        )

    def plan(self, request: WriteRequest) -> Iterator[FileJob]:
        if "train" not in request.splits:
            raise DatasetError(
                "nanoGPT's folders need a split named train, and the source has only "
                f"{', '.join(request.splits)}. Export to another format."
            )
        dtype = request.choose_dtype()
        known = {"vocab_size": request.vocab_size, "eot_id": request.eot_id}
        metadata = orjson.dumps(
            {"dtype": dtype.name} | {key: one for key, one in known.items() if one is not None}
        )
        yield FileJob(
            name="meta.json", tokens=0, write=lambda path, _: write_file(path, metadata + b"\n")
        )
        for split in request.splits:
            whole = request.take_all(split, dtype)
            yield FileJob(name=f"{split}.bin", tokens=len(whole), write=whole.write)
