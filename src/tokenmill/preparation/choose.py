"""Choose the documents and lines to keep.

The keys (hashes) of documents or lines are divided into partitions, and one task for each partition
marks the repeats among its keys, and the documents that the user listed. Then one task for each part of the input decides the fates of the
part's documents: their splits, or that they are dropped. The calling process handles receipts only: a
few numbers for each part, and for each document that spans parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.errors import FolderError, InputError
from tokenmill.preparation.bundles import Bundles, Run, complete_bundles, skipped_in
from tokenmill.preparation.earlier_keys import plan_earlier_keys
from tokenmill.preparation.engine import Worker
from tokenmill.preparation.examples import ChooseExamples, Example, Examples, list_examples
from tokenmill.preparation.findings import list_findings
from tokenmill.preparation.judges import Verdict, name_reasons
from tokenmill.preparation.key_files import KeyLayout, KeyWriter, PartMarks
from tokenmill.preparation.ledger import sum_up
from tokenmill.preparation.near import NearDuplicates, find_near
from tokenmill.preparation.pack import Sifted
from tokenmill.preparation.partitions import KeyFiles, ListedKeys, MarkRepeats
from tokenmill.preparation.plan import Plan, hash_names
from tokenmill.preparation.reports import (
    Reporter,
    count_lines_before,
    describe_files,
    sum_repairs,
)
from tokenmill.preparation.sampling import is_sampled
from tokenmill.preparation.segment import (
    RECORD,
    Bundle,
    FateReceipt,
    KeyReceipt,
    MarkReceipt,
    Receipt,
    fingerprint,
    has_key,
    read_document_records,
)
from tokenmill.preparation.settings import SPLITS
from tokenmill.preparation.sift import DROPPED, SiftSegment, fate_of
from tokenmill.preparation.spanning import Whole, find_spanning, plan_hashing
from tokenmill.storage.decoding import load_json
from tokenmill.storage.files import write_file
from tokenmill.storage.receipts import encode_receipt
from tokenmill.store.manifest import DOCUMENT_DTYPE

_KEY = 16  # bytes


def mark_lines(run: Run, scans: Bundles) -> list[PartMarks]:
    """Mark the lines that repeat an earlier line of the input.

    `scans` has the keys (hashes) of the lines. A mark says whether a key is a repeat. Returns where
    the marks of each part are stored.
    """
    files = [(f"{one['name']}.lines", one["facts"]["lines"]) for one in scans.receipts]
    marks, _ = _mark(run, "finding repeated lines", scans.receipts, files, [])
    return marks


def _mark(
    run: Run,
    stage: str,
    receipts: Sequence[Receipt],
    own: Sequence[tuple[str, int]],
    spanning: Sequence[Whole],
    *,
    earlier: Sequence[tuple[str, int]] = (),
    repeats: bool = True,
    listed: Sequence[ListedKeys] = (),
) -> tuple[list[PartMarks], list[Whole]]:
    """Mark keys (hashes), in all parts and all spanning documents.

    `own` are the key files of the parts, and `earlier` those of the documents that the dataset has
    already: the name of each file and its number of keys. With `repeats`, marks those that repeat an earlier key. Also marks those that are `listed`, which
    has the listed keys of each partition, or is empty. A spanning document is one that spans parts.
    Returns where the marks of each part are, and the spanning documents with their marks.
    """
    folder, layout = run.folder, run.plan.keys
    files, before = [*earlier, *own], len(earlier)
    keys = [(before + one.first_part, *one.key) for one in spanning if one.has_key]
    content = encode_receipt(KeyFiles(files, keys))
    names = [stage, fingerprint(receipts), content.decode(), str(layout)]
    context = hash_names(*names, *(one.path.name for one in listed[:1]))
    key_files = folder.marks / f"{context}.keys.json"
    write_file(key_files, content)
    tasks = [
        MarkRepeats(
            folder=folder.marks,
            context=context,
            partition=partition,
            keys=folder.segments,
            key_files=key_files,
            layout=layout,
            limit=run.plan.limits.sorted_keys,
            repeats=repeats,
            listed=listed[partition] if listed else None,
        )
        for partition in range(layout.partitions)
    ]
    total = _KEY * (sum(count for _, count in files) + len(keys))
    made = complete_bundles(run, stage, MarkReceipt, tasks, total)
    found = dict(entry for receipt in made for entry in receipt["facts"]["spanning"])
    marks, first_run = [], 0
    for name, count in files:
        marks.append(
            PartMarks(
                keys=folder.segments / name,
                count=count,
                first_run=first_run,
                marks=folder.marks,
                context=context,
                layout=layout,
            )
        )
        first_run += layout.count_runs(count)
    marked = [replace(one, mark=found.get(before + one.first_part, 0)) for one in spanning]
    return marks[before:], marked


def _save_listed(run: Run) -> list[ListedKeys]:
    """Store the keys that the user listed where all tasks can read them.

    Returns the keys of each partition, or an empty list if the user listed none.
    """
    exclusions = run.plan.exclusions
    if not exclusions:
        return []
    path = run.folder.marks / f"{exclusions.keys.checksum}.listed"
    exclusions.keys.write(path)
    starts = exclusions.keys.divide(run.plan.keys)
    return [ListedKeys(path, start, stop) for start, stop in pairwise(starts)]


@dataclass(frozen=True, kw_only=True)
class CollectKeys:
    """A task: write the keys of a segment's documents to a bundle, because the segment has none."""

    name: str
    folder: Path
    segment: Path
    layout: KeyLayout
    records: int  # read at once

    def run(self, worker: Worker) -> Receipt:
        """Write the keys, and return the receipt of the bundle."""
        with Bundle(self.folder, self.name) as bundle:
            keys = KeyWriter(self.layout, partial(bundle.write, "keys"))
            for records in read_document_records(self.segment, self.records):
                keys.add(records["key"][has_key(records)])
                worker.report(records.nbytes)
            keys.flush()
            return bundle.finish({"keys": keys.count})


def _collect_keys(run: Run, segments: Bundles) -> list[Receipt]:
    """Write the keys of all segments' documents. Returns the receipts of the bundles."""
    folder = run.folder.segments
    tasks = [
        CollectKeys(
            name=hash_names("keys", receipt["name"]),
            folder=folder,
            segment=segment,
            layout=run.plan.keys,
            records=run.plan.limits.records,
        )
        for receipt, segment in zip(segments.receipts, segments.paths(folder), strict=True)
    ]
    total = RECORD.itemsize * sum(receipt["facts"]["records"] for receipt in segments.receipts)
    return complete_bundles(run, "collecting keys", KeyReceipt, tasks, total)


def _collect_earlier_keys(run: Run) -> list[tuple[str, int]]:
    """Write the keys of the dataset that the run adds to. Returns the files and their numbers of keys."""
    base = run.plan.base
    if base is None:
        return []
    tasks = plan_earlier_keys(
        base, run.folder.path, run.folder.segments, run.plan.keys, run.plan.limits.records
    )
    if not tasks:
        return []
    total = DOCUMENT_DTYPE.itemsize * sum(shard.documents for shard in base.shards)
    receipts = complete_bundles(run, "reading the dataset's documents", KeyReceipt, tasks, total)
    return [(f"{one['name']}.keys", one["facts"]["keys"]) for one in receipts]


def sift(run: Run, segments: Bundles) -> Sifted:
    """Decide which documents to keep and in which split.

    Returns where the decisions are stored, and the ledger: counts of kept and dropped documents.
    """
    plan, folder, receipts = run.plan, run.folder, segments.receipts
    spanning = _hash_spanning(run, segments)
    marks: list[PartMarks] | list[None] = [None] * len(receipts)
    listed, repeats = _save_listed(run), plan.settings.removes_repeats
    if repeats or listed:
        with_keys = receipts if repeats else _collect_keys(run, segments)
        stage = f"finding {'repeated' if repeats else 'excluded'} documents"
        own = [(f"{one['name']}.keys", one["facts"]["keys"]) for one in with_keys]
        earlier = _collect_earlier_keys(run) if repeats else []
        marks, spanning = _mark(
            run,
            stage,
            with_keys,
            own,
            spanning,
            earlier=earlier,
            repeats=repeats,
            listed=listed,
        )
    near = None
    if plan.settings.dedup == "near":
        near, spanning = find_near(run, segments, [one for one in marks if one], spanning)
    tasks = _plan_sifting(run, segments, marks, spanning, near)
    total = RECORD.itemsize * sum(receipt["facts"]["records"] for receipt in receipts)
    fates = complete_bundles(run, "choosing documents", FateReceipt, tasks, total)
    for receipt, decided in zip(receipts, fates, strict=True):
        _refuse_unfit(plan, receipt, decided)
    ledger = sum_up(receipts, fates)
    if counted := _sum_counts(receipts, spanning):
        ledger["counts"] = counted
    reports = {
        kind: [
            folder.fates / f"{receipt['name']}.{kind}"
            for receipt in fates
            if kind in receipt["files"]
        ]
        for kind in ("rejected", "repaired", "excluded", "removed")
    }
    ledger["set_aside"] = [
        {"source": plan.sources[number].path, "reason": reason}
        for number, reason in sorted(skipped_in(receipts).items())
    ]
    entries = (entry for receipt in fates for entry in receipt["facts"]["sources"])
    ledger["other_encodings"] = describe_files(sum_repairs(entries), plan.sources)
    return Sifted(
        segments=segments.paths(folder.segments),
        fates=[folder.fates / f"{receipt['name']}.fates" for receipt in fates],
        tokens={
            split: [receipt["facts"]["tokens"][i] for receipt in fates]
            for i, split in enumerate(SPLITS)
        },
        spanning={one.first_part: one for one in spanning},
        examples=_choose_examples(run, receipts, spanning),
        contaminated=_list_contaminated(run, receipts, spanning),
        ledger=ledger,
        **reports,
    )


def _sum_counts(receipts: Sequence[Receipt], spanning: Sequence[Whole]) -> dict[str, int]:
    """Return what the judges counted in all documents."""
    counts: Counter[str] = Counter()
    for receipt in receipts:
        counts.update(receipt["facts"].get("counts", {}))
    for one in spanning:
        counts.update(one.verdict.counts)
    return dict(sorted(counts.items()))


def _choose_examples(run: Run, receipts: Sequence[Receipt], spanning: Sequence[Whole]) -> bytes:
    """Return the lines of the report about dropped documents: some examples for each reason."""
    paths = tuple(
        run.folder.segments / f"{receipt['name']}.examples"
        for receipt in receipts
        if "examples" in receipt["files"]
    )
    chosen = Examples()
    tasks = [ChooseExamples(paths)] if paths else []
    for _, found in run.engine.run(tasks, run.watcher.advance):
        for example in found:
            chosen.add(example)
    for one in spanning:
        if one.verdict.number:
            high, low = one.key
            source, offset = one.place
            key, value = f"{high:016x}{low:016x}", one.verdict.value
            number = one.verdict.number
            chosen.add(Example(number, key, source, offset, value, one.beginning))
    return list_examples(chosen, name_reasons(run.plan.judges), run.plan.sources)


def _list_contaminated(
    run: Run, receipts: Sequence[Receipt], spanning: Sequence[Whole]
) -> list[Path]:
    """Return the reports about evaluation texts: of segments, then of documents that span them."""
    paths = [
        run.folder.segments / f"{receipt['name']}.contaminated"
        for receipt in receipts
        if "contaminated" in receipt["files"]
    ]
    lines = []
    for one in spanning:
        if one.verdict.findings:
            source, offset = one.place
            key = "".join(f"{half:016x}" for half in one.key)
            found = list_findings(run.plan.sources[source], offset, key, one.verdict.findings)
            lines.append(found)
    if lines:
        paths.append(run.folder.fates / "spanning.contaminated")
        write_file(paths[-1], b"".join(lines), durable=False)
    return paths


def _refuse_unfit(plan: Plan, segment: Receipt, fates: Receipt) -> None:
    """Raise `FolderError` if the receipts of a segment and of its fates contradict each other.

    A document's fate says which split it belongs to, or that it is dropped.
    """
    facts, tokens = fates["facts"], segment["files"]["tokens"][0] // np.dtype(plan.dtype).itemsize
    if (
        facts["records"] != segment["facts"]["records"]
        or sum(facts["tokens"]) > tokens
        or any(entry[0] >= len(plan.sources) for entry in facts["sources"])
    ):
        raise FolderError(
            f"The unfinished run is damaged: the receipts {fates['name']} and {segment['name']} "
            "contradict each other. Add `restart=True` to start over."
        )


def _hash_spanning(run: Run, segments: Bundles) -> list[Whole]:
    """Return the documents that span parts, with their keys, in input order."""
    found = find_spanning(segments.receipts)
    paths = segments.paths(run.folder.segments)
    tasks = list(plan_hashing(found, paths, run.plan.judges))
    if tasks:
        texts = sum(fragment.text for one in found for _, fragment in one.fragments)
        run.watcher.begin("joining documents", texts)
    results = dict(run.engine.run(tasks, run.watcher.advance))
    hashed = [one for number in range(len(tasks)) for one in results[number]]
    plan, rates = run.plan, run.plan.rates
    if rates is None or not hashed:
        return hashed
    keys = np.array([one.key for one in hashed], np.uint64)
    own = np.array([rates[plan.parts[one.first_part].ranges[-1].source] for one in hashed])
    chosen = is_sampled(keys, own).tolist()
    return [
        one if here else replace(one, is_sampled=False, verdict=Verdict(), beginning="")
        for one, here in zip(hashed, chosen, strict=True)
    ]


def _plan_sifting(
    run: Run,
    segments: Bundles,
    marks: Sequence[PartMarks | None],
    spanning: Sequence[Whole],
    near: NearDuplicates | None,
) -> list[SiftSegment]:
    """Return a task for each segment, to decide which documents to keep and in which split."""
    plan, receipts = run.plan, segments.receipts
    reasons = name_reasons(plan.judges)
    begins = {one.first_part: one for one in spanning}
    continued = {
        part: fate_of(one, plan.settings.val_fraction, reasons)
        for one in spanning
        for part, _ in one.fragments[1:]
    }
    lines_before = list(count_lines_before(plan, receipts))
    # The fates of a segment depend on all segments, so the names of their bundles must, too.
    names = ["fates", str(plan.settings.val_fraction), fingerprint(receipts)]
    context = hash_names(*names, *plan.choice_names, *([near.identity] if near else []))
    return [
        SiftSegment(
            name=hash_names(context, receipt["name"]),
            folder=run.folder.fates,
            segment=segment,
            val_fraction=plan.settings.val_fraction,
            marks=marks[number],
            near=near.removals.of(number) if near else None,
            removals=near.reporter if near else None,
            begins=begins.get(number),
            continued=continued.get(number, DROPPED),
            reporter=Reporter(
                sources={one.source: plan.sources[one.source] for one in plan.parts[number].ranges},
                lines_before=lines_before[number],
                has_rejections="rejected" in receipt["files"],
                first_repair=_first_repair(begins.get(number), lines_before),
            ),
            records=plan.limits.records,
            reasons=reasons,
        )
        for number, (receipt, segment) in enumerate(
            zip(receipts, segments.paths(run.folder.segments), strict=True)
        )
    ]


def _first_repair(begins: Whole | None, lines_before: Sequence[int]) -> int | None:
    """Return the line, in its file, of the first replaced byte of the document `begins`.

    `lines_before` says, for each part, how many lines of its first file are in earlier parts.
    Returns None if there is no document, or if the line is unknown.
    """
    if begins is None:
        return None
    part, line = begins.line
    return lines_before[part] + line if line else None


def explain_nothing_kept(run: Run, sifted: Sifted) -> InputError:
    """Return the error for an input of which no document was kept."""
    plan, dropped = run.plan, sifted.ledger["dropped"]
    lines = [f"No document was kept out of {sifted.ledger['documents_in']:,}:"]
    lines += [f"  {reason}: {entry['documents']:,}" for reason, entry in dropped.items()]
    if sifted.rejected:
        first = _read_first(sifted.rejected[0])
        name = next(name for name in ("line", "row", "offset") if first.get(name) is not None)
        place = f"{name} {first[name]}"
        lines.append(f"The first rejected record: {first['source']}, {place}: {first['reason']}")
    if any(source.kind not in ("text", "tar", "warc") for source in plan.sources):
        lines.append(
            f"If the text is not in the field {plan.settings.text_field!r}, name its field with "
            "`text_field=NAME`, and add `restart=True`."
        )
    return InputError("\n".join(lines))


def _read_first(report: Path) -> dict[str, Any]:
    with report.open("rb") as file:
        first: dict[str, Any] = load_json(file.readline())
    return first
