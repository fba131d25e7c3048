"""What filters cost, and how often they agree with the filters of datatrove.

    python benchmarks/filters.py [--size 64000000] [--documents 1000] [--environment FOLDER]

Makes an environment with datatrove and its tokenizer of words, spaCy. Both decide about the same
documents, source code and documentation of the Python installation, after tokenmill has cleaned them.
tokenmill separates words at white space. So datatrove decides twice: with the words of spaCy, and with
words separated at white space. Then
`prepare` runs with and without filters on such text, in turn; medians of three rounds. Filters drop
documents, which need not be tokenized then. So the table also has what the rules take on their own,
as a share of the time of `prepare` without them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import site
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

PACKAGES = (
    "datatrove==0.10.1 loguru==0.7.3 humanize==4.16.0 dill==0.4.1 multiprocess regex fsspec nltk tqdm "
    "spacy==3.8.18 spacy-legacy spacy-loggers thinc==8.3.14 blis==1.3.4 cymem preshed murmurhash wasabi srsly "
    "catalogue confection weasel smart_open cloudpathlib langcodes typer-slim pydantic pydantic-core "
    "annotated-types typing-inspection"
).split()
PEERS = {
    "gopher, quality": "GopherQualityFilter",
    "gopher, repetition": "GopherRepetitionFilter",
    "c4": "C4QualityFilter",
    "fineweb": "FineWebQualityFilter",
}
KINDS = {"documentation": (".rst", ".md", ".txt"), "source code": (".py",)}
ROUNDS = 3


def decide_as_peer(documents: Path, words: str) -> None:
    """Print the decisions of datatrove's filters, and the seconds. Runs in the environment."""
    from importlib import import_module

    filters = import_module("datatrove.pipeline.filters")
    data = import_module("datatrove.data")
    if words == "white space":
        for name in ("gopher_quality", "gopher_repetition", "fineweb_quality"):
            module: Any = import_module(f"datatrove.pipeline.filters.{name}_filter")
            module.split_into_words = lambda text, language: text.split()
    texts = [json.loads(line) for line in documents.open()]
    found = {}
    for name, kind in PEERS.items():
        judge = getattr(filters, kind)()
        judge.filter(data.Document(text=texts[0], id="0"))  # loads what it needs
        started, kept = time.perf_counter(), []
        for text in texts:
            verdict = judge.filter(data.Document(text=text, id="0"))
            kept.append(verdict is True)
        found[name] = (kept, time.perf_counter() - started)
    print(json.dumps(found))


def make_environment(folder: Path) -> Path:
    """Make an environment with datatrove, unless the folder has one. Returns its Python."""
    python = folder / "bin" / "python"
    if (folder / "made").exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "here.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    words = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    (folder / "made").touch()
    return python


def compare(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return how often both decide the same about documents, and how fast."""
    python = make_environment(folder / "environment")
    rows = []
    for kind, suffixes in KINDS.items():
        texts = list(islice(find_texts(suffixes), count))
        listed = folder / "documents.jsonl"
        listed.write_text("".join(json.dumps(text) + "\n" for text in texts))
        peers = []
        for words in ("spaCy", "white space"):
            command = [str(python), "-W", "ignore", __file__, "--peer", str(listed)]
            command += ["--words", words]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            peers.append(json.loads(done.stdout))
        rows += [
            compare_filter(name, kind, texts, *(peer[name] for peer in peers)) for name in PEERS
        ]
    return rows


def find_texts(suffixes: tuple[str, ...]) -> Iterator[str]:
    """Yield cleaned files of the Python installation, most packages in turn."""
    from tokenmill.preparation.clean import clean

    paths = sysconfig.get_paths()
    roots = (paths["stdlib"], paths["purelib"])
    names = {
        path for root in roots for suffix in suffixes for path in Path(root).rglob(f"*{suffix}")
    }
    for path in sorted(names, key=lambda path: xxhash.xxh3_64_intdigest(path.name.encode())):
        text = clean(path.read_bytes().decode("utf-8", "replace"))
        if 200 < len(text) < 200_000:
            yield text


def compare_filter(name: str, kind: str, texts: list[str], *peers: Any) -> dict[str, Any]:
    """Return a row: how often a filter decides as datatrove's, with words of spaCy and of white space."""
    from tokenmill.preparation.filter_judge import FilterJudge
    from tokenmill.preparation.filters.rules import Rule, parse_filters
    from tokenmill.preparation.texts import Texts

    encoded = [text.encode() for text in texts]
    size = sum(map(len, encoded))
    chunk = Texts.of(encoded, list(range(len(texts))), np.zeros(len(texts), np.int64), None)
    preset, _, part = name.partition(", ")
    parsed = [rule for rule in parse_filters([preset]) if isinstance(rule, Rule)]
    judge = FilterJudge(
        [one for one in parsed if not part or one.repeats == (part == "repetition")]
    )
    judge.judge(chunk)
    started = time.perf_counter()
    kept = judge.judge(chunk).numbers == 0
    seconds = time.perf_counter() - started
    (theirs, their_seconds), (plain, _) = peers
    return {
        "filter": name,
        "text": kind,
        "documents": f"{len(texts):,}",
        "kept": f"{kept.mean():.1%}",
        "same as datatrove": f"{np.mean(kept == theirs):.1%}",
        "with words at white space": f"{np.mean(kept == plain):.1%}",
        "MB/s": round(size / seconds / 1e6),
        "datatrove, MB/s": round(size / their_seconds / 1e6, 2),
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "prepare": {},
    "with gopher": {"filter": "gopher"},
    "with c4": {"filter": "c4"},
    "with fineweb": {"filter": "fineweb"},
    "with all three": {"filter": "gopher,c4,fineweb"},
    "with masks": {"mask_emails": True, "mask_ips": True},
    "with language=any": {"language": "any"},
}


def measure(folder: Path, size: int) -> list[dict[str, Any]]:
    """Return what filters cost in `prepare`."""
    from corpus import make_corpus

    import tokenmill

    files = make_corpus(folder / "text", size, "real")
    total = sum(path.stat().st_size for path in files)
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    dropped: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, options in VARIANTS.items():
            out = folder / "dataset"
            started = time.perf_counter()
            report = tokenmill.prepare(files, out, workers=2, **options)
            seconds[name].append(time.perf_counter() - started)
            ledger = report.manifest.ledger
            lost = [
                entry["bytes"]
                for reason, entry in ledger["dropped"].items()
                if reason.startswith("filter")
            ]
            dropped[name] = sum(lost) / ledger["bytes_in"]
            shutil.rmtree(out)
    plain = statistics.median(seconds["prepare"])
    rows = []
    for name, options in VARIANTS.items():
        median = statistics.median(seconds[name])
        alone = measure_rules(files[0], options["filter"]) if "filter" in options else None
        share = "" if alone is None else f"{alone * total / 2 / plain:.0%}"
        rows.append(
            {
                "what": name,
                "MB/s": round(total / median / 1e6, 1),
                "time": f"{median / plain:.2f}",
                "text dropped": f"{dropped[name]:.0%}",
                "rules alone": share,
            }
        )
    return rows


def measure_rules(path: Path, filters: str) -> float:
    """Return the seconds that rules take for a byte of text, on one core."""
    from tokenmill.preparation.clean import clean_block
    from tokenmill.preparation.filter_judge import FilterRecipe
    from tokenmill.preparation.filters.rules import Rule, parse_filters
    from tokenmill.preparation.texts import Texts

    with path.open("rb") as file:
        raw = file.read(16 << 20).decode("utf-8", "ignore").encode()
    block = clean_block(raw.replace(b"<|endoftext|>", b"\0"))
    count = block.count(b"\0") + 1
    texts = Texts(None, block, list(range(count)), np.zeros(count, np.int64), None)
    texts = texts.only(texts.text_sizes > 0)
    rules = tuple(rule for rule in parse_filters(filters.split(",")) if isinstance(rule, Rule))
    judge, spent = FilterRecipe(rules).make(), []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        judge.judge(texts)
        spent.append(time.perf_counter() - started)
    return min(spent) / len(raw)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=64_000_000)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--environment", type=Path)
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--words", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer is not None:
        decide_as_peer(arguments.peer, arguments.words)
        return
    from results import record

    conditions = {"size": arguments.size, "documents": arguments.documents}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.environment is not None:
            (folder / "environment").symlink_to(arguments.environment.absolute())
        record("filters-agreement", conditions, compare(folder, arguments.documents))
        record("filters", conditions, measure(folder, arguments.size))


if __name__ == "__main__":
    main()
