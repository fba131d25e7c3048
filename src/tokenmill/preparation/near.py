"""Find near duplicates: documents that share most of their shingles with an earlier one that stays.

    shingles  `grind` writes the shingle set of each document; here those of documents that span parts
    bands     hash the sets of the documents that are neither repeats nor excluded
    pairs     find pairs of documents with an equal band hash
    edges     verify each pair on its sets
    choice    go through the similar pairs in input order, and choose which documents to remove

Pairs, edges and choice are repeated with the documents that are left, until no pair is added, at most
`ROUNDS` times. Each choice starts over with the edges of all rounds, so a document is only ever removed
for one that stays.

The result depends on the texts, the threshold and which documents take part, not on workers or memory.
All work is in tasks that exchange files; the calling process handles a few numbers for each part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenmill.preparation.bundles import Bundles, Run, complete_bundles
from tokenmill.preparation.key_files import NEAR, KeyLayout, PartMarks, choose_partitions
from tokenmill.preparation.near_bands import HashBands, PartOfBands, ShingleDocuments
from tokenmill.preparation.near_choice import ChooseRemovals, Removals
from tokenmill.preparation.near_edges import VerifyPairs
from tokenmill.preparation.near_pairs import FindPairs, PairLayout
from tokenmill.preparation.near_reports import RemovalReporter, write_sources
from tokenmill.preparation.plan import hash_names
from tokenmill.preparation.segment import (
    EDGE_BYTES,
    BandReceipt,
    EdgeReceipt,
    PairReceipt,
    Receipt,
    RemovalReceipt,
    SetReceipt,
    fingerprint,
)
from tokenmill.preparation.shingle_sets import Catalog, SetFiles, SpanningSet
from tokenmill.preparation.signatures import Bands
from tokenmill.preparation.spanning import Whole
from tokenmill.storage.files import write_file
from tokenmill.storage.receipts import encode_receipt

ROUNDS = 6
_MOST_GROUPS = 256  # of parts; the band hashes of a group are in one file
_SPANNING_AT_ONCE = 64  # documents that span parts, for one task
_KEY = 16  # bytes


@dataclass(frozen=True)
class NearDuplicates:
    """The near duplicates to remove, and how to report them."""

    removals: Removals
    reporter: RemovalReporter
    identity: str  # of what was decided, to be part of the names of what depends on it


def find_near(
    run: Run, segments: Bundles, marks: Sequence[PartMarks], spanning: Sequence[Whole]
) -> tuple[NearDuplicates | None, list[Whole]]:
    """Find the near duplicates among documents that are neither repeats nor excluded.

    `marks` and the marks of `spanning` documents, which span parts, say which are. Returns the near
    duplicates, or None if there are none, and the spanning documents with their marks.
    """
    plan, folder = run.plan, run.folder
    files = _list_sets(run, segments, spanning)
    content = encode_receipt(files)
    chosen = [marks[0].context, str([one.mark for one in spanning]), fingerprint(segments.receipts)]
    context = hash_names("near", content.decode(), str(plan.settings.near_threshold), *chosen)
    stored = folder.marks / f"{context}.sets.json"
    write_file(stored, content)
    search = _Search(run, stored, context, Catalog(folder.segments, files))
    removals = search.run_rounds(search.hash_bands(marks, spanning))
    if removals is None or not removals["facts"]["starts"][-1]:
        return None, list(spanning)
    sources = folder.marks / f"{context}.sources"
    write_sources(sources, plan.sources)
    near = NearDuplicates(
        Removals(
            path=folder.marks / f"{removals['name']}.removed",
            starts=removals["facts"]["starts"],
            bases=search.catalog.bases.tolist(),
        ),
        RemovalReporter(folder.segments, stored, sources),
        fingerprint([removals]),
    )
    gone = set(removals["facts"]["spanning"])
    return near, [replace(one, mark=NEAR) if one.first_part in gone else one for one in spanning]


def _list_sets(run: Run, segments: Bundles, spanning: Sequence[Whole]) -> SetFiles:
    """Return where all shingle sets are. Makes those of documents that span parts."""
    folder, receipts = run.folder.segments, segments.receipts
    whole = [one for one in spanning if one.has_key]
    paths = segments.paths(folder)
    names = []
    if whole:
        tasks = []
        for start in range(0, len(whole), _SPANNING_AT_ONCE):
            some = tuple(whole[start : start + _SPANNING_AT_ONCE])
            parts = {part for one in some for part, _ in one.fragments}
            name = hash_names("shingles", fingerprint(receipts), str(start))
            tasks.append(ShingleDocuments(name, folder, some, {p: paths[p] for p in parts}))
        texts = sum(fragment.text for one in whole for _, fragment in one.fragments)
        made = complete_bundles(run, "comparing long documents", SetReceipt, tasks, texts)
        names = [receipt["name"] for receipt in made]
    return SetFiles(
        segments=[(receipt["name"], receipt["facts"]["keys"]) for receipt in receipts],
        spanning=[
            SpanningSet(
                part=one.first_part,
                record=receipts[one.first_part]["facts"]["records"] - 1,
                bundle=names[number // _SPANNING_AT_ONCE],
                place=number % _SPANNING_AT_ONCE,
                key=one.key,
            )
            for number, one in enumerate(whole)
        ],
    )


class _Search:
    """The search for near duplicates, whose stages are methods."""

    def __init__(self, run: Run, files: Path, context: str, catalog: Catalog) -> None:
        self.run, self.files, self.catalog = run, files, catalog
        plan = run.plan
        self.threshold = plan.settings.near_threshold
        # Band hashes take more space than the keys of documents, hence more partitions.
        partitions = choose_partitions(plan.size, max(1, plan.limits.partition_bytes // 4))
        self.layout = KeyLayout(partitions=partitions, run_keys=plan.limits.run_keys)
        groups = min(partitions, 1 << catalog.bits)
        self.pairs = PairLayout(replace(self.layout, partitions=groups), catalog.bits)
        self.context = hash_names(context, str(self.layout), str(self.pairs))

    def hash_bands(self, marks: Sequence[PartMarks], spanning: Sequence[Whole]) -> list[Receipt]:
        """Write the band hashes of all documents that take part."""
        plan = self.run.plan
        takes_part = {
            one.first_part for one in spanning if one.has_key and not one.mark and one.length
        }
        each = -(-len(marks) // _MOST_GROUPS)
        tasks = [
            HashBands(
                name=hash_names("bands", self.context, str(start)),
                folder=self.run.folder.segments,
                files=self.files,
                parts=tuple(
                    PartOfBands(part, marks[part], part in takes_part)
                    for part in range(start, min(len(marks), start + each))
                ),
                bands=Bands.choose(self.threshold),
                layout=self.layout,
                records=plan.limits.records,
            )
            for start in range(0, len(marks), each)
        ]
        return complete_bundles(self.run, "hashing documents", BandReceipt, tasks, 0)

    def run_rounds(self, bands: Sequence[Receipt]) -> Receipt | None:
        """Search until no pair is added. Returns the receipt of the last choice, if there is one."""
        choices: list[Receipt] = []
        edges: list[Receipt] = []
        for number in range(1, ROUNDS + 1):
            pairs = self._find_pairs(number, bands, choices)
            if not any(receipt["facts"]["pairs"] for receipt in pairs):
                break
            edges = self._verify(number, pairs, edges)
            if number > 1 and not any(receipt["facts"]["fresh"] for receipt in edges):
                break
            choices.append(self._choose(edges))
        return choices[-1] if choices else None

    def _find_pairs(
        self, number: int, bands: Sequence[Receipt], choices: Sequence[Receipt]
    ) -> list[Receipt]:
        folder = self.run.folder
        files = tuple((f"{receipt['name']}.bands", receipt["facts"]["keys"]) for receipt in bands)
        before = fingerprint([*bands, *choices])
        tasks = [
            FindPairs(
                name=hash_names("pairs", self.context, before, str(number), str(partition)),
                folder=folder.marks,
                keys=folder.segments,
                key_files=files,
                partition=partition,
                layout=self.layout,
                pairs=self.pairs,
                round=number,
                gone=tuple(folder.marks / f"{one['name']}.gone" for one in choices[-2:]),
                limit=self.run.plan.limits.sorted_keys,
            )
            for partition in range(self.layout.partitions)
        ]
        total = _KEY * sum(count for _, count in files)
        stage = "finding similar documents"
        return complete_bundles(self.run, stage, PairReceipt, tasks, total)

    def _verify(
        self, number: int, pairs: Sequence[Receipt], before: Sequence[Receipt]
    ) -> list[Receipt]:
        folder = self.run.folder
        files = tuple((f"{receipt['name']}.pairs", receipt["facts"]["pairs"]) for receipt in pairs)
        content = fingerprint([*pairs, *before])
        tasks = [
            VerifyPairs(
                name=hash_names("edges", self.context, content, str(partition)),
                folder=folder.marks,
                segments=folder.segments,
                files=self.files,
                pair_files=files,
                layout=self.pairs,
                partition=partition,
                threshold=self.threshold,
                before=folder.marks / before[partition]["name"] if before else None,
                limit=self.run.plan.limits.sorted_keys,
            )
            for partition in range(self.pairs.keys.partitions)
        ]
        total = _KEY * sum(count for _, count in files)
        stage = f"comparing similar documents ({number})"
        return complete_bundles(self.run, stage, EdgeReceipt, tasks, total)

    def _choose(self, edges: Sequence[Receipt]) -> Receipt:
        folder = self.run.folder
        task = ChooseRemovals(
            name=hash_names("removals", self.context, fingerprint(edges)),
            folder=folder.marks,
            segments=folder.segments,
            files=self.files,
            edges=tuple(f"{receipt['name']}.edges" for receipt in edges),
        )
        total = EDGE_BYTES * sum(receipt["facts"]["edges"] for receipt in edges)
        stage = "choosing near duplicates"
        return complete_bundles(self.run, stage, RemovalReceipt, [task], total)[0]
