"""Take a sample of the documents: a salted hash of a document's key decides whether it is in it.

Guarantees: whether a document is in the sample depends only on its text after cleaning and on its rate.
So equal documents of one source are chosen together, a smaller sample is part of a larger one, and a
sample does not depend on the order of the input. The hash uses the half of the key that does not decide
the split.

The rate of a document is `sample`, times the weight of its source. Documents are chosen before repeats
are found: an equal document of a source with a larger weight may stay. Documents that are not in the
sample are not tokenized, except for large ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError
from tokenmill.preparation.settings import PrepareSettings

NOT_SAMPLED = "not sampled"  # in the ledger, the reason of documents that are not in the sample
_SALT = np.uint64(0x73616D706C657300)  # the ASCII codes of "samples", and a 0
_BITS = 53  # of the hash that are compared: a float64 holds them exactly

Keys = npt.NDArray[np.uint64]


def is_sampled(keys: Keys, rates: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which documents are in the sample, from their keys and their rates.

    The finalizer of SplitMix64 mixes the high half of the key with a salt. If the upper 53 bits of the
    result, divided by 2**53, are below the rate, the document is in the sample.

    >>> keys = np.array([[1, 0], [2, 0], [3, 0], [4, 0]], np.uint64)
    >>> [is_sampled(keys, np.full(4, rate)).sum().item() for rate in (0.0, 0.1, 0.3, 1.0)]
    [0, 1, 2, 4]
    """
    x = keys[:, 0] ^ _SALT
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (x >> np.uint64(64 - _BITS)) < np.floor(rates * 2.0**_BITS).astype(np.uint64)


def find_rates(settings: PrepareSettings, paths: Sequence[str]) -> tuple[float, ...] | None:
    """Return the rate of each source: `sample`, times the weight of the first pattern that matches.

    Returns None if all documents are in the sample. Refuses a pattern that matches no source.

    >>> find_rates(PrepareSettings(sample=0.5, weight=("web/*=0.1",)), ["a/web/x.txt", "b.txt"])
    (0.05, 0.5)
    """
    if not settings.takes_sample:
        return None
    for pattern, _ in settings.weights:
        if not any(_matches(path, pattern) for path in paths):
            raise UsageError(
                f"`weight` names {pattern!r}, which matches no input file. The pattern is compared with "
                "the path of each file, and with its end: data/web/a.txt matches web/* and *.txt."
            )
    return tuple(find_rate(settings, path) for path in paths)


def find_rate(settings: PrepareSettings, path: str) -> float:
    """Return the share of the documents of one source that are in the sample."""
    found = (weight for pattern, weight in settings.weights if _matches(path, pattern))
    return settings.sample * next(found, 1.0)


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"*/{pattern}")
