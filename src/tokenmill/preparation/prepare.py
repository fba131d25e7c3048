"""`prepare`: turn text into a dataset, in four stages that can each be interrupted.

    plan    inputs to parts
    grind   part to segment, in worker processes
    sift    which documents stay, and in which split
    pack    segments to shards, in worker processes

The bytes of the dataset depend only on the input and the settings, not on workers, memory or
interruptions. Finished work is found by its file names, so the same command resumes where the last
one stopped. The manifest is written last.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenmill.errors import InputError, UsageError
from tokenmill.preparation.engines import LocalEngine, available_cores
from tokenmill.preparation.folder import PreparationFolder
from tokenmill.preparation.part import Job
from tokenmill.preparation.plan import Part, make_plan
from tokenmill.preparation.settings import Settings
from tokenmill.preparation.stages import Stages
from tokenmill.progress import Watcher, watching
from tokenmill.sources.compression import USUAL_WINDOW
from tokenmill.sources.find import find_files, tell_passed_over
from tokenmill.sources.memory import machine_memory, most_held
from tokenmill.sources.read import LEAST_MEMORY
from tokenmill.sources.recognize import SourceFile
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.store.manifest import Manifest
from tokenmill.tokenizers import Tokenizer, load_tokenizer
from tokenmill.tokenizers.registry import check_picklable

MEMORY_A_WORKER = 288 << 20
_FAULTS = 20  # at most this many are listed


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `prepare` made."""

    path: Path
    manifest: Manifest
    was_finished: bool  # before this run, which then changed nothing
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
    `tokenmill.preparation.settings.Settings`. `memory` is the limit in bytes for all workers together.

    Progress is shown in terminals and notebooks. `progress=False` turns it off, and `progress=True`
    prints it elsewhere too. A `watcher` receives it instead.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("To be, or not to be.<|endoftext|>That is the question.")
    >>> report = prepare(folder / "a.txt", folder / "data", tokenizer="bytes", val_fraction=0)
    >>> report.manifest.splits["train"].documents, report.manifest.splits["train"].tokens
    (2, 43)
    """
    mill = Mill(
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
    with (
        explain_disk_errors(),
        PreparationFolder(Path(out), restart=restart) as folder,
        watching(watcher, progress) as shown,
    ):
        return mill.run(folder, shown)


class Mill:
    """A run that is planned: what to read, what to make of it, and with what."""

    def __init__(
        self,
        inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        out: str | os.PathLike[str],
        *,
        tokenizer: str | os.PathLike[str] | Tokenizer = "gpt2",
        workers: int | None = None,
        memory: int | None = None,
        **settings: Any,
    ) -> None:
        self.settings = Settings(**settings)
        if workers is not None and workers < 1:
            raise UsageError(f"`workers` is {workers}; it must be at least 1.")
        self.workers = workers or available_cores()
        self.memory = memory or self.workers * MEMORY_A_WORKER
        # Without a limit, a document that must be held whole may take half of the machine's memory.
        self.most = most_held((memory or max(self.memory, machine_memory() // 2)) // self.workers)
        if self.memory < self.workers * (128 << 20):
            need = "1 worker needs" if self.workers == 1 else f"{self.workers} workers need"
            raise UsageError(
                f"`memory` is {self.memory:,} bytes; {need} at least {self.workers * (128 << 20):,}. "
                "Give more, or use fewer `workers`."
            )
        if isinstance(inputs, (str, os.PathLike)):
            inputs = [inputs]
        self.tokenizer = load_tokenizer(tokenizer)
        check_picklable(self.tokenizer)
        self.dtype = _dtype(self.settings, self.tokenizer)
        if self.settings.eot != "none" and self.tokenizer.eot_id is None:
            raise UsageError(
                f"tokenizer {self.tokenizer.name} has no end-of-text token; use `eot='none'`."
            )
        sources, passed_over = find_files(inputs, leave_out=Path(out))
        if not self.settings.skip_bad_files:
            _refuse_faults(sources)
        self.plan = make_plan(sources, self.settings, self.tokenizer.fingerprint, passed_over)

    def run(self, folder: PreparationFolder, watcher: Watcher) -> Report:
        """Do what is left to do."""
        fingerprint = self.tokenizer.fingerprint
        manifest = folder.finished(self.plan, self.settings, fingerprint)
        done_before, read = len(self.plan.parts), 0
        if manifest is None:
            if self.plan.passed_over:
                watcher.note(f"Passed over: {tell_passed_over(self.plan.passed_over)}.")
            folder.remember_plan(self.plan, self.settings, fingerprint)
            stages = Stages(self, folder, watcher)
            manifest, done_before = stages.finish()
            read = stages.bytes_read
            was_finished = False
        else:
            was_finished = True
        folder.clean_up()
        return Report(
            path=folder.path,
            manifest=manifest,
            was_finished=was_finished,
            parts=len(self.plan.parts),
            parts_done_before=done_before,
            bytes_read=read,
        )

    def engine(self) -> LocalEngine:
        """The workers, each with its share of the memory."""
        engine = LocalEngine(min(self.workers, len(self.plan.parts)))
        engine.set_up(self.tokenizer, self.memory // self.workers)
        return engine

    def job(self, part: Part, folder: Path, **more: Any) -> Job:
        """What a worker needs to grind a part."""
        numbers = {piece.source for piece in part.pieces}
        return Job(
            **{"name": part.name, **more},
            pieces=part.pieces,
            sources={number: self.plan.sources[number] for number in numbers},
            settings=self.settings,
            step=self.plan.step,
            dtype=self.dtype,
            folder=folder,
            cuttable=self.tokenizer.cuttable,
            most=self.most,
            workers=self.workers,
            window=max(USUAL_WINDOW, self.memory // self.workers - LEAST_MEMORY),
        )


def _refuse_faults(sources: Sequence[SourceFile]) -> None:
    """Refuse files that are known to be bad, before any work is done."""
    faults = [f"  {source.path}: {source.fault}" for source in sources if source.fault]
    if faults:
        files = "1 file" if len(faults) == 1 else f"{len(faults):,} files"
        more = [f"  … and {len(faults) - _FAULTS:,} more"] if len(faults) > _FAULTS else []
        raise InputError(
            "\n".join(
                [
                    f"{files} cannot be read; nothing has been done yet:",
                    *faults[:_FAULTS],
                    *more,
                    "Repair or remove them and run again, or pass `skip_bad_files=True` to leave "
                    "them out.",
                ]
            )
        )


def _dtype(settings: Settings, tokenizer: Tokenizer) -> str:
    fits = tokenizer.vocab_size <= 1 << 16
    if settings.dtype == "uint16" and not fits:
        raise UsageError(
            f"ids of tokenizer {tokenizer.name} go up to {tokenizer.vocab_size - 1}, beyond uint16. "
            "Use `dtype='uint32'`, or omit it."
        )
    if settings.dtype == "auto":
        return "uint16" if fits else "uint32"
    return settings.dtype
