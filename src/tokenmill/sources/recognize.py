"""Decide how to read a file, by its name, and by its first bytes if the name is not enough.

Costs reading 64 KiB of each `.json` file, and 8 KiB of each file with an unknown name. `find_fault`
also reads 64 KiB, or the footer of a Parquet file. Damage elsewhere in a file is found only when the
file is read.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from errno import EIO, ELOOP, ENOENT, ENOTDIR
from stat import S_ISDIR, S_ISREG

import orjson

from tokenmill.errors import TooLongError
from tokenmill.sources.csv_rows import read_csv
from tokenmill.sources.detect_text import HEAD, looks_like_text
from tokenmill.sources.encodings import AUTO
from tokenmill.sources.files import (
    BadFileError,
    CutShortError,
    SourceFile,
    is_about_process,
    name_source,
)
from tokenmill.sources.json_array import read_json_array
from tokenmill.sources.json_lines import read_json_lines
from tokenmill.sources.read import Reading, read_head, read_range
from tokenmill.sources.records import Chunk
from tokenmill.storage.decoding import load_json
from tokenmill.storage.names import EXCLUDE_ENDING

NOT_TEXT = "not text"
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
_KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
_KINDS |= {".arrow": "arrow", ".feather": "arrow", ".tar": "tar"}
_KINDS |= {".warc": "warc", ".wet": "warc", ".wat": "warc"}
_SHORT = {".tgz": "gzip", ".tbz": "bz2", ".tbz2": "bz2", ".txz": "xz", ".tzst": "zstd"}  # of .tar
# These names are always text. Other files in a folder are text if their first bytes look like it.
_TEXT = frozenset(
    ".txt .text .md .markdown .rst .tex .log .csv .tsv .html .htm .xml .yaml .yml .toml .ini .cfg "
    ".py .pyi .ipynb .c .h .cc .cpp .cxx .hpp .hh .cu .rs .go .java .kt .scala .js .mjs .jsx .ts "
    ".tsx .rb .php .pl .pm .lua .r .jl .hs .ml .mli .clj .ex .exs .erl .swift .m .cs .fs .vb .sql "
    ".sh .bash .zsh .fish .ps1 .bat .tcl .el .lisp .scm .nim .zig .d .pas .f .f90 .adb .ads .v "
    ".vhd .s .asm .cmake .mk .css .scss .proto .po .srt .bib".split()
)
_ARCHIVES = frozenset(".zip .7z .rar .jar .whl .cpio .deb .rpm .cab .iso".split())
_HEAD = 1 << 16


def recognize(path: str, known: os.stat_result | None = None) -> SourceFile | None:
    """Find how to read a path. Returns None for a pipe, a socket or a device.

    `known` is the path's `stat`, if the caller has it. If the path cannot be read (a broken link, no
    permission), the result has a `fault`.
    """
    try:
        stat = known or os.stat(path)  # noqa: PTH116
        if S_ISDIR(stat.st_mode):
            os.scandir(path).close()
            raise OSError(EIO, "the folder could not be listed at first; try again")
    except OSError as error:
        if is_about_process(error):
            raise
        why = error.strerror or str(error)
        if os.path.islink(path) and error.errno in (ENOENT, ENOTDIR, ELOOP):  # noqa: PTH114
            why = f"a broken link to {name_source(os.readlink(path))}"  # noqa: PTH115
        return SourceFile(
            path=name_source(path), kind="text", compression=None, size=0, modified=0, fault=why
        )
    if not S_ISREG(stat.st_mode):
        return None
    compression, inner = _split(path)
    kind = _KINDS.get(inner, "text")
    source = SourceFile(
        path=name_source(path),
        kind="text" if kind in ("parquet", "arrow") and compression else kind,
        compression=compression,
        size=stat.st_size,
        modified=stat.st_mtime_ns,
    )
    return _judge_json(source) if inner == ".json" else source


def is_archive(path: str) -> bool:
    """Return whether a name belongs to an archive that is not read.

    >>> is_archive("a.zip"), is_archive("a.tar.gz")
    (True, False)
    """
    return os.path.splitext(path.lower())[1] in _ARCHIVES


def why_not_text(source: SourceFile) -> str | None:
    """Return why a file in a folder is passed over, or None if it is read."""
    if is_archive(source.path):
        return "an archive"
    if source.path.endswith(EXCLUDE_ENDING):
        return "a list of excluded documents"
    _, inner = _split(source.path)
    if source.fault or source.kind != "text" or inner in _TEXT:
        return None
    try:
        head = read_head(source, HEAD)
    except BadFileError:
        return None  # the run will report it
    if inner == ".parquet" and head.startswith(b"PAR1"):
        return "compressed Parquet"
    if _KINDS.get(inner) == "arrow" and head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "compressed Arrow"
    return None if looks_like_text(head) else NOT_TEXT


def _split(path: str) -> tuple[str | None, str]:
    """Return the compression and the suffix of a path. For `a.jsonl.gz`: gzip and `.jsonl`."""
    plain, suffix = os.path.splitext(path)
    if suffix.lower() in _SHORT:
        return _SHORT[suffix.lower()], ".tar"
    compression = _COMPRESSIONS.get(suffix.lower())
    return compression, os.path.splitext(plain if compression else path)[1].lower()


def _judge_json(source: SourceFile) -> SourceFile:
    """Decide whether a `.json` file is JSON lines, one object over many lines, or an array.

    Returns the source unchanged for JSON lines, as plain text for one object, and as the kind "json"
    for an array. A file of JSON lines may have broken lines, so one bad line proves nothing. A file counts as
    one object only if its head parses as the beginning of an object, or if few lines of its head look
    like records.
    """
    try:
        head = read_head(source, _HEAD, AUTO)
    except BadFileError:
        return source  # the run will report it
    whole = len(head) < _HEAD
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    line, _, more = (head.rstrip() if whole else head).partition(b"\n")
    array = head.startswith(b"[")
    if not more:
        return replace(source, kind="json") if array else source
    if not head.startswith((b"{", b"[")) or _parses(line):
        return source
    if not _begins_document(head, whole) and _has_records(head):
        return source
    return replace(source, kind="json" if array else "text")


def _parses(line: bytes) -> bool:
    try:
        load_json(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _begins_document(head: bytes, whole: bool) -> bool:
    """Return whether `head` is one JSON value or, unless `whole`, the beginning of a JSON value."""
    # A JSON string cannot contain a line end. So if a valid document is cut after a line end, the
    # parser fails only where the text ends.
    text = (head if whole else head[: head.rfind(b"\n") + 1]).decode("utf-8", "replace").rstrip()
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as error:
        return not whole and error.pos >= len(text)
    except (ValueError, RecursionError):
        return False  # too many digits or too deep; the lines decide
    return end == len(text)


def _has_records(head: bytes) -> bool:
    """Return whether at least half of the lines look like JSON objects."""
    lines = [line.strip() for line in head.split(b"\n") if line.strip()]
    records = sum(line.startswith(b"{") and line.endswith(b"}") for line in lines[:-1])
    return 2 * (records + lines[-1].startswith(b"{")) >= len(lines)


def find_fault(
    source: SourceFile, text_field: str, hold_limit: int = 1 << 62, encoding: str = AUTO
) -> str | None:
    """Return why a file cannot be read, or has no text in `text_field`; None if it looks fine.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from tokenmill.sources.find import find_files
    >>> path = Path(tempfile.mkdtemp()) / "a.jsonl"
    >>> _ = path.write_text('{"id": 1, "body": "words"}')
    >>> ((source,), _) = find_files([path])
    >>> find_fault(source, "text")
    "line 1: no field 'text'; it has id, body; name the field with `text_field=NAME`"
    >>> find_fault(source, "body")
    """
    if source.fault:
        return source.fault
    try:
        if source.kind in ("tar", "warc"):
            next(read_range(source, 0, 0, Reading(text_field=text_field, block=_HEAD)), None)
            return None
        if source.kind in ("parquet", "arrow"):
            how = Reading(text_field=text_field, hold_limit=hold_limit)
            for _ in read_range(source, 0, 0, how):  # checks the footer
                pass
            return None
        head = read_head(source, _HEAD, encoding)
    except BadFileError as error:
        return error.reason
    except TooLongError as error:
        return f"{error}, too many for `memory`"
    return _find_record_fault(source, head, text_field) if source.kind != "text" else None


def _find_record_fault(source: SourceFile, head: bytes, text_field: str) -> str | None:
    chunks: list[Chunk] = []
    try:
        if source.kind in ("json", "csv"):
            read = read_json_array if source.kind == "json" else read_csv
            chunks += read([head], source.path, text_field, None)
        else:
            lines = head if len(head) < _HEAD else head[: head.rfind(b"\n") + 1]
            chunks += read_json_lines([lines + b"\n"], 0, text_field, None)
    except CutShortError as error:
        if len(head) < _HEAD:
            return error.reason
    except BadFileError as error:
        return error.reason
    refused = [rejection for chunk in chunks for rejection in chunk.rejections]
    if not refused or any(chunk.texts for chunk in chunks):
        return None
    line, reason = refused[0].line, refused[0].reason
    assert line is not None
    cure = "; name the field with `text_field=NAME`" if "no field" in reason else ""
    return f"line {line + 1}: {reason}{cure}"
