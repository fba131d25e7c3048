"""SentencePiece BPE with byte fallback, by gigatoken: `.model` files and their tokenizer.json form.

Guarantees: the ids are those of `sentencepiece` for the same model; control pieces such as `</s>`
are never given for text that spells them, and neither are byte pieces such as `<0x41>`. Models of
other types, and those with user-defined pieces, which gigatoken places otherwise than
SentencePiece does, are refused by name. One difference remains: a model that maps characters and
removes extra white space also loses the control character U+0085 at the very ends of a text.

Such a model merges across spaces, so a text may not be cut, and a batch is encoded text by text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.bpe import build_native
from tokenmill.tokenizers.fingerprint import hash_content
from tokenmill.tokenizers.protocol import Ids, Offsets
from tokenmill.tokenizers.spelling import check_ids
from tokenmill.tokenizers.terminated import drop_terminators, gather

BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
# What Unicode calls white space, but for the space itself and U+0085.
WHITE_SPACE = "\t\n\v\f\r\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


def read_model_file(data: bytes, where: str) -> PieceVocabulary:
    """The vocabulary in a SentencePiece model.

    >>> read_model_file(b"no model", "x.model")
    Traceback (most recent call last):
    ...
    tokenmill.errors.TokenizerError: x.model cannot be used as a tokenizer: ...
    """
    import gigatoken

    native = build_native(gigatoken.Tokenizer.from_sentencepiece, data, where=where)
    document = dict(native._hf_config())
    steps = document["normalizer"]["normalizers"]
    # SentencePiece trims spaces, but gigatoken's Strip trims all that Unicode calls white space.
    if steps[0]["type"] == "Strip":
        document["normalizer"] = {"type": "Sequence", "normalizers": steps[1:]}
        document["trim_spaces"] = True
    elif any(step["type"] == "Strip" for step in steps):
        _check_white_space(native, where)
    return PieceVocabulary(document, where)


def _check_white_space(native: Any, where: str) -> None:
    """Refuse a model that trims spaces and lets other white space through as it is."""
    as_space, as_nothing = (native.encode(text).tolist() for text in ("a b", "ab"))
    for character in WHITE_SPACE:
        if native.encode(f"a{character}b").tolist() not in (as_space, as_nothing):
            raise TokenizerError(
                f"{where} cannot be used as a tokenizer: it removes extra spaces but keeps "
                f"{character!r}, which would be lost at the ends of a text"
            )


class PieceVocabulary:
    """The parts of a SentencePiece vocabulary that decide ids, in the form of a tokenizer.json."""

    kind = "sentencepiece"

    def __init__(self, document: Mapping[str, Any], where: str) -> None:
        self._where = where
        try:
            self._read(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TokenizerError(
                f"{where} is damaged or not a tokenizer.json: {type(error).__name__} {error}"
            ) from error

    def native(self) -> Any:
        import gigatoken

        data = orjson.dumps(self._document)
        return build_native(gigatoken.Tokenizer.from_json, data, where=self._where)

    def content(self) -> Any:
        return self._document

    def state(self) -> dict[str, Any]:
        return {"special_ids": self.special_ids, "tokenizer": self._document}

    def _read(self, document: Mapping[str, Any]) -> None:
        model = document["model"]
        vocabulary = dict(model["vocab"])
        if model["type"] != "BPE" or not model["byte_fallback"] or model.get("dropout"):
            self._refuse("only BPE with byte fallback and without dropout is supported")
        if not all(
            type(number) is int and 0 <= number < 2**32 - 1 for number in vocabulary.values()
        ):
            self._refuse("its vocabulary has an id that is not a whole number from 0 to 2**32 - 2")
        if len(set(vocabulary.values())) != len(vocabulary):
            self._refuse("its vocabulary gives one id to two pieces")
        self.special_ids: dict[str, int] = {}
        for token in document.get("added_tokens") or []:
            content = token["content"]
            if not token.get("special"):
                self._refuse(f"it has the user-defined piece {content!r}")
            self.special_ids[str(content)] = int(vocabulary.get(content, token["id"]))
        unknown = model.get("unk_token")
        reserved = {*self.special_ids, *filter(BYTE_PIECE.fullmatch, vocabulary)}
        if unknown is not None:
            reserved.add(unknown)
        # SentencePiece never merges to or from a reserved piece. The merges, which are worked out
        # from the spelling of pieces, may say otherwise.
        merges = []
        for merge in model["merges"]:
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
                self._refuse(f"its merge {[left, right]} is not of pieces in its vocabulary")
            if not reserved & {left, right, left + right}:
                merges.append([left, right])
        self.vocab_size: int = 1 + max([*vocabulary.values(), *self.special_ids.values()])
        pre_tokenizer = document.get("pre_tokenizer")
        if pre_tokenizer is not None and pre_tokenizer["type"] != "Metaspace":
            self._refuse(f"its pre-tokenizer {pre_tokenizer['type']!r} is not supported")
        self.trim_spaces = bool(document.get("trim_spaces"))
        self._document: dict[str, Any] = {
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

    def _refuse(self, reason: str) -> NoReturn:
        raise TokenizerError(f"{self._where} cannot be used as a tokenizer: {reason}")


class PieceTokenizer:
    """A SentencePiece vocabulary at work."""

    cuttable = False

    def __init__(self, vocabulary: PieceVocabulary, *, name: str, eot_id: int | None) -> None:
        self.name = name
        self.eot_id = eot_id
        self._vocabulary = vocabulary
        self._native: Any = vocabulary.native()

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.vocab_size

    @property
    def special_ids(self) -> Mapping[str, int]:
        return dict(self._vocabulary.special_ids)

    @cached_property
    def fingerprint(self) -> str:
        content = {"eot_id": self.eot_id, "vocabulary": self._vocabulary.content()}
        return hash_content(self._vocabulary.kind, content)

    def encode_terminated(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        """The ids of all texts, each followed by the end-of-text id; see `encode_terminated`."""
        if self._native is None:
            self._native = self._vocabulary.native()
        if self._vocabulary.trim_spaces:
            texts = [text.strip(b" ") for text in texts]
        return gather([self._native.encode(text) for text in texts], self.eot_id)

    def encode_batch(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        return drop_terminators(*self.encode_terminated(texts))

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        flat = check_ids(ids, self.vocab_size, self.name).tolist()
        if self._native is None:
            self._native = self._vocabulary.native()
        spellings = {number: token for token, number in self._vocabulary.special_ids.items()}
        text = []
        run: list[int] = []
        for number in [*flat, None]:
            if number is not None and number not in spellings:
                run.append(number)
                continue
            if run:
                text.append(self._native.decode(run).decode("utf-8", errors="replace"))
                run = []
            if number is not None:
                text.append(spellings[number])
        return "".join(text)

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        """The bytes that each id spells inside a text; 0 where the vocabulary has a gap."""
        lengths = np.zeros(self.vocab_size, np.int64)
        for piece, number in self._vocabulary.content()["model"]["vocab"].items():
            is_byte = BYTE_PIECE.fullmatch(piece)
            lengths[number] = 1 if is_byte else len(piece.replace("\u2581", " ").encode())
        return lengths

    def forget(self) -> None:
        """Free the memory that the words met so far take; the next text rebuilds what it needs."""
        self._native = None

    def state(self) -> dict[str, Any]:
        return {
            "kind": self._vocabulary.kind,
            "name": self.name,
            "eot_id": self.eot_id,
            **self._vocabulary.state(),
        }

    def __repr__(self) -> str:
        return f"PieceTokenizer({self.name!r}, vocab_size={self.vocab_size})"

    def __reduce__(self) -> tuple[Any, ...]:
        from tokenmill.tokenizers.load import from_state

        return from_state, (self.state(),)
