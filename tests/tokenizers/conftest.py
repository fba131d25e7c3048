"""Real text, and tokenizers that many tests use."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
import tiktoken
from vocabularies import GPT2

from tokenmill.tokenizers import Tokenizer, load_tokenizer
from tokenmill.tokenizers.gpt2 import read_gpt2


@pytest.fixture(scope="session")
def gpt2() -> Tokenizer:
    return load_tokenizer("gpt2")


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Python's own library: code, prose, tables, many scripts."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    names = sorted(folder.glob("*.py"))[:60] + sorted((folder / "encodings").glob("*.py"))[:30]
    found = [path.read_text(encoding="utf-8", errors="replace") for path in names]
    assert sum(map(len, found)) > 1_000_000
    return found


@pytest.fixture(scope="session")
def tiktoken_gpt2() -> tiktoken.Encoding:
    """tiktoken's GPT-2 from the same two files, built without tokenmill's code."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(value): value for value in visible}
    for value in range(256):
        if value not in visible:
            letters[chr(256 + len(letters) - len(visible))] = value
    vocabulary = read_gpt2()["model"]["vocab"]
    ranks = {
        bytes(letters[letter] for letter in token): number
        for token, number in vocabulary.items()
        if number != 50256
    }
    special = {"<|endoftext|>": 50256}
    return tiktoken.Encoding("gpt2", pat_str=GPT2, mergeable_ranks=ranks, special_tokens=special)
