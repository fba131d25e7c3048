"""Checkpoints: everything that a run needs to resume, as files that hold data and no code.

    checkpoints/step_0000100/model.safetensors       the parameters, by the names of `model.py`
    checkpoints/step_0000100/optimizer.safetensors   the optimizer's state
    checkpoints/step_0000100/state.json              the rest, and the checksums of all three

Guarantees: a checkpoint is either complete and on disk, or absent: it is written under a temporary
name, flushed, and renamed. If it is damaged later, its checksums show that, and the one before is
used. The newest few are kept, and the one with the lowest validation loss; the checkpoints record
which one that is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.errors import StateError, UsageError
from tokenmill.storage.files import (
    make_subfolder,
    remove,
    sync_file,
    sync_folder,
    temporary_path,
    write_file,
)
from tokenmill.store.tokens import is_same_data
from tokenmill.training.model import Arrays

VERSION = 2
MODEL_NAME = "model.safetensors"
OPTIMIZER_NAME = "optimizer.safetensors"
STATE_NAME = "state.json"
_NAME = re.compile(r"step_([0-9]{7,18})")


class RunState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The progress of a run, and the values that identify the run.

    `row` is the number of rows consumed, `loader` the loader's own state. `vocab` is the number of the
    tokenizer's ids; the shape's is padded. `val_loss` belongs to exactly these parameters; it is None
    if they were not validated.
    """

    step: int
    row: int
    loader: dict[str, Any]
    vocab: int
    eot_id: int | None
    shape: dict[str, Any]
    config: dict[str, Any]
    backend: str
    fingerprints: dict[str, str]
    val_loss: float | None


class _StateFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `state.json`; `checksum` covers it all except `checksum`."""

    version: int
    state: RunState
    xxh3_128: dict[str, str]
    checksum: str

    def compute_checksum(self) -> str:
        return xxhash.xxh3_128_hexdigest(
            msgspec.json.encode((self.version, self.state, self.xxh3_128))
        )


class _Version(msgspec.Struct):
    version: int


class _DamageError(Exception):
    """Why a checkpoint cannot be used."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint with intact files."""

    path: Path
    state: RunState

    def parameters(self) -> Arrays:
        """The parameters by name."""
        return _load(self.path / MODEL_NAME)

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """The optimizer's state by name."""
        return _load(self.path / OPTIMIZER_NAME)


class Checkpoints:
    """The checkpoints of a run, in their own folder.

    >>> import tempfile
    >>> checkpoints = Checkpoints(Path(tempfile.mkdtemp()))
    >>> state = RunState(
    ...     step=100, row=800, loader={}, vocab=256, eot_id=None, shape={}, config={},
    ...     backend="torch", fingerprints={}, val_loss=None,
    ... )
    >>> checkpoints.write(state, {"head": np.ones((2, 2), np.float32)}, {}, keep=2).name
    'step_0000100'
    >>> found = checkpoints.newest()
    >>> found.state.row, found.parameters()["head"].sum()
    (800, np.float32(4.0))
    """

    def __init__(self, folder: Path) -> None:
        _safetensors()  # fails now, not after hours of training
        self.folder = folder

    def write(
        self,
        state: RunState,
        parameters: Mapping[str, npt.NDArray[Any]],
        optimizer_state: Mapping[str, npt.NDArray[Any]],
        *,
        keep: int,
    ) -> Path:
        """Write a checkpoint, then remove those that need not be kept."""
        make_subfolder(self.folder.parent, self.folder)
        target = self._path(state.step)
        temporary = temporary_path(target)
        remove(temporary)
        temporary.mkdir()
        try:
            arrays = {MODEL_NAME: parameters, OPTIMIZER_NAME: optimizer_state}
            checksums = {name: _save(temporary / name, held) for name, held in arrays.items()}
            file = _StateFile(version=VERSION, state=state, xxh3_128=checksums, checksum="")
            file = msgspec.structs.replace(file, checksum=file.compute_checksum())
            written = msgspec.json.format(msgspec.json.encode(file), indent=2)
            write_file(temporary / STATE_NAME, written)  # also flushes the folder
            self._discard(target)
            temporary.rename(target)
            sync_folder(self.folder)
        except BaseException:  # on a full disk, half a checkpoint would waste space
            remove(temporary)
            raise
        self._remove_old(state.step, keep)
        return target

    def newest(self, warn: Callable[[str], None] = lambda _: None) -> Checkpoint | None:
        """The newest intact checkpoint; warns about damaged ones.

        `StateError` if there are checkpoints and none is intact.
        """
        return self._first_intact(self._steps(), warn)

    def best(self, warn: Callable[[str], None] = lambda _: None) -> Checkpoint | None:
        """The intact checkpoint with the lowest validation loss; the newest if none was validated."""
        losses = self._losses()
        by_loss = sorted(self._steps(), key=lambda step: losses.get(step, np.inf))
        return self._first_intact(by_loss, warn)

    def at(self, step: int) -> Checkpoint:
        """The checkpoint of a step; `StateError` if it is damaged."""
        try:
            return _check(self._path(step))
        except _DamageError as damage:
            raise StateError(f"{self._path(step)} cannot be used: {damage}.") from damage

    def _path(self, step: int) -> Path:
        return self.folder / f"step_{step:07}"

    def _steps(self) -> list[int]:
        """The steps of all checkpoints, intact or not, the newest first."""
        if not self.folder.is_dir():
            return []
        matches = (_NAME.fullmatch(name) for name in os.listdir(self.folder))
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def _first_intact(self, steps: list[int], warn: Callable[[str], None]) -> Checkpoint | None:
        for step in steps:
            try:
                return _check(self._path(step))
            except _DamageError as damage:
                warn(f"Skipping checkpoint {self._path(step)}: {damage}.")
        if steps:
            raise StateError(
                f"None of the {len(steps)} checkpoints in {self.folder} can be used. Restore one from "
                "a backup, or add `restart=True` to start over."
            )
        return None

    def _losses(self) -> dict[int, float]:
        """The validation loss of each checkpoint that has one and is readable."""
        losses = {}
        for step in self._steps():
            try:
                state = _read_state(self._path(step)).state
            except _DamageError:
                continue
            if state.val_loss is not None:
                losses[step] = state.val_loss
        return losses

    def _remove_old(self, newest: int, keep: int) -> None:
        """Remove all but the newest `keep` up to a step, and the best. Later ones are damaged."""
        losses = self._losses()
        best = min(losses, key=lambda step: (losses[step], step), default=newest)
        for step in [step for step in self._steps() if step <= newest][keep:]:
            if step != best:
                self._discard(self._path(step))

    def _discard(self, path: Path) -> None:
        """Remove a checkpoint if it exists; it never appears half-removed."""
        if os.path.lexists(path):
            doomed = temporary_path(path.with_name(f"{path.name}.old"))
            remove(doomed)
            path.rename(doomed)
            remove(doomed)


def refuse_other_run(state: RunState, own: RunState, cure: str) -> None:
    """Raise `StateError` if a checkpoint belongs to another run; the error names all differences.

    Settings that may change when a run resumes are ignored.
    """
    there, here = (
        {
            "the mixture": _describe_mixture(one.loader),
            **{f"the data of {name}": value for name, value in one.fingerprints.items()},
            **{f"the model's {name}": value for name, value in one.shape.items()},
            "the backend": one.backend,
            **{f"the {name}": one.config.get(name) for name in ("optimizer", "seed")},
        }
        for one in (state, own)
    )
    if there["the mixture"] != here["the mixture"]:  # then the validation data differs too
        there["the data of val"] = here["the data of val"] = ""
    found = [
        f"{name.replace('the data of tokenizer', 'the tokenizer')}: "
        f"{there.get(name, 'none')} then, {here.get(name, 'none')} now"
        for name in [*here, *(name for name in there if name not in here)]
        if not _is_equal(name, there.get(name), here.get(name))
    ]
    if found:
        raise StateError("The run was started differently:\n  " + "\n  ".join([*found, cure]))


def _is_equal(name: str, there: Any, here: Any) -> bool:
    return is_same_data(there, here) if name.startswith("the data of ") else there == here


def _describe_mixture(loader: dict[str, Any]) -> str:
    """The sources and weights in a loader's state.

    >>> _describe_mixture({"names": ["web", "code"], "weights": [[0, [0.7, 0.3]]]})
    'web 0.7, code 0.3'
    """
    phases = [
        ", ".join(
            f"{name} {weight:g}" for name, weight in zip(loader["names"], weights, strict=True)
        )
        for _, weights in loader.get("weights", [])
    ]
    return "; ".join(phases) or "none"


def _check(path: Path) -> Checkpoint:
    """The checkpoint in a folder, after a check of every byte."""
    file = _read_state(path)
    for name in (MODEL_NAME, OPTIMIZER_NAME):
        try:
            found = _checksum(path / name)
        except FileNotFoundError:
            raise _DamageError(f"{name} is missing") from None
        except OSError as error:
            raise _DamageError(f"{name} cannot be read: {error.strerror}") from error
        if found != file.xxh3_128.get(name):
            raise _DamageError(f"{name} is damaged: its checksum does not match")
    return Checkpoint(path=path, state=file.state)


def _read_state(path: Path) -> _StateFile:
    try:
        data = (path / STATE_NAME).read_bytes()
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            raise _DamageError(
                f"{STATE_NAME} has version {version}, but this tokenmill reads version {VERSION}"
            )
        file = msgspec.json.decode(data, type=_StateFile)
    except FileNotFoundError:
        raise _DamageError(f"{STATE_NAME} is missing") from None
    except OSError as error:
        raise _DamageError(f"{STATE_NAME} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise _DamageError(f"{STATE_NAME} is damaged: {error}") from error
    if file.checksum != file.compute_checksum():
        raise _DamageError(f"{STATE_NAME} is damaged: its checksum does not match")
    if path.name != f"step_{file.state.step:07}":
        raise _DamageError(f"{STATE_NAME} belongs to step {file.state.step:,}")
    return file


def _save(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Write arrays and flush them; returns the checksum of the file."""
    data = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        _safetensors().save_file(data, path)
    except Exception as error:
        # safetensors mentions the system's error number only in its text.
        if number := re.search(r"\(os error ([0-9]{1,9})\)", str(error)):
            code = int(number[1])
            raise OSError(code, os.strerror(code), str(path)) from error
        raise
    path.chmod(path.parent.stat().st_mode & 0o666)  # safetensors ignores the umask
    sync_file(path)
    return _checksum(path)


def _load(path: Path) -> dict[str, npt.NDArray[Any]]:
    loaded: dict[str, npt.NDArray[Any]] = _safetensors().load_file(path)
    return loaded


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise UsageError(
            "Checkpoints need the package safetensors: pip install 'tokenmill[torch]' (or [jax])."
        ) from error
    return safetensors.numpy


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
