"""`tokenmill prepare`: make a dataset from text files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from cyclopts import Group, Parameter

from tokenmill.cli.console import (
    Display,
    parse_size,
    report_stopped,
    show,
    show_next,
    show_table,
    typed,
)
from tokenmill.cli.flags import list_flags, name_flags
from tokenmill.cli.opening import parse_path, parse_paths
from tokenmill.errors import UsageError
from tokenmill.preparation.plan import Plan, make_plan
from tokenmill.preparation.prepare import Report
from tokenmill.preparation.prepare import prepare as prepare_dataset
from tokenmill.preparation.preview import Preview
from tokenmill.preparation.settings import PrepareSettings
from tokenmill.sources.files import STANDARD_INPUT
from tokenmill.sources.find import describe_passed_over
from tokenmill.storage.folder import storage_for
from tokenmill.storage.names import (
    CONTAMINATED_NAME,
    DROPPED_NAME,
    EXCLUDED_NAME,
    REJECTED_NAME,
    REMOVED_NAME,
    REPAIRED_NAME,
)
from tokenmill.store.manifest import DOCUMENT_DTYPE
from tokenmill.tokenizers import load_tokenizer
from tokenmill.wording import count, counted, duration, one_line, size

_CONTENT = Group("What the dataset contains", sort_key=1)
_WORK = Group("How the work is done", sort_key=2)
_FAULTS = 20  # maximum number of faults listed
_EXAMPLE = 40  # characters of the text of an example
_LANGUAGES = 10  # maximum number of languages listed
_LIST = Parameter(negative="", show_default=False)
_LISTS = (
    ("Excluded documents are listed in", EXCLUDED_NAME),
    ("Near duplicates are listed in", REMOVED_NAME),
    ("Evaluation texts that were found are listed in", CONTAMINATED_NAME),
    ("Examples of filtered documents are in", DROPPED_NAME),
    ("Rejected records are listed in", REJECTED_NAME),
)


class _GivenSettings(PrepareSettings):
    __doc__ = PrepareSettings.__doc__

    filter: Annotated[tuple[str, ...], _LIST]
    language: Annotated[tuple[str, ...], _LIST]
    weight: Annotated[tuple[str, ...], _LIST]
    keep_fields: Annotated[str, Parameter(show_default=False)]

    def __new__(cls, **given: Any) -> Self:
        made = super().__new__(cls)
        made.__dict__["_given"] = given
        return made

    @property
    def given(self) -> dict[str, Any]:
        """Only the settings that were given, by name."""
        given: dict[str, Any] = self.__dict__["_given"]
        return given


def prepare(
    *inputs: Annotated[
        str, Parameter(name="INPUT", required=True, json_list=False, allow_leading_hyphen=True)
    ],
    out: Annotated[Path | None, Parameter(group=_WORK, converter=parse_path)] = None,
    append: Annotated[bool, Parameter(negative="", group=_WORK)] = False,
    tokenizer: Annotated[str | None, Parameter(group=_CONTENT)] = None,
    scheme: Annotated[str | None, Parameter(group=_CONTENT)] = None,
    settings: Annotated[
        _GivenSettings | None, Parameter(name="*", group=_CONTENT, negative_iterable="")
    ] = None,
    exclude: Annotated[
        tuple[Path, ...] | None,
        Parameter(group=_CONTENT, converter=parse_paths, negative="--no-exclude"),
    ] = None,
    decontaminate: Annotated[
        tuple[Path, ...],
        Parameter(
            group=_CONTENT,
            converter=parse_paths,
            negative="",
            consume_multiple=True,
            show_default=False,
        ),
    ] = (),
    workers: Annotated[int | None, Parameter(group=_WORK)] = None,
    memory: Annotated[str | None, Parameter(group=_WORK)] = None,
    work: Annotated[Path | None, Parameter(group=_WORK)] = None,
    engine: Annotated[Literal["local", "ray"], Parameter(group=_WORK)] = "local",
    ray_address: Annotated[str | None, Parameter(group=_WORK)] = None,
    restart: Annotated[bool, Parameter(negative="", group=_WORK)] = False,
    dry_run: Annotated[bool, Parameter(negative="", group=_WORK)] = False,
) -> int:
    """Make a dataset from text files: clean the text, remove duplicates, tokenize, and write shards.

    To resume after an interruption, run the same command again. Interruptions and the number of
    workers do not change the dataset.

    Parameters
    ----------
    inputs
        Files, folders or globs to read: plain text, source code, JSON, CSV, Parquet, Arrow or tar
        archives of texts. Files may be compressed (.gz, .zst, .bz2, .xz). - is standard input.
    out
        Folder for the dataset. Must be new or empty, unless you are resuming. Required, except
        with --dry-run.
    append
        Add documents to the finished dataset in the --out folder, with its settings. Documents that
        it has already are dropped. To read it as it was before, pass generation=1 to
        tokenmill.open; runs that train on it continue with their rows.
    tokenizer
        Tokenizer: gpt2 (the default), bytes, a tokenizer.json, .tiktoken or .model file, or
        organisation/name on the Hugging Face Hub.
    scheme
        Rule for splitting text into words before tokenization, such as cl100k. Needed only for a
        .tiktoken file, unless the file has a published name such as cl100k_base.tiktoken.
    exclude
        List of documents to leave out, as `tokenmill exclude` makes it. May be repeated. The list
        of the --out folder is used in any case. --no-exclude keeps all documents.
    decontaminate
        Files of evaluation texts, or datasets. Documents that contain one of the texts are dropped;
        see --decontaminate-action.
    workers
        Number of worker processes. By default, one per core.
    memory
        Memory limit for all workers together, such as 2GB. By default, 288MiB per worker.
    work
        Folder for unfinished work, if --out is in an object store. By default,
        ~/.cache/tokenmill/work; with --engine ray, .work in the object store.
    engine
        Where the workers run: on this machine (local) or on a Ray cluster (ray).
    ray_address
        Address of the Ray cluster. By default, the cluster that runs on this machine.
    restart
        Discard the results of earlier runs in the --out folder, and start over.
    dry_run
        Only estimate tokens, time and disk space from a sample of the input. Write nothing.
    """
    _refuse_options(inputs)
    if out is None and not dry_run:
        raise UsageError("Name the folder for the dataset: --out DIR.")
    folder = out or Path("dataset")
    chosen = settings.given if settings else {}
    limit = parse_size(memory) if memory else None
    loaded = None
    if tokenizer is not None or scheme is not None or not append:
        loaded = load_tokenizer(tokenizer or "gpt2", scheme=scheme)
    if dry_run:
        plan = make_plan(
            inputs,
            folder,
            tokenizer=loaded,
            append=append,
            workers=workers,
            memory=limit,
            exclude=exclude,
            decontaminate=decontaminate,
            **chosen,
        )
        _show_estimate(plan)
        return 0
    return prepare_and_show(
        inputs,
        folder,
        tokenizer=loaded,
        append=append,
        exclude=exclude,
        decontaminate=decontaminate,
        workers=workers,
        memory=limit,
        work=work,
        engine=engine,
        ray_address=ray_address,
        restart=restart,
        **chosen,
    )


def _refuse_options(inputs: Sequence[str]) -> None:
    """Refuse unknown options. They arrive as inputs, because the input `-` is allowed."""
    for name in inputs:
        if name.startswith("-") and name != STANDARD_INPUT and not os.path.lexists(name):
            near = get_close_matches(name.partition("=")[0], list_flags(), n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UsageError(f"Unknown option: {name}.{hint}\nSee tokenmill prepare --help.")


def prepare_and_show(inputs: Sequence[str], folder: str | Path, **options: Any) -> int:
    """Run `tokenmill.prepare` with progress, print a summary, and return the exit status."""
    started = time.monotonic()
    try:
        with Display() as display:
            report = prepare_dataset(inputs, folder, watcher=display, **options)
    except KeyboardInterrupt:
        return report_stopped(f"in {folder}")
    show_report(report, time.monotonic() - started)
    return 0


def show_report(report: Report, seconds: float) -> None:
    """Print a summary of the dataset, and the next commands."""
    here = typed(report.path)
    manifest, ledger = report.manifest, report.manifest.ledger
    if report.was_finished:
        show(
            f"{report.path} is already finished; nothing was changed."
            if report.added_documents is None
            else f"{report.path} has this input already; nothing was changed."
        )
    elif report.added_documents:
        added = counted(report.added_documents, "document")
        show(f"Added {added}: {report.path} is now generation {manifest.generation}.")
    width = 2 if manifest.dtype == "uint16" else 4
    show_table(
        None,
        ("split", "tokens", "documents", "shards", "size"),
        [
            (
                name,
                count(split.tokens),
                count(split.documents),
                count(len(split.shards)),
                size(
                    int(split.shards.measure_files(width).sum())
                    + split.documents * DOCUMENT_DTYPE.itemsize
                ),
            )
            for name, split in manifest.splits.items()
        ],
    )
    show("")
    show(
        f"Documents: {count(ledger['documents_in'])} in, {count(ledger['documents_kept'])} kept"
        + "".join(
            f", {count(entry['documents'])} dropped ({reason})"
            for reason, entry in ledger["dropped"].items()
        )
        + "."
    )
    if ledger["duplicate_lines"]:
        show(f"Lines: {counted(ledger['duplicate_lines'], 'repeated line')} removed.")
    _show_counts(ledger.get("counts", {}))
    if ledger["repaired_documents"]:
        _show_repairs(report)
    for entry in ledger["set_aside"]:
        show(f"Skipped: {one_line(entry['source'])}: {one_line(name_flags(entry['reason']))}.")
    for what, name in _LISTS:
        for file in manifest.list_files(name):
            if (report.path / file).exists():
                show(f"{what} {report.path / file}.")
    _show_unfound(ledger.get("evaluation", {}))
    per_token = ledger["characters"] / max(1, ledger["tokens"])
    rate = report.bytes_read / max(1e-9, seconds)
    totals = f"{per_token:.2f} characters a token; {size(_disk(report))} on disk"
    show(totals + ("." if report.was_finished else f"; {duration(seconds)}, {size(rate)}/s."))
    if not manifest.splits["train"].tokens:
        show(
            "The training split is empty: all documents went to validation.\n"
            "See --documents and --val-fraction."
        )
    if not manifest.splits["val"].tokens and manifest.settings["val_fraction"]:
        show(
            "The validation split is empty, because there are too few documents.\n"
            "See --documents and --val-fraction."
        )
    commands = ["info", "peek", "train"] if manifest.splits["train"].tokens else ["info", "peek"]
    show_next(*(f"tokenmill {command} {here}" for command in commands))


def _show_unfound(evaluation: dict[str, int]) -> None:
    """Print how many evaluation texts cannot be found, and why."""
    if too_short := evaluation.get("too_short"):
        show(f"Not looked for: {counted(too_short, 'evaluation text')}, too short.")
    if templates := evaluation.get("templates"):
        show(
            f"Not looked for: {counted(templates, 'evaluation text')} of which all words in a row are in "
            "many others."
        )


def _show_repairs(report: Report) -> None:
    ledger = report.manifest.ledger
    repaired = counted(ledger["repaired_documents"], "document")
    files = [report.path / name for name in report.manifest.list_files(REPAIRED_NAME)]
    listed = ", ".join(str(file) for file in files if file.exists())
    see = f": see {listed}" if listed else ""
    show(f"Repaired: {repaired} had invalid UTF-8{see}.")
    others = ledger.get("other_encodings", {"files": 0, "examples": []})
    for entry in others["examples"]:
        share = entry["replaced_bytes"] / max(1, entry["bytes"])
        guess = entry["encoding"]
        cure = (
            f"; it looks like {guess}: convert it with iconv -f {guess} -t UTF-8" if guess else ""
        )
        cure += f", or pass --encoding {guess} if all files are" if guess else ""
        show(f"Not UTF-8: {one_line(entry['source'])}: {share:.1%} of its text was replaced{cure}.")
    if others["files"] > len(others["examples"]):
        show(
            f"… and {count(others['files'] - len(others['examples']))} more files that are not UTF-8."
        )


def _disk(report: Report) -> int:
    return sum(entry.size for entry in storage_for(report.path).list())


def _show_estimate(plan: Plan) -> None:
    from tokenmill.preparation.estimate import estimate

    found = estimate(plan)
    rows = {
        "files": count(found.files)
        + (
            f" ({describe_passed_over(found.passed_over, examples=False)} passed over)"
            if found.passed_over
            else ""
        ),
        "input": size(found.bytes),
        "parts": count(found.parts),
        "tokens": f"about {count(found.tokens)}",
        "documents": f"about {count(found.documents)}, before deduplication"
        + (" and filters" if found.preview is not None else ""),
        "disk": f"about {size(found.disk)}, and {size(found.disk_while_working)} more while working",
        "memory": f"at most {size(found.memory)}",
        "time": f"about {duration(found.seconds)} with {counted(found.workers, 'worker')}",
    }
    for name, text in rows.items():
        show(f"{name:<10} {text}")
    if found.passed_over:
        show(f"passed over: {describe_passed_over(found.passed_over)}")
    for note in plan.notes:
        show(name_flags(note))
    for fault in found.faults[:_FAULTS]:
        show(f"cannot be used: {name_flags(fault)}")
    if len(found.faults) > _FAULTS:
        show(f"… and {count(len(found.faults) - _FAULTS)} more files that cannot be used")
    if found.checked < found.files:
        show(f"Checked the first bytes of {count(found.checked)} of {count(found.files)} files.")
    if found.preview is not None:
        _show_preview(found.preview)
    show(f"\nMeasured on {size(found.sampled)} of text. Omit --dry-run to start.")


def _show_preview(preview: Preview) -> None:
    """Print what the filters would drop of the sample."""
    judged, total = max(1, preview.judged), max(1, preview.judged_bytes)
    show(
        f"\nThe filters would drop {count(preview.documents)} of {counted(preview.judged, 'document')}"
        f" ({preview.documents / judged:.1%}), {preview.bytes / total:.1%} of the text. Each rule alone:"
    )
    found = [reason for reason in preview.reasons if reason.documents]
    show_table(
        "",
        ["rule", "documents", "share", "of the text", "value", "example"],
        [
            (
                reason.name,
                count(reason.documents),
                f"{reason.documents / judged:.1%}",
                f"{reason.bytes / total:.1%}",
                f"{reason.value:.3g}" if isinstance(reason.value, float) else str(reason.value),
                one_line(reason.example[:_EXAMPLE]),
            )
            for reason in found
        ],
    )
    others = len(preview.reasons) - len(found)
    if others:
        show(f"{counted(others, 'rule')} would drop nothing of the sample.")
    _show_counts(preview.counts)


def _show_counts(counts: Mapping[str, int]) -> None:
    """Print what masks and filters counted, such as the documents of each language."""
    languages = {
        name.removeprefix("language "): number
        for name, number in counts.items()
        if name.startswith("language ")
    }
    if languages:
        total = sum(languages.values())
        often = sorted(languages.items(), key=lambda entry: (-entry[1], entry[0]))
        shares = ", ".join(f"{name} {number / total:.1%}" for name, number in often[:_LANGUAGES])
        more = f", and {len(often) - _LANGUAGES} others" if len(often) > _LANGUAGES else ""
        show(f"Languages: {shares}{more}.")
    rest = [
        f"{count(counts[name])} {name}"
        for name in sorted(counts)
        if not name.startswith("language ")
    ]
    if rest:
        show(f"Counted: {', '.join(rest)}.")
