"""`tokenmill spikes`: where the loss jumped, and the documents behind it."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tokenmill.cli.console import Display, quote, show, show_next, show_table, typed, typed_options
from tokenmill.cli.peek import describe_source
from tokenmill.cli.reading import FROM_RUN, Reading
from tokenmill.dataset.named import parse_named
from tokenmill.inspect.spikes.groups import LossGroup
from tokenmill.inspect.spikes.spikes import LIMIT, THRESHOLD, HighRow, Spike, SpikeReport
from tokenmill.inspect.spikes.spikes import spikes as find_spikes
from tokenmill.inspect.spikes.suspects import Suspect
from tokenmill.storage.object_path import as_path
from tokenmill.wording import count, counted, one_line

_STEPS_SHOWN = 5


def spikes(
    run: Annotated[Path | None, Parameter(name="RUN")] = None,
    /,
    *,
    losses: Path | None = None,
    per: Literal["row", "step"] | None = None,
    first_step: int | None = None,
    data: Annotated[list[str] | None, Parameter(json_list=False, negative="")] = None,
    reading: Reading = FROM_RUN,
    threshold: float = THRESHOLD,
    limit: int = LIMIT,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Show where the loss of a run jumped, and the rows and documents behind it.

    For a run of tokenmill train, its folder is enough: tokenmill spikes runs/NAME. For any other
    training, give a file of losses, the data, and the settings of the loader.

    Parameters
    ----------
    run
        Folder of a run of tokenmill train.
    losses
        File with the losses of any other training: .npy; JSON lines, each with a loss and a step or
        row; or raw float32 (.f32).
    per
        Whether a loss in --losses belongs to a row or to a step, if the file does not say.
    first_step
        Number of the run's first step in the file of --losses: 0 (the default) if the file counts
        steps from 0, or 1 if it counts from 1.
    data
        Data that was trained on: a dataset, or tokens in any format that tokenmill opens. For a
        mixture: --data web=DIR:0.7 --data code=DIR:0.3. With RUN, only if the data was moved.
    threshold
        By how many spreads (robust standard deviations) a loss must exceed its neighbours.
    limit
        Maximum number of spikes, rows and documents to show.
    json
        Print all information as JSON.
    """
    with Display() as display:
        found = find_spikes(
            run,
            losses=losses,
            per=per,
            first_step=first_step,
            data=data or [],
            threshold=threshold,
            limit=limit,
            watcher=display,
            **reading.arguments,
        )
    if json:
        # ASCII: every terminal can show it, and it contains no control characters.
        text = json_format.dumps(asdict(found), indent=2, allow_nan=False)
        print(text.replace("\x7f", "\\u007f"))
        return 0
    _show(found)
    _show_next(found, run, data or [], reading)
    return 0


def _show(found: SpikeReport) -> None:
    rows = "" if found.row_count is None else f", {counted(found.row_count, 'row')}"
    show(f"{counted(found.steps, 'step')}{rows}, judged by the loss of each {found.per}.")
    if found.suspects:
        show(_conclude(found.suspects[0]))
    elif found.judged_steps:
        what = "step or row" if found.per == "row" else "step"
        high = found.spike_count or found.high_row_count
        show("" if high else f"No {what} stands out from its neighbours.")
    _show_not_finite(found)
    if found.spikes:
        _show_spikes(found)
    if found.suspects:
        show(
            f"\nDocuments that stand out, the most suspicious of {counted(len(found.suspects), 'document')} first"
        )
        for number, one in enumerate(found.suspects):
            _show_suspect(number, one, found.per)
    _show_shared(found)
    if found.rows:
        title = f"Rows that stand out ({count(found.high_row_count or 0)}), the worst first"
        show_table(
            title,
            ("row", "step", "loss", "excess", "spreads", "", ""),
            list(map(_list_row, found.rows)),
        )
    if found.groups is not None:
        sampled = f"in a sample of {counted(found.groups.rows, 'row')}"
        _show_groups(f"Loss by source, {sampled}", "source", found.groups.sources)
        _show_groups(f"Loss by length of the document, {sampled}", "tokens", found.groups.lengths)
    if found.notes:
        show("")
    for note in found.notes:
        show(f"Note: {one_line(note)}")


def _conclude(first: Suspect) -> str:
    if first.is_certain:
        return (
            f"Most suspicious: {one_line(_name(first))}. It was read in "
            f"{counted(first.epochs, 'epoch')} and stood out each time, which is strong evidence."
        )
    return f"Most suspicious: {one_line(_name(first))}."


def _name(one: Suspect) -> str:
    named = f"{one.source}: " if one.source else ""
    if one.document is None:
        return f"{named}the document at token {one.start}"
    place = describe_source(one.document)
    return f"{named}document {one.document.number}" + ("" if place is None else f", {place}")


def _show_not_finite(found: SpikeReport) -> None:
    if not found.not_finite:
        return
    kinds = [
        f"{count(number)} {kind}"
        for number, kind in ((found.nan, "NaN"), (found.infinite, "infinite"))
        if number
    ]
    steps = [
        f"step {count(one.step)} ({count(one.nan + one.infinite)})"
        for one in found.not_finite[:_STEPS_SHOWN]
    ]
    more = ", …" if len(found.not_finite) > _STEPS_SHOWN else ""
    show(
        f"Losses that are not numbers: {' and '.join(kinds)}, in {', '.join(steps)}{more}. They are "
        "unknown, or the run diverged there; nothing below includes them."
    )


def _show_spikes(found: SpikeReport) -> None:
    title = (
        f"Spikes ({count(found.spike_count)}): steps whose loss exceeds that of the steps around them "
        f"by {found.threshold:g} spreads"
    )
    heads = ("steps", "loss", "expected", "excess", "spreads", "")
    show_table(title, heads, [_list_spike(one) for one in found.spikes])


def _list_spike(one: Spike) -> tuple[str, ...]:
    steps = count(one.step)
    if one.last_step > one.step:
        steps += f" to {count(one.last_step)}"
    causes = {
        "rows": f"from {counted(len(one.rows), 'row')} of it",
        "weights": "most of its rows are higher; see the step before",
        "unknown": "",
    }
    parts = [causes[one.cause]]
    if one.suspects:
        numbers = ", ".join(f"[{number + 1}]" for number in one.suspects[:_STEPS_SHOWN])
        parts.append(f"with {numbers}")
    return (
        steps,
        f"{one.loss:.4f}",
        f"{one.expected:.4f}",
        f"{one.excess:.4f}",
        f"{one.score:.1f}",
        "; ".join(part for part in parts if part),
    )


def _show_suspect(number: int, one: Suspect, per: str) -> None:
    show(f"  [{number + 1}] {one_line(_name(one))}")
    epochs = (
        f", in {count(one.high_epochs)} of {counted(one.epochs, 'epoch')}" if one.epochs > 1 else ""
    )
    steps = ", ".join(map(count, one.first_steps[:_STEPS_SHOWN]))
    more = ", …" if len(one.first_steps) > _STEPS_SHOWN else ""
    plural = "s" if len(one.first_steps) > 1 else ""
    show(
        f"      stands out in {count(one.high_rows)} of the {counted(one.rows, per)} that read it{epochs}: "
        f"step{plural} {steps}{more}; excess {one.excess:.2f}"
    )
    if one.beside is not None and per == "row":
        show(f"      each of these rows also holds [{one.beside + 1}]")
    if one.text is not None:
        show(f"      {counted(one.length, 'token')}: {one.text!r}")


def _show_shared(found: SpikeReport) -> None:
    for one in found.shared:
        numbers = ", ".join(f"[{number + 1}]" for number in one.suspects)
        share = f"with {100 * one.share:.0f}% of the excess of all listed documents"
        if one.kind == "file":
            show(f"{numbers} are in the same file, {share}: {one_line(one.name)}")
        else:
            show(f"{numbers} begin alike, {share}: {one_line(repr(one.name))}")


def _list_row(one: HighRow) -> tuple[str, ...]:
    explained = one.explained
    largest = max(explained.documents, key=lambda part: part.stop - part.start)
    others = len(explained.documents) - 1
    named = "" if largest.document is None else f"document {largest.document.number}"
    if others and named:
        named += f" and {counted(others, 'other')}"
    source = f"{explained.span.source}: " if explained.span.source and named else ""
    return (
        count(explained.place.row),
        count(explained.place.step),
        f"{one.loss:.4f}",
        f"{one.excess:.4f}",
        f"{one.score:.1f}",
        source + named,
        "" if largest.text is None else repr(largest.text[:40]),
    )


def _show_groups(title: str, head: str, groups: tuple[LossGroup, ...]) -> None:
    rows = [
        (
            f"{count(one.count)} others" if one.count > 1 else one_line(one.name),
            count(one.tokens),
            f"{one.loss:.4f}",
            f"{one.excess:+.4f}",
        )
        for one in groups
    ]
    if rows:
        show_table(title, (head, "targets", "loss", "excess"), rows)


def _show_next(found: SpikeReport, run: Path | None, data: list[str], reading: Reading) -> None:
    """Print the commands that show more of the worst row and of the first suspect."""
    addresses = [_retype(one, found.paths) for one in data]
    if run is None:
        how = "".join(f" {quote(one)}" for one in addresses)
    else:
        how = f" --run {typed(run)}" + "".join(f" --data {quote(one)}" for one in addresses)
    if run is None:
        options = {name.replace("_", "-"): str(value) for name, value in reading.arguments.items()}
        how += typed_options(options)
    commands = []
    if found.rows:
        commands.append(f"tokenmill explain{how} --row {found.rows[0].explained.place.row}")
    elif found.spikes:
        commands.append(f"tokenmill explain{how} --step {found.spikes[0].step}")
    elif found.not_finite:
        commands.append(f"tokenmill explain{how} --step {found.not_finite[0].step}")
    if found.suspects:
        first = found.suspects[0]
        path = typed(as_path(found.paths[first.source]))
        split = f" --split {quote(found.split)}" if found.split != "train" else ""
        here = f"{path}{typed_options(reading.opening)}{split}"
        if first.document is None:
            commands.append(f"tokenmill peek {here} --token {first.start}")
        else:
            commands.append(f"tokenmill peek {here} --document {first.document.number}")
            if run is not None and first.document.key is not None:
                commands.append(f"tokenmill where --run {typed(run)} {first.document.key}")
    if not commands and run is not None and found.judged_steps:
        given = "".join(f" --data {quote(one)}" for one in addresses)
        lower = f"{found.threshold / 2:g}"
        commands.append(f"tokenmill spikes {typed(run)}{given} --threshold {lower}")
    if not commands:
        commands.append(f"tokenmill explain{how} --step {found.last_step}")
    show_next(*commands)


def _retype(given: str, paths: Mapping[str, str]) -> str:
    """Return an argument for the data in a form that can be printed: without passwords in a URL."""
    (named,) = parse_named([given])
    path = paths[named.name]
    if not named.name:
        return f"./{path}" if path.startswith("-") else path
    return f"{named.name}={path}:{given.rpartition(':')[2]}"
