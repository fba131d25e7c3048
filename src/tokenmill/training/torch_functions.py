"""The model's functions that are not products of matrices, with gradients in few passes over memory.

On a CPU a pass over the activations costs a tenth of a product of matrices, and what PyTorch records
for a norm or a rotation takes a dozen of them there and back. These take three to six, and remember
only what the products around them remember anyway. `torch.compile` traces them like anything else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tokenmill.training.model import EPSILON, GROUP, Shape

CHUNK = 1 << 20  # logits at a time: about what the caches of CPUs hold
CHUNK_ROWS = 512  # at least, so that the gradient of the head is not read and written too often


def norm(x: Tensor) -> Tensor:
    """RMSNorm without gains, in float32.

    >>> norm(torch.tensor([3.0, 4.0]))
    tensor([0.8485, 1.1314])
    """
    normed: Tensor = _Norm.apply(x.float())  # type: ignore[no-untyped-call]
    return normed


def rotate_and_norm(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn the pairs of each head (B, T, heads, head) by the angles of their places, and norm each
    head, in float32; cosines and sines are (T, 1, head / 2)."""
    turned: Tensor = _RotateAndNorm.apply(x.float(), cosines, sines)  # type: ignore[no-untyped-call]
    return turned


def squared_relu(x: Tensor) -> Tensor:
    """relu(x)²; x itself is lost.

    >>> squared_relu(torch.tensor([-1.0, 3.0]))
    tensor([0., 9.])
    """
    squared: Tensor = _SquaredRelu.apply(x)  # type: ignore[no-untyped-call]
    return squared


def capped_losses(
    states: Tensor, head: Tensor, targets: Tensor, softcap: float
) -> tuple[Tensor, Tensor]:
    """The losses of targets (N,) after states (N, width): their sum, to be differentiated, and each.

    Not all logits are in memory at a time: gradients are found on the way, and kept instead.
    """
    total, losses = _CappedLosses.apply(states, head, targets, softcap)  # type: ignore[no-untyped-call]
    return total, losses


def grouped_losses(
    states: Tensor, head: Tensor, groups: Tensor, targets: Tensor, shape: Shape
) -> tuple[Tensor, Tensor]:
    """The same with a shortlist: only the groups of the targets are computed."""
    total, losses = _GroupedLosses.apply(states, head, groups, targets, shape)  # type: ignore[no-untyped-call]
    return total, losses


def _inverse_size(x: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return size.square_().div_(x.shape[-1]).add_(EPSILON).rsqrt_()


def _norm_gradient(gradient: Tensor, normed: Tensor, inverse: Tensor) -> Tensor:
    along = (gradient * normed).mean(-1, keepdim=True)
    return torch.addcmul(gradient, normed, along, value=-1).mul_(inverse)


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor, sign: float) -> Tensor:
    first, second = x.chunk(2, -1)
    turned = x * torch.cat([cosines, cosines], -1)
    turned_first, turned_second = turned.chunk(2, -1)
    turned_first.addcmul_(second, sines, value=sign)
    turned_second.addcmul_(first, sines, value=-sign)
    return turned


class _Norm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        inverse = _inverse_size(x)
        normed = x * inverse
        ctx.save_for_backward(normed, inverse)
        return normed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _norm_gradient(gradient, *ctx.saved_tensors)


class _RotateAndNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        inverse = _inverse_size(x)  # turning changes no size
        turned = _rotate(x, cosines, sines, 1.0).mul_(inverse)
        ctx.save_for_backward(turned, inverse, cosines, sines)
        return turned

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        turned, inverse, cosines, sines = ctx.saved_tensors
        gradient = _norm_gradient(gradient, turned, inverse)
        return _rotate(gradient, cosines, sines, -1.0), None, None


class _SquaredRelu(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.relu_()  # in place: the product that x comes from needs it no more
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return torch.addcmul(gradient.new_zeros(()), gradient, positive, value=2)


class _CappedLosses(Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, head: Tensor, targets: Tensor, softcap: float
    ) -> tuple[Tensor, Tensor]:
        learn = any(ctx.needs_input_grad)
        losses, *gradients = _find_losses(states, head, targets, softcap, learn)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        states_gradient, head_gradient = ctx.saved_tensors
        return gradient * states_gradient, gradient * head_gradient, None, None


class _GroupedLosses(Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, head: Tensor, groups: Tensor, targets: Tensor, shape: Shape
    ) -> tuple[Tensor, Tensor]:
        learn = any(ctx.needs_input_grad)
        listed = shape.shortlist
        numbers = (targets - listed).div(GROUP, rounding_mode="floor")  # negative: on the shortlist
        losses, states_gradient, first_gradient = _find_losses(
            states,
            torch.cat([head[:listed], groups]),
            torch.where(numbers < 0, targets, numbers + listed),
            shape.softcap,
            learn,
        )
        head_gradient = torch.zeros_like(head) if learn else None
        if head_gradient is not None and first_gradient is not None:
            head_gradient[:listed] = first_gradient[:listed]
        order = numbers.argsort(stable=True)  # puts targets of the same group next to each other
        found, counts = torch.unique_consecutive(numbers[order], return_counts=True)
        for number, places in zip(found.tolist(), torch.split(order, counts.tolist()), strict=True):
            if number < 0:
                continue
            own = slice(listed + number * GROUP, listed + (number + 1) * GROUP)
            some, by_states, by_head = _find_losses(
                states[places], head[own], targets[places] - own.start, shape.softcap, learn
            )
            losses[places] += some
            if states_gradient is not None and head_gradient is not None:
                assert by_states is not None
                assert by_head is not None
                states_gradient[places] += by_states
                head_gradient[own] = by_head
        ctx.save_for_backward(
            states_gradient,
            head_gradient,
            first_gradient[listed:] if first_gradient is not None else None,
        )
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor, _: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        by_states, by_head, by_groups = ctx.saved_tensors
        return gradient * by_states, gradient * by_head, gradient * by_groups, None, None


def _find_losses(
    states: Tensor, head: Tensor, targets: Tensor, softcap: float, learn: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Losses (N,), and on request the gradients of their sum by the states and by the head."""
    losses = states.new_empty(len(states))
    states_gradient = torch.empty_like(states) if learn else None
    head_gradient = torch.zeros_like(head) if learn else None
    size = max(CHUNK_ROWS, CHUNK // len(head))
    for first in range(0, len(states), size):
        some = slice(first, first + size)
        losses[some], gradient = _chunk(states[some], head, targets[some], softcap, learn)
        if states_gradient is not None and head_gradient is not None:
            torch.mm(gradient, head, out=states_gradient[some])
            head_gradient.addmm_(gradient.T, states[some])
    return losses, states_gradient, head_gradient


def _chunk(
    states: Tensor, head: Tensor, targets: Tensor, softcap: float, learn: bool
) -> tuple[Tensor, Tensor]:
    """Losses (N,), and the gradient of each by its logits before the cap (N, vocab)."""
    capped = slopes = states @ head.T
    if softcap > 0:
        slopes = capped.div_(softcap).tanh_()
        capped = slopes * softcap
    places = targets[:, None]
    wanted = capped.gather(1, places)
    largest = capped.amax(1, keepdim=True)
    shares = capped.sub_(largest).exp_()
    sums = shares.sum(1, keepdim=True)
    losses = (sums.log() + largest - wanted).squeeze(1)
    if learn:
        shares.div_(sums).scatter_add_(1, places, -torch.ones_like(wanted))
        if softcap > 0:
            shares.addcmul_(shares, slopes.square_(), value=-1)
    return losses, shares
