"""The names of a dataset's files, and a sort key for names that contain numbers.

The names are in this low layer because several layers need them. For example, the search for input
files skips folders that are datasets.
"""

from __future__ import annotations

import re

MANIFEST_NAME = "dataset_metadata.json"
SOURCES_NAME = "sources.jsonl"
TOKENIZER_NAME = "tokenizer_state.json"
EXCLUDE_ENDING = ".exclude.jsonl"  # of the list of documents to leave out, beside the folder
WORK_NAME = ".work"  # unfinished work, removed when the manifest is written

NUMBERS = re.compile("([0-9]+)")  # not \d, which also matches the digits of other scripts


def by_numbers(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key for names; numbers in the names are compared by value.

    >>> sorted(["a_10.bin", "a_9.bin", "a_09.bin"], key=by_numbers)
    ['a_09.bin', 'a_9.bin', 'a_10.bin']
    """
    # Text and digits alternate in the key, so a number is compared only with a number. Of two numbers
    # without leading zeros, the longer one is larger; those of equal length compare digit by digit.
    # So no number has to be converted, however long it is.
    parts = enumerate(NUMBERS.split(name))
    key = [(len(short := part.lstrip("0")), short) if at % 2 else (0, part) for at, part in parts]
    return key, name
