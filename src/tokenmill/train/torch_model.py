"""The model of `model.py` in PyTorch.

Parameters are float32 and have the names of `model.py`. What may be computed in bfloat16 is left to
autocast; the residual stream, norms, logits and losses are float32 in any case.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tokenmill.train.model import EPSILON, Arrays, Shape, rotation

__all__ = ["Model", "document_mask"]


class Model(nn.Module):
    """A GPT; see `model.py` for its mathematics."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.empty(shape.vocab, shape.width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.head = nn.Parameter(torch.empty(shape.vocab, shape.width))
        cosines, sines = rotation(shape, shape.seq_len)
        self.register_buffer("cosines", torch.tensor(cosines)[:, None], persistent=False)
        self.register_buffer("sines", torch.tensor(sines)[:, None], persistent=False)

    def forward(self, ids: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss of each target (B, T), float32; `mask` is that of `document_mask`."""
        logits = self.logits(self.states(ids, mask))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(
            targets.shape
        )

    def states(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """What the head reads (B, T, width)."""
        length = ids.shape[1]
        turn = self.cosines[:length], self.sines[:length]
        x = norm(F.embedding(ids, self.embedding))
        for block in self.blocks:
            x = block(x, turn, mask)
        return norm(x)

    def logits(self, states: Tensor) -> Tensor:
        """The logits (..., vocab) of what follows, float32."""
        logits = F.linear(states, self.head).float()
        cap = self.shape.softcap
        return cap * torch.tanh(logits / cap) if cap > 0 else logits

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
        return x + self.mlp(norm(x))


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
        # One product instead of three: the weights are small beside the activations.
        joined = F.linear(x, torch.cat([self.query, self.key, self.value]))
        heads = joined.unflatten(2, (-1, self.head))
        turned = norm(rotate(heads[:, :, : self.heads + self.kv_heads], turn))
        q = turned[:, :, : self.heads].transpose(1, 2)
        k = turned[:, :, self.heads :].transpose(1, 2)
        v = heads[:, :, self.heads + self.kv_heads :].transpose(1, 2)
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
        return F.linear(F.relu(F.linear(x, self.up)).square(), self.down)


def norm(x: Tensor) -> Tensor:
    """RMSNorm without gains, in float32."""
    return F.rms_norm(x.float(), (x.shape[-1],), eps=EPSILON)


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs of each head (..., T, heads, head) by the angles of their places."""
    cosines, sines = turn
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cosines + second * sines, second * cosines - first * sines], -1)


def document_mask(documents: Tensor) -> Tensor:
    """Which places see which (B, 1, T, T): those before them in their own document (B, T).

    >>> document_mask(torch.tensor([[0, 0, 1]]))[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]
