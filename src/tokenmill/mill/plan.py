"""Files to parts: the slices of the input, in its order.

A part is a slice of the input that is processed alone. Its borders depend on the input only,
never on workers or memory. Planning looks at sizes and at Parquet footers; it reads no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import orjson
import xxhash

from tokenmill.mill.find import PassedOver, SourceFile
from tokenmill.mill.records import overlaps_itself
from tokenmill.mill.settings import Settings
from tokenmill.mill.sources import count_row_groups

__all__ = ["Part", "Piece", "Plan", "make_plan"]

PART_BYTES = 16 << 20
MOST_PARTS = 16_384  # of one input; beyond that parts grow, so that their files stay countable


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A slice of one source: bytes, or row groups of a Parquet file."""

    source: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """Consecutive pieces that one worker processes alone. `name` follows from all that decides
    what the part becomes, so a segment of that name is that part's."""

    name: str
    pieces: tuple[Piece, ...]
    size: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All parts of an input, in input order."""

    sources: tuple[SourceFile, ...]
    parts: tuple[Part, ...]
    step: int
    passed_over: tuple[PassedOver, ...] = ()

    @cached_property
    def size(self) -> int:
        return sum(source.size for source in self.sources)

    @cached_property
    def name(self) -> str:
        """Equal for two plans exactly if they make the same dataset."""
        return xxhash.xxh3_128_hexdigest("\n".join(part.name for part in self.parts).encode())


def make_plan(
    sources: Sequence[SourceFile],
    settings: Settings,
    fingerprint: str,
    passed_over: Sequence[PassedOver] = (),
) -> Plan:
    """Cut the sources into parts.

    A plain file is cut into ranges of bytes, a Parquet file into runs of row groups; a compressed
    file is one part. Small plain files share a part.
    """
    total = sum(source.size for source in sources)
    step = PART_BYTES * max(1, -(-total // (PART_BYTES * MOST_PARTS)))
    separator = settings.separator
    parts: list[Part] = []
    group: list[Piece] = []
    held = 0
    # What decides a segment's bytes beside its pieces; the split is decided later, and a segment
    # says itself which files it was made without.
    context = {
        "tokenizer": fingerprint,
        "settings": {
            name: value
            for name, value in settings.to_json().items()
            if name not in ("val_fraction", "tokens_per_shard", "skip_bad_files")
        },
    }

    def add(pieces: Iterable[Piece], size: int) -> None:
        pieces = tuple(pieces)
        facts = [asdict(sources[piece.source]) | asdict(piece) for piece in pieces]
        told = orjson.dumps([context, step, facts], option=orjson.OPT_SORT_KEYS)
        parts.append(Part(name=xxhash.xxh3_128_hexdigest(told), pieces=pieces, size=size))

    def flush() -> None:
        nonlocal held
        if group:
            add(group, held)
            group.clear()
            held = 0

    for number, source in enumerate(sources):
        whole = Piece(source=number, start=0, end=source.size)
        if source.compression or source.kind == "parquet":
            flush()
            pieces = _row_group_pieces(number, source, step) if source.kind == "parquet" else []
            for piece in pieces or [whole]:
                add([piece], max(1, source.size // max(1, len(pieces))))
            continue
        if held and held + source.size > step:
            flush()
        can_be_cut = not (source.kind == "text" and separator and overlaps_itself(separator))
        if source.size > step and can_be_cut:
            for start in range(0, source.size, step):
                end = min(start + step, source.size)
                add([Piece(source=number, start=start, end=end)], end - start)
            continue
        group.append(whole)
        held += source.size
    flush()
    return Plan(
        sources=tuple(sources), parts=tuple(parts), step=step, passed_over=tuple(passed_over)
    )


def _row_group_pieces(number: int, source: SourceFile, step: int) -> list[Piece]:
    pieces: list[Piece] = []
    start = held = 0
    sizes = count_row_groups(source.path)
    for index, size in enumerate(sizes):
        if held and held + size > step:
            pieces.append(Piece(source=number, start=start, end=index))
            start, held = index, 0
        held += size
    if sizes:
        pieces.append(Piece(source=number, start=start, end=len(sizes)))
    return pieces


def plan_record(plan: Plan, settings: Settings, fingerprint: str) -> dict[str, Any]:
    """What a run remembers of its plan, to notice changes when it goes on."""
    return {
        "settings": settings.to_json(),
        "tokenizer": fingerprint,
        "sources": [asdict(source) for source in plan.sources],
    }
