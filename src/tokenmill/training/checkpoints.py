"""Checkpoints: everything that a run needs to resume, as files that hold data and no code.

    checkpoints/step_0000100/model.safetensors       the parameters, by the names of `model.py`
    checkpoints/step_0000100/optimizer.safetensors   the optimizer's state
    checkpoints/step_0000100/state.json              the rest, and the checksums of all three

Guarantees: a checkpoint is either complete and on disk, or absent: it is written under a temporary
name, flushed, and renamed. If a checkpoint is damaged or invalid, `checkpoint_files.py` notices,
and the one before it is used. The newest few checkpoints are kept, and also the one with the lowest
validation loss. Each checkpoint records its validation loss.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.errors import StateError
from tokenmill.storage.files import make_subfolder, remove, sync_folder, temporary_path
from tokenmill.store.tokens import is_same_data
from tokenmill.training.checkpoint_files import (
    RESTORE,
    AnyArrays,
    Checkpoint,
    DamageError,
    RunState,
    load_safetensors,
    read_checked,
    read_state,
    write_files,
)

_NAME = re.compile(r"step_([0-9]{7,13})")


class Checkpoints:
    """The checkpoints of a run, in their own folder.

    >>> import tempfile
    >>> checkpoints = Checkpoints(Path(tempfile.mkdtemp()))
    >>> checkpoints.newest() is None
    True
    """

    def __init__(self, folder: Path) -> None:
        load_safetensors()  # fails now, not after hours of training
        self.folder = folder

    def write(
        self,
        state: RunState,
        parameters: AnyArrays,
        optimizer_state: AnyArrays,
        *,
        keep: int,
    ) -> Path:
        """Write a checkpoint, remove old ones, and return the new checkpoint's folder.

        If a value is NaN or infinite, raises `NotFiniteError` and changes nothing.
        """
        make_subfolder(self.folder.parent, self.folder)
        target = self._path(state.step)
        temporary = temporary_path(target)
        remove(temporary)
        temporary.mkdir()
        try:
            write_files(temporary, state, parameters, optimizer_state)
            self._discard(target)
            temporary.rename(target)
            sync_folder(self.folder)
        except BaseException:  # on a full disk, half a checkpoint would waste space
            remove(temporary)
            raise
        self._remove_old(state.step, keep)
        return target

    def newest(self, warn: Callable[[str], None] = lambda _: None) -> Checkpoint | None:
        """Return the newest intact checkpoint, or None if there are no checkpoints.

        Warns about damaged checkpoints. Raises `StateError` if all of them are damaged.
        """
        return self._first_intact(self._steps(), warn)

    def best(self, warn: Callable[[str], None] = lambda _: None) -> Checkpoint | None:
        """Return the intact checkpoint with the lowest validation loss.

        If none was validated, returns the newest intact checkpoint.
        """
        losses = self._losses()
        by_loss = sorted(self._steps(), key=lambda step: losses.get(step, np.inf))
        return self._first_intact(by_loss, warn)

    def at(self, step: int) -> Checkpoint:
        """Return the checkpoint of a step. Raises `StateError` if it is damaged."""
        try:
            return read_checked(self._path(step))
        except DamageError as damage:
            raise StateError(f"{self._path(step)} cannot be used: {damage}. {RESTORE}") from damage

    def _path(self, step: int) -> Path:
        return self.folder / f"step_{step:07}"

    def _steps(self) -> list[int]:
        """Return the steps of all checkpoints, intact or not, the newest first."""
        if not self.folder.is_dir():
            return []
        matches = (_NAME.fullmatch(name) for name in os.listdir(self.folder))
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def _first_intact(self, steps: list[int], warn: Callable[[str], None]) -> Checkpoint | None:
        reasons = []
        for step in steps:
            try:
                return read_checked(self._path(step))
            except DamageError as damage:
                reasons.append(f"{self._path(step).name}: {damage}")
                warn(f"Skipping checkpoint {self._path(step)}: {damage}.")
        if reasons:
            raise StateError(
                f"None of the {len(steps)} checkpoints in {self.folder} can be used. {reasons[0]}. "
                "Restore one from a backup, or add `restart=True` to start over."
            )
        return None

    def _losses(self) -> dict[int, float]:
        """Return the validation loss of each readable checkpoint that has one, by step."""
        losses = {}
        for step in self._steps():
            try:
                state = read_state(self._path(step))
            except DamageError:
                continue
            if state.val_loss is not None:
                losses[step] = state.val_loss
        return losses

    def _remove_old(self, newest: int, keep: int) -> None:
        """Remove old checkpoints, except for the `keep` newest ones and the best.

        `newest` is the step that was just saved. Checkpoints of later steps stay. They are damaged:
        otherwise the run would have resumed from them.
        """
        losses = self._losses()
        best = min(losses, key=lambda step: (losses[step], step), default=newest)
        for step in [step for step in self._steps() if step <= newest][keep:]:
            if step != best:
                self._discard(self._path(step))

    def _discard(self, path: Path) -> None:
        """Remove a checkpoint. Renames it first, so that a kill never leaves half a checkpoint."""
        if os.path.lexists(path):
            doomed = temporary_path(path.with_name(f"{path.name}.old"))
            remove(doomed)
            path.rename(doomed)
            remove(doomed)


def refuse_other_run(state: RunState, own: RunState, cure: str) -> None:
    """Raise `StateError`, naming all differences, if a checkpoint belongs to another run.

    `state` is the checkpoint's state, and `own` is this run's. The message ends with `cure`.
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
    # With another mixture, `val` differs too. Report only the mixture.
    if there["the mixture"] != here["the mixture"]:
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
    """Describe the sources and weights in a loader's state.

    >>> _describe_mixture({"names": ["web", "code"], "weights": [[0, [0.7, 0.3]]]})
    'web 0.7, code 0.3'
    """
    try:
        phases = [
            ", ".join(
                f"{name} {weight:g}" for name, weight in zip(loader["names"], weights, strict=True)
            )
            for _, weights in loader.get("weights", [])
        ]
    except (LookupError, TypeError, ValueError):
        return "damaged"
    return "; ".join(phases) or "none"
