"""Everything whose bytes must never change: shards, document tables, exports, batches.

`python tests/golden/fixtures.py > tests/golden/bytes.json` wrote the golden checksums.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tokenmill

WORDS = (
    "the of and to in mill grain water stone wheel turns slowly through spring rain, flour. "
    "naïve café 日本語 한국어 Ελληνικά 🙂 1234 3.14159 snake_case CamelCase <|endof| \t -- (x) == y;"
).split(" ")
FORMATS = ("llmc", "nanogpt", "npy", "megatron", "datatrove", "mds", "litdata")
# The manifest may gain entries; the others contain paths of the machine.
NOT_GOLDEN = {
    "dataset_metadata.json",
    "sources.jsonl",
    "rejected.jsonl",
    "repaired.jsonl",
    ".tokenmill-export.json",
}
PREPARED: dict[str, dict[str, Any]] = {
    "gpt2": {"tokenizer": "gpt2", "val_fraction": 0.2, "tokens_per_shard": 5000},
    "bytes, eot before": {"tokenizer": "bytes", "eot": "before", "tokens_per_shard": 20_000},
    "no eot, no dedup": {"tokenizer": "bytes", "eot": "none", "dedup": "none"},
    "lines": {"tokenizer": "gpt2", "dedup": "lines", "val_fraction": 0.1},
    "raw text, uint32": {"tokenizer": "gpt2", "normalize": False, "dtype": "uint32"},
}
LOADERS: dict[str, dict[str, Any]] = {
    "shuffled": {"seq_len": 64},
    "rank 1 of 3": {"seq_len": 64, "rank": 1, "world_size": 3},
    "sequential": {"seq_len": 100, "order": "sequential"},
    "random": {"seq_len": 64, "order": "random"},
    "documents": {"seq_len": 128, "documents": True},
}


class Chance:
    """A small generator of its own, so that no release of Python can change the texts."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, limit: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % limit

    def text(self) -> str:
        lines = [
            " ".join(WORDS[self.below(len(WORDS))] for _ in range(self.below(14)))
            for _ in range(1 + self.below(12))
        ]
        return "\n".join(lines)


def write_inputs(folder: Path) -> None:
    """Plain text, JSON lines and Parquet, with duplicates, bad records and invalid UTF-8."""
    folder.mkdir()
    chance = Chance(7)
    texts = [chance.text() for _ in range(400)]
    (folder / "a.txt").write_bytes("<|endoftext|>".join(texts[:150]).encode())
    (folder / "b.txt").write_bytes(b"bad \xff byte " + texts[3].encode())
    records = [json.dumps({"text": text}) for text in [*texts[140:280], ""]]
    records.insert(5, "{broken")
    (folder / "c.jsonl").write_text("\n".join(records))
    (folder / "d.jsonl.gz").write_bytes(gzip.compress("\n".join(records[::-3]).encode(), mtime=0))
    table = pa.table({"text": pa.array([*texts[270:], None])})
    pq.write_table(table, folder / "e.parquet", row_group_size=20)


def checksum(data: bytes | np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def checksum_folder(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): checksum(path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in NOT_GOLDEN
    }


def checksum_batches(loader: Any) -> str:
    """Checksums of batches at the beginning, later, and in later epochs."""
    whole = hashlib.sha256()
    for step in (0, 1, 2, 50, 1_000_000):
        batch = loader.batch_at(step)
        arrays = [batch.inputs, batch.targets]
        if (documents := batch.documents) is not None:
            arrays += [documents.positions, documents.cu_seqlens]
        for array in arrays:
            whole.update(np.ascontiguousarray(array, np.int64))
    return whole.hexdigest()[:16]


def make_golden(folder: Path) -> dict[str, Any]:
    """The checksums of all that is golden, made in an empty folder."""
    inputs = folder / "inputs"
    write_inputs(inputs)
    golden: dict[str, Any] = {"prepared": {}, "exported": {}, "batches": {}}
    for name, settings in PREPARED.items():
        tokenmill.prepare(inputs, folder / name, workers=2, **settings)
        golden["prepared"][name] = checksum_folder(folder / name)
    data = tokenmill.open(folder / "gpt2")
    for to in FORMATS:
        tokenmill.export(folder / "gpt2", folder / to, to=to, tokens_per_shard=7000)
        golden["exported"][to] = checksum_folder(folder / to)
    tokenmill.reshard(folder / "gpt2", folder / "resharded", tokens_per_shard=3000)
    tokenmill.import_dataset(folder / "megatron", folder / "imported", tokenizer="gpt2")
    golden["resharded"] = checksum_folder(folder / "resharded")
    golden["imported"] = checksum_folder(folder / "imported")
    target = tokenmill.pretokenize(inputs / "a.txt")
    golden["pretokenized"] = checksum(Path(target.path).read_bytes())
    for name, settings in LOADERS.items():
        loader = tokenmill.Loader(data["train"], batch_size=8, seed=42, **settings)
        golden["batches"][name] = checksum_batches(loader)
    lines = tokenmill.open(folder / "lines")["train"]
    mixture = tokenmill.Mixture({"a": (data["train"], 0.7), "b": (lines, 0.3)})
    loader = tokenmill.Loader(mixture, batch_size=8, seq_len=64, seed=42)
    golden["batches"]["mixture"] = checksum_batches(loader)
    return golden


if __name__ == "__main__":
    print(json.dumps(make_golden(Path(tempfile.mkdtemp())), indent=1))
