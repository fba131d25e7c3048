"""Byte-level BPE from a tiktoken file: on each line a token in base64 and its rank, which is its id.

Guarantees: the same ids as `tiktoken.Encoding.encode_ordinary` with the same tokens and pattern.
The file does not say how text is split before merging. A wrong split gives plausible but wrong ids,
so the split is never guessed: it follows from the name of a published file or is given as `scheme`.

Reading 50,000 tokens takes 0.05 s, and building gigatoken's tables takes 0.1 s.
"""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.bpe import BytePairTokenizer, call_native
from tokenmill.tokenizers.cutting import CutRules, find_family_of_scheme, is_cuttable
from tokenmill.tokenizers.limits import check_added, check_gaps
from tokenmill.wording import brief

SCHEMES = (
    *("gpt2", "cl100k", "o200k", "qwen2"),
    *("qwen35", "olmo3", "deepseek_v3", "nemotron", "kimi"),
)
ALIASES = {"r50k": "gpt2", "gpt4": "cl100k"}

# The scheme and special tokens of published files, which the files themselves do not contain.
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


def read_tiktoken_file(
    data: bytes, name: str, scheme: str | None, eot: str | int | None
) -> TiktokenVocabulary:
    """Read the vocabulary from a tiktoken file.

    A file other than the published ones has no special tokens. For such a file, a spelling
    given as `eot` becomes a special token, with the first id after the ranks.

    >>> lines = b"".join(base64.b64encode(bytes([i])) + b" %d\\n" % i for i in range(256))
    >>> read_tiktoken_file(lines, "mine.tiktoken", "cl100k", "<|end|>").special_ids
    {'<|end|>': 256}
    >>> read_tiktoken_file(lines, "mine.tiktoken", None, None)
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
    elif isinstance(eot, str) and not (eot.isascii() and eot.isdigit()):
        specials = {eot: len(tokens)}
    return TiktokenVocabulary(tokens, scheme, specials, name)


class TiktokenTokenizer(BytePairTokenizer):
    """A tokenizer from a tiktoken file."""

    kind = "tiktoken"

    @classmethod
    def read_vocabulary(cls, settings: Mapping[str, Any], where: str) -> TiktokenVocabulary:
        tokens = [base64.b64decode(token, validate=True) for token in settings["tokens"]]
        return TiktokenVocabulary(tokens, settings["scheme"], settings["special_ids"], where)


class TiktokenVocabulary:
    """Tokens in the order of their ranks, and the scheme by which text is split before merging."""

    joinable = True

    def __init__(
        self, tokens: Sequence[bytes], scheme: str, special_ids: Mapping[str, int], where: str
    ) -> None:
        if scheme not in SCHEMES:
            raise TokenizerError(
                f"`scheme` is {brief(scheme)}; it must be one of: {', '.join(SCHEMES)}"
            )
        distinct = set(tokens)
        if len(distinct) != len(tokens) or b"" in distinct:
            raise TokenizerError(
                f"{where} is not a tiktoken file: a token is empty or has two ranks"
            )
        missing = [value for value in range(256) if bytes([value]) not in distinct]
        if missing:
            raise TokenizerError(
                f"{where} is not a tiktoken file: it has no token for the byte {missing[0]}"
            )
        for token, number in special_ids.items():
            if type(number) is not int or not len(tokens) <= number < 2**32 - 1:
                raise TokenizerError(
                    f"{where}: the special token {brief(token)} has the id {brief(number)}; "
                    f"it must be at least {len(tokens)}, the number of ranks"
                )
            check_added(token, where)
        self.special_ids = dict(special_ids)
        self.vocab_size = 1 + max([len(tokens) - 1, *special_ids.values()])
        check_gaps(self.vocab_size, len(tokens) + len(special_ids), where)
        family = find_family_of_scheme(scheme)
        self.cuttable = is_cuttable(family, nfc=False)
        self.cut_rules = CutRules(family, nfc=False) if family else None
        self.merging = True
        self._tokens = tokens
        self._scheme = scheme
        self._where = where

    def native(self, added: Mapping[str, int]) -> Any:
        import gigatoken

        # gigatoken reads tokens only from a file.
        with tempfile.TemporaryDirectory(prefix="tokenmill-") as folder:
            path = Path(folder) / "tokens.tiktoken"
            lines = [f"{token} {rank}\n" for rank, token in enumerate(self._in_base64())]
            path.write_text("".join(lines), encoding="ascii")
            return call_native(
                lambda: gigatoken.Tokenizer.from_tiktoken(path, self._scheme, dict(added)),
                where=self._where,
            )

    def content(self) -> Any:
        return {"scheme": self._scheme, "tokens": self._in_base64()}

    def settings(self) -> dict[str, Any]:
        return {"special_ids": self.special_ids, **self.content()}

    def _in_base64(self) -> list[str]:
        return [base64.b64encode(token).decode("ascii") for token in self._tokens]


def _parse(data: bytes, name: str) -> list[bytes]:
    tokens: dict[int, bytes] = {}
    for line_number, line in enumerate(data.splitlines(), start=1):
        if not line:
            continue
        try:
            encoded, text = line.split()
            rank, token = int(text), base64.b64decode(encoded, validate=True)
        except (ValueError, binascii.Error):
            shown = line[:40].decode("utf-8", errors="replace")
            raise TokenizerError(
                f"{name} is not a tiktoken file: line {line_number} is not a token in base64 and a "
                f"rank: {shown!r}"
            ) from None
        if rank in tokens:
            raise TokenizerError(
                f"{name} is not a tiktoken file: line {line_number} repeats the rank {rank}"
            )
        tokens[rank] = token
    if not tokens or sorted(tokens) != list(range(len(tokens))):
        raise TokenizerError(
            f"{name} is not a tiktoken file: its ranks are not 0 to {len(tokens) - 1}"
        )
    return [tokens[rank] for rank in range(len(tokens))]
