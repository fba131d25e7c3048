"""Several sources for one loader, and how many rows each contributes.

Costs: nothing is read here; `order/mixture.py` computes which source a row comes from.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from copy import copy

from tokenmill.errors import UsageError
from tokenmill.order.mixture import DEFAULT_BLOCK
from tokenmill.storage.cache import PieceCache
from tokenmill.store.tokens import Tokens


class Mixture:
    """Sources by name, each with its tokens and its weight.

    `changes` sets other weights from a row on: {row: {name: weight}}. Sources without a new weight
    keep the old one. Every source continues where it was. In each block of `block` rows, every
    source has its share, rounded to a whole row.

    >>> web, code = Tokens.of(range(1_000)), Tokens.of(range(500))
    >>> Mixture({"web": (web, 0.7), "code": (code, 0.3)}, changes={2_000: {"code": 0.6}})
    <Mixture: web 0.7, code 0.3; from row 2,000: web 0.7, code 0.6>
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[Tokens, float]],
        *,
        changes: Mapping[int, Mapping[str, float]] | None = None,
        block: int = DEFAULT_BLOCK,
    ) -> None:
        if not sources:
            raise UsageError("a mixture needs at least one source: {name: (tokens, weight)}.")
        for name, source in sources.items():
            if not isinstance(name, str):
                raise UsageError(f"the name of a source is {name!r}; it must be a string.")
            if not (
                isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], Tokens)
            ):
                raise UsageError(
                    f"source {name!r} must be a pair of tokens and weight, such as "
                    f'(data["train"], 0.7). Pass an array as Tokens.of(array).'
                )
        self.names = tuple(sources)
        self.tokens = tuple(tokens for tokens, _ in sources.values())
        self.block = operator.index(block)
        weights = {name: float(weight) for name, (_, weight) in sources.items()}
        phases = [(0, tuple(weights.values()))]
        for place, changed in sorted((changes or {}).items()):
            row = operator.index(place)
            unknown = [name for name in changed if name not in weights]
            if unknown:
                raise UsageError(
                    f"the change at row {row:,} names {unknown[0]!r}, which is not a source of the "
                    f"mixture; the sources are {', '.join(self.names)}."
                )
            weights |= {name: float(weight) for name, weight in changed.items()}
            phases.append((row, tuple(weights.values())))
        self.phases = tuple(phases)

    def in_memory(self) -> Mixture:
        """Return the same mixture with all tokens copied into memory."""
        copied = copy(self)
        copied.tokens = tuple(tokens.in_memory() for tokens in self.tokens)
        return copied

    def unmapped(self, between: Callable[[], None] | None = None) -> Mixture:
        """Return the same mixture, read without memory maps; see `Tokens.unmapped`."""
        changed = copy(self)
        changed.tokens = tuple(tokens.unmapped(between) for tokens in self.tokens)
        return changed

    def cached(self, cache: PieceCache) -> Mixture:
        """Return the same mixture, read through a cache; see `Tokens.cached`."""
        changed = copy(self)
        changed.tokens = tuple(tokens.cached(cache) for tokens in self.tokens)
        return changed

    def __repr__(self) -> str:
        phases = [
            ", ".join(f"{name} {weight:g}" for name, weight in zip(self.names, phase, strict=True))
            for _, phase in self.phases
        ]
        later = [
            f"; from row {row:,}: {text}"
            for (row, _), text in zip(self.phases[1:], phases[1:], strict=True)
        ]
        return f"<Mixture: {phases[0]}{''.join(later)}>"
