"""The ledger of a dataset that grows: what was read, kept and dropped by all its runs together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NEWEST = {"evaluation"}  # entries about the evaluation texts, which are those of all runs


def add_ledgers(before: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of two ledgers: numbers are added, lists joined, and so on in each entry.

    >>> add_ledgers({"kept": 2, "dropped": {"empty": 1}}, {"kept": 3, "dropped": {"duplicate": 4}})
    {'kept': 5, 'dropped': {'duplicate': 4, 'empty': 1}}
    """
    names = [*added, *(name for name in before if name not in added)]
    total = {
        name: added[name]
        if name in _NEWEST & added.keys()
        else _add(before.get(name), added.get(name))
        for name in names
    }
    if isinstance(total.get("dropped"), dict):
        total["dropped"] = dict(sorted(total["dropped"].items()))
    return total


def _add(before: Any, added: Any) -> Any:
    if isinstance(before, Mapping) and isinstance(added, Mapping):
        return add_ledgers(before, added)
    for kind in (int, list):
        if isinstance(before, kind) and isinstance(added, kind):
            return before + added  # type: ignore[operator]
    return before if added is None else added  # `verify` reports a wrong value of another type
