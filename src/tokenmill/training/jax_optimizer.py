"""AdamW and Muon by optax, as PyTorch has them, so that both backends take the same steps.

The rules are those of `torch_backend.py`. What is remembered is what PyTorch remembers: the moments of
AdamW, and for Muon the running mean of gradients.

`optax.contrib.muon` is given that momentum rather than having one itself: for the first hundred steps
it corrects the two terms of Nesterov's momentum by different factors, and PyTorch by none. It would
also give Nesterov's momentum to the AdamW beside it, so that AdamW is apart here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from optax.contrib import MuonDimensionNumbers, muon  # type: ignore[import-untyped]

from tokenmill.training.config import Config
from tokenmill.training.jax_model import Parameters, Way, in_block

EPSILON = 1e-8
MUON_EPSILON = (
    1e-20  # added to a norm, which PyTorch compares with 1e-7: only zero is left as it is
)
MOMENTUM = 0.95
UPDATE_SIZE = 0.2  # what Muon's steps measure where AdamW's do: root mean square, times the rate


class OptimizerState(NamedTuple):
    """What the optimiser remembers: both of AdamW's moments of a parameter, or Muon's momentum."""

    steps: jax.Array
    mean: Parameters
    square: Parameters
    momentum: Parameters


def first_state(config: Config, parameters: Mapping[str, Any]) -> OptimizerState:
    """The state before the first step, in NumPy."""

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
    """The gradients, together no longer than is allowed, and their norm before that."""
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
    way: Way,
) -> tuple[Parameters, OptimizerState]:
    """The parameters and the state after a step at this share of the learning rates.

    Muon makes matrices orthogonal in the way in which the model is computed.
    """
    changes, mean, square = _adamw(config, parameters, state, gradients, scale)
    momentum = {
        name: MOMENTUM * old + (1 - MOMENTUM) * gradients[name]
        for name, old in state.momentum.items()
    }
    ahead = {
        name: (MOMENTUM * new + (1 - MOMENTUM) * gradients[name]).astype(way.dtype)
        for name, new in momentum.items()
    }
    with way.multiply():
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
    """The changes of AdamW's parameters, and their moments."""
    own = {name: parameters[name] for name in state.mean}
    adamw = optax.adamw(
        config.learning_rate * scale,
        b1=config.beta1,
        b2=config.beta2,
        eps=EPSILON,
        weight_decay=config.weight_decay,
        mask={name: name != "embedding" for name in own},
    )
    moments = optax.ScaleByAdamState(state.steps, state.mean, state.square)
    _, *others = adamw.init(own)  # which remember nothing
    gradients = {name: gradients[name] for name in own}
    changes, (moments, *_) = adamw.update(gradients, (moments, *others), own)
    return changes, moments.mu, moments.nu


def _muon(
    config: Config, parameters: Parameters, ahead: Parameters, scale: jax.Array
) -> Parameters:
    """The changes of Muon's parameters."""
    own = {name: parameters[name] for name in ahead}
    rule = muon(
        config.matrix_learning_rate * scale,
        beta=0.0,
        nesterov=False,
        eps=MUON_EPSILON,
        weight_decay=config.weight_decay,
        consistent_rms=UPDATE_SIZE,
        # Arrays are (layers, out, in).
        muon_weight_dimension_numbers=dict.fromkeys(own, MuonDimensionNumbers(-1, -2)),
    )
    changes: Parameters = rule.update(ahead, rule.init(own), own)[0]
    return changes


def _has_muon(config: Config, name: str) -> bool:
    return config.optimizer == "muon" and in_block(name)
