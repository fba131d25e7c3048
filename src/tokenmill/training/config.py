"""The settings of a run, as one frozen dataclass that checks its values.

Every number has a range, so an absurd value is an error before anything is allocated. A run saves
its settings in its folder, as `config.json`. `config_file.py` reads settings from files.
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
Layers = Annotated[int, Meta(ge=1, le=4096)]  # also for heads
Width = Annotated[int, Meta(ge=1, le=1 << 20)]
Ids = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]  # loaders make int32
RowLength = Annotated[int, Meta(ge=1, le=1 << 20)]
StepTokens = Annotated[int, Meta(ge=1, le=1 << 28)]
Steps = Annotated[int, Meta(ge=0, le=MOST_STEPS)]
Positive = Annotated[int, Meta(ge=1, le=MOST_STEPS)]
Number = Annotated[float, Meta(ge=0, le=1e30)]  # fits in float32
Fraction = Annotated[float, Meta(ge=0, le=1)]
Decay = Annotated[float, Meta(ge=0, lt=1)]  # at 1, gradients would have no effect


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of a run: model, batch, optimizer, and when to log, validate and save.

    >>> config = Config(layers=2, heads=2, width=64, seq_len=128, batch_tokens=1024)
    >>> config.batch_rows
    8

    Parameters
    ----------
    layers
        Number of transformer blocks.
    heads
        Number of attention heads per block.
    kv_heads
        Number of key and value heads per block. By default, the same as `heads`.
    width
        Width of the model: length of the vector of each token.
    embedding_width
        Width of the embedding and the output head, if smaller than `width`. 0 means the same as
        `width`.
    shortlist
        Number of ids, counted from id 0, that the model predicts in one step. In BPE vocabularies,
        the lowest ids are the most frequent. The model predicts any other id in two steps: first a
        group of 1,024 ids, then an id of that group. A shortlist makes training much faster if the
        model is small and the vocabulary large. 0 means one softmax over all ids.
    seq_len
        Tokens per row. Also the context length of the model.
    softcap
        Limit of the logits: they stay between -softcap and softcap. 0 means no limit.
    within_documents
        Limit attention to tokens of the same document.
    batch_tokens
        Tokens per step, summed over all ranks and micro-batches.
    micro_batch
        Maximum number of rows that a device processes at once. By default, 16,384 / `seq_len` rows.
        CPUs may process fewer.
    max_steps
        Number of training steps.
    warmup_steps
        Number of steps, at the start of the run, over which the learning rate rises.
    decay_fraction
        Share of the steps, at the end of the run, over which the learning rate falls to 0.
    optimizer
        Optimizer: muon (Muon for the matrices, AdamW for all other weights) or adamw (AdamW for all
        weights).
    learning_rate
        Learning rate of AdamW.
    matrix_learning_rate
        Learning rate of Muon.
    beta1
        Decay rate of AdamW's running mean of the gradient.
    beta2
        Decay rate of AdamW's running mean of the squared gradient.
    weight_decay
        Weight decay of AdamW and Muon.
    clip
        Maximum norm of the gradient. Larger gradients are scaled down. 0 means no limit.
    dtype
        Number format of the computation. auto means bfloat16 on GPUs and float32 elsewhere.
    compile
        Whether PyTorch compiles the model. auto means on for GPUs and off elsewhere.
    order
        Order of the rows: shuffled, or blocks for storage that reads neighbouring rows faster.
    seed
        Seed of the initial weights, the order of the rows and the augmentation.
    mask_fraction
        Share of the input tokens to replace with the end-of-text id.
    noise_fraction
        Share of the input tokens to replace with random ids.
    fim_fraction
        Share of the rows to rearrange for fill-in-the-middle training.
    log_every
        Steps between lines of metrics. If steps are slow, lines are printed more often.
    val_every
        Steps between validations. 0 means one validation, after the last step.
    val_tokens
        Tokens per validation. By default, one eighth of the tokens that the run trains on between
        two validations, up to 1,048,576.
    sample_every
        Steps between generated samples. 0 means one sample, after the last step.
    sample_tokens
        Tokens per generated sample. 0 means no samples.
    checkpoint_every
        Steps between checkpoints. 0 means one checkpoint, after the last step.
    keep
        Number of newest checkpoints to keep. The best checkpoint is also kept.
    rank_timeout
        Seconds that a rank waits for the other ranks before stopping with an error. Must be longer
        than the time to write a checkpoint.
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
    order: Literal["shuffled", "blocks"] = "shuffled"
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
                f"`batch_tokens` is {self.batch_tokens:,}, which is not a multiple of `seq_len` "
                f"({self.seq_len:,}); try {-(-self.batch_tokens // self.seq_len) * self.seq_len:,}."
            )
        if self.within_documents and self.fim_fraction:
            raise UsageError(
                "`within_documents=True` and `fim_fraction` cannot be combined: rearranging a row moves "
                "its documents. Use `fim_fraction=0` or `within_documents=False`."
            )

    @property
    def validation_tokens(self) -> int:
        """The number of tokens per validation: `val_tokens` or, if that is None, a default.

        The default is one eighth of the tokens that the run trains on between two validations, but
        at most 1,048,576 and at least one row. With it, validation takes less than a twentieth of
        the run's time.

        >>> Config().validation_tokens, Config(max_steps=20, batch_tokens=1024).validation_tokens
        (1048576, 2560)
        """
        if self.val_tokens is not None:
            return self.val_tokens
        steps = min(self.val_every or self.max_steps, self.max_steps)
        return max(self.seq_len, min(1 << 20, steps * self.batch_tokens // 8))

    @property
    def batch_rows(self) -> int:
        """The number of rows in one step, over all ranks."""
        return self.batch_tokens // self.seq_len

    def find_due(self, step: int) -> dict[str, bool]:
        """Return whether a metrics line, validation, sample and checkpoint are due after a step.

        After the last step, all of them are due.

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
        """Return the factor by which learning rates are multiplied at a step.

        Over a run, the factor rises to 1, stays there, and then falls towards 0.

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
        except UnicodeEncodeError:
            expected = "it contains a character that is not valid Unicode"
        except msgspec.ValidationError as error:
            expected = str(error).replace("`", "").replace("| null", "or None")
            expected = f"{expected[0].lower()}{expected[1:]}"
            if get_origin(kind) is Literal:
                expected = f"expected {' or '.join(get_args(kind))}"
            elif ", got " not in expected:
                expected = f"it must be {_describe_range(kind)}"
    if expected:
        raise UsageError(f"`{name}` is {brief(value)}; {expected}.")


def _describe_range(kind: Any) -> str:
    """Describe the range of an annotated number in words.

    >>> _describe_range(Layers | None), _describe_range(Decay)
    ('between 1 and 4,096', '0 or more, and below 1')
    """
    parts = (kind, *get_args(kind))
    meta = next(meta for part in parts for meta in getattr(part, "__metadata__", ()))
    if meta.le is not None:
        return f"between {meta.ge:,} and {meta.le:,}"
    return f"{meta.ge:,} or more, and below {meta.lt:,}"
