"""Where the results of long inspections are kept: statistics, indexes of keys and of words.

They are beside the dataset, in `DATA/.tokenmill/IDENTITY`, if the dataset is a prepared one in a
folder that can be written to. Otherwise, and for other formats, they are in the user's cache folder.
IDENTITY is a hash of all tokens' checksums, so results for other data are never used.

Everything kept can be deleted at any time; it is then computed again. The dataset's own files are
never changed.
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
        and not beside.is_symlink()  # in a dataset of a stranger, it may lead anywhere
        and os.access(beside if beside.exists() else dataset.path, os.W_OK)
    )
    place = beside if is_beside else find_cache_folder(None) / "inspected"
    folder = place / identify(dataset)
    if make:
        make_folder(folder)
    return folder


def may_have_kept(dataset: Dataset, name: str) -> bool:
    """Return whether results of this name are kept for this or other data, without reading tokens."""
    places = (dataset.path / KEPT_NAME, find_cache_folder(None) / "inspected")
    return any(is_mappable(place) and any(place.glob(f"*/{name}")) for place in places)


def identify(dataset: Dataset) -> str:
    """Return a short hash that changes if the tokens of any split change."""
    known = [f"{name} {dataset[name].identity}" for name in sorted(dataset)]
    return xxhash.xxh3_64_hexdigest("\n".join(known).encode("utf-8", "surrogatepass"))
