"""Read the losses that any training program recorded: a raw .f32 file, a .npy file or JSON lines.

The file may be untrusted. NumPy parses the header of a .npy file, and no pickle is loaded. A raw or
a .npy file is mapped, so memory does not grow with its size. JSON lines are read in pieces; each
value takes 12 bytes of memory, so at most `MOST_LINES` lines are read.

A NaN or an infinite loss is kept as it is. Python's `json` writes these as NaN and Infinity, which
is not valid JSON but is accepted here.
"""

from __future__ import annotations

import io
import json
import math
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.errors import InputError, UsageError
from tokenmill.formats.npy import LONGEST_HEADER, MAGIC, parse_any_header
from tokenmill.storage.mapping import map_file
from tokenmill.storage.reading import open_foreign
from tokenmill.wording import brief, count, counted

Per = Literal["row", "step"]

MOST_LINES = 1 << 24
_LONGEST_LINE = 1 << 16  # bytes of a line, at most
_PIECE = 1 << 20  # bytes to read at once
_LARGEST = 1 << 40  # the largest step or row, and the most values
_SAVE = "np.save(path, np.asarray(losses, np.float32))"


@dataclass(frozen=True, kw_only=True, eq=False)
class LossFile:
    """The losses in a file, in order.

    `numbers` has the step or the row of each value; None means 0, 1, 2, … `per` says whether a value
    belongs to a row or to a step; it is None if the file does not say. `notes` are remarks for the
    user.
    """

    path: Path
    values: npt.NDArray[Any]
    per: Per | None = None
    numbers: npt.NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()


def read_losses(path: str | os.PathLike[str], *, per: Per | None = None) -> LossFile:
    """Open a file of losses: .npy, JSON lines (.jsonl, .ndjson or .json), or raw float32 (.f32).

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "losses.jsonl"
    >>> _ = file.write_text('{"step": 0, "loss": 4.5}\\n{"step": 1, "loss": NaN}\\n')
    >>> found = read_losses(file)
    >>> found.per, found.values.tolist()
    ('step', [4.5, nan])
    """
    place = Path(path)
    if not place.exists():
        raise InputError(
            f"there is no file {place}. Give the losses as .npy, .jsonl or raw float32 (.f32)."
        )
    with open_foreign(place.parent, place.name) as file:
        head = file.read(LONGEST_HEADER)
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if head.startswith(MAGIC):
            return _map_npy(place, file, head, size, per)
        if place.suffix in (".jsonl", ".ndjson", ".json"):
            return _read_lines(place, file, per)
        if place.suffix != ".f32":
            raise UsageError(
                f"{place} is not a file of losses: expected .f32 (raw float32), .npy or .jsonl. "
                f"To write one: {_SAVE}"
            )
        if size % 4:
            raise InputError(
                f"{place} has {counted(size, 'byte')}, which is not a multiple of 4: it is cut "
                f"short, or its values are not float32. To write it as .npy: {_SAVE}"
            )
        values = map_file(file, str(place), np.dtype("<f4"), size // 4, 0)
    return _check(LossFile(path=place, values=values, per=per))


def _map_npy(place: Path, file: BinaryIO, head: bytes, size: int, per: Per | None) -> LossFile:
    shape, is_fortran, dtype, offset = parse_any_header(place.name, head)
    if dtype.kind != "f" or dtype.itemsize not in (2, 4, 8):
        raise InputError(
            f"{place} has values of {one_dtype(dtype)}, but losses are float16, float32 or float64. "
            f"Save them with: {_SAVE}"
        )
    if len(shape) not in (1, 2) or (is_fortran and len(shape) == 2):
        raise InputError(
            f"{place} must have one dimension, or two in C order (steps, rows per step). "
            f"Save it with: {_SAVE}"
        )
    number = math.prod(shape)
    if min(shape) < 0 or number >= _LARGEST or size != offset + number * dtype.itemsize:
        raise InputError(
            f"{place} is cut short or damaged: it has {counted(size, 'byte')}, which does not fit "
            f"its header. Save it again with: {_SAVE}"
        )
    found = per or ("row" if len(shape) == 2 and shape[1] > 1 else None)
    values = map_file(file, str(place), dtype, number, offset)
    return _check(LossFile(path=place, values=values, per=found))


def one_dtype(dtype: np.dtype[Any]) -> str:
    """Return a short name for a dtype from a header, which may have any number of fields."""
    return "Python objects" if dtype.hasobject else brief(dtype.name)


class _Line(msgspec.Struct, gc=False):
    """The fields of a line that are read. Other fields are ignored."""

    step: int | None = None
    row: int | None = None
    loss: float | None = None


_LINE = msgspec.json.Decoder(_Line)


def _read_lines(place: Path, file: BinaryIO, per: Per | None) -> LossFile:
    values, steps, rows = array("f"), array("q"), array("q")
    skipped = 0
    for number, data in _split_lines(place, file):
        line = _parse(place, number, data)
        if line.loss is None:
            skipped += 1
            continue
        if len(values) >= MOST_LINES:
            raise InputError(
                f"{place} has more than {count(MOST_LINES)} losses, the most that are read from "
                f"JSON lines. Write them as .npy: {_SAVE}"
            )
        for known, value, name in ((steps, line.step, "step"), (rows, line.row, "row")):
            if value is not None and not 0 <= value < _LARGEST:
                raise InputError(
                    f"{place}, line {count(number)}: {name} {brief(value)} is invalid."
                )
            known.append(-1 if value is None else value)
        values.append(_fit(line.loss))
    names: tuple[Per, Per] = ("step", "row")
    numbers = {
        name: np.frombuffer(known, np.int64)
        for name, known in zip(names, (steps, rows), strict=True)
        if len(known) and min(known) >= 0
    }
    if len(numbers) == 2 and per is None:
        raise UsageError(
            f"the lines of {place} have a step and a row. Say what a loss belongs to: `per='row'` "
            "or `per='step'`."
        )
    found = per or next(iter(numbers), None)
    notes = [] if not skipped else [f"{counted(skipped, 'line')} of {place} had no loss."]
    array_of_values = np.frombuffer(values, np.float32)
    chosen = None if found is None else numbers.get(found)
    if chosen is not None:
        array_of_values, chosen, more = _sort(place, array_of_values, chosen)
        notes += more
    return _check(
        LossFile(path=place, values=array_of_values, per=found, numbers=chosen, notes=tuple(notes))
    )


def _split_lines(place: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, each with its number."""
    number, rest = 0, b""
    while piece := file.read(_PIECE):
        *lines, rest = (rest + piece).split(b"\n")
        for line in [*lines, rest]:
            if len(line) > _LONGEST_LINE:
                raise InputError(
                    f"{place}, line {count(number + 1)} is longer than {count(_LONGEST_LINE)} bytes. "
                    'Write one object per line, such as {"step": 0, "loss": 4.5}.'
                )
        for line in lines:
            number += 1
            if line.strip():
                yield number, line
    if rest.strip():
        yield number + 1, rest


def _parse(place: Path, number: int, data: bytes) -> _Line:
    try:
        return _LINE.decode(data)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        pass
    try:  # NaN and Infinity, as Python's json writes them
        value = json.loads(data)
        return msgspec.convert(
            {name: value[name] for name in ("step", "row", "loss") if name in value}, _Line
        )
    except (ValueError, TypeError, RecursionError):
        raise InputError(
            f"{place}, line {count(number)} is not a JSON object with a number as loss. Write one "
            'object per line, such as {"step": 0, "loss": 4.5}.'
        ) from None


def _fit(value: float) -> float:
    """Return a loss that float32 can hold: one that is too large becomes infinite."""
    return value if abs(value) < 3.4e38 or value != value else float(np.copysign(np.inf, value))


def _sort(
    place: Path, values: npt.NDArray[np.float32], numbers: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], list[str]]:
    """Sort losses by the number of their step or row. Returns both, and notes for the user.

    If a number occurs several times, as after a resume, only its last loss is kept.
    """
    notes = []
    if (numbers[1:] <= numbers[:-1]).any():
        order = numbers.argsort(kind="stable")
        values, numbers = values[order], numbers[order]
        is_last = np.append(numbers[1:] != numbers[:-1], True)
        if not is_last.all():
            again = len(numbers) - int(is_last.sum())
            notes.append(
                f"{place} repeats {counted(again, 'number')}; the last loss of each counts."
            )
        values, numbers = values[is_last], numbers[is_last]
    return values, numbers, notes


def _check(found: LossFile) -> LossFile:
    if not len(found.values):
        raise InputError(f"{found.path} has no losses.")
    return found
