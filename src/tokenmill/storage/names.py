"""The names of the files that make a folder a dataset.

They are known below the layers that read and write these files, because searching for text must
pass over datasets, and a repository on the Hub may be one.
"""

from __future__ import annotations

MANIFEST_NAME = "dataset_metadata.json"
SOURCES_NAME = "sources.jsonl"
TOKENIZER_NAME = "tokenizer_state.json"
WORK_NAME = ".work"  # unfinished work, removed when the manifest is written
