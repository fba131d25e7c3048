"""Classes and functions that published training guides define, on top of tokenmill's loaders.

    LocalTokenizedDataset, LocalTokenizedDatasetFixed, LocalDataModule, create_dataloaders
                        one .npy file for training and one for validation
    StreamingDataset    X.npy next to X.txt
    TokenizedDataset    a folder of llm.c shards; the last shard is for validation
    download_tokenized_data
                        downloads such shards from the Hub
    GPTDataLoader       a prepared dataset, or text in memory
    TextDataSource, load_text_dataset, load_text_dataset_tf_fallback
                        texts as padded examples, for JAX through Grain or TensorFlow

docs/guides.md lists the guides. Names and arguments are those of the guides; the guides' bugs are
fixed. Importing this package imports no framework: each name is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "GPTDataLoader": "tokenmill.compat.windows",
    "LocalDataModule": "tokenmill.compat.local_lightning",
    "LocalTokenizedDataset": "tokenmill.compat.local",
    "LocalTokenizedDatasetFixed": "tokenmill.compat.local",
    "StreamingDataset": "tokenmill.compat.local",
    "TextDataSource": "tokenmill.compat.text_source",
    "TokenizedDataset": "tokenmill.compat.windows",
    "create_dataloaders": "tokenmill.compat.local",
    "load_text_dataset": "tokenmill.compat.text_loaders",
    "load_text_dataset_tf_fallback": "tokenmill.compat.text_loaders",
    "download_tokenized_data": "tokenmill.compat.windows",
}

__all__ = [
    "GPTDataLoader",
    "LocalDataModule",
    "LocalTokenizedDataset",
    "LocalTokenizedDatasetFixed",
    "StreamingDataset",
    "TextDataSource",
    "TokenizedDataset",
    "create_dataloaders",
    "download_tokenized_data",
    "load_text_dataset",
    "load_text_dataset_tf_fallback",
]

if TYPE_CHECKING:
    from tokenmill.compat.local import (
        LocalTokenizedDataset,
        LocalTokenizedDatasetFixed,
        StreamingDataset,
        create_dataloaders,
    )
    from tokenmill.compat.local_lightning import LocalDataModule
    from tokenmill.compat.text_loaders import load_text_dataset, load_text_dataset_tf_fallback
    from tokenmill.compat.text_source import TextDataSource
    from tokenmill.compat.windows import (
        GPTDataLoader,
        TokenizedDataset,
        download_tokenized_data,
    )


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tokenmill.compat' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
