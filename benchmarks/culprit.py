"""Plant one bad document among 100,000, train a small model, and find the document by its losses.

The corpus is made of sentences over a seeded vocabulary. The bad document is a random block of
base64, repeated until it fills a few rows. `tokenmill.spikes` must name it first; then `explain` must
find it in the worst row, and the inverse, `find_rows`, must find the worst row. Also measures how fast
losses are read, on a file of random numbers. Needs about 300 MB of disk.

    python benchmarks/culprit.py [--documents 100000] [--steps 2000] [--backends torch,jax]
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import tempfile
import time
from pathlib import Path

import numpy as np

SEQ_LEN = 128
MODEL = {"layers": 2, "heads": 2, "width": 64, "embedding_width": 0, "shortlist": 0}
RUN = {"val_every": 0, "val_tokens": 1024, "sample_tokens": 0, "checkpoint_every": 0}


def write_corpus(path: Path, documents: int, seed: int, noise_bytes: int) -> int:
    """Write documents as JSON lines, one of them noise; returns the line of the noise, from 0."""
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
    return place


def find_culprit(
    folder: Path, documents: int, *, steps: int, seed: int, backend: str, **settings: object
) -> dict[str, object]:
    """Make the corpus, train on it, and return what the report says about the planted document."""
    import tokenmill

    seq_len = int(str(settings.get("seq_len", SEQ_LEN)))
    line = write_corpus(folder / "corpus.jsonl", documents, seed, noise_bytes=4 * seq_len)
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
    # The planted document, found by its text and not by its losses.
    table = tokenmill.open(folder / "data")["train"].documents
    assert table is not None
    planted = int(np.argmax(table.lengths))
    first = found.suspects[0].document if found.suspects else None
    worst = found.rows[0].explained if found.rows else None
    in_row = [] if worst is None else [part.document.number for part in worst.documents]
    return {
        "line": line,
        "planted": planted,
        "first": None if first is None else first.number,
        "found": found,
        "documents of the worst row": in_row,
        "train (s)": trained - started,
        "spikes (s)": ended - trained,
        "run": report.path,
    }


def measure_scan(rows: int) -> float:
    """Return how many nanoseconds the pass over losses takes for each row."""
    from tokenmill.inspect.loss_scan import RowCurve, scan
    from tokenmill.inspect.run_view import Phase
    from tokenmill.progress import Nobody

    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "losses.f32"
        np.random.default_rng(1).normal(3, 0.3, rows).astype("<f4").tofile(path)
        losses = np.memmap(path, "<f4", "r")
        phase = Phase(step=0, row=0, batch_rows=512, world_size=8)
        curve = RowCurve([phase], rows, lambda first, last: losses[first:last])
        started = time.perf_counter()
        scan(curve, 6.0, Nobody())
        return (time.perf_counter() - started) / rows * 1e9


def main() -> None:
    from results import record

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--backends", default="torch,jax")
    parser.add_argument("--scan-rows", type=int, default=50_000_000)
    args = parser.parse_args()
    rows = []
    for backend in args.backends.split(","):
        for seed in map(int, args.seeds.split(",")):
            with tempfile.TemporaryDirectory() as temporary:
                found = find_culprit(
                    Path(temporary), args.documents, steps=args.steps, seed=seed, backend=backend
                )
            report = found["found"]
            first = report.suspects[0]  # type: ignore[attr-defined]
            rows.append(
                {
                    "backend, seed": f"{backend}, {seed}",
                    "documents": f"{args.documents:,}",
                    "rows read": f"{report.row_count:,}",  # type: ignore[attr-defined]
                    "planted document": f"{found['planted']:,}",
                    "named first": f"{found['first']:,}",
                    "its rows that stand out": f"{first.high_rows} of {first.rows}",
                    "training (s)": round(float(str(found["train (s)"]))),
                    "`spikes` (s)": round(float(str(found["spikes (s)"])), 1),
                }
            )
            print(rows[-1], flush=True)
            assert found["planted"] == found["first"]
    nanoseconds = measure_scan(args.scan_rows)
    print(f"{nanoseconds:.0f} ns per row for {args.scan_rows:,} rows")
    record("culprit", {"scan (ns per row)": round(nanoseconds)}, rows)


if __name__ == "__main__":
    main()
