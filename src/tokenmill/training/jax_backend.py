"""The trainer's backend in JAX: compiled programs on all devices of one process or of several.

A step follows the rules of `torch_backend.py`, and the optimizer's state has the same names, so
either backend can load the state of the other.

Guarantees: the loss of a step is the mean over its rows, for any number of micro-batches, devices
and processes. A process that loads a state continues bit for bit if the number of processes,
devices and threads is the same. On GPUs, this also needs
XLA_FLAGS=--xla_gpu_deterministic_ops=true. Arrays are copied on their way into JAX and out of it.

The rows of a step are divided over the devices, and each device has all parameters. A device
processes its rows one micro-batch at a time and accumulates gradients; once per step, the devices
add up their gradients, and each takes the same optimizer step. If the rows do not divide evenly,
they are padded with rows of weight 0, so that every step runs the same compiled program. For the
same settings and devices, a process compiles a program only once, so a second such model starts
immediately.

Several processes are started by a launcher such as torchrun, srun or mpirun, or by hand with
JAX_NUM_PROCESSES and JAX_PROCESS_ID. They connect through JAX_COORDINATOR_ADDRESS. Under Slurm and
Open MPI, JAX finds the address itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tokenmill.errors import UsageError
from tokenmill.load.distributed import find_rank
from tokenmill.training.backend import (
    Pause,
    StepReport,
    StepRows,
    check_optimizer_state,
    choose_micro_batch,
    describe_devices,
    find_peak_flops,
    find_process_memory,
    never,
)
from tokenmill.training.config import Config
from tokenmill.training.jax_model import (
    Numerics,
    OptimizerState,
    Parameters,
    clip,
    find_logits,
    find_losses,
    find_states,
    first_state,
    stack,
    unstack,
    update,
)
from tokenmill.training.model import Arrays, Shape, check_values

EVERYWHERE = PartitionSpec()  # type: ignore[no-untyped-call]
SPREAD = PartitionSpec("data")  # type: ignore[no-untyped-call]


class JaxBackend:
    """A model on all devices that JAX sees; see `backend.Backend`.

    If the environment names several processes, the backend starts `jax.distributed`, unless the
    caller has already done so.
    """

    name = "jax"
    compiles = True

    def __init__(
        self, config: Config, shape: Shape, values: Arrays, device: str | None = None
    ) -> None:
        check_values(shape, values)
        self.config, self.shape = config, shape
        self._started = start_processes()
        self.rank, self.world_size = jax.process_index(), jax.process_count()
        devices = sorted(
            _find_devices(device), key=lambda device: (device.process_index, device.id)
        )
        self._mesh = Mesh(np.array(devices), ("data",))
        own = [device for device in devices if device.process_index == self.rank]
        self._own_mesh = Mesh(np.array(own), ("data",))
        on_cpu = devices[0].platform == "cpu"
        half = config.dtype == "bfloat16" or (config.dtype == "auto" and not on_cpu)
        self._numerics = Numerics(
            dtype=jnp.bfloat16 if half else jnp.float32,
            attention="cudnn" if half and _has_flash(devices[0], shape) else None,
        )
        self.device = _describe(devices)
        peak = find_peak_flops(devices[0].device_kind) if half else None
        self.peak_flops = peak and peak * len(devices)

        self.rows_at_once = choose_micro_batch(config, shape, on_cpu=on_cpu)
        self._widest = 1  # rows per device in `evaluate`: the most so far
        stacked = stack(shape, values)
        self._parameters: Parameters = self._place(stacked)
        self._state: OptimizerState = self._place(first_state(config, stacked))
        shapes = {name: (len(devices), *value.shape) for name, value in stacked.items()}
        self._no_gradients = jax.jit(
            lambda: {name: jnp.zeros(size) for name, size in shapes.items()},
            out_shardings=NamedSharding(self._mesh, SPREAD),
        )
        self._reports: list[tuple[int, list[jax.Array], jax.Array]] = []

    def step(self, rows: StepRows, scale: float, pause: Pause = never) -> bool:
        """Take an optimizer step; returns whether it was completed. See `Backend.step`."""
        count = len(rows.inputs)
        micro, size = self._divide(count, self.rows_at_once)
        weights = np.full(count, 1 / (count * self.world_size), np.float32)
        batch = (rows.inputs, rows.targets, rows.documents, weights)
        find = _make_gradients(self.shape, self._mesh, self._numerics)
        sums = self._no_gradients()
        losses: list[jax.Array] = []
        for number, placed in enumerate(self._place_pieces(self._mesh, batch, micro, size)):
            if self.agree(pause(number, micro)):
                return False
            sums, found = find(self._parameters, sums, placed)
            losses.append(found)
            if number:  # at most two micro-batches in the queue, so that a run can stop quickly
                losses[-2].block_until_ready()
        update = _make_update(self.config, self._mesh, self._numerics)
        self._parameters, self._state, norm = update(
            self._parameters, self._state, sums, np.float32(scale)
        )
        self._reports.append((count, losses, norm))
        return True

    def report(self) -> list[StepReport]:
        """Wait for the steps since the last report, and return their results. A collective call."""
        waiting, self._reports = self._reports, []
        return [
            StepReport(row_losses=self._in_row_order(count, losses), gradient_norm=float(norm))
            for count, losses, norm in waiting
        ]

    def evaluate(self, rows: StepRows) -> npt.NDArray[np.float32]:
        """Return the loss of each target, (rows, seq_len)."""
        count = len(rows.inputs)
        _, size = self._divide(count, self.rows_at_once)
        # A smaller last batch is padded to this size, so that no second program is compiled.
        self._widest = max(self._widest, size)
        micro = math.ceil(count / (self._widest * self._own_mesh.size))
        batch = (rows.inputs, rows.targets, rows.documents)
        evaluate = _make_evaluation(self.shape, self._own_mesh, self._numerics)
        parameters = self._own_parameters()
        pieces = self._place_pieces(self._own_mesh, batch, micro, self._widest)
        return np.concatenate([_copy(evaluate(parameters, piece)) for piece in pieces])[:count]

    def next_logits(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the logits (vocab,) of the id after `ids`."""
        kept = ids[-self.shape.seq_len :]
        padded = np.zeros((1, self.shape.seq_len), np.int32)
        padded[0, : len(kept)] = kept
        parameters = {name: value.addressable_data(0) for name, value in self._parameters.items()}
        find = _make_next_logits(self.shape, self._numerics)
        return _copy(find(parameters, padded, np.int32(len(kept) - 1)))

    def parameters(self) -> Arrays:
        """Return float32 copies of the parameters, by their names in `model.py`."""
        return self._fetch(self._parameters)

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the optimizer's state, by name: see `Backend.optimizer_state`."""
        state = self._state
        means = self._fetch(state.mean)
        steps = _copy(state.steps.addressable_data(0)).astype(np.float32)
        return {
            **{f"{name}.step": steps.copy() for name in means},
            **{f"{name}.exp_avg": value for name, value in means.items()},
            **{f"{name}.exp_avg_sq": value for name, value in self._fetch(state.square).items()},
            **{
                f"{name}.momentum_buffer": value
                for name, value in self._fetch(state.momentum).items()
            },
        }

    def load(self, parameters: Arrays, optimizer_state: dict[str, npt.NDArray[Any]]) -> None:
        """Load a saved state. Raises `StateError` if it does not fit."""
        check_values(self.shape, parameters)
        check_optimizer_state(self.optimizer_state(), optimizer_state)

        def part(kind: str) -> Any:
            own = {
                name.removesuffix(kind): value
                for name, value in optimizer_state.items()
                if name.endswith(kind)
            }
            return stack(self.shape, own)

        self._parameters = self._place(stack(self.shape, parameters))
        self._state = self._place(
            OptimizerState(
                steps=np.array(optimizer_state["embedding.step"], np.int32),  # type: ignore[arg-type]
                mean=part(".exp_avg"),
                square=part(".exp_avg_sq"),
                momentum=part(".momentum_buffer"),
            )
        )

    def total(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the sum of `values` over all ranks. A collective call."""
        if self.world_size == 1:
            return values.copy()
        # Each float64 is sent as two uint32, because JAX has no float64 by default.
        halves = np.ascontiguousarray(values, np.float64).reshape(-1).view(np.uint32)
        every = np.ascontiguousarray(multihost_utils.process_allgather(halves))
        summed: npt.NDArray[np.float64] = every.view(np.float64).sum(axis=0).reshape(values.shape)
        return summed

    def agree(self, vote: bool) -> bool:
        """Return whether `vote` is true on any rank. A collective call."""
        return vote if self.world_size == 1 else bool(self.total(np.array([float(vote)]))[0])

    def wait(self) -> None:
        """Wait until the device has finished all work."""
        jax.block_until_ready((self._parameters, [losses for _, losses, _ in self._reports]))  # type: ignore[no-untyped-call]

    def peak_memory(self) -> int:
        """Return the peak memory in bytes: of the device or, on a CPU, of this process."""
        device = self._own_mesh.devices[0]
        known = None if device.platform == "cpu" else device.memory_stats()
        return int(known["peak_bytes_in_use"]) if known else find_process_memory()

    def close(self) -> None:
        """Disconnect from the other ranks."""
        if self._started:
            jax.distributed.shutdown()  # type: ignore[no-untyped-call]
            self._started = False

    def _divide(self, count: int, limit: int) -> tuple[int, int]:
        """Return the number of micro-batches, and the rows per device in each of them.

        The `count` rows are divided over this process's devices, and each device's rows into equal
        micro-batches of at most `limit` rows. Both divisions round up.
        """
        share = math.ceil(count / self._own_mesh.size)
        micro = math.ceil(share / limit)
        return micro, math.ceil(share / micro)

    def _place_pieces(
        self, mesh: Mesh, batch: tuple[npt.NDArray[Any] | None, ...], micro: int, size: int
    ) -> Iterator[tuple[jax.Array | None, ...]]:
        """Put each of `micro` micro-batches on the devices of a mesh, and yield its global arrays.

        A micro-batch has `size` rows per device, with zeros after the last row.
        """
        own = size * self._own_mesh.size
        sharding = NamedSharding(mesh, SPREAD)
        for number in range(micro):
            yield tuple(
                None if rows is None else _distribute(sharding, _fill(rows, number * own, own))
                for rows in batch
            )

    def _in_row_order(self, count: int, losses: list[jax.Array]) -> npt.NDArray[np.float32]:
        """Return the losses of a step in row order, without padding. Each rank has `count` rows."""
        copied = np.stack([_copy(found.addressable_data(0)) for found in losses])
        by_rank = copied.reshape(len(losses), self.world_size, -1)
        return by_rank.swapaxes(0, 1).reshape(self.world_size, -1)[:, :count].reshape(-1)

    def _place(self, arrays: Any) -> Any:
        """Copy a tree of arrays to all devices."""
        sharding = NamedSharding(self._mesh, EVERYWHERE)
        return jax.tree.map(lambda array: _distribute(sharding, array.copy()), arrays)

    def _fetch(self, stacked: Parameters) -> Arrays:
        copies = {name: _copy(value.addressable_data(0)) for name, value in stacked.items()}
        return {name: value.copy() for name, value in unstack(self.shape, copies).items()}

    def _own_parameters(self) -> Parameters:
        """Return the parameters as arrays of this process, usable without the other processes."""
        if self.world_size == 1:
            return self._parameters
        sharding = NamedSharding(self._own_mesh, EVERYWHERE)
        return {
            name: jax.make_array_from_single_device_arrays(
                value.shape, sharding, [shard.data for shard in value.addressable_shards]
            )
            for name, value in self._parameters.items()
        }


def _find_devices(name: str | None) -> list[Any]:
    """Return the devices of a platform such as gpu, or one device such as gpu:1.

    None means all devices of JAX's default platform.
    """
    if name is None:
        return jax.devices()
    platform, _, number = name.partition(":")
    try:
        found = jax.devices(platform)
        return [found[int(number)]] if number else found
    except (RuntimeError, IndexError, ValueError) as error:
        known = ", ".join(sorted({device.platform for device in jax.devices()}))
        raise UsageError(
            f"`device` is {name!r}, which JAX cannot use here. Available: {known}. Give one of these, "
            "optionally with a number such as gpu:1, or omit it."
        ) from error


def start_processes() -> bool:
    """Connect to the other processes if a launcher started several.

    Returns whether this call connected.
    """
    rank, world_size = find_rank(None, None)
    if world_size == 1 or jax.distributed.is_initialized():
        return False
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if address:
        jax.distributed.initialize(address, world_size, rank)
    elif "SLURM_STEP_NUM_TASKS" in os.environ or "OMPI_COMM_WORLD_SIZE" in os.environ:
        jax.distributed.initialize()  # JAX knows how to connect processes of these launchers
    else:
        raise UsageError(
            f"the environment sets {world_size} processes, but not the address where they connect; set "
            "JAX_COORDINATOR_ADDRESS=HOST:PORT, where HOST runs process 0 and PORT is free."
        )
    return True


def _has_flash(device: Any, shape: Shape) -> bool:
    """Return whether cuDNN can compute attention on this device, for this width of heads."""
    if device.platform != "gpu" or "NVIDIA" not in device.device_kind:
        return False
    return float(device.compute_capability) >= 8.0 and shape.head % 8 == 0 and shape.head <= 128


def _describe(devices: list[Any]) -> str:
    kind = None if devices[0].platform == "cpu" else devices[0].device_kind
    affinity = getattr(os, "sched_getaffinity", None)
    threads = len(affinity(0)) if affinity else os.cpu_count() or 1
    return describe_devices(kind, threads, len(devices))


def _fill(rows: npt.NDArray[Any], first: int, count: int) -> npt.NDArray[Any]:
    """Return a copy of `count` rows from `first` on, padded with zeros at the end."""
    some = rows[first : first + count]
    filled = np.zeros((count, *rows.shape[1:]), np.float32 if rows.dtype.kind == "f" else np.int32)
    filled[: len(some)] = some
    return filled


def _distribute(sharding: NamedSharding, own: npt.NDArray[Any]) -> jax.Array:
    """Return a global array made of the rows that each process passes as `own`.

    `own` must not be changed afterwards.
    """
    placed: jax.Array = jax.make_array_from_process_local_data(sharding, own)  # type: ignore[no-untyped-call]
    return placed


def _copy(value: jax.Array) -> npt.NDArray[Any]:
    return np.array(value)


@cache
def _make_gradients(shape: Shape, mesh: Mesh, numerics: Numerics) -> Any:
    """Make a function that adds the gradients of a micro-batch to sums of gradients.

    The function maps (parameters, sums, (inputs, targets, documents, weights)) to (sums, losses of
    rows). Each device adds to its own sums: arrays are (devices, ...). The sums are donated: JAX
    reuses their memory. All devices get the losses of all rows.
    """

    def row_losses(parameters: Parameters, micro: Any) -> tuple[jax.Array, jax.Array]:
        inputs, targets, documents, weights = micro
        losses = find_losses(shape, parameters, inputs, targets, documents, numerics).mean(axis=1)
        return (losses * weights).sum(), losses

    def run(parameters: Parameters, sums: Parameters, micro: Any) -> Any:
        gradients, losses = jax.grad(row_losses, has_aux=True)(parameters, micro)
        sums = {name: sums[name] + gradients[name] for name in sums}
        return sums, lax.all_gather(losses, "data", tiled=True)

    spread = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(EVERYWHERE, SPREAD, SPREAD),
        out_specs=(SPREAD, EVERYWHERE),
        check_vma=False,
    )
    return jax.jit(spread, donate_argnums=1)


@cache
def _make_update(config: Config, mesh: Mesh, numerics: Numerics) -> Any:
    """Make a function that takes an optimizer step.

    The function maps (parameters, state, sums of gradients, scale) to (parameters, state, gradient
    norm). The results are the same on all devices. The parameters and the state are donated: JAX
    reuses their memory.
    """

    def run(
        parameters: Parameters, state: OptimizerState, sums: Parameters, scale: jax.Array
    ) -> Any:
        own = {name: value[0] for name, value in sums.items()}
        gradients, norm = clip(config, lax.psum(own, "data"))  # type: ignore[no-untyped-call]
        parameters, state = update(config, parameters, state, gradients, scale, numerics)
        return parameters, state, norm

    spread = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(EVERYWHERE, EVERYWHERE, SPREAD, EVERYWHERE),
        out_specs=EVERYWHERE,
        check_vma=False,
    )
    return jax.jit(spread, donate_argnums=(0, 1))


@cache
def _make_evaluation(shape: Shape, mesh: Mesh, numerics: Numerics) -> Any:
    """Make a function from (parameters, (inputs, targets, documents)) to the loss of each target.

    The losses are divided over the devices like the targets.
    """

    def run(parameters: Parameters, micro: Any) -> jax.Array:
        inputs, targets, documents = micro
        return find_losses(shape, parameters, inputs, targets, documents, numerics)

    spread = jax.shard_map(
        run, mesh=mesh, in_specs=(EVERYWHERE, SPREAD), out_specs=SPREAD, check_vma=False
    )
    return jax.jit(spread)


@cache
def _make_next_logits(shape: Shape, numerics: Numerics) -> Any:
    """Make a function that computes the logits of the next id.

    The function takes (parameters, ids (1, seq_len), position of the last id). Ids after that
    position are padding. They have no effect, because attention is causal.
    """

    def run(parameters: Parameters, ids: jax.Array, last: jax.Array) -> jax.Array:
        states = find_states(shape, parameters, ids, None, numerics)
        return find_logits(shape, parameters, states[0, last], numerics)

    return jax.jit(run)
