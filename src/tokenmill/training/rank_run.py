"""One rank of a run: find the checkpoint, connect the ranks, and continue from the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
import orjson
import xxhash

from tokenmill.errors import UsageError
from tokenmill.html import render
from tokenmill.load.loader import Loader
from tokenmill.load.state import check_state
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import sync_folder, write_file
from tokenmill.storage.names import TOKENIZER_NAME
from tokenmill.training.backend import Backend
from tokenmill.training.backends import open_backend
from tokenmill.training.checkpoint_files import Checkpoint, RunState
from tokenmill.training.checkpoints import Checkpoints, refuse_other_run
from tokenmill.training.config import Config
from tokenmill.training.data import RunData, read_not_mapped
from tokenmill.training.display import RunWatcher, open_board
from tokenmill.training.loop import Loop, StopSignal
from tokenmill.training.model import count_parameters, first_values
from tokenmill.training.run_folder import (
    CHECKPOINTS_NAME,
    CONFIG_NAME,
    Record,
    RunFolder,
    find_values,
    is_charted,
    read_metrics,
    write_chart,
)
from tokenmill.training.run_reading import RunPhase, write_run_data
from tokenmill.training.validation import Validator

_CURE = "Undo these changes, choose another `name`, or add `restart=True` to discard the run."
SMALL_DEFAULT = "laptop"  # the preset for machines without an accelerator


@dataclass(frozen=True, kw_only=True, repr=False)
class RunReport:
    """The result of a run. Each loss is the last one the run reported; None if there was none.

    `was_finished` means that an earlier call had completed the run, `was_stopped` that a signal
    stopped it.
    """

    path: Path
    step: int
    loss: float | None
    val_loss: float | None
    bits_per_byte: float | None
    was_finished: bool = False
    was_stopped: bool = False

    def __repr__(self) -> str:
        words = [f"{self.path}: step {self.step:,}"]
        words += [f"loss {self.loss:.4f}"] if self.loss is not None else []
        words += [f"validation loss {self.val_loss:.4f}"] if self.val_loss is not None else []
        words += ["finished before"] if self.was_finished else []
        words += ["stopped"] if self.was_stopped else []
        return f"<RunReport {', '.join(words)}>"

    def _repr_html_(self) -> str:
        losses = {
            "loss": self.loss,
            "validation loss": self.val_loss,
            "bits per byte": self.bits_per_byte,
        }
        facts = [("step", f"{self.step:,}")]
        facts += [(name, f"{loss:.4f}") for name, loss in losses.items() if loss is not None]
        facts += [("", "finished before")] if self.was_finished else []
        facts += [("", "stopped")] if self.was_stopped else []
        return render(f"Run {self.path}", facts)


@dataclass(frozen=True, kw_only=True)
class RankRun:
    """One rank of a run; `state` is the state before the first step."""

    path: Path
    config: Config
    data: RunData
    state: RunState
    loader: Loader
    watcher: RunWatcher
    rank: int
    world_size: int
    device: str | None
    boards: Sequence[str]
    restart: bool

    def train(self, stack: ExitStack) -> RunReport:
        """Start or resume the run, and return its report.

        Rank 0 checks the folder before the others read it. `stack` closes everything that is
        opened.
        """
        checkpoints = Checkpoints(self.path / CHECKPOINTS_NAME)
        checkpoint = None
        if self.rank == 0:
            stack.enter_context(RunFolder(self.path, restart=self.restart))
            checkpoint = self._find_checkpoint(checkpoints)
        owed = self._find_owed(checkpoint)
        step = checkpoint.state.step if checkpoint else 0
        if step and self.world_size == 1 and self._is_done(step, owed):
            return self._confirm_finished(step)
        backend = self._open_backend(checkpoint)
        stack.callback(backend.close)
        self._check_backend(backend)
        step, owed = _share(backend, step, owed)
        if step and self._is_done(step, owed):
            return self._confirm_finished(step)
        state = self.state
        if step:
            checkpoint = checkpoint or checkpoints.at(step)
            backend.load(checkpoint.parameters(), checkpoint.optimizer_state())
            self.loader.load_state_dict(checkpoint.state.loader)
            state = msgspec.structs.replace(state, step=step, row=checkpoint.state.row)
        if self.rank == 0:
            self._announce(backend, checkpoint)
        loop = self._make_loop(backend, checkpoints, state, owed, stack)
        loop.run()
        was_stopped = loop.step < self.config.max_steps or loop.was_cut
        return _report(self.path, loop.step, was_stopped=was_stopped)

    def _make_loop(
        self,
        backend: Backend,
        checkpoints: Checkpoints,
        state: RunState,
        owed: tuple[bool, bool],
        stack: ExitStack,
    ) -> Loop:
        """Return the loop that continues from `state`.

        `owed` says whether a validation and a sample are missing at the step of `state`. Rank 0
        also writes the settings, and opens the files of metrics and losses.
        """
        step = state.step
        record, boards = None, []
        if self.rank == 0:
            with explain_disk_errors(f"step {step:,} is kept" if step else "nothing was started"):
                self._write_settings(state)
                record = Record(self.path, step=step, row=state.row)
            stack.callback(record.close)
            for name in self.boards:
                boards.append(open_board(name, self.path, step=step, config=self.config))
                stack.callback(boards[-1].close)
        validator = None
        if self.data.val is not None:
            val = read_not_mapped(self.data.val)
            validator = Validator(self.data, val, self.config, backend)
            stack.callback(validator.close)
        stop = StopSignal(impatient=self.world_size == 1, notify=self.watcher.note)
        return Loop(
            config=self.config,
            data=self.data,
            state=state,
            backend=backend,
            loader=self.loader,
            validator=validator,
            checkpoints=checkpoints,
            record=record,
            watcher=self.watcher,
            boards=boards,
            stop=stack.enter_context(stop),
            owed=owed,
        )

    def announce_data(self, *, is_small: bool) -> None:
        """Send a description of the data to the watcher.

        `is_small` adds a notice that the run uses the small preset for lack of an accelerator.
        """
        for note in self.data.notes:
            self.watcher.warn(note)
        self.watcher.note(f"data      {self.data.describe}")
        if is_small:
            self.watcher.note(
                f"Training on the CPU with the preset `{SMALL_DEFAULT}`: about 4 minutes on two cores.\n"
                "`config='124M'` trains a full model."
            )

    def _find_checkpoint(self, checkpoints: Checkpoints) -> Checkpoint | None:
        """Return the checkpoint to resume from, or None.

        Raises an error if the checkpoint belongs to another run.
        """
        found = checkpoints.newest(self.watcher.warn)
        if found is None:
            return None
        before = found.state
        refuse_other_run(before, self.state, _CURE)
        check_state(before.loader, self.state.loader, force=False, cure=_CURE)
        changed = [
            f"{name} {before.config.get(name)} → {value}"
            for name, value in self.state.config.items()
            if before.config.get(name, value) != value
        ]
        if changed and before.step < self.config.max_steps:
            self.watcher.note(f"From step {before.step:,} on: {', '.join(changed)}.")
        return found

    def _find_owed(self, checkpoint: Checkpoint | None) -> tuple[bool, bool]:
        """Return whether a validation and a sample are still missing at the checkpoint's step.

        A stop may have interrupted them.
        """
        if checkpoint is None:
            return False, False
        step = checkpoint.state.step
        lines = [line for line in read_metrics(self.path) if line["step"] == step]
        due = self.config.find_due(step)
        can_validate = self.data.val is not None
        can_sample = self.data.tokenizer is not None and self.config.sample_tokens > 0
        return (
            due["validation"] and can_validate and not any("val_loss" in line for line in lines),
            due["sample"] and can_sample and not any("sample" in line for line in lines),
        )

    def _is_done(self, step: int, owed: tuple[bool, bool]) -> bool:
        last = self.config.max_steps
        return step > last or (step == last and not any(owed))

    def _confirm_finished(self, step: int) -> RunReport:
        """Report a finished run. If its chart is missing or out of date, write the chart first."""
        lines = read_metrics(self.path)
        if self.rank == 0:
            with explain_disk_errors(f"step {step:,} is kept"):
                sync_folder(self.path / CHECKPOINTS_NAME)
                if lines and not is_charted(self.path, lines):
                    write_chart(self.path, lines)
        return _report(self.path, step, was_finished=True)

    def _open_backend(self, checkpoint: Checkpoint | None) -> Backend:
        """Open this rank's backend with the checkpoint's parameters, or else the initial ones."""
        _, shape = self.state.read_settings()
        # No variable holds the parameters: it would keep them in memory for the whole run.
        return open_backend(
            self.state.backend,
            self.config,
            shape,
            checkpoint.parameters() if checkpoint else first_values(shape, self.config.seed),
            self.device,
        )

    def _check_backend(self, backend: Backend) -> None:
        """Raise `UsageError` if the ranks are not connected, or differ in settings or data.

        A collective call: every rank must make it.
        """
        if (backend.rank, backend.world_size) != (self.rank, self.world_size):
            raise UsageError(
                f"The environment says that this is rank {self.rank} of {self.world_size}, but "
                f"{backend.name} says rank {backend.rank} of {backend.world_size}. Start several "
                "processes with: torchrun --nproc-per-node N -m tokenmill.cli train …"
            )
        if backend.world_size == 1:
            return
        state = self.state
        settings = {**state.config, "data": state.loader}
        settings |= {"vocab": state.vocab, "eot_id": state.eot_id}
        table = np.zeros((backend.world_size, len(settings)))
        # Only as many bits of the hash as a float64 holds exactly.
        table[backend.rank] = [
            xxhash.xxh3_64_intdigest(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)) >> 12
            for value in settings.values()
        ]
        differs = (backend.total(table) != table[backend.rank]).any(axis=0)
        if found := [
            f"{name} {state.loader['sources'] if name == 'data' else value}"
            for (name, value), other in zip(settings.items(), differs, strict=True)
            if other
        ]:
            raise UsageError(
                f"The ranks were started differently. Rank {backend.rank} has {', '.join(found)}. "
                "Give all ranks the same settings and data."
            )

    def _announce(self, backend: Backend, checkpoint: Checkpoint | None) -> None:
        config, note = self.config, self.watcher.note
        parameters = count_parameters(self.state.read_settings()[1])
        note(f"model     {parameters:,} parameters on {backend.device} ({backend.name})")
        rows = f"{config.batch_rows:,} rows of {config.seq_len:,} tokens"
        note(f"steps     {config.max_steps:,} of {rows}")
        if checkpoint is not None:
            note(f"resuming  from step {checkpoint.state.step:,} ({checkpoint.path})")

    def _write_settings(self, state: RunState) -> None:
        """Write the settings and the tokenizer, so that the model can be used without its data.

        Also writes how the run reads its data, from the step of `state` onwards.
        """
        phase = RunPhase(
            step=state.step,
            row=state.row,
            batch_rows=self.config.batch_rows,
            world_size=self.world_size,
        )
        if problem := write_run_data(self.path, self.data.origin, self.loader.rows.identity, phase):
            self.watcher.warn(problem)
        written = orjson.dumps(asdict(self.config), option=orjson.OPT_INDENT_2) + b"\n"
        write_file(self.path / CONFIG_NAME, written)
        if self.data.tokenizer is not None:
            saved = orjson.dumps(self.data.tokenizer.state(), option=orjson.OPT_SORT_KEYS)
            write_file(self.path / TOKENIZER_NAME, saved + b"\n")


def _share(backend: Backend, step: int, owed: tuple[bool, bool]) -> tuple[int, tuple[bool, bool]]:
    """Return rank 0's `step` and `owed` on all ranks. The other ranks must pass 0 and False.

    `owed` says whether a validation and a sample are missing at that step. A collective call: every
    rank must make it.
    """
    found, *missing = backend.total(np.array([step, *owed], np.float64)).astype(int).tolist()
    return found, (bool(missing[0]), bool(missing[1]))


def _report(
    path: Path, step: int, *, was_finished: bool = False, was_stopped: bool = False
) -> RunReport:
    lines = read_metrics(path)
    last = {
        name: next(iter(find_values(lines, name)[1][-1:]), None)
        for name in ("loss", "val_loss", "bits_per_byte")
    }
    return RunReport(
        path=path, step=step, was_finished=was_finished, was_stopped=was_stopped, **last
    )
