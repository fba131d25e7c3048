"""What a run is made of: one frozen set of settings, from a file and from flags.

A run's folder holds it as `config.json`; `settings.py` reads it from files.
"""

from __future__ import annotations

import math
import types
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tokenmill.errors import UsageError

__all__ = ["Config"]

_CALLED = {bool: "true or false", int: "a whole number", float: "a number"}
_AT_LEAST = {
    1: "layers heads kv_heads width seq_len batch_tokens micro_batch max_steps log_every keep "
    "val_tokens",
    0: "softcap warmup_steps learning_rate matrix_learning_rate weight_decay clip seed val_every "
    "sample_every sample_tokens checkpoint_every",
}
_FRACTIONS = "decay_fraction beta1 beta2 mask_fraction noise_fraction fim_fraction"


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of a run: the model, the batch, the optimiser, and when to look at it.

    >>> config = Config(layers=2, heads=2, width=64, seq_len=128, batch_tokens=1024)
    >>> config.batch_rows
    8

    Parameters
    ----------
    layers, heads, kv_heads, width, seq_len
        The model's shape; kv_heads None: as many as heads.
    softcap
        Logits stay between -softcap and softcap; 0: no cap.
    within_documents
        Whether attention stays inside documents.
    batch_tokens
        The tokens of one step, over all ranks and micro-batches.
    micro_batch
        The rows that a device takes at once; None: about 16,384 tokens.
    max_steps, warmup_steps, decay_fraction
        The learning rate rises over the first steps, stays, and falls to 0 over the last fraction.
    optimizer
        muon (for matrices; the rest has AdamW) or adamw (for all).
    learning_rate, matrix_learning_rate
        Of AdamW and of Muon.
    beta1, beta2, weight_decay, clip
        AdamW's, both optimisers' and the largest norm of the gradient; clip 0: no limit.
    dtype, compile
        auto: bfloat16 and compiled on GPUs, float32 and not compiled elsewhere.
    seed
        Another seed: other first values, another order of rows, other augmentation.
    mask_fraction, noise_fraction, fim_fraction
        Augmentation: inputs replaced by the end-of-text id or by random ids, rows rearranged for
        fill-in-the-middle.
    log_every, val_every, sample_every, checkpoint_every
        In steps; 0: never, but for the last step.
    val_tokens, sample_tokens
        How much is validated on, and how long samples are.
    keep
        The newest checkpoints that are kept, besides the best.
    """

    layers: int = 12
    heads: int = 12
    kv_heads: int | None = None
    width: int = 768
    seq_len: int = 1024
    softcap: float = 15.0
    within_documents: bool = False

    batch_tokens: int = 524_288
    micro_batch: int | None = None
    max_steps: int = 5_000
    warmup_steps: int = 100
    decay_fraction: float = 0.3
    optimizer: Literal["muon", "adamw"] = "muon"
    learning_rate: float = 3e-3
    matrix_learning_rate: float = 3e-3
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip: float = 1.0
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    seed: int = 42

    mask_fraction: float = 0.0
    noise_fraction: float = 0.0
    fim_fraction: float = 0.0

    log_every: int = 10
    val_every: int = 250
    val_tokens: int = 1_048_576
    sample_every: int = 0
    sample_tokens: int = 64
    checkpoint_every: int = 250
    keep: int = 2

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            _check_kind(name, getattr(self, name), kind)
        for least, names in _AT_LEAST.items():
            for name in names.split():
                if (value := getattr(self, name)) is not None and not value >= least:
                    raise UsageError(f"`{name}` is {value}; it must be at least {least}.")
                if value == math.inf:
                    raise UsageError(f"`{name}` is {value}; it must be finite.")
        for name in _FRACTIONS.split():
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise UsageError(f"`{name}` is {value}; it must be from 0 to 1.")
        for name in ("beta1", "beta2"):
            if getattr(self, name) == 1:
                raise UsageError(f"`{name}` is 1; it must be below that, or nothing is learned.")
        if self.seed >= 1 << 64:
            raise UsageError(f"`seed` is {self.seed}; it must be below 2**64.")
        if self.batch_tokens % self.seq_len:
            raise UsageError(
                f"`batch_tokens` is {self.batch_tokens:,}, which is not a multiple of `seq_len`, "
                f"{self.seq_len:,}; try {-(-self.batch_tokens // self.seq_len) * self.seq_len:,}."
            )
        if self.within_documents and self.fim_fraction:
            raise UsageError(
                "`within_documents=True` and `fim_fraction` exclude each other: rearranging a row moves "
                "its documents. Use `fim_fraction=0` or `within_documents=False`."
            )

    @property
    def batch_rows(self) -> int:
        """The rows of one step, over all ranks."""
        return self.batch_tokens // self.seq_len

    def scale(self, step: int) -> float:
        """The share of the learning rates that a step uses: warm-up, stable, linear decay.

        >>> config = Config(max_steps=10, warmup_steps=2, decay_fraction=0.5)
        >>> [round(config.scale(step), 2) for step in range(10)]
        [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
        """
        rising = (step + 1) / self.warmup_steps if self.warmup_steps else 1.0
        falling = self.decay_fraction * self.max_steps
        left = (self.max_steps - step) / falling if falling else 1.0
        return max(0.0, min(1.0, rising, left))


def _check_kind(name: str, value: Any, kind: Any) -> None:
    """Raise `UsageError` unless a setting is of its kind."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            allowed = ", ".join(get_args(kind))
            raise UsageError(f"`{name}` is {value!r}; it must be one of {allowed}.")
        return
    if get_origin(kind) is types.UnionType:  # a whole number or None
        if value is None:
            return
        kind = get_args(kind)[0]
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
        raise UsageError(f"`{name}` is {value!r}; it must be {_CALLED[kind]}.")
