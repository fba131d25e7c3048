"""nanoGPT's folders: `train.bin` and `val.bin`, and `test.bin` where there is one, raw ids.

They are uint16 by nanoGPT's convention, unless the user or a `meta.json` says otherwise. `meta.pkl`
is a pickle and is never loaded. What the ids mean is told nowhere; a text's end, where it is marked
at all, stands after it.
"""

from __future__ import annotations

import numpy as np

from tokenmill.formats.folder import list_shards
from tokenmill.formats.protocol import Asked, Contents, NotThisFormat
from tokenmill.formats.raw import choose_check, make_shards, read_metadata

NAME = "nanogpt"


def read(asked: Asked) -> Contents:
    """What a nanoGPT folder holds."""
    if not asked.is_folder:
        raise NotThisFormat("it is a file, and this is a folder with train.bin")
    names = list_shards(asked, ".bin")
    if "train.bin" not in names:
        raise NotThisFormat("it has no train.bin")
    told = read_metadata(asked.path / "meta.json")
    dtype = asked.dtype or told.get("dtype") or np.dtype(np.uint16)
    return Contents(
        splits={
            split: make_shards(
                asked.path, [f"{split}.bin"], asked.files, dtype, choose_check(asked)
            )
            for split in ("train", "val", "test")
            if f"{split}.bin" in names
        },
        eot_id=told.get("eot_id"),
        vocab_size=told.get("vocab_size"),
    )
