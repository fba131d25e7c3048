"""What a framework does for the trainer: everything that touches a device.

The loop in `run.py` knows no framework. It gives NumPy arrays to a Backend, which has one model, one
optimiser and its place among the ranks. Whatever a step computes stays on the device until `report`
asks for it, so that the device is never waited for between two reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError
from tokenmill.trainer.config import Config
from tokenmill.trainer.model import Arrays, Shape

__all__ = ["Backend", "Rows", "StepReport", "open_backend"]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """This rank's rows of a step: ids (rows, seq_len) each, int64 or int32.

    `documents` numbers the documents in each row, from 0, where attention stays inside them.
    """

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    documents: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What came of a step: the mean loss of each row of the global batch, in row order over all
    ranks, and the norm of the gradient before clipping."""

    row_losses: npt.NDArray[np.float32]
    gradient_norm: float

    @property
    def loss(self) -> float:
        """The mean loss of the step."""
        return float(self.row_losses.astype(np.float64).mean())


class Backend(Protocol):
    """A model, its optimiser and its place among the ranks.

    `step` takes the mean loss over all rows of the step, on all ranks, whatever the micro-batches.
    `state` and `load` carry everything that `step` depends on: after `load(*state())` in another
    process, training goes on bit for bit.
    """

    name: str
    rank: int
    world_size: int
    device: str  # for people, such as "2 threads" or "NVIDIA H100 80GB HBM3"
    peak_flops: float | None  # of all devices together, where it is known

    def step(self, rows: Rows, scale: float) -> None:
        """One step of the optimiser at this share of the learning rates."""

    def report(self) -> list[StepReport]:
        """What came of the steps since the last report; waits for them. A collective call."""

    def evaluate(self, rows: Rows) -> npt.NDArray[np.float32]:
        """The loss of each target, (rows, seq_len); nothing is learned."""

    def next_logits(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The logits (vocab,) of what follows some ids (length,); the last seq_len of them count."""

    def parameters(self) -> Arrays:
        """Copies of the parameters, by the names of `model.py`, float32."""

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of all that the optimiser remembers, by name."""

    def load(self, parameters: Arrays, optimizer_state: dict[str, npt.NDArray[Any]]) -> None:
        """Take up the state of another process. StateError if it does not fit."""

    def total(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The sum over all ranks, on every rank. A collective call."""

    def peak_memory(self) -> int:
        """Bytes: of the device, or of the process where the device is the CPU."""

    def close(self) -> None:
        """Leave the other ranks in peace."""


def open_backend(name: str, config: Config, shape: Shape, values: Arrays) -> Backend:
    """The backend torch or jax, with a model of these first values."""
    try:
        if name == "torch":
            from tokenmill.trainer.torch_backend import TorchBackend

            return TorchBackend(config, shape, values)
        if name == "jax":
            from tokenmill.trainer.jax_backend import JaxBackend

            return JaxBackend(config, shape, values)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The backend {name} needs the package {error.name}: pip install 'tokenmill[{name}]'."
        ) from error
    raise UsageError(f"`backend` is {name!r}; it must be torch or jax.")
