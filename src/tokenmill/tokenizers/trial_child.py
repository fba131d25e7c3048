"""The child process of `trial.py`: load one tokenizer from standard input under limits, and exit.

The input is one line of JSON, followed by the data. If the data is the state of a tokenizer, the
line has `state: true`. Otherwise the line has the arguments of `read_tokenizer`. The exit status is
0 if the tokenizer works.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import gigatoken  # noqa: F401 (imported before the limits are set)

from tokenmill.errors import TokenmillError
from tokenmill.storage.decoding import load_json
from tokenmill.tokenizers.load import read_tokenizer
from tokenmill.tokenizers.registry import restore
from tokenmill.tokenizers.trial import FAILED, OUT_OF_MEMORY, REFUSED, allow

# Every ASCII character, and characters that normalizers and patterns treat specially.
_TEXTS = [
    "".join(map(chr, range(1, 128))),
    "a\0b",
    "It's  e\u0301 caf\u00e9 \u0958 \ufb01 \u3000 \u00a0\u2028 日本語 हिन्दी ไทย العربية 😀🏳️‍🌈 12345\r\n\n",
    "a" * 500 + " " * 500,
]


def main() -> int:
    line, _, data = sys.stdin.buffer.read().partition(b"\n")
    request = json.loads(line)
    _set_limits(len(data))
    try:
        if request.pop("state", False):
            tokenizer = restore(load_json(data))
        else:
            tokenizer = read_tokenizer(data, **request)
        ids, _ = tokenizer.encode_terminated([text.encode() for text in _TEXTS])
        tokenizer.decode(ids)
        tokenizer.byte_lengths()
    except TokenmillError as error:
        return _say(str(error), REFUSED)
    except MemoryError:
        return OUT_OF_MEMORY
    except BaseException as error:  # a panic in Rust is not an Exception
        return _say(f"{type(error).__name__} {error}", FAILED)
    return 0


def _say(text: str, status: int) -> int:
    sys.stdout.buffer.write(text[:2000].encode(errors="backslashreplace"))
    return status


def _set_limits(size: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    memory, seconds = allow(size)
    with suppress(OSError):  # add the memory that is mapped already; only Linux has this file
        memory += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        with suppress(ValueError, OSError):  # not every system has every limit
            resource.setrlimit(kind, (most, hard))


if __name__ == "__main__":
    sys.exit(main())
