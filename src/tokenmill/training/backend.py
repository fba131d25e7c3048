"""What a framework does for the trainer: everything that touches a device.

The loop in `run.py` knows no framework. It gives NumPy arrays to a Backend, which has one model, one
optimiser and its place among the ranks. Whatever a step computes stays on the device until `report`
asks for it, so that the device is never waited for between two reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError
from tokenmill.load.distributed import find_rank
from tokenmill.training.config import Config
from tokenmill.training.model import Arrays, Shape, count_operations

_TOKENS_AT_ONCE = 16_384
_CPU_OPERATIONS = 2e11  # per micro-batch: seconds on two cores, so that a run can stop quickly

# Called before each micro-batch with the number done and the total; returns whether this rank wants
# to stop.
Pause = Callable[[int, int], bool]


def never(_done: int, _count: int) -> bool:
    """A `Pause` that does not stop."""
    return False


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
    process, training continues bit for bit.
    """

    name: str
    rank: int
    world_size: int
    device: str  # for people, such as "2 threads" or "NVIDIA H100 80GB HBM3"
    rows_at_once: int  # the most rows that a device processes at once
    compiles: bool  # then the first micro-batch takes much longer than the others
    peak_flops: float | None  # of all devices together, where it is known

    def step(self, rows: Rows, scale: float, pause: Pause = never) -> bool:
        """Take one optimiser step at this share of the learning rates; returns whether it was done.

        `pause` is called before each micro-batch. If it asks to stop on any rank, all ranks drop
        the step together. A collective call.
        """

    def agree(self, wish: bool) -> bool:
        """Whether the flag is set on any rank. A collective call."""

    def wait(self) -> None:
        """Wait until the device has computed everything it was given."""

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


def rows_at_once(config: Config, shape: Shape, *, on_cpu: bool) -> int:
    """The rows of a micro-batch: as configured, or about 16,384 tokens. CPUs gain nothing from large
    micro-batches, so there they are small enough to take only seconds.

    >>> shape = Shape(vocab=50_304, layers=12, heads=12, kv_heads=12, width=768, seq_len=1024)
    >>> [rows_at_once(Config(), shape, on_cpu=on_cpu) for on_cpu in (False, True)]
    [16, 1]
    """
    rows = config.micro_batch or max(1, _TOKENS_AT_ONCE // shape.seq_len)
    if on_cpu:
        rows = min(rows, max(1, int(_CPU_OPERATIONS / (count_operations(shape) * shape.seq_len))))
    return rows


def open_backend(
    name: str, config: Config, shape: Shape, values: Arrays, device: str | None = None
) -> Backend:
    """The backend torch or jax with these initial weights, on a device (None: the fastest)."""
    with _naming_package(name):
        if name == "torch":
            from tokenmill.training.torch_backend import TorchBackend

            return TorchBackend(config, shape, values, device)
        if name == "jax":
            from tokenmill.training.jax_backend import JaxBackend

            return JaxBackend(config, shape, values, device)
    raise UsageError(f"`backend` is {name!r}; it must be torch or jax.")


def find_ranks(name: str) -> tuple[int, int]:
    """The rank and the world size: of the process group, if the caller has made one, else of the
    environment."""
    if name == "torch":
        with _naming_package(name):
            import torch.distributed as dist

            if dist.is_available() and dist.is_initialized():
                return dist.get_rank(), dist.get_world_size()
    return find_rank(None, None)


def check_device(name: str, device: str | None) -> None:
    """Raise `UsageError` if PyTorch cannot use a device. JAX is asked once its processes have met."""
    if name == "torch" and device is not None:
        with _naming_package(name):
            from tokenmill.training.torch_backend import choose_device

            choose_device(device)


def has_accelerator(name: str, device: str | None) -> bool:
    """Whether a backend would compute on something faster than the CPU.

    >>> has_accelerator("torch", "cpu")
    False
    """
    if device is not None:
        return device != "cpu"
    with _naming_package(name):
        if name == "torch":
            import torch

            return torch.cuda.is_available() or torch.backends.mps.is_available()
        if name == "jax":
            import jax

            return jax.default_backend() != "cpu"
    raise UsageError(f"`backend` is {name!r}; it must be torch or jax.")


@contextmanager
def _naming_package(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The backend {name} needs the package {error.name}: pip install 'tokenmill[{name}]'."
        ) from error
