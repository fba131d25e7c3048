"""Muon that orthogonalises in float32.

`torch.optim.Muon` does so in bfloat16, which GPUs are quick at. CPUs are not: there it takes several
times as long as float32, and as long as the rest of a small step. So where a run computes in float32,
this is its Muon: the same steps with more digits, and the same as the JAX backend's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["Float32Muon", "orthogonalize"]


class Float32Muon(torch.optim.Muon):
    """`torch.optim.Muon(..., adjust_lr_fn="match_rms_adamw")`, in float32 throughout."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step; parameters without a gradient stay as they are."""
        assert closure is None
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            assert group["nesterov"]
            assert group["adjust_lr_fn"] == "match_rms_adamw"
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                mean = self.state[parameter]["momentum_buffer"]
                mean.lerp_(parameter.grad, 1 - momentum)
                ahead = parameter.grad.lerp(mean, momentum)
                update = orthogonalize(
                    ahead, group["ns_coefficients"], group["ns_steps"], group["eps"]
                )
                parameter.mul_(1 - rate * group["weight_decay"])
                parameter.add_(update, alpha=-rate * 0.2 * math.sqrt(max(parameter.shape)))


def orthogonalize(
    matrix: Tensor, coefficients: tuple[float, float, float], rounds: int, epsilon: float
) -> Tensor:
    """The matrix with all its singular values brought near 1, by rounds of Newton-Schulz.

    >>> scaled = torch.diag(torch.tensor([5.0, -0.5]))
    >>> orthogonalize(scaled, (3.4445, -4.7750, 2.0315), 5, 1e-7).diag()
    tensor([ 0.7020, -0.7087])
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=epsilon)
    first, third, fifth = coefficients
    for _ in range(rounds):
        gram = x @ x.T
        factor = torch.addmm(gram, gram, gram, beta=third, alpha=fifth)
        x = torch.addmm(x, factor, x, beta=first)
    return x.T if tall else x
