"""Checkpoints as a stranger may make them: with correct checksums, and contents that are wrong.

`CASES` maps a name to a function that changes the folder of a sound checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
Change = Callable[[Path], object]
MISSING = object()


def seal(folder: Path, body: dict[str, Any]) -> None:
    """Write a state with the checksums that belong to it."""
    parts = (body["version"], body["state"], body["xxh3_128"])
    body["checksum"] = xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts))
    (folder / STATE).write_bytes(msgspec.json.format(msgspec.json.encode(body), indent=2))


def set_state(*keys: str, value: Any) -> Change:
    """Set an entry of the state, sealed; `MISSING` removes it."""

    def change(folder: Path) -> None:
        body = json.loads((folder / STATE).read_bytes())
        place = body["state"]
        for key in keys[:-1]:
            place = place[key]
        if value is MISSING:
            del place[keys[-1]]
        else:
            place[keys[-1]] = value
        seal(folder, body)

    return change


def set_rows(value: Any) -> Change:
    """Set the row in both places."""

    def change(folder: Path) -> None:
        set_state("row", value=value)(folder)
        set_state("loader", "row", value=value)(folder)

    return change


def set_outer(key: str, value: Any) -> Change:
    def change(folder: Path) -> None:
        body = json.loads((folder / STATE).read_bytes())
        body[key] = value
        if key != "checksum":
            seal(folder, body)
        else:
            (folder / STATE).write_text(json.dumps(body, indent=2))

    return change


def write(name: str, make: Callable[[bytes], bytes], *, sealed: bool = True) -> Change:
    """Replace the bytes of a file; sealed, its checksum in the state is that of the new bytes."""

    def change(folder: Path) -> None:
        data = make((folder / name).read_bytes())
        (folder / name).write_bytes(data)
        if name != STATE and sealed:
            body = json.loads((folder / STATE).read_bytes())
            body["xxh3_128"][name] = xxhash.xxh3_128_hexdigest(data)
            seal(folder, body)

    return change


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(header: Any, values: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + values


def edit_header(name: str, edit: Callable[[dict[str, Any]], Any]) -> Change:
    """Change the header; `edit` may return another one."""

    def make(data: bytes) -> bytes:
        header, values = split(data)
        return join(edit(header) or header, values)

    return write(name, make)


def set_values(name: str, array: str, number: float) -> Change:
    """Set the first value of an array."""

    def make(data: bytes) -> bytes:
        header, values = split(data)
        place = header[array]["data_offsets"][0]
        changed = bytearray(values)
        changed[place : place + 4] = np.float32(number).tobytes()
        return join(header, bytes(changed))

    return write(name, make)


def retype(name: str, array: str, dtype: str) -> Change:
    """Give an array another dtype of the same size per value, or a wider one."""

    def make(data: bytes) -> bytes:
        header, values = split(data)
        if dtype == "F64":  # twice the bytes, everything consistent
            doubled: dict[str, Any] = {}
            parts, end = [], 0
            for one, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
                first, last = entry["data_offsets"]
                part = np.frombuffer(values[first:last], "<f4").astype("<f8").tobytes()
                doubled[one] = {**entry, "dtype": "F64", "data_offsets": [end, end + len(part)]}
                parts.append(part)
                end += len(part)
            return join(doubled, b"".join(parts))
        header[array]["dtype"] = dtype
        return join(header, values)

    return write(name, make)


def replace_with(name: str, make: Callable[[Path], object]) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def link_outside(path: Path) -> None:
    other = path.parent.parent.parent / f"elsewhere_{path.name}"
    other.write_text("secret")
    path.symlink_to(other)


def rename_tensor(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def edit(header: dict[str, Any]) -> None:
        header[new] = header.pop(old)

    return edit


def set_tensor(array: str, **entry: Any) -> Callable[[dict[str, Any]], None]:
    def edit(header: dict[str, Any]) -> None:
        header[array] = {**header[array], **entry}

    return edit


def repeat_key(folder: Path) -> None:
    """The last of two equal keys is the sealed one."""
    data = (folder / STATE).read_bytes()
    (folder / STATE).write_bytes(data.replace(b'"step":', b'"step": 9,\n    "step":', 1))


def swap_files(folder: Path) -> None:
    model = (folder / MODEL).read_bytes()
    write(MODEL, lambda _: (folder / OPTIMIZER).read_bytes())(folder)
    write(OPTIMIZER, lambda _: model)(folder)


DEEP = b"[" * 100_000
CASES: dict[str, Change] = {
    # the bytes of state.json
    "state empty": write(STATE, lambda _: b""),
    "state truncated": write(STATE, lambda data: data[:-9]),
    "state of NULs": write(STATE, lambda data: bytes(len(data))),
    "state not UTF-8": write(
        STATE, lambda data: data.replace(b"torch", b"\xff\xfe").replace(b"jax", b"\xff")
    ),
    "state nested deeply": write(STATE, lambda _: DEEP),
    "state with a nested loader": write(
        STATE, lambda data: data.replace(b'"loader": {', b'"loader": {"a": ' + DEEP, 1)
    ),
    "state is a list": write(STATE, lambda _: b"[1, 2]"),
    "state is a number": write(STATE, lambda _: b"7"),
    "state of 17 MiB": write(STATE, lambda data: data + b" " * (17 << 20)),
    "state with NaN": write(
        STATE, lambda data: data.replace(b'"val_loss": null', b'"val_loss": NaN')
    ),
    "state repeats a key": repeat_key,
    "state missing": replace_with(STATE, lambda path: None),
    "state is a folder": replace_with(STATE, Path.mkdir),
    "state is a pipe": replace_with(STATE, os.mkfifo),
    "state is endless": replace_with(STATE, lambda path: path.symlink_to("/dev/zero")),
    "state links outside": replace_with(STATE, link_outside),
    "state links to itself": replace_with(STATE, lambda path: path.symlink_to(path.name)),
    "version missing": write(STATE, lambda data: data.replace(b'"version": 2,', b"", 1)),
    "version of the future": set_outer("version", 3),
    "version is true": set_outer("version", True),
    "version is text": set_outer("version", "2"),
    "version is absurd": set_outer("version", 10**30),
    "unknown entry": set_outer("surprise", 1),
    "checksum is wrong": set_outer("checksum", "0" * 32),
    "checksum is a number": set_outer("checksum", 7),
    "checksums empty": set_outer("xxh3_128", {}),
    "checksums are numbers": set_outer("xxh3_128", {MODEL: 1, OPTIMIZER: 2}),
    "checksums are a list": set_outer("xxh3_128", [MODEL]),
    # numbers
    **{
        f"{name} {what}": set_state(name, value=value)
        for name in ("step", "row", "vocab")
        for what, value in {
            "is 10^18": 10**18,
            "is negative": -1,
            "is true": True,
            "is text": "4",
            "is a fraction": 4.5,
            "is null": None,
            "missing": MISSING,
            "is a list": list(range(100_000)),
        }.items()
    },
    "row beyond all steps": set_rows(10**17),
    "row before the step": set_rows(1),
    "eot_id is negative": set_state("eot_id", value=-1),
    "eot_id is absurd": set_state("eot_id", value=1 << 40),
    "val_loss is text": set_state("val_loss", value="low"),
    "val_loss is true": set_state("val_loss", value=True),
    # the loader's state
    "loader is a list": set_state("loader", value=[1]),
    "loader is empty": set_state("loader", value={}),
    "loader row differs": set_state("loader", "row", value=1),
    "loader row is true": set_state("loader", "row", value=True),
    "loader with lists in lists": set_state("loader", "order", value=[[[[1]]]]),
    # shape and settings
    "shape is empty": set_state("shape", value={}),
    "shape is a list": set_state("shape", value=[1, 2]),
    "shape without width": set_state("shape", "width", value=MISSING),
    "shape with an unknown name": set_state("shape", "__class__", value=1),
    **{
        f"shape {name} is {value}": set_state("shape", name, value=value)
        for name, value in [
            ("layers", 10**9),
            ("layers", -1),
            ("layers", True),
            ("layers", "1"),
            ("layers", 1.5),
            ("width", 0),
            ("vocab", 1 << 40),
            ("heads", 3),
            ("rope_base", 0),
            ("softcap", -1.0),
        ]
    },
    "config is empty": set_state("config", value={}),
    "config is a list": set_state("config", value=["layers"]),
    "config with an unknown name": set_state("config", "../../layers", value=1),
    "config with a nested value": set_state("config", "layers", value={"a": 1}),
    **{
        f"config {name} is {value!r}": set_state("config", name, value=value)
        for name, value in [
            ("layers", 10**9),
            ("batch_tokens", 10**18),
            ("heads", "2"),
            ("seed", -1),
            ("optimizer", "sgd"),
            ("max_steps", True),
            ("within_documents", 1),
        ]
    },
    "backend is a path": set_state("backend", value="../../torch"),
    "fingerprints are numbers": set_state("fingerprints", value={"train": 1}),
    "fingerprints are a list": set_state("fingerprints", value=["train"]),
    "fingerprint of 100 kB": set_state("fingerprints", "train", value="a" * 100_000),
}
for _name, _array in ((MODEL, "head"), (OPTIMIZER, "head.exp_avg_sq")):
    _short = _name.partition(".")[0]
    CASES |= {
        f"{_short} {what}": change
        for what, change in {
            "missing": replace_with(_name, lambda path: None),
            "is a folder": replace_with(_name, Path.mkdir),
            "is a pipe": replace_with(_name, os.mkfifo),
            "is endless": replace_with(_name, lambda path: path.symlink_to("/dev/zero")),
            "links outside": replace_with(_name, link_outside),
            "empty": write(_name, lambda _: b""),
            "of five bytes": write(_name, lambda data: data[:5]),
            "truncated": write(_name, lambda data: data[:-4]),
            "longer": write(_name, lambda data: data + bytes(8)),
            "of NULs": write(_name, lambda data: bytes(len(data))),
            "with one other bit": write(
                _name, lambda data: data[:-1] + bytes([data[-1] ^ 1]), sealed=False
            ),
            "header of 2^63 bytes": write(
                _name, lambda data: struct.pack("<Q", 1 << 63) + data[8:]
            ),
            "header of 2^40 bytes": write(
                _name, lambda data: struct.pack("<Q", 1 << 40) + data[8:]
            ),
            "header of 0 bytes": write(_name, lambda data: bytes(8) + data[8:]),
            "header is not JSON": write(_name, lambda data: join(b"{" * 99, split(data)[1])),
            "header nested deeply": write(_name, lambda data: join(b'{"a":' * 50_000, b"")),
            "header is a list": write(_name, lambda data: join([1], split(data)[1])),
            "header is empty": write(_name, lambda data: join({}, split(data)[1])),
            "with metadata": edit_header(
                _name, lambda header: header | {"__metadata__": {"format": "pt"}}
            ),
            "without an array": edit_header(
                _name, lambda header: {key: header[key] for key in list(header)[1:]}
            ),
            "with one more array": edit_header(
                _name,
                lambda header: (
                    header | {"extra": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}
                ),
            ),
            "with a path as a name": edit_header(_name, rename_tensor(_array, "../../../etc/x")),
            "with a name of NULs": edit_header(_name, rename_tensor(_array, "\0\n\x1b[31m")),
            "as float64": retype(_name, _array, "F64"),
            "as int32": retype(_name, _array, "I32"),
            "as an unknown dtype": retype(_name, _array, "X" * 50_000),
            "of another shape": edit_header(_name, set_tensor(_array, shape=[16, 257])),
            "of an absurd shape": edit_header(_name, set_tensor(_array, shape=[1 << 40, 1 << 40])),
            "of a negative shape": edit_header(_name, set_tensor(_array, shape=[-1, -1])),
            "of 100,000 dimensions": edit_header(_name, set_tensor(_array, shape=[1] * 100_000)),
            "with offsets beyond the file": edit_header(
                _name, set_tensor(_array, data_offsets=[1 << 50, 1 << 51])
            ),
            "with negative offsets": edit_header(_name, set_tensor(_array, data_offsets=[-8, 8])),
            "with overlapping offsets": edit_header(
                _name, set_tensor(_array, data_offsets=[0, 1024])
            ),
            "with NaN": set_values(_name, _array, float("nan")),
            "with infinity": set_values(_name, _array, float("inf")),
        }.items()
    }
CASES |= {
    "optimizer with a negative square": set_values(OPTIMIZER, "head.exp_avg_sq", -1.0),
    "optimizer with a negative step": set_values(OPTIMIZER, "head.step", -1.0),
    "files swapped": swap_files,
    "folder empty": lambda folder: [path.unlink() for path in folder.iterdir()],
    "folder is a file": lambda folder: (shutil.rmtree(folder), folder.write_text("")),
    "folder links to nothing": lambda folder: (shutil.rmtree(folder), folder.symlink_to("gone")),
    "folder of another step": lambda folder: (
        shutil.rmtree(folder),
        shutil.copytree(folder.with_name("step_0000002"), folder),
    ),
}
