"""What an interrupted run left behind: receipts, plans, and files that they call finished.

The run is resumed. Unless a receipt was changed together with its checksum, the result is refused, or
it is byte for byte that of an undisturbed run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import xxhash
from tests.preparation.preparing import InProcessEngine, small
from tests.store.dataset_builder import build

import tokenmill
from tokenmill.preparation.engine import Progress, Task
from tokenmill.preparation.pack import PackShard
from tokenmill.preparation.plan import Plan, make_plan
from tokenmill.preparation.prepare import run_plan
from tokenmill.progress import Nobody
from tokenmill.storage.names import MANIFEST_NAME, WORK_NAME

from ..case import Case, Parser, read_files, require, write_files
from ..mutate import change_bytes, change_tree, dump
from .store import change_manifest

_SEALED = re.compile(rb"([0-9a-f]{16}|[0-9a-f]{32})\n")
_TIME = 1_600_000_000


class StoppedError(Exception):
    """The run is interrupted here."""


class _Run(Parser):
    """`inputs` are the files that the run reads, `left` those that it left, `finished` its result."""

    def start(self, *, stop: bool) -> None:
        """Run the command in the working folder, from `in` to `out`; stop in the middle."""
        raise NotImplementedError

    def write_inputs(self, folder: Path) -> None:
        raise NotImplementedError

    def prepare(self, folder: Path) -> None:
        before = Path.cwd()
        os.chdir(folder)
        try:
            self.write_inputs(folder)
            self.inputs = read_files(folder)
            _fix_times(folder)
            try:
                self.start(stop=True)
            except StoppedError:
                self.left = self._read_out(folder, work=True)
            self.start(stop=False)
            self.finished = self._read_out(folder)
        finally:
            os.chdir(before)

    def _read_out(self, folder: Path, *, work: bool = False) -> dict[str, bytes]:
        files = read_files(folder / "out")
        return {
            name: data
            for name, data in files.items()
            if work or not name.startswith((f"{WORK_NAME}/", "."))
        }

    def list_sound(self) -> list[Case]:
        return [Case(files, {"sealed": False}) for files in (self.left, self.finished)]

    def make(self, random: Random) -> Case:
        if random.randrange(6) == 0 and MANIFEST_NAME in self.finished:
            manifest = self.finished[MANIFEST_NAME]
            sealed = random.randrange(3) > 0
            changed = change_bytes(random, manifest)
            if sealed:
                changed = change_manifest(random, json.loads(manifest))
            files = {**self.finished, MANIFEST_NAME: changed}
            return Case(files, {"sealed": sealed})
        files = dict(self.left)
        sealed = random.randrange(2) > 0
        names = [name for name in files if name.endswith(".json")]
        name = random.choice(names if random.randrange(3) else list(files))
        files[name] = change_receipt(random, files[name], sealed=sealed)
        # Plans and records have no checksum: a changed one is refused, or makes no difference.
        return Case(files, {"sealed": sealed and bool(_SEALED.match(self.left[name]))})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, self.inputs)
        write_files(folder / "out", case.files)
        _fix_times(folder)
        os.chdir(folder)
        self.start(stop=False)
        if not case.facts["sealed"]:
            made = self._read_out(folder)
            wrong = {
                name
                for name in {*made, *self.finished}
                if made.get(name) != self.finished.get(name)
            }
            if self.was_finished(case):
                # A finished dataset is not read again, only recognised.
                wrong &= {MANIFEST_NAME}
            require(not wrong, f"the resumed run made other files: {sorted(wrong)[:3]}")

    def was_finished(self, case: Case) -> bool:
        return MANIFEST_NAME in case.files


def change_receipt(random: Random, data: bytes, *, sealed: bool) -> bytes:
    """A changed file of a run; a receipt gets the checksum that it needs, if `sealed`."""
    head = _SEALED.match(data)
    content = data[head.end() :] if head else data
    if random.randrange(3) and content[:1] in (b"{", b"["):
        content = dump(change_tree(random, json.loads(content)))
    else:
        content = change_bytes(random, content)
    if head is None:
        return content
    hash_content = xxhash.xxh3_128_hexdigest if head.end() == 33 else xxhash.xxh3_64_hexdigest
    return (hash_content(content).encode() if sealed else head[1]) + b"\n" + content


def _fix_times(folder: Path) -> None:
    for path in folder.glob("in*"):
        os.utime(path, (_TIME, _TIME))


class _StoppingEngine(InProcessEngine):
    """Stops after two shards."""

    def run(self, tasks: Sequence[Task], progress: Progress) -> Iterator[tuple[int, Any]]:
        for count, result in enumerate(super().run(tasks, progress), start=1):
            yield result
            if isinstance(tasks[result[0]], PackShard) and count == 2:
                raise StoppedError


class PrepareParser(_Run):
    name = "prepare-receipts"

    def write_inputs(self, folder: Path) -> None:
        texts = [
            f"Document {number}, with words.\nThe same line as all others.\n" for number in range(9)
        ]
        (folder / "in.txt").write_text("<|endoftext|>".join([*texts, texts[0], "bad \0 text"]))
        lines = [{"text": "One more."}, {"no": "text"}, {"text": texts[1]}]
        (folder / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))

    def start(self, *, stop: bool) -> None:
        plan: Plan = make_plan(
            ["in.txt", "in.jsonl"],
            "out",
            limits=small(part=200, block=64),
            tokenizer="bytes",
            workers=1,
            tokens_per_shard=100,
            val_fraction=0.3,
            dedup="lines",
        )
        engine = _StoppingEngine if stop else InProcessEngine
        run_plan(plan, Path("out"), Nobody(), start=engine)


class _StoppingWatcher(Nobody):
    """Stops after 45 tokens."""

    left = 45

    def advance(self, amount: int, *_: Any) -> None:
        self.left -= amount
        if self.left <= 0:
            raise StoppedError


class ImportParser(_Run):
    name = "import-receipts"

    def write_inputs(self, folder: Path) -> None:
        np.save(folder / "in.npy", np.array([5, 6, 7, 8, 256] * 14))

    def start(self, *, stop: bool) -> None:
        watcher = _StoppingWatcher() if stop else Nobody()
        tokenmill.import_dataset(
            "in.npy", "out", tokenizer="bytes", tokens_per_shard=15, watcher=watcher
        )


class ReshardParser(_Run):
    name = "reshard-receipts"

    def write_inputs(self, folder: Path) -> None:
        build(folder / "in")

    def start(self, *, stop: bool) -> None:
        watcher = _StoppingWatcher() if stop else Nobody()
        tokenmill.reshard("in", "out", tokens_per_shard=15, watcher=watcher)


class ExportParser(_Run):
    name = "export-record"

    def write_inputs(self, folder: Path) -> None:
        build(folder / "in")

    def start(self, *, stop: bool) -> None:
        watcher = _StoppingWatcher() if stop else Nobody()
        tokenmill.export("in", "out", to="datatrove", tokens_per_shard=15, watcher=watcher)

    def list_sound(self) -> list[Case]:
        return [Case(self.left, {"sealed": False})]


PARSERS = [PrepareParser(), ImportParser(), ReshardParser(), ExportParser()]
