"""The judge of filters: measures documents and drops those that a rule does not allow.

Documents are measured in blocks of about 256 KiB, which fit in the CPU's cache. Rules about
repetition measure only the documents that all other rules keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.preparation.filters.block import Block, Mask
from tokenmill.preparation.filters.measures import Values, divide
from tokenmill.preparation.filters.repetition import Grams, Repeats
from tokenmill.preparation.filters.rules import REPEATED, TOP, Rule
from tokenmill.preparation.judges import Judge, Numbers, Verdicts
from tokenmill.preparation.texts import Texts

_BLOCK = 1 << 18  # bytes


@dataclass(frozen=True)
class FilterRecipe:
    """Makes the judge of some rules."""

    rules: tuple[Rule, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons in the ledger, one for each rule."""
        return tuple(name_reason(rule.name) for rule in self.rules)

    def make(self) -> Judge:
        """Make the judge."""
        return FilterJudge(self.rules)


def name_reason(rule: str) -> str:
    """Return the name of a rule in the ledger."""
    return f"filter {rule}"


class FilterJudge(Judge):
    """Drops documents by rules."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.reasons = FilterRecipe(tuple(rules)).reasons
        numbered = list(enumerate(rules, 1))
        self._cheap = [(number, rule) for number, rule in numbered if not rule.repeats]
        self._repeats = [(number, rule) for number, rule in numbered if rule.repeats]

    def judge(self, texts: Texts) -> Verdicts:
        """Return the first rule that each document breaks, and its measure."""
        numbers, values = [], []
        for block in cut_into_blocks(texts):
            found, measured = self._judge(block)
            numbers.append(found)
            values.append(measured)
        return Verdicts(numbers=np.concatenate(numbers), values=np.concatenate(values).tolist())

    def _judge(self, block: bytes) -> tuple[Numbers, Values]:
        opened = Block(block)
        numbers, values = np.zeros(len(opened), np.uint16), np.zeros(len(opened))
        repetition = RepetitionMeasures(opened, [rule for _, rule in self._repeats])
        for number, rule in (*self._cheap, *self._repeats):
            left = numbers == 0
            if not left.any():
                break
            measured = repetition(rule, left) if rule.repeats else rule.function(opened)
            broken = left & breaks(rule, measured)
            numbers[broken], values[broken] = number, measured[broken]
        return numbers, values


def breaks(rule: Rule, measured: Values) -> Mask:
    """Return which documents a rule drops, by their measures."""
    return measured < rule.threshold if rule.is_least else measured > rule.threshold


class RepetitionMeasures:
    """Measures repetition. What several rules measure is kept."""

    def __init__(self, block: Block, rules: Sequence[Rule]) -> None:
        self._block = block
        self._smallest = min((REPEATED.get(rule.measure, 10) for rule in rules), default=10)
        self._grams: Grams | None = None
        self._found: dict[str, Values] = {}

    def __call__(self, rule: Rule, left: Mask) -> Values:
        """Measure the documents that are `left`. Below the threshold, the result may be a bound."""
        if rule.measure in TOP or rule.measure in REPEATED:
            if self._grams is None:
                self._grams = Grams(self._block, left, self._smallest)
            if rule.measure in TOP:
                return self._grams.top(TOP[rule.measure], rule.threshold, left)
            return self._grams.repeated(REPEATED[rule.measure], rule.threshold, left)
        if rule.measure not in self._found:
            if "paragraph" in rule.measure:
                self._measure_paragraphs()
            else:
                self._measure_lines()
        return self._found[rule.measure]

    def _measure_lines(self) -> None:
        block = self._block
        lines = Repeats(block, *block.full_lines)
        self._found["repeated_lines"] = divide(lines.count, lines.total)
        self._found["repeated_line_characters"] = divide(lines.characters, block.characters)
        text = block.characters - block.newline_counts
        self._found["repeated_line_text"] = divide(lines.characters, text)

    def _measure_paragraphs(self) -> None:
        block = self._block
        paragraphs = Repeats(block, *block.paragraphs)
        self._found["repeated_paragraphs"] = divide(paragraphs.count, paragraphs.total)
        found = divide(paragraphs.characters, block.characters)
        self._found["repeated_paragraph_characters"] = found


def cut_into_blocks(texts: Texts, size: int = _BLOCK) -> Iterator[bytes]:
    """Yield the texts in blocks of about `size` bytes, joined by NUL bytes.

    A NUL byte in a text counts as a space.
    """
    if texts.block is None:
        texts = Texts.of(
            [text.replace(b"\0", b" ") for text in texts.texts], texts.offsets, texts.sizes, None
        )
    ends: npt.NDArray[np.int64] = np.cumsum(texts.text_sizes)
    first = 0
    while first < len(ends):
        room = (int(ends[first - 1]) if first else 0) + size
        stop = max(first + 1, int(np.searchsorted(ends, room, side="right")))
        yield texts.cut_block(first, stop)
        first = stop
