"""The model of `model.py` in PyTorch, with hand-written gradients except for matrix products.

Parameters are float32 and have the names of `model.py`. Autocast chooses which operations use
bfloat16; the residual stream, norms, logits and losses are always float32.

Gradients of norms, rotations, activations and losses are written by hand, to pass over the
activations as few times as possible: on a CPU, each pass takes a tenth of the time of a matrix
product. For (2048, 256) on one core, `F.rms_norm` takes 1.6 ms forward and backward, and `norm`
here 0.45 ms. `torch.compile` traces these functions like any other.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd import Function

from tokenmill.training.model import (
    EPSILON,
    GROUP,
    Arrays,
    Shape,
    is_matrix,
    parameter_shapes,
    rotation,
)

CHUNK = 1 << 20  # logits to compute at a time: about as many as a CPU cache holds
CHUNK_ROWS = 512  # minimum rows per chunk: each chunk updates the whole gradient of the head


class Model(nn.Module):
    """A GPT; see `model.py` for its mathematics."""

    embedding: nn.Parameter
    embedding_up: nn.Parameter
    head_down: nn.Parameter
    groups: nn.Parameter
    head: nn.Parameter

    def __init__(self, shape: Shape, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.shape = shape
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        for name, size in parameter_shapes(shape).items():
            if not is_matrix(name):
                self.register_parameter(name, nn.Parameter(torch.empty(size)))
        cosines, sines = rotation(shape, shape.seq_len)
        self.to(device)
        # Not registered as buffers: `DistributedDataParallel` would broadcast them between ranks.
        self.cosines = torch.tensor(cosines, device=device)[:, None]
        self.sines = torch.tensor(sines, device=device)[:, None]

    def forward(
        self, ids: Tensor, targets: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sum of all losses, and the loss of each target (B, T), detached.

        Gradients flow from the sum. Both results are float32. `mask` comes from `document_mask`.
        """
        states = self.states(ids, mask).flatten(0, 1)
        places = targets.flatten()
        if states.is_cpu and not torch.is_autocast_enabled("cpu"):
            if self.shape.has_groups:
                total, losses = grouped_losses(states, self.head, self.groups, places, self.shape)
            else:
                total, losses = capped_losses(states, self.head, places, self.shape.softcap)
        else:  # plain operations, which compilers fuse
            losses = F.cross_entropy(self.logits(states), places, reduction="none")
            total = losses.sum()
        return total, losses.detach().view(targets.shape)

    def states(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the final states (B, T, inner), which the output head turns into logits."""
        length = ids.shape[1]
        turn = self.cosines[:length], self.sines[:length]
        x = F.embedding(ids, self.embedding)
        if self.shape.embedding_width:
            x = F.linear(x, self.embedding_up)
        x = norm(x)
        for block in self.blocks:
            x = block(x, turn, mask)
        x = norm(x)
        return norm(F.linear(x, self.head_down)) if self.shape.embedding_width else x

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits (..., vocab) of the next id.

        With a shortlist, these are log-probabilities.
        """
        logits = self._cap(F.linear(states, self.head))
        if not self.shape.has_groups:
            return logits
        listed = self.shape.shortlist
        first = torch.cat([logits[..., :listed], self._cap(F.linear(states, self.groups))], -1)
        first = first.log_softmax(-1)
        within = [group.log_softmax(-1) for group in torch.split(logits[..., listed:], GROUP, -1)]
        return torch.cat(
            [first[..., :listed]]
            + [first[..., listed + n, None] + group for n, group in enumerate(within)],
            -1,
        )

    def _cap(self, logits: Tensor) -> Tensor:
        cap = self.shape.softcap
        return cap * torch.tanh(logits.float() / cap) if cap > 0 else logits.float()

    def load(self, values: Arrays) -> None:
        """Copy values into the parameters; names and shapes must match."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(torch.tensor(values[name]))


class Block(nn.Module):
    """Attention, then an MLP, each added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        x = x + self.attention(norm(x), turn, mask)
        after: Tensor = x + self.mlp(norm(x))
        return after


class Attention(nn.Module):
    """Causal attention; with a mask, only inside documents."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = shape.heads, shape.kv_heads, shape.head
        keys = shape.kv_heads * shape.head
        self.query = nn.Parameter(torch.empty(shape.width, shape.width))
        self.key = nn.Parameter(torch.empty(keys, shape.width))
        self.value = nn.Parameter(torch.empty(keys, shape.width))
        self.out = nn.Parameter(torch.empty(shape.width, shape.width))

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        cosines, sines = turn
        q, k, v = (
            F.linear(x, weight).view(*x.shape[:2], -1, self.head)
            for weight in (self.query, self.key, self.value)
        )
        q = rotate_and_norm(q, cosines, sines).transpose(1, 2)
        k = rotate_and_norm(k, cosines, sines).transpose(1, 2)
        v = v.transpose(1, 2)
        grouped = self.heads != self.kv_heads
        if grouped and mask is not None:  # CUDA has no fast kernel for this case
            k, v = (kept.repeat_interleave(self.heads // self.kv_heads, 1) for kept in (k, v))
            grouped = False
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
        )
        return F.linear(y.transpose(1, 2).flatten(2), self.out)


class MLP(nn.Module):
    """Two linear maps with a squared ReLU between them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(4 * shape.width, shape.width))
        self.down = nn.Parameter(torch.empty(shape.width, 4 * shape.width))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(squared_relu(F.linear(x, self.up)), self.down)


def document_mask(documents: Tensor) -> Tensor:
    """Return the attention mask (B, 1, T, T): each token sees its document up to itself.

    `documents` (B, T) holds the document number of each token.

    >>> document_mask(torch.tensor([[0, 0, 1]]))[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]


def norm(x: Tensor) -> Tensor:
    """Apply RMSNorm without gains, in float32.

    >>> norm(torch.tensor([3.0, 4.0]))
    tensor([0.8485, 1.1314])
    """
    normed: Tensor = _Norm.apply(x.float())  # type: ignore[no-untyped-call]
    return normed


def rotate_and_norm(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Return queries or keys (B, T, heads, head) with rotary positions applied and heads normed.

    The result is float32. The cosines and sines of the rotary angles are (T, 1, head / 2).
    """
    turned: Tensor = _RotateAndNorm.apply(x.float(), cosines, sines)  # type: ignore[no-untyped-call]
    return turned


def squared_relu(x: Tensor) -> Tensor:
    """Return relu(x)². Overwrites x.

    >>> squared_relu(torch.tensor([-1.0, 3.0]))
    tensor([0., 9.])
    """
    squared: Tensor = _SquaredRelu.apply(x)  # type: ignore[no-untyped-call]
    return squared


def capped_losses(
    states: Tensor, head: Tensor, targets: Tensor, softcap: float
) -> tuple[Tensor, Tensor]:
    """Return the sum of all losses, which has a gradient, and each loss (N,), which has none.

    `states` are (N, width). The forward pass also computes the gradients, so that only one chunk of
    logits is in memory at a time. Under `torch.no_grad`, only the losses are computed.
    """
    learn = torch.is_grad_enabled()  # must be asked here: inside `apply`, this is always False
    total, losses = _CappedLosses.apply(states, head, targets, softcap, learn)  # type: ignore[no-untyped-call]
    return total, losses


def grouped_losses(
    states: Tensor, head: Tensor, groups: Tensor, targets: Tensor, shape: Shape
) -> tuple[Tensor, Tensor]:
    """Return the same as `capped_losses`, for a model with a shortlist.

    Only groups that contain a target are computed.
    """
    learn = torch.is_grad_enabled()
    total, losses = _GroupedLosses.apply(states, head, groups, targets, shape, learn)  # type: ignore[no-untyped-call]
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
        inverse = _inverse_size(x)  # a rotation keeps the norm
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
        positive = x.relu_()  # in place: the linear map that made x does not need it for gradients
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return torch.addcmul(gradient.new_zeros(()), gradient, positive, value=2)


class _CappedLosses(Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, head: Tensor, targets: Tensor, softcap: float, learn: bool
    ) -> tuple[Tensor, Tensor]:
        losses, *gradients = _find_losses(states, head, targets, softcap, learn)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        states_gradient, head_gradient = ctx.saved_tensors
        return gradient * states_gradient, gradient * head_gradient, None, None, None


class _GroupedLosses(Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        head: Tensor,
        groups: Tensor,
        targets: Tensor,
        shape: Shape,
        learn: bool,
    ) -> tuple[Tensor, Tensor]:
        listed = shape.shortlist
        # The group of each target; negative if the target is on the shortlist.
        numbers = (targets - listed).div(GROUP, rounding_mode="floor")
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
    ) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        by_states, by_head, by_groups = ctx.saved_tensors
        return gradient * by_states, gradient * by_head, gradient * by_groups, None, None, None


def _find_losses(
    states: Tensor, head: Tensor, targets: Tensor, softcap: float, learn: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the losses (N,), and the gradients of their sum with respect to states and head.

    Without `learn`, the gradients are None.
    """
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
    """Return the losses (N,), and their gradients with respect to the uncapped logits (N, vocab).

    Without `learn`, ignore the second result.
    """
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
