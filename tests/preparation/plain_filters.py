"""The measures of filters, of one text at a time, in plain Python."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
SENTENCE_ENDS = tuple(".?!。！？．｡؟۔।॥።։‽⁇⁈⁉‼")
WHITE = re.compile(r"[\x00- ]+")  # white space and control characters
POLICIES = (
    "terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies".split("|")
)


def words_of(text: str) -> list[str]:
    return [word for word in WHITE.split(text) if word]


def is_letter(c: str) -> bool:
    if c.isascii():
        return c.isalpha()
    return ord(c) >= 0xC0 and not 0x2000 <= ord(c) < 0x3000


def is_real(c: str) -> bool:
    return is_letter(c) or c in "0123456789"


def real_words(text: str) -> list[str]:
    """Words with a letter or a digit, from the first of them on."""
    found = []
    for word in words_of(text):
        at = next((i for i, c in enumerate(word) if is_real(c)), None)
        if at is not None:
            found.append(word[at:])
    return found


def share(amount: float, total: float) -> float:
    return amount / total if total else 0.0


def mean_word_length(text: str) -> float:
    words = real_words(text)
    return share(sum(map(len, words)), len(words))


def lines_with_text(text: str) -> list[str]:
    return [line for line in text.split("\n") if words_of(line)]


def share_of_lines(text: str, lines: Sequence[str], is_counted: Callable[[str], bool]) -> float:
    return share(sum(map(is_counted, lines)), len(lines))


def bullet_lines(text: str) -> float:
    return share_of_lines(
        text, text.split("\n"), lambda line: WHITE.sub("", line)[:1] in ("-", "•") and line != ""
    )


def ellipsis_lines(text: str) -> float:
    return share_of_lines(text, text.split("\n"), lambda line: line.endswith(("...", "…")))


def is_encoded(line: bytes) -> bool:
    if len(line) > 1000 and len(re.findall(rb"[\x00- ]", line)) * 20 < len(line):
        return True
    return re.fullmatch(rb"[A-Za-z0-9+/=_-]{60,}", line) is not None and bool(
        re.search(rb"\d", line)
    )


def encoded_lines(text: str) -> float:
    lines = text.encode().split(b"\n")
    return share(sum(len(line) for line in lines if is_encoded(line)), len(text.encode()))


def c4(text: str) -> tuple[int, int, int]:
    """Lines with a brace, lines with a placeholder, and sentences, of lines that C4 keeps."""
    braces = placeholders = sentences = 0
    for line in text.split("\n"):
        line = re.sub(r"(?:\[[0-9]*\]|\[edit\]|\[citation needed\])+$", "", line) or line[:1]
        words = words_of(line)
        if any(len(word.encode()) > 1000 for word in words) or len(words) < 3:
            continue
        if not line.endswith((".", "?", "!", '"', "'")) or line.endswith("..."):
            continue
        lower = "".join(c.lower() if c.isascii() else c for c in line)
        if "lorem ipsum" in lower:
            placeholders += 1
        if "javascript" in lower:
            continue
        braces += "{" in line and "lorem ipsum" not in lower
        if not any(policy in lower for policy in POLICIES):
            sentences += 1 + len(re.findall(r"[.?!](?=[\x00-\x09\x0b- ])", line))
    return braces, placeholders, sentences


def repeated(items: Sequence[str]) -> tuple[int, int]:
    """How many items are equal to an earlier one, and their characters."""
    seen: set[str] = set()
    count = characters = 0
    for item in items:
        if item in seen:
            count, characters = count + 1, characters + len(item)
        seen.add(item)
    return count, characters


def lines_of(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


def paragraphs_of(text: str) -> list[str]:
    return [one for one in re.split(r"\n{2,}", text.strip("\n")) if one]


def top_grams(text: str, n: int) -> float:
    words = words_of(text)
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    if not grams:
        return 0.0
    gram, times = Counter(grams).most_common(1)[0]
    return len(" ".join(gram)) * times / len(text)


def repeated_grams(text: str, n: int) -> float:
    words = words_of(text)
    seen: set[tuple[str, ...]] = set()
    characters = i = 0
    while i + n <= len(words):
        gram = tuple(words[i : i + n])
        if gram in seen:
            characters, i = characters + sum(map(len, gram)), i + n
        else:
            seen.add(gram)
            i += 1
    return share(characters, len(text))


def script(text: str, name: str) -> float:
    letters = [c for c in text if is_letter(c)]
    prefixes = {"Latin": "LATIN", "Cyrillic": "CYRILLIC", "Han": "CJK UNIFIED"}
    inside = sum(unicodedata.name(c, "").startswith(prefixes[name]) for c in letters)
    return share(inside, len(letters))


MEASURES: dict[str, Callable[[str], float]] = {
    "bytes": lambda text: len(text.encode()),
    "words": lambda text: len(real_words(text)),
    "word_length": mean_word_length,
    "hashes": lambda text: share(text.count("#"), len(words_of(text))),
    "ellipses": lambda text: share(text.count("...") + text.count("…"), len(words_of(text))),
    "bullet_lines": bullet_lines,
    "ellipsis_lines": ellipsis_lines,
    "letter_words": lambda text: share(
        sum(any(map(is_letter, word)) for word in words_of(text)), len(words_of(text))
    ),
    "stop_words": lambda text: len(STOP_WORDS & set(words_of(text))),
    "punctuated_lines": lambda text: share_of_lines(
        text, lines_with_text(text), lambda line: line.endswith(SENTENCE_ENDS)
    ),
    "short_lines": lambda text: share_of_lines(
        text, lines_with_text(text), lambda line: len(line) <= 30
    ),
    "newlines": lambda text: share(text.count("\n"), len(words_of(text))),
    "line_bytes": lambda text: max(len(line.encode()) for line in text.split("\n")),
    "encoded_lines": encoded_lines,
    "brace_lines": lambda text: c4(text)[0],
    "placeholder_lines": lambda text: c4(text)[1],
    "sentences": lambda text: c4(text)[2],
    "repeated_lines": lambda text: share(repeated(lines_of(text))[0], len(lines_of(text))),
    "repeated_line_characters": lambda text: repeated(lines_of(text))[1] / len(text),
    "repeated_line_text": lambda text: share(
        repeated(lines_of(text))[1], len(text.replace("\n", ""))
    ),
    "repeated_paragraphs": lambda text: share(
        repeated(paragraphs_of(text))[0], len(paragraphs_of(text))
    ),
    "repeated_paragraph_characters": lambda text: repeated(paragraphs_of(text))[1] / len(text),
    **{f"top_{n}_grams": lambda text, n=n: top_grams(text, n) for n in (2, 3, 4)},
    **{f"repeated_{n}_grams": lambda text, n=n: repeated_grams(text, n) for n in range(5, 11)},
}
