"""The folder that keeps the results of long inspections: statistics, indexes of keys and of words.

For a prepared dataset in a folder that can be written to, it is `DATA/.tokenmill/IDENTITY`. For a
folder that cannot, and for other formats, it is in the user's cache folder. IDENTITY is a hash of the
checksums of all tokens, so the results of other data are never used.

Kept results can be deleted at any time; they are computed again when they are needed. The dataset's
own files are never changed.
"""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from tokenmill.dataset.opening import Dataset
from tokenmill.storage.cache import find_cache_folder
from tokenmill.storage.files import make_folder
from tokenmill.storage.reading import is_mappable

KEPT_NAME = ".tokenmill"


def find_kept(dataset: Dataset, *, make: bool = False) -> Path:
    """Return the folder that keeps results about a dataset, such as statistics; `make` creates it.

    >>> import tempfile
    >>> import tokenmill
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("to be or not to be")
    >>> _ = tokenmill.prepare(folder / "a.txt", folder / "data", tokenizer="bytes")
    >>> find_kept(tokenmill.open(folder / "data")).parent.name
    '.tokenmill'
    """
    beside = dataset.path / KEPT_NAME
    is_beside = (
        dataset.manifest is not None
        and is_mappable(dataset.path)
        and not beside.is_symlink()  # in an untrusted dataset, a link may lead anywhere
        and os.access(beside if beside.exists() else dataset.path, os.W_OK)
    )
    place = beside if is_beside else find_cache_folder(None) / "inspected"
    folder = place / identify(dataset)
    if make:
        make_folder(folder)
    return folder


def may_have_kept(dataset: Dataset, name: str) -> bool:
    """Return whether results with this name may be kept. They may belong to other data.

    This is quick, because it does not compute the identity of the tokens.
    """
    places = (dataset.path / KEPT_NAME, find_cache_folder(None) / "inspected")
    return any(is_mappable(place) and any(place.glob(f"*/{name}")) for place in places)


def identify(dataset: Dataset) -> str:
    """Return a short hash that changes if the tokens of any split change."""
    known = [f"{name} {dataset[name].identity}" for name in sorted(dataset)]
    return xxhash.xxh3_64_hexdigest("\n".join(known).encode("utf-8", "surrogatepass"))
