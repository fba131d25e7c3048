"""Writes tokens as others do, byte by byte, so that the readers meet independent writers."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np


def llmc_bytes(ids, *, magic: int = 20240520, version: int = 1, dtype: str = "<u2") -> bytes:
    header = struct.pack("<3i", magic, version, len(ids)).ljust(1024, b"\0")
    return header + np.asarray(ids, dtype).tobytes()


def write_llmc(path: Path, ids, **kind) -> None:
    path.write_bytes(llmc_bytes(ids, **kind))


def write_llmc_folder(folder: Path, parts, name: str = "edu_fineweb_train_{:06}.bin") -> None:
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(parts, start=1):
        write_llmc(folder / name.format(number), part)


def write_raw(path: Path, ids, dtype: str = "<u2") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(np.asarray(ids, dtype).tobytes())
