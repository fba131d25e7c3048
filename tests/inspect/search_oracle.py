"""What a search must find: Python's own `find` on each decoded document."""

from __future__ import annotations

from collections.abc import Iterable

from tokenmill.dataset.opening import Dataset
from tokenmill.inspect.search.matches import Match

SCRIPTS = {
    "latin": "The quick brown fox jumps over the lazy dog. Naïve café, Straße. ",
    "arabic": "السلام عليكم يا صديقي العزيز ",
    "chinese": "我们今天去公园看花，然后回家吃饭。",
    "emoji": "🙂👨‍👩‍👧 ok 🎉🎉🎉 done ",
    "combining": "cafe\u0301 e\u0301\u0302 a\u0308o ",
}
Place = tuple[str, int, int]


def find_all(text: bytes, wanted: bytes) -> Iterable[int]:
    """All places of a text, overlapping ones too."""
    place = text.find(wanted)
    while place >= 0:
        yield place
        place = text.find(wanted, place + 1)


def expect(dataset: Dataset, wanted: str, splits: Iterable[str] | None = None) -> list[Place]:
    """The split, number of the document and byte in it of each occurrence."""
    found = []
    for split in splits or dataset:
        tokens = dataset[split]
        for document in tokens.documents:
            ids = tokens[document.start : document.start + document.length]
            text = dataset.tokenizer.decode(ids).encode()
            found += [(split, document.number, byte) for byte in find_all(text, wanted.encode())]
    return found


def places(matches: Iterable[Match]) -> list[Place]:
    return [(match.split, match.document.number, match.byte) for match in matches]
