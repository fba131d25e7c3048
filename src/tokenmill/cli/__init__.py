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

from cyclopts import App, CycloptsError, MissingArgumentError

from tokenmill.cli.flags import name_flags, set_command
from tokenmill.errors import TokenmillError

_LOOK_AGAIN = 0.005  # seconds, whether an import has ended

HELP = """Turn text into tokens on disk, and train a model on them. To begin:

* tokenmill prepare my_texts/ --out data/corpus
* tokenmill info data/corpus
* tokenmill train data/corpus --name my_model
* tokenmill sample my_model

After any interruption, the same command resumes. Add --help to a command for its options.
"""

app = App(name="tokenmill", help=HELP, help_format="markdown", suppress_keyboard_interrupt=False)

app.command("tokenmill.cli.prepare:prepare", name="prepare", help="Make a dataset from text files.")
app.command(
    "tokenmill.cli.pretokenize:pretokenize",
    name="pretokenize",
    help="Make an X.npy next to each X.txt.",
)
app.command(
    "tokenmill.cli.download:download",
    name="download",
    help="Download tokens or text from the Hugging Face Hub.",
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
    "tokenmill.cli.reshard:reshard",
    name="reshard",
    help="Write a dataset in shards of another size.",
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
            _use_docstring(sys.argv[1:] if arguments is None else arguments)
            returned = app(
                arguments, result_action="return_value", exit_on_error=False, print_error=False
            )
            return int(returned or 0)
    except TokenmillError as error:
        _complain(name_flags(str(error)))
        return error.exit_status
    except CycloptsError as error:
        command = " ".join(["tokenmill", *(error.command_chain or ())])
        _complain(f"{_name_missing(error) or error}\nSee {command} --help.")
        return 2
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `tokenmill peek … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except SystemExit as leave:  # rich's answer to a closed pipe
        return leave.code if isinstance(leave.code, int) else 2


def _name_missing(error: CycloptsError) -> str | None:
    """The message about a missing argument, named as in the usage line; None for other errors."""
    if not isinstance(error, MissingArgumentError) or error.argument is None:
        return None
    name = error.argument.names[0]
    if error.argument.index is not None:
        name = name.removeprefix("--").upper()
    return f"{' '.join(error.command_chain or ())} needs {name}."


def _use_docstring(arguments: Sequence[str]) -> None:
    """Let the help of the running command be its docstring, not its line in the list of commands."""
    _, apps, _ = app.parse_commands(arguments)
    for command in apps[1:]:
        if command.default_command is not None and not command.name[0].startswith("-"):
            command.help = None


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
    from tokenmill.wording import harmless

    print(f"tokenmill: {harmless(text)}", file=sys.stderr)
