"""Write the overview and some documents as HTML files, for a data card.

The folder is complete: its pages load nothing but files in it, so it can be put on any web server or
opened from disk. It contains neither the access token of a viewer nor a link to one. Pages of
documents that an earlier export wrote are removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenmill.dataset.opening import Dataset
from tokenmill.errors import FolderError, UsageError
from tokenmill.inspect.stats.stats import stats
from tokenmill.inspect.view.app import read_static
from tokenmill.inspect.view.documents import show_document
from tokenmill.inspect.view.listing import get_documents, show_listed
from tokenmill.inspect.view.overview import show_overview
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.rendering import Templates
from tokenmill.inspect.view.viewer import Page, Viewer, read_tokens
from tokenmill.inspect.view.work import StatisticsWork
from tokenmill.progress import Watcher
from tokenmill.storage.files import make_folder, make_subfolder, refuse_link, remove, write_file

MOST_DOCUMENTS = 10_000
_STATIC = "static"
_LIST = "documents.html"
_DOCUMENT = re.compile(r"document_[0-9]+\.html")


def export(
    dataset: Dataset,
    folder: str | os.PathLike[str],
    *,
    split: str,
    documents: Iterable[int],
    watcher: Watcher | None = None,
) -> list[Path]:
    """Write the pages, and return their paths, `index.html` first.

    Of each document, only the first page is written. If no statistics are kept beside the dataset,
    they are computed.
    """
    numbers = sorted(set(documents))
    if len(numbers) > MOST_DOCUMENTS:
        raise UsageError(
            f"at most {MOST_DOCUMENTS:,} documents can be exported, got {len(numbers):,}."
        )
    table = get_documents(dataset, read_tokens(dataset, split)) if numbers else ()
    for number in numbers:
        if not 0 <= number < len(table):
            raise UsageError(
                f"split {split!r} has no document {number:,}: it has {len(table):,}, numbered from 0."
            )
    stats(dataset, watcher=watcher)
    target = _claim(Path(folder))
    viewer = Viewer(datasets={"": dataset}, statistics=StatisticsWork({"": dataset}))
    chosen = set(numbers)

    def link(path: str, **parameters: Any) -> str | None:
        if path == "/":
            return "index.html"
        if path == "/documents" and numbers and not _is_filter(parameters):
            return _LIST
        number = path.removeprefix("/document/")
        if number.isdigit() and int(number) in chosen and not parameters.get("start"):
            return f"document_{number}.html"
        return None

    templates = Templates(link=link, static=_STATIC, is_export=True, names={"viewer": viewer})
    pages: list[tuple[str, Page]] = [("index.html", show_overview(viewer, Query({})))]
    if numbers:
        pages.append((_LIST, show_listed(dataset, split, numbers)))
    written = []
    for name, page in pages:
        written.append(_write(target / name, templates.render(page, data="")))
    for number in numbers:
        page = show_document(viewer, Query({"number": str(number), "split": split}), link=link)
        written.append(_write(target / f"document_{number}.html", templates.render(page, data="")))
    make_subfolder(target, target / _STATIC)
    for name, data in read_static():
        write_file(target / _STATIC / name, data)
    for path in set(_list_pages(target)) - set(written):
        remove(path)
    return written


def _is_filter(parameters: dict[str, Any]) -> bool:
    return any(parameters.get(name) is not None for name in ("source", "least", "most"))


def _claim(folder: Path) -> Path:
    """Make the folder. It must be new or empty, or the result of an earlier export."""
    refuse_link(folder / _STATIC)
    if folder.exists() and not (
        folder.is_dir() and (not any(folder.iterdir()) or (folder / _STATIC / "view.css").is_file())
    ):
        raise FolderError(
            f"{folder} is not empty, and was not written by `tokenmill view --export`. Choose a new "
            "folder."
        )
    make_folder(folder)
    return folder


def _list_pages(folder: Path) -> list[Path]:
    """Return the files of an export that show documents."""
    names = (name for name in os.listdir(folder) if name == _LIST or _DOCUMENT.fullmatch(name))
    return [folder / name for name in names if not (folder / name).is_dir()]


def _write(path: Path, html: str) -> Path:
    write_file(path, html.encode("utf-8", "backslashreplace"))
    return path
