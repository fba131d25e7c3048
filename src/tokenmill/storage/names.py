"""The names of the files that make a folder a dataset.

They are defined below the layers that read and write these files, because a search for text must
skip datasets, and a repository on the Hub may be one.
"""

from __future__ import annotations

MANIFEST_NAME = "dataset_metadata.json"
SOURCES_NAME = "sources.jsonl"
TOKENIZER_NAME = "tokenizer_state.json"
WORK_NAME = ".work"  # unfinished work, removed when the manifest is written
