"""The names that the guides use, over tokenmill's loaders; docs/guides.md tells them one by one.

    LocalTokenizedDataset, LocalTokenizedDatasetFixed, LocalDataModule, create_dataloaders
                        one .npy file for training and one for validation
    StreamingDataset    X.npy beside X.txt
    TokenizedDataset    a folder of llm.c shards, the last of them held out
    download_tokenized_data
                        some of them from the hub
    GPTDataLoader       a prepared dataset, or a text in memory
    TextDataSource, load_text_dataset, load_text_dataset_tf_fallback
                        texts as padded examples, for JAX through Grain or TensorFlow

Each keeps the arguments of its guide and none of its faults. Importing this loads no framework;
the names are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "GPTDataLoader": "tokenmill.compat.gpt_loader",
    "LocalDataModule": "tokenmill.compat.local_module",
    "LocalTokenizedDataset": "tokenmill.compat.local",
    "LocalTokenizedDatasetFixed": "tokenmill.compat.local",
    "StreamingDataset": "tokenmill.compat.streaming",
    "TextDataSource": "tokenmill.compat.text_source",
    "TokenizedDataset": "tokenmill.compat.tokenized",
    "create_dataloaders": "tokenmill.compat.local",
    "load_text_dataset": "tokenmill.compat.text_grain",
    "load_text_dataset_tf_fallback": "tokenmill.compat.text_tensorflow",
    "download_tokenized_data": "tokenmill.compat.fetched",
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
    from tokenmill.compat.fetched import download_tokenized_data
    from tokenmill.compat.gpt_loader import GPTDataLoader
    from tokenmill.compat.local import (
        LocalTokenizedDataset,
        LocalTokenizedDatasetFixed,
        create_dataloaders,
    )
    from tokenmill.compat.local_module import LocalDataModule
    from tokenmill.compat.streaming import StreamingDataset
    from tokenmill.compat.text_grain import load_text_dataset
    from tokenmill.compat.text_source import TextDataSource
    from tokenmill.compat.text_tensorflow import load_text_dataset_tf_fallback
    from tokenmill.compat.tokenized import TokenizedDataset


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tokenmill.compat' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
