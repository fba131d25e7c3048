"""The commands that the laboratory runs: small inputs, the least work that calls everything.

Every command that writes files has a scenario. A new one is an entry in `SCENARIOS`.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path

import xxhash

from .bench import Bench, Scenario

_WORDS = "mill grain water stone wheel flour sack river miller bread dust gear shaft hopper".split()
_EOT = "<|endoftext|>"


def _sentences(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(_WORDS, k=rng.randint(3, 12))) for _ in range(count)]


def _documents(count: int, seed: int) -> list[str]:
    """Documents of a few lines. Some documents and many lines are repeated."""
    lines = _sentences(40, 7)
    rng = random.Random(seed)
    made = ["\n".join(rng.choices(lines, k=rng.randint(1, 5))) for _ in range(count)]
    return made + made[: count // 4]


def make_texts(_: Bench, folder: Path) -> None:
    """A folder `texts` with text, JSON lines, a compressed file, invalid UTF-8 and a bad record."""
    import pyarrow as pa
    import pyarrow.parquet

    texts = folder / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text(_EOT.join(_documents(30, 1)))
    (texts / "b.txt").write_bytes(
        b"a caf\xe9 by the river\n" + "\n".join(_sentences(20, 2)).encode()
    )
    records = [json.dumps({"text": text}) for text in _documents(20, 3)]
    (texts / "c.jsonl").write_text("\n".join([*records, '{"text": 5}', ""]))
    with gzip.GzipFile(texts / "d.txt.gz", "wb", mtime=0) as file:
        file.write(_EOT.join(_documents(20, 4)).encode())
    table = pa.table({"text": _documents(20, 5)})
    pyarrow.parquet.write_table(table, texts / "e.parquet", row_group_size=10)


def make_records(_: Bench, folder: Path) -> None:
    """A folder `texts` with a JSON array, a CSV file and JSON lines, with fields to keep."""
    texts = folder / "texts"
    texts.mkdir()
    records = [
        {"id": number, "url": f"https://example.org/{number}", "text": text}
        for number, text in enumerate(_documents(60, 8))
    ]
    (texts / "a.json").write_text(json.dumps(records[:30], indent=1))
    (texts / "b.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records[30:50]))
    with (texts / "c.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, records[0])
        writer.writeheader()
        writer.writerows(records[50:])


def make_dataset(bench: Bench, folder: Path) -> None:
    """A dataset `data` in two splits of several shards, as `prepare` makes it."""
    _make_output(bench, "prepare", folder)


def make_compressed_dataset(bench: Bench, folder: Path) -> None:
    """The same dataset with compressed shards."""
    _make_output(bench, "prepare-compressed", folder)


def make_dataset_with_fields(bench: Bench, folder: Path) -> None:
    """A dataset with kept fields."""
    _make_output(bench, "prepare-fields", folder)


def _make_output(bench: Bench, name: str, folder: Path) -> None:
    """The output of another scenario."""
    source = SCENARIOS[name]
    bench.reset(source)
    ended = bench.run(source, real_workers=False)
    assert ended.status == 0, ended.stderr
    (bench.folder(source) / "data").rename(folder / "data")


def make_listed_dataset(bench: Bench, folder: Path) -> None:
    """The dataset `data`, with a list of excluded documents beside it."""
    make_dataset(bench, folder)
    write_list(folder / "data.exclude.jsonl", _documents(20, 3)[:6])


def make_growing_dataset(bench: Bench, folder: Path) -> None:
    """The dataset `data`, and a text to add to it: a few of its documents are in the dataset."""
    make_dataset(bench, folder)
    added = _documents(30, 8) + _documents(30, 1)[:5]
    (folder / "more.txt").write_text(_EOT.join(added))


def make_listed_texts(bench: Bench, folder: Path) -> None:
    """The folder `texts`, and a list of documents to exclude."""
    make_texts(bench, folder)
    write_list(folder / "list.jsonl", _documents(30, 1)[5:15])


def write_list(path: Path, texts: list[str]) -> None:
    """Write a list of documents to exclude, by the keys of their texts."""
    lines = [json.dumps({"key": _key_of(text), "because": "lab"}) + "\n" for text in texts]
    path.write_text("".join(lines))


def _key_of(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())


def make_tokens(_: Bench, folder: Path) -> None:
    """Shards of llm.c with GPT-2 tokens."""
    import numpy as np

    rng = np.random.default_rng(5)
    for split, number in (("train", 1), ("train", 2), ("val", 0)):
        ids = rng.integers(0, 50_256, 3_000, dtype=np.uint16)
        ids[::100] = 50_256
        header = np.zeros(256, np.int32)
        header[:3] = 20240520, 1, len(ids)
        (folder / "tokens").mkdir(exist_ok=True)
        path = folder / "tokens" / f"corpus_{split}_{number:06}.bin"
        path.write_bytes(header.tobytes() + ids.tobytes())


def make_one_text(_: Bench, folder: Path) -> None:
    """One text file."""
    (folder / "book.txt").write_text("\n".join(_sentences(300, 6)))


def make_small_dataset(bench: Bench, folder: Path) -> None:
    """A dataset `data` with one shard per split, to train on."""
    # In this process: frameworks read these when they are imported.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(bench.root / "programs")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    _make_output(bench, "prepare-book", folder)


def start_hub(bench: Bench, folder: Path) -> None:
    """A Hub on this machine with three files to download; the folder stays empty."""
    site = bench.root / "site" / "lab" / "web"
    site.mkdir(parents=True)
    for number in range(3):
        ids = random.Random(number).randbytes(2 * 20_000)
        header = b"".join(value.to_bytes(4, "little") for value in (20240520, 1, 20_000))
        (site / f"web_train_{number:06}.bin").write_bytes(header.ljust(1024, b"\0") + ids)
    program = Path(__file__).parents[1] / "hub" / "local_hub.py"
    server = subprocess.Popen(
        [sys.executable, str(program), str(site.parents[1])], stdout=subprocess.PIPE, text=True
    )
    bench.at_end(server.kill)
    bench.at_end(server.communicate)
    assert server.stdout is not None
    # In this process: the library of the Hub reads these when it is imported.
    os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{int(server.stdout.readline())}"
    os.environ["HF_HOME"] = str(bench.root / "home")
    os.environ["HF_HUB_DISABLE_XET"] = "1"
    folder.mkdir(exist_ok=True)


def use_small_parts() -> None:
    """Cut inputs into many parts, and sort in little memory, so that files are used instead."""
    from tokenmill.preparation import plan

    # The class must stay the same object, because plans are pickled.
    plan.Limits.__init__.__kwdefaults__.update(
        part_bytes=1_000, partition_bytes=4_000, run_keys=50, sorted_keys=64
    )


def drop_times(name: str, data: bytes) -> bytes:
    """The metrics of a run without what depends on the clock; the lock holds a process number."""
    from tokenmill.training.run_folder import TIMES

    if name.endswith("/lock"):
        return b""
    if not name.endswith("metrics.jsonl"):
        return data
    lines = [json.loads(line) for line in data.splitlines()]
    return json.dumps(
        [{key: value for key, value in line.items() if key not in TIMES} for line in lines]
    ).encode()


def use_small_pieces() -> None:
    """Let a cache have pieces of 512 bytes, four to a set, and fetch one at a time."""
    from tokenmill.storage import cache, pieces, ranges
    from tokenmill.store import cached_rows

    for module in (cache, pieces, ranges, cached_rows):
        module.PIECE = 512  # type: ignore[attr-defined]
    cache.WAYS = 4
    cache._SET_RECORDS = 4 * cache._RECORD.itemsize
    cache.SET_BYTES = 4 * 512 + cache._SET_RECORDS
    pieces.REQUESTS, pieces.LONGEST = 1, 1024


def read_cached_rows() -> None:
    """Write the rows of an epoch to a file, read through a cache that is too small for them."""
    import tokenmill
    from tokenmill.storage.files import remove_temporaries, write_file

    warnings.simplefilter("ignore")  # a cache that cannot be written is no error
    remove_temporaries(Path())
    tokens = tokenmill.open("data", cache_dir="cache", cache_bytes=_CACHE_BYTES)["train"]
    run = {"batch_size": 8, "seq_len": 64, "limit_epochs": 1, "order": "blocks"}
    with tokenmill.Loader(tokens, block_rows=4, group_blocks=2, **run) as loader:
        rows = b"".join(batch.tokens.tobytes() for batch in loader)
    write_file(Path("rows.bin"), rows)


def use_key_index() -> None:
    """Let lookups of keys use an index, however few documents there are."""
    from tokenmill.inspect.where import key_index, keys

    keys.SCANNED = 0
    key_index._SORTED = 64


def drop_kept(name: str, data: bytes) -> bytes | None:
    """Leave out what is kept beside a dataset: it may be missing, and have random names.

    The answers that are made from it are compared, and nothing half-written may stay.
    """
    return None if "/.tokenmill/" in name and not name.endswith(".tmp") else data


def find_keys() -> None:
    """Write the places of some keys of a dataset to a file."""
    import tokenmill
    from tokenmill.inspect.where.keys import find_key
    from tokenmill.storage.files import remove_temporaries, write_file

    remove_temporaries(Path())
    dataset = tokenmill.open("data")
    keys = [_key_of(text) for text in _documents(30, 1)[:5]]
    found = [one for key in keys for one in find_key(dataset, key, progress=False)]
    lines = "".join(f"{one.key} {one.split} {one.number} {one.start}\n" for one in found)
    write_file(Path("found.txt"), lines.encode())


def compute_statistics() -> None:
    """Write the statistics of a dataset to a file."""
    import tokenmill
    from tokenmill.storage.files import remove_temporaries, write_file

    remove_temporaries(Path())
    found = tokenmill.stats("data", progress=False)
    figures = f"{found.tokens} {found.documents} {found.counts.tolist()}"
    write_file(Path("found.txt"), figures.encode())


def index_and_search() -> None:
    """Index the words of a dataset, and write what a search finds to a file."""
    import tokenmill
    from tokenmill.storage.files import remove_temporaries, write_file

    remove_temporaries(Path())
    tokenmill.index("data", progress=False)
    found = tokenmill.search("data", "miller bread", progress=False)
    text = "".join(f"{match.split} {match.token} {match.byte}\n" for match in found)
    write_file(Path("found.txt"), text.encode())


def drop_pieces(name: str, data: bytes) -> bytes | None:
    """Leave out the files of a cache, which may vanish, but not those that exceed its limit."""
    is_cache = name.startswith("cache/") and len(data) <= _CACHE_BYTES
    return None if is_cache else data


def limit_threads() -> None:
    """Run frameworks in one thread."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


_PREPARE = ("prepare", "texts", "--out", "data", "--tokenizer", "bytes", "--val-fraction", "0.2")
_SHARDS = ("--tokens-per-shard", "3000")
_CACHE_BYTES = 5_000  # two sets of small pieces: half of the data
_TRAIN = (
    "train --data data --name m --layers 1 --heads 1 --width 8 --seq-len 16 --batch-tokens 32 "
    "--max-steps 4 --warmup-steps 1 --log-every 2 --val-every 2 --val-tokens 32 --sample-every 0 "
    "--checkpoint-every 2 --backend"
).split()


def _prepare(name: str, *more: str, workers: int = 1, small: bool = False) -> Scenario:
    return Scenario(
        name=name,
        arguments=(*_PREPARE, *_SHARDS, "--workers", str(workers), *more),
        make_inputs=make_texts,
        set_up=use_small_parts if small else lambda: None,
    )


def _export(to: str) -> Scenario:
    arguments = ("export", "data", "--to", to, "--out", "out", "--tokens-per-shard", "2000")
    return Scenario(name=f"export-{to}", arguments=arguments, make_inputs=make_dataset)


def _train(backend: str) -> Scenario:
    return Scenario(
        name=f"train-{backend}",
        arguments=(*_TRAIN, backend),
        make_inputs=make_small_dataset,
        set_up=limit_threads,
        normalize=drop_times,
        slow=True,
    )


_ALL = [
    _prepare("prepare"),
    _prepare("prepare-lines", "--dedup", "lines"),
    _prepare("prepare-all", "--dedup", "none"),
    _prepare("prepare-parts", "--dedup", "lines", workers=2, small=True),
    _prepare("prepare-near", "--dedup", "near", workers=2, small=True),
    _prepare("prepare-compressed", "--compress", "zstd"),
    Scenario(
        name="prepare-fields",
        arguments=(
            *(*_PREPARE, *_SHARDS, "--workers", "1", "--csv", "records"),
            *("--keep-fields", "url,id", "--text-field", "{url}\n{text}"),
        ),
        make_inputs=make_records,
    ),
    Scenario(
        name="reshard-fields",
        arguments=("reshard", "data", "--out", "out", "--tokens-per-shard", "1000"),
        make_inputs=make_dataset_with_fields,
    ),
    Scenario(
        name="prepare-book",
        arguments=(
            *("prepare", "book.txt", "--out", "data", "--tokenizer", "bytes", "--workers", "1"),
            *("--documents", "line", "--val-fraction", "0.3"),
        ),
        make_inputs=make_one_text,
    ),
    Scenario(
        name="import",
        arguments=("import", "tokens", "--out", "data", "--tokens-per-shard", "2000"),
        make_inputs=make_tokens,
    ),
    *map(_export, ("npy", "llmc", "nanogpt", "megatron", "datatrove", "mds", "litdata")),
    Scenario(
        name="reshard",
        arguments=("reshard", "data", "--out", "out", "--tokens-per-shard", "1000"),
        make_inputs=make_dataset,
    ),
    Scenario(
        name="reshard-compressed",
        arguments=(
            *("reshard", "data", "--out", "out", "--tokens-per-shard", "2000"),
            *("--compress", "zstd"),
        ),
        make_inputs=make_dataset,
    ),
    Scenario(
        name="exclude",
        arguments=("exclude", "data", "a.txt", "--search", "miller bread", "--because", "lab"),
        make_inputs=make_listed_dataset,
    ),
    Scenario(
        name="exclude-new",
        arguments=("exclude", "data", "c.jsonl", "--out", "new/list.jsonl"),
        make_inputs=make_dataset,
    ),
    Scenario(
        name="prepare-excluded",
        arguments=(*_PREPARE, *_SHARDS, "--workers", "2", "--exclude", "list.jsonl"),
        make_inputs=make_listed_texts,
        set_up=use_small_parts,
    ),
    Scenario(
        name="append",
        arguments=("prepare", "more.txt", "--out", "data", "--append", "--workers", "1"),
        make_inputs=make_growing_dataset,
        set_up=use_small_parts,
    ),
    Scenario(
        name="reshard-excluded",
        arguments=("reshard", "data", "--out", "out"),
        make_inputs=make_listed_dataset,
    ),
    Scenario(
        name="key-index",
        arguments=("where", "data", "KEY"),
        program=find_keys,
        make_inputs=make_dataset,
        set_up=use_key_index,
        normalize=drop_kept,
    ),
    Scenario(
        name="word-index",
        arguments=("index", "data"),
        program=index_and_search,
        make_inputs=make_dataset,
        normalize=drop_kept,
    ),
    Scenario(
        name="stats",
        arguments=("stats", "data"),
        program=compute_statistics,
        make_inputs=make_dataset,
        normalize=drop_kept,
    ),
    Scenario(
        name="export-compressed",
        arguments=("export", "data", "--to", "npy", "--out", "out"),
        make_inputs=make_compressed_dataset,
    ),
    Scenario(
        name="cached-rows",
        arguments=("read",),
        program=read_cached_rows,
        make_inputs=make_dataset,
        set_up=use_small_pieces,
        normalize=drop_pieces,
    ),
    Scenario(
        name="pretokenize",
        arguments=("pretokenize", "book.txt", "--tokenizer", "bytes", "--workers", "1"),
        make_inputs=make_one_text,
    ),
    Scenario(
        name="tokenizer-train",
        arguments=("tokenizer", "train", "book.txt", "--vocab-size", "300"),
        make_inputs=make_one_text,
    ),
    Scenario(
        name="download", arguments=("download", "lab/web", "--to", "out"), make_inputs=start_hub
    ),
    *(_train(name) for name in ("torch", "jax") if importlib.util.find_spec(name)),
]
SCENARIOS = {scenario.name: scenario for scenario in _ALL}


def chosen() -> list[Scenario]:
    """The scenarios to run: all, or those that LAB_SCENARIOS names, separated by commas."""
    names = os.environ.get("LAB_SCENARIOS")
    return [SCENARIOS[name] for name in (names.split(",") if names else SCENARIOS)]
