"""Byte-level BPE from a `tokenizer.json`, the format of the `tokenizers` library.

Guarantees: an accepted file encodes text exactly as `tokenizers` does when it treats special tokens
as plain text and adds none. Any other file is refused with the reason. gigatoken ignores fields that
it does not know, so its ids could be silently wrong. This module therefore checks such fields:
dropout, prefixes and suffixes of words, kinds of splits, merges whose result is not a token.
Truncation, padding and post-processors do not change how a text is encoded, so they are ignored.

Added tokens that are not special are part of the encoding and stay. Special tokens are removed from
the vocabulary, so that text is never encoded as one. Checking takes 0.08 s for 50,000 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NoReturn, Self

import orjson

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.bpe import (
    TERMINATOR,
    BytePairTokenizer,
    UnsupportedError,
    call_native,
)
from tokenmill.tokenizers.cutting import CutRules, find_family, is_cuttable
from tokenmill.tokenizers.limits import check_added, check_gaps, check_id, list_steps
from tokenmill.wording import brief

_WHITE_SPACE = " \t\r\n"
_VISIBLE = (*range(33, 127), *range(161, 173), *range(174, 256))
# How byte-level vocabularies spell each byte: as itself if visible, else as a letter from U+0100 on.
BYTE_LETTERS = {byte: chr(byte) for byte in _VISIBLE}
for _byte in range(256):
    BYTE_LETTERS.setdefault(_byte, chr(256 + len(BYTE_LETTERS) - len(_VISIBLE)))


def check_added_ids(document: Mapping[str, Any], where: str) -> None:
    """Refuse a file in which an added token has another id than in the `tokenizers` library.

    The library ignores the ids of added tokens in the file. It numbers these tokens in the order of
    the file, after the vocabulary.
    """
    ids = dict(document["model"]["vocab"])
    free = len(ids)
    for token in document.get("added_tokens") or []:
        content = token["content"]
        if content not in ids:
            ids[content] = free
            free += 1
            if token["id"] != ids[content]:
                raise TokenizerError(
                    f"{where} cannot be used as a tokenizer: its added token {brief(content)} has "
                    f"the id {brief(token['id'])}, but the `tokenizers` library uses {ids[content]}"
                )


class DocumentVocabulary:
    """A vocabulary in the form of a tokenizer.json, checked, with only the fields that decide ids."""

    special_ids: dict[str, int]
    vocab_size: int
    _document: dict[str, Any]

    def __init__(self, document: Mapping[str, Any], where: str) -> None:
        self._where = where
        try:
            self._read(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TokenizerError(
                f"{where} is damaged or not a tokenizer.json: {type(error).__name__} {error}"
            ) from error

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], where: str) -> Self:
        specials = [
            {"id": number, "content": token, "special": True}
            for token, number in settings["special_ids"].items()
        ]
        document = dict(settings["tokenizer"])
        document["added_tokens"] = [*document["added_tokens"], *specials]
        return cls(document, where)

    def content(self) -> Any:
        return self._document

    def settings(self) -> dict[str, Any]:
        return {"special_ids": self.special_ids, "tokenizer": self._document}

    def _read(self, document: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _check_ids(self, vocabulary: Mapping[str, Any]) -> None:
        for token, number in vocabulary.items():
            check_id(token, number, self._where)
        if len(set(vocabulary.values())) != len(vocabulary):
            self._refuse("its vocabulary gives one id to two tokens")

    def _refuse(self, reason: str) -> NoReturn:
        raise UnsupportedError(f"{self._where} cannot be used as a tokenizer: {reason}")


class JsonTokenizer(BytePairTokenizer):
    """A tokenizer from a tokenizer.json."""

    kind = "bpe"

    @classmethod
    def read_vocabulary(cls, settings: Mapping[str, Any], where: str) -> JsonVocabulary:
        return JsonVocabulary.from_settings(settings, where)


class JsonVocabulary(DocumentVocabulary):
    """A byte-level BPE vocabulary."""

    def native(self, added: Mapping[str, int]) -> Any:
        import gigatoken

        extra = [_make_added(token, number) for token, number in added.items()]
        document = {**self._document, "added_tokens": [*self._kept, *extra]}
        return call_native(
            lambda: gigatoken.Tokenizer.from_json(orjson.dumps(document)), where=self._where
        )

    def _read(self, document: Mapping[str, Any]) -> None:
        vocabulary, merges, made = self._read_model(document["model"])
        nfc = self._is_nfc(list_steps(document.get("normalizer"), self._where))
        pre_tokenizer, pattern, prefix_space = self._read_pre_tokenizer(document["pre_tokenizer"])
        specials, kept = self._read_added(document.get("added_tokens") or [], vocabulary, nfc=nfc)
        refuse_overlaps(specials, [token["content"] for token in kept], self._refuse)

        # A special token that merges can make, such as "!" declared as padding, is also an ordinary
        # token: text can be encoded as it, so it is not special here.
        self.special_ids = {
            token: number
            for token, number in specials.items()
            if token not in vocabulary or not (token in made or len(token) == 1)
        }
        vocabulary = {
            token: number for token, number in vocabulary.items() if token not in self.special_ids
        }
        numbers = [*vocabulary.values(), *self.special_ids.values(), *(t["id"] for t in kept)]
        self.vocab_size = 1 + max(numbers)
        check_gaps(self.vocab_size, len(numbers), self._where)
        taken = set(vocabulary.values())
        for token, number in self.special_ids.items():
            if number in taken:
                self._refuse(f"special token {token!r} shares the id {number} with an ordinary one")

        self.joinable = not any(TERMINATOR in token["content"] for token in kept)
        family = None if prefix_space else find_family(pattern)
        self.cuttable = is_cuttable(family, nfc=nfc) and all(map(leaves_cuts, kept))
        self.cut_rules = None
        if family is not None and not any(token["lstrip"] or token["rstrip"] for token in kept):
            pairs = [pair for token in kept for pair in _find_byte_pairs(token["content"])]
            self.cut_rules = CutRules(family, nfc=nfc, forbidden=frozenset(pairs))
        self.merging = not kept
        self._kept = kept
        self._document = {
            "added_tokens": kept,
            "normalizer": {"type": "NFC"} if nfc else None,
            "pre_tokenizer": pre_tokenizer,
            "model": {
                "type": "BPE",
                "vocab": vocabulary,
                "merges": merges,
                "ignore_merges": bool(document["model"].get("ignore_merges")),
            },
        }

    def _read_model(self, model: Mapping[str, Any]) -> tuple[dict[str, int], list[str], set[str]]:
        """Return the vocabulary, the merges as `left right`, and the tokens that merges can make."""
        if model.get("type", "BPE") != "BPE":
            self._refuse(f"its model is {brief(model['type'])}; only BPE is supported")
        for setting in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if model.get(setting):
                self._refuse(
                    f"its model sets {setting} to {brief(model[setting])}, which is not supported"
                )
        vocabulary = dict(model["vocab"])
        missing = [byte for byte, letter in BYTE_LETTERS.items() if letter not in vocabulary]
        if missing:
            self._refuse(f"its vocabulary has no token for the byte 0x{missing[0]:02x}")
        self._check_ids(vocabulary)
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        made = set()
        for merge in merges:
            left, _, right = merge.partition(" ")
            if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
                self._refuse(f"its merge {brief(merge)} uses tokens that its vocabulary lacks")
            made.add(left + right)
        return vocabulary, merges, made

    def _is_nfc(self, steps: list[Mapping[str, Any]]) -> bool:
        """Return whether texts are normalized to NFC, the only normalizer that is supported."""
        for step in steps:
            if step["type"] != "NFC":
                self._refuse(f"its normalizer is {brief(step['type'])}; only NFC is supported")
        return bool(steps)

    def _read_pre_tokenizer(
        self, pre_tokenizer: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], str | None, bool]:
        """Return the canonical pre-tokenizer, its pattern, and whether it adds a leading space."""
        steps = [pre_tokenizer] if pre_tokenizer else []
        if pre_tokenizer and pre_tokenizer["type"] == "Sequence":
            steps = list(pre_tokenizer["pretokenizers"])
        if not steps or steps[-1]["type"] != "ByteLevel":
            self._refuse(
                "its pre-tokenizer does not end with ByteLevel; only byte-level BPE is supported"
            )
        *splits, last = steps
        use_regex = bool(last.get("use_regex", True))
        prefix_space = bool(last["add_prefix_space"])
        if not splits and not use_regex:
            # gigatoken would still split by GPT-2's pattern.
            self._refuse(
                "its pre-tokenizer is ByteLevel with use_regex=false and without a Split, which is not "
                "supported"
            )
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": prefix_space,
            "use_regex": use_regex,
            "trim_offsets": True,
        }
        if not splits:
            return byte_level, None, prefix_space
        for split in splits:
            # If a pattern matches all text, these two give the same pieces: isolate each match, or
            # remove everything that does not match.
            is_isolating = split["type"] == "Split" and (
                split["behavior"],
                bool(split["invert"]),
            ) in {
                ("Isolated", False),
                ("Removed", True),
            }
            if not is_isolating or "Regex" not in split["pattern"]:
                self._refuse(
                    f"its pre-tokenizer has a step {brief(split['type'])} that is not supported"
                )
        if use_regex or prefix_space:
            self._refuse(
                "its pre-tokenizer has a Split, so its ByteLevel must have use_regex=false and "
                "add_prefix_space=false"
            )
        canonical: list[dict[str, Any]] = [
            {
                "type": "Split",
                "pattern": {"Regex": split["pattern"]["Regex"]},
                "behavior": "Isolated",
                "invert": False,
            }
            for split in splits
        ]
        pattern = canonical[0]["pattern"]["Regex"] if len(canonical) == 1 else ""
        return {"type": "Sequence", "pretokenizers": [*canonical, byte_level]}, pattern, False

    def _read_added(
        self, added: list[Mapping[str, Any]], vocabulary: Mapping[str, int], *, nfc: bool
    ) -> tuple[dict[str, int], list[dict[str, Any]]]:
        """Return the special tokens with their ids, and the other added tokens in canonical form."""
        specials: dict[str, int] = {}
        kept = []
        for token in added:
            content = check_added(token["content"], self._where)
            number = vocabulary.get(content, check_id(content, token["id"], self._where))
            if token.get("special"):
                specials[content] = number
                continue
            if token.get("single_word"):
                self._refuse(
                    f"its added token {content!r} matches whole words only, which is not supported"
                )
            if nfc and token.get("normalized") and content.strip(_WHITE_SPACE):
                self._refuse(
                    f"its added token {content!r} matches normalized text only, which is not supported"
                )
            strips = {side: bool(token.get(side)) for side in ("lstrip", "rstrip")}
            kept.append(_make_added(content, number) | strips)
        return specials, sorted(kept, key=lambda token: (token["id"], token["content"]))


def refuse_overlaps(
    specials: Mapping[str, int], added: list[str], refuse: Callable[[str], NoReturn]
) -> None:
    """Refuse added tokens that can overlap a special token in a text.

    `tokenizers` searches for both kinds at once, even if it then encodes special tokens as plain
    text. So it does not find an added token that overlaps a special token.
    """
    if not added:
        return
    heads = {token[:end]: token for token in specials for end in range(1, len(token) + 1)}
    tails = {token[start:]: token for token in specials for start in range(1, len(token))}
    joined = "\0".join(specials)  # searching this once is faster than searching each token
    for content in added:
        hiding = _find_start(content, specials, heads)
        if hiding is None and content in joined:
            hiding = next((token for token in specials if content in token), None)
        if hiding is None:
            ends = (content[:end] for end in range(1, len(content)))
            hiding = next((tails[end] for end in ends if end in tails), None)
        if hiding is not None:
            refuse(f"its added token {content!r} overlaps its special token {hiding!r}")


def _find_start(content: str, specials: Mapping[str, int], heads: Mapping[str, str]) -> str | None:
    """Return a special token that can start inside the added token `content`; None if none can.

    `heads` maps each prefix of a special token to that token.
    """
    for start in range(len(content)):
        for end in range(start + 1, len(content) + 1):
            if content[start:end] not in heads:
                break
            if content[start:end] in specials:
                return content[start:end]
        else:
            return heads[content[start:]]
    return None


def _make_added(content: str, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "content": content,
        "special": False,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }


def leaves_cuts(token: Mapping[str, Any]) -> bool:
    """Return whether texts with an added token may be cut between any letter and a following space.

    They may if no such place can be inside the token, and the token does not include the white
    space after it (`rstrip`).
    """
    content = token["content"]
    return not token["rstrip"] and (
        not content.strip(_WHITE_SPACE) or not set(content) & set(_WHITE_SPACE)
    )


def _find_byte_pairs(content: str) -> list[int]:
    data = content.encode()
    return [before << 8 | after for before, after in pairwise(data)]
