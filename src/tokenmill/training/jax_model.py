"""The model of `model.py` and its optimizers in JAX: pure functions of dicts of arrays.

Guarantees: this model has the parameters, names and mathematics of `model.py` and follows the
optimizer rules of `torch_backend.py`, so both backends take the same steps. Norms, rotary
positions, logits and losses are always float32. In a float32 run, every device multiplies matrices
in full float32 precision. An id outside the vocabulary makes a loss NaN rather than a wrong number.

A matrix that every block has, such as `mlp.up`, is one array (layers, out, in) for all blocks. The
compiled program loops over a few blocks at a time, so compiling takes as long for 24 layers as for
4. `stack` and `unstack` convert between such arrays and the names of `model.py`.

Costs: attention is computed again in the backward pass, so only one layer at a time needs memory
that is quadratic in seq_len. cuDNN's attention, used on NVIDIA GPUs in bfloat16, needs no such
memory.

AdamW and Muon come from optax and keep the same state as PyTorch's. Muon's momentum is computed
here and not by `optax.contrib.muon`: for the first hundred steps, optax scales the two terms of
Nesterov's momentum by different factors, and PyTorch does not. AdamW is a separate optimizer,
because optax's Muon would apply Nesterov's momentum to AdamW's parameters as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax  # type: ignore[import-untyped]
from jax import lax
from optax.contrib import MuonDimensionNumbers, muon  # type: ignore[import-untyped]

from tokenmill.training.config import Config
from tokenmill.training.model import (
    EPSILON,
    GROUP,
    Arrays,
    Shape,
    is_matrix,
    parameter_shapes,
    rotation,
)

_BLOCKS_PER_ROUND = 4  # of the compiled loop; on CPUs, 4 is a quarter faster than 1
_ADAMW_EPSILON = 1e-8
# optax divides by norm + epsilon, PyTorch by max(norm, 1e-7). Both leave a zero matrix unchanged.
_MUON_EPSILON = 1e-20
_MOMENTUM = 0.95
_UPDATE_SIZE = 0.2  # root mean square of Muon's updates at learning rate 1, similar to AdamW's

# Named as in `model.py`, but names of block parameters have no block number.
Parameters = dict[str, jax.Array]


def in_block(name: str) -> bool:
    """Return whether an array holds the same matrix of every block, such as mlp.up.

    Muon updates only such arrays.
    """
    return name.startswith(("attention.", "mlp."))


def stack(shape: Shape, values: Mapping[str, npt.NDArray[np.float32]]) -> Arrays:
    """Return the parameters, with each matrix that all blocks have stacked into one array.

    For example, `mlp.up` becomes (layers, 4 * width, width).

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
    """Return the parameters by their names in `model.py`: the reverse of `stack`."""
    values: Arrays = {}
    for name in parameter_shapes(shape):
        whole = stacked.get(_without_number(name))
        if whole is not None:
            values[name] = whole[int(name.split(".")[1])] if is_matrix(name) else whole
    return values


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """How a model is computed: in which dtype, and by which attention code.

    `attention` is the argument `implementation` of `jax.nn.dot_product_attention`.
    """

    dtype: Any
    attention: Literal["xla", "cudnn"] | None = None

    def multiply(self) -> AbstractContextManager[Any]:
        """Return a context in which a float32 run multiplies matrices in full precision."""
        precision = "highest" if self.dtype == jnp.float32 else "default"
        context: AbstractContextManager[Any] = jax.default_matmul_precision(precision)
        return context


def find_states(
    shape: Shape,
    parameters: Parameters,
    ids: jax.Array,
    documents: jax.Array | None,
    numerics: Numerics,
) -> jax.Array:
    """Return the final states (rows, length, inner), which `find_logits` turns into logits.

    `ids` are (rows, length). If attention stays inside documents, `documents` holds the document
    number of each id; otherwise it is None.
    """
    turn = rotation(shape, ids.shape[1])
    mask = None if documents is None else _same_document(documents)

    def attend(x: jax.Array, block: Parameters) -> jax.Array:
        query, key, value = (
            _linear(x, block[f"attention.{name}"], numerics).reshape(*x.shape[:2], -1, shape.head)
            for name in ("query", "key", "value")
        )
        query, key = (_norm(_rotate(x, turn)).astype(numerics.dtype) for x in (query, key))
        mixed = jax.nn.dot_product_attention(
            query, key, value, mask=mask, is_causal=True, implementation=numerics.attention
        )
        return mixed.reshape(x.shape)

    def run_block(x: jax.Array, block: Parameters) -> tuple[jax.Array, None]:
        kept = attend if numerics.attention == "cudnn" else jax.checkpoint(attend)
        x = x + _linear(kept(_norm(x), block), block["attention.out"], numerics)
        inner = jnp.square(jax.nn.relu(_linear(_norm(x), block["mlp.up"], numerics)))
        return x + _linear(inner, block["mlp.down"], numerics), None

    x = parameters["embedding"].at[ids].get(mode="fill", fill_value=jnp.nan)
    if shape.embedding_width:
        with numerics.multiply():
            x = _linear(x, parameters["embedding_up"], numerics)
    x = _norm(x)
    blocks = {name: value for name, value in parameters.items() if in_block(name)}
    with numerics.multiply():
        x, _ = lax.scan(run_block, x, blocks, unroll=min(shape.layers, _BLOCKS_PER_ROUND))
        x = _norm(x)
        if shape.embedding_width:
            x = _norm(_linear(x, parameters["head_down"], numerics))
    return x


def find_logits(
    shape: Shape, parameters: Parameters, states: jax.Array, numerics: Numerics
) -> jax.Array:
    """Return the logits (..., vocab) of the next id.

    With a shortlist, these are log-probabilities.
    """
    logits = _find_capped(shape, parameters["head"], states, numerics)
    if not shape.has_groups:
        return logits
    listed = shape.shortlist
    of_groups = _find_capped(shape, parameters["groups"], states, numerics)
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
    numerics: Numerics,
) -> jax.Array:
    """Return the loss of each target in nats, (rows, length) like the targets."""
    states = find_states(shape, parameters, ids, documents, numerics)
    logits = find_logits(shape, parameters, states, numerics)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1, mode="fill")[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def _find_capped(
    shape: Shape, weight: jax.Array, states: jax.Array, numerics: Numerics
) -> jax.Array:
    with numerics.multiply():
        logits = _linear(states, weight, numerics, jnp.float32)
    return shape.softcap * jnp.tanh(logits / shape.softcap) if shape.softcap > 0 else logits


def _norm(x: jax.Array) -> jax.Array:
    x = x.astype(jnp.float32)
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + EPSILON)


def _linear(x: jax.Array, weight: jax.Array, numerics: Numerics, result: Any = None) -> jax.Array:
    """Return x @ weight.T, multiplied in the run's dtype and summed in float32.

    `result` is the dtype of the result, by default the run's dtype.
    """
    product = lax.dot_general(
        x.astype(numerics.dtype),
        weight.astype(numerics.dtype),
        (((x.ndim - 1,), (1,)), ((), ())),
        preferred_element_type=jnp.float32,
    )
    return product.astype(result or numerics.dtype)


def _rotate(x: jax.Array, turn: tuple[npt.NDArray[np.float32], ...]) -> jax.Array:
    """Return queries or keys (rows, length, heads, head) with rotary positions applied.

    `turn` has the cosines and the sines of the rotary angles.
    """
    cosines, sines = (values[:, None, :] for values in turn)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate(
        [first * cosines + second * sines, second * cosines - first * sines], axis=-1
    )


def _same_document(documents: jax.Array) -> jax.Array:
    return documents[:, None, :, None] == documents[:, None, None, :]


def _without_number(name: str) -> str:
    return name.split(".", 2)[2] if is_matrix(name) else name


class OptimizerState(NamedTuple):
    """The state of both optimizers: AdamW's two moments and Muon's momentum, per parameter."""

    steps: jax.Array
    mean: Parameters
    square: Parameters
    momentum: Parameters


def first_state(config: Config, parameters: Mapping[str, Any]) -> OptimizerState:
    """Return the optimizers' state before the first step, as NumPy arrays."""

    def zeros(*, of_muon: bool) -> Any:
        return {
            name: np.zeros(value.shape, np.float32)
            for name, value in parameters.items()
            if _has_muon(config, name) == of_muon
        }

    return OptimizerState(
        steps=np.zeros((), np.int32),  # type: ignore[arg-type]
        mean=zeros(of_muon=False),
        square=zeros(of_muon=False),
        momentum=zeros(of_muon=True),
    )


def clip(config: Config, gradients: Parameters) -> tuple[Parameters, jax.Array]:
    """Clip gradients to the configured norm. Returns them and their norm before clipping."""
    norm = optax.tree.norm(gradients)
    if config.clip <= 0:
        return gradients, norm
    share = jnp.minimum(1.0, config.clip / (norm + 1e-6))
    return {name: gradient * share for name, gradient in gradients.items()}, norm


def update(
    config: Config,
    parameters: Parameters,
    state: OptimizerState,
    gradients: Parameters,
    scale: jax.Array,
    numerics: Numerics,
) -> tuple[Parameters, OptimizerState]:
    """Return the parameters and the optimizers' state after a step.

    Learning rates are multiplied by `scale`. Muon orthogonalizes in the run's dtype.
    """
    changes, mean, square = _adamw(config, parameters, state, gradients, scale)
    momentum = {
        name: _MOMENTUM * old + (1 - _MOMENTUM) * gradients[name]
        for name, old in state.momentum.items()
    }
    ahead = {
        name: (_MOMENTUM * new + (1 - _MOMENTUM) * gradients[name]).astype(numerics.dtype)
        for name, new in momentum.items()
    }
    with numerics.multiply():
        changes |= _muon(config, parameters, ahead, scale)
    after = {name: value + changes[name] for name, value in parameters.items()}
    return after, OptimizerState(state.steps + 1, mean, square, momentum)


def _adamw(
    config: Config,
    parameters: Parameters,
    state: OptimizerState,
    gradients: Parameters,
    scale: jax.Array,
) -> tuple[Parameters, Parameters, Parameters]:
    """Return the changes that AdamW makes to its parameters, and the new values of both moments."""
    own = {name: parameters[name] for name in state.mean}
    adamw = optax.adamw(
        config.learning_rate * scale,
        b1=config.beta1,
        b2=config.beta2,
        eps=_ADAMW_EPSILON,
        weight_decay=config.weight_decay,
        mask={name: name != "embedding" for name in own},
    )
    moments = optax.ScaleByAdamState(state.steps, state.mean, state.square)
    _, *others = adamw.init(own)  # the later stages of optax's AdamW have no state
    gradients = {name: gradients[name] for name in own}
    changes, (moments, *_) = adamw.update(gradients, (moments, *others), own)
    return changes, moments.mu, moments.nu


def _muon(
    config: Config, parameters: Parameters, ahead: Parameters, scale: jax.Array
) -> Parameters:
    """Return the changes that Muon makes to its parameters.

    `ahead` has the gradients after Nesterov's momentum, so optax's own momentum is off.
    """
    own = {name: parameters[name] for name in ahead}
    rule = muon(
        config.matrix_learning_rate * scale,
        beta=0.0,
        nesterov=False,
        eps=_MUON_EPSILON,
        weight_decay=config.weight_decay,
        consistent_rms=_UPDATE_SIZE,
        # Arrays are (layers, out, in).
        muon_weight_dimension_numbers=dict.fromkeys(own, MuonDimensionNumbers(-1, -2)),
    )
    changes: Parameters = rule.update(ahead, rule.init(own), own)[0]
    return changes


def _has_muon(config: Config, name: str) -> bool:
    return config.optimizer == "muon" and in_block(name)
