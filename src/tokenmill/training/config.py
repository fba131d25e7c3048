"""The settings of a run, as one frozen dataclass that checks its values.

Every number has a range, so an absurd value is an error before anything is allocated. A run's
folder holds the settings as `config.json`; `config_file.py` reads them from files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from tokenmill.errors import UsageError
from tokenmill.wording import brief

MOST_STEPS = 10**12
Layers = Annotated[int, Meta(ge=1, le=4096)]  # or heads
Width = Annotated[int, Meta(ge=1, le=1 << 20)]
Ids = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]  # loaders make int32
RowLength = Annotated[int, Meta(ge=1, le=1 << 20)]
StepTokens = Annotated[int, Meta(ge=1, le=1 << 28)]
Steps = Annotated[int, Meta(ge=0, le=MOST_STEPS)]
Positive = Annotated[int, Meta(ge=1, le=MOST_STEPS)]
Number = Annotated[float, Meta(ge=0, le=1e30)]  # fits in float32
Fraction = Annotated[float, Meta(ge=0, le=1)]
Decay = Annotated[float, Meta(ge=0, lt=1)]  # at 1, nothing is learned


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of a run: the model, the batch, the optimiser, and when to log, validate and save.

    >>> config = Config(layers=2, heads=2, width=64, seq_len=128, batch_tokens=1024)
    >>> config.batch_rows
    8

    Parameters
    ----------
    layers
        Number of transformer blocks.
    heads
        Attention heads per block.
    kv_heads
        Heads for keys and values; by default as many as `heads`.
    width
        Width of the model: numbers per token.
    embedding_width
        Width of the embedding and the head, if narrower than the model; 0 is `width`.
    shortlist
        This many of the first ids, the most frequent ones, share one softmax; the others are in
        groups of 1,024 with a second softmax. Much faster for a large vocabulary and a small model.
        0 is one softmax over all ids.
    seq_len
        Tokens per row: the context length of the model.
    softcap
        Logits stay between -softcap and softcap; 0 means no cap.
    within_documents
        Keep attention inside documents.
    batch_tokens
        Tokens per step, over all ranks and micro-batches.
    micro_batch
        Rows that a device processes at once; by default about 16,384 tokens, and fewer on CPUs.
    max_steps
        Number of steps.
    warmup_steps
        Steps over which the learning rate rises.
    decay_fraction
        Share of the steps, at the end, over which the learning rate falls to 0.
    optimizer
        muon (for the matrices, with AdamW for the rest) or adamw (for everything).
    learning_rate
        Learning rate of AdamW.
    matrix_learning_rate
        Learning rate of Muon.
    beta1
        AdamW's decay of the mean gradient.
    beta2
        AdamW's decay of the mean squared gradient.
    weight_decay
        Weight decay of both optimisers.
    clip
        Largest norm of the gradient; 0 means no limit.
    dtype
        Number format of the computation; auto is bfloat16 on GPUs and float32 elsewhere.
    compile
        Whether PyTorch compiles the model; auto is on for GPUs only.
    seed
        Seed of the initial weights, the order of rows and augmentation.
    mask_fraction
        Share of the inputs to replace with the end-of-text id.
    noise_fraction
        Share of the inputs to replace with random ids.
    fim_fraction
        Share of the rows to rearrange for fill-in-the-middle.
    log_every
        Steps between lines of metrics; slow steps show more lines.
    val_every
        Steps between validations; 0 validates after the last step only.
    val_tokens
        Tokens per validation; by default an eighth of the tokens trained on since the last
        validation, at most 1,048,576.
    sample_every
        Steps between samples; 0 generates one after the last step only.
    sample_tokens
        Tokens per sample; 0 generates none.
    checkpoint_every
        Steps between checkpoints; 0 writes one after the last step only.
    keep
        How many of the newest checkpoints to keep, besides the best.
    rank_timeout
        Seconds that a rank waits for the others before it ends with an error. Writing a checkpoint
        must take less.
    """

    layers: Layers = 12
    heads: Layers = 12
    kv_heads: Layers | None = None
    width: Width = 768
    embedding_width: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    shortlist: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] = 0
    seq_len: RowLength = 1024
    softcap: Number = 15.0
    within_documents: bool = False

    batch_tokens: StepTokens = 524_288
    micro_batch: StepTokens | None = None
    max_steps: Positive = 5_000
    warmup_steps: Steps = 100
    decay_fraction: Fraction = 0.3
    optimizer: Literal["muon", "adamw"] = "muon"
    learning_rate: Number = 3e-3
    matrix_learning_rate: Number = 3e-3
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    weight_decay: Number = 0.1
    clip: Number = 1.0
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    seed: int = 42

    mask_fraction: Fraction = 0.0
    noise_fraction: Fraction = 0.0
    fim_fraction: Fraction = 0.0

    log_every: Positive = 10
    val_every: Steps = 250
    val_tokens: Positive | None = None
    sample_every: Steps = 0
    sample_tokens: Annotated[int, Meta(ge=0, le=1 << 20)] = 64
    checkpoint_every: Steps = 250
    keep: Positive = 2
    rank_timeout: Annotated[float, Meta(ge=1, le=7 * 24 * 3600)] = 600.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.seed < 1 << 64:  # msgspec has no bounds beyond 2**63
            raise UsageError(
                f"`seed` is {brief(self.seed)}; it must be 0 or more, and below 2**64."
            )
        if self.batch_tokens % self.seq_len:
            raise UsageError(
                f"`batch_tokens` is {self.batch_tokens:,}, which is not a multiple of `seq_len`, "
                f"{self.seq_len:,}; try {-(-self.batch_tokens // self.seq_len) * self.seq_len:,}."
            )
        if self.within_documents and self.fim_fraction:
            raise UsageError(
                "`within_documents=True` and `fim_fraction` cannot be combined: rearranging a row moves "
                "its documents. Use `fim_fraction=0` or `within_documents=False`."
            )

    @property
    def validation_tokens(self) -> int:
        """How many tokens a validation uses.

        The default is an eighth of the tokens trained on since the last validation, at most
        1,048,576. Validation then takes less than a twentieth of the time.

        >>> Config().validation_tokens, Config(max_steps=20, batch_tokens=1024).validation_tokens
        (1048576, 2560)
        """
        if self.val_tokens is not None:
            return self.val_tokens
        steps = min(self.val_every or self.max_steps, self.max_steps)
        return max(self.seq_len, min(1 << 20, steps * self.batch_tokens // 8))

    @property
    def batch_rows(self) -> int:
        """The rows of one step, over all ranks."""
        return self.batch_tokens // self.seq_len

    def find_due(self, step: int) -> dict[str, bool]:
        """Which of line, validation, sample and checkpoint are due after a number of steps.

        >>> Config(val_every=0).find_due(250)
        {'line': True, 'validation': False, 'sample': False, 'checkpoint': True}
        """
        every = {
            "line": self.log_every,
            "validation": self.val_every,
            "sample": self.sample_every,
            "checkpoint": self.checkpoint_every,
        }
        last = step == self.max_steps
        return {name: last or (n > 0 and step % n == 0) for name, n in every.items()}

    def scale(self, step: int) -> float:
        """The share of the peak learning rates that a step uses: warm-up, stable, linear decay.

        >>> config = Config(max_steps=10, warmup_steps=2, decay_fraction=0.5)
        >>> [round(config.scale(step), 2) for step in range(10)]
        [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
        """
        rising = (step + 1) / self.warmup_steps if self.warmup_steps else 1.0
        falling = self.decay_fraction * self.max_steps
        left = (self.max_steps - step) / falling if falling else 1.0
        return max(0.0, min(1.0, rising, left))


def check_fields(settings: Any) -> None:
    """Raise `UsageError` if a field of a dataclass has the wrong type or is out of range."""
    for name, kind in get_type_hints(type(settings), include_extras=True).items():
        check_value(name, getattr(settings, name), kind)


def check_value(name: str, value: object, kind: object) -> None:
    """Raise `UsageError` if a value has the wrong type or is out of range.

    >>> check_value("layers", 10**9, Layers)
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: `layers` is 1000000000; it must be between 1 and 4,096.
    """
    expected = ""
    if isinstance(value, float) and not math.isfinite(value):
        expected = "it must be finite"
    else:
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            expected = str(error).replace("`", "").replace("| null", "or None")
            expected = f"{expected[0].lower()}{expected[1:]}"
            if get_origin(kind) is Literal:
                expected = f"expected {' or '.join(get_args(kind))}"
            elif ", got " not in expected:
                expected = f"it must be {_describe_range(kind)}"
    if expected:
        raise UsageError(f"`{name}` is {brief(value)}; {expected}.")


def _describe_range(kind: Any) -> str:
    """The range of an annotated number, in words.

    >>> _describe_range(Layers | None), _describe_range(Decay)
    ('between 1 and 4,096', '0 or more, and below 1')
    """
    parts = (kind, *get_args(kind))
    meta = next(meta for part in parts for meta in getattr(part, "__metadata__", ()))
    if meta.le is not None:
        return f"between {meta.ge:,} and {meta.le:,}"
    return f"{meta.ge:,} or more, and below {meta.lt:,}"
