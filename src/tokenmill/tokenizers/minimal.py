"""Tokenizers without a vocabulary: `bytes`, and the stand-in for an unknown tokenizer.

The tokenizer `bytes` keeps every byte of any input, valid UTF-8 or not. Encoding is one cast, at
memory speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.base import Tokenizer, choose_eot, read_eot_id
from tokenmill.tokenizers.id_arrays import Ids, Offsets, drop_terminators, spell
from tokenmill.wording import brief

UNKNOWN = "unknown"
_SPELLINGS = [*(bytes([value]) for value in range(256)), b"<|endoftext|>"]


class ByteTokenizer(Tokenizer):
    """Uses the bytes of a text as its ids. The end-of-text id is 256.

    >>> tokenizer = ByteTokenizer()
    >>> ids, offsets = tokenizer.encode_batch(["né".encode(), b""])
    >>> ids.tolist(), offsets.tolist()
    ([110, 195, 169], [0, 3, 3])
    >>> tokenizer.decode(ids)
    'né'
    """

    kind = name = "bytes"
    vocab_size = 257
    cuttable = True

    def __init__(self, *, eot: str | int | None = None) -> None:
        self.special_ids = {"<|endoftext|>": 256}
        self.eot_id = choose_eot(self.special_ids, self.vocab_size, eot, where="bytes")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        tokenizer = cls()
        tokenizer.eot_id = read_eot_id(settings, cls.vocab_size)
        return tokenizer

    def encode(self, text: bytes) -> Ids:
        return np.frombuffer(text, np.uint8).astype(np.uint32)

    def encode_batch(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        return drop_terminators(*self.encode_terminated(texts))

    def encode_terminated(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        ids = self.encode(b"\0".join([*texts, b""]))
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum([len(text) + 1 for text in texts], out=offsets[1:])
        ids[offsets[1:] - 1] = self.eot_id or 0
        return ids, offsets

    def settle(self, text: bytes) -> tuple[Ids, int]:
        return self.encode(text), len(text)

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        return spell(ids, _SPELLINGS, self.name)

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        return np.array([len(spelling) for spelling in _SPELLINGS], np.int64)

    def spellings(self) -> Sequence[bytes | None]:
        return _SPELLINGS

    def settings(self) -> dict[str, Any]:
        return {"eot_id": self.eot_id}

    def __repr__(self) -> str:
        return "ByteTokenizer()"


class UnknownTokenizer(Tokenizer):
    """The tokenizer of a dataset that was imported without one.

    It has a vocabulary size but no vocabulary. That is enough for training. Encoding and decoding
    raise errors.

    >>> UnknownTokenizer(65).decode([1])
    Traceback (most recent call last):
    ...
    tokenmill.errors.TokenizerError: cannot encode or decode: these tokens were imported without ...
    """

    kind = name = UNKNOWN

    def __init__(self, vocab_size: int, eot_id: int | None = None) -> None:
        if type(vocab_size) is not int or not 0 < vocab_size <= 1 << 32:
            raise TokenizerError(
                f"vocab_size must be between 1 and 2**32, got {brief(vocab_size)}."
            )
        if eot_id is not None and (type(eot_id) is not int or not 0 <= eot_id < vocab_size):
            raise TokenizerError(
                f"eot_id must be below vocab_size {vocab_size}, got {brief(eot_id)}."
            )
        self.vocab_size, self.eot_id = vocab_size, eot_id

    def encode(self, _text: bytes) -> NoReturn:
        self._refuse()

    def decode(self, _ids: Sequence[int] | npt.NDArray[Any]) -> NoReturn:
        self._refuse()

    def byte_lengths(self) -> NoReturn:
        self._refuse()

    def spellings(self) -> NoReturn:
        self._refuse()

    def settings(self) -> dict[str, Any]:
        return {"vocab_size": self.vocab_size, "eot_id": self.eot_id}

    def _refuse(self) -> NoReturn:
        raise TokenizerError(
            "cannot encode or decode: these tokens were imported without their tokenizer. "
            "Pass `tokenizer=NAME` when you open the dataset."
        )

    def __repr__(self) -> str:
        return f"UnknownTokenizer({self.vocab_size}, eot_id={self.eot_id})"
