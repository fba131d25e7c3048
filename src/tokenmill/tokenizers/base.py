"""The interface between the pipeline and a tokenizer. Subclass `Tokenizer` to use your own.

A subclass sets `kind`, `name` and `vocab_size` and implements `encode`, `decode` and `settings`.
Everything else has a default that works for any tokenizer. The defaults encode one text at a time:
if your library encodes many texts at once, override `encode_batch` or `encode_terminated`. The
defaults also hold a long document in memory: to encode it in pieces, set `cuttable` or override
`settle`.

Instances are pickled for worker processes, so the class must be importable by name.
docs/tokenizers.md has a complete example.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.id_arrays import Ids, Offsets, add_terminators, check_ids
from tokenmill.wording import brief

NO_IDS: Ids = np.zeros(0, np.uint32)
_CUT = re.compile(rb"[A-Za-z](?=[ \n])")
_CUT_SEARCH = 1 << 16  # bytes at the end of a text that are searched for a place to cut

# In order of preference. Tokens that end a document come before tokens that end a turn in a chat.
_EOT_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<EOS>",
    "[EOS]",
    "<|eos|>",
    "<|end▁of▁sentence|>",
    "<｜end▁of▁sentence｜>",
    "<|im_end|>",
    "<|eot_id|>",
)


class Tokenizer(ABC):
    """Converts UTF-8 text to ids and back.

    If a text contains the spelling of a special token, such as `<|endoftext|>`, that spelling is
    encoded as plain text, never as the special id.

    Attributes that a subclass sets, on the class or in `__init__`:

    - `kind`: identifies the class in a dataset's `tokenizer_state.json`. Set it on the class, to
      a name that no other class uses, such as "my_package.words".
    - `name`: a short name for people, such as "gpt2".
    - `vocab_size`: one more than the largest id, special ids included.
    - `eot_id`: the id between documents, or None.
    - `special_ids`: the ids of special tokens by spelling, including the end of text if it has a
      spelling. Encoding never returns one of these ids. In a loss per byte, they count as 0 bytes.
    - `cuttable`: whether a text may be cut between a letter (`str.isalpha`) and a following space
      or line end. Encoding the two pieces must then give the ids of the whole text. If true, long
      documents are encoded in pieces, and large files may be split inside a document.
    - `weight`: how many times as much memory as gigatoken it takes for a byte of text. A document that
      has to be held whole is refused if it is larger than the memory allows.
    - `note`: what `prepare` tells the user about the tokenizer before it begins, or None.
    """

    kind: ClassVar[str] = ""
    name: str = ""
    vocab_size: int = 0
    eot_id: int | None = None
    special_ids: Mapping[str, int] = MappingProxyType({})
    cuttable: bool = False
    weight: ClassVar[int] = 1
    note: ClassVar[str | None] = None

    @abstractmethod
    def encode(self, text: bytes) -> Sequence[int] | npt.NDArray[Any]:
        """Return the ids of a text, without an end-of-text id.

        `prepare` passes valid UTF-8 only, because it repairs or refuses everything else.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """Return the text of some ids. Bytes that are not valid UTF-8 become U+FFFD.

        Built-in tokenizers write special tokens as their text. If your tokenizer has a list of the
        bytes of each id, implement this with `id_arrays.spell`, which also refuses ids outside
        the vocabulary.
        """

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return everything that decides the ids and attributes, as JSON values.

        `from_settings` makes an equal tokenizer from these values.

        Every dataset stores these settings, and the fingerprint is their hash. If the encoding code
        may change, include a version number.
        """

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Make the tokenizer with these settings. The default calls `cls(**settings)`.

        Settings come from a file in a dataset. Raise TokenizerError, ValueError, TypeError or
        KeyError if they are damaged.
        """
        return cls(**settings)

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides ids.

        Tokenizers with equal fingerprints encode every text to the same ids, and have the same
        end-of-text id.
        """
        return hash_content(self.kind, self.settings())

    def encode_batch(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        """Return the ids of all texts in one flat array, and `len(texts) + 1` offsets into it."""
        found = [check_ids(self.encode(text), self.vocab_size, self.name) for text in texts]
        offsets = np.cumsum([0, *map(len, found)], dtype=np.int64)
        return np.concatenate([NO_IDS, *(ids.astype(np.uint32) for ids in found)]), offsets

    def encode_terminated(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        """Return the ids of all texts, each followed by one slot that holds the end-of-text id.

        The slot holds 0 if there is no end-of-text id. The `len(texts) + 1` offsets count the slots:
        text `i` is `ids[offsets[i] : offsets[i + 1] - 1]`.

        >>> from tokenmill.tokenizers import load_tokenizer
        >>> ids, offsets = load_tokenizer("bytes").encode_terminated([b"ab", b"", b"c"])
        >>> ids.tolist(), offsets.tolist()
        ([97, 98, 256, 256, 99, 256], [0, 3, 4, 6])
        """
        return add_terminators(*self.encode_batch(texts), self.eot_id)

    def encode_block(self, block: bytes) -> tuple[Ids, Offsets]:
        """Encode texts that are joined by NUL bytes; returns the same as `encode_terminated`.

        The texts must not contain NUL.

        >>> from tokenmill.tokenizers import load_tokenizer
        >>> ids, offsets = load_tokenizer("bytes").encode_block(b"ab\\0\\0c")
        >>> ids.tolist(), offsets.tolist()
        ([97, 98, 256, 256, 99, 256], [0, 3, 4, 6])
        """
        return self.encode_terminated(block.split(b"\0"))

    def settle(self, text: bytes) -> tuple[Ids, int]:
        """Return the final ids at the start of a text, and the number of bytes that they cover.

        An id is final if it stays the same whatever text follows. If the tokenizer is `cuttable`,
        the default implementation cuts the text near its end. Otherwise the default returns no ids,
        and the caller has to hold the whole text.
        """
        cut = 0
        if self.cuttable:
            for match in _CUT.finditer(text, max(0, len(text) - _CUT_SEARCH)):
                cut = match.end()
        return (self.encode_batch([text[:cut]])[0], cut) if cut else (NO_IDS, 0)

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        """Return how many bytes of text each id stands for: an array of `vocab_size` numbers.

        Unused ids have 0. The default decodes each id on its own, which is inexact for ids that
        stand for a part of a character.
        """
        return np.array([self._measure(number) for number in range(self.vocab_size)], np.int64)

    def spellings(self) -> Sequence[bytes | None] | None:
        """Return a list with the bytes of each id. The default returns None: there is no such list.

        A list is right only if decoding any ids gives their bytes, joined. There is one exception:
        if `decode` drops a space that encoding adds before a text, the bytes include that space.
        The entry of an unused id is None. If there is a list, `tokenmill search` compares ids;
        otherwise, it decodes all documents.

        >>> from tokenmill.tokenizers import load_tokenizer
        >>> load_tokenizer("gpt2").spellings()[:3]
        [b'!', b'"', b'#']
        """
        return None

    def forget(self) -> None:  # noqa: B027 (optional)
        """Free memory held by caches. The pipeline calls this when memory runs short."""

    def state(self) -> dict[str, Any]:
        """Return the kind and the settings: the content of `tokenizer_state.json`."""
        return {"kind": self.kind, **self.settings()}

    def _measure(self, number: int) -> int:
        try:
            text = self.decode([number])
        except TokenizerError:  # a gap in the vocabulary
            return 0
        return len(text.encode()) - 2 * text.count("\ufffd")  # U+FFFD has 3 bytes, stands for 1


def hash_content(kind: str, content: Any) -> str:
    """Hash the kind and content of a tokenizer. Returns 32 hexadecimal digits.

    `content` is everything that decides the ids of a text, as JSON values. Its canonical form is
    hashed, so the order of keys, the machine and library versions do not matter. Takes about 20 ms
    for 50,000 tokens.

    >>> hash_content("bytes", {"a": 1, "b": 2}) == hash_content("bytes", {"b": 2, "a": 1})
    True
    >>> hash_content("bytes", {}) == hash_content("bpe", {})
    False
    """
    canonical = orjson.dumps(["tokenmill", 1, kind, content], option=orjson.OPT_SORT_KEYS)
    return xxhash.xxh3_128_hexdigest(canonical)


def choose_eot(
    special_ids: Mapping[str, int],
    vocab_size: int,
    requested: str | int | None = None,
    configured: str | None = None,
    *,
    where: str,
) -> int | None:
    """Return the end-of-text id: the requested, else the configured, else a common one, else None.

    `requested` and `configured` are special tokens; `requested` may also be an id. A common one is
    a special token such as `<|endoftext|>` or `</s>`. Error messages call the tokenizer `where`.

    >>> choose_eot({"<pad>": 0, "</s>": 2}, 100, where="x.model")
    2
    >>> choose_eot({"</s>": 2, "<|stop|>": 3}, 100, configured="<|stop|>", where="x.model")
    3
    >>> choose_eot({"</s>": 2}, 100, "<pad>", where="x.model")
    Traceback (most recent call last):
    ...
    tokenmill.errors.TokenizerError: x.model has no special token '<pad>'; it has: '</s>'
    """
    if isinstance(requested, str) and requested not in special_ids:
        if not re.fullmatch("[0-9]{1,10}", requested):
            known = ", ".join(repr(token) for token in list(special_ids)[:20]) or "none"
            raise TokenizerError(f"{where} has no special token {requested!r}; it has: {known}")
        requested = int(requested)
    if isinstance(requested, int):
        if not 0 <= requested < vocab_size:
            raise TokenizerError(
                f"the end-of-text id {requested} is not an id of {where}, "
                f"whose ids are 0 to {vocab_size - 1}"
            )
        return requested
    for token in (requested, configured, *_EOT_TOKENS):
        if token is not None and token in special_ids:
            return special_ids[token]
    return None


def read_eot_id(settings: Mapping[str, Any], vocab_size: int) -> int | None:
    """Return the end-of-text id in the settings of a tokenizer, after checking its range."""
    eot_id = settings["eot_id"]
    if eot_id is not None and (type(eot_id) is not int or not 0 <= eot_id < vocab_size):
        raise ValueError(f"end-of-text id {brief(eot_id)}")
    return eot_id
