"""The trainer's backend in PyTorch: one device per process; torchrun starts several processes.

The rules of a step, which the JAX backend follows too:

- Micro-batches: a rank's rows are divided into as few micro-batches as possible, of nearly equal
  size and at most `rows_at_once` rows. The loss of a step is the mean over all its rows on all
  ranks, and gradients are those of this mean.
- Clipping: gradients are multiplied by min(1, clip / (norm + 1e-6)), where `norm` is the norm of
  all gradients together.
- AdamW has epsilon 1e-8. Muon has Nesterov momentum 0.95, five rounds of Newton-Schulz with the
  usual coefficients in the dtype of the run, and updates scaled by 0.2 * sqrt(max(rows, columns)),
  which makes them as large as AdamW's.
- Weight decay applies to all parameters except the embedding, which is normed whenever it is read.
- Both learning rates are multiplied by the `scale` of the step, and so is the weight decay.

Guarantees: a run of one or two processes that resumes with `load` gives the results of an
uninterrupted run, bit for bit, on the same machine with the same number of threads. With more
processes, the network library chooses the order in which it adds up gradients, so the last bits may
differ.

Costs: nothing is copied from the device between two reports.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tokenmill.errors import UsageError
from tokenmill.training.backend import (
    Pause,
    StepReport,
    StepRows,
    check_optimizer_state,
    check_ranks,
    choose_micro_batch,
    describe_devices,
    find_peak_flops,
    find_process_memory,
    never,
)
from tokenmill.training.config import Config
from tokenmill.training.model import Arrays, Shape, check_values
from tokenmill.training.ranks import lost_ranks
from tokenmill.training.torch_model import Model, document_mask
from tokenmill.training.torch_optimizers import make_optimizers


class TorchBackend:
    """A model on a CUDA, MPS or CPU device; see `backend.Backend`.

    Under torchrun, the backend starts `torch.distributed`, unless the caller has already done so.
    """

    name = "torch"

    def __init__(
        self, config: Config, shape: Shape, values: Arrays, device: str | None = None
    ) -> None:
        check_values(shape, values)
        self.config, self.shape = config, shape
        self._device = choose_device(device)
        with _naming_lost_ranks(config):
            self._started = _start_ranks(self._device, config)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        cuda = self._device.type == "cuda"
        # Ranks exchange their votes to stop on the CPU, so that no GPU waits for a vote.
        self._talk = None
        if cuda and self.world_size > 1:
            self._talk = dist.new_group(backend="gloo", timeout=_find_timeout(config))
        self._question: tuple[Any, Tensor] | None = None
        if cuda:
            torch.set_float32_matmul_precision("high")
        self._half = config.dtype == "bfloat16" or (config.dtype == "auto" and cuda)
        self.device = self._describe_device()
        self.peak_flops = self._find_peak_flops()

        self._model = Model(shape, self._device)
        self._model.load(values)
        self._losses: Any = self._model
        self.compiles = config.compile == "on" or (config.compile == "auto" and cuda)
        if self.compiles:
            self._losses = torch.compile(self._model)
        self._shared: Any = self._losses
        if self.world_size > 1:
            with _naming_lost_ranks(config):
                self._shared = DistributedDataParallel(
                    self._losses,
                    device_ids=[self._device] if cuda else None,
                    gradient_as_bucket_view=True,
                )
        self._optimizers = make_optimizers(self._model, config, self._half)
        self._rates = [
            (group, float(group["lr"])) for one in self._optimizers for group in one.param_groups
        ]
        self.rows_at_once = choose_micro_batch(config, shape, on_cpu=self._device.type == "cpu")
        self._row_losses: list[Tensor] = []
        self._norms: list[Tensor] = []

    def step(self, rows: StepRows, scale: float, pause: Pause = never) -> bool:
        """Take an optimizer step; returns whether it was completed. See `Backend.step`."""
        count = self._count_pieces(rows)
        row_losses = []
        for number, (inputs, targets, mask) in enumerate(self._pieces(rows), 1):
            if self._any_stops(pause(number - 1, count)):
                for optimizer in self._optimizers:
                    optimizer.zero_grad(set_to_none=True)
                return False
            with self._exchange_gradients_if(number == count):
                with self._precision():
                    total, losses = self._shared(inputs, targets, mask)
                with _naming_lost_ranks(self.config):
                    (total / rows.inputs.size).backward()
            row_losses.append(losses.mean(1))
        self._row_losses += row_losses
        parameters = self._model.parameters()
        self._norms.append(
            torch.nn.utils.clip_grad_norm_(parameters, self.config.clip or float("inf"))
        )
        for group, rate in self._rates:
            group["lr"] = rate * scale
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return True

    def report(self) -> list[StepReport]:
        """Wait for the steps since the last report, and return their results. A collective call."""
        if not self._norms:
            return []
        # All ranks have the same number of rows, and each rank's rows are consecutive.
        own = torch.cat(self._row_losses).view(len(self._norms), -1)
        every = [own]
        if self.world_size > 1:
            every = [torch.empty_like(own) for _ in range(self.world_size)]
            with _naming_lost_ranks(self.config):
                dist.all_gather(every, own)
        row_losses = torch.cat(every, 1).cpu().numpy()
        norms = torch.stack(self._norms).tolist()
        self._row_losses, self._norms = [], []
        return [
            StepReport(row_losses=losses, gradient_norm=norm)
            for losses, norm in zip(row_losses, norms, strict=True)
        ]

    @torch.no_grad()
    def evaluate(self, rows: StepRows) -> npt.NDArray[np.float32]:
        """Return the loss of each target, (rows, seq_len)."""
        losses = []
        for inputs, targets, mask in self._pieces(rows):
            with self._precision():
                losses.append(self._losses(inputs, targets, mask)[1])
        found: npt.NDArray[np.float32] = torch.cat(losses).cpu().numpy()
        return found

    @torch.no_grad()
    def next_logits(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the logits (vocab,) of the id after `ids`."""
        given = self._move(ids[-self.shape.seq_len :])[None]
        with self._precision():
            logits: Tensor = self._model.logits(self._model.states(given)[0, -1])
        found: npt.NDArray[np.float32] = logits.cpu().numpy()
        return found

    def parameters(self) -> Arrays:
        """Return float32 copies of the parameters, by their names in `model.py`."""
        return {name: _as_array(value) for name, value in self._model.named_parameters()}

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the optimizer's state, by name: see `Backend.optimizer_state`."""
        return {name: _as_array(value) for name, value in self._remembered().items()}

    def load(self, parameters: Arrays, optimizer_state: dict[str, npt.NDArray[Any]]) -> None:
        """Load a saved state. Raises `StateError` if it does not fit."""
        check_values(self.shape, parameters)
        remembered = self._remembered()
        check_optimizer_state(remembered, optimizer_state)
        self._model.load(parameters)
        for name, value in remembered.items():
            value.copy_(torch.tensor(optimizer_state[name]))

    def total(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the sum of `values` over all ranks. A collective call."""
        if self.world_size == 1:
            return values.copy()
        summed = torch.tensor(values, dtype=torch.float64, device=self._device)
        with _naming_lost_ranks(self.config):
            dist.all_reduce(summed)
        found: npt.NDArray[np.float64] = summed.cpu().numpy()
        return found

    def agree(self, vote: bool) -> bool:
        """Return whether `vote` is true on any rank. A collective call."""
        if self.world_size == 1:
            return vote
        return self._answer(self._ask(vote))

    def wait(self) -> None:
        """Wait until the device has finished all work."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()

    def peak_memory(self) -> int:
        """Return the peak memory in bytes: of the device or, on a CPU, of this process."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if self._device.type == "mps":
            return torch.mps.driver_allocated_memory()
        return find_process_memory()

    def close(self) -> None:
        """Disconnect from the other ranks."""
        if self._started:
            self._shared = None
            dist.destroy_process_group()
            self._started = False
            # The threads of `torch.distributed` need the GIL to free the tensors of the last call.
            # A thread that gets the GIL only while the interpreter shuts down would abort the
            # process, so give the threads some time now.
            time.sleep(0.1)

    def _ask(self, vote: bool) -> tuple[Any, Tensor]:
        votes = torch.tensor([int(vote)])
        with _naming_lost_ranks(self.config):
            return dist.all_reduce(votes, group=self._talk, async_op=True), votes

    def _answer(self, question: tuple[Any, Tensor]) -> bool:
        work, votes = question
        with _naming_lost_ranks(self.config):
            work.wait()
        return bool(votes.item())

    def _any_stops(self, stop: bool) -> bool:
        """Return whether any rank wants to stop.

        With several GPUs, the answer is that of the micro-batch before, so that no GPU waits for
        the other ranks.
        """
        if self._talk is None:
            return self.agree(stop)
        before, self._question = self._question, self._ask(stop)
        return before is not None and self._answer(before)

    def _count_pieces(self, rows: StepRows) -> int:
        return -(-len(rows.inputs) // self.rows_at_once)

    def _pieces(self, rows: StepRows) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Yield the inputs, targets and document mask of each micro-batch."""
        count = self._count_pieces(rows)
        inputs = self._move(rows.inputs).tensor_split(count)
        targets = self._move(rows.targets).tensor_split(count)
        if rows.documents is None:
            yield from ((*both, None) for both in zip(inputs, targets, strict=True))
            return
        documents = self._move(rows.documents).tensor_split(count)
        for one, other, numbers in zip(inputs, targets, documents, strict=True):
            yield one, other, document_mask(numbers)

    def _move(self, ids: npt.NDArray[Any]) -> Tensor:
        """Copy ids to the device; the caller may overwrite `ids` immediately."""
        there = torch.tensor(ids, dtype=torch.int64)
        if self._device.type == "cuda":
            return there.pin_memory().to(self._device, non_blocking=True)
        return there.to(self._device)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._half)

    def _exchange_gradients_if(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which ranks exchange gradients only if `last` is true."""
        if last or self.world_size == 1:
            return contextlib.nullcontext()
        alone: contextlib.AbstractContextManager[Any] = self._shared.no_sync()
        return alone

    def _remembered(self) -> dict[str, Tensor]:
        """Return the state of the optimizers, by names such as head.exp_avg."""
        states = {
            parameter: state for one in self._optimizers for parameter, state in one.state.items()
        }
        return {
            f"{name}.{kind}": value
            for name, parameter in self._model.named_parameters()
            for kind, value in states[parameter].items()
        }

    def _describe_device(self) -> str:
        kind = None if self._device.type == "cpu" else "Apple GPU"
        if self._device.type == "cuda":
            kind = torch.cuda.get_device_name(self._device)
        return describe_devices(kind, torch.get_num_threads(), self.world_size)

    def _find_peak_flops(self) -> float | None:
        if self._device.type != "cuda" or not self._half:
            return None
        found = find_peak_flops(torch.cuda.get_device_name(self._device))
        return found and found * self.world_size


def choose_device(name: str | None) -> torch.device:
    """Return the device of this rank: the named one, or else the fastest."""
    if name is not None and name != "cuda":
        return _find_device(name)
    if name == "cuda" or torch.cuda.is_available():
        if not torch.cuda.is_available():
            raise UsageError("`device` is 'cuda', but PyTorch finds no CUDA device here. Omit it.")
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _find_device(name: str) -> torch.device:
    """Return the device of this name. Raises `UsageError` if PyTorch cannot use it."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        if device.type == "meta":
            raise RuntimeError("meta tensors hold no values")
        if device.type == "cuda":
            torch.cuda.set_device(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UsageError(
            f"`device` is {name!r}, which PyTorch cannot use here: {reason}. Give cpu, cuda, cuda:1 "
            "or mps, or omit it."
        ) from error
    return device


def _start_ranks(device: torch.device, config: Config) -> bool:
    """Connect to the other ranks if torchrun started several. Returns whether it connected."""
    if dist.is_initialized():
        check_ranks(config, dist.get_world_size())
        return False
    world_size = int(os.environ["WORLD_SIZE"]) if "MASTER_ADDR" in os.environ else 1
    check_ranks(config, world_size)
    if world_size == 1:
        return False
    timeout = _find_timeout(config)
    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device, timeout=timeout)
    else:
        dist.init_process_group("gloo", timeout=timeout)
    return True


def _find_timeout(config: Config) -> timedelta:
    return timedelta(seconds=config.rank_timeout)


@contextlib.contextmanager
def _naming_lost_ranks(config: Config) -> Iterator[None]:
    """Turn a network error in the `with` block into the error of `lost_ranks`.

    That error names this rank and says what to do.
    """
    try:
        yield
    except RuntimeError as error:
        found = lost_ranks(error, int(os.environ.get("RANK", "0")), config.rank_timeout)
        if found is None:
            raise
        raise found from error


def _as_array(value: Tensor) -> npt.NDArray[Any]:
    copied: npt.NDArray[Any] = value.detach().cpu().numpy().copy()
    return copied
