"""The process that `train_tokenizer` starts: a job on standard input, merges to a file.

Not for people: `python -m tokenmill.preparation.train_tokenizer_process RESULT`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import orjson


def main() -> None:
    """Learn merges from files, and write them as pairs of hexadecimal strings."""
    import gigatoken

    job = orjson.loads(sys.stdin.buffer.read())
    source = gigatoken.TextFileSource(job["paths"], separator="<|endoftext|>")
    _, merges = gigatoken.train_bpe(source, job["vocab_size"], ["<|endoftext|>"])
    pairs = [(left.hex(), right.hex()) for left, right in merges]
    Path(sys.argv[1]).write_bytes(orjson.dumps(pairs))


if __name__ == "__main__":
    main()
