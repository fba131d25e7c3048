r"""Where a text may be cut so that its pieces, encoded one by one, give the ids of the whole.

The place is between a letter and a following space or line end (`\n`, `\r\n`). There the ids of
the two sides are independent if (1) no alternative of the pre-tokenizer's pattern can match a
letter followed by a space or line end, so that a match ends there; (2) no alternative looks
behind its start, so that the second piece reads as if it were alone; (3) the only look ahead,
`\s+(?!\S)`, is about the end of a run of white space, and the first piece ends with a letter;
(4) a normalizer neither joins nor changes the two sides.

For (4): NFC never composes across a space or newline, but it turns some letters (such as U+0958)
into a letter and a mark. Patterns whose punctuation takes newlines along then join the mark with
the newline, so with NFC only the patterns where marks are letters, or where punctuation takes no
newlines, are accepted. What is not known here may not be cut.
"""

from __future__ import annotations

__all__ = ["CUTTABLE_SCHEMES", "is_cuttable"]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

# Patterns as tokenizer.json files spell them. GPT-2's own has no pattern: it is ByteLevel's.
_GPT2 = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
)
_CL100K = tuple(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
    for digits in (r"\p{N}{1,3}", r"\p{N}")
)
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
)

_SAFE = frozenset((*_GPT2, *_CL100K, *_O200K))
_SAFE_WITH_NFC = frozenset((*_GPT2, *_O200K))

CUTTABLE_SCHEMES = frozenset({"gpt2", "cl100k", "o200k", "qwen2"})


def is_cuttable(pattern: str | None, *, nfc: bool) -> bool:
    r"""Whether a pre-tokenizer's pattern (None: GPT-2's) lets a text be cut.

    >>> is_cuttable(None, nfc=True), is_cuttable(r"\w+|\W+", nfc=False)
    (True, False)
    """
    return pattern is None or pattern in (_SAFE_WITH_NFC if nfc else _SAFE)
