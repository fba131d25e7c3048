"""Muon that orthogonalises in float32.

`torch.optim.Muon` does so in bfloat16, which GPUs are quick at. CPUs are not: there it takes several
times as long as float32, and as long as the rest of a small step. So where a run computes in float32,
this is its Muon: the same steps with more digits, and the same as the JAX backend's.

Matrices of the same shape go together: few large products instead of many small ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor


class Float32Muon(torch.optim.Muon):
    """`torch.optim.Muon(..., adjust_lr_fn="match_rms_adamw")`, in float32 throughout."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of all parameters, which all have gradients."""
        assert closure is None
        for group in self.param_groups:
            assert group["nesterov"]
            assert group["adjust_lr_fn"] == "match_rms_adamw"
            alike: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                alike[tuple(parameter.shape)].append(parameter)
            for parameters in alike.values():
                self._step_together(group, parameters)

    def _step_together(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """A step of parameters of the same shape."""
        rate, momentum = group["lr"], group["momentum"]
        ahead = parameters[0].new_empty(len(parameters), *parameters[0].shape)
        for row, parameter in zip(ahead, parameters, strict=True):
            assert parameter.grad is not None
            mean = self.state[parameter]["momentum_buffer"]
            mean.lerp_(parameter.grad, 1 - momentum)
            torch.lerp(parameter.grad, mean, momentum, out=row)
        updates = orthogonalize(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
        size = 0.2 * math.sqrt(max(ahead.shape[1:]))
        for update, parameter in zip(updates, parameters, strict=True):
            parameter.mul_(1 - rate * group["weight_decay"])
            parameter.add_(update, alpha=-rate * size)


def orthogonalize(
    matrices: Tensor, coefficients: tuple[float, float, float], rounds: int, epsilon: float
) -> Tensor:
    """Matrices (N, rows, columns) with all their singular values brought near 1, by rounds of
    Newton-Schulz.

    >>> scaled = torch.diag(torch.tensor([5.0, -0.5]))[None]
    >>> orthogonalize(scaled, (3.4445, -4.7750, 2.0315), 5, 1e-7)[0].diag()
    tensor([ 0.7020, -0.7087])
    """
    first, third, fifth = coefficients
    sizes = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    x: Tensor = matrices / sizes.clamp(min=epsilon)
    wide = x.shape[1] <= x.shape[2]
    for _ in range(rounds):
        gram = x @ x.mT if wide else x.mT @ x
        factor = torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth)
        x = torch.baddbmm(x, *((factor, x) if wide else (x, factor)), beta=first)
    return x
