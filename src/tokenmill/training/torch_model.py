"""The model of `model.py` in PyTorch.

Parameters are float32 and have the names of `model.py`. What may be computed in bfloat16 is left to
autocast; the residual stream, norms, logits and losses are float32 in any case.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tokenmill.training.model import GROUP, Arrays, Shape, is_matrix, parameter_shapes, rotation
from tokenmill.training.torch_functions import (
    capped_losses,
    grouped_losses,
    norm,
    rotate_and_norm,
    squared_relu,
)


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
        # No buffers, which ranks would send each other before each step.
        self.cosines = torch.tensor(cosines, device=device)[:, None]
        self.sines = torch.tensor(sines, device=device)[:, None]

    def forward(
        self, ids: Tensor, targets: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The sum of the losses of targets (B, T), to be differentiated, and each of them, to be
        looked at; float32. `mask` is that of `document_mask`."""
        states = self.states(ids, mask).flatten(0, 1)
        places = targets.flatten()
        if states.is_cpu and not torch.is_autocast_enabled("cpu"):
            if self.shape.has_groups:
                total, losses = grouped_losses(states, self.head, self.groups, places, self.shape)
            else:
                total, losses = capped_losses(states, self.head, places, self.shape.softcap)
        else:  # compilers make as few passes of the plain form
            losses = F.cross_entropy(self.logits(states), places, reduction="none")
            total = losses.sum()
        return total, losses.detach().view(targets.shape)

    def states(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """The input of the head (B, T, inner)."""
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
        """The logits (..., vocab) of the next id, float32; log-probabilities if there is a
        shortlist."""
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
        """Take these values, which fit."""
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
    """Causal attention, inside documents where there is a mask."""

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
        if grouped and mask is not None:  # CUDA has no fast kernel for both
            k, v = (kept.repeat_interleave(self.heads // self.kv_heads, 1) for kept in (k, v))
            grouped = False
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
        )
        return F.linear(y.transpose(1, 2).flatten(2), self.out)


class MLP(nn.Module):
    """Two maps with a squared ReLU between them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(4 * shape.width, shape.width))
        self.down = nn.Parameter(torch.empty(shape.width, 4 * shape.width))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(squared_relu(F.linear(x, self.up)), self.down)


def document_mask(documents: Tensor) -> Tensor:
    """Which places see which (B, 1, T, T): those before them in their own document (B, T).

    >>> document_mask(torch.tensor([[0, 0, 1]]))[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]
