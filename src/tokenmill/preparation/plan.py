"""Plan a run: check the settings, find the input, and divide it into parts.

A part is a slice of the input that is processed independently. Its borders depend only on the
input, never on workers or memory. Planning uses file sizes and Parquet footers, and takes about
5 µs per file. It reads text only if the name of a file does not show its format, and then only the
first bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
import xxhash

from tokenmill.contamination.evaluation import Matching, Paths, read_protected
from tokenmill.contamination.protected import Protected
from tokenmill.errors import InputError, UsageError
from tokenmill.preparation.base import (
    Base,
    check_described,
    inherit_settings,
    inherit_tokenizer,
    read_base,
)
from tokenmill.preparation.engine import available_cores
from tokenmill.preparation.exclusion import Exclude, Exclusions, choose_lists, read_exclusions
from tokenmill.preparation.judges import JudgeRecipe
from tokenmill.preparation.key_files import KeyLayout, choose_partitions
from tokenmill.preparation.memory import DEFAULT_SHARE, LEAST_SHARE, holdable_bytes, machine_memory
from tokenmill.preparation.plan_judges import describe_judges, plan_judges
from tokenmill.preparation.sampling import find_rates
from tokenmill.preparation.settings import PrepareSettings
from tokenmill.sources.csv_kind import choose_csv_kind, note_plain_csv
from tokenmill.sources.files import SourceFile
from tokenmill.sources.find import PassedOver, find_files
from tokenmill.sources.records import BLOCK, overlaps_itself
from tokenmill.sources.tables import measure_units
from tokenmill.sources.web_pages import describe_extractor
from tokenmill.storage.object_path import as_path
from tokenmill.tokenizers import Tokenizer, load_tokenizer
from tokenmill.tokenizers.registry import check_picklable
from tokenmill.wording import counted

_EXPANSION = 4  # assumed bytes of text per compressed byte
_LISTED_FAULTS = 20
_SEGMENT_FORMAT = 3  # a resumed run remakes segments that have another format

Inputs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is processed at once. The dataset does not depend on these; tests use small ones."""

    part_bytes: int = 16 << 20
    parts: int = 16_384  # at most; larger inputs have larger parts
    files_per_part: int = 4096  # opening so many takes as long as tokenizing some megabytes
    block_bytes: int = BLOCK  # read at once
    rows: int = 256  # of a Parquet file, decoded at once
    records: int = (4 << 20) // 64  # of a segment, read at once
    copied_tokens: int = 1 << 20
    partition_bytes: int = 256 << 20  # bytes of input for each partition of the keys
    run_keys: int = 1 << 19  # keys of a part to sort by partition at once
    sorted_keys: int | None = None  # None: as many as the memory allows


class SourceRange(NamedTuple):
    """A range of one source: bytes, row groups of a Parquet file or batches of an Arrow file."""

    source: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """A slice of the input: consecutive ranges of sources that one task processes.

    `name` is a hash of everything that decides the result of the task, which is a segment.
    """

    name: str
    ranges: tuple[SourceRange, ...]
    size: int

    @property
    def scan_name(self) -> str:
        """The name of the bundle (a set of files) that holds the keys of the part's lines."""
        return hash_names("lines", self.name)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The input, the settings and the resources of a run."""

    settings: PrepareSettings
    tokenizer: Tokenizer
    dtype: str
    sources: tuple[SourceFile, ...]
    passed_over: tuple[PassedOver, ...]
    parts: tuple[Part, ...]  # in input order
    step: int  # bytes between the nominal borders of parts in a file
    workers: int
    memory: int  # bytes for all workers together
    hold_limit: int  # bytes of one document that a worker may hold
    limits: Limits = field(default_factory=Limits)
    judges: tuple[JudgeRecipe, ...] = ()
    protected: Protected | None = None  # the evaluation texts to look for
    segment_context: str = ""  # decides the content of segments, besides the names of the parts
    common_ngrams: int = 0  # of the evaluation texts
    base: Base | None = None  # the dataset to add to; None to make a new one
    exclusions: Exclusions | None = None  # None if no document is to be left out
    are_lists_given: bool = False  # whether the user chose the lists, even if none
    notes: tuple[str, ...] = ()  # for the user, about the input

    @cached_property
    def size(self) -> int:
        """The size of all sources on disk, in bytes."""
        return sum(source.size for source in self.sources)

    @cached_property
    def rates(self) -> tuple[float, ...] | None:
        """The share of each source's documents that are in the sample; None if it has all documents."""
        return find_rates(self.settings, [source.path for source in self.sources])

    @cached_property
    def name(self) -> str:
        """A hash of everything that decides the content of the segments."""
        return hash_names(*(part.name for part in self.parts))

    @property
    def keys(self) -> KeyLayout:
        """The layout of the files that store the keys (hashes) of documents or lines."""
        return _choose_layout(self.size, self.limits, self.base)

    @property
    def share(self) -> int:
        """The memory of one worker, in bytes."""
        return self.memory // self.workers

    @property
    def choice_names(self) -> list[str]:
        """Checksums of the keys to leave out and of the dataset to add to.

        They are part of the names of what depends on them.
        """
        excluded = [self.exclusions.keys.checksum] if self.exclusions else []
        return [*excluded, *([self.base.checksum] if self.base else [])]

    def describe_settings(self) -> dict[str, Any]:
        """Return the settings as the manifest stores them."""
        excluded = {"exclude": self.exclusions.describe()} if self.exclusions else {}
        protected = {"decontaminate": self.protected.describe()} if self.protected else {}
        settings = {**self.settings.to_json(), **describe_judges(self.judges)}
        return {**settings, **excluded, **protected}

    def record(self) -> dict[str, Any]:
        """Return the settings and input that must be the same when a run resumes."""
        base = self.base
        return {
            "settings": self.describe_settings(),
            "tokenizer": self.tokenizer.fingerprint,
            "sources": [source.describe() for source in self.sources],
            **({"generation": base.generation, "base": base.checksum} if base else {}),
        }


def hash_names(*names: str) -> str:
    """Return a new name: a hash of the given names."""
    return xxhash.xxh3_128_hexdigest("\n".join(names).encode())


def make_plan(
    inputs: Inputs,
    out: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | Tokenizer | None = None,
    append: bool = False,
    workers: int | None = None,
    memory: int | None = None,
    machine: int | None = None,
    limits: Limits | None = None,
    exclude: Exclude = None,
    standard_input: SourceFile | None = None,
    decontaminate: Paths | None = None,
    **settings: Any,
) -> Plan:
    """Check all arguments and plan a run. `settings` are the fields of `PrepareSettings`.

    `standard_input` is the copy of standard input, if `-` is among the inputs. With `append`, settings
    and tokenizer are those of the dataset in `out`. Otherwise, the default tokenizer is gpt2. `exclude`
    are lists of documents to leave out; None means the list of `out`. `decontaminate` are files of
    evaluation texts, or datasets. `machine` is the
    memory in bytes of all machines that do the work; None means this machine.
    """
    limits = limits or Limits()
    base = read_base(out) if append else None
    checked = inherit_settings(base, settings) if base else PrepareSettings(**settings)
    if workers is not None and workers < 1:
        raise UsageError(f"`workers` is {workers}; it must be at least 1.")
    workers = workers or available_cores()
    total = memory or workers * DEFAULT_SHARE
    if total < workers * LEAST_SHARE:
        need = "1 worker needs" if workers == 1 else f"{workers} workers need"
        raise UsageError(
            f"`memory` is {total:,} bytes; {need} at least {workers * LEAST_SHARE:,}. "
            "Give more `memory`, or use fewer `workers`."
        )
    if isinstance(inputs, (str, os.PathLike)):
        inputs = [inputs]
    if base is not None:
        tokenizer = inherit_tokenizer(base, out, tokenizer)
    else:
        tokenizer = load_tokenizer("gpt2" if tokenizer is None else tokenizer)
    check_picklable(tokenizer)
    dtype = base.manifest.dtype if base else _choose_dtype(checked, tokenizer)
    if checked.eot != "none" and tokenizer.eot_id is None:
        raise UsageError(f"tokenizer {tokenizer.name} has no end-of-text token; use `eot='none'`.")
    found, passed_over = find_files(inputs, leave_out=as_path(out), standard_input=standard_input)
    sources = [choose_csv_kind(source, checked.text_field, checked.csv) for source in found]
    if not checked.skip_bad_files:
        _refuse_faults(sources)
    lists = choose_lists(exclude, out)
    exclusions = read_exclusions(*lists) if lists else None
    protected = _read_evaluation(decontaminate, checked)
    available = machine_memory() if machine is None else machine
    # If the user set no limit, documents that must be held whole may take half of the memory.
    hold_limit = holdable_bytes((memory or max(total, available // 2)) // workers)
    judges = plan_judges(checked)
    described = describe_judges(judges)
    if protected:
        described["decontaminate"] = protected.describe()
    if base:
        check_described(base, described)
    parts, step = cut_into_parts(
        sources, checked, tokenizer.fingerprint, limits, hold_limit, described, base
    )
    plan = Plan(
        settings=checked,
        tokenizer=tokenizer,
        dtype=dtype,
        sources=tuple(sources),
        passed_over=tuple(passed_over),
        parts=parts,
        step=step,
        judges=judges,
        workers=workers,
        memory=total,
        hold_limit=hold_limit,
        limits=limits,
        protected=protected,
        base=base,
        exclusions=exclusions or None,
        are_lists_given=exclude is not None,
        notes=tuple(note_plain_csv(sources, checked.text_field) if checked.csv == "auto" else ()),
    )
    _ = plan.rates  # refuses patterns that match no source
    return plan


def _read_evaluation(paths: Paths | None, settings: PrepareSettings) -> Protected | None:
    """Read the evaluation texts of a run. None if there are none."""
    if not paths:
        changed = [name for name in settings.to_json() if name.startswith("decontaminate_")]
        if changed:
            raise UsageError(f"`{changed[0]}` needs evaluation texts: give `decontaminate=FILE`.")
        return None
    matching = Matching(
        size=settings.decontaminate_words,
        common=settings.decontaminate_common,
        field=settings.decontaminate_field,
        field_setting="decontaminate_field",
    )
    return read_protected(paths, matching)


def _choose_dtype(settings: PrepareSettings, tokenizer: Tokenizer) -> str:
    fits = tokenizer.vocab_size <= 1 << 16
    if settings.dtype == "uint16" and not fits:
        raise UsageError(
            f"ids of tokenizer {tokenizer.name} go up to {tokenizer.vocab_size - 1}, beyond uint16. "
            "Use `dtype='uint32'`, or omit `dtype`."
        )
    if settings.dtype == "auto":
        return "uint16" if fits else "uint32"
    return settings.dtype


def _refuse_faults(sources: Sequence[SourceFile]) -> None:
    """Raise `InputError` if files are already known to be bad, before any work is done."""
    faults = [f"  {source.path}: {source.fault}" for source in sources if source.fault]
    if faults:
        hidden = len(faults) - _LISTED_FAULTS
        lines = [
            f"{counted(len(faults), 'file')} cannot be read; nothing has been done yet:",
            *faults[:_LISTED_FAULTS],
            *([f"  … and {hidden:,} more"] if hidden > 0 else []),
            "Repair or remove them and run again, or pass `skip_bad_files=True` to skip them.",
        ]
        raise InputError("\n".join(lines))


def cut_into_parts(
    sources: Sequence[SourceFile],
    settings: PrepareSettings,
    fingerprint: str,
    limits: Limits,
    hold_limit: int,
    judges: Mapping[str, Any] = MappingProxyType({}),
    base: Base | None = None,
) -> tuple[tuple[Part, ...], int]:
    """Divide the sources into parts. Returns the parts, and the bytes from one cut to the next.

    `judges` says what decides the verdicts of the judges besides the settings. A plain file is cut at
    the multiples of this number, a Parquet file between row groups, an Arrow file between record
    batches; a compressed file, an archive, a JSON array or a CSV file is not cut. Small files of any
    kind share a part.
    """
    total = sum(source.size for source in sources)
    step = limits.part_bytes * max(1, -(-total // (limits.part_bytes * limits.parts)))
    most_files = max(limits.files_per_part, -(-len(sources) // limits.parts))
    separator = settings.separator
    text_can_be_cut = not (separator and overlaps_itself(separator))
    parts: list[Part] = []
    group: list[SourceRange] = []
    text_bytes = disk_bytes = 0  # the sizes of the group; text_bytes is an estimate
    # Everything besides its ranges that decides the content of a segment. Three settings do not
    # decide it: splits and shards are made later, and a segment's receipt lists the files that were
    # skipped.
    context: dict[str, Any] = {
        "format": _SEGMENT_FORMAT,
        "keys": vars(_choose_layout(total, limits, base)),
        "tokenizer": fingerprint,
        "settings": {
            name: value
            for name, value in {**settings.to_json(), **judges}.items()
            if name not in ("val_fraction", "tokens_per_shard", "skip_bad_files")
        },
    }

    if any(source.kind == "warc" for source in sources):
        context["extractor"] = describe_extractor()

    def add(ranges: Iterable[SourceRange], size: int) -> None:
        ranges = tuple(ranges)
        facts = [sources[one.source].describe() | one._asdict() for one in ranges]
        content = orjson.dumps([context, step, facts], option=orjson.OPT_SORT_KEYS)
        parts.append(Part(name=xxhash.xxh3_128_hexdigest(content), ranges=ranges, size=size))

    def flush() -> None:
        nonlocal text_bytes, disk_bytes
        if group:
            add(group, disk_bytes)
            group.clear()
            text_bytes = disk_bytes = 0

    for number, source in enumerate(sources):
        is_whole = settings.converts and source.unit == "byte"
        most = source.size if is_whole else step
        ranges, weight = _cut(number, source, most, hold_limit, text_can_be_cut)
        if group and (text_bytes + weight > step or len(group) >= most_files):
            flush()
        if weight <= step and len(ranges) == 1:
            group += ranges
            text_bytes += weight
            disk_bytes += source.size
            continue
        for index, one in enumerate(ranges):
            share = source.size * (index + 1) // len(ranges) - source.size * index // len(ranges)
            plain = source.unit != "row" and not source.is_stream
            add([one], one.end - one.start if plain else share)
    flush()
    return tuple(parts), step


def _choose_layout(size: int, limits: Limits, base: Base | None) -> KeyLayout:
    size += base.text_bytes if base else 0  # the keys of its documents are compared, too
    partitions = choose_partitions(size, limits.partition_bytes)
    return KeyLayout(partitions=partitions, run_keys=limits.run_keys)


def _cut(
    number: int, source: SourceFile, step: int, hold_limit: int, text_can_be_cut: bool
) -> tuple[list[SourceRange], int]:
    """Return the ranges of a source, and an estimate of how many bytes of text the source has."""
    if source.unit == "row":
        return _unit_ranges(number, source, step, hold_limit)
    if source.is_stream:
        size = source.size * _EXPANSION if source.compression else source.size
        return [SourceRange(number, 0, source.size)], size
    if source.size > step and (source.kind != "text" or text_can_be_cut):
        starts = range(0, source.size, step)
        return [SourceRange(number, at, min(at + step, source.size)) for at in starts], source.size
    return [SourceRange(number, 0, source.size)], source.size


def _unit_ranges(
    number: int, source: SourceFile, step: int, hold_limit: int
) -> tuple[list[SourceRange], int]:
    """Return ranges of row groups or batches, each about a part's size, and the bytes in all."""
    ranges: list[SourceRange] = []
    start = held = 0
    sizes = measure_units(source, hold_limit)
    if not sizes:
        return [SourceRange(number, 0, source.size)], source.size
    for index, size in enumerate(sizes):
        if held and held + size > step:
            ranges.append(SourceRange(number, start, index))
            start, held = index, 0
        held += size
    return [*ranges, SourceRange(number, start, len(sizes))], sum(sizes)
