"""`tokenmill download`: files of a dataset on the Hugging Face Hub."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenmill.cli.console import Display, report_stopped, show, show_next, typed
from tokenmill.dataset.download import Downloaded
from tokenmill.dataset.download import download as download_files
from tokenmill.hub.choose import shard_number
from tokenmill.wording import counted, duration, size


def download(
    repository: Annotated[str | None, Parameter(name="REPO")] = None,
    /,
    *,
    shards: str | None = None,
    split: str | None = None,
    max_files: int | None = None,
    to: Path | None = None,
) -> int:
    """Download tokens or text from the Hugging Face Hub, and check the checksum of each file.

    To resume after an interruption, even in the middle of a file, run the same command again.
    Without REPO, the command downloads three shards of 200 MB each from
    karpathy/fineweb-edu-100B-gpt2-token-shards.

    Parameters
    ----------
    repository
        Dataset on the Hub, as OWNER/NAME. Append @REVISION to choose a version. Append /FOLDER,
        /FILE or /GLOB to choose files.
    shards
        Numbers of the token files to download, such as 1-3 or 1,4,7-9. By default, all token files.
    split
        Download only files whose names contain this word, such as train.
    max_files
        Maximum number of files to download, in the order of their names. By default, no limit.
    to
        Folder for the downloaded files. By default, data/NAME for the dataset OWNER/NAME.
    """
    # A failure is reported once at the end; the library's messages about retries are noise.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    started = time.monotonic()
    try:
        with Display() as display:
            done = download_files(
                repository,
                shards=shards,
                split=split,
                max_files=max_files,
                to=to,
                watcher=display,
            )
    except KeyboardInterrupt:
        return report_stopped("in the target folder")
    _show(done, time.monotonic() - started)
    return 0


def _show(done: Downloaded, seconds: float) -> None:
    summary = f"{done.path}: {counted(len(done.files), 'file')}, {size(done.bytes)}, all checked"
    if done.fetched:
        rate = size(done.fetched / max(1e-9, seconds))
        show(f"{summary}; {size(done.fetched)} downloaded in {duration(seconds)}, {rate}/s.")
    else:
        show(f"{summary}; nothing to download.")
    show_next(_next_command(done))


def _next_command(done: Downloaded) -> str:
    folders = {path.parent for path in done.files}
    if done.kind == "text":
        return f"tokenmill prepare {typed(done.path)} --out {typed(Path(f'{done.path}-tokens'))}"
    if done.kind == "prepared":
        manifest = min(folders, key=lambda folder: len(folder.parts))
        return f"tokenmill info {typed(manifest)}"
    if len(done.files) == 1:
        return f"tokenmill info {typed(done.files[0])}"
    folder = Path(os.path.commonpath(folders))
    numbers = [number for path in done.files if (number := shard_number(path.name)) is not None]
    has_gap = numbers and max(numbers) - min(numbers) >= len(set(numbers))
    return f"tokenmill info {typed(folder)}" + (" --format llmc" if has_gap else "")
