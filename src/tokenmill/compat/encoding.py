"""A text in memory as ids, by any tokenizer that the guides use."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TokenizerError
from tokenmill.preparation.settings import EOT_TEXT
from tokenmill.tokenizers import Tokenizer, load_tokenizer


def encode_text(tokenizer: Any, text: bytes) -> npt.NDArray[np.uint32]:
    """The ids of a text, as `tokenmill pretokenize` writes them.

    `tokenizer` is a name or path, a `tokenmill.Tokenizer`, or anything with `encode(text)`, whose
    ids are then taken as they are.

    >>> encode_text("gpt2", b"Hello world").tolist()
    [15496, 995, 50256]
    """
    if isinstance(tokenizer, str):
        tokenizer = load_tokenizer(tokenizer)
    if isinstance(tokenizer, Tokenizer):
        documents = [document for document in text.split(EOT_TEXT.encode()) if document]
        return tokenizer.encode_terminated(documents)[0]
    if not hasattr(tokenizer, "encode"):
        raise TokenizerError(
            f"{type(tokenizer).__name__} is not a tokenizer: it has no encode(text). Give one, or a "
            "name such as 'gpt2'."
        )
    return np.array(tokenizer.encode(text.decode(errors="replace")), np.uint32)
