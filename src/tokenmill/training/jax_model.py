"""The model of `model.py` in JAX: pure functions of a dict of arrays.

Guarantees: the parameters, names and mathematics of `model.py`. Norms, rotary positions, logits and
losses are float32 whatever the dtype of the matrix products; a float32 product is a true one on every
device. An id that is not in the vocabulary makes a loss NaN rather than a wrong number.

Inside, the same matrix of all blocks is one array (layers, out, in), and the compiled program goes
round a few blocks at a time: compiling takes as long for 24 layers as for 4. `stack` and `unstack`
lead from the names of `model.py` to such arrays and back.

Costs: attention is computed again on the way back, so that squares of seq_len are kept for one layer
at a time; cuDNN's, for NVIDIA GPUs in bfloat16, keeps none at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from tokenmill.training.model import (
    EPSILON,
    GROUP,
    Arrays,
    Shape,
    is_matrix,
    parameter_shapes,
    rotation,
)

_BLOCKS_A_ROUND = 4  # on CPUs a quarter faster than 1

# By the names of `model.py`, those of blocks without their number.
Parameters = dict[str, jax.Array]


def in_block(name: str) -> bool:
    """Whether an array is one of those of all blocks, (layers, out, in): what Muon is for."""
    return name.startswith(("attention.", "mlp."))


def stack(shape: Shape, values: Mapping[str, npt.NDArray[np.float32]]) -> Arrays:
    """Stack the parameters of all blocks into one array each, such as mlp.up (layers, 4 * width, width).

    >>> from tokenmill.training.model import first_values
    >>> shape = Shape(vocab=64, layers=2, heads=2, kv_heads=1, width=8, seq_len=16)
    >>> stacked = stack(shape, first_values(shape, seed=1))
    >>> stacked["head"].shape, stacked["attention.key"].shape
    ((64, 8), (2, 4, 8))
    >>> list(unstack(shape, stacked)) == list(parameter_shapes(shape))
    True
    """
    groups: dict[str, list[npt.NDArray[np.float32]]] = {}
    for name in parameter_shapes(shape):
        if name in values:
            groups.setdefault(_without_number(name), []).append(values[name])
    return {
        name: np.array(group if in_block(name) else group[0], np.float32)
        for name, group in groups.items()
    }


def unstack(shape: Shape, stacked: Mapping[str, npt.NDArray[np.float32]]) -> Arrays:
    """Parameters by the names of `model.py`: the reverse of `stack`."""
    values: Arrays = {}
    for name in parameter_shapes(shape):
        whole = stacked.get(_without_number(name))
        if whole is not None:
            values[name] = whole[int(name.split(".")[1])] if is_matrix(name) else whole
    return values


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a model is computed: in which dtype, and by which implementation of
    `jax.nn.dot_product_attention`."""

    dtype: Any
    attention: Literal["xla", "cudnn"] | None = None

    def multiply(self) -> AbstractContextManager[Any]:
        """Where float32 matrices are multiplied in float32, also on devices with quicker ways."""
        precision = "highest" if self.dtype == jnp.float32 else "default"
        context: AbstractContextManager[Any] = jax.default_matmul_precision(precision)
        return context


def find_states(
    shape: Shape,
    parameters: Parameters,
    ids: jax.Array,
    documents: jax.Array | None,
    way: Way,
) -> jax.Array:
    """The input of the head (rows, length, inner) for ids (rows, length).

    `documents` numbers the documents of each row, if attention stays inside them.
    """
    turn = rotation(shape, ids.shape[1])
    mask = None if documents is None else _same_document(documents)

    def attend(x: jax.Array, block: Parameters) -> jax.Array:
        query, key, value = (
            _linear(x, block[f"attention.{name}"], way).reshape(*x.shape[:2], -1, shape.head)
            for name in ("query", "key", "value")
        )
        query, key = (_norm(_rotate(x, turn)).astype(way.dtype) for x in (query, key))
        mixed = jax.nn.dot_product_attention(
            query, key, value, mask=mask, is_causal=True, implementation=way.attention
        )
        return mixed.reshape(x.shape)

    def run_block(x: jax.Array, block: Parameters) -> tuple[jax.Array, None]:
        kept = attend if way.attention == "cudnn" else jax.checkpoint(attend)
        x = x + _linear(kept(_norm(x), block), block["attention.out"], way)
        inner = jnp.square(jax.nn.relu(_linear(_norm(x), block["mlp.up"], way)))
        return x + _linear(inner, block["mlp.down"], way), None

    x = parameters["embedding"].at[ids].get(mode="fill", fill_value=jnp.nan)
    if shape.embedding_width:
        with way.multiply():
            x = _linear(x, parameters["embedding_up"], way)
    x = _norm(x)
    blocks = {name: value for name, value in parameters.items() if in_block(name)}
    with way.multiply():
        x, _ = lax.scan(run_block, x, blocks, unroll=min(shape.layers, _BLOCKS_A_ROUND))
        x = _norm(x)
        if shape.embedding_width:
            x = _norm(_linear(x, parameters["head_down"], way))
    return x


def find_logits(shape: Shape, parameters: Parameters, states: jax.Array, way: Way) -> jax.Array:
    """The logits (..., vocab) of the next id, float32; log-probabilities if there is a shortlist."""
    logits = _find_capped(shape, parameters["head"], states, way)
    if not shape.has_groups:
        return logits
    listed = shape.shortlist
    of_groups = _find_capped(shape, parameters["groups"], states, way)
    first = jax.nn.log_softmax(jnp.concatenate([logits[..., :listed], of_groups], -1))
    filled = jnp.full((*logits.shape[:-1], shape.groups * GROUP), -jnp.inf)
    filled = filled.at[..., : shape.vocab - listed].set(logits[..., listed:])
    within = jax.nn.log_softmax(filled.reshape(*logits.shape[:-1], shape.groups, GROUP))
    rest = (first[..., listed:, None] + within).reshape(filled.shape)
    return jnp.concatenate([first[..., :listed], rest[..., : shape.vocab - listed]], -1)


def find_losses(
    shape: Shape,
    parameters: Parameters,
    ids: jax.Array,
    targets: jax.Array,
    documents: jax.Array | None,
    way: Way,
) -> jax.Array:
    """The loss of each target in nats, (rows, length) like the targets."""
    states = find_states(shape, parameters, ids, documents, way)
    logits = find_logits(shape, parameters, states, way)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1, mode="fill")[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def _find_capped(shape: Shape, weight: jax.Array, states: jax.Array, way: Way) -> jax.Array:
    with way.multiply():
        logits = _linear(states, weight, way, jnp.float32)
    return shape.softcap * jnp.tanh(logits / shape.softcap) if shape.softcap > 0 else logits


def _norm(x: jax.Array) -> jax.Array:
    x = x.astype(jnp.float32)
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + EPSILON)


def _linear(x: jax.Array, weight: jax.Array, way: Way, result: Any = None) -> jax.Array:
    """x @ weight.T, multiplied in a dtype, added up in float32, and of that dtype or another."""
    product = lax.dot_general(
        x.astype(way.dtype),
        weight.astype(way.dtype),
        (((x.ndim - 1,), (1,)), ((), ())),
        preferred_element_type=jnp.float32,
    )
    return product.astype(result or way.dtype)


def _rotate(x: jax.Array, turn: tuple[npt.NDArray[np.float32], ...]) -> jax.Array:
    """Turn the pairs of each head (rows, length, heads, head) by the angles of their places."""
    cosines, sines = (values[:, None, :] for values in turn)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate(
        [first * cosines + second * sines, second * cosines - first * sines], axis=-1
    )


def _same_document(documents: jax.Array) -> jax.Array:
    return documents[:, None, :, None] == documents[:, None, None, :]


def _without_number(name: str) -> str:
    return name.split(".", 2)[2] if is_matrix(name) else name
