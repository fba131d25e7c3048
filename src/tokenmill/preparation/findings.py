"""What judges found in a document, as lines of a report, with the document's key and place."""

from __future__ import annotations

import orjson

from tokenmill.preparation.judges import Findings
from tokenmill.sources.files import SourceFile


def list_findings(source: SourceFile, offset: int, key: str, findings: Findings) -> bytes:
    """Return the lines about one document.

    >>> source = SourceFile(path="a.txt", kind="text", compression=None, size=9, modified=0)
    >>> list_findings(source, 7, "00", [{"evaluation": "eval.jsonl"}])
    b'{"key":"00","source":"a.txt","offset":7,"evaluation":"eval.jsonl"}\\n'
    """
    place = {source.unit if source.unit == "row" else "offset": offset}
    entry = {"key": key, "source": source.path} | place
    return b"".join(orjson.dumps(entry | dict(found)) + b"\n" for found in findings)
