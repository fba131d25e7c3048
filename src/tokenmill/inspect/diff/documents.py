"""The documents of a dataset as entries for `diff`: by the keys of their texts, or by their tokens.

In a prepared dataset, a document's key is a hash of its text. Documents of data in other formats have
no keys. If either dataset has none, the documents of both are compared by hashes of their ids. These
are the keys that `tokenmill.import_dataset` writes, so an imported dataset has them already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.convert.import_dataset import HashedDocuments
from tokenmill.dataset.opening import Dataset
from tokenmill.errors import DatasetError, TokenizerError
from tokenmill.inspect.diff.matching import ENTRY, Entries
from tokenmill.inspect.where.keys import open_tables
from tokenmill.storage.reading import check_size, find_all_files, for_each_file, open_inside
from tokenmill.store.tables import MOST
from tokenmill.store.tokens import Tokens

_TEXT_TOKENS = 40

Integers = npt.NDArray[np.int64]


class Side:
    """One of the two datasets. With `by_tokens`, its documents are known by hashes of their ids."""

    def __init__(self, dataset: Dataset, *, by_tokens: bool) -> None:
        self.dataset = dataset
        self.hashes = by_tokens and not is_imported(dataset)

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of all splits, also of those without tokens."""
        manifest = self.dataset.manifest
        return self.dataset.splits if manifest is None else tuple(manifest.splits)

    @cached_property
    def size(self) -> int:
        """How many bytes have to be read to compare the dataset."""
        if self.hashes:
            return sum(len(tokens) * tokens.dtype.itemsize for tokens in self.dataset.values())
        return sum(len(table) for table in open_tables(self.dataset)) * ENTRY.itemsize

    def check_sizes(self) -> None:
        """Raise an error that names a file of tokens whose size is not the one in the manifest.

        The documents of a prepared dataset are compared by its document tables, so otherwise nothing
        would notice that tokens are missing.
        """
        manifest, folder = self.dataset.manifest, self.dataset.path
        if manifest is None:  # all tokens are read
            return
        width = self.dataset.dtype.itemsize

        def check(file: tuple[str, int]) -> None:
            path, size = file
            with open_inside(folder, path) as opened:
                check_size(opened, path, size)

        find_all_files(folder)
        for split in manifest.splits.values():
            sizes = split.shards.measure_files(width).tolist()
            for_each_file(folder, check, list(zip(split.shards.path, sizes, strict=True)))

    def hash_sources(self) -> npt.NDArray[np.uint64]:
        """Return a hash of the name of each source."""
        return np.fromiter((xxhash.xxh3_64_intdigest(name) for name in self._names()), np.uint64)

    def _names(self) -> Iterator[bytes]:
        manifest = self.dataset.manifest
        if manifest is not None:
            for source in manifest.sources:
                yield source.path.encode("utf-8", "surrogatepass")
            return
        for split in self.dataset:
            tokens = self.dataset[split]
            for number in range(tokens.shard_count):
                yield tokens.shard_name(number).encode("utf-8", "surrogatepass")

    def name_source(self, number: int) -> str:
        """Return the name of a source by its number."""
        if self.dataset.manifest is not None:
            return self.dataset.manifest.sources[number].path
        for split in self.dataset:
            tokens = self.dataset[split]
            if number < tokens.shard_count:
                return tokens.shard_name(number)
            number -= tokens.shard_count
        raise AssertionError(number)

    def read(self, side: int, splits: Sequence[str], sources: Integers) -> Iterator[Entries]:
        """Yield an entry for each document.

        `splits` are the names of the splits of both datasets. `sources` maps the number of a source
        in this dataset to its number among the sources of both.
        """
        if self.hashes:
            for split, records in self._hash():
                places = records["first"]
                yield self._make_entries(records, side, splits.index(split), places, sources)
            return
        assert self.dataset.manifest is not None
        for split, table in zip(
            self.dataset.manifest.splits, open_tables(self.dataset), strict=True
        ):
            for first, records in table.read_records():
                places = np.arange(first, first + len(records), dtype=np.uint64)
                yield self._make_entries(records, side, splits.index(split), places, sources)

    def _make_entries(
        self,
        records: npt.NDArray[np.void],
        side: int,
        split: int,
        places: npt.NDArray[np.uint64],
        sources: Integers,
    ) -> Entries:
        entries = np.empty(len(records), ENTRY)
        if (records["source"] >= len(sources)).any() or (records["length"] > MOST).any():
            raise DatasetError(
                f"A document table of {self.dataset.path} names a source or a length that does not "
                f"exist. Find all problems with: tokenmill verify {self.dataset.path}"
            )
        entries["key"], entries["side"], entries["split"] = records["key"], side, split
        entries["source"] = sources[records["source"].astype(np.int64)]
        entries["count"], entries["tokens"], entries["place"] = 1, records["length"], places
        return entries

    def _hash(self) -> Iterator[tuple[str, npt.NDArray[np.void]]]:
        """Yield the records of all documents that have tokens, with the keys of their ids."""
        first = 0
        for split in self.dataset:
            tokens = self.dataset[split]
            if self.dataset.manifest is None:
                counts = self.dataset.contents.splits[split].counts
                hashed = HashedDocuments(tokens, counts, first, tokens.eot_id)
                first += len(counts)
                for records in hashed.read(0, len(tokens)):
                    yield split, records
                continue
            # A prepared dataset whose keys are of the texts: its sources are known.
            hashed = HashedDocuments(tokens, np.array([len(tokens)]), 0, tokens.eot_id)
            known = self._read_sources(split)
            sources = np.empty(0, np.uint64)
            for records in hashed.read(0, len(tokens)):
                while len(sources) < len(records):
                    sources = np.append(sources, next(known))
                records["source"], sources = sources[: len(records)], sources[len(records) :]
                yield split, records

    def _read_sources(self, split: str) -> Iterator[npt.NDArray[np.uint64]]:
        """Yield the sources of the documents of a split that have tokens."""
        assert self.dataset.manifest is not None
        names = list(self.dataset.manifest.splits)
        for _, records in open_tables(self.dataset)[names.index(split)].read_records():
            yield records["source"][records["length"] > 0]

    def describe(self, split: str, place: int) -> tuple[int, int, int | None, str | None]:
        """Return the number, the start, the offset in its source and the text of a document."""
        tokens = self.dataset[split]
        if self.hashes:
            start, number, offset = place, -1, None
            stop = min(start + _TEXT_TOKENS, len(tokens))
        else:
            documents = tokens.documents
            assert documents is not None
            document = documents[place]
            start, number, offset = document.start, document.number, document.offset
            stop = start + min(document.length, _TEXT_TOKENS)
        return number, start, offset, self._decode(tokens, start, stop)

    def _decode(self, tokens: Tokens, start: int, stop: int) -> str | None:
        try:
            tokenizer = self.dataset.tokenizer
            ids = tokens[start:stop]
            special = [*tokenizer.special_ids.values()]
            ends = np.flatnonzero(np.isin(ids[1:], special))
            ids = ids[: int(ends[0]) + 1] if len(ends) else ids
            return tokenizer.decode(ids[~np.isin(ids, special)])
        except TokenizerError:
            return None


def is_imported(dataset: Dataset) -> bool:
    """Return whether a dataset was imported, so that its keys are hashes of ids."""
    return dataset.manifest is not None and "imported" in dataset.manifest.settings
