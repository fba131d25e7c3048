"""The page of batches: the rows of a step as they are trained on.

Guarantees: a page reads at most `PAGE_ROWS` rows, and shows at most `FOLDED` tokens of each, or
`OPEN` tokens of one that is unfolded, whatever the size of a batch. With a run, the rows are those
that it trained on, at any step, and inputs that the run masked or rearranged are shown as the model
saw them. Without a run, a form has the settings of the loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.inspect.explain import ExplainedRow, explain_rows
from tokenmill.inspect.run_view import RunView, view_data
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.row_map import Bar, draw_map
from tokenmill.inspect.view.row_pieces import Part, Piece, cut_pieces
from tokenmill.inspect.view.runs import read_run_config
from tokenmill.inspect.view.viewer import MissingPageError, Page, Routes, Viewer, make_link
from tokenmill.training.augment import augment
from tokenmill.training.config import MOST_STEPS, Config
from tokenmill.wording import one_line

PAGE_ROWS = 16
FOLDED = 192  # tokens of a row
OPEN = 8192  # tokens of an unfolded row
HEATS = 5  # colours of losses
_MOST_PARTS = 400  # documents of a row that are listed
_MOST_MEAN_ROWS = 1 << 22
_ORDERS = ("shuffled", "sequential", "blocks", "random")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Which batch is shown, and how."""

    run: str  # "" without a run
    step: int
    rank: int | None
    first: int  # the index of the page's first row in the batch
    opened: int | None  # the row that is unfolded
    colour: str
    loader: dict[str, str] = field(default_factory=dict)  # without a run

    def link(self, **changes: object) -> str:
        """Return the URL of the page with some other settings."""
        values: dict[str, object] = {
            **({"run": self.run} if self.run else self.loader),
            "step": self.step,
            "rank": "" if self.rank is None else self.rank,
            "first": self.first or "",
            "colour": "" if self.colour == "documents" else self.colour,
        }
        return make_link("/batches", **{**values, **changes})


@dataclass(frozen=True, kw_only=True)
class ShownDocument:
    """A document in a row."""

    name: str
    link: str | None
    colour: int
    tokens: int
    begins: bool  # in this row


@dataclass(frozen=True, kw_only=True)
class ShownRow:
    """A row of the page."""

    row: int
    index: int
    rank: int
    epoch: int
    source: str
    start: int
    stop: int
    shard: str
    loss: float | None
    heat: int | None
    pieces: list[Piece]
    parts: list[Part]
    documents: list[ShownDocument]
    more_documents: int
    hidden_tokens: int
    is_open: bool
    toggle: str


def show_batches(viewer: Viewer, query: Query) -> Page:
    """Return the page."""
    if not viewer.runs and not viewer.datasets:
        raise MissingPageError("No data is open. Start the viewer with: tokenmill view DATA")
    name, view, loader = _choose_view(viewer, query)
    last_step = _find_last_step(view)
    step = query.number("step", 0, high=MOST_STEPS)
    world_size = _count_ranks(view, step)
    rank_text = query.text("rank")
    rank = query.number("rank", 0, high=world_size - 1) if rank_text else None
    batch = view.step_rows(step, rank)
    first = min(query.number("first", 0), max(len(batch) - 1, 0)) // PAGE_ROWS * PAGE_ROWS
    settings = Settings(
        run=name,
        step=step,
        rank=rank,
        first=first,
        opened=query.number("open", -1, low=-1) if query.text("open") else None,
        colour=query.choice("colour", ("documents", "losses")),
        loader=loader,
    )
    page = batch[first : first + PAGE_ROWS]
    config = read_run_config(view.folder)
    losses = _read_losses(view, batch)
    rows = _show_rows(viewer, view, config, settings, page, losses)
    bars = [
        Bar(
            label=f"row {row.row:,}",
            parts=row.parts,
            loss=row.loss,
            heat=row.heat,
            link=f"#row-{row.row}",
        )
        for row in rows
    ]
    return Page(
        template="batches.html",
        title=f"Batch of step {step:,}",
        section="/batches",
        values={
            "settings": settings,
            "run_names": list(viewer.runs),
            "view": view,
            "batch": batch,
            "ranks": world_size,
            "rows": rows,
            "map": draw_map(
                bars,
                length=view.rows.seq_len + 1,
                by_loss=settings.colour == "losses",
                label=f"Documents in {len(rows)} rows of step {step:,}",
            ),
            "mean": float(np.nanmean(losses)) if np.isfinite(losses).any() else None,
            "notes": _describe_inputs(config),
            "last_step": last_step,
            "previous_page": settings.link(first=first - PAGE_ROWS or "") if first else None,
            "next_page": (
                settings.link(first=first + PAGE_ROWS) if first + PAGE_ROWS < len(batch) else None
            ),
            "previous_step": settings.link(step=step - 1, first="") if step else None,
            "next_step": (
                settings.link(step=step + 1, first="")
                if last_step is None or step < last_step
                else None
            ),
            "orders": _ORDERS,
            "heats": HEATS,
            "page_rows": PAGE_ROWS,
            "counts": view.rows.counts(batch.stop) if len(view.rows.names) > 1 else {},
        },
    )


def _choose_view(viewer: Viewer, query: Query) -> tuple[str, RunView, dict[str, str]]:
    """Return the name of the run ("" without one), how it reads its data, and the loader's settings."""
    if viewer.runs and query.text("run") != "-":
        name, view = viewer.choose_run(query)
        return name, view, {}
    name, dataset = viewer.choose_dataset(query)
    split = viewer.choose_split(query, dataset)
    loader = {
        "data": name,
        "split": split,
        "seq_len": str(query.number("seq_len", 1024, low=1, high=1 << 20)),
        "batch_size": str(query.number("batch_size", 16, low=1, high=1 << 20)),
        "world_size": str(query.number("world_size", 1, low=1, high=1 << 20)),
        "seed": str(query.number("seed", 0, low=-(1 << 62))),
        "order": query.choice("order", _ORDERS),
    }
    return "", open_view(viewer, dataset, loader), loader


def open_view(viewer: Viewer, dataset: Dataset, loader: dict[str, str]) -> RunView:
    """Return how a loader with these settings reads a dataset; the last few are kept."""
    key = ("loader", *loader.values())
    kept = viewer.kept.get(key)
    if kept is None:
        kept = view_data(
            dataset,
            seq_len=int(loader["seq_len"]),
            batch_size=int(loader["batch_size"]),
            world_size=int(loader["world_size"]),
            seed=int(loader["seed"]),
            order=loader["order"],
            split=loader["split"],
        )
        loaders = [one for one in viewer.kept if one[0] == "loader"]
        for old in loaders[:-8]:
            viewer.kept.pop(old, None)
        viewer.kept[key] = kept
    return kept
