"""Variants of a part of GPT-2's vocabulary, texts that distinguish them, and reference encoders."""

from __future__ import annotations

import base64
import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import tokenizers
from tokenmill.tokenizers import load_tokenizer
from tokenmill.tokenizers.gpt2 import read_gpt2

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(*, prefix_space: bool = False, use_regex: bool = True) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": prefix_space,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def split(pattern: str, behavior: str = "Isolated", *, invert: bool = False) -> dict[str, Any]:
    step = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": behavior,
        "invert": invert,
    }
    return {"type": "Sequence", "pretokenizers": [step, byte_level(use_regex=False)]}


def added(number: int, content: str, *, special: bool = True, **flags: bool) -> dict[str, Any]:
    defaults = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": content, "special": special, **defaults, **flags}


# A tenth of GPT-2's vocabulary is enough, and quicker to load.
END = 5256
END_OF_TEXT = added(END, "<|endoftext|>")
START = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        "<|endoftext|>": {"id": "<|endoftext|>", "ids": [END], "tokens": ["<|endoftext|>"]}
    },
}

# Changes to GPT-2's tokenizer.json.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt2 as a split": {"pre_tokenizer": split(GPT2)},
    "cl100k": {"pre_tokenizer": split(CL100K)},
    "cl100k by removal": {"pre_tokenizer": split(CL100K, "Removed", invert=True)},
    "qwen2": {"pre_tokenizer": split(QWEN2)},
    "qwen2 with nfc": {"pre_tokenizer": split(QWEN2), "normalizer": {"type": "NFC"}},
    "o200k": {"pre_tokenizer": split(O200K)},
    "o200k with nfc": {"pre_tokenizer": split(O200K), "normalizer": {"type": "NFC"}},
    "nfc in a sequence": {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
    },
    "prefix space": {"pre_tokenizer": byte_level(prefix_space=True)},
    "post-processor": {"post_processor": START},
    "ignore merges": {"pre_tokenizer": split(CL100K), "model": {"ignore_merges": True}},
    "white space added": {
        "normalizer": {"type": "NFC"},
        "added_tokens": [
            END_OF_TEXT,
            added(END + 1, "  ", special=False, normalized=True),
            added(END + 2, "    ", special=False, normalized=True),
        ],
    },
    "a word with NUL added": {
        "added_tokens": [END_OF_TEXT, added(END + 1, "a\0b", special=False)],
    },
    "words added": {
        "added_tokens": [
            END_OF_TEXT,
            added(END + 1, "<think>", special=False),
            added(END + 2, "<T>", special=False, lstrip=True, rstrip=True),
        ],
    },
}


def make_document(**changes: Any) -> dict[str, Any]:
    """A tokenizer.json like GPT-2's, with changes; `model` is changed key by key."""
    gpt2 = read_gpt2()["model"]
    head = {token: number for token, number in gpt2["vocab"].items() if number < END}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": head | {"<|endoftext|>": END},
        "merges": gpt2["merges"][: END - 256],
        **changes.pop("model", {}),
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [END_OF_TEXT],
        "normalizer": None,
        "pre_tokenizer": byte_level(),
        "post_processor": None,
        "decoder": byte_level(),
        "model": model,
        **changes,
    }


def make_reference(document: dict[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer of the `tokenizers` library, with special tokens as plain text."""
    reference = tokenizers.Tokenizer.from_str(json.dumps(document))
    reference.encode_special_tokens = True
    return reference


def write_document(folder: Path, document: dict[str, Any]) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def unflatten(ids: Any, offsets: Any) -> list[list[int]]:
    return [ids[a:b].tolist() for a, b in pairwise(offsets.tolist())]


def make_small_states() -> dict[str, dict[str, Any]]:
    """States with few merges, so that restoring them often is quick."""
    whole = load_tokenizer("gpt2").state()
    model = whole["tokenizer"]["model"]
    vocabulary = {token: number for token, number in model["vocab"].items() if number < 300}
    bpe = copy.deepcopy({**whole, "tokenizer": {**whole["tokenizer"], "model": {}}})
    bpe["tokenizer"]["model"] = {**model, "vocab": vocabulary, "merges": model["merges"][:44]}
    tiktoken = {"kind": "tiktoken", "name": "x", "eot_id": None, "special_ids": {}}
    tiktoken |= {"scheme": "cl100k", "tokens": make_byte_tokens()}
    byte_tokens = {f"<0x{value:02X}>": value + 3 for value in range(256)}
    tokens = {"<unk>": 0, "<s>": 1, "</s>": 2, **byte_tokens, "a": 259, "▁": 260, "▁a": 261}
    sentencepiece = {
        "kind": "sentencepiece",
        "name": "x",
        "eot_id": 2,
        "special_ids": {"<s>": 1, "</s>": 2},
        "tokenizer": {
            "trim_spaces": False,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": None,
            "model": {
                "type": "BPE",
                "unk_token": "<unk>",
                "fuse_unk": True,
                "byte_fallback": True,
                "ignore_merges": False,
                "vocab": tokens,
                "merges": [["▁", "a"]],
            },
        },
    }
    plain = {"kind": "bytes", "eot_id": 256}
    return {"bpe": bpe, "tiktoken": tiktoken, "sentencepiece": sentencepiece, "bytes": plain}


def make_byte_tokens() -> list[str]:
    return [base64.b64encode(bytes([value])).decode() for value in range(256)]


# Fragments to join to random texts: one of each class of characters, and pairs that belong together.
FRAGMENTS = [*" \n\t\0aBß1./'日ʼª", "  ", "\n\n", "\r\n", "'s", "'LL", "234", "//"]
FRAGMENTS += ["\u0301", "\u0958", "\u093c", "\u00e9", "\u00a0", "\u3000", "\u017f"]
FRAGMENTS += ["<T>", "<think>", "<|endoftext|>"]

# Texts that pre-tokenizers, normalizers and joined batches could treat differently.
TRICKY = [
    "",
    " ",
    "  ",
    "\n",
    "a",
    " a",
    "a ",
    "a  ",
    "  a",
    "a\n\n  b 12345678 don't DON'T I'LL it's ",
    "a\r\n\r\n b\n",
    "\u0301b",
    "e\u0301 caf\u00e9 \u0958\n x",
    "<|endoftext|>",
    "a<|endoftext|>b <|endoftext|>",
    "\x00",
    "a\x00b\x00",
    "\x00\x00 \x00",
    "\u00a0x\u3000 y\n \n",
    "日本語 😀🏳️‍🌈 हिन्दी ไทย العربية",
    "x" * 3000 + "  " * 50,
    "<think>  a  <think> b",
    "a  <T>  b<T>",
    "\ufeff\u200b\u2028\u0085|",
    "1/2\n/3//\n\n",
    "\ufffd\U0010ffff",
]
