"""The tokenizer `bytes`: an id is a byte, and 256 stands between documents.

Lossless for any input, valid UTF-8 or not; no vocabulary, no training. Encoding is one cast, at
memory speed, and any text may be cut anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.tokenizers.end_of_text import choose_eot
from tokenmill.tokenizers.fingerprint import hash_content
from tokenmill.tokenizers.protocol import Ids, Offsets
from tokenmill.tokenizers.spelling import spell
from tokenmill.tokenizers.terminated import drop_terminators

SPECIAL_IDS = {"<|endoftext|>": 256}


class ByteTokenizer:
    """Bytes as ids.

    >>> tokenizer = ByteTokenizer()
    >>> ids, offsets = tokenizer.encode_batch(["né".encode(), b""])
    >>> ids.tolist(), offsets.tolist()
    ([110, 195, 169], [0, 3, 3])
    >>> tokenizer.decode(ids)
    'né'
    """

    name = "bytes"
    vocab_size = 257
    cuttable = True

    def __init__(self, *, eot: str | int | None = None) -> None:
        self.eot_id = choose_eot(SPECIAL_IDS, self.vocab_size, eot, where="bytes")
        self._spellings = [bytes([value]) for value in range(256)] + [b"<|endoftext|>"]

    @property
    def special_ids(self) -> Mapping[str, int]:
        return dict(SPECIAL_IDS)

    @property
    def fingerprint(self) -> str:
        return hash_content("bytes", {"eot_id": self.eot_id})

    def encode_terminated(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        """The ids of all texts, each followed by the end-of-text id; see `encode_terminated`."""
        ids = np.frombuffer(b"\0".join([*texts, b""]), dtype=np.uint8).astype(np.uint32)
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum([len(text) + 1 for text in texts], out=offsets[1:])
        ids[offsets[1:] - 1] = self.eot_id or 0
        return ids, offsets

    def settle(self, text: bytes) -> tuple[Ids, int]:
        """The ids of the beginning of a text that no continuation changes: all of them."""
        return self.encode_batch([text])[0], len(text)

    def encode_batch(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        return drop_terminators(*self.encode_terminated(texts))

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        return spell(ids, self._spellings, self.name)

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        """The bytes that each id spells."""
        return np.array([len(spelling) for spelling in self._spellings], np.int64)

    def state(self) -> dict[str, Any]:
        return {"kind": "bytes", "eot_id": self.eot_id}

    def __repr__(self) -> str:
        return "ByteTokenizer()"
