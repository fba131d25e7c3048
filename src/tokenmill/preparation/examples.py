"""Examples of dropped documents, for `dropped.jsonl`: some for each reason, whoever finds them.

For each reason, the examples are the documents with the smallest keys, so they are spread over the
whole input and do not depend on workers. A part keeps its `MOST` smallest, and the smallest of all
parts are reported. Of equal texts, the first is an example. Memory: about 1 kB for an example.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from tokenmill.errors import FolderError
from tokenmill.preparation.engine import Worker
from tokenmill.sources.files import SourceFile
from tokenmill.storage.decoding import load_json
from tokenmill.wording import harmless

MOST = 20  # examples of a reason
_SHOWN = 200  # characters of a text
SHOWN_BYTES = 4 * _SHOWN


class Example(NamedTuple):
    """A dropped document: the number of the reason, its key, its place, and what it looks like."""

    number: int
    key: str  # 32 hexadecimal digits
    source: int
    offset: int
    value: Any  # the number or text because of which the document was dropped
    text: str  # the beginning


def show_beginning(text: Any) -> str:
    """Return the beginning of a text, with escapes for characters that cannot be seen."""
    return harmless(bytes(text[:SHOWN_BYTES]).decode("utf-8", "ignore")[:_SHOWN])


class Examples:
    """The examples of each reason that have the smallest keys so far."""

    def __init__(self) -> None:
        self._found: dict[int, list[Example]] = {}

    def wants(self, number: int, key: str) -> bool:
        """Return whether a document with this key is to be an example."""
        found = self._found.get(number, [])
        if len(found) == MOST and key >= found[-1].key:
            return False
        return all(example.key != key for example in found)

    def add(self, example: Example) -> None:
        """Add an example, unless others have smaller keys."""
        if self.wants(example.number, example.key):
            found = self._found.setdefault(example.number, [])
            insort(found, example, key=lambda one: one.key)
            del found[MOST:]

    def __iter__(self) -> Iterator[Example]:
        """Yield the examples, ordered by reason and key."""
        for number in sorted(self._found):
            yield from self._found[number]

    def encode(self) -> bytes:
        """Return the examples as JSON lines, for `read_examples`."""
        return b"".join(orjson.dumps(list(example)) + b"\n" for example in self)


def read_examples(path: Path) -> Iterator[Example]:
    """Yield the examples in a file that `Examples.encode` made."""
    with path.open("rb") as file:
        for line in file:
            try:
                yield Example(*load_json(line))
            except (TypeError, ValueError):
                raise FolderError(f"{path} is damaged. Add `restart=True` to start over.") from None


@dataclass(frozen=True)
class ChooseExamples:
    """A task: choose the examples to report among those of some parts, in input order."""

    paths: tuple[Path, ...]

    def run(self, worker: Worker) -> list[Example]:  # noqa: ARG002  the interface of tasks
        """Return the examples, at most `MOST` for each reason."""
        chosen = Examples()
        for path in self.paths:
            for example in read_examples(path):
                chosen.add(example)
        return list(chosen)


def list_examples(
    examples: Iterable[Example], reasons: Sequence[str], sources: Sequence[SourceFile]
) -> bytes:
    """Return the lines of `dropped.jsonl`."""

    def encode(example: Example) -> bytes:
        source = sources[example.source]
        place: Mapping[str, int] = {
            source.unit if source.unit == "row" else "offset": example.offset
        }
        entry = {
            "reason": reasons[example.number - 1],
            "value": example.value,
            "source": source.path,
            **place,
            "key": example.key,
            "text": example.text,
        }
        return orjson.dumps(entry) + b"\n"

    return b"".join(map(encode, examples))
