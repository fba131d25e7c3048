"""Text from a model, a token at a time.

Guarantees: which ids are drawn follows from the logits, the settings and the seed alone; the random
numbers are NumPy's Philox, so that both backends draw alike. Ids that the tokenizer does not have,
with which a model's vocabulary is padded, are never drawn.

Costs: one forward pass over the last `seq_len` ids for each token; nothing is kept between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError

__all__ = ["generate"]

NextLogits = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float32]]


def generate(
    next_logits: NextLogits,
    prompt_ids: Sequence[int] | npt.NDArray[Any],
    count: int,
    *,
    seed: int,
    temperature: float = 0.8,
    top_k: int | None = 50,
    vocab: int,
    stop_id: int | None = None,
) -> list[int]:
    """Up to `count` ids that follow a prompt; fewer where `stop_id` is drawn, which is not among them.

    `temperature` 0 takes the likeliest id each time; `top_k` draws among so many of them, and None
    or 0 among all.

    >>> def count_up(ids):
    ...     logits = np.zeros(16, np.float32)
    ...     logits[(ids[-1] + 1) % 16] = 50
    ...     return logits
    >>> generate(count_up, [3], 5, seed=0, vocab=16)
    [4, 5, 6, 7, 8]
    >>> generate(count_up, [3], 5, seed=0, vocab=16, stop_id=6)
    [4, 5]
    """
    if not 0 <= temperature < float("inf"):
        raise UsageError(f"temperature is {temperature}; it must be 0 or a positive number.")
    if top_k is not None and top_k < 0:
        raise UsageError(f"top_k is {top_k}; it must be 1 or more, or 0 for no limit.")
    if not len(prompt_ids):
        raise UsageError("the prompt has no tokens; give it at least one, such as the end of text.")
    random = np.random.Generator(np.random.Philox(key=[seed % 2**64, 1]))
    ids = np.asarray(prompt_ids, np.int64)
    made: list[int] = []
    while len(made) < count:
        drawn = _draw(next_logits(ids)[:vocab], random.random(), temperature, top_k)
        if drawn == stop_id:
            break
        made.append(drawn)
        ids = np.append(ids, drawn)
    return made


def _draw(logits: npt.NDArray[Any], number: float, temperature: float, top_k: int | None) -> int:
    """The id that a number from 0 to 1 stands for among the likeliest ones."""
    if not temperature:
        return int(logits.argmax())
    values = logits.astype(np.float64)
    # Sorted, so that which ids are kept, and in what order, is the same wherever the logits are.
    order = np.argsort(-values, kind="stable")[: top_k or None]
    values = values[order]
    shares = np.exp((values - values[0]) / temperature).cumsum()
    place = int(np.searchsorted(shares, number * shares[-1], side="right"))
    return int(order[min(place, len(order) - 1)])
