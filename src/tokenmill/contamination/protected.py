"""The protected texts: their words, and the n-grams by which they are found, ready for look-up.

A text of at least `size` words is found by each of its n-grams of `size` words, a shorter one by all
of its words together. Both are called units. A text is too short to be found if it has fewer than
`SHORT_WORDS` words or `SHORT_BYTES` bytes, unless it has `size` words. A unit that occurs in more than
`common` different texts is a template, such as the instructions of a benchmark, and is left out.

Memory and the size of the file: about 20 bytes for each word of the texts; making it takes about 110
bytes for each word, and about 2 s for a million words. At most `MOST_WORDS` words are allowed. Worker processes
map the file, so they share its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from tokenmill.contamination.folding import fold
from tokenmill.contamination.words import (
    LONGEST,
    Hashes,
    Places,
    Words,
    find_words,
    hash_ngrams,
)
from tokenmill.errors import InputError
from tokenmill.storage.files import AtomicFile
from tokenmill.storage.object_path import ObjectPath

MOST_WORDS = 5_000_000
SHORT_WORDS = 5
SHORT_BYTES = 20
_ALIGNED = 64
_BITS_PER_KEY = 24
_LEAST_BITS, _MOST_BITS = 16, 28
_PROBES = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)

Numbers = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]


class Text(NamedTuple):
    """One text to protect: the number of its file, its place in the file, and its words in UTF-8."""

    file: int
    record: int
    text: bytes


class EvaluationFile(NamedTuple):
    """A file of evaluation texts, and what a record number of it counts: lines, rows or documents."""

    path: str
    unit: str


@dataclass(frozen=True, kw_only=True)
class Protected:
    """Texts, and a table to look up their n-grams. All arrays are read only.

    `sequence` has the words of all texts in order, as numbers of words in the vocabulary. Text t is
    `sequence[starts[t]:starts[t + 1]]`. The units are sorted by `hashes`; unit u begins at
    `sequence[places[u]]` and has `lengths[u]` words.
    """

    size: int  # words of an n-gram
    checksum: str  # of all texts in order
    files: tuple[EvaluationFile, ...]
    texts: int  # as read, with repeated ones and those that are too short
    too_short: int
    templates: int  # texts of which every unit is a template
    sequence: Numbers
    starts: Numbers
    text_files: Numbers
    text_records: Places
    hashes: Hashes
    places: Numbers
    lengths: npt.NDArray[np.uint16]
    filter: Bytes  # of the n-grams of `size` words
    anchors: Bytes  # of the first `anchor` words of shorter units
    anchor_hashes: Hashes  # sorted
    short_lengths: npt.NDArray[np.uint16]
    vocabulary: Bytes  # all words, with spaces between them

    @cached_property
    def known(self) -> Words:
        """The words of the vocabulary."""
        return find_words(self.vocabulary.tobytes())

    @property
    def anchor(self) -> int:
        """The number of words by which shorter units are looked for."""
        return int(self.short_lengths[0]) if len(self.short_lengths) else 0

    def text_of(self, units: npt.NDArray[Any]) -> Places:
        """Return the numbers of the texts to which some units belong."""
        found: Places = self.starts.searchsorted(self.places[units], "right") - 1
        return found

    def spell(self, start: int, stop: int) -> str:
        """Return some words of the sequence."""
        known = self.known
        return " ".join(
            known.text[begin : begin + length].decode()
            for begin, length in (
                (int(known.starts[n]), int(known.lengths[n]))
                for n in self.sequence[start:stop].tolist()
            )
        )

    def spell_unit(self, unit: int) -> str:
        """Return the words of a unit."""
        start = int(self.places[unit])
        return self.spell(start, start + int(self.lengths[unit]))

    def name_text(self, number: int) -> dict[str, Any]:
        """Return where a text is, for reports."""
        file = self.files[int(self.text_files[number])]
        return {
            "evaluation": file.path,
            "record": int(self.text_records[number]),
            "unit": file.unit,
        }

    def without(self, units: Places) -> Protected:
        """Return the table without some units. The texts stay."""
        kept = np.ones(len(self.hashes), np.bool_)
        kept[units] = False
        hashes, lengths = self.hashes[kept], self.lengths[kept]
        return replace(
            self,
            hashes=hashes,
            places=self.places[kept],
            lengths=lengths,
            filter=_make_filter(hashes[lengths == self.size]),
        )

    def name_units(self, units: Places) -> str:
        """Return a hash of some units."""
        return xxhash.xxh3_128_hexdigest(self.hashes[units].tobytes())

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about the texts."""
        return {"texts": self.texts, "xxh3_128": self.checksum}

    def count(self) -> dict[str, int]:
        """Return how many texts there are, and how many cannot be found."""
        return {"texts": self.texts, "too_short": self.too_short, "templates": self.templates}

    def save(self, path: Path) -> None:
        """Write everything to a file, from which `load` maps it."""
        arrays, head = _arrays(self), {}
        offset = 0
        for name, array in arrays.items():
            head[name] = [array.dtype.str, len(array), offset]
            offset += -(-array.nbytes // _ALIGNED) * _ALIGNED
        facts = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in arrays}
        facts["files"] = [list(file) for file in self.files]
        header = orjson.dumps({"facts": facts, "arrays": head})
        header += b" " * (-(len(header) + 8) % _ALIGNED)
        with AtomicFile(path, durable=False) as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for array in arrays.values():
                file.write(array.tobytes() + bytes(-array.nbytes % _ALIGNED))
            file.finish()


def _arrays(protected: Protected) -> dict[str, npt.NDArray[Any]]:
    values = {field.name: getattr(protected, field.name) for field in fields(protected)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def load(path: Path) -> Protected:
    """Map a file that `Protected.save` made. An object in an object store is read into memory."""
    if isinstance(path, ObjectPath):
        data: Any = np.frombuffer(path.read_bytes(), np.uint8)
    else:
        data = np.memmap(path, np.uint8, "r")
    size = int.from_bytes(data[:8].tobytes(), "little")
    header = orjson.loads(data[8 : 8 + size].tobytes())
    facts = header["facts"]
    facts["files"] = tuple(EvaluationFile(*file) for file in facts["files"])
    for name, (dtype, count, offset) in header["arrays"].items():
        begin = 8 + size + offset
        kind = np.dtype(dtype)
        facts[name] = data[begin : begin + count * kind.itemsize].view(np.ndarray).view(kind)
    return Protected(**facts)


def protect(
    texts: Iterable[Text], files: Sequence[EvaluationFile], *, size: int, common: int
) -> Protected:
    """Make the table of some texts.

    Raises `InputError` if they have more than `MOST_WORDS` words, or if none of them is long enough.
    """
    builder = _Builder(size)
    for text in texts:
        builder.add(text, files)
    if not builder.starts[1:]:
        raise InputError(
            "No evaluation text is long enough to be found. A text needs at least "
            f"{min(size, SHORT_WORDS)} words; there are {builder.texts:,} texts in "
            f"{', '.join(file.path for file in files[:5])}."
        )
    return builder.finish(tuple(files), common)


class _Builder:
    def __init__(self, size: int) -> None:
        self.size = size
        self.texts = self.too_short = 0
        self.numbers: dict[bytes, int] = {}  # of the words
        self.sequence: list[Numbers] = []
        self.starts = [0]
        self.text_files: list[int] = []
        self.text_records: list[int] = []
        self._seen: set[bytes] = set()
        self._digest = xxhash.xxh3_128(b"tokenmill evaluation texts, version 1")

    def add(self, text: Text, files: Sequence[EvaluationFile]) -> None:
        self.texts += 1
        self._digest.update(len(text.text).to_bytes(8, "little") + text.text)
        words = fold(text.text.replace(b"\0", b" ")).split()
        is_short = len(words) < self.size
        if is_short and (len(words) < SHORT_WORDS or sum(map(len, words)) < SHORT_BYTES):
            self.too_short += 1
            return
        numbers = self.numbers
        ids = np.array([numbers.setdefault(word, len(numbers)) for word in words], np.uint32)
        digest = xxhash.xxh3_128_digest(ids.tobytes())
        if digest in self._seen:
            return
        self._seen.add(digest)
        self.sequence.append(ids)
        self.starts.append(self.starts[-1] + len(ids))
        self.text_files.append(text.file)
        self.text_records.append(text.record)
        if self.starts[-1] > MOST_WORDS:
            raise InputError(
                f"The evaluation texts have more than {MOST_WORDS:,} words, which is the most that one "
                f"run can hold; the limit was reached in {files[text.file].path}. Give fewer or smaller "
                "files, and run the others in a second pass: tokenmill contaminated DATA FILE"
            )

    def finish(self, files: tuple[EvaluationFile, ...], common: int) -> Protected:
        sequence = np.concatenate(self.sequence)
        self.sequence.clear()
        self._seen.clear()
        starts = np.array(self.starts, np.uint32)
        vocabulary = b" ".join(self.numbers)
        self.numbers.clear()
        known = find_words(vocabulary)
        hashes = known.hash()[sequence]
        counts = starts[1:].astype(np.int64) - starts[:-1]
        lengths = np.minimum(counts, self.size).astype(np.uint16)
        shorter = np.unique(lengths[lengths < self.size]).tolist()
        long_before = None
        if (is_long := known.lengths > LONGEST).any():
            long_before = np.concatenate(([0], np.cumsum(is_long[sequence])))
        units = []
        for length in [*shorter, self.size]:
            found = hash_ngrams(hashes, length)
            inside = np.repeat(lengths, counts)[: len(found)] == length
            places = np.flatnonzero(inside)
            places = places[places + length <= np.repeat(starts[1:], counts)[places]]
            if long_before is not None:
                places = places[long_before[places + length] == long_before[places]]
            sizes = np.full(len(places), length, np.uint16)
            units.append((found[places], places.astype(np.uint32), sizes))
        anchors = np.zeros(0, np.uint64)
        if shorter:
            firsts = np.concatenate([places for _, places, _ in units[:-1]])
            anchors = hash_ngrams(hashes, shorter[0])[firsts]
        del hashes
        merged = [np.concatenate(column) for column in zip(*units, strict=True)]
        units.clear()
        kept, templates = _drop_repeats(sequence, starts, merged, common)
        return Protected(
            size=self.size,
            checksum=self._digest.hexdigest(),
            files=files,
            texts=self.texts,
            too_short=self.too_short,
            templates=templates,
            sequence=sequence,
            starts=starts,
            text_files=np.array(self.text_files, np.uint32),
            text_records=np.array(self.text_records, np.int64),
            hashes=kept[0],
            places=kept[1],
            lengths=kept[2],
            filter=_make_filter(kept[0][kept[2] == self.size]),
            anchors=_make_filter(anchors),
            anchor_hashes=np.unique(anchors),
            short_lengths=np.array(shorter, np.uint16),
            vocabulary=np.frombuffer(vocabulary, np.uint8),
        )


def _drop_repeats(
    sequence: Numbers, starts: Numbers, units: list[npt.NDArray[Any]], common: int
) -> tuple[list[npt.NDArray[Any]], int]:
    """Sort units by hash. Keep the first of equal ones, and none that more than `common` texts have.

    Also returns how many texts have no unit left.
    """
    order = np.argsort(units[0], kind="stable")  # they are sorted by length and place already
    for number, column in enumerate(units):
        units[number] = column[order]
    del order
    hashes, places, lengths = units
    same = np.zeros(len(hashes), np.bool_)
    same[1:] = (hashes[1:] == hashes[:-1]) & (lengths[1:] == lengths[:-1])
    for place in range(int(lengths.max(initial=0))):
        some = np.flatnonzero(same)
        some = some[lengths[some] > place]
        equal = sequence[places[some] + place] == sequence[places[some - 1] + place]
        same[some[~equal]] = False
    texts = (starts.searchsorted(places, "right") - 1).astype(np.uint32)
    groups = np.cumsum(~same, dtype=np.int32) - 1
    fresh = ~same
    fresh[1:] |= texts[1:] != texts[:-1]
    is_common = np.bincount(groups[fresh]) > common
    left = np.zeros(len(starts) - 1, np.bool_)
    left[texts[~is_common[groups]]] = True
    kept = ~same & ~is_common[groups]
    return [hashes[kept], places[kept], lengths[kept]], int(np.count_nonzero(~left))


def _make_filter(keys: Hashes) -> Bytes:
    """Return a Bloom filter with two probes for each key. It has a power of two of bits."""
    bits = (len(keys) * _BITS_PER_KEY - 1).bit_length() if len(keys) else _LEAST_BITS
    bits = min(max(bits, _LEAST_BITS), _MOST_BITS)
    table = np.zeros(1 << (bits - 3), np.uint8)
    for probe in _PROBES:
        found = probe_of(keys, probe, bits)
        np.bitwise_or.at(table, found >> 3, np.left_shift(1, found & 7).astype(np.uint8))
    return table


def probe_of(keys: Hashes, probe: int, bits: int) -> Places:
    """Return the bit of a filter for each key."""
    mixed = keys * np.array(probe, np.uint64)
    found: Places = (mixed >> np.array(64 - bits, np.uint64)).view(np.int64)
    return found


def find_in_filter(keys: Hashes, table: Bytes) -> Places:
    """Return which keys may be in a filter: their indices."""
    bits = len(table).bit_length() + 2
    found: Places | None = None
    for probe in _PROBES:
        places = probe_of(keys if found is None else keys[found], probe, bits)
        there = np.flatnonzero((table.take(places >> 3) >> (places & 7).astype(np.uint8)) & 1)
        found = there if found is None else found[there]
    assert found is not None
    return found
