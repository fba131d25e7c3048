"""Runs tasks that end their own processes; prints the results, and the error of those that never end.

python lost_tasks.py ADDRESS FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from tokenmill.errors import WorkError
from tokenmill.preparation import ray_engine
from tokenmill.preparation.engine import Worker
from tokenmill.preparation.plan import make_plan
from tokenmill.preparation.ray_engine import RayCluster


@dataclass(frozen=True)
class Die:
    """Ends its process until it has done so `times` times."""

    folder: Path
    name: str
    times: int

    def run(self, worker: Worker) -> str:
        worker.report(1, len(self.name))
        before = len(list(self.folder.glob(f"{self.name}-*")))
        if before < self.times:
            (self.folder / f"{self.name}-{before}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return f"{self.name}: {before} before, tokenizer {worker.workspace.tokenizer.name}"


def main(address: str, folder: Path) -> None:
    ray_engine._ATTEMPTS = 2  # a new process takes Ray some seconds
    (folder / "x.txt").write_text("a text")
    plan = make_plan(folder / "x.txt", folder / "out", tokenizer="bytes", workers=2)
    done: list[tuple[int, ...]] = []
    notes: list[str] = []
    with (
        RayCluster(address) as cluster,
        cluster.start(plan, folder, workers=2, note=notes.append) as engine,
    ):

        def find_error(task: Die, out: Path) -> str:
            try:
                list(cluster.start(plan, out, workers=2).run([task], print))
            except WorkError as error:
                return str(error)
            raise AssertionError("the task ended")

        tasks = [Die(folder, "one", 0), Die(folder, "two", 1)]
        results = dict(engine.run(tasks, lambda *amounts: done.append(amounts)))
        found = {
            "results": [results[number] for number in range(2)],
            "notes": notes,
            "progress": [sum(column) for column in zip(*done, strict=True)],
            "lost": find_error(Die(folder, "three", 99), folder),
            "attempts": len(list(folder.glob("three-*"))),
            "missing": find_error(Die(folder, "four", 0), folder / "missing"),
        }
        (folder / "x.txt").unlink()
        found["no input"] = find_error(Die(folder, "five", 0), folder)
    print(json.dumps(found))  # the last line: Ray prints too


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
