"""Keep documents in some languages, and count the documents of each language.

py3langid decides. It works offline, knows 140 languages and is deterministic. A document is judged by
a sample: its beginning, its middle and its end, `_WINDOW` bytes each. That takes about 0.2 ms a
document, for any length. The model takes about 70 MB in each worker, in addition to its share of
`memory`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tokenmill.errors import UsageError
from tokenmill.preparation.judges import Judge, Verdicts
from tokenmill.preparation.texts import Texts

_WINDOW = 256  # bytes
REASON = "language"
ANY = "any"


@dataclass(frozen=True)
class LanguageRecipe:
    """Makes the judge that keeps documents in some languages; `any` keeps all and counts them."""

    languages: tuple[str, ...]
    library: str  # the name and the version of the library that decides

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reason in the ledger."""
        return (REASON,)

    def make(self) -> Judge:
        """Load the library. Raises `UsageError` if its version is not the one of the plan."""
        detect, _, library = load_detector()
        if library != self.library:
            raise UsageError(
                f"a worker has {library}, but the run was planned with {self.library}. Install the "
                "same version everywhere."
            )
        return LanguageJudge(self.languages, detect)


def plan_languages(languages: tuple[str, ...]) -> LanguageRecipe:
    """Return the recipe of the judge. Raises `UsageError` if a language is unknown."""
    _, known, library = load_detector()
    for language in languages:
        if language != ANY and language not in known:
            raise UsageError(
                f"`language` is {language!r}; it must be {ANY} or a code that py3langid knows: "
                f"{', '.join(sorted(known))}."
            )
    return LanguageRecipe(languages, library)


@cache
def load_detector() -> tuple[Callable[[bytes], Any], frozenset[str], str]:
    """Return the function that detects the language of a text, its languages, and its version."""
    try:
        import py3langid
        from py3langid import langid
    except ImportError:
        raise UsageError("`language` needs py3langid: pip install 'tokenmill[language]'.") from None
    langid.classify(b"")  # loads the model
    version = f"py3langid {py3langid.__version__}"
    return langid.classify, frozenset(langid.IDENTIFIER.labels), version


class LanguageJudge(Judge):
    """Drops documents in other languages than the chosen ones."""

    reasons = (REASON,)

    def __init__(self, languages: tuple[str, ...], detect: Callable[[bytes], Any]) -> None:
        self._languages = frozenset(languages)
        self._detect = detect

    def judge(self, texts: Texts) -> Verdicts:
        """Detect the language of each text. The counts are the documents of each language."""
        found = [self._detect(take_sample(text))[0] for text in texts.views]
        wanted = [ANY in self._languages or language in self._languages for language in found]
        counts = Counter(f"language {language}" for language in found)
        numbers = (~np.array(wanted, np.bool_)).astype(np.uint16)
        return Verdicts(numbers=numbers, values=found, counts=counts)


def take_sample(text: bytes | memoryview) -> bytes:
    """Return the beginning, the middle and the end of a text, without parts of characters."""
    if len(text) <= 3 * _WINDOW:
        return bytes(text)
    middle = (len(text) - _WINDOW) // 2
    pieces = (text[:_WINDOW], text[middle : middle + _WINDOW], text[-_WINDOW:])
    return "\n".join(bytes(piece).decode("utf-8", "ignore") for piece in pieces).encode()
