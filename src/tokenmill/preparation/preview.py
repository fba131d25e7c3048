"""Try the judges of a plan on a sample of documents, to see what each rule would drop.

In a run, a document is counted under the first rule that drops it. Here, each rule of the filters is
also tried on its own, so that its threshold can be tuned. Only whole documents of the sample are
judged, not those that the sample cuts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenmill.preparation.examples import show_beginning
from tokenmill.preparation.filter_judge import FilterRecipe
from tokenmill.preparation.judges import JudgeRecipe, Panel
from tokenmill.preparation.texts import Texts
from tokenmill.sources.records import Chunk


@dataclass
class Reason:
    """What one rule would drop on its own: documents, their bytes, and an example of them."""

    name: str
    documents: int = 0
    bytes: int = 0
    value: object = None
    example: str = ""


class Preview:
    """What the judges would drop of a sample: `documents` and `bytes`, of so many judged."""

    def __init__(self, recipes: Sequence[JudgeRecipe]) -> None:
        self._all = Panel(recipes)
        self._alone = [Panel([recipe]) for recipe in divide(recipes)]
        self.reasons = [Reason(name) for panel in self._alone for name in panel.reasons]
        self.judged = self.judged_bytes = self.documents = self.bytes = 0
        self.counts: Counter[str] = Counter()  # what the judges count, such as languages

    def add(self, texts: Texts, chunk: Chunk) -> Texts:
        """Judge the whole documents of a chunk. Returns the texts that the judges keep."""
        sizes = texts.text_sizes
        whole = sizes > 0
        whole[:1] &= not chunk.continues
        whole[-1:] &= not chunk.unfinished
        if not whole.any():
            return texts
        some = texts.only(whole)
        sizes = some.text_sizes
        self.judged += len(sizes)
        self.judged_bytes += int(sizes.sum())
        judged = self._all.judge(some)
        self.counts.update(judged.counts)
        dropped = judged.numbers > 0
        self.documents += int(np.count_nonzero(dropped))
        self.bytes += int(sizes[dropped].sum())
        reasons = iter(self.reasons)
        for panel in self._alone:
            found = panel.judge(some)
            for number in range(1, len(panel.reasons) + 1):
                reason, mask = next(reasons), found.numbers == number
                if mask.any():
                    first = int(np.flatnonzero(mask)[0])
                    if not reason.documents:
                        reason.value = found.values.get(first)
                        reason.example = show_beginning(some.views[first])
                    reason.documents += int(np.count_nonzero(mask))
                    reason.bytes += int(sizes[mask].sum())
        stays = ~whole
        stays[np.flatnonzero(whole)[~dropped]] = True
        return texts.only(stays)


def divide(recipes: Sequence[JudgeRecipe]) -> list[JudgeRecipe]:
    """Return recipes in which each rule of the filters has a judge of its own."""
    divided: list[JudgeRecipe] = []
    for recipe in recipes:
        if isinstance(recipe, FilterRecipe):
            divided += [FilterRecipe((rule,)) for rule in recipe.rules]
        else:
            divided.append(recipe)
    return divided
