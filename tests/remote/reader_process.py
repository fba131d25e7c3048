"""A rank of a training job, in a process of its own: prints a digest of every batch until killed.

python reader_process.py JOB      JOB is JSON: how to open the data, the loader, and the first row
"""

from __future__ import annotations

import json
import sys
from typing import Any

import xxhash

import tokenmill


def open_data(path: str, *, mixed: bool, **options: Any) -> tokenmill.Tokens | tokenmill.Mixture:
    """The training split, or a mixture of both splits."""
    data = tokenmill.open(path, **options)
    if not mixed:
        return data["train"]
    return tokenmill.Mixture({"a": (data["train"], 2), "b": (data["val"], 1)}, block=12)


def digest(batch: tokenmill.Batch) -> str:
    """A hash of everything in a batch."""
    found = xxhash.xxh3_128(batch.inputs.tobytes())
    found.update(batch.targets.tobytes())
    if batch.documents is not None:
        found.update(batch.documents.cu_seqlens.tobytes())
        found.update(batch.documents.positions.tobytes())
    return found.hexdigest()


def main() -> None:
    job = json.loads(sys.argv[1])
    loader = tokenmill.Loader(open_data(**job["data"]), **job["loader"])
    loader.load_state_dict(loader.state_dict() | {"row": job["row"]})
    for batch in loader:
        print(batch.row, batch.end, digest(batch), flush=True)


if __name__ == "__main__":
    main()
