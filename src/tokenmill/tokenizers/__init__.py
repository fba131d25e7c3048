"""Tokenizers: the base class, the built-in ones, and a registry that restores them from datasets.

Importing this package loads no tokenizer library. A library is imported when it is first needed.
"""

from __future__ import annotations

from tokenmill.tokenizers.base import Tokenizer
from tokenmill.tokenizers.id_arrays import Ids, Offsets
from tokenmill.tokenizers.load import load_tokenizer
from tokenmill.tokenizers.registry import from_state, register_tokenizer

__all__ = [
    "Ids",
    "Offsets",
    "Tokenizer",
    "from_state",
    "load_tokenizer",
    "register_tokenizer",
]
