"""Make text for the benchmarks without downloading anything.

`real` is the source code and documentation in the Python installation; each file is a document. If
that is not enough, it is repeated with other names in it, like another code base. `prose` is random
words with the frequencies of that text, and sometimes a new word, as in any large corpus. `mixed` is
the real text once, then prose. The same arguments give the same bytes on the same installation.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path

import numpy as np

EOT = b"<|endoftext|>"
FILE_BYTES = 128 << 20
_SUFFIXES = (".py", ".pyi", ".h", ".txt", ".md", ".rst", ".html", ".pyx", ".c", ".cpp")
_NEW_WORDS = 0.01  # the share of words that occur for the first time


def make_corpus(folder: Path, size: int, kind: str = "mixed") -> list[Path]:
    """Write about `size` bytes of text into files of 128 MB; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    once = iter(()) if kind == "prose" else real_documents()
    stream = chain(once, renamed_documents() if kind == "real" else generated_documents(0))
    paths: list[Path] = []
    written = 0
    while written < size:
        path = folder / f"text_{len(paths):03}.txt"
        paths.append(path)
        with path.open("wb") as file:
            for document in stream:
                file.write(document + EOT)
                written += len(document) + len(EOT)
                if file.tell() >= FILE_BYTES or written >= size:
                    break
    return paths


def real_documents() -> Iterator[bytes]:
    """The text files of the Python installation, in a fixed order."""
    paths = sysconfig.get_paths()
    for root in (paths["stdlib"], paths["purelib"]):
        for here, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if name != "site-packages")
            for name in sorted(files):
                if name.endswith(_SUFFIXES):
                    text = (Path(here) / name).read_bytes()
                    if EOT not in text and b"\0" not in text:
                        yield text


def renamed_documents() -> Iterator[bytes]:
    """The real documents, repeated endlessly, each time with other endings on their longer words."""
    longer = re.compile(rb"[a-z]{7,}")
    for round_number in count():
        ending = bytes([97 + round_number % 26, 97 + round_number // 26 % 26])
        for text in real_documents():
            yield longer.sub(rb"\g<0>" + ending, text)


def generated_documents(seed: int) -> Iterator[bytes]:
    """Endless prose: random words with the frequencies of the real text."""
    sample = list(islice(real_documents(), 600))
    counts = Counter(re.findall(rb"[A-Za-z]{1,16}", b" ".join(sample)))
    words = [b" " + word for word, _ in counts.most_common(60_000)]
    weights = np.array([number for _, number in counts.most_common(60_000)], float)
    marks = [b",", b".", b".\n", b".\n\n", EOT]
    shares = np.array([0.05, 0.05, 0.006, 0.003, 0.0016])
    weights = np.concatenate([weights / weights.sum() * (1 - shares.sum()), shares])
    table = words + marks
    cumulative = np.cumsum(weights)
    rng = np.random.default_rng(seed)
    while True:
        drawn = np.searchsorted(cumulative, rng.random(400_000) * cumulative[-1])
        pieces = [table[i] for i in np.minimum(drawn, len(table) - 1).tolist()]
        for place in np.flatnonzero(rng.random(len(pieces)) < _NEW_WORDS).tolist():
            letters = rng.integers(97, 123, rng.integers(5, 12), dtype=np.uint8)
            pieces[place] = b" " + letters.tobytes()
        yield from b"".join(pieces).split(EOT)
