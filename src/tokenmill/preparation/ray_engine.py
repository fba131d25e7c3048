"""Run the tasks of `prepare` on a Ray cluster.

Each task is a plain Ray task on one CPU, so it can run on any node, and a lost node costs only the
tasks that were running on it. A task returns a few numbers through Ray. Tokens and keys go through
storage that all nodes share. A worker process unpickles the tokenizer once and keeps it.

If a task's process or node is lost, the task runs again, at most `_ATTEMPTS` times in all. Ray's own
retries are off, because Ray would retry a task that runs out of memory forever. If a node is not set
up to run tasks, the run ends: otherwise that node would fail one task after another.

Costs: Ray takes 0.6 ms per task, 1 to 2 s to connect and to start workers, and 100 MB per process.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from tokenmill.errors import StorageError, UsageError, WorkError
from tokenmill.preparation.engine import Progress, Task, Worker, out_of_memory, result_of, run_task
from tokenmill.preparation.memory import Workspace
from tokenmill.preparation.plan import Plan
from tokenmill.sources.files import stat_source
from tokenmill.storage.addresses import list_full_addresses
from tokenmill.storage.files import check_folder, name_machine
from tokenmill.storage.object_path import as_path
from tokenmill.wording import counted

try:
    import ray
    from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
except ImportError:
    raise UsageError(
        "`engine='ray'` needs Ray on every node: pip install 'tokenmill[ray]'."
    ) from None

_ATTEMPTS = 4  # how often to run a task, if its process or node is lost each time
_RAY_BYTES = 100 << 20  # memory that Ray itself takes in each worker process
_AHEAD = 2  # tasks handed to Ray for each CPU of the cluster
_PATIENCE = 10.0  # seconds to connect
_WAIT = 10.0  # seconds to wait for a result before looking up the size of the cluster again
_OFTEN = 1.0  # the size of the cluster is looked up at most once in this many seconds
_PROBES = 16  # input files that a worker looks for when it starts
_NODE = re.compile(r"\bip=([^,)\s]+)")  # the address of a node, in an error message of Ray
_LIBRARIES = ("tokenmill", "gigatoken", "zstandard")  # another version may change the bytes
_count_resources: Callable[[], dict[str, float]] = ray.cluster_resources
_NO_CLUSTER = (
    "Start a cluster: ray start --head on one machine, ray start --address=HEAD:6379 on the others. Or "
    "pass the `ray_address` of a running cluster."
)


class RayCluster:
    """A connection to a running Ray cluster. `cores` and `memory` say how large the cluster is."""

    def __init__(self, address: str | None = None) -> None:
        self._cores, self._counted = 0, -_OFTEN
        self._connected = not ray.is_initialized()
        if self._connected:
            where = address or os.environ.get("RAY_ADDRESS") or "auto"
            place = "on this machine" if where == "auto" else f"at {where}"
            try:
                _reach(where)
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"No Ray cluster is running {place}: {_first_line(error)}\n{_NO_CLUSTER}"
                ) from error
            try:
                ray.init(where, logging_level=logging.ERROR, log_to_driver=False)
            except Exception as error:  # Ray raises many kinds, also if versions differ
                why = " ".join(str(error).split()) or type(error).__name__
                raise UsageError(
                    f"The Ray cluster {place} cannot be used from here: {why}\n"
                    f"This process has Ray {ray.__version__} and Python {platform.python_version()}. "
                    "Install the same versions on every node, and restart Ray there."
                ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connected:
            ray.shutdown()

    @property
    def cores(self) -> int:
        """The number of CPUs on all nodes."""
        if time.monotonic() - self._counted >= _OFTEN:
            self._cores = int(_count_resources().get("CPU", 0))
            self._counted = time.monotonic()
        return self._cores

    @property
    def memory(self) -> int:
        """The bytes of memory that Ray gives to tasks on all nodes."""
        return int(_count_resources().get("memory", 0))

    def start(
        self,
        plan: Plan,
        out: Path,
        *,
        workers: int | None,
        note: Callable[[str], None] = lambda _: None,
    ) -> RayEngine:
        """Return the engine that runs a plan.

        `out` is the folder for unfinished work. `workers` limits the tasks that run at once. `note`
        receives messages for the user.
        """
        sources = [source.path for source in plan.sources]
        paths = [str(out), *sources]
        of_folders = {path.rpartition("/")[0]: path for path in sources}
        common = _Common(
            workspace=Workspace(plan.tokenizer, plan.share + _RAY_BYTES),
            versions=_find_versions(),
            out=out,
            inputs=tuple(of_folders.values())[:_PROBES],
            # Relative paths are relative to the folder of this process.
            folder=None if all(as_path(one).is_absolute() for one in paths) else Path.cwd(),
            addresses=list_full_addresses(),
        )
        return RayEngine(self, _Session(uuid4().hex, (ray.put(common),)), workers, note)


@dataclass(frozen=True, kw_only=True)
class _Common:
    """The data that all tasks of a run need. Each worker process fetches it once."""

    workspace: Workspace
    versions: dict[str, str]
    out: Path
    inputs: tuple[str, ...]  # some of the input files
    folder: Path | None
    addresses: dict[str, str]  # may contain secrets, so they are not arguments of a task


@dataclass(frozen=True)
class _Session:
    """The name of a run, and a reference to the data that all its tasks need."""

    name: str
    common: tuple[Any]  # a reference, in a tuple so that Ray does not resolve it for each task


class RayEngine:
    """Runs tasks on a cluster. `lost` counts the tasks that were lost with their process or node."""

    def __init__(
        self,
        cluster: RayCluster,
        session: _Session,
        workers: int | None,
        note: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._session = session
        self._workers = workers
        self._note = note
        self._advice = (
            "Run the command again with less `memory`, or start Ray with fewer CPUs per node."
        )
        self._is_waiting = False  # whether a note has said that the run waits for a node
        self.lost = 0
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
        """Run all tasks. As each task finishes, yield its index and its result."""
        waiting = iter(range(len(tasks)))
        again: list[int] = []
        attempts: dict[int, int] = {}
        lost_before = self.lost
        while True:
            self._hand_out(tasks, waiting, again)
            if not self._running:
                break
            done, _ = ray.wait(list(self._running), timeout=_WAIT)
            if not done and not self._cluster.cores and not self._is_waiting:
                self._is_waiting = True
                self._note("No node of the cluster has a CPU for tasks. Waiting for one.")
            for reference in done:
                number = self._running.pop(reference)
                try:
                    answer, amounts = ray.get(reference)
                except RayTaskError as error:
                    raise _explain_node(error) from error
                except RayError as error:
                    self.lost += 1
                    attempts[number] = attempts.get(number, 1) + 1
                    if attempts[number] > _ATTEMPTS:
                        raise self._explain(error) from error
                    again.append(number)
                    continue
                result = result_of(answer, self._advice)
                if amounts:
                    progress(*amounts)
                yield number, result
        if lost := self.lost - lost_before:
            self._note(
                f"Ran {counted(lost, 'task')} again, after a worker process or a node was lost."
            )

    def _hand_out(self, tasks: Sequence[Task], waiting: Iterator[int], again: list[int]) -> None:
        """Submit tasks until Ray has `workers` of them, or by default `_AHEAD` for each CPU.

        `waiting` yields the indices of tasks that were not submitted yet. `again` has the indices
        of lost tasks, which are submitted first.
        """
        most = self._workers or _AHEAD * max(1, self._cluster.cores)
        while len(self._running) < most:
            number = again.pop() if again else next(waiting, None)
            if number is None:
                return
            self._running[self._submit(self._session, tasks[number])] = number

    def _explain(self, error: RayError) -> WorkError:
        if isinstance(error, OutOfMemoryError):
            return out_of_memory("A worker ran out of memory and was killed by Ray.", self._advice)
        return WorkError(
            f"A task failed {_ATTEMPTS} times because its process or node was lost: "
            f"{_first_line(error)}\n"
            "Run the same command again; it resumes where it stopped."
        )


_workspaces: dict[str, Workspace] = {}  # of this process, by the name of the session


def _run(session: _Session, task: Task) -> tuple[Any, tuple[int, ...]]:
    """Run a task in a worker process of Ray. Returns its result or error, and its progress."""
    amounts: list[int] = []

    def add(*more: int) -> None:
        amounts.extend([0] * (len(more) - len(amounts)))
        for i, amount in enumerate(more):
            amounts[i] += amount

    try:
        answer = run_task(Worker(_find_workspace(session), add), task)
    except (WorkError, StorageError) as error:
        answer = error
    if isinstance(answer, StorageError):
        answer = StorageError(
            f"{answer}\nThis happened on the node {socket.gethostname()}. Tasks take credentials "
            "and settings from the environment in which `ray start` ran on that node."
        )
    return answer, tuple(amounts)


def _find_workspace(session: _Session) -> Workspace:
    """Return the workspace of a session. The first task fetches the workspace and checks the node."""
    if session.name not in _workspaces:
        common: _Common = ray.get(session.common[0])
        name_machine(ray.get_runtime_context().get_node_id())
        os.environ.update(common.addresses)
        _check_node(common)
        _workspaces.clear()
        _workspaces[session.name] = common.workspace
    return _workspaces[session.name]


def _check_node(common: _Common) -> None:
    """Raise an error if this node has other versions of libraries, or lacks the files of this run.

    Without the check, a node that lacks the input would report its files as bad, and
    `skip_bad_files` would skip them.
    """
    node = socket.gethostname()
    for name, version in _find_versions().items():
        if version != (expected := common.versions[name]):
            raise WorkError(
                f"The node {node} has {name} {version}, and this process has {expected}. Install "
                "the same version on every node, restart Ray there, and run the same command again."
            )
    try:
        if common.folder is not None:
            os.chdir(common.folder)
        check_folder(common.out)
        for path in common.inputs:
            stat_source(path)
    except OSError as error:
        raise WorkError(
            f"The node {node} cannot open {error.filename}: {error.strerror}. The input and the output "
            "folder must be on storage that all nodes share. Once that is fixed, run the same command "
            "again."
        ) from None


def _find_versions() -> dict[str, str]:
    """Return the installed versions of the libraries that may change the bytes of a dataset."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "of unknown version"
    return found


def _explain_node(error: RayTaskError) -> WorkError:
    """Return the error for a task that failed before tokenmill ran: its node is not set up."""
    why, version = str(error).strip().splitlines()[-1], _find_versions()["tokenmill"]
    node = _NODE.search(str(error))
    return WorkError(
        f"The node {node[1] if node else 'of a task'} cannot run tasks of tokenmill {version}: {why}\n"
        f"Install tokenmill on every node with pip install 'tokenmill[ray]=={version}', in the "
        "environment in which `ray start` runs. Then run the same command again; it resumes."
    )


def _reach(address: str) -> None:
    """Raise an error if no cluster answers within `_PATIENCE` seconds.

    `ray.init` would try for ten minutes, for example if a cluster was killed and the file with its
    address is still there.
    """
    if "://" in address:
        raise UsageError(
            f"`ray_address` is {address!r}; it must be HOST:PORT, such as HEAD:6379. Run the command on a "
            "node of the cluster."
        )
    with suppress(ImportError):  # a private function; without it, `ray.init` raises the error later
        from ray._private.services import canonicalize_bootstrap_address

        host, _, port = (canonicalize_bootstrap_address(address) or "").rpartition(":")
        if port:
            socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
