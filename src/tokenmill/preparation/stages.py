"""The stages of a run after planning: scan, grind, sift, pack, and the manifest.

What is done is found by name and checked, whatever is missing is made; a stage that was
interrupted half-way is half done. All that can be done is done before a bad file ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import xxhash

from tokenmill.errors import InputError
from tokenmill.preparation.bundle import read_receipt
from tokenmill.preparation.engines import LocalEngine
from tokenmill.preparation.folder import REJECTED_NAME, REPAIRED_NAME, PreparationFolder
from tokenmill.preparation.pack import ShardJob, plan_shards
from tokenmill.preparation.part import TooLargeError
from tokenmill.preparation.plan import Plan
from tokenmill.preparation.repairs import describe_files, read_repairs
from tokenmill.preparation.repeats import mark_repeats, read_keys
from tokenmill.preparation.sift import SPLITS, Sifted, sift
from tokenmill.preparation.worker import Check, Grind, Pack, Scan, Task
from tokenmill.progress import Watcher
from tokenmill.sources.read import BadFileError
from tokenmill.storage.files import AtomicFile, write_file
from tokenmill.storage.names import TOKENIZER_NAME
from tokenmill.store.manifest import Manifest, Split
from tokenmill.store.tables import Shard, ShardTable, Source, SourceTable

if TYPE_CHECKING:
    from tokenmill.preparation.prepare import Mill

Receipt = dict[str, Any]
Aside = dict[int, str]  # bad files by the number of their source, and what is wrong with each
BadSources = tuple[tuple[int, str], ...]


class Stages:
    """The stages after planning, in a folder whose lock is held."""

    def __init__(self, mill: Mill, folder: PreparationFolder, watcher: Watcher) -> None:
        self.mill = mill
        self.plan: Plan = mill.plan
        self.settings = mill.settings
        self.folder = folder
        self.watcher = watcher
        self.bytes_read = 0  # input bytes on disk, as progress counts them

    def finish(self) -> tuple[Manifest, int]:
        """Do the stages; returns the manifest and how many parts were done before."""
        with self.mill.engine() as engine:
            receipts, done_before = self._grind(engine)
            segments = [self.folder.segments / receipt["name"] for receipt in receipts]
            engine.rest()  # sifting may need the memory that the tokenizers have taken
            self.watcher.begin("choosing documents", 0)
            sifted = sift(
                segments, receipts, self.settings, self.folder.work, self.mill.memory * 5 // 8
            )
            if not sifted.ledger["documents_kept"]:
                raise InputError(self._nothing_kept(receipts, sifted))
            sifted.ledger["set_aside"] = self._set_aside(receipts)
            files = describe_files(sifted.repaired_files, self.plan.sources)
            sifted.ledger["other_encodings"] = files
            shards = self._pack(engine, sifted, segments)
        return self._complete(receipts, sifted, shards), done_before

    def _run(self, engine: LocalEngine, tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
        return engine.run(tasks, lambda numbers: self.watcher.advance(*numbers))

    def _grind(self, engine: LocalEngine) -> tuple[list[Receipt], int]:
        """The receipts of all segments, made now or before, in input order."""
        parts, folder = self.plan.parts, self.folder.segments
        marks: dict[str, tuple[Path, int, int]] = {}
        names = [part.name for part in parts]
        aside: Aside = {}
        if self.settings.dedup == "lines":
            marks, aside = self._mark_lines(engine)
            # What a segment holds depends on the lines of all parts.
            names = [_combined(self.plan.name, str(sorted(aside)), name) for name in names]
        return self._make(
            engine,
            "tokenizing",
            names,
            lambda i, bad: Grind(
                self.mill.job(
                    parts[i],
                    folder,
                    name=names[i],
                    repeated_lines=marks.get(parts[i].name),
                    aside=bad,
                )
            ),
            aside,
        )

    def _mark_lines(self, engine: LocalEngine) -> tuple[dict[str, tuple[Path, int, int]], Aside]:
        """Find the repeated lines of the whole input: for each part, where its marks stand.

        Returns that, and the files that are bad.
        """
        parts, folder = self.plan.parts, self.folder.segments
        names = self._scan_names()
        receipts, _ = self._make(
            engine,
            "reading lines",
            names,
            lambda i, bad: Scan(self.mill.job(parts[i], folder, name=names[i], aside=bad)),
            {},
        )
        counts = [receipt["facts"]["lines"] for receipt in receipts]
        self.watcher.begin("finding repeated lines", 0)
        marks = self.folder.work / "repeated_lines"
        key = np.dtype("V16")
        tables = chain.from_iterable(
            read_keys(folder / f"{name}.lines", key, None) for name in names
        )
        spill = self.folder.work / "spill"
        mark_repeats(tables, sum(counts), marks, spill, self.mill.memory * 5 // 8)
        ranges: dict[str, tuple[Path, int, int]] = {}
        start = 0
        for part, count in zip(parts, counts, strict=True):
            ranges[part.name] = (marks, start, start + count)
            start += count
        return ranges, _bad_files(receipts)

    def _scan_names(self) -> list[str]:
        return [_combined("lines", part.name) for part in self.plan.parts]

    def _make(
        self,
        engine: LocalEngine,
        stage: str,
        names: list[str],
        task: Callable[[int, BadSources], Task],
        aside: Aside,
    ) -> tuple[list[Receipt], int]:
        """The receipts of some bundles: found, or made where they are missing.

        All that can be made is made before a bad file ends the run. A file that is set aside in
        one of its parts is set aside in all.
        """
        parts = self.plan.parts
        receipts = self._found(engine, names)
        missing = [i for i, name in enumerate(names) if name not in receipts]
        done_before = len(names) - len(missing)
        total = self.plan.size
        left = sum(parts[i].size for i in missing)
        self.watcher.begin(stage, total, total - left)
        self.bytes_read = left
        while True:
            bad = [tuple(self._bad_in(i, aside).items()) for i in missing]
            tasks = [task(i, sources) for i, sources in zip(missing, bad, strict=True)]
            failures: list[BadFileError] = []
            for number, result in self._run(engine, tasks):
                if isinstance(result, BadFileError):
                    failures.append(result)
                    continue
                receipts[names[missing[number]]] = result
                if not self.settings.skip_bad_files:
                    failures += [
                        BadFileError(self.plan.sources[source].path, reason)
                        for source, reason in _bad_files([result]).items()
                    ]
            if failures:
                raise self._failed(failures)
            aside = aside | _bad_files(receipts.values())
            missing = [
                i
                for i, name in enumerate(names)
                if self._bad_in(i, aside).keys() != _bad_files([receipts[name]]).keys()
            ]
            if not missing:
                return [receipts[name] for name in names], done_before

    def _bad_in(self, part: int, aside: Aside) -> Aside:
        pieces = self.plan.parts[part].pieces
        return {piece.source: aside[piece.source] for piece in pieces if piece.source in aside}

    def _found(self, engine: LocalEngine, names: list[str]) -> dict[str, Receipt]:
        """The bundles of earlier runs that can be used, checked to the byte."""
        folder = self.folder.segments
        found: dict[str, Receipt] = {}
        for name in names:
            receipt = read_receipt(folder, name)
            # What could not be read then may be readable now.
            if receipt is not None and not receipt["facts"]["set_aside"]:
                found[name] = receipt
        suspects = list(found)
        checks = [Check(folder, name) for name in suspects]
        for number, sound in self._run(engine, checks):
            if not sound:
                del found[suspects[number]]
        return found

    def _failed(self, failures: list[BadFileError]) -> InputError:
        unique = {failure.source: failure.reason for failure in failures}
        self.folder.note_failures(list(unique))
        for part, name in zip(self.plan.parts, self._scan_names(), strict=True):
            # It may have been sound when its lines were scanned.
            if any(self.plan.sources[piece.source].path in unique for piece in part.pieces):
                (self.folder.segments / f"{name}.json").unlink(missing_ok=True)
        shown = [f"  {source}: {reason}" for source, reason in sorted(unique.items())[:20]]
        more = [f"  … and {len(unique) - 20} more"] if len(unique) > 20 else []
        files = "1 file" if len(unique) == 1 else f"{len(unique)} files"
        cure = [
            "Repair or replace them and run the same command, which resumes here;",
            "or add `skip_bad_files=True` to leave them out.",
        ]
        if all(isinstance(failure, TooLargeError) for failure in failures):
            cure = ["Then run the same command, which resumes here."]
        first = f"{files} could not be read; everything else is done and kept:"
        return InputError("\n".join([first, *shown, *more, *cure]))

    def _nothing_kept(self, receipts: list[Receipt], sifted: Sifted) -> str:
        dropped = sifted.ledger["dropped"]
        told = [f"  {reason}: {entry['documents']:,}" for reason, entry in dropped.items()]
        for entry in self._rejections(receipts):
            place = f"line {entry['line']}" if entry.get("line") else f"row {entry.get('row')}"
            told.append(f"The first: {entry['source']}, {place}: {entry['reason']}")
            break
        if any(source.kind in ("jsonl", "parquet") for source in self.plan.sources):
            told.append(
                f"If the text is in another field than {self.settings.text_field!r}, name it with "
                "`text_field=NAME` and add `restart=True`."
            )
        return "\n".join([f"No document was kept out of {sifted.ledger['documents_in']:,}:", *told])

    def _set_aside(self, receipts: list[Receipt]) -> list[dict[str, Any]]:
        return [
            {"source": self.plan.sources[number].path, "reason": reason}
            for number, reason in sorted(_bad_files(receipts).items())
        ]

    def _pack(
        self, engine: LocalEngine, sifted: Sifted, segments: list[Path]
    ) -> dict[str, list[Shard]]:
        """The shards of each split, made now or before."""
        for split in SPLITS:
            (self.folder.path / split).mkdir(exist_ok=True)
        jobs = list(
            plan_shards(
                sifted, segments, self.settings.tokens_per_shard, self.mill.dtype, self.folder.path
            )
        )
        context = _combined(self.plan.name, str(sifted.ledger["tokens"]))
        done: dict[str, dict[str, Any]] = {}
        for job in jobs:
            said = _said(self.folder.shards / _receipt_name(context, job))
            if said is not None and _is_there(self.folder.path, said, self.mill.dtype):
                done[job.path] = said
        self._remove_strays(done.values())
        missing = [job for job in jobs if job.path not in done]
        tokens = sum(job.end - job.start for job in missing)
        total = sifted.ledger["tokens"]
        self.watcher.begin("writing shards", total, total - tokens, "tokens")
        for number, said in self._run(engine, [Pack(job) for job in missing]):
            if isinstance(said, BadFileError):
                raise said
            job = missing[number]
            name = _receipt_name(context, job)
            write_file(self.folder.shards / name, orjson.dumps(said))
            done[job.path] = said
        shards: dict[str, list[Shard]] = {split: [] for split in SPLITS}
        for job in jobs:
            shards[job.split].append(Shard(**done[job.path]))
        return shards

    def _remove_strays(self, keep: Iterable[dict[str, Any]]) -> None:
        """Remove what an interrupted run left half-way among the shards."""
        wanted = {said[name] for said in keep for name in ("path", "documents_path")}
        for split in SPLITS:
            for path in (self.folder.path / split).glob("shard_*"):
                if f"{split}/{path.name}" not in wanted:
                    path.unlink()

    def _lines_before(self, receipts: list[Receipt]) -> Iterator[dict[int, int]]:
        """For each part, the number of lines of each source in the parts before it."""
        before: dict[int, int] = {}
        for part, receipt in zip(self.plan.parts, receipts, strict=True):
            yield before
            facts = receipt["facts"]
            aside = {entry["source"] for entry in facts["set_aside"]}
            ground = [piece for piece in part.pieces if piece.source not in aside]
            for piece, count in zip(ground, facts["lines"], strict=True):
                before[piece.source] = before.get(piece.source, 0) + count

    def _rejections(self, receipts: list[Receipt]) -> Iterator[dict[str, Any]]:
        """The rejected records of all segments, with their position in their file."""
        for receipt, before in zip(receipts, self._lines_before(receipts), strict=True):
            if "rejected" in receipt["files"]:
                with (self.folder.segments / f"{receipt['name']}.rejected").open("rb") as file:
                    for record in file:
                        number, line, offset, reason = orjson.loads(record)
                        if line is not None:
                            line += 1 + before.get(number, 0)
                        yield self._place(number, line, offset) | {"reason": reason}

    def _repairs(self, receipts: list[Receipt], sifted: Sifted) -> Iterator[dict[str, Any]]:
        """The documents that were repaired and kept, with their position in their file."""
        befores = enumerate(self._lines_before(receipts))
        part, before = next(befores)
        for segment, number, line, offset, replaced in read_repairs(sifted.repairs):
            while part < segment:
                part, before = next(befores)
            known = line + before.get(number, 0) if line else None
            yield self._place(number, known, offset) | {"replaced_bytes": replaced}

    def _place(self, number: int, line: int | None, offset: int) -> dict[str, Any]:
        source = self.plan.sources[number]
        if source.unit == "row":
            return {"source": source.path, "row": offset}
        return {"source": source.path, "line": line, "offset": offset}

    def _write_report(self, name: str, entries: Iterator[dict[str, Any]]) -> None:
        """Write a file of JSON lines, if there are any."""
        first = next(entries, None)
        if first is None:
            (self.folder.path / name).unlink(missing_ok=True)
            return
        with AtomicFile(self.folder.path / name) as file:
            for entry in chain([first], entries):
                file.write(orjson.dumps(entry) + b"\n")
            file.finish()

    def _complete(
        self, receipts: list[Receipt], sifted: Sifted, shards: dict[str, list[Shard]]
    ) -> Manifest:
        """Write what goes beside the shards, and the manifest last."""
        self._write_report(REJECTED_NAME, self._rejections(receipts))
        self._write_report(REPAIRED_NAME, self._repairs(receipts, sifted))
        state = orjson.dumps(self.mill.tokenizer.state(), option=orjson.OPT_SORT_KEYS)
        self.folder.write(TOKENIZER_NAME, state + b"\n")
        manifest = Manifest(
            dtype=self.mill.dtype,
            vocab_size=self.mill.tokenizer.vocab_size,
            tokenizer=self.mill.tokenizer.name,
            tokenizer_fingerprint=self.mill.tokenizer.fingerprint,
            eot=self.settings.eot,
            eot_id=self.mill.tokenizer.eot_id,
            splits={split: Split(shards=ShardTable.of(shards[split])) for split in SPLITS},
            sources=SourceTable.of(
                Source(path=source.path, bytes=source.size, unit=source.unit)
                for source in self.plan.sources
            ),
            settings=self.settings.to_json(),
            ledger=sifted.ledger,
        )
        manifest.write(self.folder)
        return manifest


def _bad_files(receipts: Iterable[Receipt]) -> Aside:
    return {
        entry["source"]: entry["reason"]
        for receipt in receipts
        for entry in receipt["facts"]["set_aside"]
    }


def _combined(*names: str) -> str:
    return xxhash.xxh3_128_hexdigest("\n".join(names).encode())


def _receipt_name(context: str, job: ShardJob) -> str:
    return f"{context}-{job.split}-{job.number:05}.json"


def _said(path: Path) -> dict[str, Any] | None:
    try:
        said = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return said if isinstance(said, dict) else None


def _is_there(root: Path, said: dict[str, Any], dtype: str) -> bool:
    """Whether a shard and its table are in place; they were flushed before their receipt."""
    try:
        size: int = (root / said["path"]).stat().st_size
        whole: bool = size == said["tokens"] * np.dtype(dtype).itemsize
        return whole and (root / said["documents_path"]).is_file()
    except (OSError, KeyError, TypeError):
        return False
