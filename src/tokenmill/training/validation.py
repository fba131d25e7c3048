"""The validation loss of a model, over the same rows in every run on the same data.

The rows are the beginning of the validation set, in order: `Config.validation_tokens` tokens, or
all if there are fewer. The ranks share these rows. Bits per byte allow comparing models with
different tokenizers. They are the sum of the losses in bits over all targets that are text, divided
by the bytes of that text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.load.loader import Loader
from tokenmill.store.tokens import Tokens
from tokenmill.tokenizers import Tokenizer
from tokenmill.training.augment import check_ids
from tokenmill.training.backend import Backend, Pause, StepRows, never
from tokenmill.training.config import Config
from tokenmill.training.data import RunData

_TOKENS_AT_ONCE = 16_384


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The mean loss in nats per token, and in bits per byte of text if the tokenizer is known."""

    loss: float
    bits_per_byte: float | None


class Validator:
    """The validation set of a run. `run` evaluates it and can be called again."""

    def __init__(self, data: RunData, val: Tokens, config: Config, backend: Backend) -> None:
        self.backend = backend
        self.vocab = data.vocab
        rows = max(1, min(config.validation_tokens, len(val) - 1) // config.seq_len)
        at_once = min(rows, config.micro_batch or max(1, _TOKENS_AT_ONCE // config.seq_len))
        at_once = min(at_once, backend.rows_at_once)
        self._batches = -(-rows // (at_once * backend.world_size))
        self._loader = Loader(
            val,
            batch_size=at_once,
            seq_len=config.seq_len,
            order="sequential",
            rank=backend.rank,
            world_size=backend.world_size,
            dtype=np.int32,
            documents=config.within_documents,
            limit_rows=rows,
        )
        self._bytes = bytes_per_token(data.tokenizer, data.vocab) if data.tokenizer else None
        self.close = self._loader.close

    def run(self, pause: Pause = never) -> Validation | None:
        """Evaluate the validation set. Returns None if `pause` asks to stop on any rank.

        A collective call.
        """
        sums = np.zeros(4)  # nats, targets, nats of text, bytes of text
        for number, batch in enumerate(self._loader):
            if self.backend.agree(pause(number, self._batches)):
                return None
            if not len(batch.inputs):  # the last batch may have fewer rows than there are ranks
                continue
            assert batch.tokens is not None
            check_ids(batch.tokens, self.vocab)
            documents = batch.documents.ids if batch.documents is not None else None
            losses = self.backend.evaluate(
                StepRows(inputs=batch.inputs, targets=batch.targets, documents=documents)
            ).astype(np.float64)
            sums[:2] += losses.sum(), losses.size
            if self._bytes is not None:
                lengths = self._bytes[batch.targets]
                sums[2:] += losses[lengths > 0].sum(), lengths.sum()
        nats, targets, nats_of_text, size = self.backend.total(sums).tolist()
        return Validation(
            loss=nats / targets,
            bits_per_byte=nats_of_text / math.log(2) / size if size else None,
        )


def bytes_per_token(tokenizer: Tokenizer, vocab: int) -> npt.NDArray[np.int64]:
    """Return how many bytes of text each id stands for, (vocab,). Special ids have 0.

    >>> from tokenmill.tokenizers import load_tokenizer
    >>> bytes_per_token(load_tokenizer("gpt2"), 50_257)[[15496, 995, 50256]].tolist()
    [5, 6, 0]
    """
    lengths = np.zeros(vocab, np.int64)
    found = tokenizer.byte_lengths()[:vocab]
    lengths[: len(found)] = found
    lengths[[number for number in tokenizer.special_ids.values() if number < vocab]] = 0
    return lengths
