"""Decontaminate: find evaluation texts in documents, and drop these, cut the passages, or report them.

The matching itself is in the package `contamination`. Here it is a judge (`judges.py`), the first of
all, so it sees the cleaned text. A long document, and one that spans parts, is searched as a stream,
all of it. Since no judge changes a long document, it is dropped where a shorter one would be cut.

N-grams that are common in the corpus are boilerplate, such as a licence, and do not count. They are
counted in a first pass over a sample: at most `_SAMPLED` parts of the input, spread evenly, and about
`_SAMPLED_BYTES` of text in all of them. An n-gram that occurs in more than `decontaminate_common` documents of them is common. Equal
documents of a part count once. Parts depend on the input alone, so this does not depend on workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.contamination.cutting import cut_protected
from tokenmill.contamination.findings import MOST, describe_passages
from tokenmill.contamination.matching import Passage, Stream, find_in_texts, find_passages
from tokenmill.contamination.protected import Protected, load
from tokenmill.preparation.bundles import Run
from tokenmill.preparation.engine import Worker
from tokenmill.preparation.judges import Findings, Judge, Verdict, Verdicts
from tokenmill.preparation.part import PartReader, PartTask, without_bad_files
from tokenmill.preparation.plan import hash_names
from tokenmill.preparation.texts import Texts, clean_chunk
from tokenmill.sources.files import BadFileError
from tokenmill.wording import counted

REASON = "contains evaluation text"
_SAMPLED = 16  # parts
_SAMPLED_BYTES = 64 << 20

Counts = tuple[
    npt.NDArray[np.int64], npt.NDArray[np.int64]
]  # units, and how many documents have each


@dataclass(frozen=True)
class Decontaminate:
    """How to make the judge: the file of the table, and what to do about documents with hits."""

    table: Path
    action: str

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reason in the ledger."""
        return () if self.action == "report" else (REASON,)

    def make(self) -> Judge:
        """Make the judge."""
        return _Decontaminator(_open_table(self.table), self.action)


@lru_cache(maxsize=2)
def _open_table(path: Path) -> Protected:
    return load(path)


class _Decontaminator(Judge):
    def __init__(self, protected: Protected, action: str) -> None:
        self.protected = protected
        self.action = action
        self.reasons = () if action == "report" else (REASON,)

    def judge(self, texts: Texts) -> Verdicts:
        numbers = np.zeros(len(texts.sizes), np.uint16)
        passages = _find(texts, self.protected)
        if not passages:
            return Verdicts(numbers=numbers)
        findings = {i: self._describe(found) for i, found in passages.items()}
        counts = {"contaminated_documents": len(findings)}
        if self.action == "report":
            return Verdicts(numbers=numbers, counts=counts, findings=findings)
        values: list[Any] = [None] * len(numbers)
        for i, found in findings.items():
            values[i] = _place(found)
        if self.action == "drop":
            numbers[list(findings)] = 1
            return Verdicts(numbers=numbers, values=values, counts=counts, findings=findings)
        changed = list(texts.texts)
        for i in findings:
            changed[i] = cut_protected(changed[i], self.protected)
            numbers[i] = not changed[i]
        cut = Texts.of(changed, texts.offsets, texts.sizes, texts.marks)
        counts["cut_documents"] = len(findings) - int(np.count_nonzero(numbers))
        return Verdicts(numbers=numbers, values=values, texts=cut, counts=counts, findings=findings)

    def begin(self) -> _LongDocument:
        return _LongDocument(self)

    def _describe(self, passages: Sequence[Passage]) -> Findings:
        return describe_passages(passages[:MOST], self.protected)

    def decide(self, passages: Sequence[Passage]) -> Verdict:
        """Return the verdict about a long document."""
        if not passages:
            return Verdict()
        findings, counts = self._describe(passages), {"contaminated_documents": 1}
        if self.action == "report":
            return Verdict(counts=counts, findings=findings)
        return Verdict(number=1, value=_place(findings), counts=counts, findings=findings)


def _place(findings: Findings) -> str:
    """Return where the first of some findings is, for the examples of dropped documents."""
    first = findings[0]
    return f"{first['evaluation']}, {first['unit']} {first['record']}"


class _LongDocument:
    """A document that arrives in pieces: a hearing of `judges.py`."""

    def __init__(self, judge: _Decontaminator) -> None:
        self._judge = judge
        self._stream = Stream(judge.protected)
        self._found: list[Passage] = []

    def add(self, text: Any) -> None:
        """Search the next piece."""
        self._keep(bytes(text).replace(b"\0", b" "))

    def finish(self) -> Verdict:
        """Return the verdict about the whole text."""
        self._keep(None)
        return self._judge.decide(self._found)

    def _keep(self, text: bytes | None) -> None:
        hits = self._stream.finish() if text is None else self._stream.feed(text)
        if len(hits) and len(self._found) < MOST:
            self._found += find_passages(hits, self._judge.protected)[: MOST - len(self._found)]


def _find(texts: Texts, protected: Protected) -> dict[int, list[Passage]]:
    """Return the passages in some texts, by the index of the text."""
    block = texts.block
    if block is None:  # a text contains a NUL byte
        block = b"\0".join(text.replace(b"\0", b" ") for text in texts.texts)
    hits = find_in_texts(block, protected)
    found: dict[int, list[Passage]] = {}
    for passage in find_passages(hits, protected) if len(hits) else ():
        found.setdefault(passage.text, []).append(passage)
    return found


@dataclass(frozen=True, kw_only=True)
class CountUnits(PartTask):
    """A task: count the documents of a part in which each n-gram occurs."""

    table: Path
    most: int  # bytes of text; the part's further documents are not counted

    def run(self, worker: Worker) -> Counts:
        """Return the counts. A file that cannot be read counts as empty; `grind` reports it."""
        found = without_bad_files(self, lambda skipped: self._count(worker, skipped))
        return _NOTHING if isinstance(found, BadFileError) else found

    def _count(self, worker: Worker, skipped: dict[int, str]) -> Counts:
        protected = _open_table(self.table)
        total, seen, size = _NOTHING, set[bytes](), 0
        for part_chunk in PartReader(self, skipped):
            texts = clean_chunk(part_chunk.chunk, self.settings, part_chunk.source)
            total = add_counts(total, count_units(texts, protected, seen))
            size += int(texts.text_sizes.sum())
            worker.report(part_chunk.chunk.read)
            if size >= self.most:
                break
        return total


_NOTHING: Counts = (np.empty(0, np.int64), np.empty(0, np.int64))


def count_units(texts: Texts, protected: Protected, seen: set[bytes]) -> Counts:
    """Count the texts in which each unit occurs, except texts whose hash was `seen`."""
    block = texts.block
    if block is None:
        block = b"\0".join(text.replace(b"\0", b" ") for text in texts.texts)
    hits = find_in_texts(block, protected)
    if not len(hits):
        return _NOTHING
    fresh = np.zeros(len(texts.sizes), np.bool_)
    views = texts.views
    for i in np.unique(hits.texts).tolist():
        digest = xxhash.xxh3_128_digest(views[i])
        fresh[i] = digest not in seen
        seen.add(digest)
    pairs = np.stack((hits.texts, hits.units))[:, fresh[hits.texts]]
    return np.unique(np.unique(pairs, axis=1)[1], return_counts=True)


def add_counts(one: Counts, other: Counts) -> Counts:
    """Add two counts."""
    units, inverse = np.unique(np.concatenate((one[0], other[0])), return_inverse=True)
    counts = np.zeros(len(units), np.int64)
    np.add.at(counts, inverse, np.concatenate((one[1], other[1])))
    return units, counts


def prepare_judge(run: Run) -> Run:
    """Return the run with the judge that decontaminates it, if there are evaluation texts.

    Finds the common n-grams first, and writes the table of the others for the workers.
    """
    plan, folder, protected = run.plan, run.folder.work, run.plan.protected
    if protected is None:
        return run
    settings = plan.settings
    made = hash_names(
        protected.checksum, str(settings.decontaminate_words), str(settings.decontaminate_common)
    )
    whole = folder / f"evaluation-{made}"
    protected.save(whole)
    common = _find_common(run, whole)
    name = hash_names(made, protected.name_units(common))
    table = folder / f"evaluation-{name}"
    protected.without(common).save(table)
    judge = Decontaminate(table, plan.settings.decontaminate_action)
    if len(common):
        run.watcher.note(
            f"{counted(len(common), 'n-gram')} of the evaluation texts occur in more than "
            f"{counted(plan.settings.decontaminate_common, 'document')} of a sample of the input, and "
            f"do not count, such as: {protected.spell_unit(int(common[0]))}"
        )
    plan = replace(
        plan, judges=(judge, *plan.judges), segment_context=name, common_ngrams=len(common)
    )
    return replace(run, plan=plan)


def _find_common(run: Run, table: Path) -> npt.NDArray[np.int64]:
    plan = run.plan
    count = len(plan.parts)
    step = max(1.0, count / _SAMPLED)
    numbers = sorted({int(i * step) for i in range(min(count, _SAMPLED))})
    most = _SAMPLED_BYTES // len(numbers)
    tasks = [
        CountUnits.of(plan, plan.parts[number], run.folder.segments, table=table, most=most)
        for number in numbers
    ]
    run.watcher.begin("counting common n-grams", sum(plan.parts[number].size for number in numbers))
    total = _NOTHING
    for _, counts in run.engine.run(tasks, run.watcher.advance):
        total = add_counts(total, counts)
    units, counts = total
    return units[counts > plan.settings.decontaminate_common]
