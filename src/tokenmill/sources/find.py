"""Find the input files for a list of paths, folders and globs, and how to read each.

Nothing is skipped silently. Files in a folder that are not text are passed over and counted, with
the reason. Files that should be text but cannot be read, such as broken links, are returned with
their fault. A file that the user names is read even if it does not look like text; only archives and
compressed Parquet are refused.

A folder may be untrusted, so a link in it is not followed out of the folder. A link that the user
names, or that a glob matches, is followed.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenmill.errors import InputError
from tokenmill.hub.paths import is_hub_path
from tokenmill.sources.files import STANDARD_INPUT, SourceFile, is_about_process, name_source
from tokenmill.sources.objects import find_input_objects
from tokenmill.sources.recognize import NOT_TEXT, is_archive, recognize, why_not_text
from tokenmill.storage.addresses import is_address
from tokenmill.storage.names import MANIFEST_NAME
from tokenmill.storage.object_path import as_object, as_path
from tokenmill.storage.reading import find_near

_SPECIAL = "a pipe, socket or device"
_OUTSIDE = "a link that leads out of its folder"
_NO_STANDARD_INPUT = (
    "Standard input (-) can only be read by a run of prepare on this machine. Name a file here. A file "
    "that is called - is ./-"
)
_FOLLOW = " Links are followed if you name them, for example with a glob: 'FOLDER/*'."
_REASONS = {  # the reason for one item, and for several
    NOT_TEXT: ("file that is not text", "files that are not text"),
    "an archive": ("archive", "archives"),
    "compressed Parquet": ("compressed Parquet file", "compressed Parquet files"),
    "compressed Arrow": ("compressed Arrow file", "compressed Arrow files"),
    "a list of excluded documents": (
        "list of excluded documents",
        "lists of excluded documents",
    ),
    "a finished dataset": ("finished dataset", "finished datasets"),
    "a link to a folder": ("link to a folder", "links to folders"),
    _OUTSIDE: ("link that leads out of its folder", "links that lead out of their folder"),
    _SPECIAL: ("pipe, socket or device", "pipes, sockets or devices"),
}


@dataclass(frozen=True, kw_only=True)
class PassedOver:
    """An entry of a folder, or a match of a glob, that is not read."""

    path: str
    reason: str

    def __str__(self) -> str:
        return self.path if self.reason == NOT_TEXT else f"{self.path} ({self.reason})"


def describe_passed_over(passed_over: Sequence[PassedOver], *, examples: bool = True) -> str:
    """Describe what was passed over: how many of each kind, with an example.

    >>> some = [PassedOver(path=name, reason="not text") for name in ("a.png", "b.png")]
    >>> describe_passed_over([*some, PassedOver(path="c.zip", reason="an archive")])
    '2 files that are not text (such as a.png), 1 archive (c.zip)'
    """
    descriptions = []
    for reason, (one, several) in _REASONS.items():
        paths = [entry.path for entry in passed_over if entry.reason == reason]
        if paths:
            example = f" ({'such as ' if len(paths) > 1 else ''}{paths[0]})" if examples else ""
            descriptions.append(f"{len(paths):,} {one if len(paths) == 1 else several}{example}")
    return ", ".join(descriptions)


def find_files(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    leave_out: Path | None = None,
    standard_input: SourceFile | None = None,
) -> tuple[list[SourceFile], list[PassedOver]]:
    """Find the files for a list of paths, folders and globs, in the given order.

    Folders are walked in the order of names, without hidden entries and without `leave_out`. Returns
    each source once, and the entries that were passed over. These are files that are not text,
    archives, datasets, lists of excluded documents, pipes, sockets, devices, and links that lead out of an input folder. A link to
    another folder inside the same input folder is passed over too, because the files of that folder
    are found anyway. Inputs that are links are followed. Broken links and unreadable paths are
    sources with a fault.
    """
    if not inputs:
        raise InputError("No input was given. Name at least one file, folder or glob.")
    found: dict[str, SourceFile] = {}
    folders: dict[str, str] = {}
    passed_over: list[PassedOver] = []
    items = [str(as_path(item)) if is_address(item) else os.fspath(item) for item in inputs]
    for path, named, known in _expand(items, leave_out, passed_over):
        if named and path == STANDARD_INPUT:
            if standard_input is None:
                raise InputError(_NO_STANDARD_INPUT)
            found[path] = standard_input
            continue
        real = _real_path(path, folders)
        if real in found:
            continue
        source = recognize(path, known)
        if source is None:
            passed_over.append(PassedOver(path=name_source(path), reason=_SPECIAL))
            continue
        if named:
            _refuse_what_is_never_text(source)
        elif reason := why_not_text(source):
            passed_over.append(PassedOver(path=source.path, reason=reason))
            continue
        found[real] = source
    if not found:
        raise InputError(
            f"No text was found in {', '.join(map(name_source, items))}"
            + (f"; passed over: {describe_passed_over(passed_over)}." if passed_over else ".")
            + (_FOLLOW if any(entry.reason == _OUTSIDE for entry in passed_over) else "")
        )
    return list(found.values()), passed_over


def _refuse_what_is_never_text(source: SourceFile) -> None:
    if is_archive(source.path):
        raise InputError(f"{source.path} is an archive. Unpack it, and pass the folder instead.")
    if (reason := why_not_text(source)) in ("compressed Parquet", "compressed Arrow"):
        raise InputError(f"{source.path} is {reason}. Decompress it, and pass the result instead.")


def _expand(
    inputs: Iterable[str], leave_out: Path | None, passed_over: list[PassedOver]
) -> Iterator[tuple[str, bool, os.stat_result | None]]:
    """Yield each file's path, whether the user named this file itself, and its `stat` if known."""
    for item in inputs:
        path = Path(item)
        if item == STANDARD_INPUT:
            yield item, True, None
        elif is_hub_path(item):
            from tokenmill.hub.cache import find_cached_files

            yield from ((str(found), True, None) for found in find_cached_files(item))
        elif is_address(item):
            objects = find_input_objects(as_object(item), leave_out)
            yield from ((name, objects.named, known) for name, known in objects.files)
            passed_over += [
                PassedOver(path=name, reason="a finished dataset") for name in objects.datasets
            ]
        elif os.path.isdir(item):  # noqa: PTH112  unlike Path.is_dir, it never raises
            if _is_dataset(path):
                raise InputError(
                    f"{item} is a finished dataset, not text. To inspect it, run tokenmill info; to "
                    "prepare again, name the text that it was made from."
                )
            yield from _walk(path, leave_out, passed_over)
        elif os.path.isfile(item):  # noqa: PTH113
            yield item, True, None
        elif glob.has_magic(item):
            matches = sorted(glob.glob(item, recursive=True))
            if not matches:
                raise InputError(f"Nothing matches {item!r}.")
            for match in matches:
                if os.path.isdir(match):  # noqa: PTH112
                    if not _is_left_out(Path(match), leave_out, passed_over):
                        yield from _walk(Path(match), leave_out, passed_over)
                else:
                    yield match, False, None
        elif os.path.islink(item):  # noqa: PTH114  a broken one
            yield item, True, None
        elif os.path.exists(item):  # noqa: PTH110
            raise InputError(f"{item} is neither a file nor a folder.")
        else:
            raise InputError(_explain_missing(path))


def _explain_missing(path: Path) -> str:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        near = find_near(path)
        hint = f" Did you mean {name_source(str(near))}?" if near is not None else ""
        return f"There is no file or folder {path}.{hint}"
    except (OSError, ValueError) as error:  # a NUL byte in a name raises ValueError
        return f"{path} cannot be read: {getattr(error, 'strerror', error)}."
    return f"{path} cannot be read."


def _walk(
    folder: Path, leave_out: Path | None, passed_over: list[PassedOver]
) -> Iterator[tuple[str, bool, None]]:
    # Without recursion: folders may be nested deeper than Python's stack.
    waiting = [folder]
    root = os.path.join(os.path.realpath(folder), "")  # noqa: PTH118
    while waiting:
        here = waiting.pop()
        try:
            with os.scandir(here) as entries:
                visible = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            if is_about_process(error):
                raise
            yield str(here), False, None  # reported later as a folder that cannot be read
            continue
        folders: list[Path] = []
        # Strings, because creating a Path per file would take most of the time.
        prefix = str(here / "x")[:-1]
        for entry in sorted(visible, key=lambda entry: entry.name):
            if entry.is_symlink() and _leads_out(prefix + entry.name, root):
                passed_over.append(
                    PassedOver(path=name_source(prefix + entry.name), reason=_OUTSIDE)
                )
            elif not _is_folder(entry):
                yield prefix + entry.name, False, None
            elif entry.is_symlink():
                name = name_source(prefix + entry.name)
                passed_over.append(PassedOver(path=name, reason="a link to a folder"))
            elif not _is_left_out(here / entry.name, leave_out, passed_over):
                folders.append(here / entry.name)
        waiting += reversed(folders)


def _leads_out(link: str, root: str) -> bool:
    """Return whether a link leads to something outside the folder `root`. A broken link does not.

    `root` ends with a slash.
    """
    target = os.path.realpath(link)
    return not f"{target}/".startswith(root) and os.path.exists(target)  # noqa: PTH110


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle, or a path that is too long
        return False


def _is_left_out(folder: Path, leave_out: Path | None, passed_over: list[PassedOver]) -> bool:
    if leave_out is not None and _same(folder, leave_out):
        return True
    if _is_dataset(folder):
        passed_over.append(PassedOver(path=name_source(str(folder)), reason="a finished dataset"))
        return True
    return False


def _is_dataset(folder: Path) -> bool:
    # Unlike Path.is_file, this does not raise for a folder without permission. `_walk` reports it.
    return os.path.isfile(folder / MANIFEST_NAME)  # noqa: PTH113


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _real_path(path: str, folders: dict[str, str]) -> str:
    """Resolve links as `os.path.realpath` does, but only once per folder: `folders` caches results."""
    if os.path.islink(path):  # noqa: PTH114
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    if folder not in folders:
        folders[folder] = os.path.realpath(folder)
    return os.path.join(folders[folder], name)  # noqa: PTH118
