"""Byte-level BPE out of a tiktoken rank file: a token in base64 and its rank, a line each.

Guarantees: ids are those of `tiktoken.Encoding.encode_ordinary` with the same ranks and pattern.
The file does not say how text is split before merging, and the wrong way gives plausible ids that
are wrong, so that is never guessed: it follows from the name of a published file or is asked for.

Reading 50,000 ranks takes 0.05 s, and building them 0.1 s.
"""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.bpe import build_native
from tokenmill.tokenizers.cutting import CutRules, family_of_scheme, is_cuttable

SCHEMES = (
    "gpt2",
    "cl100k",
    "o200k",
    "qwen2",
    "qwen35",
    "olmo3",
    "deepseek_v3",
    "nemotron",
    "kimi",
)
ALIASES = {"r50k": "gpt2", "gpt4": "cl100k"}

# What the published files leave to the code around them.
PUBLISHED: dict[str, tuple[str, dict[str, int]]] = {
    "r50k_base": ("gpt2", {"<|endoftext|>": 50256}),
    "cl100k_base": (
        "cl100k",
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": ("o200k", {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
}


def read_rank_file(
    data: bytes, name: str, scheme: str | None, eot: str | int | None
) -> RankVocabulary:
    """The vocabulary in a rank file.

    A file other than the published ones has no special tokens. `eot` adds one with that spelling,
    whose id is the first after the ranks.

    >>> lines = b"".join(base64.b64encode(bytes([i])) + b" %d\\n" % i for i in range(256))
    >>> read_rank_file(lines, "mine.tiktoken", "cl100k", "<|end|>").special_ids
    {'<|end|>': 256}
    >>> read_rank_file(lines, "mine.tiktoken", None, None)
    Traceback (most recent call last):
    ...
    tokenmill.errors.TokenizerError: the name 'mine.tiktoken' does not say how text is split \
before merging; give `scheme`, one of: gpt2, cl100k, o200k, qwen2, qwen35, olmo3, deepseek_v3, \
nemotron, kimi
    """
    published = PUBLISHED.get(name.removesuffix(".tiktoken"))
    if scheme is None:
        if published is None:
            raise TokenizerError(
                f"the name {name!r} does not say how text is split before merging; "
                f"give `scheme`, one of: {', '.join(SCHEMES)}"
            )
        scheme = published[0]
    scheme = ALIASES.get(scheme, scheme)
    tokens = _parse(data, name)
    specials: dict[str, int] = {}
    if published is not None and scheme == published[0]:
        specials = published[1]
    elif isinstance(eot, str) and not eot.isdigit():
        specials = {eot: len(tokens)}
    return RankVocabulary(tokens, scheme, specials, name)


class RankVocabulary:
    """Tokens in the order of their ranks, and how text is split before they are merged."""

    kind = "tiktoken"
    joinable = True

    def __init__(
        self, tokens: Sequence[bytes], scheme: str, special_ids: Mapping[str, int], where: str
    ) -> None:
        if scheme not in SCHEMES:
            raise TokenizerError(f"`scheme` is {scheme!r}; it must be one of: {', '.join(SCHEMES)}")
        distinct = set(tokens)
        if len(distinct) != len(tokens) or b"" in distinct:
            raise TokenizerError(f"{where} is not a rank file: a token is empty or has two ranks")
        missing = [value for value in range(256) if bytes([value]) not in distinct]
        if missing:
            raise TokenizerError(f"{where} is not a rank file: no token is the byte {missing[0]}")
        for token, number in special_ids.items():
            if type(number) is not int or not len(tokens) <= number < 2**32 - 1:
                raise TokenizerError(
                    f"{where}: special token {token!r} cannot have the id {number!r}, "
                    f"which must follow the {len(tokens)} ranks"
                )
        self.special_ids = dict(special_ids)
        self.vocab_size = 1 + max([len(tokens) - 1, *special_ids.values()])
        family = family_of_scheme(scheme)
        self.cuttable = is_cuttable(family, nfc=False)
        self.cut_rules = CutRules(family, nfc=False) if family else None
        self.merging = True
        self._tokens = tokens
        self._scheme = scheme
        self._where = where

    def native(self, added: Mapping[str, int]) -> Any:
        import gigatoken

        # gigatoken reads ranks from a file only.
        with tempfile.TemporaryDirectory(prefix="tokenmill-") as folder:
            path = Path(folder) / "ranks.tiktoken"
            lines = [f"{token} {rank}\n" for rank, token in enumerate(self._in_base64())]
            path.write_text("".join(lines), encoding="ascii")
            return build_native(
                gigatoken.Tokenizer.from_tiktoken,
                path,
                self._scheme,
                dict(added),
                where=self._where,
            )

    def content(self) -> Any:
        return {"scheme": self._scheme, "tokens": self._in_base64()}

    def state(self) -> dict[str, Any]:
        return {
            "special_ids": self.special_ids,
            "scheme": self._scheme,
            "tokens": self._in_base64(),
        }

    def _in_base64(self) -> list[str]:
        return [base64.b64encode(token).decode("ascii") for token in self._tokens]


def _parse(data: bytes, name: str) -> list[bytes]:
    ranks: dict[int, bytes] = {}
    read = 0
    for number, line in enumerate(data.splitlines(), start=1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[int(rank)] = base64.b64decode(token, validate=True)
        except (ValueError, binascii.Error):
            shown = line[:40].decode("utf-8", errors="replace")
            raise TokenizerError(
                f"{name} is not a rank file: line {number} is not a token in base64 and a rank: {shown!r}"
            ) from None
        read += 1
        if len(ranks) != read:
            raise TokenizerError(
                f"{name} is not a rank file: line {number} repeats the rank {int(rank)}"
            )
    if sorted(ranks) != list(range(len(ranks))) or not ranks:
        raise TokenizerError(f"{name} is not a rank file: its ranks are not 0 to {len(ranks) - 1}")
    return [ranks[rank] for rank in range(len(ranks))]
