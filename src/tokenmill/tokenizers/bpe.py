r"""Byte-level byte-pair encoding with gigatoken.

Guarantees: every text gets the same ids as if the vocabulary's own library (`tokenizers`,
`tiktoken`) encoded that text alone. The spelling of a special token is plain text, and encoding
never returns the id of a special token.

Cost: a batch is joined with NUL bytes and encoded by one native call. NUL is added to the vocabulary
as a token with an unused id. gigatoken splits at added tokens first, so the ids between two NULs are
the same as if the text were encoded alone. One comparison per id finds the ends of texts. On one
core, this encodes about 150 MB/s of new text, and 250 MB/s of text whose words are cached. Encoding
texts of a few hundred bytes one by one would take four times as long. gigatoken can encode batches
itself, but for that it imports the package `awkward`, which takes half a second.

gigatoken caches every word it encodes, without a limit: for text without repetitions, the cache grows
larger than the text. `forget` frees the cache together with gigatoken's tables. The next call
rebuilds the tables in 0.1 s.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.base import Tokenizer, hash_content, read_eot_id
from tokenmill.tokenizers.cutting import CutRules
from tokenmill.tokenizers.id_arrays import (
    Ids,
    Offsets,
    drop_terminators,
    join_batches,
    spell,
    terminate_texts,
)
from tokenmill.tokenizers.long_text import Settler
from tokenmill.wording import brief

TERMINATOR = "\0"
_LONGEST_NAME = 1000


class UnsupportedError(TokenizerError):
    """A tokenizer that gigatoken cannot encode exactly, or not at all."""


class Vocabulary(Protocol):
    """The vocabulary in a file. Each file format has its own class."""

    special_ids: dict[str, int]
    vocab_size: int

    def content(self) -> Any:
        """Return everything that decides the ids of a text, as JSON values in canonical form."""

    def settings(self) -> dict[str, Any]:
        """Return the settings that restore the vocabulary, as JSON values."""


class BytePairVocabulary(Vocabulary, Protocol):
    """The byte-level BPE vocabulary in a file. Each file format has its own class."""

    cuttable: bool
    joinable: bool  # whether NUL can be added as a token
    cut_rules: CutRules | None  # if None, `cuttable` alone says where a text may be cut
    merging: bool  # whether merges alone decide the ids: true if there are no added tokens

    def native(self, added: Mapping[str, int]) -> Any:
        """Make a gigatoken tokenizer with these added tokens and without special tokens."""


class VocabularyTokenizer(Tokenizer):
    """A tokenizer with the vocabulary of a file."""

    def __init__(self, vocabulary: Vocabulary, *, name: str, eot_id: int | None) -> None:
        self.name = name
        self.eot_id = eot_id
        self.vocab_size = vocabulary.vocab_size
        self.special_ids = vocabulary.special_ids
        self._vocabulary = vocabulary

    @classmethod
    @abstractmethod
    def read_vocabulary(cls, settings: Mapping[str, Any], where: str) -> Any:
        """Read the vocabulary from saved settings. Error messages name `where`."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        name = settings["name"]
        if not isinstance(name, str) or len(name) > _LONGEST_NAME:
            raise ValueError(f"name {brief(name)}")
        vocabulary = cls.read_vocabulary(settings, f"the state of tokenizer {name!r}")
        return cls(vocabulary, name=name, eot_id=read_eot_id(settings, vocabulary.vocab_size))

    @cached_property
    def fingerprint(self) -> str:
        content = {"eot_id": self.eot_id, "vocabulary": self._vocabulary.content()}
        return hash_content(self.kind, content)

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "eot_id": self.eot_id, **self._vocabulary.settings()}

    def encode_batch(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        return drop_terminators(*self.encode_terminated(texts))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, vocab_size={self.vocab_size})"


class BytePairTokenizer(VocabularyTokenizer):
    """Encodes with a byte-level BPE vocabulary. Each subclass reads one file format.

    `checked` means that gigatoken is known to accept the vocabulary. Then gigatoken's tables are
    built by the first call that needs them, not by `__init__`.
    """

    _vocabulary: BytePairVocabulary

    def __init__(
        self,
        vocabulary: BytePairVocabulary,
        *,
        name: str,
        eot_id: int | None,
        checked: bool = False,
    ) -> None:
        super().__init__(vocabulary, name=name, eot_id=eot_id)
        self.cuttable = vocabulary.cuttable
        self._joining: Any = None  # gigatoken's tokenizer that has the terminator as a token
        self._plain: Any = None  # without the terminator; only texts that contain NUL need it
        if not checked:
            self._joiner()  # raises now if gigatoken refuses the vocabulary

    def encode(self, text: bytes) -> Ids:
        return self.encode_batch([text])[0]

    def encode_terminated(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        joined = b"\0".join([*texts, b""])
        # Count with NumPy, because `bytes.count` takes ten times as long.
        terminators = np.count_nonzero(np.frombuffer(joined, np.uint8) == 0)
        if self._vocabulary.joinable and terminators == len(texts):
            return self._encode_joined(joined)
        runs = []
        for alone, run in groupby(texts, self._must_be_alone):
            if alone:
                runs.append(terminate_texts(self._encode_alone(run), self.eot_id))
            else:
                members = [*run, b""]
                runs.append(self._encode_joined(b"\0".join(members)))
        return join_batches(runs)

    def encode_block(self, block: bytes) -> tuple[Ids, Offsets]:
        if not self._vocabulary.joinable:
            return super().encode_block(block)
        return self._encode_joined(block + b"\0")

    def settle(self, text: bytes) -> tuple[Ids, int]:
        if self._settler is None:
            return super().settle(text)
        return self._settler.settle(text)

    @cached_property
    def _settler(self) -> Settler | None:
        rules = self._vocabulary.cut_rules
        if rules is None:
            return None
        merging = self._vocabulary.merging
        return Settler(rules, self.encode_batch, self._spellings, merging=merging)

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        return spell(ids, self._spellings, self.name)

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        return np.array([len(spelling or b"") for spelling in self._spellings], np.int64)

    def spellings(self) -> Sequence[bytes | None]:
        return self._spellings

    def forget(self) -> None:
        self._joining = None
        self._plain = None

    def __getstate__(self) -> dict[str, Any]:
        # gigatoken's objects cannot be pickled; a copy in another process builds its own.
        state = {**self.__dict__, "_joining": None, "_plain": None}
        state.pop("_settler", None)
        return state

    def _must_be_alone(self, text: bytes) -> bool:
        return not self._vocabulary.joinable or b"\0" in text

    def _encode_joined(self, joined: bytes) -> tuple[Ids, Offsets]:
        ids: Ids = call_native(lambda: self._joiner().encode(joined), where=self.name)
        ends = np.flatnonzero(ids == self.vocab_size)
        ids[ends] = self.eot_id or 0
        return ids, np.concatenate(([0], ends + 1))

    def _encode_alone(self, texts: Iterable[bytes]) -> list[Ids]:
        plain = self._plainer()
        ids: list[Ids] = call_native(lambda: list(map(plain.encode, texts)), where=self.name)
        return ids

    def _joiner(self) -> Any:
        if self._joining is None:
            self._joining = self._vocabulary.native({TERMINATOR: self.vocab_size})
        return self._joining

    def _plainer(self) -> Any:
        if self._plain is None:
            self._plain = self._vocabulary.native({})
        return self._plain

    @cached_property
    def _spellings(self) -> list[bytes | None]:
        spellings: list[bytes | None] = [None] * self.vocab_size
        for number, spelling in self._joiner().vocab.items():
            if number < self.vocab_size:
                spellings[number] = spelling
        for token, number in self.special_ids.items():
            spellings[number] = token.encode()
        return spellings


def call_native(call: Callable[[], Any], *, where: str) -> Any:
    """Call gigatoken. If it fails, raise a TokenizerError with the reason."""
    try:
        return call()
    except BaseException as error:
        # A panic in Rust is a BaseException. Ctrl-C and exit must pass through.
        is_panic = type(error).__name__ == "PanicException"
        if isinstance(error, MemoryError) or not (is_panic or isinstance(error, Exception)):
            raise
        reason = str(error).partition("\n")[0][:300]
        if is_panic:
            reason = f"gigatoken finds its vocabulary inconsistent ({reason})"
        raise UnsupportedError(f"{where} cannot be used as a tokenizer: {reason}") from error
