"""What is wrong with a file, found without reading all of it.

Costs the first 64 KiB of a file, or the footer of a Parquet file. What is damaged further on is
found by reading.
"""

from __future__ import annotations

from tokenmill.sources.json_lines import read_json_lines
from tokenmill.sources.read import BadFileError, read_head, read_piece, refuse_wide
from tokenmill.sources.recognize import SourceFile

_HEAD = 1 << 16


def find_fault(source: SourceFile, text_field: str) -> str | None:
    """Why a file cannot be read, or has no text where it should be; None if it looks fine.

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
        if source.kind == "parquet":
            _look_at_footer(source, text_field)
            return None
        head = read_head(source, _HEAD)
        refuse_wide(source, head)
    except BadFileError as error:
        return error.reason
    return _judge_records(head, text_field) if source.kind == "jsonl" else None


def _look_at_footer(source: SourceFile, text_field: str) -> None:
    no_rows = read_piece(
        source, 0, 0, 1, separator=None, text_field=text_field, cutter=None, border_cutter=None
    )
    assert not list(no_rows)


def _judge_records(head: bytes, text_field: str) -> str | None:
    lines = head if len(head) < _HEAD else head[: head.rfind(b"\n") + 1]
    chunks = list(read_json_lines([lines + b"\n"], 0, text_field, None))
    refused = chunks[0].rejections
    if not refused or any(chunk.texts for chunk in chunks):
        return None
    line, reason = refused[0].line, refused[0].reason
    assert line is not None
    cure = "; name the field with `text_field=NAME`" if "no field" in reason else ""
    return f"line {line + 1}: {reason}{cure}"
