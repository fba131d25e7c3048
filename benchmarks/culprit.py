"""Plant one bad document among 100,000, train a small model, and find the document by its losses.

The corpus is made of sentences over a seeded vocabulary. The bad document is a random block of
base64, repeated until it fills a few rows. `tokenmill.spikes` must name it first, and it must be in
the worst row, according to `explain` and, in the other direction, to `where`. Prints the report of
the first run. Also measures how fast losses are read, on a file of random numbers, and in how much
memory. Needs about 300 MB of disk.

    python benchmarks/culprit.py [--documents 100000] [--steps 1400] [--backends torch,jax]
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tokenmill
from tokenmill.cli import main as main_of_cli
from tokenmill.inspect.run_view import Phase
from tokenmill.inspect.spikes.scan import RowCurve, scan
from tokenmill.inspect.spikes.spikes import SpikeReport
from tokenmill.progress import Nobody

SEQ_LEN = 128
MODEL = {"layers": 1, "heads": 1, "width": 32, "embedding_width": 0, "shortlist": 0}
RUN = {
    "batch_tokens": 4096,
    "val_every": 0,
    "val_tokens": 1024,
    "sample_tokens": 0,
    "checkpoint_every": 0,
}


def write_corpus(path: Path, documents: int, seed: int, noise_bytes: int) -> None:
    """Write documents as JSON lines, one of them noise. The noise is the longest document."""
    source = random.Random(seed)
    letters = "etaoinshrdlucmfwygpbvk"
    words = ["".join(source.choices(letters, k=source.randint(2, 7))) for _ in range(500)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    place = source.randrange(documents)
    with path.open("w") as file:
        for number in range(documents):
            text = " ".join(source.choices(words, weights, k=source.randint(4, 12))) + "."
            if number == place:
                block = base64.b64encode(source.randbytes(192)).decode()
                text = (block * (1 + noise_bytes // len(block)))[:noise_bytes]
            file.write(json.dumps({"text": text}) + "\n")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the report of a run says, and which document was planted, by its text."""

    run: Path
    planted: int
    report: SpikeReport
    training_seconds: float
    spikes_seconds: float

    @property
    def is_seen_by_where(self) -> bool:
        """Whether `where` finds that the run reads the first suspect in the worst row."""
        first, worst = self.report.suspects[0], self.report.rows[0].explained
        assert first.document is not None
        assert first.document.key is not None
        (found,) = tokenmill.where([], first.document.key, run=self.run).documents
        assert found.visits is not None
        return worst.place.row in {visit.row for visit in found.visits.first}

    @property
    def first(self) -> int | None:
        """The document that the report names first."""
        document = self.report.suspects[0].document if self.report.suspects else None
        return None if document is None else document.number


def find_culprit(
    folder: Path, documents: int, *, steps: int, seed: int, backend: str, **settings: Any
) -> Outcome:
    """Make the corpus, train on it, and find the culprit."""
    seq_len = settings.get("seq_len", SEQ_LEN)
    write_corpus(folder / "corpus.jsonl", documents, seed, noise_bytes=4 * seq_len)
    tokenmill.prepare(
        folder / "corpus.jsonl", folder / "data", tokenizer="bytes", val_fraction=0.001, workers=1
    )
    started = time.perf_counter()
    report = tokenmill.train(
        folder / "data",
        name=f"run-{backend}",
        runs=folder / "runs",
        backend=backend,
        device="cpu",
        config="tiny",
        max_steps=steps,
        seed=seed,
        **{"seq_len": seq_len, **MODEL, **RUN, **settings},
    )
    trained = time.perf_counter()
    found = tokenmill.spikes(report.path)
    ended = time.perf_counter()
    table = tokenmill.open(folder / "data")["train"].documents
    assert table is not None
    return Outcome(
        run=report.path,
        planted=int(np.argmax(table.lengths)),
        report=found,
        training_seconds=trained - started,
        spikes_seconds=ended - trained,
    )


def scan_file(path: Path) -> dict[str, float]:
    """Scan a file of losses in this process; returns nanoseconds per row and the peak of memory."""
    rows = path.stat().st_size // 4
    phase = Phase(step=0, row=0, batch_rows=512, world_size=8)

    def read(first: int, last: int) -> npt.NDArray[np.float32]:
        # Not mapped, so that the peak has no pages of the file.
        return np.fromfile(path, "<f4", last - first, offset=4 * first)

    started = time.perf_counter()
    scan(RowCurve([phase], rows, read), 6.0, Nobody())
    spent = time.perf_counter() - started
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    return {"ns per row": spent / rows * 1e9, "peak": peak}


def measure_scan(rows: int) -> dict[str, Any]:
    """Scan a file of so many random losses in a fresh process."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "losses.f32"
        random_losses = np.random.default_rng(1)
        with path.open("wb") as file:
            for first in range(0, rows, 1 << 22):
                number = min(rows - first, 1 << 22)
                file.write(random_losses.normal(3, 0.3, number).astype("<f4").tobytes())
        command = [sys.executable, __file__, "--scan", str(path)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {
        "rows": f"{rows:,}",
        "ns per row": round(found["ns per row"]),
        "peak memory (MB)": round(found["peak"]),
    }


def main() -> None:
    from results import record

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--backends", default="torch,jax")
    parser.add_argument("--scan-rows", type=int, default=50_000_000)
    parser.add_argument("--scan", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.scan:
        print(json.dumps(scan_file(args.scan)))
        return
    rows: list[dict[str, Any]] = []
    for backend in filter(None, args.backends.split(",")):
        for seed in map(int, args.seeds.split(",")):
            with tempfile.TemporaryDirectory() as temporary:
                found = find_culprit(
                    Path(temporary), args.documents, steps=args.steps, seed=seed, backend=backend
                )
                assert found.is_seen_by_where, "where does not find the worst row"
                if not rows:
                    main_of_cli(["spikes", str(found.run)])
            first, worst = found.report.suspects[0], found.report.rows[0].explained
            numbers = [part.document.number for part in worst.documents if part.document]
            assert found.planted == found.first, "spikes names another document"
            assert found.planted in numbers, "the worst row does not hold the document"
            rows.append(
                {
                    "backend, seed": f"{backend}, {seed}",
                    "documents": f"{args.documents:,}",
                    "rows read": f"{found.report.row_count:,}",
                    "planted": f"document {found.planted:,}",
                    "named first": f"document {found.first:,}",
                    "its rows that stand out": f"{first.high_rows} of {first.rows}",
                    "excess": f"{first.excess:.1f}",
                    "excess of the second": f"{found.report.suspects[1].excess:.1f}",
                    "training (s)": round(found.training_seconds),
                    "`spikes` (s)": round(found.spikes_seconds, 1),
                }
            )
            print(rows[-1], flush=True)
    if rows:
        record("culprit", {}, rows)
    sizes = [args.scan_rows // 50, args.scan_rows] if args.scan_rows else []
    if sizes:
        record("culprit-scan", {"rows per step": 512}, list(map(measure_scan, sizes)))


if __name__ == "__main__":
    main()
