"""Which id stands between documents.

The vocabularies in use name it differently, and few say which of their special tokens it is. In
order: what the user asks for, what the tokenizer's own configuration names, then the usual
spellings. A tokenizer without any has no such id; nothing is made up.
"""

from __future__ import annotations

from collections.abc import Mapping

from tokenmill.errors import TokenizerError

# Ends of a document before ends of a turn in a conversation.
USUAL = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<EOS>",
    "[EOS]",
    "<|eos|>",
    "<|end▁of▁sentence|>",
    "<｜end▁of▁sentence｜>",
    "<|im_end|>",
    "<|eot_id|>",
)


def choose_eot(
    special_ids: Mapping[str, int],
    vocab_size: int,
    asked: str | int | None = None,
    configured: str | None = None,
    *,
    where: str,
) -> int | None:
    """The end-of-text id, or None where there is none.

    >>> choose_eot({"<pad>": 0, "</s>": 2}, 100, where="x.model")
    2
    >>> choose_eot({"</s>": 2, "<|stop|>": 3}, 100, configured="<|stop|>", where="x.model")
    3
    >>> choose_eot({"</s>": 2}, 100, "<pad>", where="x.model")
    Traceback (most recent call last):
    ...
    tokenmill.errors.TokenizerError: x.model has no special token '<pad>'; it has: '</s>'
    """
    if isinstance(asked, str) and asked not in special_ids and asked.isascii() and asked.isdigit():
        asked = int(asked)
    if isinstance(asked, str):
        if asked not in special_ids:
            known = ", ".join(repr(token) for token in list(special_ids)[:20]) or "none"
            raise TokenizerError(f"{where} has no special token {asked!r}; it has: {known}")
        return special_ids[asked]
    if asked is not None:
        if not 0 <= asked < vocab_size:
            raise TokenizerError(
                f"the end-of-text id {asked} is not an id of {where}, whose ids are 0 to {vocab_size - 1}"
            )
        return asked
    for token in (configured, *USUAL):
        if token is not None and token in special_ids:
            return special_ids[token]
    return None
