"""The programs that JAX compiles for the devices: the gradients of a micro-batch, the update of a
step, an evaluation, and the next logits.

Each is compiled once for the same settings and devices, so a second model in the process starts
immediately. Rows are in arrays (rows of all devices, ...), those of an evaluation in (micro-batches,
rows of all devices, ...), divided over the axis "data".
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from tokenmill.training.config import Config
from tokenmill.training.jax_model import Parameters, Way, find_logits, find_losses, find_states
from tokenmill.training.jax_optimizer import OptimizerState, clip, update
from tokenmill.training.model import Shape

EVERYWHERE = PartitionSpec()  # type: ignore[no-untyped-call]
BY_ROW = PartitionSpec(None, "data")  # type: ignore[no-untyped-call]
SPREAD = PartitionSpec("data")  # type: ignore[no-untyped-call]


@cache
def make_gradients(shape: Shape, mesh: Mesh, way: Way) -> Any:
    """(parameters, sums, (inputs, targets, documents, weights)) to (sums, losses of rows).

    Each device has its own sums of gradients (devices, ...), which are donated. The losses are the
    same on all devices.
    """

    def row_losses(parameters: Parameters, micro: Any) -> tuple[jax.Array, jax.Array]:
        inputs, targets, documents, weights = micro
        losses = find_losses(shape, parameters, inputs, targets, documents, way).mean(axis=1)
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
def make_update(config: Config, mesh: Mesh, way: Way) -> Any:
    """(parameters, state, sums of gradients, scale) to (parameters, state, norm), which are the same on
    all devices. The first two are donated."""

    def run(
        parameters: Parameters, state: OptimizerState, sums: Parameters, scale: jax.Array
    ) -> Any:
        own = {name: value[0] for name, value in sums.items()}
        gradients, norm = clip(config, lax.psum(own, "data"))  # type: ignore[no-untyped-call]
        parameters, state = update(config, parameters, state, gradients, scale, way)
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
def make_evaluation(shape: Shape, mesh: Mesh, way: Way) -> Any:
    """(parameters, (inputs, targets, documents)) to the losses of targets, divided like them."""

    def run(parameters: Parameters, rows: Any) -> Any:
        def find(micro: Any) -> jax.Array:
            inputs, targets, documents = micro
            return find_losses(shape, parameters, inputs, targets, documents, way)

        return lax.map(find, rows)

    spread = jax.shard_map(
        run, mesh=mesh, in_specs=(EVERYWHERE, BY_ROW), out_specs=BY_ROW, check_vma=False
    )
    return jax.jit(spread)


@cache
def make_next_logits(shape: Shape, way: Way) -> Any:
    """(parameters, ids (1, seq_len), position of the last id) to the logits of the next id.

    Values after the last id have no effect, because attention is causal.
    """

    def run(parameters: Parameters, ids: jax.Array, last: jax.Array) -> jax.Array:
        states = find_states(shape, parameters, ids, None, way)
        return find_logits(shape, parameters, states[0, last], way)

    return jax.jit(run)
