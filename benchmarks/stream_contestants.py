"""One contestant of `stream.py`, in a process of its own.

    python benchmarks/stream_contestants.py NAME WHAT SETTINGS

WHAT is `write` (the files of a peer, in its own format), `epoch` (all batches of the first epoch),
`steps` (batches for a program that computes 50 ms between them) or `resume` (the first batch from the
middle of the epoch on). SETTINGS is JSON. Prints JSON, after the imports and after the measurement.
Runs in an environment that has the package of the contestant.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SEED = 7
STEP = 0.05  # seconds of computing

Settings = dict[str, Any]


class Run(NamedTuple):
    """The batches of a run, and how to get the state that resumes it."""

    batches: Iterator[Any]
    get_state: Callable[[], Any]


# tokenmill


def import_tokenmill() -> None:
    """Import what a run needs: the package imports it at the first use."""
    module = import_module("tokenmill")
    _ = module.open, module.Loader
    import_module("obstore.store")


def start_tokenmill(settings: Settings, state: Any) -> Run:
    import tokenmill

    cache = {"cache_dir": settings["cache"], "cache_bytes": settings["cache_bytes"]}
    tokens = tokenmill.open(f"s3://{settings['bucket']}/corpus", **cache)["train"]
    loader = tokenmill.Loader(
        tokens,
        batch_size=settings["batch"],
        seq_len=settings["length"],
        seed=SEED,
        limit_epochs=1,
        **settings["options"],
    )
    if state is not None:
        loader.load_state_dict(state)
    return Run(loader, loader.state_dict)


def start_copy(settings: Settings, state: Any) -> Run:
    """Copy all files with many requests at once, then load them like any local dataset."""
    import tokenmill

    local = Path(settings["cache"]) / "copy"
    fetch_all(settings["bucket"], "corpus", local)
    tokens = tokenmill.open(local)["train"]
    shape = {"batch_size": settings["batch"], "seq_len": settings["length"]}
    loader = tokenmill.Loader(tokens, seed=SEED, limit_epochs=1, **shape)
    if state is not None:
        loader.load_state_dict(state)
    return Run(loader, loader.state_dict)


def fetch_all(bucket: str, prefix: str, folder: Path | None) -> int:
    """Fetch whole objects with obstore, several at once; returns how many bytes they have."""
    import os
    from concurrent.futures import ThreadPoolExecutor

    from obstore.store import S3Store

    config: Any = {"endpoint": os.environ["AWS_ENDPOINT_URL"]}
    store = S3Store(bucket, config=config, client_options={"allow_http": True})
    names = [one["path"] for page in store.list(prefix) for one in page]

    def fetch(name: str) -> int:
        data = store.get(name).bytes()
        if folder is not None:
            path = folder / name.removeprefix(f"{prefix}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return len(data)

    with ThreadPoolExecutor(16) as pool:
        return sum(pool.map(fetch, names))


# LitData


def write_litdata(settings: Settings) -> None:
    """Chunks of 64 MB, as its documentation recommends."""
    streaming = import_module("litdata.streaming")
    loaders, torch = import_module("litdata.streaming.item_loader"), import_module("torch")
    folder, row = Path(settings["out"]), settings["length"] + 1
    folder.mkdir(parents=True)
    size = (64 << 20) // 2 // row * row
    cache = streaming.Cache(str(folder), chunk_size=size, item_loader=loaders.TokensLoader(row))
    ids = np.fromfile(settings["ids"], np.uint16)
    for number, part in enumerate(np.split(ids, range(row * 512, len(ids), row * 512))):
        cache[number] = torch.from_numpy(part)
    cache.done()
    cache.merge()


def start_litdata(settings: Settings, state: Any) -> Run:
    litdata = import_module("litdata")
    loaders = import_module("litdata.streaming.item_loader")
    # Its obstore refuses a server without TLS otherwise, and it has no setting for that.
    downloader: Any = import_module("litdata.streaming.downloader")
    downloader._OBSTORE_CLIENT_OPTIONS = {**downloader._OBSTORE_CLIENT_OPTIONS, "allow_http": True}
    dataset = litdata.StreamingDataset(
        f"s3://{settings['bucket']}/litdata",
        cache_dir=settings["cache"],
        item_loader=loaders.TokensLoader(block_size=settings["length"] + 1),
        shuffle=True,
        seed=SEED,
        max_cache_size="20GB",
        **settings["options"],
    )
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=settings["batch"], num_workers=settings["workers"]
    )
    if state is not None:
        loader.load_state_dict(state)
    return Run(iter(loader), loader.state_dict)


# MosaicML Streaming


def write_mosaic(settings: Settings) -> None:
    """Shards of 64 MB, the default."""
    streaming = import_module("streaming")
    row = settings["length"] + 1
    ids = np.fromfile(settings["ids"], np.uint16)
    rows = ids[: len(ids) // row * row].reshape(-1, row)
    columns = {"tokens": f"ndarray:uint16:{row}"}
    with streaming.MDSWriter(out=settings["out"], columns=columns, size_limit="64mb") as writer:
        for one in rows:
            writer.write({"tokens": one})


def start_mosaic(settings: Settings, state: Any) -> Run:
    streaming = import_module("streaming")
    dataset = streaming.StreamingDataset(
        remote=f"s3://{settings['bucket']}/mosaic",
        local=settings["cache"],
        shuffle=True,
        shuffle_seed=SEED,
        batch_size=settings["batch"],
        **settings["options"],
    )
    for stream in dataset.streams:
        # Otherwise all workers inherit one open connection, and wait 60 s for each other's answers.
        stream._downloader.clean_up()
    loader = streaming.StreamingDataLoader(
        dataset, batch_size=settings["batch"], num_workers=settings["workers"]
    )
    if state is not None:
        loader.load_state_dict(state)
    return Run(iter(loader), loader.state_dict)


IMPORTS: dict[str, Callable[[], Any]] = {
    "tokenmill": import_tokenmill,
    "copy": import_tokenmill,
    "litdata": lambda: import_module("litdata"),
    "mosaic": lambda: import_module("streaming"),
}
STARTS: dict[str, Callable[[Settings, Any], Run]] = {
    "tokenmill": start_tokenmill,
    "copy": start_copy,
    "litdata": start_litdata,
    "mosaic": start_mosaic,
}
WRITERS: dict[str, Callable[[Settings], None]] = {"litdata": write_litdata, "mosaic": write_mosaic}


def measure_line(settings: Settings) -> Settings:
    """The rate at which obstore fetches all shards as whole objects."""
    import_module("obstore.store")
    started = time.perf_counter()
    count = fetch_all(settings["bucket"], "corpus/train", None)
    return {"bytes": count, "seconds": time.perf_counter() - started}


def measure(name: str, what: str, settings: Settings) -> Settings:
    """Times in seconds from the start on, and what the run saw."""
    IMPORTS[name]()
    path = Path(settings["state"])
    state = json.loads(path.read_text()) if what == "resume" else None
    started = time.perf_counter()
    run = STARTS[name](settings, state)
    first = next(iter(run.batches))
    result: Settings = {"first": time.perf_counter() - started}
    if what == "steps":
        return result | _measure_waits(run, settings["steps"])
    if what == "epoch":
        rows = 0
        for number, batch in enumerate(chain([first], run.batches)):
            rows += _count_rows(batch)
            if number == settings["middle"]:
                path.write_text(json.dumps(run.get_state()))
            if rows >= settings["rows"]:
                break
        result |= {"rows": rows, "all": time.perf_counter() - started}
    return result


def _measure_waits(run: Run, steps: int) -> Settings:
    """How long a program waits that computes for `STEP` seconds after each batch."""
    waits = []
    for _ in range(steps):
        time.sleep(STEP)
        asked = time.perf_counter()
        if next(run.batches, None) is None:
            break
        waits.append(time.perf_counter() - asked)
    return {"waited": sum(waits), "longest": max(waits), "late": sum(one > 0.005 for one in waits)}


def _count_rows(batch: Any) -> int:
    if isinstance(batch, dict):
        batch = batch["tokens"]
    return len(getattr(batch, "inputs", batch))


def main() -> None:
    name, what, text = sys.argv[1:]
    settings = json.loads(text)
    if what == "write":
        WRITERS[name](settings)
        return
    result = measure_line(settings) if name == "line" else measure(name, what, settings)
    Path(settings["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
