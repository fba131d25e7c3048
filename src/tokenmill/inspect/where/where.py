"""Find out where a document is, why it is not in a dataset, and when a run reads it.

This is the reverse of `explain`. The user names a document by its place in an input file, by its key,
by some of its text, by its number, or by one of its tokens.

Guarantees: what `where` says about a record of an input file follows from reading that record again,
with the functions and settings that made the dataset. Memory is bounded for any corpus and any record.

Costs: a place in a file takes a few binary searches, and reading the record again if no document
starts at the place. A key takes a few milliseconds with an index (`keys.py`). A text takes a search.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import PurePath
from typing import Any, Literal, cast

import tokenmill.dataset.opening
from tokenmill.dataset.named import parse_named
from tokenmill.dataset.opening import Dataset
from tokenmill.dataset.paths import AnyPath
from tokenmill.errors import DatasetError, TokenizerError, UsageError
from tokenmill.inspect.explain import make_view
from tokenmill.inspect.run_view import RunView
from tokenmill.inspect.search.search import search
from tokenmill.inspect.where.absence import LISTED, find_excluded
from tokenmill.inspect.where.described import Describer
from tokenmill.inspect.where.file_finder import FileFinder
from tokenmill.inspect.where.keys import DIGITS, find_key, is_key, open_tables
from tokenmill.inspect.where.source_places import find_nearest, parse_place
from tokenmill.inspect.where.whereabouts import Absence, FoundDocument, Whereabouts
from tokenmill.order.rows import Kind as OrderKind
from tokenmill.preparation.sift import EXCLUDED
from tokenmill.progress import Watcher, watching
from tokenmill.wording import one_line

Kind = Literal["file", "key", "text", "token", "document"]

_NUMBERED = re.compile(r"(token|document)[=: ]([0-9][0-9,]{0,24})")
_COMPARED = 100  # sources to look at, to learn how the names of sources end
_LONGEST_NAME = 1_000  # characters of a text that may have been meant as the name of a source


def where(
    data: AnyPath | Sequence[AnyPath],
    what: str,
    *,
    kind: Kind | None = None,
    split: str | None = None,
    limit: int = 10,
    run: AnyPath | None = None,
    seq_len: int | None = None,
    batch_size: int | None = None,
    world_size: int | None = None,
    seed: int | None = None,
    order: OrderKind | None = None,
    block_rows: int | None = None,
    group_blocks: int | None = None,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    **opening: Any,
) -> Whereabouts:
    """Find a document: its split and tokens, why it is absent, and the steps that read it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tokenmill
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("to be\\nor not\\nto be\\n")
    >>> _ = tokenmill.prepare(
    ...     folder / "a.txt", folder / "data", tokenizer="bytes", documents="line", val_fraction=0
    ... )
    >>> found = where(folder / "data", "a.txt:2")
    >>> found.documents[0].split, found.documents[0].start, found.documents[0].length
    ('train', 6, 7)
    >>> absence = where(folder / "data", "a.txt:3").absences[0]
    >>> absence.reason, absence.twins[0].document.offset
    ('duplicate', 0)

    Parameters
    ----------
    data
        A dataset, any tokens that `tokenmill.open` opens, or several as "NAME=PATH:WEIGHT". May be
        empty if `run` is given.
    what
        FILE, FILE:LINE, FILE:byte=BYTE or FILE:row=ROW; a key or at least its first 6 digits;
        token=TOKEN or document=DOCUMENT; or text to search for.
    kind
        What `what` is: file, key, text, token or document. By default, tokenmill works this out.
    split
        The split of a token or a document, or the only split to search for text.
    limit
        The number of documents to return.
    run
        The folder of a run of `tokenmill.train`, to find out at which steps it reads the document.
    seq_len, batch_size, world_size, seed, order, block_rows, group_blocks
        Settings of a `Loader`, to find the steps of any other run. `seq_len` and `batch_size` are
        needed.
    progress, watcher
        As for `tokenmill.prepare`.
    opening
        `tokenizer`, `dtype`, `format`, `column` and other options of `tokenmill.open`.
    """
    if limit < 1:
        raise UsageError(f"`limit` is {limit}; it must be 1 or more.")
    settings: dict[str, Any] = {
        "seq_len": seq_len,
        "batch_size": batch_size,
        "world_size": world_size,
        "seed": seed,
        "order": order,
        "block_rows": block_rows,
        "group_blocks": group_blocks,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    view = None
    if run is not None or given or (not isinstance(data, os.PathLike) and not data):
        if split is not None and run is None:
            given["split"] = split
        view = make_view(data, run=run, settings=given, opening=opening)
        datasets = {
            name: one if view.split in one else view.datasets[name]
            for name, one in view.whole.items()
        }
    else:
        paths = [data] if isinstance(data, (str, os.PathLike)) else data
        datasets = {
            one.name: tokenmill.dataset.opening.open(one.path, cache_bytes=0, **opening)
            for one in parse_named(paths)
        }
    with watching(watcher, progress) as shown:
        return Finder(datasets, view, limit=limit, split=split, watcher=shown).find(what, kind)


class Finder:
    """Finds documents in some datasets, and when a run reads them if there is a `view` of one."""

    def __init__(
        self,
        datasets: Mapping[str, Dataset],
        view: RunView | None,
        *,
        limit: int,
        split: str | None,
        watcher: Watcher,
    ) -> None:
        self._datasets = datasets
        self._limit, self._split, self._watcher = limit, split, watcher
        # Only documents of prepared datasets have keys and sources.
        self._prepared = {name: one for name, one in datasets.items() if one.manifest is not None}
        self._describer = Describer(view)
        self._files = FileFinder(self._prepared, self._describer, limit, watcher)

    def find(self, what: str, kind: Kind | None) -> Whereabouts:
        """Find what `what` names. Without a `kind`, work out from the text what it names."""
        if not what:
            raise UsageError("`what` is empty; give a file, a key or some text.")
        if kind in ("file", "key") and not self._prepared:
            for dataset in self._datasets.values():
                open_tables(dataset)  # raises the error
        numbered = _NUMBERED.fullmatch(what)
        if kind in ("token", "document") or (kind is None and numbered):
            return self._find_number(what, kind, numbered)
        if kind in (None, "file") and (found := self._files.find_source(what)):
            return found
        if kind == "key" or (kind is None and is_key(what)):
            found = self._find_key(what)
            if found.documents or found.absences or kind == "key" or len(what) == DIGITS:
                return found
        if kind in (None, "file") and (found := self._files.find_other_file(what)):
            return found
        if kind == "file" or (kind is None and self._looks_like_source(parse_place(what).name)):
            raise self._no_source(parse_place(what).name)
        if kind == "text":
            return self._find_text(what)
        try:
            found = self._find_text(what)
        except TokenizerError as error:
            if self._prepared:
                raise
            raise DatasetError(
                f"{one_line(what)!r} is not a file, because {self._lacks_sources()}. It cannot be "
                f"searched for as text either: {error}"
            ) from error
        if not found.documents and (note := self._find_hint(parse_place(what).name)):
            found = replace(found, notes=(note,))
        return found

    def _find_number(
        self, what: str, kind: Kind | None, numbered: re.Match[str] | None
    ) -> Whereabouts:
        digits = (what if numbered is None else numbered[2]).replace(",", "")
        if kind is None and numbered is not None:
            kind = cast("Kind", numbered[1])
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 24):
            raise UsageError(f"{what!r} is not a number. Give {kind}=NUMBER, counted from 0.")
        assert kind is not None
        number, split = int(digits), self._split or "train"
        if len(self._datasets) != 1:
            names = ", ".join(self._datasets)
            raise UsageError(
                f"a number needs one dataset, not several ({names}). Give one of them."
            )
        ((name, dataset),) = self._datasets.items()
        tokens = dataset[split]
        documents = tokens.documents
        if kind == "document" and documents is None:
            raise UsageError(f"{dataset.path} has no document table. Give token=TOKEN instead.")
        length = len(documents) if kind == "document" and documents is not None else len(tokens)
        if number >= length:
            raise UsageError(
                f"split {split!r} has no {kind} {number}: it has {length:,} {kind}s, numbered 0 to "
                f"{length - 1}."
            )
        if documents is None:
            found = self._describer.describe_token(name, dataset, split, number)
        else:
            document = documents.at(number) if kind == "token" else documents[number]
            found = self._describer.describe(name, dataset, document)
        return Whereabouts(what=what, kind=kind, documents=(found,))

    def _find_key(self, key: str) -> Whereabouts:
        documents: list[FoundDocument] = []
        keys: set[str] = set()
        is_all = True
        for name, dataset in self._prepared.items():
            found = find_key(dataset, key, most=self._limit + 1, watcher=self._watcher)
            keys |= {one.key for one in found if one.key is not None}
            is_all &= len(found) <= self._limit
            documents += [
                self._describer.describe(name, dataset, one) for one in found[: self._limit]
            ]
        if len(keys) > 1:
            shown = ", ".join(sorted(keys)[:3])
            raise UsageError(
                f"{key!r} is the beginning of several keys, such as {shown}. Give more digits. To search "
                "for it as text, add `kind='text'`."
            )
        answer = Whereabouts(what=key, kind="key", documents=tuple(documents), is_all=is_all)
        return answer if documents else replace(answer, absences=self._find_excluded(key))

    def _find_excluded(self, key: str) -> tuple[Absence, ...]:
        """Return what the lists of excluded documents say about a key."""
        found = []
        for name, dataset in self._prepared.items():
            if (entry := find_excluded(dataset, key)) is not None:
                unit = "row" if "row" in entry else "byte"
                start = entry.get("row", entry.get("offset"))
                found.append(
                    Absence(
                        name=name,
                        path=str(dataset.path),
                        source=str(entry.get("source")),
                        unit=unit,
                        reason=EXCLUDED,
                        detail=LISTED,
                        start=start if isinstance(start, int) else None,
                        key=str(entry.get("key")),
                    )
                )
        return tuple(found)

    def _find_text(self, text: str) -> Whereabouts:
        documents: list[FoundDocument] = []
        is_all = True
        for name, dataset in self._datasets.items():
            matches = search(dataset, text, split=self._split, watcher=self._watcher)
            seen: set[tuple[str, int]] = set()
            for match in matches:
                document = match.document
                start = match.token if document is None else document.start
                if (match.split, start) in seen:
                    continue
                if len(documents) == self._limit:
                    is_all = False
                    break
                seen.add((match.split, start))
                if document is None:
                    place = self._describer.describe_token(name, dataset, match.split, start)
                else:
                    place = self._describer.describe(name, dataset, document)
                shown = one_line(match.before[-40:] + match.found[:80] + match.after[:40])
                documents.append(replace(place, found=match.token, text=shown))
        return Whereabouts(what=text, kind="text", documents=tuple(documents), is_all=is_all)

    def _looks_like_source(self, name: str) -> bool:
        """Return whether a name has no spaces, and the suffix of the name of some source."""
        if name.split() != [name]:
            return False
        suffix = PurePath(name).suffix
        return bool(suffix) and any(
            suffix == PurePath(source.path).suffix
            for dataset in self._prepared.values()
            if dataset.manifest is not None
            for source in islice(dataset.manifest.sources, _COMPARED)
        )

    def _lacks_sources(self) -> str:
        """Say which data records no sources, if there is no prepared dataset."""
        (dataset, *_) = self._datasets.values()
        return f"{dataset.path} is in the format {dataset.format}, which records no sources and no keys"

    def _find_hint(self, name: str) -> str | None:
        """Return what a name may have meant that is no text of the data, or None."""
        if not self._prepared:
            return f"{self._lacks_sources()}: files cannot be found in it."
        if len(name) <= _LONGEST_NAME and (near := self._find_near(name)):
            return f"No source is named {one_line(name)}. Did you mean {one_line(near)}?"
        return None

    def _find_near(self, name: str) -> str | None:
        """Return the name of a source that is similar, or None."""
        for dataset in self._prepared.values():
            assert dataset.manifest is not None
            if near := find_nearest(dataset.manifest.sources, name):
                return near
        return None

    def _no_source(self, name: str) -> UsageError:
        path = ", ".join(str(dataset.path) for dataset in self._prepared.values())
        near = self._find_near(name)
        hint = f" Did you mean {one_line(near)}?" if near else ""
        return UsageError(
            f"{path} has no source {name!r}, and there is no such file.{hint} To search for it as text, "
            "add `kind='text'`."
        )
