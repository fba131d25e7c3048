"""What was found in texts: passages with the evaluation text that each belongs to, for reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenmill.contamination.matching import Passage
from tokenmill.contamination.protected import Protected

MOST = 1000  # findings of one document
_SHOWN = 100  # words


def describe_passages(passages: Iterable[Passage], protected: Protected) -> list[dict[str, Any]]:
    """Return where each passage is in the evaluation texts, and its words."""
    return [
        {
            **protected.name_text(one.protected),
            "count": one.stop - one.start,
            "words": protected.spell(one.first, min(one.last, one.first + _SHOWN)),
        }
        for one in passages
    ]
