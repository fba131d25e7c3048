"""`tokenmill stats`: what a dataset consists of."""

from __future__ import annotations

import dataclasses
import json as json_format
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from tokenmill.cli.console import (
    Display,
    draw_bar,
    parse_count,
    quote,
    show,
    show_next,
    show_table,
    typed_options,
    warn,
)
from tokenmill.cli.flags import name_flags
from tokenmill.cli.opening import RECOGNISED, Opening
from tokenmill.errors import UsageError
from tokenmill.inspect.stats.result import Figures, Statistics
from tokenmill.inspect.stats.stats import stats as compute
from tokenmill.wording import count, counted, one_line

_TEXT = 30  # characters of a token's text to show


def stats(
    data: Annotated[list[str], Parameter(name="DATA", json_list=False, negative="")],
    /,
    *,
    split: str | None = None,
    seq_len: int = 1024,
    budget: str | None = None,
    sample: str | None = None,
    top: int = 10,
    tokenizer: str | None = None,
    eot_id: int | None = None,
    vocab_size: int | None = None,
    opening: Opening = RECOGNISED,
    fresh: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Show what a dataset consists of.

    Shows tokens per source, lengths of documents, frequent and unused tokens, scripts, repeated
    lines, documents that rows cut, and the epochs that a training budget amounts to. The result is
    kept beside the dataset, so the next call is quick.

    Parameters
    ----------
    data
        Folder of a dataset, or tokens in another format. For a mixture, give each dataset a name and
        a weight: web=DIR:0.7 code=DIR:0.3.
    split
        Show only this split. By default, all splits together.
    seq_len
        Tokens per row, to count the documents that rows cut.
    budget
        Tokens to train on, such as 10B. Shows how many epochs of each source that means.
    sample
        Maximum number of tokens to read, such as 500M, or all. By default, 10B; 200M if the data is
        in an object store.
    top
        Number of sources and tokens to show.
    tokenizer
        Tokenizer that made the tokens, such as gpt2, bytes or a file. By default, the tokenizer
        comes from the data.
    eot_id
        Id that separates documents. By default, the id comes from the tokenizer or the data.
    vocab_size
        Number of ids in the vocabulary. By default, the number comes from the tokenizer or the data.
    fresh
        Compute the statistics again, even if they are kept from an earlier call.
    json
        Print all statistics as JSON.
    """
    if top < 1:
        raise UsageError(f"`top` is {top}; it must be 1 or more.")
    limit: Any = sample if sample in (None, "all") else parse_count(str(sample))
    with Display() as display:
        found = compute(
            data,
            split=split,
            seq_len=seq_len,
            budget=None if budget is None else parse_count(budget),
            sample=limit,
            tokenizer=tokenizer,
            eot_id=eot_id,
            vocab_size=vocab_size,
            **opening.options,
            fresh=fresh,
            watcher=display,
        )
    if json:
        print(json_format.dumps(_encode(found), indent=2).replace("\x7f", "\\u007f"))
        return 0
    for name, part in (found.parts or {"": found}).items():
        if name:
            show(f"\n== {one_line(name)} ==")
        _show(part, seq_len, top)
    _show_budget(found)
    shown = " ".join(quote(one) for one in data)
    options = typed_options({"tokenizer": tokenizer, **opening.options})
    if found.parts:
        show_next(f"tokenmill stats {shown}{options} --budget 10B")
    else:
        show_next(
            f"tokenmill peek {shown}{options}",
            f"tokenmill stats {shown}{options} --budget 10B",
        )
    return 0


def _encode(found: Statistics) -> dict[str, Any]:
    """Return all figures as JSON values."""
    values = {one.name: getattr(found, one.name) for one in dataclasses.fields(Figures)}
    encoded: dict[str, Any] = msgspec.to_builtins(Figures(**values))
    encoded["tokens"], encoded["documents"] = found.tokens, found.documents
    encoded["sources"] = None if found.sources is None else msgspec.to_builtins(list(found.sources))
    encoded["budget"] = msgspec.to_builtins(found.budget)
    encoded["parts"] = {name: _encode(part) for name, part in found.parts.items()}
    return encoded


def _show(found: Statistics, seq_len: int, top: int) -> None:
    documents = "" if found.documents is None else f" of {counted(found.documents, 'document')}"
    show(f"{one_line(found.path)}: {counted(found.tokens, 'token')}{documents}")
    if not found.sample.is_all:
        read = counted(found.sample.documents, "document")
        show(f"From a sample of {counted(found.sample.tokens, 'token')} and {read}.")
    if found.bytes_per_token is not None:
        show(f"A token is {found.bytes_per_token:.2f} bytes of text.")
    _show_sources(found, top)
    _show_lengths(found, seq_len)
    _show_ids(found, top)
    _show_text(found, top)
    for one in found.omitted:
        show(f"\nNot shown: {one.part}, because {name_flags(one.reason)}")


def _show_sources(found: Statistics, top: int) -> None:
    sources = found.sources
    if sources is None or not len(sources):
        return
    shown = sources[:top]
    if len(sources) > top:
        shown.append(sources.fold(top))
    whole = int(sources.columns[0].sum()) or 1
    show_table(
        f"Sources ({count(len(sources))})",
        ("file", "tokens", "share", "documents", "bytes/token", ""),
        [
            (
                one.path,
                count(one.tokens),
                f"{one.tokens / whole:.1%}",
                count(one.documents),
                "" if one.bytes_per_token is None else f"{one.bytes_per_token:.2f}",
                draw_bar(one.tokens / whole),
            )
            for one in shown
        ],
    )


def _show_lengths(found: Statistics, seq_len: int) -> None:
    lengths = found.lengths
    if lengths is None or not lengths.documents:
        return
    most = max(one.documents for one in lengths.bins)
    show_table(
        "Lengths of documents",
        ("tokens", "documents", "share", "of tokens", ""),
        [
            (
                count(one.first) if one.first == one.last else f"{one.first:,}-{one.last:,}",
                count(one.documents),
                f"{one.documents / lengths.documents:.1%}",
                f"{one.tokens / max(lengths.tokens, 1):.1%}",
                draw_bar(one.documents / most),
            )
            for one in lengths.bins
        ],
    )
    quantiles = [f"{one.share:.0%} {count(one.length)}" for one in lengths.quantiles]
    show(
        f"  Shortest {count(lengths.shortest)}, mean {lengths.mean:,.0f}, longest "
        f"{count(lengths.longest)}. Quantiles: {', '.join(quantiles)}."
    )
    show_table(
        "Rows",
        ("row of", "documents cut", "tokens without the start of their document"),
        [
            (
                f"{counted(one.seq_len, 'token')}",
                f"{one.share_of_documents:.1%}",
                f"{one.share_of_tokens:.1%}",
            )
            for one in found.cuts
            if one.seq_len in (512, 1024, 2048, 4096, 8192, 32768, seq_len)
        ],
    )


def _show_ids(found: Statistics, top: int) -> None:
    frequent = found.frequent[:top]
    if frequent:
        show_table(
            "Frequent tokens",
            ("id", "text", "count", "share", ""),
            [
                (
                    str(one.id),
                    one.quote(_TEXT),
                    count(one.count),
                    f"{one.share:.2%}",
                    draw_bar(one.share / max(frequent[0].share, 1e-9)),
                )
                for one in frequent
            ],
        )
    if found.unused is not None:
        examples = ", ".join(
            f"{one.id} {one.quote(_TEXT)}".rstrip() for one in found.unused.examples[:top]
        )
        show(
            f"\nNever used: {counted(found.unused.count, 'id')}, {found.unused.share:.1%} of the "
            f"vocabulary{f', such as {examples}' if examples else ''}."
        )


def _show_text(found: Statistics, top: int) -> None:
    scripts, lines = found.scripts, found.lines
    if scripts is not None and scripts.letters:
        where = (
            f"in {counted(scripts.tokens, 'token')} of decoded text"
            if scripts.is_decoded
            else f"counted by token; {scripts.split_share:.2%} of the bytes are parts of characters"
        )
        show_table(
            f"Scripts ({where})",
            ("script", "letters", "share", ""),
            [
                (one.script, count(one.letters), f"{one.share:.2%}", draw_bar(one.share))
                for one in scripts.scripts[:top]
            ],
        )
        rest = scripts.characters - scripts.letters
        show(f"  {counted(rest, 'other character')}: digits, punctuation, spaces and symbols.")
    if lines is not None:
        where = (
            f"in a sample of {counted(lines.tokens, 'token')}; the share in all data is higher"
            if lines.is_sample
            else "in all text"
        )
        show(
            f"\nRepeated lines: {lines.share:.1%} of {counted(lines.lines, 'line')} of at least "
            f"{lines.min_length} characters, {where}."
        )


def _show_budget(found: Statistics) -> None:
    if not found.budget:
        return
    show_table(
        "Budget",
        ("source", "share", "tokens to train on", "tokens there", "epochs"),
        [
            (
                one.name,
                f"{one.share:.1%}",
                count(one.trained),
                count(one.available),
                f"{one.epochs:,.2f}",
            )
            for one in found.budget
        ],
    )
    for one in found.budget:
        if one.has_many_epochs:
            warn(
                f"warning: {one_line(one.name)} is repeated {one.epochs:,.1f} times. Beyond 4 epochs, "
                "repeated data helps little: lower its weight or the budget, or add data."
            )
