"""The interface between the training loop and a framework: everything that touches a device.

The loop passes NumPy arrays to a `Backend`, which runs a model and its optimizer on one rank. The
results of a step stay on the device until `report` reads them, so that the device never waits
between two reports.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tokenmill.errors import StateError, UsageError
from tokenmill.training.config import Config
from tokenmill.training.model import Arrays, Shape, count_operations

_MICRO_BATCH_TOKENS = 16_384
# Maximum per micro-batch on a CPU. It takes seconds on two cores, so a run can stop quickly.
_CPU_OPERATIONS = 2e11

# Peak operations per second of one device in dense bfloat16, as published. The first entry whose
# name occurs in the device's name is used.
_PEAK_FLOPS = {
    "B200": 2.25e15,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "L4": 121e12,
    "A10": 125e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}

# Called before each micro-batch with the number done and the total; returns whether this rank wants
# to stop.
Pause = Callable[[int, int], bool]


def never(_done: int, _count: int) -> bool:
    """Return False: the default `Pause`, which never asks to stop."""
    return False


@dataclass(frozen=True, kw_only=True)
class StepRows:
    """This rank's rows of a step: inputs and targets are ids (rows, seq_len), int64 or int32.

    `documents` is set if attention stays inside documents. It holds the number of each token's
    document, counted from 0 in each row.
    """

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    documents: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The result of a step.

    `row_losses` has the mean loss of each row of the global batch, in row order over all ranks.
    `gradient_norm` is the norm before clipping.
    """

    row_losses: npt.NDArray[np.float32]
    gradient_norm: float

    @property
    def loss(self) -> float:
        """The mean loss of the step."""
        return float(self.row_losses.astype(np.float64).mean())


class Backend(Protocol):
    """A model and its optimizer on one rank.

    The loss of `step` is the mean over all rows of the step on all ranks, for any size of
    micro-batches. A process that calls `load` with the `parameters` and `optimizer_state` of
    another process continues its training bit for bit. A collective call waits for all ranks, so
    every rank must make it.
    """

    name: str
    rank: int
    world_size: int
    device: str  # for display, such as "2 threads" or "NVIDIA H100 80GB HBM3"
    rows_at_once: int  # the most rows in a micro-batch
    compiles: bool  # if so, the first micro-batch takes much longer than the others
    peak_flops: float | None  # of all devices together, if known

    def step(self, rows: StepRows, scale: float, pause: Pause = never) -> bool:
        """Take an optimizer step, with the learning rates multiplied by `scale`.

        Returns whether the step was completed.

        `pause` is called before each micro-batch. If it asks to stop on any rank, all ranks drop
        the step together. A collective call.
        """

    def agree(self, vote: bool) -> bool:
        """Return whether `vote` is true on any rank. A collective call."""

    def wait(self) -> None:
        """Wait until the device has finished all work."""

    def report(self) -> list[StepReport]:
        """Wait for the steps since the last report, and return their results. A collective call."""

    def evaluate(self, rows: StepRows) -> npt.NDArray[np.float32]:
        """Return the loss of each target, (rows, seq_len). Changes no parameter."""

    def next_logits(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the logits (vocab,) of the id after `ids` (length,). Uses the last seq_len ids."""

    def parameters(self) -> Arrays:
        """Return float32 copies of the parameters, by their names in `model.py`."""

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the optimizer's state, by name.

        A parameter NAME that AdamW updates has NAME.exp_avg, NAME.exp_avg_sq and NAME.step. One
        that Muon updates has NAME.momentum_buffer.
        """

    def load(self, parameters: Arrays, optimizer_state: dict[str, npt.NDArray[Any]]) -> None:
        """Load a saved state. Raises `StateError` if it does not fit the model or the optimizer."""

    def total(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the sum of `values` over all ranks. A collective call."""

    def peak_memory(self) -> int:
        """Return the peak memory in bytes: of the device or, on a CPU, of this process."""

    def close(self) -> None:
        """Disconnect from the other ranks."""


def choose_micro_batch(config: Config, shape: Shape, *, on_cpu: bool) -> int:
    """Return the rows per micro-batch: `config.micro_batch`, or enough for about 16,384 tokens.

    Large micro-batches do not make CPUs faster. So on a CPU, the number is reduced until a
    micro-batch takes only seconds.

    >>> shape = Shape(vocab=50_304, layers=12, heads=12, kv_heads=12, width=768, seq_len=1024)
    >>> [choose_micro_batch(Config(), shape, on_cpu=on_cpu) for on_cpu in (False, True)]
    [16, 1]
    """
    rows = config.micro_batch or max(1, _MICRO_BATCH_TOKENS // shape.seq_len)
    if on_cpu:
        rows = min(rows, max(1, int(_CPU_OPERATIONS / (count_operations(shape) * shape.seq_len))))
    return rows


def check_ranks(config: Config, world_size: int) -> None:
    """Raise `UsageError` if the rows of a step cannot be divided equally among the ranks."""
    if config.batch_rows % world_size:
        raise UsageError(
            f"{world_size} ranks cannot share the {config.batch_rows} rows of a step equally. "
            f"`batch_tokens` is {config.batch_tokens:,}; make it a multiple of "
            f"{world_size * config.seq_len:,} (ranks times `seq_len`)."
        )


def check_optimizer_state(here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    """Raise `StateError` unless a checkpoint's optimizer state has this run's names and shapes."""
    for name in [*here, *there]:
        ours = tuple(here[name].shape) if name in here else "unknown"
        theirs = tuple(there[name].shape) if name in there else "missing"
        if ours != theirs:
            raise StateError(
                f"the optimizer's {name} is {theirs} in the checkpoint but {ours} in this run; resume "
                "with the optimizer that wrote the checkpoint."
            )


def describe_devices(kind: str | None, threads: int, count: int) -> str:
    """Describe the devices for display. `kind` is None for CPUs.

    >>> describe_devices(None, 2, 1), describe_devices("NVIDIA H100", 2, 8)
    ('2 threads', '8 x NVIDIA H100')
    """
    kind = kind or (f"{threads} thread" if threads == 1 else f"{threads} threads")
    return kind if count == 1 else f"{count} x {kind}"


def find_peak_flops(name: str) -> float | None:
    """Return a device's peak operations per second in bfloat16, or None if its name is unknown.

    >>> find_peak_flops("NVIDIA H100 80GB HBM3")
    989000000000000.0
    """
    return next((peak for known, peak in _PEAK_FLOPS.items() if known in name), None)


def find_process_memory() -> int:
    """Return the peak memory of this process in bytes.

    >>> find_process_memory() > 1_000_000
    True
    """
    # On Linux, ru_maxrss includes the process that this one was forked from; VmHWM does not.
    with suppress(OSError, StopIteration):
        status = Path("/proc/self/status").read_text()
        return next(
            int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")
        )
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
