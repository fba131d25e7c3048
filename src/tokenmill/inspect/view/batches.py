"""The page of batches: the rows of a step as they are trained on.

Guarantees: a page reads at most `PAGE_ROWS` rows, and shows at most `FOLDED` tokens of each, or
`OPEN` tokens of one that is unfolded, whatever the size of a batch. With a run, the rows of any step
are those that it trained on, and inputs that the run masked or rearranged are shown as the model saw
them. Without a run, the user enters the settings of the loader in a form. Several datasets are read
as a mixture, or one of them alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import UsageError
from tokenmill.inspect.run_view import Phase, Place, RowSpan, RunView
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.row_map import Bar, draw_map
from tokenmill.inspect.view.row_parts import RowDocuments, describe_document, find_row_documents
from tokenmill.inspect.view.row_pieces import Part, RowPiece, cut_pieces
from tokenmill.inspect.view.run_curves import read_run_config
from tokenmill.inspect.view.run_spikes import link_document
from tokenmill.inspect.view.spelling import find_speller
from tokenmill.inspect.view.viewer import (
    MissingPageError,
    Page,
    Viewer,
    make_link,
    order_splits,
)
from tokenmill.load.mixture import Mixture
from tokenmill.load.rows import RunRows
from tokenmill.load.settings import RowSettings
from tokenmill.load.state import MOST_ROWS
from tokenmill.order.rows import Kind
from tokenmill.store.tokens import Tokens
from tokenmill.training.augment import augment
from tokenmill.training.config import MOST_STEPS, Config
from tokenmill.wording import one_line

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]

PAGE_ROWS = 16
FOLDED = 192  # tokens to show of a row
OPEN = 8192  # tokens to show of an unfolded row
HEATS = 5  # colours of losses, from low to high
_MOST_PARTS = 1000  # documents of a row to draw
_MOST_LISTED = 12  # documents of a row to list
_MOST_MEAN_ROWS = 1 << 22
_ORDERS: tuple[Kind, ...] = ("shuffled", "sequential", "blocks", "random")
MIXTURE = "=mixture"  # the value of `data` for all datasets together; no name contains "="


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
        """Return the URL of the page with some settings changed."""
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
    """A document in a row. `tokens` counts its tokens in the row, and `whole` all of its tokens."""

    name: str
    link: str | None
    colour: int
    tokens: int
    whole: int | None
    continues: bool  # it begins before the row


@dataclass(frozen=True, kw_only=True)
class ShownRow:
    """A row of the page."""

    place: Place
    span: RowSpan
    shard: str
    loss: float | None
    heat: int | None
    pieces: list[RowPiece]
    parts: list[Part]
    documents: list[ShownDocument]
    more_documents: int
    hidden_tokens: int
    is_open: bool
    is_rearranged: bool
    toggle: str


def show_batches(viewer: Viewer, query: Query) -> Page:
    """Return the page."""
    if not viewer.runs and not viewer.datasets:
        raise MissingPageError("No data is open. Start the viewer with: tokenmill view DATA")
    name, view, loader = _choose_view(viewer, query)
    last_step = _find_last_step(view)
    wanted = query.number("row", 0, high=MOST_STEPS) if query.text("row") else None
    begin = view.phases[0].step  # in a damaged folder of a run, those before it are unknown
    step = (
        view.place(wanted).step
        if wanted is not None
        else query.number("step", begin, high=MOST_STEPS)
    )
    world_size = _count_ranks(view, step)
    has_rank = query.text("rank") and wanted is None
    rank = query.number("rank", 0, high=world_size - 1) if has_rank else None
    batch = view.step_rows(step, rank)
    if batch.stop > MOST_ROWS:
        raise UsageError(f"step {step:,} is too late: its rows are beyond row {MOST_ROWS:,}.")
    first = query.number("first", 0) if wanted is None else wanted - batch.start
    first = min(first, len(batch) - 1) // PAGE_ROWS * PAGE_ROWS
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
            label=f"{row.place.row:,}",
            parts=row.parts,
            loss=row.loss,
            heat=row.heat,
            link=f"#row-{row.place.row}",
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
            "mean": _find_mean(losses),
            "notes": _describe_inputs(config),
            "last_step": last_step,
            "previous_page": settings.link(first=first - PAGE_ROWS or "") if first else None,
            "next_page": (
                settings.link(first=first + PAGE_ROWS) if first + PAGE_ROWS < len(batch) else None
            ),
            "previous_step": settings.link(step=step - 1, first="") if step > begin else None,
            "next_step": (
                settings.link(step=step + 1, first="")
                if last_step is None or step < last_step
                else None
            ),
            "orders": _ORDERS,
            "heats": HEATS,
            "page_rows": PAGE_ROWS,
            "mixture": _describe_mixture(viewer),
            "mixture_value": MIXTURE,
            "counts": view.rows.counts(batch.stop) if len(view.rows.names) > 1 else {},
        },
    )


def _choose_view(viewer: Viewer, query: Query) -> tuple[str, RunView, dict[str, str]]:
    """Return the name of the run ("" without one), how it reads its data, and the loader's settings."""
    if viewer.runs and query.text("run") != "-":
        name, view = viewer.choose_run(query)
        return name, view, {}
    if len(viewer.weights) > 1 and query.text("data") in ("", MIXTURE):
        name, split = MIXTURE, _choose_common_split(viewer, query)
    else:
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
    return "", open_view(viewer, loader), loader


def _choose_common_split(viewer: Viewer, query: Query) -> str:
    """Return the split that `split=NAME` chooses among those that all datasets have."""
    first, *others = viewer.datasets.values()
    common = [one for one in order_splits(first) if all(one in other for other in others)]
    if not common:
        raise MissingPageError("The datasets have no split in common. Choose one with data=NAME.")
    return query.choice("split", common)


def open_view(viewer: Viewer, loader: dict[str, str]) -> RunView:
    """Return how a loader with these settings reads its data; the last few are kept."""
    key = ("loader", *loader.values())
    kept: RunView | None = viewer.kept.get(key)
    if kept is None:
        settings = RowSettings(
            seq_len=int(loader["seq_len"]),
            seed=int(loader["seed"]),
            order=cast(Kind, loader["order"]),
        )
        split, ranks = loader["split"], int(loader["world_size"])
        datasets: Mapping[str, Dataset] = viewer.datasets
        if loader["data"] == MIXTURE:
            weights = viewer.weights.items()
            tokens: Tokens | Mixture = Mixture(
                {name: (datasets[name][split], weight) for name, weight in weights}
            )
        else:
            datasets = {"": datasets[loader["data"]]}
            tokens = datasets[""][split]
        batch_rows = int(loader["batch_size"]) * ranks
        kept = RunView(
            datasets=datasets,
            rows=RunRows(tokens, settings),
            phases=[Phase(step=0, row=0, batch_rows=batch_rows, world_size=ranks)],
            split=split,
        )
        for old in [one for one in list(viewer.kept) if one[0] == "loader"][:-8]:
            viewer.kept.pop(old, None)
        viewer.kept[key] = kept
    return kept


def _count_ranks(view: RunView, step: int) -> int:
    phases = [phase for phase in view.phases if phase.step <= step] or view.phases[:1]
    return phases[-1].world_size


def _find_last_step(view: RunView) -> int | None:
    """Return the last step that a run has done; None without a run."""
    rows = view.row_count
    return view.place(rows - 1).step if rows and rows > view.phases[0].row else None


def _read_losses(view: RunView, batch: range) -> Floats:
    """Return the losses of a batch, NaN where unknown."""
    count = min(len(batch), _MOST_MEAN_ROWS)
    found = view.losses(batch.start, batch.start + count)
    return found if len(found) else np.full(count, np.nan, np.float32)


def _show_rows(
    viewer: Viewer,
    view: RunView,
    config: Config | None,
    settings: Settings,
    page: range,
    losses: Floats,
) -> list[ShownRow]:
    tokens = view.read(np.asarray(page, np.int64))
    heats = _find_heats(losses)
    rows = []
    for index, row in enumerate(page):
        span, place = view.span(row), view.place(row)
        split = view.tokens(span.source)
        dataset = view.datasets[span.source]
        found = find_row_documents(split, span.start, span.stop, most=_MOST_PARTS)
        parts = [
            Part(start=start, stop=stop, number=found.numbers[n] if found.numbers else n)
            for n, (start, stop) in enumerate(pairwise(found.bounds))
        ]
        inputs, vocab, is_rearranged = _change_inputs(
            config, tokens[index : index + 1], row, dataset, split.eot_id
        )
        is_open = settings.opened == row
        length = len(tokens[index])
        most = OPEN if is_open else FOLDED if length > FOLDED + FOLDED // 2 else length
        shard, _ = split.locate(span.start)
        # `losses` begin with the first row of the batch, of which the page has only some.
        at = settings.first + index
        loss = float(losses[at]) if at < len(losses) and np.isfinite(losses[at]) else None
        rows.append(
            ShownRow(
                place=place,
                span=span,
                shard=split.shard_name(shard),
                loss=loss,
                heat=int(heats[at]) if loss is not None else None,
                # Tokens of a rearranged row are not where their documents were.
                pieces=cut_pieces(
                    inputs if is_rearranged else tokens[index],
                    inputs,
                    [] if is_rearranged else parts,
                    find_speller(dataset).decode,
                    eot_id=split.eot_id,
                    vocab=vocab,
                    most=most,
                ),
                parts=parts,
                documents=_list_documents(viewer, view, settings, span.source, found, parts),
                more_documents=max(0, found.count - _MOST_LISTED),
                hidden_tokens=max(0, length - most),
                is_open=is_open,
                is_rearranged=is_rearranged,
                toggle=settings.link(open="" if is_open else row) + f"#row-{row}",
            )
        )
    return rows


def _change_inputs(
    config: Config | None, tokens: Ids, row: int, dataset: Dataset, eot_id: int | None
) -> tuple[Ids, int | None, bool]:
    """Return what the model sees of a row, the size of the vocabulary, and whether it was rearranged."""
    vocab = dataset.vocab_size
    if config is None or not (config.mask_fraction or config.noise_fraction or config.fim_fraction):
        return tokens[0], vocab, False
    vocab = vocab or dataset.tokenizer.vocab_size
    inputs, targets = augment(tokens, row, config=config, vocab=vocab, eot_id=eot_id)
    is_rearranged = bool((targets[0] != tokens[0, 1:]).any())
    return np.append(inputs[0], targets[0, -1:]), vocab, is_rearranged


def _find_heats(losses: Floats) -> Integers:
    """Return the number of each loss's colour: the fifth of the batch's range that it is in."""
    known = losses[np.isfinite(losses)]
    if not len(known):
        return np.zeros(len(losses), np.int64)
    low, high = float(known.min()), float(known.max())
    found = np.where(np.isfinite(losses), losses, low).astype(np.float64)
    parts = (found - low) / max(high - low, 1e-9) * HEATS
    return np.clip(parts.astype(np.int64), 0, HEATS - 1)


def _find_mean(losses: Floats) -> float | None:
    """Return the mean of the losses that are finite, in float64, whose sums do not overflow."""
    known = losses[np.isfinite(losses)]
    return float(known.mean(dtype=np.float64)) if len(known) else None


def _list_documents(
    viewer: Viewer,
    view: RunView,
    settings: Settings,
    source: str,
    found: RowDocuments,
    parts: Sequence[Part],
) -> list[ShownDocument]:
    """Return the first documents of a row, with links to their pages."""
    documents = view.tokens(source).documents
    data = source or settings.loader.get("data", "")
    shown = []
    for n, part in enumerate(parts[:_MOST_LISTED]):
        document = documents[found.numbers[n]] if documents is not None else None
        shown.append(
            ShownDocument(
                name=one_line(describe_document(document)) if document else "text",
                link=link_document(viewer, data, document) if document else None,
                colour=part.colour,
                tokens=part.stop - part.start,
                whole=document.length if document else None,
                continues=n == 0 and found.begins_inside,
            )
        )
    return shown


def _describe_mixture(viewer: Viewer) -> str:
    """Return the weights of the mixture in words; "" if none were given."""
    weights = viewer.weights if len(viewer.weights) > 1 else {}
    return ", ".join(f"{one_line(name)} {weight:g}" for name, weight in weights.items())


def _describe_inputs(config: Config | None) -> list[str]:
    """Return sentences on how a run changes its inputs and limits attention."""
    if config is None:
        return []
    notes = []
    if config.within_documents:
        notes.append("Attention does not cross the borders of documents.")
    if config.mask_fraction or config.noise_fraction:
        share = config.mask_fraction + config.noise_fraction
        notes.append(f"Up to {share:.0%} of the inputs are replaced; the targets stay.")
    if config.fim_fraction:
        notes.append(
            f"{config.fim_fraction:.0%} of the rows are rearranged for fill-in-the-middle."
        )
    return notes
