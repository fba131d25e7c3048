"""Finding evaluation texts: what is found, and what it costs.

    python benchmarks/decontaminate.py [--bytes 400000000] [--planted 200]

The peer is the usual script: Python sets of 13-grams of the words that `\\w+` finds in lower case. Texts
are random words of the source code and documentation of the Python installation, or of random letters
of a script. Each row of the first table plants changed copies of evaluation texts in documents, and
puts as many near misses beside them: the same copies with one word in twelve changed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import corpus
import results

import tokenmill
from tokenmill.contamination.matching import Stream
from tokenmill.contamination.protected import EvaluationFile, Protected, Text, protect

SIZE = 13
TEXTS = 12_000  # evaluation texts for the speed
_WORD = re.compile(r"\w+")
SCRIPTS = {
    "Cyrillic": (0x430, 0x44F, " "),
    "Greek": (0x3B1, 0x3C9, " "),
    "Arabic": (0x627, 0x64A, " "),
    "Devanagari": (0x915, 0x939, " "),
    "Hangul": (0xAC00, 0xAFFF, " "),
    "Chinese, without spaces": (0x4E00, 0x8FFF, ""),
    "Japanese, without spaces": (0x3042, 0x3093, ""),
    "Thai, without spaces": (0xE01, 0xE2E, ""),
}


def grams(text: str) -> Iterator[tuple[str, ...]]:
    """The 13-grams of a text, as the usual script makes them."""
    words = _WORD.findall(text.lower())
    return (tuple(words[i : i + SIZE]) for i in range(len(words) - SIZE + 1))


class Sets:
    """The peer: a set of 13-grams."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.known = {gram for text in texts for gram in grams(text)}

    def has(self, text: str) -> bool:
        return not self.known.isdisjoint(grams(text))


def make_table(texts: Sequence[str]) -> Protected:
    rows = [Text(0, number, text.encode()) for number, text in enumerate(texts)]
    return protect(rows, [EvaluationFile("evaluation", "line")], size=SIZE, common=100)


def find(documents: Sequence[str], table: Protected) -> set[int]:
    """The numbers of the documents with hits."""
    stream = Stream(table)
    hits = [stream.feed("\0".join(documents).encode()), stream.finish()]
    return {number for some in hits for number in some.texts.tolist()}


class Writer:
    """Writes random texts: of known words, or of the letters of a script."""

    def __init__(self, chance: random.Random, words: Sequence[str], script: str | None) -> None:
        self.chance, self.joiner = chance, " "
        self.words = list(words)
        if script is not None:
            first, last, self.joiner = SCRIPTS[script]
            letters = [chr(code) for code in range(first, last + 1)]
            sizes = (1, 1) if not self.joiner else (1, 9)
            self.words = [
                "".join(chance.choices(letters, k=chance.randint(*sizes))) for _ in range(20_000)
            ]

    def write(self, count: int) -> list[str]:
        return self.chance.choices(self.words, k=count)

    def punctuate(self, words: Sequence[str], marks: str) -> str:
        marked = [
            w + (self.chance.choice(marks) if self.chance.random() < 0.2 else "") for w in words
        ]
        return self.joiner.join(marked)


Change = Callable[[Writer, list[str]], str]


def embed(writer: Writer, text: str) -> str:
    """Put a text in the middle of a document."""
    before, after = writer.write(80), writer.write(80)
    mark = writer.chance.choice(". ! ? \n \n\n".split(" "))
    return f"{writer.punctuate(before, ',.')}{mark} {text}{mark} {writer.punctuate(after, ',.')}"


def in_a_long_line(writer: Writer, words: list[str]) -> str:
    long = [writer.joiner.join(writer.write(5_000)) for _ in range(2)]
    return f"{long[0]} {writer.joiner.join(words)} {long[1]}"


def with_other_white_space(writer: Writer, words: list[str]) -> str:
    if not writer.joiner:
        return "\n".join(words)
    return "".join(w + writer.chance.choice([" ", "  ", "\n", "\t", "\n\n  "]) for w in words)


def in_other_case(writer: Writer, words: list[str]) -> str:
    change = [str.upper, str.title, str.swapcase]
    return writer.joiner.join(writer.chance.choice(change)(word) for word in words)


def with_other_punctuation(writer: Writer, words: list[str]) -> str:
    return writer.punctuate(words, '…;:!?—)*“”_"')


def with_all_of_these(writer: Writer, words: list[str]) -> str:
    cased = [word.upper() if writer.chance.random() < 0.5 else word for word in words]
    marked = [word + writer.chance.choice(["", "", ",", " —", "!", "\u00ad"]) for word in cased]
    return with_other_white_space(writer, marked)


def verbatim(writer: Writer, words: list[str]) -> str:
    return writer.joiner.join(words)


CHANGES: dict[str, Change] = {
    "verbatim": verbatim,
    "in a line of 10,000 words": in_a_long_line,
    "other white space": with_other_white_space,
    "other case": in_other_case,
    "other punctuation": with_other_punctuation,
    "all of these": with_all_of_these,
}


def measure_found(words: Sequence[str], planted: int) -> list[dict[str, Any]]:
    """Recall and precision for each kind of copy."""
    rows = []
    chance = random.Random(1)
    kinds: list[tuple[str, str | None, tuple[int, int], Change]] = [
        *((f"English, {name}", None, (13, 80), change) for name, change in CHANGES.items()),
        ("English, 15 words of a longer text", None, (30, 80), verbatim),
        ("short: 6 to 12 words, verbatim", None, (6, 12), verbatim),
        ("short: 6 to 12 words, all of these", None, (6, 12), with_all_of_these),
        *((name, name, (15, 80), with_all_of_these) for name in SCRIPTS),
    ]
    for name, script, (least, most), change in kinds:
        writer = Writer(chance, words, script)
        texts = [writer.write(chance.randint(least, most)) for _ in range(planted)]
        # One word in eight is not like the others, as in real questions.
        written = [writer.punctuate(text, ",.'-?") for text in texts]
        documents = []
        for text in texts:
            part = text[3:18] if "15 words" in name else text
            documents.append(embed(writer, change(writer, part)))
        for text in texts:  # near misses
            other = [*text]
            for place in range(chance.randrange(min(12, len(text))), len(text), 12):
                other[place] += "q"
            documents.append(embed(writer, change(writer, other)))
        found = find(documents, make_table(written))
        sets = Sets(written)
        plain = {number for number, text in enumerate(documents) if sets.has(text)}
        row: dict[str, Any] = {"planted": name, "documents": planted}
        for who, numbers in (("", found), ("sets, ", plain)):
            right = sum(number < planted for number in numbers)
            row[f"{who}recall"] = f"{right / planted:.3f}"
            row[f"{who}precision"] = f"{right / len(numbers):.3f}" if numbers else "–"
        rows.append(row)
    return rows


def measure_speed(folder: Path, size: int, words: Sequence[str]) -> list[dict[str, Any]]:
    """MB/s of the matching, and of `prepare` with and without it."""
    chance = random.Random(2)
    texts = [" ".join(chance.choices(words, k=chance.randint(6, 90))) for _ in range(TEXTS)]
    evaluation = folder / "evaluation.jsonl"
    evaluation.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    paths = corpus.make_corpus(folder / "texts", size)
    rows = []

    def add(what: str, spent: Spent, count: int, without: float | None = None) -> float:
        rate = count / spent.cpu / 1e6
        rows.append(
            {
                "what": what,
                "MB/s": _round(count / spent.seconds / 1e6),
                "MB per CPU second": _round(rate),
                "share": "" if without is None else f"{rate / without:.2f}",
            }
        )
        return rate

    data = paths[0].read_bytes()[: 64 << 20].replace(corpus.EOT, b"\0")
    table = make_table(texts)
    best = min(_time(lambda: _feed(data, table)) for _ in range(3))
    add("matching, one core", best, len(data))
    documents = data[: 4 << 20].decode("utf-8", "replace").split("\0")
    sets = Sets(texts)
    add("sets of 13-grams, one core", _time(lambda: [sets.has(one) for one in documents]), 4 << 20)
    total = sum(path.stat().st_size for path in paths)
    options: dict[str, Any] = {"workers": 2, "progress": False}

    def prepare(name: str, **more: Any) -> Spent:
        return _time(lambda: tokenmill.prepare(paths, folder / name, **options, **more))

    plain = add("prepare", min(prepare("a"), prepare("b")), total, None)
    again = {"decontaminate": evaluation}
    add("prepare --decontaminate", min(prepare("c", **again), prepare("d", **again)), total, plain)
    spent = _time(lambda: tokenmill.contaminated(folder / "a", evaluation, progress=False))
    add("contaminated", spent, total)
    return rows


def _feed(data: bytes, table: Protected) -> None:
    stream = Stream(table)
    for start in range(0, len(data), 4 << 20):
        stream.feed(data[start : start + (4 << 20)])
    stream.finish()


def _round(rate: float) -> str:
    return f"{rate:.0f}" if rate > 10 else f"{rate:.1f}"


class Spent(NamedTuple):
    """What some work took: CPU time of all its processes, and seconds."""

    cpu: float
    seconds: float


def _time(work: Callable[[], Any]) -> Spent:
    started, before = time.perf_counter(), os.times()
    work()
    after = os.times()
    return Spent(sum(after[:4]) - sum(before[:4]), time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=400_000_000)
    parser.add_argument("--planted", type=int, default=200)
    arguments = parser.parse_args()
    sample = b" ".join(islice(corpus.real_documents(), 400)).decode("utf-8", "replace")
    words = sorted(set(re.findall(r"[A-Za-z]{2,12}", sample)))
    results.record("decontaminate", vars(arguments), measure_found(words, arguments.planted))
    with tempfile.TemporaryDirectory() as name:
        rows = measure_speed(Path(name), arguments.bytes, words)
    results.record("decontaminate-speed", vars(arguments), rows)


if __name__ == "__main__":
    main()
