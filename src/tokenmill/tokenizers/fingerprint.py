"""Fingerprints: whether two tokenizers are the same, in 32 hexadecimal digits.

A fingerprint is the xxh3-128 hash of everything that decides which ids a text becomes, in one
canonical JSON form. It depends on content only: not on the order of keys in a file, the process,
the machine or the version of any library. About 20 ms for a vocabulary of 50,000.
"""

from __future__ import annotations

from typing import Any

import orjson
import xxhash

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.protocol import Tokenizer


def hash_content(kind: str, content: Any) -> str:
    """The fingerprint of a tokenizer of some kind that `content`, JSON-able, determines.

    >>> hash_content("bytes", {"a": 1, "b": 2}) == hash_content("bytes", {"b": 2, "a": 1})
    True
    >>> hash_content("bytes", {}) == hash_content("bpe", {})
    False
    """
    canonical = orjson.dumps(["tokenmill", 1, kind, content], option=orjson.OPT_SORT_KEYS)
    return xxhash.xxh3_128_hexdigest(canonical)


def check_same(expected: str, tokenizer: Tokenizer, where: str) -> None:
    """Refuse a tokenizer whose fingerprint is not the expected one.

    >>> from tokenmill.tokenizers import load_tokenizer
    >>> tokenizer = load_tokenizer("bytes")
    >>> check_same(tokenizer.fingerprint, tokenizer, "data/corpus")
    >>> check_same("0" * 32, tokenizer, "data/corpus")
    Traceback (most recent call last):
    ...
    tokenmill.errors.TokenizerError: data/corpus was made with another tokenizer: its fingerprint \
is 00000000000000000000000000000000, that of 'bytes' is e705aee7da076c63956ee1837759816e. ...
    """
    if tokenizer.fingerprint != expected:
        raise TokenizerError(
            f"{where} was made with another tokenizer: its fingerprint is {expected}, that of "
            f"{tokenizer.name!r} is {tokenizer.fingerprint}. Use the tokenizer that it was made "
            "with, or another folder"
        )
