"""Build the preloaded library `faults.c`, and tell it what to do to the calls of a process tree."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")
OPERATIONS = (
    *("open", "write", "pwrite", "fsync", "rename", "mkdir", "unlink", "ftruncate", "mmap"),
    *("link", "read", "call", "malloc"),  # "call" is any of those before it
)
ACTIONS = ("nothing", "fail", "short", "kill", "die", "tear", "delay", "stop")
_ERRNOS = ("ENOSPC", "EIO", "EINTR", "ENOMEM", "EDQUOT", "EMFILE", "EACCES")


@cache
def build_library() -> Path | None:
    """The compiled library; None if there is no C compiler, or this is not Linux."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    made = Path(tempfile.gettempdir()) / f"tokenmill-lab-{os.getuid()}-{digest}.so"
    if not made.exists():
        temporary = made.with_suffix(f".{os.getpid()}")
        flags = ["-O2", "-shared", "-fPIC", "-o", str(temporary), str(SOURCE), "-ldl"]
        if subprocess.run([compiler, *flags]).returncode:
            return None
        temporary.replace(made)
    return made


def is_preloaded() -> bool:
    """Whether this process has the library."""
    return "tokenmill-lab-" in os.environ.get("LD_PRELOAD", "")


def restart_preloaded() -> None:
    """Start this program again with the library, if it does not have it. There must be one."""
    if is_preloaded():
        return
    environment = {**os.environ, "LD_PRELOAD": str(build_library())}
    os.execve(sys.executable, [*sys.orig_argv], environment)


def prepare(say: Callable[[str], None]) -> bool:
    """Make sure that this program has the library; False if it cannot be built here."""
    if build_library() is None:
        say("skipped: needs Linux and a C compiler")
        return False
    restart_preloaded()
    return True


class _Control(ctypes.Structure):
    """`struct control` of faults.c."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("op", "action")),
        ("number", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("error", "sticky", "delay", "trace")),
        ("shift", ctypes.c_int64),
        *((name, ctypes.c_uint64) for name in ("shift_after", "clock", "fired")),
        ("counts", ctypes.c_uint64 * 16),
        *((name, ctypes.c_char * 1024) for name in ("root", "trace_path", "place")),
    )


@dataclass(frozen=True)
class Fault:
    """What to do with which call: `write:17:EIO` fails the 17th write with EIO.

    The third part is an error, which happens once, or from this call on if it ends in `+`; `short`,
    which transfers half of the bytes; `kill`, which kills the whole process group; `die`, which kills
    the process that made the call; `tear`, which kills the group after half of the bytes; `stop`,
    which stops the process that made the call with SIGSTOP; or a delay such as `200ms`. The call 0 is
    every call.

    >>> Fault.parse("write:17:EIO+")
    Fault(operation='write', number=17, what='EIO+')
    >>> str(Fault.parse("call:3:kill"))
    'call:3:kill'
    """

    operation: str
    number: int
    what: str

    @staticmethod
    def parse(text: str) -> Fault:
        operation, number, what = text.split(":")
        return Fault(operation, int(number), what)

    def __str__(self) -> str:
        return f"{self.operation}:{self.number}:{self.what}"

    @property
    def name(self) -> str:
        """The fault without its number."""
        return f"{self.operation} {self.what}"

    def at(self, number: int) -> Fault:
        """The same fault at another call."""
        return replace(self, number=number)


class Control:
    """The control file of one process tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(ctypes.sizeof(_Control)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._control = _Control.from_buffer(self._map)

    def arm(
        self,
        root: Path,
        fault: Fault | None = None,
        *,
        trace: Path | None = None,
        shift: tuple[int, int] = (0, 0),
    ) -> None:
        """Set what happens to calls below `root`, and start counting.

        `trace` is the file that records them. The clock jumps by `shift[0]` seconds after it has been
        read `shift[1]` times.
        """
        ctypes.memset(ctypes.byref(self._control), 0, ctypes.sizeof(_Control))
        self._control.root = os.fsencode(root)
        self._control.shift, self._control.shift_after = shift
        if trace is not None:
            self._control.trace, self._control.trace_path = 1, os.fsencode(trace)
        if fault is None:
            return
        self._control.op = OPERATIONS.index(fault.operation)
        self._control.number = fault.number
        what = fault.what.removesuffix("+")
        if what in _ERRNOS:
            self._control.error = getattr(errno, what)
            self._control.sticky = fault.what.endswith("+")
            what = "fail"
        elif what.endswith("ms"):
            self._control.delay = int(what.removesuffix("ms")) * 1000
            what = "delay"
        self._control.action = ACTIONS.index(what)

    @property
    def fired(self) -> int:
        """How often the fault happened."""
        return int(self._control.fired)

    @property
    def place(self) -> str:
        """The file of the call where the fault happened first."""
        return os.fsdecode(self._control.place)

    @property
    def counts(self) -> dict[str, int]:
        """The number of calls of each operation."""
        return dict(zip(OPERATIONS, self._control.counts, strict=False))


def attach(path: Path | None, *, alone: bool = False) -> None:
    """Have this process and all that it starts obey a control file; if `alone`, only its forks."""
    library = ctypes.CDLL(None)
    if path is None or alone:
        os.environ.pop("LAB_CONTROL", None)
    else:
        os.environ["LAB_CONTROL"] = str(path)
    if library.lab_attach(os.fsencode(path) if path else None):
        raise OSError(f"{path} cannot be mapped")
