"""Tokenizers: what the pipeline asks of one, and those that are built in.

Importing this loads no tokenizer library; each is imported by the function that needs it.
"""

from __future__ import annotations

from tokenmill.tokenizers.fingerprint import check_same
from tokenmill.tokenizers.load import from_state, load_tokenizer
from tokenmill.tokenizers.protocol import Ids, Offsets, Tokenizer
from tokenmill.tokenizers.terminated import encode_block, encode_terminated

__all__ = [
    "Ids",
    "Offsets",
    "Tokenizer",
    "check_same",
    "encode_block",
    "encode_terminated",
    "from_state",
    "load_tokenizer",
]
