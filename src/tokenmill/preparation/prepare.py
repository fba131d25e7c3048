"""`prepare`: turn text into a dataset, in stages that can each be interrupted.

    plan      divide the input into parts
    scan      compute the keys of each part's lines, if repeated lines are to be removed
    grind     clean and tokenize each part; the result is a segment
    sift      decide which documents stay, and in which split
    pack      make shards from the segments
    manifest  written last: a folder with a manifest is a complete dataset

With `append`, the folder has a dataset, and the stages make its next generation: new shards behind the
others, and a manifest that replaces the one before.

Worker processes do the tasks of scan, grind, sift and pack; see `engine.py`.

The bytes of the dataset depend only on the input and the settings, not on workers, memory or
interruptions. A resumed run finds finished work by its file names, checks it, and makes the rest.
If a file is bad, a stage still processes all other files before the run ends with an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack, cast

import numpy as np
import orjson

from tokenmill.contamination.evaluation import Paths
from tokenmill.errors import FolderError, UsageError
from tokenmill.html import render
from tokenmill.preparation.base import check_base, grow
from tokenmill.preparation.bundles import Bundles, Run, make_bundles, skipped_in
from tokenmill.preparation.choose import explain_nothing_kept, mark_lines, sift
from tokenmill.preparation.decontaminate import prepare_judge
from tokenmill.preparation.engine import Engine, LocalEngine
from tokenmill.preparation.exclusion import Exclude, find_list
from tokenmill.preparation.folder import PreparationFolder
from tokenmill.preparation.grind import GrindPart
from tokenmill.preparation.key_files import PartMarks
from tokenmill.preparation.memory import Workspace, suggest_less_memory
from tokenmill.preparation.pack import CheckShard, PackShard, Sifted, plan_shards
from tokenmill.preparation.pack_fields import PackFields
from tokenmill.preparation.part import Skipped
from tokenmill.preparation.plan import Plan, hash_names, make_plan
from tokenmill.preparation.reports import join_reports
from tokenmill.preparation.sampling import NOT_SAMPLED
from tokenmill.preparation.scan_lines import ScanLines
from tokenmill.preparation.segment import ScanReceipt, SegmentReceipt
from tokenmill.preparation.settings import SPLITS, PrepareArguments, PrepareSettings
from tokenmill.preparation.sift import EXCLUDED
from tokenmill.preparation.standard_input import copy_standard_input, is_standard_input
from tokenmill.progress import Watcher, watching
from tokenmill.sources.find import describe_passed_over
from tokenmill.sources.kept_fields import parse_kept_fields
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import make_subfolder
from tokenmill.storage.names import (
    CONTAMINATED_NAME,
    DROPPED_NAME,
    EXCLUDED_NAME,
    REJECTED_NAME,
    REMOVED_NAME,
    REPAIRED_NAME,
    SOURCES_NAME,
    TOKENIZER_NAME,
    WORK_NAME,
    name_in_generation,
)
from tokenmill.storage.object_path import as_path
from tokenmill.storage.output import choose_work_folder
from tokenmill.store.fields import DOCUMENTS_PER_FRAME, KeptFields, find_library
from tokenmill.store.frames import choose_compression
from tokenmill.store.manifest import Manifest, Split, check_shard_count, find_manifest
from tokenmill.store.shard_receipts import ShardReceipt, describe_change, read_shard_receipt
from tokenmill.store.tables import Shard, ShardName, ShardTable, Source, SourceTable
from tokenmill.tokenizers import Tokenizer, load_tokenizer
from tokenmill.wording import counted, size


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of `prepare`."""

    path: Path
    manifest: Manifest
    was_finished: bool  # whether an earlier run finished the dataset; this run then changed nothing
    added_documents: int | None = None  # by this run; None unless it added to a dataset
    parts: int
    parts_done_before: int
    bytes_read: int  # input bytes that this run read

    def __repr__(self) -> str:
        splits = (f"{name} {split.tokens:,} tokens" for name, split in self.manifest.splits.items())
        return f"<Report {str(self.path)!r}: {', '.join(splits)}>"

    def _repr_html_(self) -> str:
        facts = [
            ("input read", size(self.bytes_read)),
            ("parts", f"{self.parts:,}, {self.parts_done_before:,} of them by earlier runs"),
            *([("", "finished by an earlier run")] if self.was_finished else []),
        ]
        rows = [
            (name, f"{split.tokens:,}", f"{split.documents:,}", f"{len(split.shards):,}")
            for name, split in self.manifest.splits.items()
        ]
        heads = ("split", "tokens", "documents", "shards")
        return render(f"Dataset {self.path}", facts, ("", heads, rows))


def prepare(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | Tokenizer | None = None,
    append: bool = False,
    exclude: Exclude = None,
    decontaminate: Paths | None = None,
    workers: int | None = None,
    memory: int | None = None,
    work: str | os.PathLike[str] | None = None,
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    restart: bool = False,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    **settings: Unpack[PrepareArguments],
) -> Report:
    """Make a dataset from text, or resume making it.

    `inputs` are files, folders and globs, and `-` for standard input; `out` is a new folder, or the folder of an interrupted
    run. `settings` decide what the dataset contains, such as `dedup="lines"` or `val_fraction=0`;
    `tokenmill.preparation.settings.PrepareSettings` describes all of them. The default `tokenizer` is
    gpt2. `append=True` adds documents to the finished dataset in `out`, with its settings and
    tokenizer; documents that it has already are dropped as duplicates. `exclude` names lists of documents to leave
    out, in addition to the list that `tokenmill.exclude` made for `out`; `exclude=False` leaves no
    document out. `decontaminate` names files of evaluation texts, or datasets: documents that contain
    such a text are dropped (see `decontaminate_action`). `memory` is the limit in bytes for all workers
    together. Inputs and `out` may be in an object store. If `out` is in an object store, unfinished
    work is kept in the folder `work`, by default ~/.cache/tokenmill/work on this machine.

    With `engine="ray"`, the workers run on the Ray cluster at `ray_address`, by default the cluster
    that is running on this machine. If `out` is in an object store, the default of `work` is then a
    folder in `out`. It may also be another address, or a folder that all nodes share.

    Progress is shown in terminals and notebooks. `progress=False` turns it off, and `progress=True`
    prints it elsewhere too. If you pass a `watcher`, it receives the progress instead.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("To be, or not to be.<|endoftext|>That is the question.")
    >>> report = prepare(folder / "a.txt", folder / "data", tokenizer="bytes", val_fraction=0)
    >>> report.manifest.splits["train"].documents, report.manifest.splits["train"].tokens
    (2, 43)
    """
    find_plan = partial(
        make_plan,
        inputs,
        out,
        tokenizer=tokenizer,
        append=append,
        memory=memory,
        exclude=exclude,
        decontaminate=decontaminate,
        **settings,
    )
    _check_engine(engine, ray_address)
    if append and is_standard_input(inputs):
        raise UsageError(
            "Standard input cannot be added to a dataset. Write the text to a file first, and give that "
            "file."
        )
    with watching(watcher, progress) as shown:
        target = as_path(out)
        if engine == "local":
            folder = choose_work_folder(target, work)
            if is_standard_input(inputs):
                checked = PrepareSettings(
                    **cast("dict[str, Any]", settings)
                )  # before all of the input is copied
                chosen = load_tokenizer("gpt2" if tokenizer is None else tokenizer)
                find_plan = partial(find_plan, tokenizer=chosen)
                copied = copy_standard_input(
                    target, folder, shown, restart=restart, encoding=checked.encoding
                )
                find_plan, restart = partial(find_plan, standard_input=copied), False
            return run_plan(find_plan(workers=workers), target, shown, restart=restart, work=folder)
        from tokenmill.preparation.ray_engine import RayCluster

        with RayCluster(ray_address) as cluster:
            plan = find_plan(
                workers=workers or max(1, cluster.cores), machine=cluster.memory or None
            )
            folder = choose_work_folder(target, work, is_shared=True)
            shared = folder or target / WORK_NAME
            start = partial(cluster.start, out=shared, workers=workers, note=shown.note)
            return run_plan(plan, target, shown, restart=restart, work=folder, start=start)


def _check_engine(engine: str, ray_address: str | None) -> None:
    if engine not in ("local", "ray"):
        raise UsageError(f"`engine` is {engine!r}; it must be one of local, ray.")
    if ray_address is not None and engine != "ray":
        raise UsageError("`ray_address` is for `engine='ray'` only.")


def start_engine(plan: Plan) -> Engine:
    """Start worker processes for a plan, each with an equal share of its memory."""
    workspace = Workspace(plan.tokenizer, plan.share)
    started = min(plan.workers, len(plan.parts))
    return LocalEngine(started, workspace, suggest_less_memory(started, plan.memory))


def run_plan(
    plan: Plan,
    out: Path,
    watcher: Watcher,
    *,
    restart: bool = False,
    work: Path | None = None,
    start: Callable[[Plan], Engine] = start_engine,
) -> Report:
    """Make the dataset of a plan in the folder `out`, or finish it if an earlier run began.

    `work` is the folder for unfinished work, by default `.work` in `out`. `start` starts an engine.
    """
    with (
        explain_disk_errors(),
        PreparationFolder(out, restart=restart, work=work, append=plan.base is not None) as folder,
    ):
        manifest = folder.finished(plan)
        if manifest is not None and plan.base is None and is_stale(plan, manifest):
            watcher.note(
                f"{find_list(out)} has changed since the dataset was made, and a finished dataset is "
                f"never changed. To apply the list: tokenmill reshard {out} --out NEW, or add "
                "`restart=True` to make the dataset again."
            )
        was_finished, done_before, bytes_read = manifest is not None, len(plan.parts), 0
        added = None if plan.base is None else 0
        if manifest is None:
            for note in plan.notes:
                watcher.note(note)
            if plan.passed_over:
                watcher.note(f"Passed over: {describe_passed_over(plan.passed_over)}.")
            if plan.tokenizer.note:
                watcher.note(plan.tokenizer.note)
            if plan.exclusions:
                lists = ", ".join(plan.exclusions.paths)
                watcher.note(
                    f"Leaving out the documents of {lists} ({counted(len(plan.exclusions), 'key')}); "
                    "`exclude=False` keeps them."
                )
            folder.remember_plan(plan)
            with start(plan) as engine:
                run = prepare_judge(Run(plan, folder, engine, watcher))
                marks, skipped = scan(run) if plan.settings.dedup == "lines" else (None, {})
                segments = grind(run, marks, skipped)
                sifted = sift(run, segments)
                kept = sifted.ledger["documents_kept"]
                if not kept and (plan.base is None or _is_unusable(sifted)):
                    raise explain_nothing_kept(run, sifted)
                shards = pack(run, sifted) if kept else {}
                fields = pack_fields(run, sifted, shards) if kept else None
            if kept:
                manifest = write_manifest(run, sifted, shards, fields)
            else:
                assert plan.base is not None
                manifest = plan.base.manifest
                _remove_strays(folder.path, plan.base.shards)
                watcher.note(_explain_nothing_added(sifted))
            added = None if plan.base is None else kept
            done_before, bytes_read = segments.done_before, segments.bytes_read
        folder.clean_up()
        return Report(
            path=folder.path,
            manifest=manifest,
            was_finished=was_finished,
            added_documents=added,
            parts=len(plan.parts),
            parts_done_before=done_before,
            bytes_read=bytes_read,
        )


def is_stale(plan: Plan, manifest: Manifest) -> bool:
    """Return whether the list of a finished dataset has changed since the dataset was made."""
    listed = plan.describe_settings().get("exclude")
    return any(settings.get("exclude") != listed for settings in manifest.all_settings)


def _is_unusable(sifted: Sifted) -> bool:
    """Return whether no document of the input could have been added, whatever the dataset has."""
    return not {"duplicate", EXCLUDED, NOT_SAMPLED} & sifted.ledger["dropped"].keys()


def _explain_nothing_added(sifted: Sifted) -> str:
    dropped = sifted.ledger["dropped"]
    if list(dropped) == ["duplicate"]:
        number = counted(sifted.ledger["documents_in"], "document")
        return f"Nothing was added: the dataset already has the text of all {number}."
    reasons = (f"{entry['documents']:,} ({reason})" for reason, entry in dropped.items())
    return f"Nothing was added: all documents were dropped, {', '.join(reasons)}."


def scan(run: Run) -> tuple[list[PartMarks], Skipped]:
    """Find the lines that repeat an earlier line of the input.

    Returns, for each part, where its marks are stored (one per line: whether it is a repeat), and
    the bad files that were skipped.
    """
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
    return mark_lines(run, scans), skipped_in(scans.receipts)


def grind(run: Run, marks: Sequence[PartMarks] | None, skipped: Skipped) -> Bundles:
    """Tokenize the parts that an earlier run has not done. Returns the segments of all parts.

    `marks` say which repeated lines to remove; `skipped` are bad files to leave out.
    """
    plan = run.plan
    names = [part.name for part in plan.parts]
    if marks is not None:
        # Which lines are removed depends on all parts, so the name of a segment must, too.
        names = [hash_names(plan.name, str(sorted(skipped)), name) for name in names]
    if plan.segment_context:
        names = [hash_names(plan.segment_context, name) for name in names]

    def make_task(i: int, **more: Any) -> GrindPart:
        lines = None if marks is None else marks[i]
        return GrindPart.of(plan, plan.parts[i], run.folder.segments, repeated_lines=lines, **more)

    return make_bundles(run, "tokenizing", SegmentReceipt, names, make_task, skipped)


def pack(run: Run, sifted: Sifted) -> dict[str, list[Shard]]:
    """Write the missing shards, and return all shards of each split."""
    plan, root = run.plan, run.folder.path
    for split in SPLITS:
        make_subfolder(root, root / split)
    per_shard = plan.settings.tokens_per_shard
    compression = choose_compression(plan.settings.compress)
    base = None if plan.base is None else plan.base.manifest
    there = [] if plan.base is None else plan.base.shards
    check_shard_count(map(sum, sifted.tokens.values()), per_shard, compression, len(there))
    tasks = list(plan_shards(sifted, per_shard, plan.dtype, root, plan.limits, compression, base))
    if taken := {shard.path for shard in there} & {task.path for task in tasks}:
        raise FolderError(
            f"The dataset has a file where the next shard belongs: {min(taken)}. Renumber its shards: "
            f"tokenmill reshard {root} --out NEW"
        )
    context = hash_names(plan.name, str(sifted.ledger["tokens"]), *plan.choice_names)
    receipts = {
        task.path: run.folder.shards / f"{context}-{task.split}-{task.number:05}.json"
        for task in tasks
    }
    done = _find_shards(run, tasks, receipts)
    _remove_strays(root, [*there, *tasks])
    if not plan.settings.keep_fields:
        _remove_fields(root)
    missing = [task for task in tasks if task.path not in done]
    total, left = sifted.ledger["tokens"], sum(task.end - task.start for task in missing)
    run.watcher.begin("writing shards", total, total - left, "tokens")
    for number, shard in run.engine.run(missing, run.watcher.advance):
        library = missing[number].library
        ShardReceipt(shard=shard, library=library).write(receipts[shard.path])
        done[missing[number].path] = shard
    shards: dict[str, list[Shard]] = {split: [] for split in SPLITS}
    for task in tasks:
        shards[task.split].append(done[task.path])
    return shards


def _find_shards(
    run: Run, tasks: Iterable[PackShard], receipts: Mapping[str, Path]
) -> dict[str, Shard]:
    """Return the intact shards of an earlier run, by path.

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


def _remove_strays(root: Path, shards: Iterable[ShardName | Shard]) -> None:
    """Remove the shards in `root` that an interrupted run left, except those named in `shards`.

    `shards` are the shards of the dataset. They are kept even if they will be written again, because
    in an object store another process may be writing them.
    """
    wanted = {path for shard in shards for path in (shard.path, shard.documents_path)}
    for split in SPLITS:
        for path in (root / split).glob("shard_*"):
            if f"{split}/{path.name}" not in wanted:
                path.unlink()


def _remove_fields(root: Path) -> None:
    """Remove the kept fields of an interrupted run with other settings."""
    for split in SPLITS:
        for path in (root / split).glob("fields.*"):
            path.unlink()


def pack_fields(
    run: Run, sifted: Sifted, shards: Mapping[str, Sequence[Shard]]
) -> KeptFields | None:
    """Write the kept fields of all splits; None if no fields are to be kept."""
    kept = parse_kept_fields(run.plan.settings.keep_fields)
    if not kept:
        return None
    tasks = [
        PackFields(
            split=split,
            segments=tuple(sifted.segments),
            fates=tuple(sifted.fates),
            folder=run.folder.path,
            names=tuple(field.name for field in kept),
            records=run.plan.limits.records // 64 + 1,
        )
        for split in SPLITS
        if any(shard.documents for shard in shards[split])
    ]
    run.watcher.begin("keeping fields", 0)
    made = dict(run.engine.run(tasks, run.watcher.advance))
    for field in kept:
        if all(field.name in missing for _, missing in made.values()):
            run.watcher.note(f"No document has the field {field.name!r} of `keep_fields`.")
    return KeptFields(
        names=[field.name for field in kept],
        documents_per_frame=DOCUMENTS_PER_FRAME,
        library=find_library(),
        files={task.split: made[number][0] for number, task in enumerate(tasks)},
    )


def write_manifest(
    run: Run, sifted: Sifted, shards: dict[str, list[Shard]], fields: KeptFields | None
) -> Manifest:
    """Write the reports and the tokenizer, then the manifest. Returns the manifest."""
    plan, folder = run.plan, run.folder
    generation = 1 if plan.base is None else plan.base.generation
    for name, reports in (
        (REJECTED_NAME, sifted.rejected),
        (REPAIRED_NAME, sifted.repaired),
        (EXCLUDED_NAME, sifted.excluded),
        (REMOVED_NAME, sifted.removed),
        (CONTAMINATED_NAME, sifted.contaminated),
    ):
        join_reports(reports, folder.path / name_in_generation(name, generation))
    dropped = name_in_generation(DROPPED_NAME, generation)
    if sifted.examples:
        folder.write(dropped, sifted.examples)
    else:
        (folder.path / dropped).unlink(missing_ok=True)
    if plan.protected is not None:
        counts = plan.protected.count() | {"common_ngrams": plan.common_ngrams}
        sifted.ledger["evaluation"] = counts
    sources = SourceTable.of(
        (Source(path=source.path, bytes=source.size, unit=source.unit) for source in plan.sources),
        name_in_generation(SOURCES_NAME, generation),
    )
    if plan.base is not None:
        manifest = grow(
            plan.base.manifest, plan.describe_settings(), sifted.ledger, shards, sources
        )
        if find_manifest(folder.path) != manifest.to_json():  # else another machine was faster
            check_base(plan.base, folder.path)
            manifest.write(folder)
        return manifest
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
        sources=sources,
        settings=plan.describe_settings(),
        ledger=sifted.ledger,
        compression=choose_compression(plan.settings.compress),
        fields=fields,
    )
    manifest.write(folder)
    return manifest
