"""What a tokenizer is to the rest of tokenmill.

Implement `Tokenizer` to bring your own. Text arrives as UTF-8 bytes, a batch at a time, and ids
leave as one flat array, so that the loop over documents is the tokenizer's and can be native.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back. Text that spells a special token is ordinary text to it."""

    @property
    def name(self) -> str:
        """A short name for people, such as `gpt2`."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, special ids included."""

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Special tokens by their spelling. Encoding never gives one of these ids."""

    @property
    def eot_id(self) -> int | None:
        """The id that stands between documents, if there is one."""

    @property
    def fingerprint(self) -> str:
        """Equal only for tokenizers that turn every text, and its end, into the same ids."""

    @property
    def cuttable(self) -> bool:
        """Whether a text may be encoded in pieces.

        The cuts are between a letter (`str.isalpha`) and a following space or line end.
        """

    def encode_batch(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        """The ids of all texts in one flat array, and `len(texts) + 1` offsets into it."""

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """The text of some ids; bytes that are not valid UTF-8 show as U+FFFD."""

    def state(self) -> dict[str, Any]:
        """A JSON-able dict from which `tokenmill.tokenizers.from_state` makes the same again."""
