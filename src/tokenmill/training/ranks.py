"""End ranks that lost their launcher or each other, so that nothing runs forever.

torchrun ends its ranks if one of them fails, but not if torchrun itself is killed. In that case,
each rank notices that its parent is gone, saves a checkpoint and stops, as after SIGTERM. Only
ranks of torchrun watch their parent. Slurm and MPI end their own ranks, and a shell may exit while
its background run continues.

A rank waits for the others at most `rank_timeout` seconds. Then it raises the error that
`lost_ranks` returns.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tokenmill.errors import WorkError
from tokenmill.wording import duration

_LAUNCHER_MARK = "TORCHELASTIC_RUN_ID"  # torchrun sets it for its ranks
_POLL = 1.0  # seconds
_LATE = re.compile(r"timed? ?out", re.IGNORECASE)
_GONE = re.compile(
    r"connection (closed|reset|refused)|connect.* failed|broken pipe|failed to connect|"
    r"peer .*(closed|reset)|no route to host",
    re.IGNORECASE,
)


@contextmanager
def follow_launcher(warn: Callable[[str], None], patience: float) -> Iterator[None]:
    """If torchrun started this process and ends during the `with` block, stop this process too.

    The process gets a SIGTERM. If it has not left the block `patience` seconds later, it exits
    immediately.
    """
    if _LAUNCHER_MARK not in os.environ:
        yield
        return
    ended = threading.Event()
    watch = threading.Thread(
        target=_watch, args=(os.getppid(), ended, warn, patience), name="launcher", daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()


def _watch(
    parent: int, ended: threading.Event, warn: Callable[[str], None], patience: float
) -> None:
    while not ended.wait(_POLL):
        if os.getppid() != parent:
            warn("torchrun is gone, so this rank stops. Run the same command again to resume.")
            os.kill(os.getpid(), signal.SIGTERM)
            if not ended.wait(patience):  # the process hangs in code that ignores signals
                os._exit(1)
            return


def lost_ranks(error: BaseException, rank: int, patience: float) -> WorkError | None:
    """Return the error to raise if `error` means that another rank is late or gone, else None.

    >>> print(lost_ranks(RuntimeError("Timed out waiting 5000ms for recv"), 1, 600))
    Rank 1 waited 10 min 0 s for the other ranks and got no answer: one of them has not started, or is \
stopped, stuck or disconnected. End all ranks and run the same command again; it resumes from the \
newest checkpoint. If the others only need longer, raise `rank_timeout`.
    >>> print(lost_ranks(RuntimeError("Connection closed by peer [127.0.0.1]:5"), 1, 600))
    Rank 1 lost the connection to another rank, which ended. End all ranks and run the same command \
again; it resumes from the newest checkpoint.
    """
    text = str(error)
    again = "End all ranks and run the same command again; it resumes from the newest checkpoint."
    if _LATE.search(text):
        return WorkError(
            f"Rank {rank} waited {duration(patience)} for the other ranks and got no answer: one of "
            f"them has not started, or is stopped, stuck or disconnected. {again} If the others only "
            "need longer, raise `rank_timeout`."
        )
    if _GONE.search(text):
        return WorkError(f"Rank {rank} lost the connection to another rank, which ended. {again}")
    return None
