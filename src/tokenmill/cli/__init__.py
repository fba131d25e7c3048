"""The command `tokenmill`.

Commands are registered by name and imported only when one is run, so that `tokenmill --help`
answers at once. A command's file parses, calls one function of the library, and prints.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from cyclopts import App, CycloptsError

from tokenmill.cli.flags import name_flags, set_command
from tokenmill.errors import TokenmillError

__all__ = ["app", "main"]

_LOOK_AGAIN = 0.005  # seconds, whether an import has ended

HELP = """Turn text into tokens on disk, look at them, and train a model on them.

`tokenmill prepare my_texts/ --out data/corpus` makes a dataset from text. After any interruption,
the same command resumes. A finished dataset is complete, has checksums, and needs no network.

`tokenmill info data/corpus` shows what is in it, `tokenmill train data/corpus --name my_model` trains
a model on it, and `tokenmill sample my_model` generates text. Add `--help` to a command for its
options.
"""

app = App(name="tokenmill", help=HELP, help_format="markdown", suppress_keyboard_interrupt=False)

app.command("tokenmill.cli.prepare:prepare", name="prepare", help="Make a dataset from text files.")
app.command(
    "tokenmill.cli.pretokenize:pretokenize",
    name="pretokenize",
    help="Make one X.npy beside each X.txt.",
)
app.command(
    "tokenmill.cli.download:download",
    name="download",
    help="Fetch tokens or text from the Hugging Face hub.",
)
app.command("tokenmill.cli.info:info", name="info", help="Show what is in a dataset.")
app.command("tokenmill.cli.peek:peek", name="peek", help="Show one document and its origin.")
app.command("tokenmill.cli.verify:verify", name="verify", help="Check every byte of a dataset.")
app.command(
    "tokenmill.cli.export:export", name="export", help="Write tokens as another program's files."
)
app.command(
    "tokenmill.cli.import_:import_",
    name="import",
    help="Make a dataset from another program's tokens.",
)
app.command(
    "tokenmill.cli.reshard:reshard", name="reshard", help="Cut a dataset into other shards."
)
app.command(
    "tokenmill.cli.train:train", name="train", help="Train a model, or resume its training."
)
app.command(
    "tokenmill.cli.sample:sample", name="sample", help="Generate text from a trained model."
)
app.command("tokenmill.cli.tokenizer:app", name="tokenizer", help="Train a tokenizer.")
app.register_install_completion_command(help="Complete commands in this shell: bash, zsh or fish.")


def main(arguments: Sequence[str] | None = None, flags: Mapping[str, str] | None = None) -> int:
    """Run the command line; returns the exit status.

    `flags` maps arguments to the names that a calling script uses for them, for error messages.

    >>> main(["info", "no/such/folder"])
    1
    """
    set_command(sys.argv[1:] if arguments is None else arguments, flags or {})
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        with _stoppable():
            returned = app(
                arguments, result_action="return_value", exit_on_error=False, print_error=False
            )
            return int(returned or 0)
    except TokenmillError as error:
        _complain(name_flags(str(error)))
        return error.exit_status
    except CycloptsError as error:
        command = " ".join(["tokenmill", *(error.command_chain or ())])
        _complain(f"{error}\nSee {command} --help.")
        return 2
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `tokenmill peek … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except SystemExit as leave:  # rich's answer to a closed pipe
        return leave.code if isinstance(leave.code, int) else 2


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let a polite request to end (SIGTERM, as batch systems send it) act like Ctrl-C.

    Neither stops an import half-way, which native modules do not survive: it is waited for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def stop(_: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if hasattr(signal, "setitimer") and _is_importing(frame):
            signal.setitimer(signal.ITIMER_REAL, _LOOK_AGAIN)
        else:
            asked = False
            raise KeyboardInterrupt

    names = [name for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), stop) for name in names}
    try:
        yield
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
        if asked:
            raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _complain(text: str) -> None:
    from tokenmill.cli.console import harmless

    print(f"tokenmill: {harmless(text)}", file=sys.stderr)
