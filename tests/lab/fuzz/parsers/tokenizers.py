"""Tokenizers of each kind: tokenizer.json, tiktoken files, SentencePiece models, saved states."""

from __future__ import annotations

import base64
import io
import json
import os
import struct
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import orjson

from tokenmill.dataset.opening import load_saved_tokenizer
from tokenmill.storage.names import TOKENIZER_NAME
from tokenmill.tokenizers import Tokenizer, from_state, load_tokenizer
from tokenmill.tokenizers.tokenizer_json import BYTE_LETTERS

from ..case import Case, Parser, require, write_files
from ..mutate import INTEGERS, STRINGS, Raw, change_bytes, change_lines, change_tree, dump
from ..wire import Message, write_varint

TEXTS = ["Hello, the cat's café 12345!\n\n  x", "", "\0", "<|endoftext|> a</s>", "日本 😀 " * 5]
MERGES = ["h e", "l l", "t he", "he ll", "hell o", "Ġ a"]
TOKENS = ["he", "ll", "the", "hell", "hello", "Ġa"]
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MOST_IDS = 1 << 22  # ids whose lengths are computed; more take longer for good reasons


def use_tokenizer(tokenizer: Tokenizer) -> None:
    """Encode and decode some texts, and restore the tokenizer from its state."""
    encoded = [text.encode() for text in TEXTS]
    ids, offsets = tokenizer.encode_batch(encoded)
    require(len(offsets) == len(TEXTS) + 1, "there are too few offsets")
    require(not len(ids) or int(ids.max()) < tokenizer.vocab_size, "an id exceeds the vocabulary")
    tokenizer.encode_terminated(encoded)
    tokenizer.settle(encoded[0])
    tokenizer.decode(ids[:50])
    if tokenizer.eot_id is not None:
        tokenizer.decode([tokenizer.eot_id])
    if tokenizer.vocab_size <= _MOST_IDS:
        tokenizer.byte_lengths()
    again = from_state(orjson.loads(orjson.dumps(tokenizer.state())))
    require(again.fingerprint == tokenizer.fingerprint, "the fingerprint changed")


class ForkedTrials:
    """`subprocess` for `tokenizers/trial.py`: forks the child that tries a tokenizer.

    Starting a child takes 0.15 s, forking it 0.01 s.
    """

    TimeoutExpired = subprocess.TimeoutExpired

    def run(self, command: list[str], *, input: bytes, **_: Any) -> Any:
        reader, writer = os.pipe()
        process = os.fork()
        if not process:
            status = 1
            try:
                os.dup2(writer, 1)
                os.dup2(writer, 2)
                sys.stdin = io.TextIOWrapper(io.BytesIO(input))
                sys.stdout = os.fdopen(1, "w")
                status = import_module("tokenmill.tokenizers.trial_child").main()
                sys.stdout.flush()
            finally:
                os._exit(status)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            said = file.read()
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        return subprocess.CompletedProcess(command, status, said, said)


def fork_trials() -> None:
    """Let tokenizers be tried in forks, if there are trials."""
    if find_spec("tokenmill.tokenizers.trial_child"):
        import_module("tokenmill.tokenizers.trial_child")
        import_module("tokenmill.tokenizers.trial").subprocess = ForkedTrials()  # type: ignore[attr-defined]


def added(number: int, content: str, *, special: bool = True) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": content, "special": special, **flags}


def make_document(**changes: Any) -> dict[str, Any]:
    """A small tokenizer.json like GPT-2's."""
    vocab = {letter: number for number, letter in enumerate(BYTE_LETTERS.values())}
    vocab |= {token: 256 + number for number, token in enumerate(TOKENS)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "vocab": vocab, "merges": MERGES}
    return {
        "version": "1.0",
        "added_tokens": [added(262, "<|endoftext|>"), added(263, "<think>", special=False)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
        **changes,
    }


def make_piece_document() -> dict[str, Any]:
    """A small tokenizer.json in the form of a SentencePiece model."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for token in ["▁", *"abcdehlot", "he", "ll", "▁a", "hell", "hello"]:
        vocab[token] = len(vocab)
    return {
        "added_tokens": [added(number, token) for token, number in list(vocab.items())[:3]],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocab,
            "merges": ["h e", "l l", "▁ a", "he ll", "hell o"],
        },
    }


def make_unigram_document() -> dict[str, Any]:
    """A small tokenizer.json of a Unigram model, like that of T5."""
    pieces = ["<pad>", "</s>", "<unk>", "▁", *"abcdehlot", "he", "ll", "▁a", "hell", "hello"]
    return {
        "version": "1.0",
        "added_tokens": [added(number, piece) for number, piece in enumerate(pieces[:3])],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
            ],
        },
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        "model": {
            "type": "Unigram",
            "unk_id": 2,
            "vocab": [[piece, -0.5 * number] for number, piece in enumerate(pieces)],
        },
    }


def field(number: int, kind: int, value: Any) -> bytes:
    head = write_varint(number << 3 | kind)
    if kind == 0:
        return head + write_varint(value)
    return head + (write_varint(len(value)) + value if kind == 2 else value)


def make_model() -> bytes:
    """A small SentencePiece model, as its protocol buffer."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    words = ["he", "ll", "▁a", "hell", "hello", "▁", *"abcdehlot"]
    pieces += [(word, -float(number), 1) for number, word in enumerate(words)]
    parts = [
        field(
            1,
            2,
            field(1, 2, piece.encode()) + field(2, 5, struct.pack("<f", score)) + field(3, 0, kind),
        )
        for piece, score, kind in pieces
    ]
    trainer = field(3, 0, 2) + field(4, 0, len(pieces)) + field(35, 0, 1)
    trainer += field(40, 0, 0) + field(41, 0, 1) + field(42, 0, 2)
    normalizer = field(1, 2, b"identity") + field(2, 2, b"") + field(3, 0, 1) + field(4, 0, 0)
    return b"".join(parts) + field(2, 2, trainer) + field(3, 2, normalizer + field(5, 0, 1))


STEPS: tuple[Any, ...] = (
    *({"type": "NFC"}, {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Strip"}, {"type": 5}),
    {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 1000},
    {"type": "Replace", "pattern": {"String": "e"}, "content": "eeeeeeee"},
    {"type": "Replace", "pattern": {"String": ""}, "content": "x"},
    {"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": "x"},
    {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff" * 40).decode()},
    {"type": "Precompiled", "precompiled_charsmap": "AAAAQAAAAAAAAA=="},
    {"type": "Prepend", "prepend": "y" * 100_000},
    {
        "type": "Split",
        "pattern": {"Regex": "(?:a?){99}a{99}"},
        "behavior": "Isolated",
        "invert": False,
    },
    {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False},
    {
        "type": "Split",
        "pattern": {"Regex": "(?<!x)" * 999},
        "behavior": "Isolated",
        "invert": False,
    },
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False},
)


class _Document(Parser):
    """A tokenizer.json; the vocabulary is large, so changes go to the rest of it as often."""

    document: dict[str, Any]

    def prepare(self, folder: Path) -> None:
        fork_trials()
        self.sound = {"tokenizer.json": json.dumps(self.document).encode()}

    def make(self, random: Random) -> Case:
        document = json.loads(self.sound["tokenizer.json"])
        match random.randrange(8):
            case 0:
                return Case({"tokenizer.json": change_bytes(random, self.sound["tokenizer.json"])})
            case 1:
                document["model"] = change_tree(random, document["model"])
            case 2:
                self._add_tokens(random, document)
            case 3:
                steps = random.choices(STEPS, k=random.choice([1, 2, 10, 40]))
                where = random.choice(["normalizer", "pre_tokenizer"])
                inside = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}[where]
                last = [document[where]] if document[where] and random.randrange(2) else []
                document[where] = {"type": "Sequence", inside: [*steps, *last]}
            case 4 if random.randrange(8) == 0:
                depth = random.choice([100, 2000, 50_000])
                deep = b'{"type":"Sequence","normalizers":[' * depth + b"]}" * depth
                document["normalizer"] = Raw(deep)
            case _:
                model = document.pop("model")
                document = change_tree(random, document)
                if isinstance(document, list):
                    document.append(("model", model))
        files = {"tokenizer.json": dump(document)}
        if random.randrange(6) == 0:
            config = {"eos_token": {"content": "<think>"}, "bos_token": "<s>"}
            files["tokenizer_config.json"] = dump(change_tree(random, config))
        return Case(files)

    def _add_tokens(self, random: Random, document: dict[str, Any]) -> None:
        for _ in range(random.choice([1, 1, 3])):
            number = random.choice([*INTEGERS[:28], 2**28, 264, 263, 5])
            content = random.choice([*STRINGS, "<|endoftext|>", "he", "<0x41>", "a", "\u0120"])
            token = added(number, content, special=bool(random.randrange(2)))
            token[random.choice(list(token))] = random.choice([True, False, *INTEGERS[:4], number])
            document["added_tokens"].append(token)
        vocab = document["model"]["vocab"]
        if isinstance(vocab, dict) and random.randrange(3) == 0:
            vocab[random.choice([*vocab, *STRINGS])] = random.choice([*INTEGERS, 2**28])

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        use_tokenizer(load_tokenizer(folder))


class TokenizerJsonParser(_Document):
    name = "tokenizer-json"
    document = make_document()


class SplitJsonParser(_Document):
    name = "split-json"
    document = make_document(
        normalizer=None,
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": PATTERN},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        },
    )


class PieceJsonParser(_Document):
    name = "piece-json"
    document = make_piece_document()


class UnigramJsonParser(_Document):
    """A model that only the `tokenizers` library encodes."""

    name = "unigram-json"
    document = make_unigram_document()


class SentencePieceParser(Parser):
    name = "sentencepiece"

    def prepare(self, folder: Path) -> None:
        fork_trials()
        self.sound = {"x.model": make_model()}

    def make(self, random: Random) -> Case:
        data = self.sound["x.model"]
        if random.randrange(3) == 0:
            return Case({"x.model": change_bytes(random, data)})
        message = Message(data, {1: {}, 2: {}, 3: {}, 4: {}, 5: {}})
        parts = [value for number, _, value in message.fields if number in (2, 3)]
        for _ in range(random.choice([1, 1, 2, 5])):
            random.choice([message, *parts, *parts]).change(random)
        if random.randrange(4) == 0:
            parts[-1].fields.append([2, 2, _make_charsmap(random)])
        return Case({"x.model": message.encode()})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        use_tokenizer(load_tokenizer(folder / "x.model"))


def _make_charsmap(random: Random) -> bytes:
    """A `precompiled_charsmap`: the size of a trie, the trie, and the texts it points to."""
    trie = random.randbytes(4 * random.choice([0, 1, 256, 300]))
    size = random.choice([len(trie), 0, len(trie) + 4, 2**31 - 1, 2**32 - 4, 5])
    texts = random.choice([b"", b"a\0b\0", b"no end", b"\xff\0"])
    return struct.pack("<I", size) + trie + texts


class TiktokenParser(Parser):
    name = "tiktoken"

    def prepare(self, folder: Path) -> None:
        fork_trials()
        tokens = [bytes([byte]) for byte in range(256)] + [b"he", b"ll", b"the", b"hell", b"hello"]
        lines = [b"%s %d\n" % (base64.b64encode(token), n) for n, token in enumerate(tokens)]
        self.sound = {"x.tiktoken": b"".join(lines)}

    def list_sound(self) -> list[Case]:
        return [Case(self.sound, {"eot": None, "scheme": "cl100k"})]

    def make(self, random: Random) -> Case:
        data = self.sound["x.tiktoken"]
        match random.randrange(4):
            case 0:
                data = change_bytes(random, data)
            case 1:
                lines = data.splitlines()
                place = random.randrange(len(lines))
                token, rank = lines[place].split()
                odd = [
                    b"-1",
                    b"9" * 5000,
                    "٣".encode(),
                    b"1_0",
                    b"2147483648",
                    b"4294967296",
                    b"1e3",
                ]
                rank = random.choice([*odd, str(len(lines)).encode(), rank])
                long = base64.b64encode(b"he" * random.choice([1, 50_000]))
                token = random.choice([token, long, b"!", b"", b"AAAA", base64.b64encode(b"xyz")])
                lines.insert(place, token + b" " + rank)
                data = b"\n".join(lines)
            case _:
                data = change_lines(random, data)
        eot = random.choice([None, None, "<|end|>", "5", "999999", "٣", "²", "\ud800", "x" * 5000])
        scheme = random.choice(["gpt2", "cl100k", "o200k", "qwen2", "kimi", "deepseek_v3"])
        name = random.choice(["x", "x", "x", "cl100k_base", "r50k_base"])
        return Case({f"{name}.tiktoken": data}, {"eot": eot, "scheme": scheme})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        path = folder / next(iter(case.files))
        use_tokenizer(load_tokenizer(path, scheme=case.facts["scheme"], eot=case.facts["eot"]))


class TokenizerStateParser(Parser):
    """`tokenizer_state.json` of a dataset or a run."""

    name = "tokenizer-state"

    def prepare(self, folder: Path) -> None:
        fork_trials()
        document, pieces = make_document(), make_piece_document()
        tokens = [base64.b64encode(bytes([byte])).decode() for byte in range(256)]
        kept = {name: document[name] for name in ("normalizer", "pre_tokenizer", "model")}
        states = [
            {"kind": "bytes", "eot_id": 256},
            {"kind": "unknown", "vocab_size": 50257, "eot_id": None},
            {
                "kind": "bpe",
                "name": "mine",
                "eot_id": 262,
                "special_ids": {"<|endoftext|>": 262},
                "tokenizer": {**kept, "added_tokens": [added(263, "<think>", special=False)]},
            },
            {
                "kind": "tiktoken",
                "name": "mine",
                "eot_id": 256,
                "special_ids": {"<|end|>": 256},
                "scheme": "cl100k",
                "tokens": tokens,
            },
            {
                "kind": "sentencepiece",
                "name": "mine",
                "eot_id": 2,
                "special_ids": {"<unk>": 0, "<s>": 1, "</s>": 2},
                "tokenizer": {**pieces, "added_tokens": [], "trim_spaces": True},
            },
        ]
        self.sound = {state["kind"]: json.dumps(state).encode() for state in states}

    def list_sound(self) -> list[Case]:
        states = [data for kind, data in self.sound.items() if kind != "unknown"]
        return [Case({TOKENIZER_NAME: data}) for data in states]

    def make(self, random: Random) -> Case:
        data = self.sound[random.choice(list(self.sound))]
        if random.randrange(5) == 0:
            data = change_bytes(random, data)
        else:
            data = dump(change_tree(random, json.loads(data)))
        return Case({TOKENIZER_NAME: data})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        use_tokenizer(load_saved_tokenizer(folder))


PARSERS = [
    *(
        TokenizerJsonParser(),
        SplitJsonParser(),
        PieceJsonParser(),
        UnigramJsonParser(),
        SentencePieceParser(),
    ),
    *(TiktokenParser(), TokenizerStateParser(), UnigramJsonParser()),
]
