"""`tokenmill verify`: check every byte of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenmill.cli.console import Display, show, show_next, typed, typed_options
from tokenmill.cli.flags import name_flags
from tokenmill.cli.opening import RECOGNISED, Opening, parse_path
from tokenmill.dataset.verify import examine
from tokenmill.wording import count, one_line, size

PROBLEMS_SHOWN = 100


def verify(
    path: Annotated[Path, Parameter(name="PATH", converter=parse_path)],
    /,
    *,
    vocab_size: int | None = None,
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
    """
    here = typed(path) + typed_options(opening.options)
    with Display() as display:
        findings = examine(path, watcher=display, vocab_size=vocab_size, **opening.options)
    for note in findings.notes:
        show(f"note: {one_line(note)}")
    if not findings.problems:
        known = findings.documents
        documents = "" if known is None else f"{count(known)} documents, "
        show(
            f"sound: {count(findings.shards)} shards, {count(findings.tokens)} tokens, "
            f"{documents}{size(findings.bytes)}"
        )
        show_next(f"tokenmill {'info' if opening.options else 'train'} {here}")
        return 0
    for problem in findings.problems[:PROBLEMS_SHOWN]:
        show(f"{one_line(f'{problem.file} {problem.what}')}.\n    {name_flags(problem.cure)}")
    if len(findings.problems) > PROBLEMS_SHOWN:
        show(f"… and {count(len(findings.problems) - PROBLEMS_SHOWN)} more problems")
    files = len({problem.file for problem in findings.problems})
    show(f"damaged: {count(len(findings.problems))} problems in {count(files)} files of {path}")
    return 1
