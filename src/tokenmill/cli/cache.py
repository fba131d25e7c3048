"""`tokenmill cache`: copy a dataset into the disk cache before a job starts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenmill.cli.console import (
    Display,
    parse_size,
    report_stopped,
    show,
    show_next,
    show_table,
    typed,
    typed_options,
)
from tokenmill.cli.opening import RECOGNISED, Opening, parse_path
from tokenmill.dataset.caching import CacheReport
from tokenmill.dataset.caching import cache as cache_dataset
from tokenmill.wording import duration, size


def cache(
    path: Annotated[Path, Parameter(name="DATA", converter=parse_path)],
    /,
    *,
    cache_bytes: Annotated[str | None, Parameter(name="--bytes")] = None,
    cache_dir: Path | None = None,
    split: Annotated[list[str] | None, Parameter(negative="")] = None,
    opening: Opening = RECOGNISED,
) -> int:
    """Copy a dataset into the cache on local disk, before a job that reads it starts.

    This is for datasets in object stores and on slow disks. To resume after an interruption, run the
    same command again. It fetches only what is not in the cache yet.

    Parameters
    ----------
    path
        Address or folder of a dataset, or of tokens in another format.
    cache_bytes
        Limit of the cache, such as 200GB. By default, an existing cache keeps its limit, and a new
        cache gets 17GB, but at most half of the free space.
    cache_dir
        Folder of the cache. By default, ~/.cache/tokenmill.
    split
        Split to fetch. May be given several times. By default, all splits.
    """
    started = time.monotonic()
    try:
        with Display() as display:
            report = cache_dataset(
                path,
                cache_dir=cache_dir,
                cache_bytes=None if cache_bytes is None else parse_size(cache_bytes),
                split=split,
                watcher=display,
                **opening.options,
            )
    except KeyboardInterrupt:
        return report_stopped("in the cache")
    _show(path, report, time.monotonic() - started)
    options = {**opening.options, "cache-dir": None if cache_dir is None else str(cache_dir)}
    where = f", cache_dir={str(report.folder)!r}"
    given = "".join(f", {name}={value!r}" for name, value in opening.options.items())
    show_next(
        f"tokenmill info {typed(path)}{typed_options(options)}",
        f"in Python: tokenmill.open({str(path)!r}{given}{where})",
    )
    return 0


def _show(path: Path, report: CacheReport, seconds: float) -> None:
    show(
        f"{path}: {size(report.cached)} of {size(report.bytes)} are in the cache {report.folder}, "
        f"whose limit is {size(report.limit)}."
    )
    if report.fetched:
        rate = size(report.fetched / max(1e-9, seconds))
        show(f"Fetched {size(report.fetched)} in {duration(seconds)}, {rate}/s.")
    else:
        show("Nothing was left to fetch.")
    if report.cached < report.bytes <= report.limit:
        lost = size(report.bytes - report.cached)
        show(f"The cache is full: {lost} of the data were dropped from it. Use a larger --bytes.")
    show_table(
        None,
        ("split", "size", "cached"),
        [(one.name, size(one.bytes), size(one.cached)) for one in report.splits],
    )
