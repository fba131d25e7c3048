"""Random inputs that are hard on `prepare`: every kind of file, and texts full of special cases."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

PIECES = [
    "a", "b", "word", "the same line here", "another line of text", " ", "  ", "\n", "\n", "\n\n",
    "\r\n", "\t", ".", "1", "2 3", "é", "日本", "\u0958", "🙂", "<|endoftext|>", "<|endof", "\u0301",
    "\x01", "\ufeff", "\u0085", "hello world\n", "foo bar baz qux\n", "the same line here\n", "end",
    "##", "aa",
]  # fmt: skip
KINDS = [".txt", ".txt", ".md", ".jsonl", ".jsonl.gz", ".txt.gz", ".parquet", ".txt.xz"]


def make_text(chance: random.Random, most: int, *, short_lines: bool = False) -> str:
    """Random text; with `short_lines`, no line is longer than 100 bytes."""
    pieces = chance.choices(PIECES, k=chance.randrange(most))
    if short_lines:
        pieces = [f"{piece}.\n" if i % 4 == 3 else piece for i, piece in enumerate(pieces)]
    return "".join(pieces)


def make_inputs(
    folder: Path, chance: random.Random, *, scale: int = 1, short_lines: bool = False
) -> list[Path]:
    """A few files, often one of them twice under two names."""
    paths = []
    for number in range(chance.randrange(1, 5)):
        kind = chance.choice(KINDS)
        path = folder / f"{number}{kind}"
        count = chance.randrange(1, 12) * scale
        if kind == ".parquet":
            column = [
                None if chance.random() < 0.1 else make_text(chance, 40, short_lines=short_lines)
                for _ in range(count)
            ]
            table = pa.table({"text": pa.array(column, pa.string())})
            pq.write_table(table, path, row_group_size=chance.randrange(1, 6) * scale)
        elif "jsonl" in kind:
            odd = ["", '{"x": 1}', "{broken"]
            rows = [
                chance.choice(odd)
                if chance.random() < 0.2
                else json.dumps({"text": make_text(chance, 40, short_lines=short_lines)})
                for _ in range(count)
            ]
            write(path, "\n".join(rows).encode())
        else:
            data = make_text(chance, 150 * scale, short_lines=short_lines).encode() or b"x"
            if chance.random() < 0.2:
                place = chance.randrange(len(data))
                data = data[:place] + b"\xff" + data[place:]
            write(path, data)
        paths.append(path)
    if chance.random() < 0.5:
        path = chance.choice(paths)
        paths.append(Path(shutil.copy(path, path.with_name(f"again-{path.name}"))))
    return paths


def write(path: Path, data: bytes) -> None:
    compress = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(data))
