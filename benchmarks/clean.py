"""Measure how fast text is cleaned, by kind of text, on one core.

python benchmarks/clean.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import time
import unicodedata
from itertools import islice

import numpy as np
from corpus import generated_documents, real_documents
from results import record

from tokenmill.preparation.clean import clean_block

BLOCK = 4 << 20


def block_of(documents: list[bytes]) -> bytes:
    """About a block of documents, joined as `prepare` joins them."""
    joined = b"\0".join(text.replace(b"\0", b"") for text in documents)
    return joined.decode("utf-8", "ignore").encode()[:BLOCK].decode("utf-8", "ignore").encode()


def letters(start: int, end: int) -> bytes:
    """Words of random characters of a script."""
    codes = np.random.default_rng(0).integers(start, end, BLOCK // 3)
    codes[::7] = 32
    codes[::90] = 10
    return "".join(map(chr, codes.tolist())).encode()


def texts() -> dict[str, bytes]:
    """The kinds of text to clean."""
    python = block_of([text for text in islice(real_documents(), 400) if b"import" in text])
    prose = block_of(list(islice(generated_documents(seed=1), 1500)))
    french = prose.replace(b"e", "é".encode())
    return {
        "prose, nothing to change": clean_block(prose),
        "prose, two spaces after full stops": prose.replace(b". ", b".  "),
        "prose, `\\r\\n`": prose.replace(b"\n", b"\r\n"),
        "Python source": python,
        "Python source, once cleaned": clean_block(python),
        "Python source, blanks at every line's end": python.replace(b"\n", b"  \n"),
        "every `e` an `é`": french,
        "every `e` an `é`, decomposed": unicodedata.normalize("NFD", french.decode()).encode(),
        "Cyrillic letters": letters(0x410, 0x450),
        "Chinese characters": letters(0x4E00, 0x9FA5),
        "blanks and tabs alone": b" \t" * (BLOCK // 2),
        "combining marks alone": "\u0301\u0316".encode() * (BLOCK // 16),
    }


def main() -> None:
    """Measure each kind, the best of several rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    rows = []
    for name, block in texts().items():
        best = float("inf")
        for _ in range(args.rounds):
            started = time.perf_counter()
            clean_block(block)
            best = min(best, time.perf_counter() - started)
        rows.append({"text": name, "MB/s": round(len(block) / best / 1e6)})
    record("clean", {"rounds": args.rounds}, rows)


if __name__ == "__main__":
    main()
