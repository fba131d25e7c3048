"""The files of a checkpoint: written with their checksums, and read as untrusted data.

Guarantees: `read_checked` reads every byte of a checkpoint before any of it is used. It checks the
checksums, the type and range of each number, that the arrays have the names, shapes and dtype of
the model, and that all their values are finite. If a check fails, it raises `DamageError`. Costs:
one pass over the files, in blocks of 1 MiB.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
from msgspec import Meta

from tokenmill.errors import UsageError
from tokenmill.load.state import MOST_ROWS
from tokenmill.storage.decoding import decode
from tokenmill.storage.files import hash_file, sync_file, write_file
from tokenmill.storage.reading import DamagedFileError, open_inside, read_inside
from tokenmill.training.config import Config, Ids, Steps
from tokenmill.training.model import (
    Arrays,
    Shape,
    make_shape,
    optimizer_shapes,
    parameter_shapes,
)

VERSION = 2
MODEL_NAME = "model.safetensors"
OPTIMIZER_NAME = "optimizer.safetensors"
STATE_NAME = "state.json"
_MOST_STATE = 16 << 20  # bytes of state.json; it grows with the number of sources
_MOST_HEADER = 16 << 20  # bytes of a safetensors header, about 100 per array
_MOST_ROWS_PER_STEP = 1 << 28
_BLOCK = 1 << 20  # bytes
_FLOAT = np.dtype("<f4")
_NEVER_NEGATIVE = (".step", ".exp_avg_sq")  # endings of names in the optimizer's state

_T = TypeVar("_T")
_Scalar = bool | int | float | str | None
# Either the names of the sources, or pairs (row, weights): from that row on, these weights apply.
_Mixture = list[str | tuple[int, list[int | float]]]
_Text = Annotated[str, Meta(max_length=4096)]

Shapes = Mapping[str, tuple[int, ...]]
AnyArrays = Mapping[str, npt.NDArray[Any]]
RESTORE = "Restore it from a backup, or add `restart=True` to start over."


class DamageError(Exception):
    """A checkpoint cannot be used; the message is the reason."""


class NotFiniteError(Exception):
    """An array must not be saved, because a value in it is NaN or infinite."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has a value that is NaN or infinite")


class RunState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The progress of a run, and the values that identify the run.

    `row` is the number of rows consumed, `loader` the loader's own state. `vocab` is the number of
    ids in the tokenizer; the shape's `vocab` is padded. `val_loss` is the validation loss of
    exactly these parameters, or None if they were not validated.
    """

    step: Steps
    row: Annotated[int, Meta(ge=0, lt=MOST_ROWS)]
    loader: dict[_Text, _Scalar | _Mixture | dict[str, dict[str, _Scalar]]]
    vocab: Ids
    eot_id: Annotated[int, Meta(ge=0, lt=1 << 31)] | None
    shape: dict[_Text, int | float]
    config: dict[_Text, _Scalar]
    backend: Literal["torch", "jax"]
    fingerprints: dict[_Text, _Text]
    val_loss: float | None

    def read_settings(self) -> tuple[Config, Shape]:
        """Return the settings and the model's shape. Raises `DamageError` if they are invalid."""
        try:
            config = Config(**self.config)  # type: ignore[arg-type]
            shape = Shape(**self.shape)  # type: ignore[arg-type]
        except (UsageError, TypeError) as error:  # TypeError: an unknown or a missing name
            reason = str(error).replace("`", "").rpartition("__init__() ")[2].rstrip(".")
            raise DamageError(f"has settings that cannot be used: {reason}") from error
        if shape != make_shape(self.vocab, config):
            raise DamageError("has a model shape that does not follow from its settings")
        return config, shape

    def find_arrays(self) -> dict[str, Shapes]:
        """Return, for each file, the names and shapes of its arrays."""
        config, shape = self.read_settings()
        return {
            MODEL_NAME: parameter_shapes(shape),
            OPTIMIZER_NAME: optimizer_shapes(shape, config.optimizer),
        }


class _StateFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `state.json`; `checksum` covers everything but itself."""

    version: int
    state: RunState
    xxh3_128: dict[_Text, _Text]
    checksum: str

    def compute_checksum(self) -> str:
        return xxhash.xxh3_128_hexdigest(
            msgspec.json.encode((self.version, self.state, self.xxh3_128))
        )

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


class _Version(msgspec.Struct):
    version: int


class _Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The entry for an array in the header of a safetensors file."""

    dtype: str
    shape: Annotated[list[Annotated[int, Meta(ge=0, lt=1 << 62)]], Meta(max_length=8)]
    data_offsets: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint whose files `read_checked` found intact."""

    path: Path
    state: RunState

    def parameters(self) -> Arrays:
        """Return the parameters by name."""
        return self._load(MODEL_NAME)

    def optimizer_state(self) -> Arrays:
        """Return the optimizer's state by name."""
        return self._load(OPTIMIZER_NAME)

    def _load(self, name: str) -> Arrays:
        found: Arrays = {}
        with open_inside(self.path, name) as file:
            try:
                for one, size in _read_header(file, self.state.find_arrays()[name]):
                    count = math.prod(size)
                    found[one] = np.fromfile(file, _FLOAT, count).reshape(size)
            except (DamageError, ValueError) as error:  # ValueError: the file is shorter now
                reason = "was changed while it was being read"
                raise DamagedFileError(name, f"in {self.path} {reason}", RESTORE) from error
        return found


def write_files(
    folder: Path, state: RunState, parameters: AnyArrays, optimizer_state: AnyArrays
) -> None:
    """Write the files of a checkpoint. Raises `NotFiniteError` if a value is NaN or infinite."""
    arrays = {MODEL_NAME: parameters, OPTIMIZER_NAME: optimizer_state}
    for held in arrays.values():
        for name, array in held.items():
            if not np.isfinite(array).all():
                raise NotFiniteError(name)
    checksums = {name: _save(folder / name, held) for name, held in arrays.items()}
    file = _StateFile(version=VERSION, state=state, xxh3_128=checksums, checksum="")
    file = msgspec.structs.replace(file, checksum=file.compute_checksum())
    write_file(folder / STATE_NAME, file.to_json())  # also flushes the folder


def read_checked(path: Path) -> Checkpoint:
    """Return the checkpoint in a folder, after checking every byte.

    Raises `DamageError` if a file is missing, damaged or invalid.
    """
    file = _read_state_file(path)
    for name, expected in file.state.find_arrays().items():
        with _naming(name), open_inside(path, name) as arrays:
            if _check_arrays(arrays, expected) != file.xxh3_128.get(name):
                raise DamageError("is damaged: its checksum does not match")
    return Checkpoint(path=path, state=file.state)


def read_state(path: Path) -> RunState:
    """Return the state of the checkpoint in a folder, without checking the arrays."""
    return _read_state_file(path).state


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Turn an error in the `with` block into a `DamageError` that begins with the file's name."""
    try:
        yield
    except DamagedFileError as error:
        raise DamageError(f"{error.file} {error.what}") from error
    except DamageError as error:
        raise DamageError(f"{name} {error}") from error
    except OSError as error:
        raise DamageError(f"{name} cannot be read: {error.strerror}") from error


def _decode(data: bytes, kind: type[_T]) -> _T:
    try:
        return decode(data, kind)
    except ValueError as error:
        raise DamageError(f"is damaged: {error}") from error


def _read_state_file(path: Path) -> _StateFile:
    with _naming(STATE_NAME):
        data = read_inside(path, STATE_NAME, _MOST_STATE)
        version = _decode(data, _Version).version
        if version != VERSION:
            raise DamageError(f"has version {version}, but this tokenmill reads {VERSION}")
        file = _decode(data, _StateFile)
        # Comparing all bytes also finds a duplicate key, which would hide another value.
        if file.checksum != file.compute_checksum() or file.to_json() != data:
            raise DamageError("is damaged: its checksum does not match")
        state = file.state
        if path.name != f"step_{state.step:07}":
            raise DamageError(f"belongs to step {state.step:,}")
        if not state.step <= state.row <= state.step * _MOST_ROWS_PER_STEP:
            raise DamageError(f"is damaged: step {state.step:,} cannot be at row {state.row:,}")
        if state.loader.get("row") != state.row:
            raise DamageError("is damaged: the loader and the run are at different rows")
        state.read_settings()
    return file


def _check_arrays(file: BinaryIO, expected: Shapes) -> str:
    """Check the header and every value of a safetensors file. Returns the file's checksum."""
    digest = xxhash.xxh3_128()
    for name, size in _read_header(file, expected, digest):
        left = _FLOAT.itemsize * math.prod(size)
        while left:
            block = file.read(min(left, _BLOCK))
            if not block:
                raise DamageError("was truncated while it was being read")
            digest.update(block)
            left -= len(block)
            values = np.frombuffer(block, _FLOAT)
            if not np.isfinite(values).all():
                raise DamageError(f"has a value in {name} that is NaN or infinite")
            if name.endswith(_NEVER_NEGATIVE) and (values < 0).any():
                raise DamageError(f"has a negative value in {name}")
    return digest.hexdigest()


def _read_header(
    file: BinaryIO, expected: Shapes, digest: Any = None
) -> list[tuple[str, tuple[int, ...]]]:
    """Read the names and shapes of the arrays in a safetensors file, in the order of their bytes.

    Leaves the file position at the first byte of the first array. If `digest` is given, adds all
    bytes before that one to it. Raises `DamageError` unless the arrays have exactly the expected
    names and shapes, are float32, and fill the file.
    """
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if not 8 + length <= size or length > _MOST_HEADER:
        raise DamageError(
            f"is damaged: its header length is {length:,}, and the file has {size:,} bytes"
        )
    header = file.read(length)
    if digest is not None:
        digest.update(start + header)
    tensors = _decode(header, dict[str, _Tensor])
    for name in [*expected, *tensors]:
        one = tensors.get(name)
        found = f"{one.dtype} {tuple(one.shape)}" if one else "missing"
        wanted = f"F32 {expected[name]}" if name in expected else "none"
        if found != wanted:
            raise DamageError(
                f"does not fit its model: {name[:80]!r} is {found[:80]}, expected {wanted}"
            )
    ordered = sorted(tensors.items(), key=lambda item: item[1].data_offsets)
    end = 0
    for name, one in ordered:
        first, end = end, end + _FLOAT.itemsize * math.prod(one.shape)
        if one.data_offsets != (first, end):
            raise DamageError(f"is damaged: {name!r} is at {one.data_offsets}, not {(first, end)}")
    if 8 + length + end != size:
        raise DamageError(f"has {size:,} bytes, expected {8 + length + end:,}")
    return [(name, expected[name]) for name, _ in ordered]


def _save(path: Path, arrays: AnyArrays) -> str:
    """Write arrays to a file and flush it. Returns the file's checksum."""
    data = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        load_safetensors().save_file(data, path)
    except Exception as error:
        # safetensors mentions the system's error number only in its text.
        if number := re.search(r"\(os error (\d+)\)", str(error)):
            code = int(number[1])
            raise OSError(code, os.strerror(code), str(path)) from error
        raise
    path.chmod(path.parent.stat().st_mode & 0o666)  # safetensors ignores the umask
    sync_file(path)
    with path.open("rb") as file:
        return hash_file(file)


def load_safetensors() -> Any:
    """Return the module `safetensors.numpy`. Raises `UsageError` if it is not installed."""
    try:
        import safetensors.numpy
    except ModuleNotFoundError as error:
        raise UsageError(
            "Checkpoints need the package safetensors: pip install 'tokenmill[torch]' (or [jax])."
        ) from error
    return safetensors.numpy
