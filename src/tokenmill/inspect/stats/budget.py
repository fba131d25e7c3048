"""Compute how many epochs of each source a training budget amounts to."""

from __future__ import annotations

from collections.abc import Mapping

from tokenmill.errors import UsageError
from tokenmill.inspect.stats.result import SourceBudget
from tokenmill.wording import count


def find_epochs(
    sources: Mapping[str, tuple[int, float]], budget: int, seq_len: int
) -> tuple[SourceBudget, ...]:
    """Divide a budget of tokens among sources, each with its number of tokens and its weight.

    An epoch of a source is all its rows of `seq_len` tokens; the tokens after the last row are not
    used.

    >>> web, code = find_epochs({"web": (1_001, 0.5), "code": (101, 0.5)}, 1_000, 10)
    >>> (web.trained, web.epochs), (code.epochs, code.has_many_epochs)
    ((500, 0.5), (5.0, True))
    """
    if budget < 1:
        raise UsageError(f"`budget` is {budget}; it must be 1 token or more.")
    whole = sum(weight for _, weight in sources.values())
    if not whole:
        raise UsageError("all weights are 0; at least one source must have a weight above 0.")
    found = []
    for name, (tokens, weight) in sources.items():
        epoch = max(0, tokens - 1) // seq_len * seq_len
        if not epoch:
            raise UsageError(
                f"{name} has {count(tokens)} tokens, which is too short for a row of {count(seq_len)}. "
                "Use a smaller `seq_len`."
            )
        trained = budget * weight / whole
        found.append(
            SourceBudget(
                name=name,
                share=weight / whole,
                available=tokens,
                trained=round(trained),
                epochs=trained / epoch,
            )
        )
    return tuple(found)
