"""`tokenmill pretokenize`: one .npy file next to each text file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tokenmill.cli.console import Display, parse_size, report_stopped, show
from tokenmill.errors import UsageError
from tokenmill.preparation.pretokenize import npy_path
from tokenmill.preparation.pretokenize import pretokenize as pretokenize_file
from tokenmill.storage.names import REPAIRED_NAME
from tokenmill.tokenizers import load_tokenizer
from tokenmill.wording import count, counted, duration, size


def pretokenize(
    *files: Annotated[Path, Parameter(name="FILE", required=True, json_list=False)],
    tokenizer: str = "gpt2",
    dtype: Literal["auto", "uint16", "uint32", "int32", "int64"] = "auto",
    workers: int | None = None,
    memory: str | None = None,
    restart: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Write the token ids of each file X.txt to X.npy in the same folder.

    NumPy can memory-map X.npy. The text is neither cleaned nor deduplicated. To resume after an
    interruption, run the same command again.

    Parameters
    ----------
    files
        Text files to tokenize, such as .txt or .jsonl. Files may be compressed (.gz, .zst, .bz2,
        .xz).
    tokenizer
        Tokenizer: gpt2, bytes, a tokenizer.json, .tiktoken or .model file, or organisation/name on
        the Hugging Face Hub.
    dtype
        Type of the stored ids. auto means uint16 if the vocabulary allows it, otherwise uint32.
    workers
        Number of worker processes. By default, one per core.
    memory
        Memory limit for all workers together, such as 2GB. By default, 288MiB per worker.
    restart
        Discard an existing or unfinished X.npy, and start over.
    """
    limit = parse_size(memory) if memory else None
    targets = [npy_path(text) for text in files]
    for text, target in zip(files, targets, strict=True):
        if targets.count(target) > 1:
            raise UsageError(
                f"{text} and another file would both be written to {target}. "
                "Rename one of the two files."
            )
    loaded = load_tokenizer(tokenizer)
    for text in files:
        started = time.monotonic()
        try:
            with Display() as display:
                made = pretokenize_file(
                    text,
                    tokenizer=loaded,
                    dtype=dtype,
                    workers=workers,
                    memory=limit,
                    restart=restart,
                    watcher=display,
                )
        except KeyboardInterrupt:
            return report_stopped(f"next to {text}")
        if made.was_there:
            show(f"{made.path} already exists: {counted(made.tokens, 'token')} of {made.dtype}.")
            continue
        ratio = (made.characters or 0) / max(1, made.tokens)
        show(
            f"{made.path}: {counted(made.tokens, 'token')} of {made.dtype}, "
            f"{size(made.path.stat().st_size)}; {ratio:.2f} characters a token; "
            f"{duration(time.monotonic() - started)}."
        )
        for reason, entry in made.dropped.items():
            show(f"  dropped ({reason}): {count(entry['documents'])}")
        if made.repaired:
            listed = made.path.with_suffix(f".{REPAIRED_NAME}")
            repaired = counted(made.repaired, "document")
            show(f"  repaired: {repaired} had invalid UTF-8: see {listed}")
        if made.rejected is not None:
            show(f"  rejected records are listed in {made.rejected}")
    show("\nNext, in Python:  tokens = numpy.load(PATH, mmap_mode='r')")
    return 0
