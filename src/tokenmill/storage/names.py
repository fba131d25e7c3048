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

REJECTED_NAME = "rejected.jsonl"
REPAIRED_NAME = "repaired.jsonl"
EXCLUDED_NAME = "excluded.jsonl"
DROPPED_NAME = "dropped.jsonl"
REMOVED_NAME = "removed.jsonl.zst"
CONTAMINATED_NAME = "contaminated.jsonl"
REPORT_NAMES = (
    REJECTED_NAME,
    REPAIRED_NAME,
    EXCLUDED_NAME,
    DROPPED_NAME,
    REMOVED_NAME,
    CONTAMINATED_NAME,
)

NUMBERS = re.compile("([0-9]+)")  # not \d, which also matches the digits of other scripts


def name_in_generation(name: str, generation: int) -> str:
    """Return the name of a list that a generation of a dataset added.

    >>> name_in_generation("sources.jsonl", 1), name_in_generation("sources.jsonl", 2)
    ('sources.jsonl', 'sources_2.jsonl')
    >>> name_in_generation("removed.jsonl.zst", 2)
    'removed_2.jsonl.zst'
    """
    stem, dot, ending = name.partition(".")
    return name if generation == 1 else f"{stem}_{generation}{dot}{ending}"


def is_of_generation(name: str) -> bool:
    """Return whether a file is a list that a later generation of a dataset added.

    >>> [is_of_generation(name) for name in ("sources_2.jsonl", "sources.jsonl", "notes_2.jsonl")]
    [True, False, False]
    """
    stem, _, rest = name.rpartition("_")
    number, _, ending = rest.partition(".")
    known = f"{stem}.{ending}" in (SOURCES_NAME, *REPORT_NAMES)
    return known and number.isascii() and number.isdecimal()


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
