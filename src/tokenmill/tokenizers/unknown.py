"""A stand-in for an unknown tokenizer.

It has a vocabulary size and perhaps an end-of-text id, which is all that training needs. Encoding and
decoding raise errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.fingerprint import hash_content
from tokenmill.tokenizers.protocol import Ids, Offsets

UNKNOWN = "unknown"
_CURE = "these tokens were imported without their tokenizer. Give it as `tokenizer=NAME`."


class UnknownTokenizer:
    """A number of ids without a meaning.

    >>> UnknownTokenizer(65).decode([1])
    Traceback (most recent call last):
    ...
    tokenmill.errors.TokenizerError: ids cannot be decoded: these tokens were imported without ...
    """

    name = UNKNOWN
    cuttable = False

    def __init__(self, vocab_size: int, eot_id: int | None = None) -> None:
        if type(vocab_size) is not int or not 0 < vocab_size <= 1 << 32:
            raise TokenizerError(f"vocab_size must be between 1 and 2**32, got {vocab_size!r}.")
        if eot_id is not None and (type(eot_id) is not int or not 0 <= eot_id < vocab_size):
            raise TokenizerError(f"eot_id must be below vocab_size {vocab_size}, got {eot_id!r}.")
        self.vocab_size, self.eot_id = vocab_size, eot_id

    @property
    def special_ids(self) -> Mapping[str, int]:
        return {}

    @property
    def fingerprint(self) -> str:
        return hash_content(UNKNOWN, {"vocab_size": self.vocab_size, "eot_id": self.eot_id})

    def encode_batch(self, _texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        raise TokenizerError(f"text cannot be encoded: {_CURE}")

    def decode(self, _ids: Sequence[int] | npt.NDArray[Any]) -> str:
        raise TokenizerError(f"ids cannot be decoded: {_CURE}")

    def state(self) -> dict[str, Any]:
        return {"kind": UNKNOWN, "vocab_size": self.vocab_size, "eot_id": self.eot_id}

    def __repr__(self) -> str:
        return f"UnknownTokenizer({self.vocab_size}, eot_id={self.eot_id})"
