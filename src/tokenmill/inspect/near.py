"""Find documents of a dataset that are near duplicates of each other, within splits and across them.

The text is decoded from the tokens, and documents are compared as by `prepare --dedup near`: by the
shares of runs of five words that two documents have in common. Each document is compared with a bounded
number of those that are probably similar, and each similarity is exact. So a count is never too high, and
close to the truth.

Works for tokens in any format that has documents and a tokenizer. Costs one pass over the tokens, about
50 MB of text a second, and temporary files of about the size of the text. Memory is some hundred
megabytes for datasets of any size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.opening import open
from tokenmill.dataset.paths import AnyPaths
from tokenmill.errors import UsageError
from tokenmill.formats.document_starts import find_document_starts
from tokenmill.inspect.search.vocabulary import Vocabulary
from tokenmill.preparation.engine import Worker
from tokenmill.preparation.key_files import KeyLayout, KeyWriter, choose_partitions
from tokenmill.preparation.near_choice import read_by_document
from tokenmill.preparation.near_edges import Edges, VerifyPairs, similarity
from tokenmill.preparation.near_pairs import FindPairs, PairLayout
from tokenmill.preparation.settings import PrepareSettings
from tokenmill.preparation.shingle_sets import Catalog, SetFiles, SetWriter, read_sets
from tokenmill.preparation.shingles import Shingler
from tokenmill.preparation.signatures import Bands
from tokenmill.progress import Watcher, watching
from tokenmill.storage.files import write_file
from tokenmill.storage.receipts import encode_receipt
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import Tokenizer

_BLOCK = 1 << 18  # tokens to decode at once
_SHINGLES = 1 << 19  # to hash at once
_MEMORY = 160 << 20  # bytes for one task
_PARTITION = 64 << 20  # bytes of keys
_RUN = 1 << 18  # keys
_EXAMPLES = 3

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SimilarPair:
    """Two similar documents: their splits, their numbers there, and their similarity."""

    split: str
    number: int
    other_split: str
    other_number: int
    similarity: float


@dataclass(frozen=True, kw_only=True)
class SplitsCompared:
    """How many documents of a split resemble an earlier document of the same or an earlier split."""

    split: str
    other: str
    documents: int
    examples: tuple[SimilarPair, ...]


@dataclass(frozen=True, kw_only=True)
class NearFindings:
    """The near duplicates of a dataset.

    `compared` is the number of documents with five words or more; shorter ones are not compared.
    """

    threshold: float
    documents: int
    compared: int
    splits: tuple[SplitsCompared, ...]


def find_near_duplicates(
    path: AnyPaths,
    *,
    threshold: float = 0.8,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    **options: Any,
) -> NearFindings:
    """Find the near duplicates in tokens on disk. `options` are those of `tokenmill.open`.

    >>> import tokenmill
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("\\n".join(["one two three four five six"] * 2) + "!")
    >>> _ = tokenmill.prepare(
    ...     folder / "a.txt", folder / "data", tokenizer="bytes", documents="line", val_fraction=0
    ... )
    >>> [(one.split, one.other, one.documents) for one in find_near_duplicates(folder / "data").splits]
    [('train', 'train', 1)]
    """
    PrepareSettings(near_threshold=threshold)
    dataset = open(path, cache_bytes=0, **options)
    tokenizer = dataset.tokenizer
    with (
        watching(watcher, progress) as shown,
        tempfile.TemporaryDirectory(prefix="tokenmill-near-") as name,
    ):
        folder = Path(name)
        shown.begin(
            "reading documents", sum(len(tokens) for tokens in dataset.values()), 0, "tokens"
        )
        counts = [
            _write_sets(tokens, tokenizer, folder / f"{number}", shown)
            for number, tokens in enumerate(dataset.values())
        ]
        stored = folder / "sets.json"
        files = SetFiles([(f"{number}", count) for number, count in enumerate(counts)], [])
        write_file(stored, encode_receipt(files))
        catalog = Catalog(folder, files)
        compared, edges = _compare(folder, stored, catalog, threshold, shown)
        return NearFindings(
            threshold=threshold,
            documents=catalog.total,
            compared=compared,
            splits=_count(list(dataset), catalog, edges),
        )


class _Room:
    """Stands for the workspace of a worker."""

    def spare_memory(self) -> int:
        return _MEMORY


def _write_sets(tokens: Tokens, tokenizer: Tokenizer, path: Path, watcher: Watcher) -> int:
    """Write the shingle sets of the documents of a split. Returns how many there are."""
    if tokens.documents is None and tokens.eot_id is None:
        raise UsageError(
            f"It is unknown where the documents of split {tokens.split!r} begin, so they cannot be "
            "compared."
        )
    decode = _Decoder(tokenizer)
    with ExitStack() as stack:
        opened: dict[str, BinaryIO] = {
            name: stack.enter_context(path.with_suffix(f".{name}").open("wb"))
            for name in ("shingles", "sets")
        }

        def write(name: str, data: Any) -> None:
            opened[name].write(data)

        writer = SetWriter(write)
        for starts, stops in _divide(tokens):
            first, last = int(starts[0]), int(stops[-1])
            if len(starts) == 1 and last - first > _BLOCK:
                shingler = Shingler()
                for low in range(first, last, _BLOCK):
                    shingler.add(decode.decode(tokens.read(low, min(last, low + _BLOCK))))
                writer.add(shingler, writer.count)
            else:
                texts = decode.split(tokens.read(first, last), starts - first, stops - first)
                sizes = np.fromiter(map(len, texts), np.int64, len(texts))
                ends = np.cumsum(sizes + 1) - 1
                writer.add_texts(b"\0".join(texts), ends - sizes, ends, writer.count)
            watcher.advance(last - first)
        return writer.count


def _divide(tokens: Tokens) -> Iterator[tuple[Integers, Integers]]:
    """Yield where some documents start and where each stops, without end-of-text ids.

    They have at most `_BLOCK` tokens together, or are one document.
    """
    held = np.zeros(0, np.int64)
    end = np.array([len(tokens)])
    for found in chain(find_document_starts(tokens, 0, len(tokens)), [end]):
        held = np.concatenate((held, found))
        first = 0
        while first < len(held) - 1:
            stop = int(held.searchsorted(held[first] + _BLOCK, "right")) - 1
            stop = min(max(stop, first + 1), len(held) - 1)
            starts, stops = held[first:stop].copy(), held[first + 1 : stop + 1].copy()
            if tokens.eot_id is not None:
                ids = tokens.read(int(starts[0]), int(stops[-1])) if len(starts) > 1 else None
                _trim(tokens, ids, starts, stops)
            yield starts, stops
            first = stop
        held = held[first:]


def _trim(tokens: Tokens, ids: npt.NDArray[Any] | None, starts: Integers, stops: Integers) -> None:
    """Leave out the end-of-text ids at both ends of some documents, in place."""
    low = int(starts[0])
    for places, step in ((starts, 1), (stops, -1)):
        filled = np.flatnonzero(starts < stops)
        at = places[filled] - (step < 0)
        if ids is None:
            found = np.array([tokens.read(int(one), int(one) + 1)[0] for one in at])
        else:
            found = ids[at - low]
        places[filled[found == tokens.eot_id]] += step


class _Decoder:
    """Turns ids into UTF-8. Uses the bytes of ids if the tokenizer knows them, which is quicker."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        spellings = tokenizer.spellings()
        self._vocabulary = None if spellings is None else Vocabulary(spellings)

    def decode(self, ids: npt.NDArray[Any]) -> bytes:
        """Return the text of some ids."""
        if self._vocabulary is None:
            return self._tokenizer.decode(ids).encode("utf-8", "replace")
        return bytes(self._vocabulary.join(self._vocabulary.trim(ids))[0])

    def split(self, ids: npt.NDArray[Any], starts: Integers, stops: Integers) -> list[bytes]:
        """Return the texts of several ranges of ids."""
        ranges = list(zip(starts.tolist(), stops.tolist(), strict=True))
        if self._vocabulary is None:
            return [self.decode(ids[low:high]) for low, high in ranges]
        text, ends = self._vocabulary.join(self._vocabulary.trim(ids))
        places = ends.tolist()
        return [bytes(text[places[low] : places[max(low, high)]]) for low, high in ranges]


def _compare(
    folder: Path, stored: Path, catalog: Catalog, threshold: float, watcher: Watcher
) -> tuple[int, list[Path]]:
    """Find the similar documents. Returns how many were compared, and the files of edges in order."""
    bands, keys, compared = Bands.choose(threshold), 0, 0
    partitions = choose_partitions(16 * bands.bands * catalog.total, _PARTITION)
    layout = KeyLayout(partitions=partitions, run_keys=_RUN)
    watcher.begin("comparing documents", 0)
    with (folder / "bands").open("wb") as file:

        def write(data: Any) -> None:
            file.write(data)

        writer = KeyWriter(layout, write)
        for number, (name, count) in enumerate(catalog.files.segments):
            base = int(catalog.bases[number])
            for shingles, sizes in read_sets(folder / name, count, _SHINGLES):
                places, hashes = bands.hash(shingles, sizes)
                table = np.empty((len(hashes), 2), np.uint64)
                table[:, 0], table[:, 1] = places + base, hashes
                writer.add(table)
                base += len(sizes)
                compared += int(np.count_nonzero(sizes))
        writer.flush()
        keys = writer.count
    nothing = folder / "nothing.gone"
    with nothing.open("wb") as file:
        file.truncate(-(-catalog.total // 8))
    worker: Any = Worker(_Room(), lambda *_: None)
    groups = min(partitions, 1 << catalog.bits)
    pairs = PairLayout(KeyLayout(partitions=groups, run_keys=_RUN), catalog.bits)
    edges: list[Path] = []
    for number in (1, 2):
        find = partial(
            FindPairs,
            folder=folder,
            keys=folder,
            key_files=(("bands", keys),),
            layout=layout,
            pairs=pairs,
            round=number,
            gone=(nothing,) * (number - 1),
            limit=None,
        )
        tasks = [
            find(name=f"pairs-{number}-{partition}", partition=partition)
            for partition in range(partitions)
        ]
        found = tuple((f"{one.name}.pairs", one.run(worker)["facts"]["pairs"]) for one in tasks)
        verified = []
        for group in range(groups):
            name = f"edges-{number}-{group}"
            VerifyPairs(
                name=name,
                folder=folder,
                segments=folder,
                files=stored,
                pair_files=found,
                layout=pairs,
                partition=group,
                threshold=threshold,
                before=edges[group].with_suffix("") if edges else None,
                limit=None,
            ).run(worker)
            verified.append(folder / f"{name}.edges")
        edges = verified
    return compared, edges


def _count(names: list[str], catalog: Catalog, files: list[Path]) -> tuple[SplitsCompared, ...]:
    """Count the documents that resemble an earlier one, for each pair of splits."""
    size = len(names)
    counts = np.zeros((size, size), np.int64)
    examples: dict[tuple[int, int], list[SimilarPair]] = {}
    for edges in read_by_document(files):
        later = edges["later"].astype(np.int64)
        one = catalog.bases.searchsorted(later, "right") - 1
        two = catalog.bases.searchsorted(edges["earlier"].astype(np.int64), "right") - 1
        _, first = np.unique(later * size + two, return_index=True)
        np.add.at(counts, (one[first], two[first]), 1)
        for place in first.tolist():
            key = int(one[place]), int(two[place])
            some = examples.setdefault(key, [])
            if len(some) < _EXAMPLES:
                some.append(_describe(names, catalog, edges[place : place + 1], key))
    return tuple(
        SplitsCompared(
            split=names[one],
            other=names[two],
            documents=int(counts[one, two]),
            examples=tuple(examples[one, two]),
        )
        for one, two in sorted(examples)
    )


def _describe(names: list[str], catalog: Catalog, edge: Edges, key: tuple[int, int]) -> SimilarPair:
    one, two = key
    return SimilarPair(
        split=names[one],
        number=int(edge["later"][0]) - int(catalog.bases[one]),
        other_split=names[two],
        other_number=int(edge["earlier"][0]) - int(catalog.bases[two]),
        similarity=float(similarity(edge)[0]),
    )
