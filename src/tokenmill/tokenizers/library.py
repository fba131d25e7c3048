"""Tokenizers that only the `tokenizers` library can encode exactly: Unigram, WordPiece, Gemma and others.

Guarantees: the ids of `tokenizers`, without the special tokens, truncation and padding that it adds
for a model's input. Text that spells a special token is plain text: special tokens get another
spelling before the library sees them, so that it cannot find them, and their ids stay the same. The
unknown token is not special here, because the library encodes unknown characters as it.

Nothing is cleared when memory runs short: the library caches at most 10,000 words, and building the
tables of a large vocabulary again would take a second each time.

Costs: the library encodes about 1 MB/s on one core, a hundredth of gigatoken, and takes up to 500
bytes of memory for a byte of text. So a long text is encoded in small pieces, if it is certain that
this gives the same ids (`cuttable`), and is bounded more tightly otherwise (`weight`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.base import NO_IDS
from tokenmill.tokenizers.bpe import VocabularyTokenizer
from tokenmill.tokenizers.id_arrays import Ids, Offsets, check_ids, terminate_texts
from tokenmill.tokenizers.limits import check_added, check_gaps, check_id, check_steps, list_steps
from tokenmill.tokenizers.tokenizer_json import (
    BYTE_LETTERS,
    DocumentVocabulary,
    leaves_cuts,
    refuse_overlaps,
)
from tokenmill.wording import brief

_MODELS = ("BPE", "Unigram", "WordPiece", "WordLevel")
_KEPT = ("normalizer", "pre_tokenizer", "decoder")
# No text has this spelling: code points that are not characters, in an order that is no word.
_HIDDEN = "\ufdd0\U0010ffff\ufdd1{}\ufdd2\U0010fffe\ufdd3"
_HIDDEN_UNKNOWN = _HIDDEN.format("unknown")
_DROPS_SPACE = ("WhitespaceSplit", "Whitespace", "BertPreTokenizer")
# Normalizers that treat the two sides of a space independently.
_LOCAL = (
    *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer", "Precompiled"),
    "Strip",
)


class LibraryVocabulary(DocumentVocabulary):
    """A vocabulary of the `tokenizers` library, checked."""

    cuttable: bool
    unknown: str | None  # the token for characters that the vocabulary lacks
    spells_bytes: bool  # whether each id stands for the bytes that its token spells

    _ready: Any = None

    def check(self) -> None:
        """Refuse a vocabulary that the library refuses. The next call of `native` returns the result."""
        self._ready = self.native()

    def native(self) -> Any:
        if self._ready is not None:
            ready, self._ready = self._ready, None
            return ready
        tokenizers = _import_library()
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers use all cores
        hidden = orjson.dumps(self._hide_specials()).decode()
        found = call_library(lambda: tokenizers.Tokenizer.from_str(hidden), where=self._where)
        for token in self._document["added_tokens"]:
            content = self._hidden.get(token["content"], token["content"])
            number = found.token_to_id(content)
            if number != token["id"]:
                self._refuse(
                    f"its added token {brief(token['content'])} has the id {token['id']}, but the "
                    f"`tokenizers` library uses {number}"
                )
        return found

    @property
    def is_ready(self) -> bool:
        """Whether `native` returns at once."""
        return self._ready is not None

    @property
    def tokens(self) -> dict[str, int]:
        """The ids of all tokens that are not special."""
        vocab = self._document["model"]["vocab"]
        pairs = (
            vocab.items() if isinstance(vocab, dict) else ((p[0], i) for i, p in enumerate(vocab))
        )
        found = {token: number for token, number in pairs if number not in self._special_numbers}
        return found | {token["content"]: token["id"] for token in self._kept}

    def _read(self, document: Mapping[str, Any]) -> None:
        model = document["model"]
        if model.get("type") not in _MODELS:
            self._refuse(f"its model is {brief(model.get('type'))}, which is not supported")
        if model.get("dropout"):
            self._refuse("its model drops merges at random (dropout), so its ids are not defined")
        steps = list_steps(document.get("normalizer"), self._where)
        check_steps(steps, self._where)
        pre_tokenizers = list_steps(document.get("pre_tokenizer"), self._where, "pretokenizers")
        ids = self._read_ids(model)
        unknown = self._find_unknown(model)
        self._refuse_losses(model, ids, unknown, {step["type"] for step in steps + pre_tokenizers})
        made = {"".join(pair) for pair in map(_read_merge, model.get("merges") or [])}

        self.special_ids = {}
        kept, numbered = [], []
        taken = set(ids.values())
        for token in document.get("added_tokens") or []:
            content = check_added(token["content"], self._where)
            number = ids.get(content, check_id(content, token["id"], self._where))
            if token.get("special") and content == unknown:
                continue
            if content not in ids and number in taken:
                self._refuse(f"its added token {brief(content)} shares the id {number}")
            if token.get("special"):
                if content in ids and (content in made or len(content) == 1):
                    continue  # an ordinary token too, so text can be encoded as it
                self.special_ids[content] = number
            else:
                kept.append({**token, "id": number})
            numbered.append({**token, "id": number})
        refuse_overlaps(self.special_ids, [token["content"] for token in kept], self._refuse)
        numbers = {*ids.values(), *self.special_ids.values(), *(t["id"] for t in kept)}
        self.vocab_size = 1 + max(numbers)
        check_gaps(self.vocab_size, len(numbers), self._where)
        self._special_numbers = set(self.special_ids.values())
        self._kept, self.unknown = kept, unknown
        self.cuttable = _is_cuttable(steps, pre_tokenizers) and all(map(leaves_cuts, kept))
        decoder = document.get("decoder") or {}
        self.spells_bytes = decoder.get("type") == "ByteLevel" and not kept
        self._document = {
            "added_tokens": numbered,
            **{name: document.get(name) for name in _KEPT},
            "model": model,
        }

    def _read_ids(self, model: Mapping[str, Any]) -> dict[str, int]:
        vocab = model["vocab"]
        if isinstance(vocab, list):
            ids: dict[str, int] = {}
            for number, (piece, score) in enumerate(vocab):
                if not isinstance(piece, str) or not isinstance(score, (int, float)):
                    self._refuse(f"its vocabulary has the entry {brief([piece, score])}")
                ids.setdefault(piece, number)
            if not ids:
                self._refuse("its vocabulary is empty")
            return ids
        ids = dict(vocab)
        self._check_ids(ids)
        return ids

    def _refuse_losses(
        self, model: Mapping[str, Any], ids: Mapping[str, int], unknown: str | None, kinds: set[str]
    ) -> None:
        """Refuse a model that would drop characters that are not in its vocabulary."""
        if unknown is not None and unknown not in ids:
            self._refuse(f"its unknown token {brief(unknown)} is not in its vocabulary")
        affixes = ("continuing_subword_prefix", "end_of_word_suffix")
        if model["type"] == "BPE" and unknown is None and any(map(model.get, affixes)):
            self._refuse("it marks the ends of words and has no unknown token")
        needed = (
            BYTE_LETTERS.values()
            if "ByteLevel" in kinds
            else map("<0x{:02X}>".format, range(256))
            if model["type"] == "BPE" and model.get("byte_fallback")
            else ()
        )
        missing = [token for token in needed if token not in ids]
        if unknown is None and (missing or not needed):
            what = f"has no token {brief(missing[0])}" if missing else "has no unknown token"
            self._refuse(f"its vocabulary {what}, so it would drop characters")

    def _find_unknown(self, model: Mapping[str, Any]) -> str | None:
        if isinstance(model["vocab"], list):
            number = model.get("unk_id")
            if number is None:
                return None
            if type(number) is not int or not 0 <= number < len(model["vocab"]):
                self._refuse(f"the id of its unknown token is {brief(number)}")
            return str(model["vocab"][number][0])
        unknown = model.get("unk_token")
        if unknown is not None and not isinstance(unknown, str):
            self._refuse(f"its unknown token is {brief(unknown)}, which is not text")
        return unknown

    @property
    def _hidden(self) -> dict[str, str]:
        """The other spellings of the special tokens and of the unknown token."""
        hidden = {token: _HIDDEN.format(number) for token, number in self.special_ids.items()}
        return hidden if self.unknown is None else {**hidden, self.unknown: _HIDDEN_UNKNOWN}

    def _hide_specials(self) -> dict[str, Any]:
        """Return the tokenizer.json for the library, in which special tokens have another spelling."""
        hidden = self._hidden
        model = dict(self._document["model"])
        vocab = model["vocab"]
        if isinstance(vocab, dict):
            model["vocab"] = {hidden.get(token, token): number for token, number in vocab.items()}
            if self.unknown is not None:
                model["unk_token"] = hidden[self.unknown]
        else:
            model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in vocab]
        added = [
            {**token, "content": hidden.get(token["content"], token["content"])}
            for token in self._document["added_tokens"]
        ]
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            **self._document,
            "post_processor": None,
            "added_tokens": added,
            "model": model,
        }


class LibraryTokenizer(VocabularyTokenizer):
    """Encodes with the `tokenizers` library."""

    kind = "tokenizers"
    weight = 16
    note = (
        "This tokenizer is encoded by the `tokenizers` library, at about 1 MB/s on each core: "
        "gigatoken, which is much faster, cannot give its ids exactly."
    )
    _vocabulary: LibraryVocabulary

    def __init__(self, vocabulary: LibraryVocabulary, *, name: str, eot_id: int | None) -> None:
        super().__init__(vocabulary, name=name, eot_id=eot_id)
        self.cuttable = vocabulary.cuttable
        self._native: Any = vocabulary.native() if vocabulary.is_ready else None

    @classmethod
    def read_vocabulary(cls, settings: Mapping[str, Any], where: str) -> LibraryVocabulary:
        return LibraryVocabulary(settings["tokenizer"], where)

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "eot_id": self.eot_id, "tokenizer": self._vocabulary.content()}

    def encode(self, text: bytes) -> Ids:
        given = text.decode("utf-8", "replace")
        (found,) = call_library(
            lambda: self._encoder().encode_batch_fast([given], add_special_tokens=False),
            where=self.name,
        )
        return np.array(found.ids, np.uint32) if len(found.ids) else NO_IDS

    def encode_terminated(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        return terminate_texts([self.encode(text) for text in texts], self.eot_id)

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        flat = check_ids(ids, self.vocab_size, self.name).tolist()
        spellings = {number: token for token, number in self.special_ids.items()}
        text: list[str] = []
        for special, run in groupby(flat, spellings.get):
            if special is None:
                numbers = list(run)
                text.append(
                    call_library(
                        lambda: self._encoder().decode(numbers, skip_special_tokens=False),  # noqa: B023
                        where=self.name,
                    )
                )
            else:
                text.append(special * len(list(run)))
        unknown = self._vocabulary.unknown
        joined = "".join(text)
        return joined if unknown is None else joined.replace(_HIDDEN_UNKNOWN, unknown)

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        lengths = np.zeros(self.vocab_size, np.int64)
        for token, number in self._vocabulary.tokens.items():
            is_unknown = token == self._vocabulary.unknown  # it stands for any text
            lengths[number] = 1 if is_unknown else len(self._spell(token))
        return lengths

    def spellings(self) -> Sequence[bytes | None] | None:
        if not self._vocabulary.spells_bytes:
            return None
        spellings: list[bytes | None] = [None] * self.vocab_size
        for token, number in self._vocabulary.tokens.items():
            spellings[number] = self._spell(token)
        for token, number in self.special_ids.items():
            spellings[number] = token.encode()
        return spellings

    def _spell(self, token: str) -> bytes:
        """Return the bytes that a token usually stands for."""
        if self._vocabulary.spells_bytes:
            return bytes(map(_LETTERS.__getitem__, token)) if _is_letters(token) else token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return b"?"  # one byte
        return token.removeprefix("##").replace("\u2581", " ").encode()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_native": None}  # a copy in another process builds its own

    def _encoder(self) -> Any:
        if self._native is None:
            self._native = self._vocabulary.native()
        return self._native


_LETTERS = {letter: byte for byte, letter in BYTE_LETTERS.items()}


def _is_letters(token: str) -> bool:
    return all(letter in _LETTERS for letter in token)


def _read_merge(merge: Any) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return str(left), str(right)


def _is_cuttable(
    normalizers: list[Mapping[str, Any]], pre_tokenizers: list[Mapping[str, Any]]
) -> bool:
    """Return whether a text may be cut between a letter and a following space or line end.

    That is certain in two cases: the first step divides the text at white space and drops it, or all
    steps divide it by GPT-2's pattern, digits and punctuation.
    """
    kinds = [step["type"] for step in pre_tokenizers]
    if kinds and kinds[0] in _DROPS_SPACE:
        is_first = any(
            step.get("prepend_scheme", "always") == "first"
            for step in pre_tokenizers
            if step["type"] == "Metaspace"
        )
        return not is_first and all(step["type"] in _LOCAL for step in normalizers)
    byte_level = [step for step in pre_tokenizers if step["type"] == "ByteLevel"]
    return (
        {*kinds} <= {"Digits", "Punctuation", "ByteLevel"}
        and len(byte_level) == 1
        and bool(byte_level[0].get("use_regex", True))
        and not byte_level[0].get("add_prefix_space", True)
        and all(step["type"] in ("NFC", "Lowercase") for step in normalizers)
    )


def _import_library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise TokenizerError(
            "this tokenizer needs the package `tokenizers`, which is not installed: "
            "pip install 'tokenmill[tokenizers]'"
        ) from error
    return tokenizers


def has_library() -> bool:
    """Return whether the `tokenizers` library is installed."""
    from importlib.util import find_spec

    return find_spec("tokenizers") is not None


def call_library(call: Callable[[], Any], *, where: str) -> Any:
    """Call the library. If it fails, raise a TokenizerError with the reason."""
    try:
        return call()
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"
        if isinstance(error, (MemoryError, TokenizerError)) or not (
            is_panic or isinstance(error, Exception)
        ):
            raise
        reason = str(error).partition("\n")[0][:300]
        raise TokenizerError(f"{where} cannot be used as a tokenizer: {reason}") from error
