"""The ledger of a dataset: how many documents and bytes were read, kept, and dropped for each reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenmill.errors import FolderError
from tokenmill.preparation.segment import Receipt
from tokenmill.preparation.sift import Totals


def sum_up(segments: Sequence[Receipt], fates: Sequence[Receipt]) -> dict[str, Any]:
    """Return the ledger, added up from the receipts of all segments and of their fates.

    A document's fate says which split it belongs to, or that it is dropped.

    Raises `FolderError` unless kept and dropped documents add up to those that were read.
    """
    facts = [receipt["facts"] for receipt in segments]
    decided = [receipt["facts"] for receipt in fates]
    totals = Totals()
    for fact in (*decided, *facts):
        for reason, (documents, size) in fact["dropped"].items():
            totals.drop(reason, documents, size)

    def sum_of(name: str) -> int:
        return sum(fact[name] for fact in decided)

    kept, kept_bytes = sum_of("kept"), sum_of("kept_bytes")
    documents_in = sum(fact["documents_in"] for fact in facts)
    bytes_in = sum(fact["bytes_in"] for fact in facts)
    documents, size = (sum(entry[i] for entry in totals.dropped.values()) for i in (0, 1))
    if (documents_in, bytes_in) != (kept + documents, kept_bytes + size):
        raise FolderError(
            f"The unfinished run is damaged: read {documents_in:,} documents ({bytes_in:,} bytes), kept "
            f"{kept:,} ({kept_bytes:,}), dropped {documents:,} ({size:,}). These numbers do not add up. "
            "Add `restart=True` to start over."
        )
    return {
        "documents_in": documents_in,
        "bytes_in": bytes_in,
        "documents_kept": kept,
        "bytes_kept": kept_bytes,
        "dropped": {
            reason: {"documents": entry[0], "bytes": entry[1]}
            for reason, entry in sorted(totals.dropped.items())
        },
        "text_bytes": sum_of("text"),
        "characters": sum_of("characters"),
        "tokens": sum(map(sum, (fact["tokens"] for fact in decided))),
        "repaired_documents": sum_of("repaired"),
        "duplicate_lines": sum(fact["repeated_lines"] for fact in facts),
    }
