"""Compare prepared ids with tiktoken's, document by document, and with those of one long text.

    python benchmarks/exactness.py [--size 320]     MB of the one long document

All real text of the Python installation is prepared, and each document's tokens are compared with
tiktoken's `encode_ordinary` of its cleaned text. Then one long document, which is prepared in
pieces by several workers, is compared with its ids encoded by gigatoken in one call.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import tiktoken
from corpus import EOT, make_corpus, real_documents

import tokenmill
from tokenmill.preparation.clean import clean
from tokenmill.tokenizers.gpt2 import read_gpt2

PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


def tiktoken_gpt2() -> tiktoken.Encoding:
    """tiktoken's GPT-2, from the vocabulary that tokenmill includes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    spelling = {chr(byte): byte for byte in printable}
    spelling |= {chr(256 + i): byte for i, byte in enumerate(others)}
    vocabulary = read_gpt2()["model"]["vocab"]
    ranks = {
        bytes(spelling[character] for character in token): number
        for token, number in vocabulary.items()
        if number != 50256
    }
    special = {"<|endoftext|>": 50256}
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)


def compare_documents(folder: Path) -> None:
    """Compare every document of a prepared corpus with tiktoken's ids."""
    encoding = tiktoken_gpt2()
    sources = folder / "text"
    sources.mkdir()
    for number, file in enumerate(real_documents()):
        (sources / f"{number:06}.txt").write_bytes(file)
    tokenmill.prepare(sources, folder / "data", documents="file")
    dataset = tokenmill.open(folder / "data")
    compared = size = 0
    for split in dataset.splits:
        tokens = dataset[split]
        for document in tokens.documents or ():
            assert document.source is not None
            raw = Path(document.source.path).read_bytes()
            text = clean(raw.decode("utf-8", "replace"))
            ids = tokens[document.start : document.start + document.length]
            assert [*encoding.encode_ordinary(text), 50256] == ids.tolist(), document
            compared += 1
            size += len(raw)
    print(f"{compared:,} documents, {size / 1e6:.1f} MB: all ids equal tiktoken's", flush=True)


def compare_whole(folder: Path, size: int) -> None:
    """Compare one document of `size` bytes, prepared in pieces, with a single call for all of it."""
    import gigatoken
    import orjson

    path = folder / "long.txt"
    with path.open("wb") as file:
        for part in make_corpus(folder / "parts", size):
            file.write(part.read_bytes().replace(EOT, b"\n"))
    tokenmill.prepare(path, folder / "whole", documents="file", val_fraction=0)
    tokens = tokenmill.open(folder / "whole")["train"]
    native = gigatoken.Tokenizer.from_json(orjson.dumps({**read_gpt2(), "added_tokens": []}))
    text = clean(path.read_bytes().decode("utf-8", "replace")).encode()
    ids = np.append(native.encode(text), 50256)
    assert tokens.documents is not None
    assert len(tokens.documents) == 1
    assert np.array_equal(tokens[: len(tokens)], ids)
    megabytes = path.stat().st_size / 1e6
    print(f"one document of {megabytes:.0f} MB: {len(ids):,} ids equal those of the whole")


def main() -> None:
    """Run both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", type=int, default=320, help="MB of the long document")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        compare_documents(Path(name))
    with tempfile.TemporaryDirectory() as name:
        compare_whole(Path(name), args.size * 1_000_000)


if __name__ == "__main__":
    main()
