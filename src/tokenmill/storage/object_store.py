"""Objects of a bucket, or files of a web server, as a `Storage`. Built on obstore.

Guarantees: an object appears whole or not at all. A read returns bytes of one version of an object:
if the object is replaced after it was found, reading it raises an error. Requests that fail
temporarily are retried with growing pauses, for a limited time. After that, an error names the
address, the reason and the cure.

Costs: a request takes some 10 to 100 ms, so ranges close together become one request, and up to
`REQUESTS` requests run at once. Memory holds the requested bytes. obstore is imported at the first
request.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import Any, BinaryIO, TypeVar

from tokenmill.errors import UsageError
from tokenmill.storage.addresses import WEB, Address, parse_address
from tokenmill.storage.interface import Entry, Storage
from tokenmill.storage.object_errors import is_cut, report_change, translate

REQUESTS = 32  # that run at once
FILES = 16  # that are read at once
GAP = 64 << 10  # bytes: ranges at most this far apart become one request
JOINED = 2 << 20  # bytes of a request for several ranges
LONGEST = 8 << 20  # bytes of one request, for reading in order
_PART = 8 << 20  # bytes of one part of an upload; at most 10,000 parts are allowed
_ATTEMPTS = 5  # to read an answer to its end

_MOST_KNOWN = 1 << 16

T = TypeVar("T")
_known: dict[str, Entry] = {}  # the size and version of objects that were found


class ObjectStorage(Storage):
    """The objects below an address, such as s3://bucket/corpus.

    >>> ObjectStorage("s3://bucket/corpus").address
    Address(scheme='s3', place='bucket', key='corpus')
    """

    def __init__(self, address: str | os.PathLike[str] | Address) -> None:
        self.address = address if isinstance(address, Address) else parse_address(address)

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStorage, (self.address,)

    def __repr__(self) -> str:
        return f"<ObjectStorage {self.address}>"

    def find(self, name: str) -> Entry:
        """Return the size and the version of an object. Raises FileNotFoundError if it is missing."""
        found = self._call(name, lambda store, key: store.head(key))
        entry = Entry(name, found["size"], _find_version(found))
        self._remember(entry)
        return entry

    def find_all(self, prefix: str) -> None:
        """Look up all objects whose names begin with `prefix`, so that `find_known` knows them.

        A request finds 1,000 objects. Does nothing unless the store is S3: others cannot list
        objects, or write versions differently in lists.
        """
        if self.address.scheme == "s3":
            for entry in (entry for page in self.list_pages(prefix) for entry in page):
                self._remember(entry)

    def _remember(self, entry: Entry) -> None:
        _known[str(self._locate(entry.name))] = entry
        while len(_known) > _MOST_KNOWN:
            _known.pop(next(iter(_known)), None)

    def find_known(self, name: str) -> Entry:
        """Like `find`, but sends a request only if this process does not know the object yet.

        If the object was replaced, reading it raises an error, so versions never mix.
        """
        known = _known.get(str(self._locate(name)))
        return self.find(name) if known is None else known._replace(name=name)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return at most `length` bytes of an object, beginning at `start`.

        All of them come from the same version of the object.
        """
        entry = self.find(name)
        stop = entry.size if length is None else min(start + length, entry.size)
        if start >= stop:
            return b""
        cuts = [*range(start, stop, LONGEST), stop]
        return b"".join(self.read_ranges(name, list(pairwise(cuts)), entry.version))

    def read_ranges(
        self, name: str, ranges: Sequence[tuple[int, int]], version: str = ""
    ) -> list[bytes]:
        """Return the bytes of ranges [start, stop) of an object. Close ranges share a request."""
        result = [b""] * len(ranges)

        def read(group: list[int]) -> None:
            first, last = ranges[group[0]][0], max(ranges[one][1] for one in group)
            data = self._read_range(name, (first, last), version)
            for one in group:
                start, stop = ranges[one]
                result[one] = data if len(group) == 1 else data[start - first : stop - first]

        run_together(read, join_ranges(ranges))
        return result

    def _read_range(self, name: str, span: tuple[int, int], version: str) -> bytes:
        if span[0] == span[1]:
            return b""  # obstore refuses empty ranges
        options: dict[str, Any] = {"range": span}
        if version.startswith('"') and self.address.scheme not in WEB:
            options["if_match"] = version

        def get(store: Any, key: str) -> tuple[Any, bytes]:
            answer = store.get(key, options=options)
            return answer.meta, bytes(answer.bytes())

        meta, data = self._call(name, get)
        if (version and _find_version(meta) != version) or len(data) != span[1] - span[0]:
            _known.pop(str(self._locate(name)), None)
            raise report_change(self._locate(name))
        return data

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Return the objects whose names begin with `prefix`, sorted by name."""
        found = [entry for page in self.list_pages(prefix) for entry in page]
        return iter(sorted(found, key=lambda entry: entry.name))

    def list_pages(self, prefix: str = "", size: int = 1000) -> Iterator[Sequence[Entry]]:
        """Like `list`, but yields pages of `size` objects, in the order of the server."""
        if self.address.scheme in WEB:
            raise UsageError(
                f"{self.address} cannot be listed: a web server has no folders. "
                "Pass the address of each file."
            )
        # obstore lists whole folders only.
        folder = prefix.rpartition("/")[0]
        where = self._locate(folder)
        before = len(self.address.key) + 1 if self.address.key else 0
        pages = self._call(folder, lambda store, key: store.list(key or None, chunk_size=size))
        while True:
            try:
                page = next(pages, None)
            except Exception as error:
                raise translate(error, where) from None
            if page is None:
                return
            yield [
                Entry(one["path"][before:], one["size"], _find_version(one))
                for one in page
                if one["path"][before:].startswith(prefix) and one["path"][before:]
            ]

    def has_objects(self) -> bool:
        """Return whether any object is below the address. On S3, remembers those that it lists."""
        for page in self.list_pages():
            if self.address.scheme == "s3":  # other stores write versions differently in lists
                for entry in page:
                    self._remember(entry)
            if page:
                return True
        return False

    def list_folder(self) -> tuple[Sequence[Entry], Sequence[str]]:
        """Return the objects, and the names of the folders, directly below the address, sorted."""
        if self.address.scheme in WEB:
            return [], []
        before = len(self.address.key) + 1 if self.address.key else 0
        found = self._call("", lambda store, key: store.list_with_delimiter(key or None))
        entries = [
            Entry(one["path"][before:], one["size"], _find_version(one))
            for one in found["objects"]
            if one["path"][before:]
        ]
        return sorted(entries), sorted(name[before:] for name in found["common_prefixes"])

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a whole object, or replace it."""
        self._call(name, lambda store, key: store.put(key, bytes(data)), writes=True)

    def upload(self, name: str, file: BinaryIO) -> None:
        """Write a whole object from a local file, in parts if it is large."""
        part = max(_PART, -(-file.seek(0, os.SEEK_END) // 9_000))

        def put(store: Any, key: str) -> None:
            file.seek(0)
            store.put(key, file, chunk_size=part, max_concurrency=4)

        self._call(name, put, writes=True)

    def create(self, name: str, data: bytes) -> bool:
        """Write a whole object unless one of that name exists; returns whether it was written."""

        def put(store: Any, key: str) -> bool:
            from obstore.exceptions import AlreadyExistsError

            try:
                store.put(key, data, mode="create")
            except AlreadyExistsError:
                return False
            return True

        return self._call(name, put, writes=True)

    def replace(self, name: str, data: bytes, version: str) -> bool:
        """Replace an object if it still has this version; returns whether it was replaced."""

        def put(store: Any, key: str) -> bool:
            from obstore.exceptions import AlreadyExistsError, PreconditionError

            try:
                store.put(key, data, mode={"e_tag": version})
            except (FileNotFoundError, PreconditionError, AlreadyExistsError):
                return False
            return True

        return self._call(name, put, writes=True)

    def delete(self, name: str) -> None:
        """Remove an object. A missing one is not an error."""

        def delete(store: Any, key: str) -> None:
            with suppress(FileNotFoundError):
                store.delete(key)

        self._call(name, delete, writes=True)

    def delete_all(self) -> None:
        """Remove all objects below the address, many per request."""

        def delete(store: Any, key: str) -> None:  # noqa: ARG001
            with suppress(FileNotFoundError):
                store.delete(keys)

        for page in list(self.list_pages()):
            places = [self._locate(entry.name) for entry in page]
            keys = [place.key for place in places]
            for place in places:
                _known.pop(str(place), None)
            self._call("", delete)

    def _locate(self, name: str) -> Address:
        key = f"{self.address.key}/{name}" if self.address.key and name else self.address.key
        return Address(self.address.scheme, self.address.place, key or name)

    def _call(self, name: str, call: Callable[[Any, str], T], *, writes: bool = False) -> T:
        """Return `call(store, key)`. Retries cut-off answers; translates obstore's errors."""
        from tokenmill.storage.object_connection import connect

        where = self._locate(name)
        store, key = connect(where)
        if writes:
            _known.pop(str(where), None)
        for attempt in range(_ATTEMPTS):
            try:
                return call(store, key)
            except Exception as error:  # obstore's errors have no common base class
                _known.pop(str(where), None)
                if not is_cut(error) or attempt == _ATTEMPTS - 1:
                    raise translate(error, where) from None
                _pause(attempt)
        raise AssertionError


def _find_version(meta: Any) -> str:
    """Return an object's version: its ETag or, without one, its modification time and size."""
    tag: str | None = meta["e_tag"]
    return tag or f"{meta['last_modified'].timestamp()}-{meta['size']}"


def join_ranges(
    ranges: Sequence[tuple[int, int]], gap: int = GAP, longest: int = JOINED
) -> list[list[int]]:
    """Group ranges that one request can fetch. Returns the indices of the ranges in each group.

    >>> join_ranges([(900, 910), (0, 10), (15, 20), (5, 30)], gap=10)
    [[1, 3, 2], [0]]
    """
    groups: list[list[int]] = []
    first = last = -1
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, stop = ranges[number]
        if groups and start <= last + gap and max(stop, last) - first <= longest:
            groups[-1].append(number)
            last = max(last, stop)
        else:
            groups.append([number])
            first, last = start, stop
    return groups


@lru_cache(maxsize=2)
def _pool(size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, "tokenmill-objects")


def run_together(call: Callable[[Any], T], items: Sequence[Any]) -> Sequence[T]:
    """Return `[call(item) for item in items]`. The calls run at once, in threads."""
    if len(items) == 1:
        return [call(items[0])]
    return list(_pool(REQUESTS).map(call, items))


def read_files_together(
    call: Callable[[Any], object], items: Sequence[Any], between: Callable[[], None] | None
) -> None:
    """Run `call(item)` for all items, several at once. Each call reads a file.

    `between` is called before waiting for each call.
    """
    if len(items) == 1:
        call(items[0])
        return
    # In a separate pool, because the calls wait for requests in the pool of `run_together`.
    futures = [_pool(FILES).submit(call, item) for item in items]
    try:
        for future in futures:
            if between is not None:
                between()
            future.result()
    finally:
        for future in futures:
            future.cancel()


def start_request(call: Callable[..., T], *arguments: Any) -> Future[T]:
    """Start `call(*arguments)` in a thread; returns its future."""
    return _pool(REQUESTS).submit(call, *arguments)


def _pause(attempt: int) -> None:
    time.sleep(min(10.0, 0.1 * 2**attempt) * (0.5 + random.random()))
