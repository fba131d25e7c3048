"""Check that a saved state belongs to the run that resumes from it.

A state belongs to a run if all rows before the state's row are the same as in the run that saved
the state. Settings that only affect later rows may differ: weights that change at a later row, and
sources whose weight was 0 so far. The check compares a few values. To compare the data, it compares
the checksums in the manifest. Without a manifest, or if the data was divided into shards of another
length, it compares fingerprints, which are hashes of a sample of the tokens. A state of an earlier
generation of a dataset belongs to other data, because the dataset has grown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tokenmill.errors import StateError, UsageError
from tokenmill.store.tokens import is_same_data

VERSION = 1
MOST_ROWS = 1 << 62


def check_state(
    state: Mapping[str, Any],
    own: Mapping[str, Any],
    *,
    force: bool | Collection[str] = False,
    cure: str | None = None,
    after: int = 0,
) -> int:
    """Return the row of a state. Raise an error if the state belongs to another run.

    `own` is the current state of the loader. All rows before the state's row must be the same in
    both runs, and so must the next `after` rows. The error names all differences, and ends with
    `cure`. Differences that `force` names are accepted; True accepts all.

    >>> own = {"version": 1, "row": 0, "seed": 2}
    >>> check_state({"version": 1, "row": 7, "seed": 1}, own)
    Traceback (most recent call last):
    ...
    tokenmill.errors.StateError: This state is from another run: seed is 1 in the state and 2 here.
    To resume at row 7 anyway, use `force=['seed']`.
    >>> check_state({"version": 1, "row": 7, "seed": 1}, own, force=["seed"])
    7
    """
    row = _read_row(state, own)
    ignored = {"version", "row"}
    wanted, there = (
        _without_generations({key: value for key, value in one.items() if key not in ignored})
        for one in (own, state)
    )
    accepted = _find_accepted(force, {**wanted, **there})
    reached = row + after
    try:
        found = [
            (name, text)
            for name, text in find_differences(
                _forget_future(there, reached), _forget_future(wanted, reached)
            )
            if not any(name == one or name.startswith(f"{one}.") for one in accepted)
        ]
    except RecursionError:
        raise StateError(
            "This state is damaged: its values are nested too deeply. Use another saved state."
        ) from None
    if found:
        names = list(dict.fromkeys(name.partition(".")[0] for name, _ in found))
        if cure is None:
            cure = f"To resume at row {row:,} anyway, use `force={names}`."
            if "weights" in names:
                cure = (
                    "To change the weights of a run, keep the old ones and give the new ones to "
                    f"Mixture as `changes={{ROW: {{NAME: WEIGHT}}}}`. {cure}"
                )
        differences = "; ".join(text for _, text in found)
        raise StateError(f"This state is from another run: {differences}.\n{cure}")
    return row


def _read_row(state: Mapping[str, Any], own: Mapping[str, Any]) -> int:
    """Return the row of a state. Refuses a state of another version, or without a valid row."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise StateError(
            "This is not the state of a loader. Pass the value that state_dict() returned."
        )
    if state["version"] != own["version"]:
        raise StateError(
            f"This state has version {state['version']!r}; this tokenmill reads version "
            f"{own['version']}. Resume with the tokenmill that saved the state."
        )
    row = state.get("row")
    if not isinstance(row, int) or isinstance(row, bool) or not 0 <= row < MOST_ROWS:
        raise StateError(f"This state is damaged: its row is {row!r}. Use another saved state.")
    return row


def find_differences(
    there: Any, here: Any, name: str = "", where: tuple[str, str] = ("in the state", "here")
) -> Iterator[tuple[str, str]]:
    """Yield the name of each setting that differs, and a text with both values.

    >>> list(find_differences({"seed": 1, "block": 8}, {"seed": 2, "block": 8}))
    [('seed', 'seed is 1 in the state and 2 here')]
    """
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in [*here, *(key for key in there if key not in here)]:
            inner = f"{name}.{key}" if name and key else name or str(key)
            yield from find_differences(there.get(key), here.get(key), inner, where)
    elif not _is_equal(name, there, here):
        yield name, f"{name} is {there!r} {where[0]} and {here!r} {where[1]}"


def _find_accepted(force: bool | Collection[str], known: Mapping[str, Any]) -> Collection[str]:
    if isinstance(force, bool):
        return list(known) if force else ()
    accepted = [force] if isinstance(force, str) else list(force)
    for name in accepted:
        if name.partition(".")[0] not in known:
            raise UsageError(
                f"`force` names {name!r}, which is not in the state; `force` can name "
                f"{', '.join(known)}."
            )
    return accepted


def _without_generations(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state without the generations of its sources: their fingerprints decide.

    The same tokens may be another generation in another copy of the dataset.
    """
    sources = state.get("sources")
    if not isinstance(sources, Mapping):
        return state
    kept = {
        name: {key: value for key, value in one.items() if key != "generation"}
        if isinstance(one, Mapping)
        else one
        for name, one in sources.items()
    }
    return {**state, "sources": kept}


def _forget_future(state: Mapping[str, Any], row: int) -> Mapping[str, Any]:
    """Return a state without the settings that only affect rows from `row` on.

    Returns an invalid state unchanged.
    """
    try:
        names, weights, sources = (state[key] for key in ("names", "weights", "sources"))
        phases = [(first, list(each)) for first, each in weights if first < max(row, 1)]
        used = [n for n in range(len(names)) if any(each[n] > 0 for _, each in phases)]
        return {
            **state,
            "names": [names[n] for n in used],
            "weights": [[first, [each[n] for n in used]] for first, each in phases],
            "sources": {names[n]: sources[names[n]] for n in used},
        }
    except (TypeError, ValueError, LookupError):
        return state


def _is_equal(name: str, there: Any, here: Any) -> bool:
    if name.endswith(".fingerprint"):
        return is_same_data(there, here)
    return bool(_plain(there) == _plain(here))


def _plain(value: Any) -> Any:
    """Convert tuples to lists, as JSON does."""
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
