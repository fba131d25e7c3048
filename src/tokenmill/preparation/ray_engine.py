"""Run the tasks of `prepare` on a Ray cluster.

Each task is a plain Ray task on one CPU, so it can run on any node, and a lost node costs only the
tasks that were running on it. Receipts return through Ray; tokens and keys only ever go through the
output folder, which all nodes share. A worker process unpickles the tokenizer once and keeps it.

A task whose process or node is lost is started again, at most `_ATTEMPTS` times. Ray's own retries
are off, because Ray repeats tasks that ran out of memory without end.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from tokenmill.errors import UsageError, WorkError
from tokenmill.preparation.engine import Progress, Task, Worker, out_of_memory, result_of, run_task
from tokenmill.preparation.memory import Workspace
from tokenmill.preparation.plan import Plan
from tokenmill.storage.files import name_machine
from tokenmill.storage.object_path import as_path

try:
    import ray
    from ray.exceptions import OutOfMemoryError, RayError
except ImportError:
    raise UsageError(
        "`engine='ray'` needs Ray on every node: pip install 'tokenmill[ray]'."
    ) from None

_ATTEMPTS = 4  # to run a task whose process or node is lost
_AHEAD = 2  # tasks handed to Ray for each CPU of the cluster
_PATIENCE = 10.0  # seconds to connect
_WAIT = 10.0  # seconds, after which the size of the cluster is looked up again
_count_resources: Callable[[], dict[str, float]] = ray.cluster_resources
_NO_CLUSTER = (
    "Start one: ray start --head on one machine, ray start --address=HEAD:6379 on the others; or pass "
    "the `ray_address` of a running one."
)


class RayCluster:
    """A connection to a running cluster: its cores and its memory in bytes."""

    def __init__(self, address: str | None = None) -> None:
        self._connected = not ray.is_initialized()
        if self._connected:
            where = address or os.environ.get("RAY_ADDRESS") or "auto"
            try:
                _reach(where)
                ray.init(where, logging_level=logging.ERROR, log_to_driver=False)
            except Exception as error:  # Ray raises many kinds
                place = "on this machine" if where == "auto" else f"at {where}"
                raise UsageError(
                    f"No Ray cluster is running {place}: {_first_line(error)}\n{_NO_CLUSTER}"
                ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connected:
            ray.shutdown()

    @property
    def cores(self) -> int:
        """The CPUs of all nodes."""
        return max(1, int(_count_resources().get("CPU", 0)))

    @property
    def memory(self) -> int:
        """The bytes that Ray gives to tasks on all nodes."""
        return int(_count_resources().get("memory", 0))

    def start(self, plan: Plan, out: Path, *, workers: int | None) -> RayEngine:
        """The engine for a plan. `workers` limits the tasks that run at once."""
        advice = "Give it more `memory`, or start Ray with fewer CPUs per node."
        paths = [out, *(as_path(source.path) for source in plan.sources)]
        session = _Session(
            name=uuid4().hex,
            workspace=(ray.put(Workspace(plan.tokenizer, plan.share)),),
            out=out,
            # Relative paths are relative to the folder of this process.
            folder=None if all(path.is_absolute() for path in paths) else Path.cwd(),
        )
        return RayEngine(self, session, advice, workers)


@dataclass(frozen=True, kw_only=True)
class _Session:
    """What a worker process needs besides its tasks."""

    name: str
    workspace: tuple[Any]  # a reference, in a tuple so that Ray does not resolve it for each task
    out: Path
    folder: Path | None


class RayEngine:
    """Runs tasks on a cluster. Errors about memory include `advice`: how to use less."""

    def __init__(
        self, cluster: RayCluster, session: _Session, advice: str, workers: int | None
    ) -> None:
        self._cluster = cluster
        self._session = session
        self._advice = advice
        self._workers = workers
        self._submit = ray.remote(num_cpus=1, max_retries=0)(_run).remote
        self._running: dict[Any, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for reference in self._running:
            with suppress(Exception):  # the cluster may be gone
                ray.cancel(reference, force=True)
        self._running.clear()

    def run(self, tasks: Sequence[Task], progress: Progress) -> Iterator[tuple[int, Any]]:
        """Run all tasks; yields the number and the result of each as it finishes."""
        waiting = iter(range(len(tasks)))
        again: list[int] = []
        attempts: dict[int, int] = {}
        while True:
            self._hand_out(tasks, waiting, again)
            if not self._running:
                return
            done, _ = ray.wait(list(self._running), timeout=_WAIT)
            for reference in done:
                number = self._running.pop(reference)
                try:
                    answer, amounts = ray.get(reference)
                except RayError as error:
                    attempts[number] = attempts.get(number, 1) + 1
                    if attempts[number] > _ATTEMPTS:
                        raise self._explain(error) from error
                    again.append(number)
                    continue
                result = result_of(answer, self._advice)
                if amounts:
                    progress(*amounts)
                yield number, result

    def _hand_out(self, tasks: Sequence[Task], waiting: Iterator[int], again: list[int]) -> None:
        """Give tasks to Ray until it has enough of them."""
        most = self._workers or _AHEAD * self._cluster.cores
        while len(self._running) < most:
            number = again.pop() if again else next(waiting, None)
            if number is None:
                return
            self._running[self._submit(self._session, tasks[number])] = number

    def _explain(self, error: RayError) -> WorkError:
        if isinstance(error, OutOfMemoryError):
            return out_of_memory("A worker ran out of memory and was killed by Ray.", self._advice)
        return WorkError(
            f"A task was lost {_ATTEMPTS} times with its process or node: {_first_line(error)}\n"
            "Run the same command again; it resumes where it stopped."
        )


_workspaces: dict[str, Workspace] = {}  # of this process: the workspace of its session


def _run(session: _Session, task: Task) -> tuple[Any, tuple[int, ...]]:
    """Run a task in a worker process of Ray; returns its answer, and the progress that it made."""
    amounts: list[int] = []

    def add(*more: int) -> None:
        amounts.extend([0] * (len(more) - len(amounts)))
        for i, amount in enumerate(more):
            amounts[i] += amount

    try:
        worker = Worker(_find_workspace(session), add)
    except WorkError as error:
        return error, ()
    return run_task(worker, task), tuple(amounts)


def _find_workspace(session: _Session) -> Workspace:
    """The workspace of a session, with the tokenizer. It is fetched when the first task arrives."""
    if session.name not in _workspaces:
        name_machine(ray.get_runtime_context().get_node_id())
        try:
            if session.folder is not None:
                os.chdir(session.folder)
            session.out.stat()
        except OSError as error:
            raise WorkError(
                f"The node {socket.gethostname()} cannot open {error.filename}: {error.strerror}. The "
                "input and the output folder must be on storage that all nodes share."
            ) from None
        _workspaces.clear()
        _workspaces[session.name] = ray.get(session.workspace[0])
    return _workspaces[session.name]


def _reach(address: str) -> None:
    """Connect to an address like HOST:PORT. Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and not host.startswith(("ray://", "127.", "localhost")):
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
