"""The loop of a run: steps, and the validation, samples and checkpoints between them.

After a step, the loop does what is due, in this order: collect and check the losses, write a line
of metrics, validate, sample, write a checkpoint. Each of these gives the same result whether the
run was interrupted before or not.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import msgspec
import numpy as np

from tokenmill.errors import TokenmillError, UsageError, WorkError
from tokenmill.load.loader import Loader
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.training.augment import augment
from tokenmill.training.backend import Backend, StepReport, StepRows
from tokenmill.training.checkpoint_files import NotFiniteError, RunState
from tokenmill.training.checkpoints import Checkpoints
from tokenmill.training.config import Config
from tokenmill.training.data import RunData
from tokenmill.training.display import Board, Clock, Pulse, RunWatcher
from tokenmill.training.model import count_operations
from tokenmill.training.run_folder import Record, write_chart
from tokenmill.training.sample import generate
from tokenmill.training.validation import Validator

_CHART_EVERY = 5.0  # seconds


class StopSignal:
    """Sets the flag `asked` on Ctrl-C or SIGTERM; the loop checks it between micro-batches.

    Prints a notice, since a micro-batch can take seconds. With `impatient`, a second Ctrl-C stops
    immediately. With several ranks, a second signal is ignored, because launchers forward signals
    that the terminal has already sent.
    """

    def __init__(self, *, impatient: bool, notify: Callable[[str], None]) -> None:
        self.asked = False
        self._notify = notify
        self._impatient = impatient
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        if self.asked and self._impatient and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked = True
            again = " Ctrl-C again stops now, without a checkpoint." if self._impatient else ""
            self._notify(f"Stopping after this micro-batch.{again}")


@dataclass(kw_only=True)
class Loop:
    """A run in progress. `record`, the files of metrics and losses, is None except on rank 0.

    `owed` says whether the validation and the sample at the starting step are still missing.
    `was_cut` says whether a stop interrupted a validation or a sample.
    """

    config: Config
    data: RunData
    state: RunState  # when the loop starts
    backend: Backend
    loader: Loader
    validator: Validator | None
    checkpoints: Checkpoints
    record: Record | None
    watcher: RunWatcher
    boards: list[Board]
    stop: StopSignal
    owed: tuple[bool, bool] = (False, False)
    was_cut: bool = field(init=False, default=False)
    # The first row of each step whose losses were not collected yet.
    _unreported: list[int] = field(init=False, default_factory=list)
    _norm: float = field(init=False, default=math.nan)
    _clock: Clock = field(init=False, default_factory=Clock)
    _left: float = field(init=False, default=math.nan)
    _step_seconds: float = field(init=False, default=math.nan)  # estimated from micro-batches
    _warm_up: float = field(init=False, default=0.0)  # seconds of the first step
    _drawn: float = field(init=False, default=-math.inf)

    def __post_init__(self) -> None:
        self.row = self.state.row
        self.step = self.saved = self._lap = self.state.step  # `_lap`: where the clock's lap began
        _, self._shape = self.state.read_settings()
        self._pulse = Pulse(compiles=self.backend.compiles, silence=self.watcher.silence)

    def run(self) -> None:
        """Train up to the last step, or until a signal asks to stop."""
        if any(self.owed):
            self._catch_up()
        while self.step < self.config.max_steps:
            rows, end = self._next_rows()
            if not self.backend.step(rows, self.config.scale(self.step), self._pause):
                self._leave()
                return
            self._unreported.append(self.row)
            self.step, self.row = self.step + 1, end
            self._finish_step()

    def _finish_step(self) -> None:
        """Log, validate, sample and save, whichever are due.

        A stop interrupts the validation and the sample.
        """
        due = self.config.find_due(self.step)
        is_first = self.step == self.state.step + 1
        if is_first or any(due.values()):
            self._take_reports()
        if due["line"]:
            self._log()
        elif is_first or self._pulse.is_due():
            self._show(is_first)
        if not any(due.values()):
            return
        with self._clock.aside():
            val_loss = self._validate() if due["validation"] else None
            if due["sample"]:
                self._sample()
            if due["checkpoint"]:
                self._save(val_loss)
            self._draw(last=self.step == self.config.max_steps)

    def _catch_up(self) -> None:
        """Run the validation and the sample that a stop skipped at the starting step."""
        owes_validation, owes_sample = self.owed
        val_loss = self._validate() if owes_validation else None
        if owes_sample:
            self._sample()
        if val_loss is not None and self.config.find_due(self.step)["checkpoint"]:
            self._save(val_loss)

    def _leave(self) -> None:
        """End a stopped run: save the last complete step. All ranks wait until it is saved."""
        self._take_reports()
        if self.step > self.saved:
            self._save(None)
        self._draw(last=True)
        self.backend.agree(True)

    def _pause(self, done: int, count: int) -> bool:
        """Return whether to stop. Called before each micro-batch; prints progress if due."""
        seconds = self._pulse.time_first(self.backend)
        if seconds is not None and self.record is not None:
            self._step_seconds = seconds * count
            left = (self.config.max_steps - self.step) * count - done
            self.watcher.expect(seconds * left)
        elif done:
            self._beat(f"step {self.step + 1:,}: {done:,} of {count:,} micro-batches done")
        return self.stop.asked

    def _next_rows(self) -> tuple[StepRows, int]:
        """Return the rows of the next step, and the number of the first row after them."""
        try:
            with self._clock.waiting():
                batch = next(self.loader)
                assert batch.tokens is not None
                inputs, targets = augment(
                    batch.tokens,
                    batch.row,
                    config=self.config,
                    vocab=self.data.vocab,
                    eot_id=self.data.eot_id,
                )
                documents = batch.documents.ids if batch.documents is not None else None
        except UsageError:
            raise
        except (TokenmillError, OSError) as error:
            if self.backend.world_size == 1 and self.step > self.saved:
                with suppress(WorkError):  # a second error would hide the first
                    self._take_reports()
                    self._save(None)
            raise self._without_data(error) from error
        return StepRows(inputs=inputs, targets=targets, documents=documents), batch.end

    def _without_data(self, error: Exception) -> WorkError:
        return WorkError(
            f"{error}\nTraining stopped after step {self.step:,}; {self._kept()}. Restore the "
            "data; then the same command resumes."
        )

    def _kept(self) -> str:
        if not self.saved:
            return "there is no checkpoint yet"
        return f"the checkpoint of step {self.saved:,} is in {self.checkpoints.folder}"

    def _take_reports(self) -> None:
        """Collect the losses of all steps since the last call.

        Raises `WorkError` if a loss or a gradient is NaN or infinite.
        """
        first_step = self.step - len(self._unreported) + 1
        rows, self._unreported = self._unreported, []
        for step, (row, report) in enumerate(
            zip(rows, self.backend.report(), strict=True), first_step
        ):
            if self.record is not None:
                with explain_disk_errors(self._kept()):
                    self.record.add_losses(row, report.row_losses)
            self._check(step, row, report)
            self._norm = report.gradient_norm

    def _check(self, step: int, row: int, report: StepReport) -> None:
        wrong = np.flatnonzero(~np.isfinite(report.row_losses))
        if len(wrong):
            what = f"The loss of row {row + int(wrong[0]):,} is {report.row_losses[wrong[0]]}"
            if len(wrong) > 1:
                what += f" (and of {len(wrong) - 1} more of the {len(report.row_losses)} rows)"
        elif not math.isfinite(report.gradient_norm):
            last = row + len(report.row_losses) - 1
            what = f"The gradient of rows {row:,} to {last:,} is {report.gradient_norm}"
        else:
            return
        raise WorkError(f"{what}, in step {step:,}: {self._advise()}")

    def _advise(self) -> str:
        rates = {
            name: getattr(self.config, name) for name in ("learning_rate", "matrix_learning_rate")
        }
        lower = " and ".join(f"`{name}={rate / 2:g}`" for name, rate in rates.items())
        begin = "resume from there" if self.saved else "start over"
        return (
            f"training cannot continue from here; {self._kept()}.\n"
            f"Lower the learning rate: run it again with {lower} to {begin}."
        )

    def _log(self) -> None:
        """Record and print a line of metrics about the steps since the last recorded line."""
        line = self._make_line(*self._clock.lap())
        self._lap = self.step
        if line is not None:
            self._add(line)

    def _show(self, is_first: bool) -> None:
        """Print a line of metrics without recording it: after the first step or a long silence."""
        # Gathering losses needs all ranks, but each rank measures the silence on its own.
        if self.backend.world_size > 1 and not is_first:
            self._beat(f"step {self.step:,} of {self.config.max_steps:,} done")
            return
        self._take_reports()
        self._pulse.restart()
        line = self._make_line(*self._clock.peek())
        if line is not None:
            self.watcher.line(line, self.config.max_steps, self._left)

    def _make_line(self, seconds: float, waiting: float) -> dict[str, Any] | None:
        """Return a line of metrics about the steps since the last recorded line.

        Returns None if there were no steps, and on all ranks but rank 0.
        """
        steps = self.step - self._lap
        if self.record is None or not steps:
            return None
        config, row = self.config, self.row
        rate = steps * config.batch_tokens / seconds
        peak = self.backend.peak_flops
        used = rate * count_operations(self._shape)
        self._left = self._find_step_seconds(seconds, steps) * (config.max_steps - self.step)
        return {
            "step": self.step,
            "row": row,
            "tokens": row * config.seq_len,
            "loss": self.record.mean_loss(row),
            "rate": config.scale(self.step - 1),
            "gradient_norm": self._norm,
            "seconds": seconds,
            "tokens_per_second": rate,
            "waiting": waiting,
            "memory": self.backend.peak_memory(),
        } | ({"mfu": used / peak} if peak else {})

    def _find_step_seconds(self, seconds: float, steps: int) -> float:
        """Return the mean seconds per step, without the process's first step, which is slower."""
        if self._lap > self.state.step:
            return seconds / steps
        if steps == 1:
            self._warm_up = seconds
            return self._step_seconds
        return (seconds - self._warm_up) / (steps - 1)

    def _validate(self) -> float | None:
        if self.validator is None:
            return None
        try:
            found = self.validator.run(self._pause_validation)
        except (TokenmillError, OSError) as error:
            raise self._without_data(error) from error
        if found is None:
            self.was_cut = True
            return None
        if not math.isfinite(found.loss):
            raise WorkError(
                f"The validation loss is {found.loss}, after step {self.step:,}: {self._advise()}"
            )
        self._add(
            {"step": self.step, "val_loss": found.loss}
            | ({} if found.bits_per_byte is None else {"bits_per_byte": found.bits_per_byte})
        )
        return found.loss

    def _pause_validation(self, done: int, count: int) -> bool:
        self._beat(f"step {self.step:,}: {done:,} of {count:,} batches validated")
        return self.stop.asked

    def _beat(self, text: str) -> None:
        """Print `text` on rank 0 if nothing was printed for a while."""
        if self.record is not None and self._pulse.is_due():
            self._pulse.restart()
            self.watcher.note(text)

    def _sample(self) -> None:
        tokenizer = self.data.tokenizer
        if self.record is None or tokenizer is None or not self.config.sample_tokens:
            return
        start = self.data.eot_id if self.data.eot_id is not None else 0
        ids = []
        for number in generate(
            self.backend.next_logits,
            [start],
            self.config.sample_tokens,
            seed=self.config.seed + self.step,
            vocab=self.data.vocab,
            stop_id=self.data.eot_id,
        ):
            ids.append(number)
            if self.stop.asked:
                break
        if self.stop.asked:  # the resumed run makes the whole sample
            self.was_cut = True
            return
        self._add({"step": self.step, "sample": tokenizer.decode(ids)})

    def _add(self, line: dict[str, Any]) -> None:
        if self.record is None:
            return
        with explain_disk_errors(self._kept()):
            self.record.add(line)
        self._pulse.restart()
        self.watcher.line(line, self.config.max_steps, self._left)
        for board in self.boards:
            board.add(line)

    def _save(self, val_loss: float | None) -> None:
        """Flush the metrics and losses to disk, then write a checkpoint. Only rank 0 writes."""
        if self.record is None:
            self.saved = self.step
            return
        state = msgspec.structs.replace(
            self.state,
            step=self.step,
            row=self.row,
            loader={**self.loader.state_dict(), "row": self.row},  # the loader may be a step ahead
            val_loss=val_loss,
        )
        try:
            with explain_disk_errors(self._kept()):
                self.record.flush()
                self.checkpoints.write(
                    state,
                    self.backend.parameters(),
                    self.backend.optimizer_state(),
                    keep=self.config.keep,
                )
        except NotFiniteError as error:
            raise WorkError(f"After step {self.step:,}, {error}: {self._advise()}") from error
        self.saved = self.step

    def _draw(self, *, last: bool) -> None:
        """Update the chart, at most every few seconds unless `last`."""
        now = time.monotonic()
        if self.record is None or (not last and now < self._drawn + _CHART_EVERY):
            return
        self._drawn = now
        with explain_disk_errors(self._kept()):
            write_chart(self.checkpoints.folder.parent, self.record.lines)
