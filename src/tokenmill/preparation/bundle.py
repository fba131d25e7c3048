"""Files that belong together and exist together or not at all: what a part has become.

A bundle is `NAME.tokens`, `NAME.docs`, … and a receipt `NAME.json` that is written last. Where
the receipt is, the files are complete. They are not flushed to the disk one by one, which would
cost more than making them: the receipt holds their checksums and its own, and a run that goes on after a
crash checks what it finds. A file that the crash damaged is made again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import xxhash

_CHUNK = 4 << 20


class Bundle:
    """Writes one bundle. Leaving the `with` block without `finish` leaves nothing behind."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._files: dict[str, BinaryIO] = {}
        self._hashes: dict[str, xxhash.xxh3_64] = {}
        self._cut: set[str] = set()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        for name, file in self._files.items():
            with suppress(OSError):  # what could not be written to a full disk is not missed
                file.close()
            self._temporary(name).unlink(missing_ok=True)

    def _temporary(self, file: str) -> Path:
        # The process number keeps apart a new run and what is left of a dying one.
        return self._folder / f"{self._name}.{file}.{os.getpid()}.tmp"

    def write(self, file: str, data: Any) -> None:
        """Append to one of the bundle's files."""
        if file not in self._files:
            self._files[file] = self._temporary(file).open("wb")
            self._hashes[file] = xxhash.xxh3_64()
        self._files[file].write(data)
        self._hashes[file].update(data)

    def cut_back(self, file: str, size: int) -> None:
        """Take the last `size` bytes off a file again."""
        handle = self._files[file]
        handle.truncate(handle.seek(-size, os.SEEK_CUR))
        self._cut.add(file)

    def finish(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Give the files their names and write the receipt; returns what it says."""
        written = {}
        for name, file in self._files.items():
            size, temporary = file.tell(), self._temporary(name)
            file.close()
            digest = _digest(temporary) if name in self._cut else self._hashes[name].hexdigest()
            written[name] = [size, digest]
            temporary.replace(self._folder / f"{self._name}.{name}")
        self._files.clear()
        receipt = {"name": self._name, "files": written, "facts": facts}
        told = orjson.dumps(receipt)
        temporary = self._temporary("json")
        temporary.write_bytes(xxhash.xxh3_64_hexdigest(told).encode() + b"\n" + told)
        temporary.replace(self._folder / f"{self._name}.json")
        return receipt


def read_receipt(folder: Path, name: str) -> dict[str, Any] | None:
    """The receipt of a bundle, or None if there is no complete one."""
    try:
        digest, _, told = (folder / f"{name}.json").read_bytes().partition(b"\n")
        if digest != xxhash.xxh3_64_hexdigest(told).encode():
            return None
        receipt: dict[str, Any] = orjson.loads(told)
        sizes = {file: entry[0] for file, entry in receipt["files"].items()}
        whole = all((folder / f"{name}.{file}").stat().st_size == n for file, n in sizes.items())
    except (OSError, ValueError):
        return None
    return receipt if whole else None


def is_sound(folder: Path, name: str) -> bool:
    """Whether every byte of a bundle is as it was written."""
    receipt = read_receipt(folder, name)
    if receipt is None:
        return False
    return all(
        _digest(folder / f"{name}.{file}") == digest
        for file, (_, digest) in receipt["files"].items()
    )


def _digest(path: Path) -> str:
    state = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            state.update(block)
    return state.hexdigest()
