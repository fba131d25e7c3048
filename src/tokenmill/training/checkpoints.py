"""Checkpoints: everything that a run needs to resume, as files that hold data and no code.

    checkpoints/step_0000100/model.safetensors       the parameters, by the names of `model.py`
    checkpoints/step_0000100/optimizer.safetensors   what the optimiser remembers
    checkpoints/step_0000100/state.json              the rest, and the checksums of all three

Guarantees: a checkpoint is either complete and on disk, or absent: it is written under a temporary
name, flushed, and renamed. If it is damaged later, its checksums show that, and the one before is
used. The newest few are kept, and the one with the lowest validation loss; the checkpoints record
which one that is.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from tokenmill.errors import StateError, UsageError
from tokenmill.storage.files import sync_folder
from tokenmill.training.model import Arrays, Shape

VERSION = 1
MODEL_NAME = "model.safetensors"
OPTIMIZER_NAME = "optimizer.safetensors"
STATE_NAME = "state.json"
_NAME = re.compile(r"step_(\d{7,})")
_PIECE = 1 << 20


class _DamageError(Exception):
    """Why a checkpoint cannot be used."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a run is, and which run it is.

    `row` is the number of rows consumed, `loader` the loader's own state. `vocab` is how many ids the
    tokenizer has, where the shape's is padded. `val_loss` is that of these very parameters, None where
    they were not validated.
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


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose files are sound."""

    path: Path
    state: State

    def parameters(self) -> Arrays:
        """The parameters by name."""
        return _load(self.path / MODEL_NAME)

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """What the optimiser remembers, by name."""
        return _load(self.path / OPTIMIZER_NAME)


class Checkpoints:
    """The checkpoints of a run, in a folder of theirs.

    >>> import tempfile
    >>> checkpoints = Checkpoints(Path(tempfile.mkdtemp()))
    >>> state = State(
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
        _safetensors()  # now, rather than when there is something to be lost
        self.folder = folder

    def write(
        self,
        state: State,
        parameters: Mapping[str, npt.NDArray[Any]],
        optimizer_state: Mapping[str, npt.NDArray[Any]],
        *,
        keep: int,
    ) -> Path:
        """Write a checkpoint, then remove what need not be kept."""
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / f"step_{state.step:07}"
        temporary = target.with_name(target.name + ".tmp")
        _remove(temporary)
        temporary.mkdir()
        try:
            for name, arrays in ((MODEL_NAME, parameters), (OPTIMIZER_NAME, optimizer_state)):
                _save(temporary / name, arrays)
            _write(temporary / STATE_NAME, _encode(state, temporary))
            sync_folder(temporary)
            self._set_aside(target)
            temporary.rename(target)
            sync_folder(self.folder)
        except BaseException:  # on a full disk, what is half-written takes the room
            _remove(temporary)
            raise
        self._remove_old(state.step, keep)
        return target

    def newest(self, warn: Callable[[str], None] = lambda _: None) -> Checkpoint | None:
        """The newest intact checkpoint; warns about damaged ones.

        `StateError` if there are checkpoints and none is sound.
        """
        return self._first_sound(self._by_step(), warn)

    def best(self, warn: Callable[[str], None] = lambda _: None) -> Checkpoint | None:
        """The sound checkpoint with the least validation loss; the newest if none was validated."""
        losses = self._losses()
        return self._first_sound(
            sorted(self._by_step(), key=lambda step: losses.get(step, np.inf)), warn
        )

    def at(self, step: int) -> Checkpoint:
        """The checkpoint of a step; `StateError` if it is not sound."""
        try:
            return _check(self._path(step))
        except _DamageError as fault:
            raise StateError(f"{self._path(step)} cannot be used: {fault}.") from fault

    def remove_temporaries(self) -> None:
        """Remove what a killed run left half-written or half-removed."""
        for stale in self.folder.glob("*.tmp"):
            _remove(stale)

    def _path(self, step: int) -> Path:
        return self.folder / f"step_{step:07}"

    def _by_step(self) -> list[int]:
        """The steps of all checkpoints, sound or not, the newest first."""
        if not self.folder.is_dir():
            return []
        matches = (_NAME.fullmatch(name) for name in os.listdir(self.folder))
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def _first_sound(self, steps: list[int], warn: Callable[[str], None]) -> Checkpoint | None:
        for step in steps:
            try:
                return _check(self._path(step))
            except _DamageError as fault:
                warn(f"Checkpoint {self._path(step)} is passed over: {fault}.")
        if steps:
            raise StateError(
                f"None of the {len(steps)} checkpoints in {self.folder} can be used. Restore one from "
                "a backup, or add `restart=True` to start over."
            )
        return None

    def _losses(self) -> dict[int, float]:
        """The validation loss of each checkpoint that has one and can be asked."""
        losses = {}
        for step in self._by_step():
            try:
                state, _ = _decode(self._path(step))
            except _DamageError:
                continue
            if state.val_loss is not None:
                losses[step] = state.val_loss
        return losses

    def _remove_old(self, newest: int, keep: int) -> None:
        """Remove all but the newest `keep` up to a step, and the best. Later ones are damaged."""
        losses = self._losses()
        best = min(losses, key=lambda step: (losses[step], step), default=newest)
        for step in [step for step in self._by_step() if step <= newest][keep:]:
            if step != best:
                self._set_aside(self._path(step))

    def _set_aside(self, path: Path) -> None:
        """Remove a checkpoint, if it is there; nobody sees it half-removed."""
        if os.path.lexists(path):
            doomed = path.with_name(path.name + ".old.tmp")
            _remove(doomed)
            path.rename(doomed)
            _remove(doomed)


def refuse_other_run(state: State, own: State, cure: str) -> None:
    """Raise `StateError` if a checkpoint is of another run: all that differs is named.

    Settings that may change between a run's parts are not looked at.
    """
    found: list[str] = []
    # Checkpoints from before a part of the shape existed have its default.
    later = {one.name: one.default for one in fields(Shape) if one.default is not MISSING}
    there, here = (
        {
            "the mixture": _tell_mixture(one.loader),
            **{f"the data of {name}": value for name, value in one.fingerprints.items()},
            **{f"the model's {name}": value for name, value in (later | one.shape).items()},
            "the backend": one.backend,
            **{f"the {name}": one.config.get(name) for name in ("optimizer", "seed")},
        }
        for one in (state, own)
    )
    if there["the mixture"] != here["the mixture"]:  # by which the data of validation are chosen
        there["the data of val"] = here["the data of val"] = ""
    for name in [*here, *(name for name in there if name not in here)]:
        if there.get(name) != here.get(name):
            told = name.replace("the data of tokenizer", "the tokenizer")
            found.append(f"{told}: {there.get(name, 'none')} then, {here.get(name, 'none')} now")
    if found:
        raise StateError("The run was begun with something else:\n  " + "\n  ".join([*found, cure]))


def _tell_mixture(loader: dict[str, Any]) -> str:
    """The sources and weights in a loader's state.

    >>> _tell_mixture({"names": ["web", "code"], "weights": [[0, [0.7, 0.3]]]})
    'web 0.7, code 0.3'
    """
    phases = loader.get("weights", [])
    told = [zip(loader["names"], weights, strict=True) for _, weights in phases]
    return (
        "; ".join(", ".join(f"{name} {weight:g}" for name, weight in one) for one in told) or "none"
    )


def _check(path: Path) -> Checkpoint:
    """A checkpoint, once every byte of it is known to be as it was written."""
    state, checksums = _decode(path)
    for name in (MODEL_NAME, OPTIMIZER_NAME):
        try:
            found = _checksum(path / name)
        except FileNotFoundError:
            raise _DamageError(f"{name} is missing") from None
        except OSError as error:
            raise _DamageError(f"{name} cannot be read: {error.strerror}") from error
        if found != checksums.get(name):
            raise _DamageError(
                f"{name} is damaged: its checksum is not the one it was written with"
            )
    return Checkpoint(path=path, state=state)


def _encode(state: State, folder: Path) -> bytes:
    checksums = {name: _checksum(folder / name) for name in (MODEL_NAME, OPTIMIZER_NAME)}
    content = {"version": VERSION, **asdict(state), "xxh3_128": checksums}
    plain = orjson.dumps(content)
    own = xxhash.xxh3_128_hexdigest(plain)
    return orjson.dumps(orjson.loads(plain) | {"checksum": own}, option=orjson.OPT_INDENT_2)


def _decode(path: Path) -> tuple[State, dict[str, str]]:
    try:
        content = orjson.loads((path / STATE_NAME).read_bytes())
    except FileNotFoundError:
        raise _DamageError(f"{STATE_NAME} is missing") from None
    except OSError as error:
        raise _DamageError(f"{STATE_NAME} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise _DamageError(f"{STATE_NAME} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise _DamageError(f"{STATE_NAME} is not one of tokenmill")
    if content.get("version") != VERSION:
        raise _DamageError(
            f"{STATE_NAME} has version {content.get('version')!r}, and this tokenmill reads "
            f"version {VERSION}"
        )
    own = content.pop("checksum", None)
    if own != xxhash.xxh3_128_hexdigest(orjson.dumps(content)):
        raise _DamageError(f"{STATE_NAME} is damaged: its checksum is not its own")
    names = {field.name for field in fields(State)}
    if content.keys() != names | {"version", "xxh3_128"}:
        raise _DamageError(f"{STATE_NAME} is not one of tokenmill")
    state = State(**{name: content[name] for name in names})
    if path.name != f"step_{state.step:07}":
        raise _DamageError(f"{STATE_NAME} is that of step {state.step:,}")
    return state, content["xxh3_128"]


def _save(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    safetensors = _safetensors()
    data = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        safetensors.save_file(data, path)
    except Exception as error:
        # What the system said is only in the text.
        if told := re.search(r"\(os error (\d+)\)", str(error)):
            number = int(told[1])
            raise OSError(number, os.strerror(number), str(path)) from error
        raise
    path.chmod(path.parent.stat().st_mode & 0o666)  # as other files, which safetensors does not
    _flush(path)


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


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    _flush(path)


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    for piece in _pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
