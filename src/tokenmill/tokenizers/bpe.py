r"""Byte-level byte-pair encoding, by gigatoken.

Guarantees: the ids are those of the vocabulary's own library (`tokenizers`, `tiktoken`) for every
text, each text encoded alone; text that spells a special token is ordinary text; no id of a
special token is ever given.

Cost: a batch is joined with NUL bytes and encoded by one native call, in which NUL is a token of
its own with an id that the vocabulary does not have. gigatoken splits at such a token before
anything else, so the ids between two are those of the text alone, and finding them again is one
comparison an id. About 150 MB/s a core at first sight of a text and 250 once its words are known;
texts of a few hundred bytes one by one would take four times as long. awkward, which
gigatoken's own batches return and which takes half a second to import, stays out.

gigatoken remembers every word it has met and never forgets one: after text without repetitions
this is more than the text's size. `forget` gives that memory back, for a rebuild of 0.1 s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.cutting import CutRules
from tokenmill.tokenizers.fingerprint import hash_content
from tokenmill.tokenizers.protocol import Ids, Offsets
from tokenmill.tokenizers.settle import Settler
from tokenmill.tokenizers.spelling import spell
from tokenmill.tokenizers.terminated import concatenate, drop_terminators, gather

TERMINATOR = "\0"


class Vocabulary(Protocol):
    """What a format of vocabulary files has to offer for `BytePairTokenizer` to work with it."""

    kind: str
    special_ids: dict[str, int]
    vocab_size: int
    cuttable: bool
    joinable: bool
    cut_rules: CutRules | None  # None: only `cuttable` is known
    merging: bool  # whether the text between two cuts is only merged

    def native(self, added: Mapping[str, int]) -> Any:
        """A gigatoken tokenizer without special tokens, but with these added tokens."""

    def content(self) -> Any:
        """All that decides the ids of a text, JSON-able and in canonical form."""

    def state(self) -> dict[str, Any]:
        """What the vocabulary can be made from again, JSON-able."""


class BytePairTokenizer:
    """A byte-level BPE vocabulary at work."""

    def __init__(
        self, vocabulary: Vocabulary, *, name: str, eot_id: int | None, trusted: bool = False
    ) -> None:
        self.name = name
        self.eot_id = eot_id
        self._vocabulary = vocabulary
        self._joining: Any = None  # with the terminator as a token
        self._plain: Any = None  # without; only texts that contain NUL need it
        if not trusted:
            self._joiner()  # a vocabulary that gigatoken refuses is refused now

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.vocab_size

    @property
    def special_ids(self) -> Mapping[str, int]:
        return dict(self._vocabulary.special_ids)

    @property
    def cuttable(self) -> bool:
        return self._vocabulary.cuttable

    @cached_property
    def fingerprint(self) -> str:
        content = {"eot_id": self.eot_id, "vocabulary": self._vocabulary.content()}
        return hash_content(self._vocabulary.kind, content)

    def encode_terminated(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        """The ids of all texts, each followed by the end-of-text id; see `encode_terminated`."""
        joined = b"\0".join([*texts, b""])
        # NumPy, because bytes.count takes ten times as long.
        terminators = np.count_nonzero(np.frombuffer(joined, np.uint8) == 0)
        if self._vocabulary.joinable and terminators == len(texts):
            return self._encode_joined(joined)
        runs = []
        for alone, run in groupby(texts, self._must_be_alone):
            if alone:
                pieces = [self._plainer().encode(text) for text in run]
                runs.append(gather(pieces, self.eot_id))
            else:
                members = [*run, b""]
                runs.append(self._encode_joined(b"\0".join(members)))
        return concatenate(runs)

    def encode_block(self, block: bytes) -> tuple[Ids, Offsets]:
        """The same for texts joined by NUL bytes; see `encode_block`."""
        if not self._vocabulary.joinable:
            return self.encode_terminated(block.split(b"\0"))
        return self._encode_joined(block + b"\0")

    def encode_batch(self, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
        return drop_terminators(*self.encode_terminated(texts))

    def settle(self, text: bytes) -> tuple[Ids, int]:
        """The ids of the beginning of a text that no continuation changes, and its bytes."""
        if self._settler is None:
            return np.zeros(0, np.uint32), 0
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
        """The bytes that each id spells; 0 where the vocabulary has a gap."""
        return np.array([len(spelling or b"") for spelling in self._spellings], np.int64)

    def forget(self) -> None:
        """Free the memory that the words met so far take; the next text rebuilds what it needs."""
        self._joining = None
        self._plain = None

    def state(self) -> dict[str, Any]:
        return {
            "kind": self._vocabulary.kind,
            "name": self.name,
            "eot_id": self.eot_id,
            **self._vocabulary.state(),
        }

    def __repr__(self) -> str:
        return f"BytePairTokenizer({self.name!r}, vocab_size={self.vocab_size})"

    def __getstate__(self) -> dict[str, Any]:
        # The native half cannot be pickled; a copy in another process builds its own.
        state = {**self.__dict__, "_joining": None, "_plain": None}
        state.pop("_settler", None)
        return state

    def _must_be_alone(self, text: bytes) -> bool:
        return not self._vocabulary.joinable or b"\0" in text

    def _encode_joined(self, joined: bytes) -> tuple[Ids, Offsets]:
        ids: Ids = self._joiner().encode(joined)
        ends = np.flatnonzero(ids == self.vocab_size)
        ids[ends] = self.eot_id or 0
        return ids, np.concatenate(([0], ends + 1))

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
        for token, number in self._vocabulary.special_ids.items():
            spellings[number] = token.encode()
        return spellings


def build_native(build: Any, *arguments: Any, where: str) -> Any:
    """Call a constructor of gigatoken's; what it refuses is a TokenizerError that says why."""
    try:
        return build(*arguments)
    except BaseException as error:
        # A panic in Rust arrives as a BaseException; Ctrl-C and exit must stay what they are.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = str(error).partition("\n")[0]
        if not isinstance(error, Exception):
            reason = f"gigatoken finds its vocabulary inconsistent ({reason})"
        raise TokenizerError(f"{where} cannot be used as a tokenizer: {reason}") from error
