"""`prepare`: turn text into a dataset, in stages that can each be interrupted.

    plan      inputs to parts
    scan      part to line keys, on the engine, if repeated lines are to be removed
    grind     part to segment, on the engine
    sift      which documents stay, and in which split
    pack      segments to shards, on the engine
    manifest  written last: a folder with a manifest is a complete dataset

The bytes of the dataset depend only on the input and the settings, not on workers, memory or
interruptions. Finished work is found by its file names and checked; the rest is made.
Everything that can be done is done before a bad file ends the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson

from tokenmill.errors import InputError
from tokenmill.preparation.bundles import Bundles, Run, make_bundles, skipped_in
from tokenmill.preparation.engine import Engine, LocalEngine
from tokenmill.preparation.folder import REJECTED_NAME, REPAIRED_NAME, PreparationFolder
from tokenmill.preparation.grind import GrindPart, ScanLines, Skipped
from tokenmill.preparation.memory import ReleaseMemory, Workspace, suggest_less_memory
from tokenmill.preparation.pack import CheckShard, PackShard, plan_shards
from tokenmill.preparation.plan import Plan, hash_names, make_plan
from tokenmill.preparation.repeats import keys_in_memory, mark_repeats, read_keys
from tokenmill.preparation.reports import (
    describe_files,
    list_rejections,
    list_repairs,
    write_json_lines,
)
from tokenmill.preparation.segment import ScanReceipt, SegmentReceipt
from tokenmill.preparation.sift import SPLITS, Sifted, sift
from tokenmill.progress import Watcher, watching
from tokenmill.sources.find import describe_passed_over
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import make_subfolder
from tokenmill.storage.names import TOKENIZER_NAME
from tokenmill.store.manifest import Manifest, Split, check_shard_count
from tokenmill.store.shard_receipts import ShardReceipt, describe_change, read_shard_receipt
from tokenmill.store.tables import Shard, ShardTable, Source, SourceTable
from tokenmill.tokenizers import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of `prepare`."""

    path: Path
    manifest: Manifest
    was_finished: bool  # by an earlier run; this one changed nothing
    parts: int
    parts_done_before: int
    bytes_read: int  # input bytes that this run read

    def __repr__(self) -> str:
        splits = (f"{name} {split.tokens:,} tokens" for name, split in self.manifest.splits.items())
        return f"<Report {str(self.path)!r}: {', '.join(splits)}>"


def prepare(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | Tokenizer = "gpt2",
    documents: str = "auto",
    text_field: str = "text",
    normalize: bool = True,
    dedup: Literal["documents", "lines", "none"] = "documents",
    min_line: int = 20,
    val_fraction: float = 0.01,
    tokens_per_shard: int = 100_000_000,
    eot: Literal["after", "before", "none"] = "after",
    dtype: Literal["auto", "uint16", "uint32"] = "auto",
    on_bad_text: Literal["repair", "drop", "refuse"] = "repair",
    skip_bad_files: bool = False,
    workers: int | None = None,
    memory: int | None = None,
    restart: bool = False,
    progress: bool | None = None,
    watcher: Watcher | None = None,
) -> Report:
    """Make a dataset from text, or resume making it.

    `inputs` are files, folders and globs; `out` is a new folder, or the folder of an interrupted
    run. The arguments from `documents` to `skip_bad_files` decide what the dataset contains; see
    `tokenmill.preparation.settings.PrepareSettings`. `memory` is the limit in bytes for all workers
    together.

    Progress is shown in terminals and notebooks. `progress=False` turns it off, and `progress=True`
    prints it elsewhere too. A `watcher` receives it instead.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("To be, or not to be.<|endoftext|>That is the question.")
    >>> report = prepare(folder / "a.txt", folder / "data", tokenizer="bytes", val_fraction=0)
    >>> report.manifest.splits["train"].documents, report.manifest.splits["train"].tokens
    (2, 43)
    """
    plan = make_plan(
        inputs,
        out,
        tokenizer=tokenizer,
        workers=workers,
        memory=memory,
        documents=documents,
        text_field=text_field,
        normalize=normalize,
        dedup=dedup,
        min_line=min_line,
        val_fraction=val_fraction,
        tokens_per_shard=tokens_per_shard,
        eot=eot,
        dtype=dtype,
        on_bad_text=on_bad_text,
        skip_bad_files=skip_bad_files,
    )
    with watching(watcher, progress) as shown:
        return run_plan(plan, Path(out), shown, restart=restart)


def start_engine(plan: Plan) -> Engine:
    """Worker processes, each with its share of the memory."""
    workspace = Workspace(plan.tokenizer, plan.share)
    started = min(plan.workers, len(plan.parts))
    return LocalEngine(started, workspace, suggest_less_memory(started, plan.memory))


def run_plan(
    plan: Plan,
    out: Path,
    watcher: Watcher,
    *,
    restart: bool = False,
    start: Callable[[Plan], Engine] = start_engine,
) -> Report:
    """Run the unfinished stages of a plan. `start` starts the engine."""
    with explain_disk_errors(), PreparationFolder(out, restart=restart) as folder:
        manifest = folder.finished(plan)
        was_finished, done_before, bytes_read = manifest is not None, len(plan.parts), 0
        if manifest is None:
            if plan.passed_over:
                watcher.note(f"Passed over: {describe_passed_over(plan.passed_over)}.")
            folder.remember_plan(plan)
            with start(plan) as engine:
                run = Run(plan, folder, engine, watcher)
                marks, skipped = scan(run) if plan.settings.dedup == "lines" else (None, {})
                segments = grind(run, marks, skipped)
                sifted = sift_segments(run, segments)
                shards = pack(run, segments, sifted)
            manifest = write_manifest(run, segments, sifted, shards)
            done_before, bytes_read = segments.done_before, segments.bytes_read
        folder.clean_up()
        return Report(
            path=folder.path,
            manifest=manifest,
            was_finished=was_finished,
            parts=len(plan.parts),
            parts_done_before=done_before,
            bytes_read=bytes_read,
        )


@dataclass(frozen=True)
class LineMarks:
    """The repeated lines of the whole input: a file with one byte per line, and each part's range."""

    path: Path
    ranges: list[tuple[int, int]]


def scan(run: Run) -> tuple[LineMarks, Skipped]:
    """Find the repeated lines of the whole input. Also returns the bad files."""
    plan, folder = run.plan, run.folder.segments
    names = [part.scan_name for part in plan.parts]
    scans = make_bundles(
        run,
        "reading lines",
        ScanReceipt,
        names,
        lambda i, **more: ScanLines.of(plan, plan.parts[i], folder, **more),
        {},
    )
    counts = [receipt["facts"]["lines"] for receipt in scans.receipts]
    run.watcher.begin("finding repeated lines", 0)
    marks = run.folder.work / "repeated_lines"
    keys = chain.from_iterable(read_keys(folder / f"{name}.lines") for name in names)
    mark_repeats(keys, sum(counts), marks, run.folder.work / "spill", _sorted_keys(plan))
    ends = np.cumsum(counts, dtype=np.int64).tolist()
    ranges = [(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return LineMarks(marks, ranges), skipped_in(scans.receipts)


def _sorted_keys(plan: Plan) -> int:
    return plan.limits.sorted_keys or keys_in_memory(plan.memory * 5 // 8)


def grind(run: Run, marks: LineMarks | None, skipped: Skipped) -> Bundles:
    """The segments of all parts."""
    plan = run.plan
    names = [part.name for part in plan.parts]
    if marks is not None:
        # The content of a segment depends on the lines of all parts.
        names = [hash_names(plan.name, str(sorted(skipped)), name) for name in names]

    def make_task(i: int, **more: Any) -> GrindPart:
        lines = None if marks is None else (marks.path, *marks.ranges[i])
        return GrindPart.of(plan, plan.parts[i], run.folder.segments, repeated_lines=lines, **more)

    segments = make_bundles(run, "tokenizing", SegmentReceipt, names, make_task, skipped)
    run.engine.run_everywhere(ReleaseMemory())  # sifting needs memory in this process
    return segments


def sift_segments(run: Run, segments: Bundles) -> Sifted:
    """Decide the fate of every document, and complete the ledger."""
    plan = run.plan
    run.watcher.begin("choosing documents", 0)
    sifted = sift(
        segments.paths(run.folder.segments),
        segments.receipts,
        plan.settings,
        run.folder.work,
        sorted_keys=_sorted_keys(plan),
        count=plan.limits.records,
    )
    if not sifted.ledger["documents_kept"]:
        raise InputError(_explain_nothing_kept(run, segments, sifted))
    sifted.ledger["set_aside"] = [
        {"source": plan.sources[number].path, "reason": reason}
        for number, reason in sorted(skipped_in(segments.receipts).items())
    ]
    sifted.ledger["other_encodings"] = describe_files(sifted.repaired_files, plan.sources)
    return sifted


def _explain_nothing_kept(run: Run, segments: Bundles, sifted: Sifted) -> str:
    plan, dropped = run.plan, sifted.ledger["dropped"]
    lines = [f"No document was kept out of {sifted.ledger['documents_in']:,}:"]
    lines += [f"  {reason}: {entry['documents']:,}" for reason, entry in dropped.items()]
    first = next(list_rejections(plan, segments.receipts, run.folder.segments), None)
    if first is not None:
        place = f"line {first['line']}" if first.get("line") else f"row {first.get('row')}"
        lines.append(f"The first: {first['source']}, {place}: {first['reason']}")
    if any(source.kind in ("jsonl", "parquet") for source in plan.sources):
        lines.append(
            f"If the text is in another field than {plan.settings.text_field!r}, name it with "
            "`text_field=NAME` and add `restart=True`."
        )
    return "\n".join(lines)


def pack(run: Run, segments: Bundles, sifted: Sifted) -> dict[str, list[Shard]]:
    """The shards of each split, made now or before."""
    plan, root = run.plan, run.folder.path
    for split in SPLITS:
        make_subfolder(root, root / split)
    paths = segments.paths(run.folder.segments)
    per_shard = plan.settings.tokens_per_shard
    check_shard_count(map(sum, sifted.tokens.values()), per_shard)
    tasks = list(plan_shards(sifted, paths, per_shard, plan.dtype, root, plan.limits))
    context = hash_names(plan.name, str(sifted.ledger["tokens"]))
    receipts = {
        task.path: run.folder.shards / f"{context}-{task.split}-{task.number:05}.json"
        for task in tasks
    }
    done = _find_shards(run, tasks, receipts)
    _remove_strays(root, done.values())
    missing = [task for task in tasks if task.path not in done]
    total, left = sifted.ledger["tokens"], sum(task.end - task.start for task in missing)
    run.watcher.begin("writing shards", total, total - left, "tokens")
    for number, shard in run.engine.run(missing, run.watcher.advance):
        ShardReceipt(shard=shard).write(receipts[shard.path])
        done[missing[number].path] = shard
    shards: dict[str, list[Shard]] = {split: [] for split in SPLITS}
    for task in tasks:
        shards[task.split].append(done[task.path])
    return shards


def _find_shards(
    run: Run, tasks: Iterable[PackShard], receipts: Mapping[str, Path]
) -> dict[str, Shard]:
    """The finished shards of an earlier run, by path.

    Reads their files and compares them with the checksums in their receipts.
    """
    found = [
        receipt.shard
        for task in tasks
        if (receipt := read_shard_receipt(receipts[task.path], task, task.end - task.start))
    ]
    dtype = np.dtype(run.plan.dtype)
    if found:
        tokens = sum(shard.tokens for shard in found)
        run.watcher.begin("checking finished shards", tokens, unit="tokens")
    done = {}
    checks = [CheckShard(run.folder.path, shard, dtype) for shard in found]
    for number, intact in run.engine.run(checks, run.watcher.advance):
        run.watcher.advance(found[number].tokens)
        if intact:
            done[found[number].path] = found[number]
        else:
            run.watcher.note(describe_change(found[number]))
    return done


def _remove_strays(root: Path, shards: Iterable[Shard]) -> None:
    """Remove unfinished and changed shards of an interrupted run."""
    wanted = {path for shard in shards for path in (shard.path, shard.documents_path)}
    for split in SPLITS:
        for path in (root / split).glob("shard_*"):
            if f"{split}/{path.name}" not in wanted:
                path.unlink()


def write_manifest(
    run: Run, segments: Bundles, sifted: Sifted, shards: dict[str, list[Shard]]
) -> Manifest:
    """Write the reports and the tokenizer, and the manifest last."""
    plan, folder = run.plan, run.folder
    rejections = list_rejections(plan, segments.receipts, folder.segments)
    write_json_lines(folder.path / REJECTED_NAME, rejections)
    repairs = list_repairs(plan, segments.receipts, sifted.repairs)
    write_json_lines(folder.path / REPAIRED_NAME, repairs)
    state = orjson.dumps(plan.tokenizer.state(), option=orjson.OPT_SORT_KEYS)
    folder.write(TOKENIZER_NAME, state + b"\n")
    manifest = Manifest(
        dtype=plan.dtype,
        vocab_size=plan.tokenizer.vocab_size,
        tokenizer=plan.tokenizer.name,
        tokenizer_fingerprint=plan.tokenizer.fingerprint,
        eot=plan.settings.eot,
        eot_id=plan.tokenizer.eot_id,
        splits={split: Split(shards=ShardTable.of(shards[split])) for split in SPLITS},
        sources=SourceTable.of(
            Source(path=source.path, bytes=source.size, unit=source.unit) for source in plan.sources
        ),
        settings=plan.settings.to_json(),
        ledger=sifted.ledger,
    )
    manifest.write(folder)
    return manifest
