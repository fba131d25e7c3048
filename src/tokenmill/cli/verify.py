"""`tokenmill verify`: check every byte of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenmill.cli.console import Display, show, show_next, typed, typed_options
from tokenmill.cli.flags import name_flags
from tokenmill.cli.opening import RECOGNISED, Opening, parse_path
from tokenmill.dataset.verify import examine
from tokenmill.inspect.near import NearFindings, find_near_duplicates
from tokenmill.wording import count, one_line, size

PROBLEMS_SHOWN = 100


def verify(
    path: Annotated[Path, Parameter(name="PATH", converter=parse_path)],
    /,
    *,
    vocab_size: int | None = None,
    near: Annotated[bool, Parameter(negative="")] = False,
    near_threshold: float = 0.8,
    opening: Opening = RECOGNISED,
) -> int:
    """Check every byte of a dataset: checksums, ids, documents, splits and counts.

    The exit status is 0 if the dataset is correct, and 1 if anything is wrong.

    Parameters
    ----------
    path
        Dataset folder, or a file or folder of tokens in another format.
    vocab_size
        Number of ids in the vocabulary. Every id must be below this number. By default,
        the number comes from the data.
    near
        Also show how many documents are near duplicates of others, within splits and across them.
        Compares the decoded text. The exit status does not depend on it.
    near_threshold
        Similarity from which documents are near duplicates, with --near.
    """
    here = typed(path) + typed_options(opening.options)
    with Display() as display:
        findings = examine(path, watcher=display, vocab_size=vocab_size, **opening.options)
        similar = None
        if near and not findings.problems:
            similar = find_near_duplicates(
                path,
                threshold=near_threshold,
                watcher=display,
                vocab_size=vocab_size,
                **opening.options,
            )
    for note in findings.notes:
        show(f"note: {one_line(note)}")
    if not findings.problems:
        known = findings.documents
        documents = "" if known is None else f"{count(known)} documents, "
        show(
            f"sound: {count(findings.shards)} shards, {count(findings.tokens)} tokens, "
            f"{documents}{size(findings.bytes)}"
        )
        if similar is not None:
            _show_near(similar)
        show_next(f"tokenmill {'info' if opening.options else 'train'} {here}")
        return 0
    for problem in findings.problems[:PROBLEMS_SHOWN]:
        show(f"{one_line(f'{problem.file} {problem.what}')}.\n    {name_flags(problem.cure)}")
    if len(findings.problems) > PROBLEMS_SHOWN:
        show(f"… and {count(len(findings.problems) - PROBLEMS_SHOWN)} more problems")
    files = len({problem.file for problem in findings.problems})
    show(f"damaged: {count(len(findings.problems))} problems in {count(files)} files of {path}")
    return 1


def _show_near(found: NearFindings) -> None:
    """Show how many documents resemble others, for each pair of splits that has some."""
    compared = f"{count(found.compared)} of {count(found.documents)} documents compared"
    if not found.splits:
        show(f"near duplicates: none; {compared}, similarity at least {found.threshold:g}")
        return
    show(f"near duplicates: {compared}, similarity at least {found.threshold:g}")
    for one in found.splits:
        other = "an earlier document" if one.other == one.split else f"a document of {one.other}"
        show(f"  {count(one.documents)} of {one.split} resemble {other}, such as:")
        for pair in one.examples:
            show(
                f"    {pair.split} {count(pair.number)} and {pair.other_split} "
                f"{count(pair.other_number)}: {pair.similarity:.3f}"
            )
