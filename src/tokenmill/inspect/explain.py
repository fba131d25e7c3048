"""Explain which documents a training step, a row or a token comes from.

Guarantees: the rows of a step are those that a loader with the same settings reads at that step, and
for the folder of a run, those that the run reads. All documents with a token in the row are listed, each
with its place in the row and its origin, which is given as in `peek`.

Costs: reading the manifest, and the tokens and document tables of the requested rows, a few megabytes
at a time. Step 1,000,000 costs as much as step 0. Of each document, only the first few tokens in the
row are decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.named import parse_named
from tokenmill.dataset.opening import Dataset, open
from tokenmill.dataset.paths import AnyPath
from tokenmill.errors import UsageError
from tokenmill.html import ROWS, render
from tokenmill.hub.paths import is_hub_path
from tokenmill.inspect.peek import check_vocabulary
from tokenmill.inspect.run_opening import open_run, view_data
from tokenmill.inspect.run_view import Integers, Place, RowSpan, RunView
from tokenmill.load.settings import check_whole
from tokenmill.order.rows import Kind
from tokenmill.store.documents import Document
from tokenmill.store.tokens import Tokens
from tokenmill.wording import brief, count, counted

TEXT_LENGTH = 80  # characters of the beginning of a document, by default
MOST_ROWS = 4_096  # rows explained by one call, which takes a second or two
MOST_READS = 100  # rows listed for a token, even if a run has read it more often
_READ_TOKENS = 1 << 20  # tokens read at once
# A character has at most four bytes, and so four tokens, except for a few special tokens.
_TOKENS_PER_CHARACTER = 4
_CUT = "\ufffd"


@dataclass(frozen=True, kw_only=True)
class RowDocument:
    """The part of a document that is in a row: the row's tokens [start, stop).

    `document` is None if the data has no document table; the part is then known from the end-of-text
    id or, without one, is the whole row. `text` is the beginning of the part. It is None if the
    tokenizer is unknown. An incomplete character is U+FFFD.
    """

    document: Document | None
    start: int
    stop: int
    text: str | None


@dataclass(frozen=True, kw_only=True)
class ExplainedRow:
    """A row: when it is read, which tokens it holds, and the documents that they belong to.

    The first token is number `shard_token` of the file `shard`. `loss` is the loss that a run
    recorded for the row, or None.
    """

    place: Place
    span: RowSpan
    shard: str
    shard_token: int
    loss: float | None
    documents: tuple[RowDocument, ...]


@dataclass(frozen=True, kw_only=True)
class ExplainedToken:
    """A token: its id, its place in a shard, and its document, if known.

    For a run, `times_read` is how often the run has read it so far, and `reads` are the first rows
    in which it did. Both are None without a run. `unread` says why no step reads the token, if it is
    held out for validation.
    """

    source: str
    token: int
    id: int
    shard: str
    shard_token: int
    document: Document | None
    times_read: int | None
    reads: tuple[int, ...] | None
    unread: str | None = None


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The rows of a step, one row, or the rows that hold a token in the first epoch.

    `step`, `rank` and `token` are None if they were not asked for. `row_count` is how many rows a
    run has read so far; None without a run. `paths` maps the name of each source to its path.
    """

    paths: Mapping[str, str]
    split: str
    seq_len: int
    step: int | None
    rank: int | None
    token: ExplainedToken | None
    row_count: int | None
    rows: tuple[ExplainedRow, ...]

    def __repr__(self) -> str:
        documents = sum(len(row.documents) for row in self.rows)
        parts = f"{counted(len(self.rows), 'row')}, {counted(documents, 'part')} of documents"
        return f"<Explanation of {self._name_subject()}: {parts}>"

    def _name_subject(self) -> str:
        if self.token is not None:
            return f"token {count(self.token.token)}"
        if self.step is None:
            return f"row {count(self.rows[0].span.row)}"
        return f"step {count(self.step)}" + ("" if self.rank is None else f", rank {self.rank}")

    def _repr_html_(self) -> str:
        facts = [("data", ", ".join(self.paths.values())), ("tokens of a row", count(self.seq_len))]
        if self.token is not None:
            facts.append(("id of the token", str(self.token.id)))
            if self.token.times_read is not None:
                facts.append(("rows that have read it", count(self.token.times_read)))
            if self.token.unread is not None:
                facts.append(("not read", self.token.unread))
        # A table shows no more than `ROWS` parts, and counts the others.
        parts = [(row, part) for row in self.rows for part in row.documents]
        cells = [_list_part(row, part) for row, part in parts[:ROWS]] + [()] * len(parts[ROWS:])
        heads = ("row", "step", "loss", "token", "document", "source", "text")
        return render(f"Explanation of {self._name_subject()}", facts, ("", heads, cells))


def _list_part(row: ExplainedRow, part: RowDocument) -> tuple[str, ...]:
    document, source = part.document, None if part.document is None else part.document.source
    return (
        count(row.span.row),
        count(row.place.step),
        "" if row.loss is None else f"{row.loss:.4f}",
        str(part.start),
        "" if document is None else str(document.number),
        "" if document is None or source is None else f"{source.path}, {document.offset}",
        "" if part.text is None else repr(part.text),
    )


def explain(
    data: AnyPath | Sequence[AnyPath] = (),
    *,
    run: AnyPath | None = None,
    step: int | None = None,
    rank: int | None = None,
    row: int | None = None,
    token: int | None = None,
    source: str | None = None,
    text_length: int = TEXT_LENGTH,
    seq_len: int | None = None,
    batch_size: int | None = None,
    world_size: int | None = None,
    seed: int | None = None,
    order: Kind | None = None,
    block_rows: int | None = None,
    group_blocks: int | None = None,
    split: str | None = None,
    **opening: Any,
) -> Explanation:
    """Say which documents a step, a row or a token comes from.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tokenmill
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, text in (("a.txt", "To be, or not to be"), ("b.txt", "that is the question")):
    ...     _ = (folder / name).write_text(text)
    >>> _ = tokenmill.prepare([folder / "a.txt", folder / "b.txt"], folder / "data", tokenizer="bytes")
    >>> found = explain(folder / "data", step=1, seq_len=10, batch_size=2, order="sequential")
    >>> for part in found.rows[0].documents:
    ...     print(part.document.number, part.start, part.stop, part.text)
    1 0 11 that is the

    Parameters
    ----------
    data
        A dataset, any tokens that `tokenmill.open` opens, or several as "NAME=PATH:WEIGHT".
    run
        The folder of a run of `tokenmill train`. It says where the data is, in which order the run
        reads it, and in which batches. `data` is then needed only if the data was moved or was made
        in Python.
    step, rank
        Explain the rows of a training step, on all ranks or on one. The first step is step 0.
    row
        Explain one row of the run.
    token, source
        Explain the rows that hold the token at this position in the split; negative numbers count
        from the end. In a mixture, `source` is the name of the dataset that has the token.
    text_length
        How many characters of each document to decode; 0 for none.
    seq_len, batch_size, world_size, seed, order, block_rows, group_blocks
        As in `Loader`. `seq_len` and `batch_size` are needed unless `run` is given.
    split
        The split of the tokens; train by default.
    opening
        Options of `tokenmill.open`, such as `tokenizer`.
    """
    settings: dict[str, Any] = {
        "seq_len": seq_len,
        "batch_size": batch_size,
        "world_size": world_size,
        "seed": seed,
        "order": order,
        "block_rows": block_rows,
        "group_blocks": group_blocks,
        "split": split,
    }
    text_length = check_whole("text_length", text_length, 0)
    given = {name: value for name, value in settings.items() if value is not None}
    if sum(one is not None for one in (step, row, token)) != 1:
        raise UsageError("give one of `step=N`, `row=N` and `token=N`.")
    if rank is not None and step is None:
        raise UsageError("`rank` needs a `step`.")
    if source is not None and token is None:
        raise UsageError("`source` needs `token=N`: a step or row may be of any source.")
    view = make_view(data, run=run, settings=given, opening=opening)
    explained = None
    if step is not None:
        rows: Sequence[int] = view.step_rows(step, rank)
    elif row is not None:
        rows = [view.span(row).row]
    else:
        assert token is not None
        explained, rows = _explain_token(view, token, source)
    if len(rows) > MOST_ROWS:
        raise UsageError(
            f"step {step:,} has {len(rows):,} rows, more than the {MOST_ROWS:,} that are explained "
            "at once. Explain one rank of it with `rank=N`, or one row with `row=N`."
        )
    return Explanation(
        paths={name: str(dataset.path) for name, dataset in view.datasets.items()},
        split=view.split,
        seq_len=view.seq_len,
        step=step,
        rank=rank,
        token=explained,
        row_count=view.row_count,
        rows=tuple(explain_rows(view, rows, text_length)),
    )


def make_view(
    data: AnyPath | Sequence[AnyPath],
    *,
    run: AnyPath | None,
    settings: Mapping[str, Any],
    opening: Mapping[str, Any],
) -> RunView:
    """Return how a run or a loader reads its data, given the arguments of a user.

    `settings` are the loader settings that the user gave. With `run` they are refused, because the
    folder of a run has its own.

    >>> import tempfile
    >>> file = f"{tempfile.mkdtemp()}/ids.npy"
    >>> np.save(file, np.arange(9))
    >>> make_view(file, run=None, settings={"seq_len": 1024}, opening={})
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: which rows are read depends on the settings of the loader. Give \
`batch_size=N`, or the folder of a run: `run=runs/NAME`.
    """
    if run is not None:
        options = {name: value for name, value in opening.items() if value is not None}
        tokenizer = options.pop("tokenizer", None)
        if extra := [*settings, *options]:
            raise UsageError(f"`{extra[0]}` comes from the run. Omit it, or omit `run`.")
        return open_run(run, data=data, tokenizer=tokenizer)
    if not isinstance(data, os.PathLike) and not data:
        raise UsageError(
            "name the data, as a dataset or as NAME=PATH:WEIGHT, or a run: `run=runs/NAME`."
        )
    lacks = [name for name in ("seq_len", "batch_size") if name not in settings]
    if lacks:
        for one in parse_named([data] if isinstance(data, (str, os.PathLike)) else data):
            if not is_hub_path(one.path):
                open(one.path, cache_bytes=0, **opening)  # if there is no such data, say that first
        raise UsageError(
            "which rows are read depends on the settings of the loader. Give "
            f"{' and '.join(f'`{name}=N`' for name in lacks)}, or the folder of a run: "
            "`run=runs/NAME`."
        )
    return view_data(data, **settings, **opening)


def _explain_token(
    view: RunView, token: int, source: str | None
) -> tuple[ExplainedToken, list[int]]:
    """Explain a token, and return the rows that hold it in the first epoch of its source."""
    name = _choose_source(view, source)
    read, order = view.tokens(name), view.order(name)
    place = check_whole("token", token)
    # The run may hold out the end of the split. Its tokens and documents are those of the whole split.
    whole = view.whole[name].get(view.split, read)
    place += len(whole) if place < 0 else 0
    tokens = read if 0 <= place < len(read) else whole
    if not 0 <= place < len(tokens):
        raise UsageError(
            f"there is no token {brief(token)}: split {view.split!r} has {len(tokens):,} tokens, numbered 0 "
            f"to {len(tokens) - 1}."
        )
    unread = view.find_unread(name, view.split, place, place + 1)
    reads = None
    if view.row_count is not None:
        reads = view.find_rows(name, place, place + 1, last_row=view.row_count)
    shard, shard_token = tokens.locate(place)
    explained = ExplainedToken(
        source=name,
        token=place,
        id=int(tokens[place]),
        shard=tokens.shard_name(shard),
        shard_token=shard_token,
        document=None if tokens.documents is None else tokens.documents.at(place),
        times_read=None if reads is None else len(reads),
        reads=None if reads is None else tuple(reads[:MOST_READS].tolist()),
        unread=unread,
    )
    if unread is not None:
        return explained, []
    last = view.find_epoch_end(name, 0)
    rows = view.find_rows(name, place, place + 1, last_row=last)
    # With replacement, one epoch may read a token many times, or not at all.
    assert len(rows) <= 2 or order.kind == "random"
    return explained, rows[:MOST_READS].tolist()


def _choose_source(view: RunView, source: str | None) -> str:
    names = view.rows.names
    if source is None and len(names) > 1:
        raise UsageError(
            f"each source has its own tokens. Give the `source` of the token: {', '.join(names)}."
        )
    return names[0] if source is None else source


def explain_rows(
    view: RunView, rows: Sequence[int] | Integers, text_length: int = TEXT_LENGTH
) -> list[ExplainedRow]:
    """Explain some rows of a run, in the given order.

    `text_length` is how many characters of each document to decode; 0 for none.

    >>> import tempfile
    >>> from pathlib import Path
    >>> file = Path(tempfile.mkdtemp()) / "ids.npy"
    >>> np.save(file, np.frombuffer(b"to be or not to be", np.uint8))
    >>> view = view_data(file, seq_len=8, order="sequential", eot_id=32, tokenizer="bytes")
    >>> [part.text for part in explain_rows(view, [1])[0].documents]
    [' ', 'not ', 'to ', 'b']
    """
    numbers = np.asarray(rows, np.int64)
    at_once = max(1, _READ_TOKENS // (view.seq_len + 1))
    explained: list[ExplainedRow] = []
    for low in range(0, len(numbers), at_once):
        explained += _explain_some(view, numbers[low : low + at_once], text_length)
    return explained


def _explain_some(view: RunView, numbers: Integers, text_length: int) -> Iterator[ExplainedRow]:
    sources, starts = view.spans(numbers)
    losses = find_losses(view, numbers)
    ids = view.read(numbers)
    cuts: list[list[int]] = [[] for _ in numbers]
    for source in np.unique(sources).tolist():
        chosen = np.flatnonzero(sources == source)
        tokens = view.rows.tokens[source]
        found = _find_cuts(tokens, starts[chosen], ids[chosen])
        for number, own in zip(chosen.tolist(), found, strict=True):
            cuts[number] = own
    for at, (place, source, start) in enumerate(
        zip(view.places(numbers), sources.tolist(), starts.tolist(), strict=True)
    ):
        name, tokens = view.rows.names[source], view.rows.tokens[source]
        shard, shard_token = tokens.locate(start)
        dataset, path = view.datasets[name], tokens.shard_name(shard)
        yield ExplainedRow(
            place=place,
            span=RowSpan(row=place.row, source=name, start=start, stop=start + view.seq_len + 1),
            shard=path,
            shard_token=shard_token,
            loss=None if np.isnan(losses[at]) else float(losses[at]),
            documents=tuple(
                RowDocument(
                    document=None if tokens.documents is None else tokens.documents.at(start + low),
                    start=low,
                    stop=high,
                    text=decode_beginning(dataset, ids[at, low:high], text_length, path),
                )
                for low, high in pairwise(cuts[at])
            ),
        )


def _find_cuts(tokens: Tokens, starts: Integers, rows: npt.NDArray[Any]) -> list[list[int]]:
    """Return, for each row, where its documents start in it, from 0 to the length of the row."""
    length = rows.shape[1]
    begins = np.arange(len(starts)) * length
    if tokens.documents is not None or tokens.eot_id is not None:
        begins = np.union1d(begins, tokens.find_document_starts(starts, length, rows))
    firsts = begins.searchsorted(np.arange(len(starts) + 1) * length)
    return [
        [*(begins[low:high] - number * length).tolist(), length]
        for number, (low, high) in enumerate(pairwise(firsts.tolist()))
    ]


def find_losses(view: RunView, rows: Integers) -> npt.NDArray[np.float32]:
    """Return the loss of each row, NaN where unknown; consecutive rows are read together."""
    losses = np.full(len(rows), np.nan, np.float32)
    if view.folder is None or not len(rows):
        return losses
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    for low, high in pairwise([0, *breaks.tolist(), len(rows)]):
        losses[low:high] = view.losses(int(rows[low]), int(rows[low]) + high - low)
    return losses


def decode_beginning(dataset: Dataset, ids: npt.NDArray[Any], length: int, path: str) -> str | None:
    """Return the first `length` characters of the text of some ids. Decodes only as many as needed.

    Returns None if the tokenizer is unknown. An incomplete character at the start or at the end of
    the ids becomes U+FFFD; one at the place where decoding stops is omitted. `path` is the shard of
    the first id, which the error about an id outside of the vocabulary names.
    """
    if length < 1:
        return ""
    some = ids[: length * _TOKENS_PER_CHARACTER]
    check_vocabulary(dataset, some, path)
    if dataset.known_tokenizer is None:
        return None
    text = dataset.known_tokenizer.decode(some)
    if len(some) < len(ids):
        text = text.rstrip(_CUT)
    return text[:length]
