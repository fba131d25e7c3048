"""Whether a saved state belongs to the run that is to go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokenmill.errors import StateError

__all__ = ["MOST_ROWS", "check_state", "find_names"]

MOST_ROWS = 1 << 62

FORCE = "To go on at its row in spite of that, use `force=True`."


def check_state(
    state: Mapping[str, Any], own: Mapping[str, Any], *, force: bool, cure: str = FORCE
) -> int:
    """The row at which to go on.

    `own` is what the loader would save itself. All that differs is named, and refused unless
    forced.

    >>> own = {"version": 1, "row": 0, "seed": 2}
    >>> check_state({"version": 1, "row": 7, "seed": 1}, own, force=False)
    Traceback (most recent call last):
    ...
    tokenmill.errors.StateError: This state is of another run: seed is 1 in the state and 2 here.
    To go on at its row in spite of that, use `force=True`.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise StateError("This is no state of a loader: it must be what state_dict() returned.")
    if state["version"] != own["version"]:
        raise StateError(
            f"This state has version {state['version']!r}, and this tokenmill reads version "
            f"{own['version']}. Use the version of tokenmill that saved it."
        )
    row = state.get("row")
    if not isinstance(row, int) or isinstance(row, bool) or not 0 <= row < MOST_ROWS:
        raise StateError(f"This state is damaged: its row is {row!r}.")
    ignored = {"version", "row"}
    wanted, there = (
        {key: value for key, value in one.items() if key not in ignored} for one in (own, state)
    )
    if "names" in wanted:
        there["names"] = find_names(there)
    if not force and (differences := list(_differ(there, wanted))):
        raise StateError(f"This state is of another run: {'; '.join(differences)}.\n{cure}")
    return row


def find_names(state: Mapping[str, Any]) -> Any:
    """The sources of a mixture in their order. States once had no names, but were written in it.

    >>> find_names({"names": ["b", "a"]}), find_names({"sources": {"b": {}, "a": {}}})
    (['b', 'a'], ['b', 'a'])
    """
    sources = state.get("sources")
    return state.get("names", list(sources) if isinstance(sources, Mapping) else None)


def _differ(there: Any, here: Any, name: str = "") -> Iterator[str]:
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in [*here, *(key for key in there if key not in here)]:
            inner = f"{name}.{key}" if name and key else name or str(key)
            yield from _differ(there.get(key), here.get(key), inner)
    elif _plain(there) != _plain(here):
        yield f"{name} is {there!r} in the state and {here!r} here"


def _plain(value: Any) -> Any:
    """Lists for tuples: JSON knows no tuples."""
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
