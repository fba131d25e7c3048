"""A model of a disk that loses power: what may be on it after each recorded call.

Only what was synced is certain. Of the rest, a file system may keep any part: the bytes of a file may
be lost, be zeros or be cut although its rename survived, and names that were made, renamed or removed
in a folder may be as before until the folder is synced.
"""

from __future__ import annotations

import os
import random
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct("<4IqQ")
_KINDS = (
    "create",
    "write",
    "sync",
    "rename",
    "link",
    "symlink",
    "unlink",
    "mkdir",
    "rmdir",
    "size",
)
_SECTOR = 512  # bytes that a disk writes whole

# What is kept of unsynced names, and of unsynced bytes.
MODES = {
    "lost": ("none", "none"),  # only what was synced
    "renamed": ("all", "none"),  # all names, although their bytes are lost
    "zeros": ("all", "zeros"),  # all names and sizes, although the bytes are zeros
    "torn": ("some first", "some first"),  # what came first, the last write cut
    "mixed": ("some", "some"),  # any part, in any order
}


class Call(NamedTuple):
    """A recorded call."""

    kind: str
    path: str
    other: str
    place: int
    data: bytes


def read_trace(path: Path) -> list[Call]:
    """The calls that a process tree recorded."""
    data = path.read_bytes() if path.exists() else b""
    calls, at = [], 0
    while at < len(data):
        kind, first, second, _, place, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        name = os.fsdecode(data[at : at + first])
        other = os.fsdecode(data[at + first : at + first + second])
        at += first + second
        calls.append(Call(_KINDS[kind], name, other, place, data[at : at + size]))
        at += size
    return calls


@dataclass(eq=False)
class _Node:
    """A file, folder or link: what is there, what is certain, and what happened since."""

    is_folder: bool = False
    target: str | None = None  # of a link
    synced: bytes = b""
    writes: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: the new size
    names: dict[str, _Node] = field(default_factory=dict)
    synced_names: dict[str, _Node] = field(default_factory=dict)

    def content(self, keep: str, rng: random.Random) -> bytes:
        """The bytes after a power loss."""
        if keep == "none" or not self.writes:
            return self.synced
        if keep == "zeros":
            whole = _apply(self.synced, self.writes)
            return self.synced[: len(whole)].ljust(len(whole), b"\0")
        if keep == "some first":
            kept = self.writes[: rng.randint(0, len(self.writes))]
        else:
            kept = [one for one in self.writes if rng.random() < 0.5]
        if kept and kept[-1][1] and rng.random() < 0.7:
            place, data = kept[-1]
            assert data is not None
            end = rng.randrange(len(data))
            kept = [*kept[:-1], (place, data[: end - end % _SECTOR if end > _SECTOR else end])]
        return _apply(self.synced, kept)


class _Change(NamedTuple):
    """A change of names that is not certain yet: these names are removed and added."""

    removed: tuple[tuple[_Node, str], ...]
    added: tuple[tuple[_Node, str, _Node], ...]

    @property
    def folders(self) -> set[int]:
        return {id(entry[0]) for entry in (*self.removed, *self.added)}


class DiskModel:
    """The files below a folder, as calls change them."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        self._root = _read_tree(folder)
        self._changes: list[_Change] = []

    def apply(self, call: Call) -> None:
        """Let a call happen."""
        inside = self._relative(call.path)
        if inside is None or call.path.endswith(" (deleted)"):
            return
        parent, name = self._find_parent(inside)
        node = self._root if not inside else parent.names.get(name) if parent else None
        if call.kind in ("create", "mkdir", "symlink") and parent is not None:
            target = os.fsdecode(call.data) if call.kind == "symlink" else None
            made = _Node(is_folder=call.kind == "mkdir", target=target)
            self._change([], [(parent, name, made)])
        elif node is None:
            if call.kind == "sync" and call.place == 0 and parent is not None:
                # Renamed by a library that makes system calls itself.
                self._change([], [(parent, name, _Node(synced=call.data))])
        elif call.kind == "write":
            node.writes.append((call.place, call.data))
        elif call.kind == "size":
            node.writes.append((call.place, None))
        elif call.kind == "sync":
            if node.is_folder:
                self._forget_names(node, call.data)
            self._sync(node, call.data)
        elif call.kind in ("unlink", "rmdir") and parent is not None:
            self._change([(parent, name)], [])
        elif call.kind in ("rename", "link") and parent is not None:
            there = self._relative(call.other)
            new_parent, new_name = self._find_parent(there or "")
            if new_parent is not None:
                removed = [(parent, name)] if call.kind == "rename" else []
                self._change(removed, [(new_parent, new_name, node)])

    def write_after_power_loss(self, folder: Path, mode: str, rng: random.Random) -> None:
        """Write what may be on the disk into an empty folder."""
        names, contents = MODES[mode]
        if names == "all":
            changes = self._changes
        elif names == "some first":
            changes = self._changes[: rng.randint(0, len(self._changes))]
        else:
            changes = [change for change in self._changes if names == "some" and rng.random() < 0.5]
        tables: dict[int, dict[str, _Node]] = {}

        def names_of(node: _Node) -> dict[str, _Node]:
            return tables.setdefault(id(node), dict(node.synced_names))

        for change in changes:
            for parent, name in change.removed:
                names_of(parent).pop(name, None)
            for parent, name, node in change.added:
                names_of(parent)[name] = node

        def write(node: _Node, path: Path) -> None:
            for name, child in names_of(node).items():
                if child.target is not None:
                    (path / name).symlink_to(child.target)
                elif child.is_folder:
                    # A rename that is half kept could show a folder twice.
                    (path / name).mkdir()
                    write(child, path / name)
                else:
                    (path / name).write_bytes(child.content(contents, rng))

        write(self._root, folder)

    def _change(
        self, removed: list[tuple[_Node, str]], added: list[tuple[_Node, str, _Node]]
    ) -> None:
        for parent, name in removed:
            parent.names.pop(name, None)
        for parent, name, node in added:
            parent.names[name] = node
        self._changes.append(_Change(tuple(removed), tuple(added)))

    def _forget_names(self, node: _Node, listed: bytes) -> None:
        """Remove what is not in a folder any more, although no call was seen that removed it."""
        there = {os.fsdecode(name) for name in listed.split(b"/")}
        for name in set(node.names) - there if listed else ():
            self._change([(node, name)], [])

    def _sync(self, node: _Node, data: bytes) -> None:
        if not node.is_folder:
            node.synced = data
            node.writes = []
            return
        certain = [change for change in self._changes if id(node) in change.folders]
        for change in certain:
            for parent, name in change.removed:
                parent.synced_names.pop(name, None)
            for parent, name, child in change.added:
                parent.synced_names[name] = child
        self._changes = [change for change in self._changes if id(node) not in change.folders]

    def _relative(self, path: str) -> str | None:
        path = os.path.normpath(path)
        if path == self._folder:
            return ""
        inside = path.removeprefix(f"{self._folder}/")
        return inside if inside != path else None

    def _find_parent(self, path: str) -> tuple[_Node | None, str]:
        *parents, name = path.split("/")
        node: _Node | None = self._root
        for part in parents:
            node = node.names.get(part) if node else None
        return node, name


def _read_tree(folder: Path) -> _Node:
    """The files that were there before; they are certain."""
    node = _Node(is_folder=True)
    for path in folder.iterdir():
        child = _read_tree(path) if path.is_dir() else _Node(synced=path.read_bytes())
        node.names[path.name] = node.synced_names[path.name] = child
    return node


def _apply(data: bytes, writes: list[tuple[int, bytes | None]]) -> bytes:
    """Bytes after some writes; None changes the size.

    >>> _apply(b"abc", [(5, b"xy"), (6, None), (0, b"A")])
    b'Abc\\x00\\x00x'
    """
    made = bytearray(data)
    for place, new in writes:
        end = place if new is None else place + len(new)
        if new is None:
            del made[place:]
        made.extend(bytes(max(0, end - len(made))))
        if new is not None:
            made[place:end] = new
    return bytes(made)
