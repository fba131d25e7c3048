"""Inputs to files: which files some paths, folders and globs stand for, and as what each is read.

Nothing is left out in silence: what a folder holds beside text is passed over and told, with the
reason. A file that the user named is read whatever it holds, unless it cannot be text at all.
Costs a look at each name, and at the head of files whose name does not tell what they are.
"""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from tokenmill.errors import InputError
from tokenmill.hub.address import is_address
from tokenmill.store.manifest import MANIFEST_NAME
from tokenmill.store.text import HEAD, looks_like_text

__all__ = ["PassedOver", "SourceFile", "find_files", "tell_passed_over"]

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
_ARCHIVES = frozenset(
    ".tar .tgz .tbz .tbz2 .txz .tzst .zip .7z .rar .jar .whl .cpio .deb .rpm .cab .iso".split()
)
_REASONS = {  # for passing over one, and several
    "no text": ("that is no text", "that are no text"),
    "an archive": ("archive", "archives"),
    "a finished dataset": ("finished dataset", "finished datasets"),
    "a link to a folder": ("link to a folder", "links to folders"),
}


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
class PassedOver:
    """Something in a folder, or among the matches of a glob, that is not read."""

    path: str
    reason: str

    def __str__(self) -> str:
        return self.path if self.reason == "no text" else f"{self.path} ({self.reason})"


def tell_passed_over(passed_over: Sequence[PassedOver], *, examples: bool = True) -> str:
    """How many of each kind were passed over, and one of them.

    >>> some = [PassedOver(path=name, reason="no text") for name in ("a.png", "b.png")]
    >>> tell_passed_over([*some, PassedOver(path="c.zip", reason="an archive")])
    '2 that are no text (such as a.png), 1 archive (c.zip)'
    """
    told = []
    for reason, (one, several) in _REASONS.items():
        paths = [entry.path for entry in passed_over if entry.reason == reason]
        if paths:
            example = f" ({'such as ' if len(paths) > 1 else ''}{paths[0]})" if examples else ""
            told.append(f"{len(paths):,} {one if len(paths) == 1 else several}{example}")
    return ", ".join(told)


def find_files(
    inputs: Sequence[str | os.PathLike[str]], *, leave_out: Path | None = None
) -> tuple[list[SourceFile], list[PassedOver]]:
    """The files that some paths, folders and globs stand for, in the given order.

    Folders are walked in the order of names, hidden entries and `leave_out` aside. Returns the
    sources, each once, and what was passed over: files that are no text, archives, datasets, and
    links to folders, which could lead in circles. Inputs that are such links are followed.
    """
    if not inputs:
        raise InputError("No input was given. Name at least one file, folder or glob.")
    found: dict[str, SourceFile] = {}
    folders: dict[str, str] = {}
    passed_over: list[PassedOver] = []
    paths = _expand([os.fspath(item) for item in inputs], leave_out, passed_over)
    for path, named in paths:
        real = _real_path(path, folders)
        if real in found:
            continue
        try:
            source = _look_at(path)
            path.encode()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from error
        except UnicodeEncodeError:
            raise InputError(f"The name {os.fsencode(path)!r} is no UTF-8. Rename it.") from None
        if named and _is_archive(path):
            raise InputError(f"{path} is an archive. Unpack it and name the folder that it makes.")
        if not named and not _looks_like_text(source):
            reason = "an archive" if _is_archive(path) else "no text"
            passed_over.append(PassedOver(path=path, reason=reason))
            continue
        found[real] = source
    if not found:
        raise InputError(
            f"No text was found in {', '.join(map(str, inputs))}"
            + (f"; passed over: {tell_passed_over(passed_over)}." if passed_over else ".")
        )
    return list(found.values()), passed_over


def _expand(
    inputs: Iterable[str], leave_out: Path | None, passed_over: list[PassedOver]
) -> Iterator[tuple[str, bool]]:
    """Paths of files, and whether the user named that very file."""
    for item in inputs:
        path = Path(item)
        if is_address(item):
            from tokenmill.hub.cache import find_cached_files

            yield from ((str(found), True) for found in find_cached_files(item))
        elif os.path.isdir(item):  # noqa: PTH112  unlike Path's, no name is an error to it
            if _is_dataset(path):
                raise InputError(
                    f"{item} is a finished dataset, not text. Look at it with tokenmill info, and "
                    "name the text that it was made of."
                )
            yield from _walk(path, leave_out, passed_over)
        elif os.path.isfile(item):  # noqa: PTH113
            yield item, True
        elif glob.has_magic(item):
            matches = sorted(glob.glob(item, recursive=True))
            if not matches:
                raise InputError(f"Nothing matches {item!r}.")
            for match in matches:
                if Path(match).is_dir():
                    if not _is_left_out(Path(match), leave_out, passed_over):
                        yield from _walk(Path(match), leave_out, passed_over)
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


def _walk(
    folder: Path, leave_out: Path | None, passed_over: list[PassedOver]
) -> Iterator[tuple[str, bool]]:
    def fail(error: OSError) -> None:
        raise InputError(f"The folder {error.filename} cannot be read: {error.strerror}.")

    for here, folders, files in os.walk(folder, onerror=fail):
        inside = [Path(here) / name for name in sorted(folders) if not name.startswith(".")]
        links = [path for path in inside if path.is_symlink()]
        passed_over += [PassedOver(path=str(path), reason="a link to a folder") for path in links]
        folders[:] = [
            path.name
            for path in inside
            if path not in links and not _is_left_out(path, leave_out, passed_over)
        ]
        # Strings, because a Path per file would take most of the time of a walk.
        prefix = str(Path(here) / "x")[:-1]
        for name in sorted(files):
            if not name.startswith(".") and os.path.isfile(prefix + name):  # noqa: PTH113
                yield prefix + name, False


def _is_left_out(folder: Path, leave_out: Path | None, passed_over: list[PassedOver]) -> bool:
    if leave_out is not None and _same(folder, leave_out):
        return True
    if _is_dataset(folder):
        passed_over.append(PassedOver(path=str(folder), reason="a finished dataset"))
        return True
    return False


def _is_dataset(folder: Path) -> bool:
    # Unlike Path's, a folder without permission is no error to it; walking it says more.
    return os.path.isfile(folder / MANIFEST_NAME)  # noqa: PTH113


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)


def _real_path(path: str, folders: dict[str, str]) -> str:
    """`os.path.realpath`, which looks at all folders above a file, but once per folder."""
    if os.path.islink(path):  # noqa: PTH114
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    if folder not in folders:
        folders[folder] = os.path.realpath(folder)
    return os.path.join(folders[folder], name)  # noqa: PTH118


def _look_at(path: str) -> SourceFile:
    stat = os.stat(path)  # noqa: PTH116
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


def _is_archive(path: str) -> bool:
    plain, suffix = os.path.splitext(path.lower())
    return suffix in _ARCHIVES or (suffix in _COMPRESSIONS and plain.endswith(".tar"))


def _looks_like_text(source: SourceFile) -> bool:
    if _is_archive(source.path):
        return False
    plain = source.path[: -len(".xx")] if source.compression else source.path
    suffix = os.path.splitext(plain)[1].lower()
    if source.compression or source.kind != "text" or suffix in _TEXT:
        return True
    try:
        with Path(source.path).open("rb") as file:
            head = file.read(HEAD)
    except OSError:
        return True  # let the run name it
    return looks_like_text(head)
