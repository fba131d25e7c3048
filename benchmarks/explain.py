"""Explain random rows, and find every one of them again from its tokens.

Makes a small corpus in every format with documents, plain and compressed. For every format, every
order, and with one source, a mixture and a mixture whose weights change, it takes random rows and a
random token of each. The documents of the row must contain the token; the rows with the token must
contain the row; and every row that was found must hold the token's id at its place.

Every pair is also asked of `where`: it is told that a run has read all rows before this one, or this
one as well. The row must be the next one in which it reads the document of the token, or the latest
one, with the same epoch, step, rank and places. For this, the data is opened once and `where` is
asked through its class `Finder`; for some pairs, the function itself is called.

The last two columns show that a row late in a run costs as much as an early one.

    python benchmarks/explain.py [--pairs 10000]
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from results import record

import tokenmill
from tokenmill.formats import WRITABLE
from tokenmill.inspect.explain import explain_rows
from tokenmill.inspect.run_opening import view_data
from tokenmill.inspect.run_view import RunView
from tokenmill.inspect.where.where import Finder, where
from tokenmill.progress import Nobody

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "formats"))

ORDERS = ("shuffled", "blocks", "sequential", "random")
CHANGES = {2_000: {"web": 0.0}, 2_500: {"web": 1.0, "code": 2.0}, 30_000: {"code": 0.5}}
SEQ_LEN = 64
LATE = 10**12


def make_corpora(folder: Path) -> dict[str, dict[str, Any]]:
    """Two corpora in every format, as FORMAT/NAME, and the options to open each format."""
    foreign = importlib.import_module("foreign")  # of the tests, which have no types
    options: dict[str, dict[str, Any]] = {"prepared": {}, "compressed": {}}
    generator = np.random.default_rng(1)
    for name in ("web", "code"):
        texts = folder / f"{name}.txt"
        words = (
            " ".join(map(str, generator.integers(0, 10**6, size)))
            for size in generator.geometric(1 / 12, 2_500)
        )
        texts.write_text("\n".join(f"{name} {number}: {text}" for number, text in enumerate(words)))
        made = folder / "prepared" / name
        tokenmill.prepare(
            texts,
            made,
            tokenizer="bytes",
            documents="line",
            val_fraction=0,
            tokens_per_shard=20_000,
        )
        tokenmill.reshard(
            made, folder / "compressed" / name, tokens_per_shard=50_000, compress="zstd"
        )
        for to in WRITABLE:
            tokenmill.export(made, folder / to / name, to=to, tokens_per_shard=30_000)
            options[to] = {"tokenizer": "bytes", "eot_id": 256}
        tokens = tokenmill.open(made)["train"]
        assert tokens.documents is not None
        documents = [
            tokens[one.start : one.start + one.length].tolist() for one in tokens.documents
        ]
        halves = [documents[:1_000], documents[1_000:]]
        foreign.write_litdata(folder / "litdata" / name, halves)
        foreign.write_files(folder / "mds" / name, foreign.mds_files(halves))
        (folder / "olmo").mkdir(exist_ok=True)
        for number, half in enumerate(halves):
            foreign.write_olmo(folder / "olmo" / name / f"part-{number}.npy", half)
    options |= {one: {"tokenizer": "bytes"} for one in ("litdata", "mds")}
    options["olmo"] = {"tokenizer": "bytes", "dtype": "uint16"}
    return options


def make_views(folder: Path, order: str, options: dict[str, Any]) -> Iterator[RunView]:
    """One source, a mixture, and a mixture whose weights change."""
    settings: dict[str, Any] = {"seq_len": SEQ_LEN, "batch_size": 8, "order": order, "seed": 7}
    if order == "blocks":
        settings |= {"block_rows": 16, "group_blocks": 8}
    both = [f"{name}={folder / name}:{weight}" for name, weight in (("web", 0.7), ("code", 0.3))]
    yield view_data(folder / "web", **settings, **options)
    yield view_data(both, **settings, **options)
    yield view_data(both, **settings, **options, changes=CHANGES, block=1_000)


def check(
    view: RunView, pairs: int, generator: np.random.Generator
) -> tuple[int, float, float, float]:
    """Check random pairs.

    Returns how many were wrong, and the seconds to explain them, to find them, and to ask `where`.
    """
    epochs = 6 * sum(order.windows for order in view.rows.orders)
    rows = generator.integers(0, epochs, pairs)
    places = generator.integers(0, SEQ_LEN + 1, pairs)
    started = time.perf_counter()
    explained = explain_rows(view, rows)
    explaining = time.perf_counter() - started
    wrong, finding, asking = 0, 0.0, 0.0
    for row, place, one in zip(rows.tolist(), places.tolist(), explained, strict=True):
        name, token = one.span.source, one.span.start + place
        (part,) = (part for part in one.documents if part.start <= place < part.stop)
        document, documents = part.document, view.tokens(name).documents
        expected = None if documents is None else documents.at(token)
        is_right = document == expected
        started = time.perf_counter()
        found = view.find_rows(name, token, token + 1, last_row=epochs)
        finding += time.perf_counter() - started
        is_right &= row in found and bool((np.diff(found) > 0).all())
        sources, starts = view.spans(found)
        offsets = token - starts
        is_right &= all(view.rows.names[source] == name for source in sources.tolist())
        is_right &= bool(((offsets >= 0) & (offsets <= SEQ_LEN)).all())
        ids = view.read(found)[np.arange(len(found)), offsets]
        is_right &= bool((ids == view.tokens(name)[token]).all())
        started = time.perf_counter()
        is_right &= ask_where(view, row, place)
        asking += time.perf_counter() - started
        wrong += not is_right
    return wrong, explaining, finding, asking


class PartOfRun(RunView):
    """How a run reads its data that has read only the first rows so far."""

    read_rows = 0

    @property
    def row_count(self) -> int:
        return self.read_rows


def ask_where(view: RunView, row: int, place: int) -> bool:
    """Return whether `where` finds a row again from a token in it."""
    span, at = view.span(row), view.place(row)
    run = PartOfRun(datasets=view.datasets, rows=view.rows, phases=view.phases, split=view.split)
    finder = Finder(
        {span.source: view.datasets[span.source]}, run, limit=1, split=None, watcher=Nobody()
    )
    for run.read_rows in (row, row + 1):
        (found,) = finder.find(f"token={span.start + place}", None).documents
        assert found.visits is not None
        visit = found.visits.next if run.read_rows == row else found.visits.latest
        if (
            visit is None
            or (visit.row, visit.epoch, visit.step, visit.rank, visit.index)
            != (row, at.epoch, at.step, at.rank, at.index)
            or not visit.start <= place < visit.stop
        ):
            return False
    return True


def check_where(folder: Path, view: RunView, row: int, place: int, given: dict[str, Any]) -> bool:
    """Return whether `where` says that a row of an early epoch reads a token and its document."""
    span, order = view.span(row), view.rows.settings
    found = where(
        folder,
        f"token={span.start + place}",
        seq_len=SEQ_LEN,
        batch_size=8,
        seed=order.seed,
        order=order.order,
        block_rows=order.block_rows,
        group_blocks=order.group_blocks,
        progress=False,
        **given,
    )
    (document,) = found.documents
    visits = document.visits
    assert visits is not None
    if not document.start <= span.start + place < document.start + document.length:
        return False
    if row > visits.first[-1].row:  # `where` lists only the first rows of a long document
        return True
    at = view.place(row)
    return any(
        (one.row, one.step, one.rank, one.index, one.epoch)
        == (at.row, at.step, at.rank, at.index, at.epoch)
        for one in visits.first
    )


def time_window(view: RunView, row: int) -> float:
    """The milliseconds to find a token among the 10,000 rows around a row; the best of 20."""
    span = view.span(row)
    times = []
    for _ in range(20):
        started = time.perf_counter()
        found = view.find_rows(
            span.source, span.start, span.start + 1, first_row=row - 5_000, last_row=row + 5_000
        )
        times.append(time.perf_counter() - started)
        assert row in found
    return min(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=10_000)
    args = parser.parse_args()
    generator = np.random.default_rng(2)
    table = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        options = make_corpora(folder)
        pairs = -(-args.pairs // (len(options) * len(ORDERS) * 3))
        for order in ORDERS:
            wrong, explaining, finding, asking, done, called = 0, 0.0, 0.0, 0.0, 0, 0
            for format, opening in options.items():
                for number, view in enumerate(make_views(folder / format, order, opening)):
                    found = check(view, pairs, generator)
                    wrong, done = wrong + found[0], done + pairs
                    explaining, finding = explaining + found[1], finding + found[2]
                    asking += found[3]
                    # `where` lists the first rows of a document, so ask for rows of the first epoch.
                    for row in generator.integers(
                        0, 500, pairs // 10 if not number else 0
                    ).tolist():
                        place = int(generator.integers(0, SEQ_LEN + 1))
                        called += 1
                        wrong += not check_where(folder / format / "web", view, row, place, opening)
            table.append(
                {
                    "order": f"`{order}`",
                    "pairs": f"{done:,}",
                    "calls of `where`": f"{called:,}",
                    "wrong": wrong,
                    "explain a row, ms": round(explaining / done * 1e3, 2),
                    "find a token in 6 epochs, ms": round(finding / done * 1e3, 2),
                    "ask `where`, ms": round(asking / done / 2 * 1e3, 2),
                    "near row 10,000, ms": round(time_window(view, 10_000), 2),
                    "near row 10¹², ms": round(time_window(view, LATE), 2),
                }
            )
            print(table[-1], flush=True)
    conditions = {"formats": sorted(options), "sources": ["one", "mixture", "changing mixture"]}
    record("explain", conditions, table)
    if any(row["wrong"] for row in table):
        sys.exit("some rows were not found again")


if __name__ == "__main__":
    main()
