"""Judges decide which documents to drop by their text, and may change texts before they are tokenized.

A recipe (`JudgeRecipe`) says how to make a judge. It is a small value that is sent to the workers;
each worker makes the judge once. When a chunk is cleaned, and without its repeated lines and empty
documents, a `Panel` shows its texts to all judges in order. A judge does not see the texts that an
earlier judge dropped, and sees the changes that it made. The ledger counts the dropped documents by
reason, and `dropped.jsonl` shows examples (`examples.py`).

What a judge decides must depend on the text alone. Then it depends neither on workers nor on memory,
and equal texts have the same fate. To hold for long documents, too:

- A text of more than `JUDGED` bytes, and a document that arrives in fragments, is fed to a
  `Hearing`. Unless a judge has its own, the hearing keeps the first `JUDGED` bytes, cut between two
  characters, and the judge decides about these. So a fragment is never judged on its own.
- No judge changes such a text. A judge that changes texts and must act on a longer one drops it.

A document whose fragments are all in one part is judged when its last fragment is read
(`grind.py`). Its tokens are written already, so its record names the reason, and `sift.py` drops the
document. A document that spans parts is judged where its key is computed (`spanning.py`).

The panel holds at most `JUDGED` bytes for each judge, besides the chunk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tokenmill.preparation.texts import Texts

JUDGED = 1 << 18  # bytes; of a longer text, only so many are judged

Numbers = npt.NDArray[np.uint16]  # 0: keep the text; else 1 + the index of a reason
Findings = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """What a judge decided about some texts.

    `numbers` has for each text 0 to keep it, or 1 + the index of one of the judge's reasons.
    `values` has for each text what to show in a report, such as the number that is too large; only
    those of dropped texts are used. `texts` are the changed texts, if any was changed: all of them,
    in the same order. `counts` are added up and stored in the ledger. `findings` are lines for the
    report about evaluation texts, by the index of the text.
    """

    numbers: Numbers
    values: Sequence[Any] | None = None
    texts: Texts | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    findings: Mapping[int, Findings] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a judge, or a panel, decided about one text: see `Verdicts`."""

    number: int = 0
    value: Any = None
    counts: Mapping[str, int] = field(default_factory=dict)
    findings: Findings = ()


class Hearing(Protocol):
    """One long document, whose text arrives in pieces that may end within a character."""

    def add(self, text: Any) -> None:
        """Take the next piece of the text."""

    def finish(self) -> Verdict:
        """Return the verdict about the whole text."""


class Judge(ABC):
    """Decides about texts. `reasons` are the names of the reasons in the ledger.

    A text is cleaned, not empty, and valid UTF-8.
    """

    reasons: tuple[str, ...]

    @abstractmethod
    def judge(self, texts: Texts) -> Verdicts:
        """Return the verdicts about some whole documents, of at most `JUDGED` bytes each."""

    def begin(self) -> Hearing:
        """Begin to judge a long document. By default, its first `JUDGED` bytes are judged."""
        return _Beginning(self)


class JudgeRecipe(Protocol):
    """How to make a judge: a frozen dataclass, which is pickled, compared and hashed.

    `reasons` are those of the judge. They must be known without making it.
    """

    @property
    def reasons(self) -> tuple[str, ...]: ...

    def make(self) -> Judge:
        """Make the judge. Each worker calls this once."""


def name_reasons(recipes: Sequence[JudgeRecipe]) -> tuple[str, ...]:
    """Return the reasons of all judges in order. A panel's number n stands for reason n - 1."""
    return tuple(reason for recipe in recipes for reason in recipe.reasons)


def _value_of(verdicts: Verdicts, index: int) -> Any:
    value = None if verdicts.values is None else verdicts.values[index]
    return value.item() if isinstance(value, np.generic) else value


class _Beginning:
    """Judges a document by its first `JUDGED` bytes."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._held = bytearray()

    def add(self, text: Any) -> None:
        self._held += text[: JUDGED - len(self._held)]

    def finish(self) -> Verdict:
        text = bytes(self._held)
        if len(text) == JUDGED:
            text = cut_between_characters(text)
        verdicts = self._judge.judge(Texts.of([text], [0], np.array([len(text)]), None))
        number = int(verdicts.numbers[0])
        value = _value_of(verdicts, 0) if number else None
        found = verdicts.findings.get(0, ())
        return Verdict(number=number, value=value, counts=verdicts.counts, findings=found)


def cut_between_characters(text: bytes) -> bytes:
    """Remove the last character if it is incomplete. The rest of the text is valid UTF-8.

    >>> cut_between_characters("aé".encode()[:2]), cut_between_characters(b"a")
    (b'a', b'a')
    """
    return text.decode("utf-8", "ignore").encode() if text[-4:] and text[-1] & 0x80 else text


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a panel decided about the documents of a chunk.

    `numbers` has for each text 0 to keep it, or 1 + the index of one of the panel's reasons.
    `values` has the values of dropped texts by their index. `kept` are the texts that stay, changed
    by the judges.
    """

    numbers: Numbers
    values: Mapping[int, Any]
    kept: Texts
    counts: Mapping[str, int]
    findings: Mapping[int, Findings]


class Panel:
    """All judges of a run, in order. It is falsy if there is none."""

    def __init__(self, recipes: Sequence[JudgeRecipe]) -> None:
        self.reasons = name_reasons(recipes)
        self._judges: list[tuple[int, Judge]] = []  # the number of reasons before those of a judge
        before = 0
        for recipe in recipes:
            self._judges.append((before, recipe.make()))
            before += len(recipe.reasons)

    def __bool__(self) -> bool:
        return bool(self._judges)

    def judge(self, texts: Texts) -> Judged:
        """Judge whole documents."""
        numbers = np.zeros(len(texts.sizes), np.uint16)
        values: dict[int, Any] = {}
        counts: Counter[str] = Counter()
        findings: dict[int, Findings] = {}
        is_long = texts.text_sizes > JUDGED
        for i in np.flatnonzero(is_long).tolist():
            hearing = self.begin()
            hearing.add(texts.views[i])
            verdict = hearing.finish()
            numbers[i], values[i] = verdict.number, verdict.value
            counts.update(verdict.counts)
            if verdict.findings:
                findings[i] = verdict.findings
        left = np.flatnonzero(~is_long)
        short = texts.only(~is_long) if is_long.any() else texts
        for before, judge in self._judges:
            if not len(left):
                break
            verdicts = judge.judge(short)
            counts.update(verdicts.counts)
            findings |= {int(left[i]): found for i, found in verdicts.findings.items()}
            short = short if verdicts.texts is None else verdicts.texts
            dropped = verdicts.numbers > 0
            if dropped.any():
                numbers[left[dropped]] = verdicts.numbers[dropped] + before
                for i in np.flatnonzero(dropped).tolist():
                    values[int(left[i])] = _value_of(verdicts, i)
                short, left = short.only(~dropped), left[~dropped]
        kept = short
        if is_long.any():
            kept = _insert(texts, numbers, short, left)
        return Judged(numbers=numbers, values=values, kept=kept, counts=counts, findings=findings)

    def begin(self) -> Hearing:
        """Begin to judge one long document. The number in the verdict is that of the panel."""
        return _PanelHearing([(before, judge.begin()) for before, judge in self._judges])


def _insert(texts: Texts, numbers: Numbers, short: Texts, places: npt.NDArray[np.int64]) -> Texts:
    """Return the texts that stay, of which those at `places` are replaced by `short`."""
    changed = list(texts.texts)
    for place, text in zip(places.tolist(), short.texts, strict=True):
        changed[place] = text
    whole = Texts.of(changed, texts.offsets, texts.sizes, texts.marks)
    return whole.only(numbers == 0)


class _PanelHearing:
    def __init__(self, hearings: list[tuple[int, Hearing]]) -> None:
        self._hearings = hearings

    def add(self, text: Any) -> None:
        for _, hearing in self._hearings:
            hearing.add(text)

    def finish(self) -> Verdict:
        """Return the verdict of the first judge that drops the text."""
        counts: Counter[str] = Counter()
        findings: Findings = ()
        for before, hearing in self._hearings:
            verdict = hearing.finish()
            counts.update(verdict.counts)
            findings = verdict.findings or findings
            if verdict.number:
                number = before + verdict.number
                return Verdict(number=number, value=verdict.value, counts=counts, findings=findings)
        return Verdict(counts=counts, findings=findings)


@lru_cache(maxsize=1)
def open_panel(recipes: tuple[JudgeRecipe, ...]) -> Panel:
    """Return the panel of some recipes. Each process makes it once."""
    return Panel(recipes)
