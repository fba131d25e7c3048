"""The model, independent of any framework: its shape, its parameters, and their initial values.

A modern GPT: rotary positions, RMSNorm without gains (before attention, before the MLP, and on
queries and keys), a ReLU² MLP, optional grouped queries, a separate output head, soft-capped
logits, and output projections that start at zero, so that every block starts as the identity.

Guarantees: a parameter has the same name, shape and meaning in PyTorch and in JAX, so each
framework can load the other's checkpoints. NumPy makes the initial values from the seed alone, so
every backend, rank and machine starts with the same bits.

The parameters, where head in a shape is width / heads, the width of an attention head:

    embedding                 (vocab, width)
    blocks.N.attention.query  (heads * head, width)       a linear map is y = x @ W.T
    blocks.N.attention.key    (kv_heads * head, width)
    blocks.N.attention.value  (kv_heads * head, width)
    blocks.N.attention.out    (width, heads * head)
    blocks.N.mlp.up           (4 * width, width)
    blocks.N.mlp.down         (width, 4 * width)
    head                      (vocab, width)

Small models with large vocabularies may have more parameters. If `embedding_width` > 0, inner is
`embedding_width`, and the embedding and the head are (vocab, inner). Otherwise, inner is `width`.

    embedding_up              (width, inner)              if embedding_width > 0
    head_down                 (inner, width)              if embedding_width > 0
    groups                    (groups, inner)             if 0 < shortlist < vocab

Forward, for ids (B, T):

    x = norm(embedding[ids])                              or norm(embedding[ids] @ embedding_up.T)
    for each block:
        h = norm(x)
        q, k, v = h @ query.T, h @ key.T, h @ value.T     split into heads
        q, k = norm(rotate(q)), norm(rotate(k))           norm over each head
        x = x + attention(q, k, v) @ out.T                causal, scale 1 / sqrt(head)
        x = x + relu(norm(x) @ up.T)² @ down.T
    s = norm(x)                                           or norm(norm(x) @ head_down.T)
    logits = s @ head.T                                   in float32 from here on
    logits = softcap * tanh(logits / softcap)             where softcap > 0

With a shortlist, only the ids below `shortlist` are chosen directly. The other ids are in groups of
GROUP consecutive ids. A first softmax chooses one of the ids below `shortlist`, or a group; then a
second softmax chooses an id of that group. The logits of groups are s @ groups.T, capped like the
others. The first line is for ids below `shortlist`, the second for an id in group g:

    log p(id) = log softmax([logits[:shortlist], group_logits])[id]
    log p(id) = log softmax([...])[shortlist + g] + log softmax(logits of group g)[id]

The functions used above, with half = head / 2, and t the position of the token:

    norm(x) = x / sqrt(mean(x²) + EPSILON) over the last axis
    rotate(x): for i in 0 .. half - 1, with a = t / rope_base^(i / half):
        (x[i], x[i + half]) → (x[i] cos a + x[i + half] sin a, -x[i] sin a + x[i + half] cos a)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from tokenmill.errors import StateError, UsageError
from tokenmill.preparation.memory import machine_memory
from tokenmill.training.config import Config, Ids, Layers, Number, RowLength, Width, check_fields
from tokenmill.wording import size as bytes_in_words

EPSILON = 1e-6
GROUP = 1024  # ids per group, if the model has a shortlist
MARKERS = 3  # for fill-in-the-middle: PREFIX, SUFFIX and MIDDLE, the ids after the vocabulary
_MULTIPLE = 64  # vocabularies are padded to a multiple of this, which suits matrix units

Arrays = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of a model. A checkpoint can only be loaded into a model of the same shape.

    >>> shape = Shape(vocab=256, layers=2, heads=4, kv_heads=2, width=64, seq_len=128)
    >>> shape.head, count_parameters(shape)
    (16, 122880)
    """

    vocab: Ids
    layers: Layers
    heads: Layers
    kv_heads: Layers
    width: Width
    seq_len: RowLength
    softcap: Number = 15.0
    rope_base: Annotated[float, Meta(ge=1, le=1e12)] = 10_000.0
    embedding_width: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    shortlist: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.width % (2 * self.heads):
            raise UsageError(
                f"`width` is {self.width} and `heads` is {self.heads}; `width` must be a multiple of 2 * "
                "`heads`, because rotary positions rotate pairs of numbers."
            )
        if self.heads % self.kv_heads:
            raise UsageError(
                f"`heads` is {self.heads} and `kv_heads` is {self.kv_heads}; `heads` must be a multiple of "
                "`kv_heads`, because each key and value serves the same number of queries."
            )

    @property
    def inner(self) -> int:
        """The width of the embedding and of the output head."""
        return self.embedding_width or self.width

    @property
    def groups(self) -> int:
        """How many groups the ids outside the shortlist form; 0 without a shortlist."""
        return -(-(self.vocab - self.shortlist) // GROUP) if self.has_groups else 0

    @property
    def has_groups(self) -> bool:
        """Whether the model predicts some ids in two steps: first a group, then an id in the group.

        False if the shortlist is 0 or includes all ids.
        """
        return 0 < self.shortlist < self.vocab

    @property
    def head(self) -> int:
        """The width of one attention head."""
        return self.width // self.heads


def make_shape(vocab: int, config: Config) -> Shape:
    """Return the shape of a run's model, with a padded vocabulary.

    >>> make_shape(50_257, Config()).vocab
    50304
    """
    return Shape(
        vocab=padded_vocab(vocab, config),
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads or config.heads,
        width=config.width,
        seq_len=config.seq_len,
        softcap=config.softcap,
        embedding_width=config.embedding_width,
        shortlist=config.shortlist,
    )


def padded_vocab(vocab: int, config: Config) -> int:
    """Return the size of the model's vocabulary: the tokenizer's size, padded to a multiple of 64.

    If fill-in-the-middle is used, its markers are added before padding.

    >>> padded_vocab(50_257, Config())
    50304
    >>> padded_vocab(256, Config()), padded_vocab(256, Config(fim_fraction=0.5))
    (256, 320)
    """
    needed = vocab + (MARKERS if config.fim_fraction else 0)
    return -(-needed // _MULTIPLE) * _MULTIPLE


def parameter_shapes(shape: Shape) -> dict[str, tuple[int, int]]:
    """Return the shapes of the parameters by name. `first_values` draws values in this order."""
    width, keys = shape.width, shape.kv_heads * shape.head
    shapes = {"embedding": (shape.vocab, shape.inner)}
    if shape.embedding_width:
        shapes |= {"embedding_up": (width, shape.inner), "head_down": (shape.inner, width)}
    for n in range(shape.layers):
        shapes |= {
            f"blocks.{n}.attention.query": (width, width),
            f"blocks.{n}.attention.key": (keys, width),
            f"blocks.{n}.attention.value": (keys, width),
            f"blocks.{n}.attention.out": (width, width),
            f"blocks.{n}.mlp.up": (4 * width, width),
            f"blocks.{n}.mlp.down": (width, 4 * width),
        }
    if shape.has_groups:
        shapes["groups"] = (shape.groups, shape.inner)
    return shapes | {"head": (shape.vocab, shape.inner)}


def optimizer_shapes(shape: Shape, optimizer: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the optimizer's state by name; see `Backend.optimizer_state`.

    >>> shape = Shape(vocab=64, layers=1, heads=1, kv_heads=1, width=8, seq_len=16)
    >>> sizes = optimizer_shapes(shape, "muon")
    >>> len(sizes), sizes["head.step"], sizes["blocks.0.mlp.up.momentum_buffer"]
    (12, (), (32, 8))
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, size in parameter_shapes(shape).items():
        if optimizer == "muon" and is_matrix(name):
            shapes[f"{name}.momentum_buffer"] = size
        else:
            shapes |= {f"{name}.step": (), f"{name}.exp_avg": size, f"{name}.exp_avg_sq": size}
    return shapes


def check_memory(shape: Shape) -> None:
    """Raise `UsageError` if the weights alone do not fit in the memory of this machine."""
    parameters, memory = count_parameters(shape), machine_memory()
    needed = 4 * (parameters + shape.seq_len * shape.head)  # including the table of rotary angles
    if memory and needed > memory:
        raise UsageError(
            f"The model has {parameters:,} parameters, which take {bytes_in_words(needed)} or more, but "
            f"this machine has {bytes_in_words(memory)} of memory. `layers` is {shape.layers:,}, `width` "
            f"{shape.width:,}, `heads` {shape.heads:,}, `seq_len` {shape.seq_len:,} and the vocabulary "
            f"{shape.vocab:,}; lower one of these."
        )


def is_matrix(name: str) -> bool:
    """Return whether a parameter is a matrix inside a block. Muon updates only such parameters."""
    return name.startswith("blocks.")


def count_parameters(shape: Shape) -> int:
    """Return the number of parameters of a model."""
    return sum(rows * columns for rows, columns in parameter_shapes(shape).values())


def count_operations(shape: Shape) -> float:
    """Return the floating-point operations per training token.

    These are 6 for each parameter outside the embedding, plus attention over the whole row. With a
    shortlist, the head counts only with the shortlist and one group.

    >>> count_operations(Shape(vocab=64, layers=1, heads=1, kv_heads=1, width=8, seq_len=16)) / 6
    1536.0
    """
    matrices = count_parameters(shape) - shape.vocab * shape.inner
    if shape.has_groups:  # at most one group is computed per target
        matrices -= (shape.vocab - shape.shortlist - GROUP) * shape.inner
    return 6.0 * matrices + 12.0 * shape.layers * shape.width * shape.seq_len


def first_values(shape: Shape, seed: int) -> Arrays:
    """Return the initial parameters.

    The embedding is normal with standard deviation 1. The output projections (`attention.out` and
    `mlp.down`), the head and `groups` are zero. All other matrices are normal with standard
    deviation 1/sqrt(columns).
    """
    random = np.random.Generator(np.random.Philox(key=[seed, 0]))
    values: Arrays = {}
    for name, size in parameter_shapes(shape).items():
        if name.endswith((".out", ".down")) or name in ("head", "groups"):
            values[name] = np.zeros(size, np.float32)
        else:
            values[name] = random.standard_normal(size, np.float32)
            if name != "embedding":
                values[name] *= np.float32(1 / math.sqrt(size[1]))
    return values


def check_values(shape: Shape, values: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Raise `StateError` unless `values` are the parameters of a model of this shape."""
    expected = parameter_shapes(shape)
    there = {name: tuple(value.shape) for name, value in values.items()}
    if there == expected:
        return
    name = next(name for name in [*expected, *there] if expected.get(name) != there.get(name))
    raise StateError(
        f"parameter {name} is {there.get(name, 'missing')} in the checkpoint and "
        f"{expected.get(name, 'unknown')} in the model; use the settings of the run that wrote the "
        "checkpoint."
    )


def rotation(shape: Shape, length: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the cosines and sines of the rotary angles, each (length, head / 2)."""
    steps = np.arange(0, shape.head, 2, dtype=np.float64) / shape.head
    angles = np.outer(np.arange(length, dtype=np.float64), shape.rope_base**-steps)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
