"""Load an untrusted tokenizer in a child process, before this process loads it.

`limits.py` refuses every known kind of small file that makes a library exhaust memory or time. There
may be other kinds, and running out of memory in native code ends the process. So each tokenizer from
a file, a dataset or the Hub is first loaded by a child with limits on memory and processor time, and
encodes some text there. If the child fails, the tokenizer is refused with the reason.

Cost: 0.13 s to start the child, and the time to load the tokenizer there, 0.2 s for 50,000 tokens. A
process tries the same content only once, and opening a dataset loads no tokenizer. Worker processes
receive a pickled tokenizer and skip the trial. `bytes` and `gpt2` also skip it, even in datasets made
with them. The cost is so small that the results of trials are not saved on disk.

Linux enforces all limits. macOS ignores the memory limit, and Windows has no such limits. On both,
the child is still ended after a timeout, and a crash of the child does not affect this process. If
no child can be started, as in some programs that embed Python, `limits.py` is the only protection.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

from tokenmill.errors import TokenizerError
from tokenmill.wording import size as in_words

# Exit statuses of the child. Python uses 1 and 2 if the child could not start.
REFUSED, OUT_OF_MEMORY, FAILED = 64, 65, 66
_COULD_NOT_START = (1, 2)

# SHA-256 of states that need no trial: gpt2's.
_KNOWN = frozenset({"1c0d6fd53ccefaca235c89c855fb9e8a6c995d3d63e580de88da3ad8244a6c37"})
_passed: set[bytes] = set()


def allow(size: int) -> tuple[int, int]:
    """Return the memory in bytes and the seconds that loading a tokenizer of `size` bytes may take.

    For a vocabulary of 262,144 tokens in 12 MB, loading takes a third of this memory and a tenth of
    this time.
    """
    return (1 << 30) + 32 * size, 5 + size // 1_000_000


def try_in_child(data: bytes, **request: Any) -> None:
    """Refuse a tokenizer that a child process cannot load. `trial_child.py` describes the request."""
    sent = json.dumps(request).encode() + b"\n" + data
    digest = hashlib.sha256(sent).digest()
    if digest in _passed or hashlib.sha256(data).hexdigest() in _KNOWN:
        return
    where = request["where"]
    memory, seconds = allow(len(data))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tokenmill.tokenizers.trial_child"],
            input=sent,
            capture_output=True,
            timeout=12 * seconds,
            env=_make_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _refuse(where, f"takes more than {12 * seconds} s") from None
    except OSError:
        return
    said = done.stdout.decode(errors="replace")
    if done.returncode == REFUSED:
        raise TokenizerError(said)
    if done.returncode == FAILED:
        raise TokenizerError(f"{where} is damaged: {said}")
    if done.returncode == OUT_OF_MEMORY or b"memory allocation of" in done.stderr:
        raise _refuse(where, f"takes more than {in_words(memory)} of memory")
    if done.returncode == -getattr(signal, "SIGXCPU", 0):
        raise _refuse(where, f"takes more than {seconds} s of processor time")
    if done.returncode in _COULD_NOT_START:
        return
    if done.returncode:
        why = f"crashed a process (status {done.returncode}), or the machine ran out of memory"
        raise _refuse(where, why)
    _passed.add(digest)


def _refuse(where: str, reason: str) -> TokenizerError:
    return TokenizerError(
        f"{where} cannot be used as a tokenizer: loading it {reason}. Get it again from a source that "
        "you trust."
    )


def _make_environment() -> dict[str, str]:
    """Return environment variables for the child: the same module path, one thread per library."""
    threads = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    path = os.pathsep.join(folder for folder in sys.path if folder)
    return {**os.environ, **dict.fromkeys(threads, "1"), "PYTHONPATH": path}
