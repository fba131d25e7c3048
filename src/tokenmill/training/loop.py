"""The loop of a run: steps, and what is done between them.

After step n, in this order: losses are taken in and looked at, a line is written, the model is
validated, a sample is drawn, a checkpoint is written. Whichever of these are due, they leave the same
whether the run was interrupted before or not.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tokenmill.errors import TokenmillError, UsageError, WorkError
from tokenmill.load.loader import Loader
from tokenmill.storage.disk import explain_disk_errors
from tokenmill.storage.files import write_file
from tokenmill.training.augment import augment
from tokenmill.training.backend import Backend, Rows, StepReport
from tokenmill.training.chart import Curve, draw_svg
from tokenmill.training.checkpoints import Checkpoints, State
from tokenmill.training.config import Config
from tokenmill.training.data import RunData
from tokenmill.training.folder import CHART_NAME
from tokenmill.training.interval import Clock, Pulse, Stop
from tokenmill.training.model import Shape, count_operations
from tokenmill.training.record import Record
from tokenmill.training.sample import generate
from tokenmill.training.validate import Validator

_CHART_EVERY = 5.0  # seconds


class Watcher(Protocol):
    """Is told how a run goes."""

    def note(self, text: str) -> None:
        """Something about the run."""

    def warn(self, text: str) -> None:
        """Something that the user should look at."""

    def line(self, line: dict[str, Any], steps: int, seconds_left: float) -> None:
        """A line of `metrics.jsonl`, the run's number of steps, and the seconds left. Between lines
        that are far apart, `line` has the loss so far and is not in the file."""

    def expect(self, seconds: float) -> None:
        """The expected time of the rest of the run, estimated from its first micro-batches."""


class Board(Protocol):
    """Another place that shows the lines of `metrics.jsonl`."""

    def add(self, line: dict[str, Any]) -> None:
        """One more line."""

    def close(self) -> None:
        """No more lines come."""


@dataclass(kw_only=True)
class Loop:
    """A run that is under way. `record` is None on all ranks but the first."""

    path: Path
    config: Config
    data: RunData
    state: State  # of which step, row, loader and val_loss are those of the beginning
    backend: Backend
    loader: Loader
    validator: Validator | None
    checkpoints: Checkpoints
    record: Record | None
    watcher: Watcher
    boards: list[Board]
    stop: Stop
    step: int
    row: int
    owed: tuple[bool, bool] = (
        False,
        False,
    )  # whether this step's validation and sample are missing
    was_cut: bool = field(init=False, default=False)
    saved: int = field(init=False)
    _untold: list[int] = field(init=False, default_factory=list)  # first rows of steps
    _norm: float = field(init=False, default=math.nan)
    _clock: Clock = field(init=False, default_factory=Clock)
    _pulse: Pulse = field(init=False)
    _lap: int = field(init=False)  # the step at which the clock began
    _left: float = field(init=False, default=math.nan)
    _drawn: float = field(init=False, default=-math.inf)

    def __post_init__(self) -> None:
        self.saved = self._lap = self.step
        self._pulse = Pulse(compiles=self.backend.compiles)

    def run(self) -> None:
        """Train up to the last step, or until the user stops it."""
        config = self.config
        if any(self.owed):
            self._make_up()
        while self.step < config.max_steps:
            rows, end = self._next_rows()
            if not self.backend.step(rows, config.scale(self.step), self._pause):
                self._leave()
                return
            self._untold.append(self.row)
            self.step, self.row = self.step + 1, end
            due = config.find_due(self.step)
            if any(due.values()):
                self._look(due)
            elif self._pulse.is_due():
                self._show()

    def _look(self, due: dict[str, bool]) -> None:
        """Do what is due. If the run stops meanwhile, skip validation and sample."""
        self._take_reports()
        if due["line"]:
            self._tell()
        with self._clock.aside():
            val_loss = self._validate() if due["validation"] else None
            if due["sample"]:
                self._sample()
            if due["checkpoint"]:
                self._save(val_loss)
            self._draw(last=self.step == self.config.max_steps)

    def _make_up(self) -> None:
        """Do what a stop skipped at this step, so that the lines are those of an uninterrupted run."""
        owes_validation, owes_sample = self.owed
        val_loss = self._validate() if owes_validation else None
        if owes_sample:
            self._sample()
        if val_loss is not None and self.config.find_due(self.step)["checkpoint"]:
            self._save(val_loss)

    def _leave(self) -> None:
        """Save the last complete step; no rank exits before that is done."""
        self._take_reports()
        if self.step > self.saved:
            self._save(None)
        self._draw(last=True)
        self.backend.agree(True)

    def _pause(self, done: int, count: int) -> bool:
        """Before a micro-batch: print a line if one is due, and check whether to stop."""
        seconds = self._pulse.time_first(self.backend)
        if seconds is not None and self.record is not None:
            left = (self.config.max_steps - self.step) * count - done
            self.watcher.expect(seconds * left)
        elif done:
            self._beat(f"step {self.step + 1:,}: {done:,} of {count:,} micro-batches done")
        return self.stop.asked

    def _next_rows(self) -> tuple[Rows, int]:
        """The rows of the next step, and the first row behind them."""
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
                with suppress(WorkError):  # which would hide what went wrong first
                    self._take_reports()
                    self._save(None)
            raise self._without_data(error) from error
        return Rows(inputs=inputs, targets=targets, documents=documents), batch.end

    def _without_data(self, error: Exception) -> WorkError:
        return WorkError(
            f"{error}\nTraining stopped after step {self.step:,}; {self._kept()}. Once the data are "
            "as they were, the same command resumes."
        )

    def _kept(self) -> str:
        if not self.saved:
            return "there is no checkpoint yet"
        return f"the checkpoint of step {self.saved:,} is in {self.checkpoints.folder}"

    def _take_reports(self) -> None:
        """Collect the losses of the steps since the last time, and refuse NaN and infinity."""
        first = self.step - len(self._untold) + 1
        untold, self._untold = self._untold, []
        for step, (row, report) in enumerate(
            zip(untold, self.backend.report(), strict=True), first
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
        begin = "resume there" if self.saved else "start over"
        return (
            f"training cannot continue from that; {self._kept()}.\n"
            f"Lower the learning rate: run it again with {lower} to {begin}."
        )

    def _tell(self) -> None:
        """Write a line about the steps since the last one."""
        seconds, waiting = self._clock.lap()
        line = self._make_line(seconds, waiting)
        self._lap = self.step
        if line is not None:
            self._add(line)

    def _show(self) -> None:
        """Print a line that is not recorded, because the next recorded one is far off."""
        if self.backend.world_size > 1:  # losses are gathered only for recorded lines
            self._beat(f"step {self.step:,} of {self.config.max_steps:,} done")
            return
        self._take_reports()
        self._pulse.restart()
        line = self._make_line(*self._clock.peek())
        if line is not None:
            self.watcher.line(line, self.config.max_steps, self._left)

    def _make_line(self, seconds: float, waiting: float) -> dict[str, Any] | None:
        """A line about the steps since the last recorded one; None on ranks that record nothing."""
        steps = self.step - self._lap
        if self.record is None or not steps:
            return None
        config, row = self.config, self.row
        rate = steps * config.batch_tokens / seconds
        peak = self.backend.peak_flops
        used = rate * count_operations(Shape(**self.state.shape))
        self._left = seconds / steps * (config.max_steps - self.step)
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
        """Print a line if nothing was printed for a while."""
        if self.record is not None and self._pulse.is_due():
            self._pulse.restart()
            self.watcher.note(text)

    def _sample(self) -> None:
        tokenizer = self.data.tokenizer
        if self.record is None or tokenizer is None or not self.config.sample_tokens:
            return
        start = self.data.eot_id if self.data.eot_id is not None else 0
        ids = generate(
            self.backend.next_logits,
            [start],
            self.config.sample_tokens,
            seed=self.config.seed + self.step,
            vocab=self.data.vocab,
            stop_id=self.data.eot_id,
            is_stopping=lambda: self.stop.asked,
        )
        if self.stop.asked:  # an incomplete sample would differ from that of another process
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
        """Write a checkpoint, after all that it counts is on the disk."""
        if self.record is None:
            self.saved = self.step
            return
        state = replace(
            self.state,
            step=self.step,
            row=self.row,
            loader={**self.loader.state_dict(), "row": self.row},  # which may be a step ahead
            val_loss=val_loss,
        )
        with explain_disk_errors(self._kept()):
            self.record.flush()
            self.checkpoints.write(
                state,
                self.backend.parameters(),
                self.backend.optimizer_state(),
                keep=self.config.keep,
            )
        self.saved = self.step

    def _draw(self, *, last: bool) -> None:
        """Bring the chart up to date, now and then."""
        now = time.monotonic()
        if self.record is None or (not last and now < self._drawn + _CHART_EVERY):
            return
        self._drawn = now
        curves = [
            Curve(told, *self.record.points(name))
            for told, name in (("train", "loss"), ("validation", "val_loss"))
        ]
        drawn = draw_svg([curve for curve in curves if np.size(curve.steps)], self.path.name)
        with explain_disk_errors(self._kept()):
            write_file(self.path / CHART_NAME, drawn.encode())
