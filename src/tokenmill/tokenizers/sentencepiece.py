"""SentencePiece BPE with byte fallback, encoded by gigatoken.

A model is read from a `.model` file or from a tokenizer.json.

Guarantees: the same ids as `sentencepiece` with the same model. Text that spells a control token
such as `</s>`, or a byte token such as `<0x41>`, is never encoded as that token. Models of other
types are refused. So are models with user-defined symbols, because gigatoken treats these differently
from SentencePiece. One difference remains: if a model maps characters and removes extra white space,
gigatoken also drops the control character U+0085 at the start and end of a text.

These models merge across spaces, so a text is never cut, and a batch is encoded text by text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.errors import TokenizerError
from tokenmill.storage.decoding import load_json
from tokenmill.tokenizers.bpe import VocabularyTokenizer, call_native
from tokenmill.tokenizers.id_arrays import Ids, Offsets, check_ids, terminate_texts
from tokenmill.tokenizers.limits import (
    check_added,
    check_gaps,
    check_growth,
    check_id,
    list_steps,
)
from tokenmill.tokenizers.tokenizer_json import DocumentVocabulary
from tokenmill.wording import brief

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
# Unicode's white space without the space itself and U+0085.
_WHITE_SPACE = "\t\n\v\f\r\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


def read_model_file(data: bytes, where: str) -> SentencePieceVocabulary:
    """Read the vocabulary from a SentencePiece model.

    >>> read_model_file(b"no model", "x.model")
    Traceback (most recent call last):
    ...
    tokenmill.tokenizers.bpe.UnsupportedError: x.model cannot be used as a tokenizer: ...
    """
    # gigatoken's `from_sentencepiece` has two steps. This is the first, in Python. The second is
    # native code, so the result of the first is checked in between.
    from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

    converted = call_native(lambda: sentencepiece_to_tokenizer_json(data), where=where)
    document = load_json(converted)
    steps = document["normalizer"]["normalizers"]
    # SentencePiece trims spaces, but gigatoken's Strip trims all Unicode white space.
    if steps[0]["type"] == "Strip":
        document["normalizer"] = {"type": "Sequence", "normalizers": steps[1:]}
        document["trim_spaces"] = True
    vocabulary = SentencePieceVocabulary(document, where)
    if any(step["type"] == "Strip" for step in steps[1:]):
        _check_white_space(vocabulary, where)
    return vocabulary


def _check_white_space(vocabulary: SentencePieceVocabulary, where: str) -> None:
    """Refuse a model that trims spaces but keeps other white space: gigatoken would trim both."""
    native = vocabulary.native()

    def encode(text: str) -> list[int]:
        ids: list[int] = call_native(lambda: native.encode(text).tolist(), where=where)
        return ids

    as_space, as_nothing = encode("a b"), encode("ab")
    for character in _WHITE_SPACE:
        if encode(f"a{character}b") not in (as_space, as_nothing):
            raise TokenizerError(
                f"{where} cannot be used as a tokenizer: it removes extra spaces but keeps "
                f"{character!r}, which would be lost at the ends of a text"
            )


class SentencePieceVocabulary(DocumentVocabulary):
    """A SentencePiece vocabulary in the form of a tokenizer.json."""

    def native(self) -> Any:
        import gigatoken

        return call_native(
            lambda: gigatoken.Tokenizer.from_json(orjson.dumps(self._document)), where=self._where
        )

    def _read(self, document: Mapping[str, Any]) -> None:
        model = document["model"]
        vocabulary = dict(model["vocab"])
        if model["type"] != "BPE" or not model["byte_fallback"] or model.get("dropout"):
            self._refuse("only BPE with byte fallback and without dropout is supported")
        self._check_ids(vocabulary)
        self.special_ids = {}
        for token in document.get("added_tokens") or []:
            content = check_added(token["content"], self._where)
            if not token.get("special"):
                self._refuse(f"it has the user-defined symbol {content!r}, which is not supported")
            number = check_id(content, token["id"], self._where)
            self.special_ids[content] = vocabulary.get(content, number)
        unknown = model.get("unk_token")
        if unknown is not None and not isinstance(unknown, str):
            self._refuse(f"its unknown token is {brief(unknown)}, which is not text")
        reserved = {*self.special_ids, *filter(_BYTE_TOKEN.fullmatch, vocabulary)}
        if unknown is not None:
            reserved.add(unknown)
        # In SentencePiece, no merge uses or makes a reserved token. gigatoken derives merges from
        # the spelling of tokens, so its list may contain such merges. Omit them.
        merges = []
        for merge in model["merges"]:
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
                self._refuse(
                    f"its merge {brief([left, right])} uses tokens that its vocabulary lacks"
                )
            if not reserved & {left, right, left + right}:
                merges.append([left, right])
        numbers = [*vocabulary.values(), *self.special_ids.values()]
        self.vocab_size = 1 + max(numbers)
        check_gaps(self.vocab_size, len(numbers), self._where)
        pre_tokenizer = document.get("pre_tokenizer")
        if pre_tokenizer is not None and pre_tokenizer["type"] != "Metaspace":
            self._refuse(f"its pre-tokenizer {brief(pre_tokenizer['type'])} is not supported")
        check_growth(list_steps(document.get("normalizer"), self._where), self._where)
        self.trim_spaces = bool(document.get("trim_spaces"))
        self._document = {
            "trim_spaces": self.trim_spaces,
            "added_tokens": [],
            "normalizer": document.get("normalizer"),
            "pre_tokenizer": pre_tokenizer,
            "model": {
                "type": "BPE",
                "unk_token": unknown,
                "fuse_unk": bool(model.get("fuse_unk")),
                "byte_fallback": True,
                "ignore_merges": bool(model.get("ignore_merges")),
                "vocab": vocabulary,
                "merges": merges,
            },
        }


class SentencePieceTokenizer(VocabularyTokenizer):
    """Encodes with a SentencePiece vocabulary."""

    kind = "sentencepiece"
    _vocabulary: SentencePieceVocabulary

    def __init__(
        self, vocabulary: SentencePieceVocabulary, *, name: str, eot_id: int | None
    ) -> None:
        super().__init__(vocabulary, name=name, eot_id=eot_id)
        self._native: Any = vocabulary.native()

    @classmethod
    def read_vocabulary(cls, settings: Mapping[str, Any], where: str) -> SentencePieceVocabulary:
        return SentencePieceVocabulary.from_settings(settings, where)

    def encode(self, text: bytes) -> Ids:
        if self._vocabulary.trim_spaces:
            text = text.strip(b" ")
        # gigatoken follows the trie of a character map without checks, so a damaged trie fails here.
        ids: Ids = call_native(lambda: self._encoder().encode(text), where=self.name)
        return ids

    def encode_terminated(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        return terminate_texts([self.encode(text) for text in texts], self.eot_id)

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        flat = check_ids(ids, self.vocab_size, self.name).tolist()
        spellings = {number: token for token, number in self.special_ids.items()}
        text = []
        for special, run in groupby(flat, spellings.get):
            if special is None:
                text.append(self._spell(list(run)))
            else:
                text.append(special * len(list(run)))
        return "".join(text)

    def _spell(self, ids: list[int]) -> str:
        return self._decode_bytes(ids).decode("utf-8", errors="replace")

    def _decode_bytes(self, ids: list[int]) -> bytes:
        spelled: bytes = call_native(lambda: self._encoder().decode(ids), where=self.name)
        return spelled

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        lengths = np.zeros(self.vocab_size, np.int64)
        for token, number in self._vocabulary.content()["model"]["vocab"].items():
            is_byte = _BYTE_TOKEN.fullmatch(token)
            lengths[number] = 1 if is_byte else len(token.replace("\u2581", " ").encode())
        return lengths

    def spellings(self) -> Sequence[bytes | None]:
        spellings: list[bytes | None] = [None] * self.vocab_size
        for number in self._vocabulary.content()["model"]["vocab"].values():
            # Decoded twice: in front of the first token, the model may drop a space.
            once, twice = self._decode_bytes([number]), self._decode_bytes([number, number])
            spellings[number] = twice[len(once) :]
        for token, number in self.special_ids.items():
            spellings[number] = token.encode()
        return spellings

    def forget(self) -> None:
        self._native = None

    def __getstate__(self) -> dict[str, Any]:
        # gigatoken's objects cannot be pickled; a copy in another process builds its own.
        return {**self.__dict__, "_native": None}

    def _encoder(self) -> Any:
        if self._native is None:
            self._native = self._vocabulary.native()
        return self._native
