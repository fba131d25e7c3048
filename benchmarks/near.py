"""Near duplicates: what is found, the speed, and the memory of the process tree, next to peers.

    python benchmarks/near.py [--size 32] [--documents 2000]     size in MB

Every tool gets the same JSON lines, 5-grams of words, a threshold of 0.8 and the bands that tokenmill
chooses. Time is from start to end of the processes, and CPU seconds are those of all of them together.
tokenmill also cleans, tokenizes and writes shards; the row without near duplicates shows what that
takes. The peers write the documents that stay.

Quality is measured on planted copies and on real text, by brute force. A removed document is right if
its similarity with an earlier document that stays is at least the threshold; precision is the share of
the right ones. Recall is the share of the documents similar to an earlier one that stays which the
tool removed. Repeats of a whole document, which all tools remove, do not count.

Peers: pip install datatrove spacy datasketch
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import results
from corpus import real_documents
from memory import process_tree, tree_memory

from tokenmill.preparation.signatures import Bands

THRESHOLD = 0.8
BANDS = Bands.choose(THRESHOLD)
LINES = 60  # of a file, for each document
WORKERS = 2

DATATROVE = """
import sys
import xxhash
import datatrove.utils.hashes.xxhash as hashes
# xxhash 4 refuses the text that datatrove 0.10 gives it.
hashes.xxhash64 = lambda text: xxhash.xxh64_intdigest(text.encode())
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupSignature, MinhashDedupBuckets
from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.hashing import HashConfig
if __name__ == "__main__":
    source, out, bands, rows, workers = *sys.argv[1:3], *map(int, sys.argv[3:])
    config = MinhashConfig(
        n_grams=5, num_buckets=bands, hashes_per_bucket=rows, hash_config=HashConfig(precision=64, hash_fc="xxhash")
    )
    reader = JsonlReader(source, glob_pattern="*.jsonl")
    stages = [
        ([reader, MinhashDedupSignature(output_folder=f"{out}/signatures", config=config)], workers),
        ([MinhashDedupBuckets(f"{out}/signatures", f"{out}/buckets", config=config)], bands),
        ([MinhashDedupCluster(f"{out}/buckets", f"{out}/ids", config=config)], 1),
        ([reader, MinhashDedupFilter(f"{out}/ids"), JsonlWriter(f"{out}/kept")], workers),
    ]
    for number, (steps, tasks) in enumerate(stages):
        LocalPipelineExecutor(
            steps, tasks=tasks, workers=workers, logging_dir=f"{out}/logs{number}"
        ).run()
"""

DATASKETCH = """
import json, re, sys
from pathlib import Path
from datasketch import MinHash, MinHashLSH
source, out, bands, rows = *sys.argv[1:3], *map(int, sys.argv[3:5])
lsh = MinHashLSH(num_perm=bands * rows, params=(bands, rows))
words = re.compile(r"\\w+")
Path(out, "kept").mkdir(parents=True)
with open(f"{out}/kept/kept.jsonl", "w") as kept:
    for path in sorted(Path(source).glob("*.jsonl")):
        for line in path.open():
            text = json.loads(line)["text"]
            found = words.findall(text.lower())
            grams = {" ".join(found[i : i + 5]).encode() for i in range(len(found) - 4)}
            sketch = MinHash(num_perm=bands * rows)
            sketch.update_batch(grams)
            if grams and lsh.query(sketch):
                continue
            if grams:
                lsh.insert(json.loads(line)["id"], sketch)
            kept.write(line)
"""


def real(size: int) -> Iterator[str]:
    """About `size` bytes of source code, cut into documents."""
    for data in real_documents():
        lines = data.decode("utf-8", "replace").split("\n")
        for start in range(0, len(lines), LINES):
            text = "\n".join(lines[start : start + LINES])
            yield text
            size -= len(text)
            if size < 0:
                return


def real_and_alike(count: int) -> list[str]:
    """Source code, in folders that have many similar files first, cut into documents."""
    stdlib, texts = Path(sysconfig.get_paths()["stdlib"]), []
    for folder in ("encodings", "distutils", "idlelib", "email", "asyncio", "."):
        for path in sorted(stdlib.glob(f"{folder}/*.py")):
            lines = path.read_text("utf-8", "replace").split("\n")
            for start in range(0, len(lines), LINES):
                texts.append("\n".join(lines[start : start + LINES]))
    return [text for text in texts if text.strip()][:count]


def planted(count: int) -> list[str]:
    """Documents of which a third are edited, extended, reordered or framed copies of others."""
    chance = random.Random(1)
    sources = list(islice((text for text in real(1 << 30) if len(text) > 600), count))
    texts = []
    for text in sources:
        texts.append(text)
        if chance.random() > 0.5:
            continue
        words = text.split(" ")
        kind = chance.randrange(4)
        for _ in range(1 + int(len(words) * chance.uniform(0, 0.04))):
            place = chance.randrange(len(words))
            words[place] = f"{words[place]} w{chance.randrange(10**6)}" if kind else "changed"
        if kind == 2:
            middle = len(words) // 2
            words = words[middle:] + words[:middle]
        if kind == 3:
            words = ["Home | About | Contact us |", *words, "| All rights reserved 2024"]
        texts.append(" ".join(words))
    chance.shuffle(texts)
    return texts


def write(folder: Path, texts: Sequence[str]) -> Path:
    """Write documents to as many files as there are workers."""
    folder.mkdir()
    share = -(-len(texts) // WORKERS)
    for number in range(WORKERS):
        with (folder / f"{number}.jsonl").open("w") as file:
            for place in range(number * share, min(len(texts), (number + 1) * share)):
                file.write(json.dumps({"text": texts[place], "id": str(place)}) + "\n")
    return folder


def run(command: Sequence[str]) -> tuple[float, float, float]:
    """Seconds, seconds of processor time, and the peak memory of the process tree in MB."""
    started, peak = time.perf_counter(), 0
    cpu: dict[int, float] = {}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        peak = max(peak, tree_memory(process.pid))
        for pid in process_tree(process.pid):
            cpu[pid] = measure_cpu(pid) or cpu.get(pid, 0)
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"this failed: {' '.join(command)}")
    return time.perf_counter() - started, sum(cpu.values()), peak / 1e6


def measure_cpu(pid: int) -> float:
    """The processor time that a process has used; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tokenmill_command(source: Path, out: Path, dedup: str) -> list[str]:
    command = [sys.executable, "-m", "tokenmill.cli", "prepare", str(source), "--out", str(out)]
    return [*command, "--dedup", dedup, "--workers", str(WORKERS), "--val-fraction", "0"]


def datatrove_command(source: Path, out: Path) -> list[str]:
    script = out.parent / "datatrove_run.py"
    script.write_text(DATATROVE)
    numbers = map(str, (BANDS.bands, BANDS.rows, WORKERS))
    return [sys.executable, str(script), str(source), str(out), *numbers]


def datasketch_command(source: Path, out: Path) -> list[str]:
    numbers = map(str, (BANDS.bands, BANDS.rows))
    return [sys.executable, "-c", DATASKETCH, str(source), str(out), *numbers]


def kept_by_tokenmill(source: Path, out: Path) -> set[int]:
    import tokenmill

    places: dict[tuple[str, int], int] = {}
    for path in sorted(source.glob("*.jsonl")):
        offset = 0
        for line in path.read_bytes().splitlines(keepends=True):
            places[str(path), offset] = len(places)
            offset += len(line)
    documents = tokenmill.open(out)["train"].documents
    assert documents is not None
    return {places[one.source.path, one.offset] for one in documents if one.source is not None}  # type: ignore[index]


def kept_by_peer(source: Path, out: Path) -> set[int]:
    kept = set()
    for path in (out / "kept").rglob("*.jsonl*"):
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            kept |= {int(json.loads(line)["id"]) for line in file}
    return kept


def grams_of(text: str) -> frozenset[tuple[str, ...]]:
    found = re.findall(r"\w+", text.lower())
    return frozenset(tuple(found[i : i + 5]) for i in range(len(found) - 4))


def find_similar(texts: Sequence[str]) -> dict[int, set[int]]:
    """For each document, the earlier ones whose similarity is at least the threshold; all pairs."""
    sets = [grams_of(text) for text in texts]
    similar: dict[int, set[int]] = {}
    for number, one in enumerate(sets):
        for earlier in range(number):
            other = sets[earlier]
            few, many = sorted((len(one), len(other)))
            if few and few >= THRESHOLD * many:
                shared = len(one & other)
                if shared / (few + many - shared) >= THRESHOLD:
                    similar.setdefault(number, set()).add(earlier)
    return similar


def judge(texts: Sequence[str], similar: dict[int, set[int]], kept: set[int]) -> dict[str, Any]:
    """Precision and recall, among documents that do not repeat an earlier one word for word.

    A document that should go is one that is similar to an earlier document that the tool keeps.
    """
    first: dict[str, int] = {}
    repeats = {i for i, text in enumerate(texts) if first.setdefault(text.strip(), i) != i}
    removed = {
        i for i, text in enumerate(texts) if i not in kept and i not in repeats and grams_of(text)
    }
    alike = {i for i, others in similar.items() if i not in repeats and others & kept}
    right = removed & alike
    return {
        "removed": len(removed),
        "precision": f"{len(right) / max(1, len(removed)):.4f}",
        "recall": f"{len(right) / max(1, len(alike)):.4f}",
    }


Tool = tuple[str, Callable[[Path, Path], list[str]], Callable[[Path, Path], set[int]]]
TOOLS: list[Tool] = [
    ("tokenmill", lambda source, out: tokenmill_command(source, out, "near"), kept_by_tokenmill),
    ("datatrove", datatrove_command, kept_by_peer),
    ("datasketch, 1 process", datasketch_command, kept_by_peer),
]


def measure_quality(folder: Path, documents: int) -> list[dict[str, Any]]:
    rows = []
    for name, texts in (
        ("planted", planted(documents * 2 // 3)),
        ("real", real_and_alike(documents)),
    ):
        source = write(folder / f"quality-{name}", texts)
        similar = find_similar(texts)
        for tool, command, read in TOOLS:
            out = folder / f"quality-{name}-{tool.split(',')[0]}"
            run(command(source, out))
            row = {"text": name, "what": tool, "documents": len(texts)}
            rows.append(row | judge(texts, similar, read(source, out)))
    return rows


def measure_speed(folder: Path, size: int) -> list[dict[str, Any]]:
    texts = list(real(size * 10**6))
    source = write(folder / "speed", texts)
    megabytes = sum(path.stat().st_size for path in source.iterdir()) / 1e6
    rows: list[dict[str, Any]] = []
    commands: list[tuple[str, Callable[[Path, Path], list[str]]]] = [
        ("tokenmill, `--dedup documents`", lambda a, b: tokenmill_command(a, b, "documents")),
        *((tool, command) for tool, command, _ in TOOLS),
    ]
    for name, command in commands:
        seconds, cpu, peak = run(command(source, folder / f"speed-{len(rows)}"))
        rows.append(
            {
                "what": name,
                "seconds": round(seconds, 1),
                "MB/s": round(megabytes / seconds, 2),
                "CPU s": round(cpu, 1),
                "MB per CPU s": round(megabytes / cpu, 2),
                "peak MB": round(peak),
            }
        )
        time.sleep(1)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--documents", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        quality = measure_quality(folder, arguments.documents)
        speed = measure_speed(folder, arguments.size)
    conditions = vars(arguments) | {"bands": BANDS.bands, "rows": BANDS.rows, "workers": WORKERS}
    results.record("near-quality", conditions, quality)
    results.record("near", conditions, speed)


if __name__ == "__main__":
    main()
