"""Inputs to parts: which files are read, in which order, and in which slices.

A part is a slice of the input that is processed alone. Its borders depend on the input only,
never on workers or memory. Planning looks at names and sizes, at Parquet footers, and at the
head of files whose name does not tell what they are; it reads no text.
"""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import xxhash

from tokenmill.errors import InputError
from tokenmill.mill.records import overlaps_itself
from tokenmill.mill.settings import Settings
from tokenmill.mill.sources import count_row_groups

__all__ = ["Part", "Piece", "Plan", "SourceFile", "find_files", "make_plan"]

PART_BYTES = 16 << 20
MOST_PARTS = 16_384  # of one input; beyond that parts grow, so that their files stay countable

_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
_KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
# Names taken as text unseen. Others in a folder are taken if their first bytes look like text.
_TEXT = frozenset(
    ".txt .text .md .markdown .rst .tex .log .csv .tsv .html .htm .xml .yaml .yml .toml .ini .cfg "
    ".py .pyi .ipynb .c .h .cc .cpp .cxx .hpp .hh .cu .rs .go .java .kt .scala .js .mjs .jsx .ts "
    ".tsx .rb .php .pl .pm .lua .r .jl .hs .ml .mli .clj .ex .exs .erl .swift .m .cs .fs .vb .sql "
    ".sh .bash .zsh .fish .ps1 .bat .tcl .el .lisp .scm .nim .zig .d .pas .f .f90 .adb .ads .v "
    ".vhd .s .asm .cmake .mk .css .scss .proto .po .srt .bib".split()
)


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One input file, and what tells whether it changed."""

    path: str
    kind: str  # "text", "jsonl", "parquet", or "array": one JSON array, which cannot be read
    compression: str | None
    size: int
    modified: int

    @property
    def unit(self) -> str:
        return "row" if self.kind == "parquet" else "byte"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A slice of one source: bytes, or row groups of a Parquet file."""

    source: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """Consecutive pieces that one worker processes alone. `name` follows from all that decides
    what the part becomes, so a segment of that name is that part's."""

    name: str
    pieces: tuple[Piece, ...]
    size: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All parts of an input, in input order."""

    sources: tuple[SourceFile, ...]
    parts: tuple[Part, ...]
    step: int
    passed_over: tuple[str, ...] = ()

    @cached_property
    def size(self) -> int:
        return sum(source.size for source in self.sources)

    @cached_property
    def name(self) -> str:
        """Equal for two plans exactly if they make the same dataset."""
        return xxhash.xxh3_128_hexdigest("\n".join(part.name for part in self.parts).encode())


def find_files(
    inputs: Sequence[str | os.PathLike[str]], *, leave_out: Path | None = None
) -> tuple[list[SourceFile], list[str]]:
    """The files that some paths, folders and globs stand for, in the given order.

    Folders are walked in the order of names, hidden entries and `leave_out` aside. Returns the
    sources, each once, and the paths in folders that were passed over because they are no text.
    """
    if not inputs:
        raise InputError("No input was given. Name at least one file, folder or glob.")
    found: dict[str, SourceFile] = {}
    passed_over: list[str] = []
    for path, named in _expand([os.fspath(item) for item in inputs], leave_out):
        real = os.path.realpath(path)
        if real in found:
            continue
        try:
            source = _look_at(path)
            path.encode()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from error
        except UnicodeEncodeError:
            raise InputError(f"The name {os.fsencode(path)!r} is no UTF-8. Rename it.") from None
        if not named and not _looks_like_text(source):
            passed_over.append(path)
            continue
        found[real] = source
    if not found:
        raise InputError(
            f"No text was found in {', '.join(map(str, inputs))}"
            + (f"; {len(passed_over)} files there are not text." if passed_over else ".")
        )
    return list(found.values()), passed_over


def _expand(inputs: Iterable[str], leave_out: Path | None) -> Iterator[tuple[str, bool]]:
    """Paths of files, and whether the user named that very file."""
    for item in inputs:
        path = Path(item)
        if os.path.isdir(item):  # noqa: PTH112  unlike Path's, no name is an error to it
            yield from ((found, False) for found in _walk(path, leave_out))
        elif os.path.isfile(item):  # noqa: PTH113
            yield item, True
        elif glob.has_magic(item):
            matches = sorted(glob.glob(item, recursive=True))
            if not matches:
                raise InputError(f"Nothing matches {item!r}.")
            for match in matches:
                if Path(match).is_dir():
                    yield from ((found, False) for found in _walk(Path(match), leave_out))
                elif Path(match).is_file():
                    yield match, False
        elif os.path.exists(item):  # noqa: PTH110
            raise InputError(f"{item} is neither a file nor a folder.")
        else:
            near = difflib.get_close_matches(path.name, _names_in(path.parent), 1)
            hint = f" Did you mean {path.parent / near[0]}?" if near else ""
            raise InputError(f"There is no file or folder {item}.{hint}")


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _walk(folder: Path, leave_out: Path | None) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise InputError(f"The folder {error.filename} cannot be read: {error.strerror}.")

    for here, folders, files in os.walk(folder, onerror=fail):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and (leave_out is None or not _same(Path(here) / name, leave_out))
        )
        for name in sorted(files):
            path = Path(here) / name
            if not name.startswith(".") and path.is_file():
                yield str(path)


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)


def _look_at(path: str) -> SourceFile:
    stat = Path(path).stat()
    plain, suffix = os.path.splitext(path)
    compression = _COMPRESSIONS.get(suffix.lower())
    inner = os.path.splitext(plain if compression else path)[1].lower()
    kind = _KINDS.get(inner, "text")
    if kind == "parquet" and compression:
        kind = "text"
    source = SourceFile(
        path=path,
        kind=kind,
        compression=compression,
        size=stat.st_size,
        modified=stat.st_mtime_ns,
    )
    if inner == ".json" and not compression:
        return _judge_json(source)
    return source


def _judge_json(source: SourceFile) -> SourceFile:
    """A `.json` file may be JSON lines, or one document of JSON over many lines."""
    try:
        with Path(source.path).open("rb") as file:
            head = file.read(1 << 16).lstrip()
    except OSError:
        return source  # let the run name it
    line, _, more = head.partition(b"\n")
    if head.startswith(b"[") and not _parses(line):
        return SourceFile(**{**asdict(source), "kind": "array"})
    if head.startswith(b"{") and more and not _parses(line):
        return SourceFile(**{**asdict(source), "kind": "text"})
    return source


def _parses(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _looks_like_text(source: SourceFile) -> bool:
    plain = source.path[: -len(".xx")] if source.compression else source.path
    suffix = os.path.splitext(plain)[1].lower()
    if source.compression or source.kind != "text" or suffix in _TEXT:
        return True
    try:
        with Path(source.path).open("rb") as file:
            head = file.read(8192)
    except OSError:
        return True  # let the run name it
    if b"\0" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 4 and len(head) == 8192
    return True


def make_plan(
    sources: Sequence[SourceFile],
    settings: Settings,
    fingerprint: str,
    passed_over: Sequence[str] = (),
) -> Plan:
    """Cut the sources into parts.

    A plain file is cut into ranges of bytes, a Parquet file into runs of row groups; a compressed
    file is one part. Small plain files share a part.
    """
    total = sum(source.size for source in sources)
    step = PART_BYTES * max(1, -(-total // (PART_BYTES * MOST_PARTS)))
    separator = settings.separator
    parts: list[Part] = []
    group: list[Piece] = []
    held = 0
    # What decides a segment's bytes beside its pieces; the split is decided later, and a segment
    # says itself which files it was made without.
    context = {
        "tokenizer": fingerprint,
        "settings": {
            name: value
            for name, value in settings.to_json().items()
            if name not in ("val_fraction", "tokens_per_shard", "skip_bad_files")
        },
    }

    def add(pieces: Iterable[Piece], size: int) -> None:
        pieces = tuple(pieces)
        facts = [asdict(sources[piece.source]) | asdict(piece) for piece in pieces]
        told = orjson.dumps([context, step, facts], option=orjson.OPT_SORT_KEYS)
        parts.append(Part(name=xxhash.xxh3_128_hexdigest(told), pieces=pieces, size=size))

    def flush() -> None:
        nonlocal held
        if group:
            add(group, held)
            group.clear()
            held = 0

    for number, source in enumerate(sources):
        whole = Piece(source=number, start=0, end=source.size)
        if source.compression or source.kind == "parquet":
            flush()
            pieces = _row_group_pieces(number, source, step) if source.kind == "parquet" else []
            for piece in pieces or [whole]:
                add([piece], max(1, source.size // max(1, len(pieces))))
            continue
        if held and held + source.size > step:
            flush()
        can_be_cut = not (source.kind == "text" and separator and overlaps_itself(separator))
        if source.size > step and can_be_cut:
            for start in range(0, source.size, step):
                end = min(start + step, source.size)
                add([Piece(source=number, start=start, end=end)], end - start)
            continue
        group.append(whole)
        held += source.size
    flush()
    return Plan(
        sources=tuple(sources), parts=tuple(parts), step=step, passed_over=tuple(passed_over)
    )


def _row_group_pieces(number: int, source: SourceFile, step: int) -> list[Piece]:
    pieces: list[Piece] = []
    start = held = 0
    sizes = count_row_groups(source.path)
    for index, size in enumerate(sizes):
        if held and held + size > step:
            pieces.append(Piece(source=number, start=start, end=index))
            start, held = index, 0
        held += size
    if sizes:
        pieces.append(Piece(source=number, start=start, end=len(sizes)))
    return pieces


def plan_record(plan: Plan, settings: Settings, fingerprint: str) -> dict[str, Any]:
    """What a run remembers of its plan, to notice changes when it goes on."""
    return {
        "settings": settings.to_json(),
        "tokenizer": fingerprint,
        "sources": [asdict(source) for source in plan.sources],
    }
