"""The trainer's backend in PyTorch: one device a process, any number of processes by torchrun.

The rules of a step, which the JAX backend follows too:

- Micro-batches: a rank's rows are cut into as few equal pieces of at most `micro_batch` rows as can
  be. The gradient is that of the mean loss of all rows of the step on all ranks.
- Clipping: gradients are multiplied by min(1, clip / (norm + 1e-6)), norm taken over all of them.
- AdamW has epsilon 1e-8. Muon has Nesterov momentum 0.95, five rounds of Newton-Schulz with the
  usual coefficients in the dtype of the run, and updates as large as AdamW's:
  0.2 * sqrt(max(rows, columns)).
- Weights decay in the matrices of blocks, whichever optimiser they have, and in the head; not in the
  embedding, which is normed wherever it is read.
- Both learning rates are multiplied by the `scale` of the step, and the decay with them.

Guarantees: one process, or two, on the same machine and number of threads go on bit for bit after
`load`. With more ranks the order in which gradients are added up is the network library's.

Costs: nothing is copied from the device between two reports.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tokenmill.errors import StateError, UsageError
from tokenmill.training.backend import Pause, Rows, StepReport, never, rows_at_once
from tokenmill.training.config import Config
from tokenmill.training.devices import find_peak_flops, find_process_memory
from tokenmill.training.model import Arrays, Shape, check_values, is_matrix
from tokenmill.training.torch_model import Model, document_mask
from tokenmill.training.torch_muon import Float32Muon


class TorchBackend:
    """A model on a CUDA, MPS or CPU device; see `backend.Backend`.

    Under torchrun it starts `torch.distributed` itself, unless that was done before.
    """

    name = "torch"

    def __init__(
        self, config: Config, shape: Shape, values: Arrays, device: str | None = None
    ) -> None:
        check_values(shape, values)
        self.config, self.shape = config, shape
        self._device = choose_device(device)
        self._started = _start_ranks(self._device, config)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        cuda = self._device.type == "cuda"
        # Ranks agree to stop through the CPU, so that the GPU does not wait.
        self._talk = dist.new_group(backend="gloo") if cuda and self.world_size > 1 else None
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
            self._shared = DistributedDataParallel(
                self._losses,
                device_ids=[self._device] if cuda else None,
                gradient_as_bucket_view=True,
            )
        self._optimizers = _make_optimizers(self._model, config, self._half)
        self._rates = [
            (group, float(group["lr"])) for one in self._optimizers for group in one.param_groups
        ]
        self.rows_at_once = rows_at_once(config, shape, on_cpu=self._device.type == "cpu")
        self._row_losses: list[Tensor] = []
        self._norms: list[Tensor] = []

    def step(self, rows: Rows, scale: float, pause: Pause = never) -> bool:
        """Take one optimiser step at this share of the learning rates; returns whether it was done.
        See `backend.Backend`."""
        count = self._count_pieces(rows)
        row_losses = []
        for number, (inputs, targets, mask) in enumerate(self._pieces(rows), 1):
            if self._hears(pause(number - 1, count)):
                for optimizer in self._optimizers:
                    optimizer.zero_grad(set_to_none=True)
                return False
            with self._wait_for_last(number == count):
                with self._precision():
                    total, losses = self._shared(inputs, targets, mask)
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
        """What came of the steps since the last report; waits for them. A collective call."""
        if not self._norms:
            return []
        # The ranks have as many rows each, and each has rows that follow each other.
        own = torch.cat(self._row_losses).view(len(self._norms), -1)
        every = [own]
        if self.world_size > 1:
            every = [torch.empty_like(own) for _ in range(self.world_size)]
            dist.all_gather(every, own)
        row_losses = torch.cat(every, 1).cpu().numpy()
        norms = torch.stack(self._norms).tolist()
        self._row_losses, self._norms = [], []
        return [
            StepReport(row_losses=losses, gradient_norm=norm)
            for losses, norm in zip(row_losses, norms, strict=True)
        ]

    @torch.no_grad()
    def evaluate(self, rows: Rows) -> npt.NDArray[np.float32]:
        """The loss of each target, (rows, seq_len); nothing is learned."""
        losses = []
        for inputs, targets, mask in self._pieces(rows):
            with self._precision():
                losses.append(self._losses(inputs, targets, mask)[1])
        found: npt.NDArray[np.float32] = torch.cat(losses).cpu().numpy()
        return found

    @torch.no_grad()
    def next_logits(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The logits (vocab,) of what follows some ids (length,); the last seq_len of them count."""
        given = self._move(ids[-self.shape.seq_len :])[None]
        with self._precision():
            logits: Tensor = self._model.logits(self._model.states(given)[0, -1])
        found: npt.NDArray[np.float32] = logits.cpu().numpy()
        return found

    def parameters(self) -> Arrays:
        """Copies of the parameters, by the names of `model.py`, float32."""
        return {name: _as_array(value) for name, value in self._model.named_parameters()}

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of all that the optimiser remembers: NAME.exp_avg, NAME.exp_avg_sq and NAME.step of
        AdamW's parameters, NAME.momentum_buffer of Muon's."""
        return {name: _as_array(value) for name, value in self._remembered().items()}

    def load(self, parameters: Arrays, optimizer_state: dict[str, npt.NDArray[Any]]) -> None:
        """Take up the state of another process. StateError if it does not fit."""
        check_values(self.shape, parameters)
        remembered = self._remembered()
        for name in [*remembered, *optimizer_state]:
            here = tuple(remembered[name].shape) if name in remembered else "unknown"
            there = optimizer_state[name].shape if name in optimizer_state else "missing"
            if here != there:
                raise StateError(
                    f"the optimiser's {name} is {there} in the checkpoint and {here} in this run; go "
                    "on with the backend and the optimiser that wrote it."
                )
        self._model.load(parameters)
        for name, value in remembered.items():
            value.copy_(torch.tensor(optimizer_state[name]))

    def total(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The sum over all ranks, on every rank. A collective call."""
        if self.world_size == 1:
            return values.copy()
        summed = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(summed)
        found: npt.NDArray[np.float64] = summed.cpu().numpy()
        return found

    def agree(self, wish: bool) -> bool:
        """Whether the flag is set on any rank. A collective call."""
        if self.world_size == 1:
            return wish
        return self._answer(self._ask(wish))

    def wait(self) -> None:
        """Wait until the device has computed everything it was given."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()

    def peak_memory(self) -> int:
        """Bytes: of the device, or of the process where the device is the CPU."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if self._device.type == "mps":
            return torch.mps.driver_allocated_memory()
        return find_process_memory()

    def close(self) -> None:
        """Leave the other ranks in peace."""
        if self._started:
            self._shared = None
            dist.destroy_process_group()
            self._started = False
            # The network's threads outlive this, and need Python's lock to let go of the tensors of
            # the last call; one that gets it only when the interpreter ends would abort the process.
            time.sleep(0.1)

    def _ask(self, wish: bool) -> tuple[Any, Tensor]:
        votes = torch.tensor([int(wish)])
        return dist.all_reduce(votes, group=self._talk, async_op=True), votes

    def _answer(self, question: tuple[Any, Tensor]) -> bool:
        work, votes = question
        work.wait()
        return bool(votes.item())

    def _hears(self, wish: bool) -> bool:
        """Whether any rank wants to stop. On GPUs this is the answer from one micro-batch ago, so that
        no GPU waits for the answers of a thousand ranks."""
        if self._talk is None:
            return self.agree(wish)
        before, self._question = self._question, self._ask(wish)
        return before is not None and self._answer(before)

    def _count_pieces(self, rows: Rows) -> int:
        return -(-len(rows.inputs) // self.rows_at_once)

    def _pieces(self, rows: Rows) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Micro-batches: inputs, targets and the mask of their documents."""
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
        """Ids on the device; a copy, so that the caller's memory is free at once."""
        there = torch.tensor(ids, dtype=torch.int64)
        if self._device.type == "cuda":
            return there.pin_memory().to(self._device, non_blocking=True)
        return there.to(self._device)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._half)

    def _wait_for_last(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Gradients go to the other ranks once a step, with the last micro-batch."""
        if last or self.world_size == 1:
            return contextlib.nullcontext()
        alone: contextlib.AbstractContextManager[Any] = self._shared.no_sync()
        return alone

    def _remembered(self) -> dict[str, Tensor]:
        """What the optimisers remember, by parameter and kind."""
        states = {
            parameter: state for one in self._optimizers for parameter, state in one.state.items()
        }
        return {
            f"{name}.{kind}": value
            for name, parameter in self._model.named_parameters()
            for kind, value in states[parameter].items()
        }

    def _describe_device(self) -> str:
        if self._device.type == "cpu":
            threads = torch.get_num_threads()
            here = f"{threads} thread" if threads == 1 else f"{threads} threads"
        elif self._device.type == "cuda":
            here = torch.cuda.get_device_name(self._device)
        else:
            here = "Apple GPU"
        return here if self.world_size == 1 else f"{self.world_size} x {here}"

    def _find_peak_flops(self) -> float | None:
        if self._device.type != "cuda" or not self._half:
            return None
        found = find_peak_flops(torch.cuda.get_device_name(self._device))
        return found and found * self.world_size


def choose_device(name: str | None) -> torch.device:
    """The device of this rank: the one asked for by name, or else the best."""
    if name is not None and name != "cuda":
        return _find_device(name)
    if name == "cuda" or torch.cuda.is_available():
        if not torch.cuda.is_available():
            raise UsageError("`device` is 'cuda', but PyTorch finds no CUDA device here.")
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _find_device(name: str) -> torch.device:
    """A device that the user named."""
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
    """Meet the other ranks, where torchrun says that there are some; returns whether this was done."""
    if dist.is_initialized():
        _check_ranks(config, dist.get_world_size())
        return False
    world_size = int(os.environ["WORLD_SIZE"]) if "MASTER_ADDR" in os.environ else 1
    _check_ranks(config, world_size)
    if world_size == 1:
        return False
    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    return True


def _check_ranks(config: Config, world_size: int) -> None:
    if config.batch_rows % world_size:
        raise UsageError(
            f"a step has {config.batch_rows} rows (`batch_tokens` {config.batch_tokens:,} of `seq_len` "
            f"{config.seq_len:,}), which {world_size} ranks cannot share equally; give `batch_tokens` "
            f"a multiple of {world_size * config.seq_len:,}."
        )


def _make_optimizers(model: Model, config: Config, half: bool) -> list[torch.optim.Optimizer]:
    """AdamW and, where it is asked for, Muon, with all their memory in place from the beginning."""
    named = dict(model.named_parameters())
    muon = config.optimizer == "muon"
    matrices = [value for name, value in named.items() if muon and is_matrix(name)]
    others = [value for name, value in named.items() if not (muon and is_matrix(name))]
    groups: list[dict[str, Any]] = [
        {"params": [model.embedding], "weight_decay": 0.0},
        {"params": [value for value in others if value is not model.embedding]},
    ]
    adamw = torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
        fused=True,
    )
    for group in adamw.param_groups:
        for parameter in group["params"]:
            adamw.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    if not matrices:
        return [adamw]
    kind = torch.optim.Muon if half else Float32Muon
    rest = kind(
        matrices,
        lr=config.matrix_learning_rate,
        weight_decay=config.weight_decay,
        momentum=0.95,
        nesterov=True,
        adjust_lr_fn="match_rms_adamw",
    )
    for parameter in matrices:
        rest.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
    return [adamw, rest]


def _as_array(value: Tensor) -> npt.NDArray[Any]:
    copied: npt.NDArray[Any] = value.detach().cpu().numpy().copy()
    return copied
