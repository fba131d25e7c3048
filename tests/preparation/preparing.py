"""Shared by the tests of `prepare`: inputs, runs in this process, and comparing folders."""

from __future__ import annotations

import filecmp
import json
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenmill.preparation.engine import Engine, Progress, Task, Worker
from tokenmill.preparation.memory import Workspace
from tokenmill.preparation.plan import Limits, Plan, make_plan
from tokenmill.preparation.prepare import Report, run_plan, start_engine
from tokenmill.progress import Nobody


class InProcessEngine:
    """An engine without processes. It runs the last task first."""

    def __init__(self, plan: Plan) -> None:
        self._worker = Worker(Workspace(plan.tokenizer, 1 << 40), lambda *amounts: None)

    def __enter__(self) -> InProcessEngine:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, tasks: Sequence[Task], progress: Progress) -> Iterator[tuple[int, Any]]:
        for number, task in reversed(list(enumerate(tasks))):
            result = self._worker.run(task)
            progress(0)
            yield number, result


def small(*, part: int = 16 << 20, block: int = 4 << 20, keys: int | None = None) -> Limits:
    """Limits for many parts, blocks and sorts in small inputs."""
    rest = {"rows": 3, "records": 7, "copied_tokens": 11, "run_keys": 5} if block < 1000 else {}
    return Limits(
        part_bytes=part, block_bytes=block, partition_bytes=2 * part, sorted_keys=keys, **rest
    )


def make(
    source: Any,
    out: Path,
    *,
    limits: Limits | None = None,
    restart: bool = False,
    start: Callable[[Plan], Engine] = InProcessEngine,
    **options: Any,
) -> Report:
    """`prepare` with small limits, in this process unless `start` says otherwise."""
    plan = make_plan(source, out, limits=limits, **{"tokenizer": "bytes", "workers": 1, **options})
    return run_plan(plan, out, Nobody(), restart=restart, start=start)


def make_in_workers(source: Any, out: Path, **options: Any) -> Report:
    """`prepare` with small limits, in worker processes."""
    return make(source, out, start=start_engine, **options)


def write_documents(path: Path) -> Path:
    path.write_text("<|endoftext|>".join(f"Document {n}, with some words." for n in range(40)))
    return path


def files_in(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def assert_same_files(one: Path, other: Path) -> None:
    assert files_in(one) == files_in(other)
    _, different, unreadable = filecmp.cmpfiles(one, other, files_in(one), shallow=False)
    assert not different
    assert not unreadable


def python_sources(size: int) -> Iterator[str]:
    """Texts from Python's standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        yield text
        size -= len(text)
        if size < 0:
            return


def make_mixed(folder: Path) -> list[Path]:
    """Half a megabyte or so in all kinds of files, with duplicates across them."""
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    texts = list(python_sources(400_000))
    words = "one two three\nfour five six\nseven\n" * 40
    texts[3] = texts[0]
    some = texts[::3]
    (folder / "a.txt").write_text("<|endoftext|>".join([*some, "", words]))
    (folder / "b.md").write_text(f"# Title\n\n{words}")
    rows = [json.dumps({"text": text, "id": n}) for n, text in enumerate([*texts[1::3], words])]
    rows[2:2] = ["", "not json", '{"id": 1}']
    with gzip.open(folder / "c.jsonl.gz", "wt") as file:
        file.write("\n".join(rows))
    (folder / "d.jsonl").write_text("\n".join(reversed([*rows, "[]"])))
    column = pa.array([*texts[2::3], None, texts[0]])
    pq.write_table(pa.table({"text": column}), folder / "e.parquet", row_group_size=3)
    return sorted(folder.iterdir())
