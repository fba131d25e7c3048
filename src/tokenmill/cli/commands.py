"""The commands, in the order a user needs them. Running a command imports its module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cyclopts import App, CycloptsError, MissingArgumentError

from tokenmill.cli.flags import set_flags
from tokenmill.errors import UsageError

HELP = """Turn text into tokens on disk, and train a model on the tokens. To begin:

* tokenmill prepare my_texts/ --out data/corpus
* tokenmill info data/corpus
* tokenmill train data/corpus --name my_model
* tokenmill sample my_model

To resume after an interruption, run the same command again. To see the options of a command, add
--help.
"""

_COMMANDS = {
    "prepare": ("prepare:prepare", "Make a dataset from text files."),
    "download": ("download:download", "Download tokens or text from the Hugging Face Hub."),
    "info": ("info:info", "Show what a dataset contains."),
    "peek": ("peek:peek", "Show the text and the origin of one document."),
    "view": ("view:view", "Show a dataset and its runs in the browser."),
    "explain": ("explain:explain", "Show the documents of a training step, row or token."),
    "where": ("where:where", "Show where a document is, and when a run reads it."),
    "search": ("search:search", "Show every occurrence of a text in a dataset."),
    "index": ("index:index", "Index the words of a dataset, for faster searches."),
    "contaminated": ("contaminated:contaminated", "Find evaluation texts in a dataset."),
    "stats": ("stats:stats", "Show sources, lengths, tokens and scripts."),
    "diff": ("diff:diff", "Compare the documents of two datasets."),
    "spikes": ("spikes:spikes", "Name the documents behind jumps of the loss."),
    "exclude": ("exclude:exclude", "Exclude documents from later datasets."),
    "verify": ("verify:verify", "Check every byte of a dataset."),
    "cache": ("cache:cache", "Copy a remote dataset into the cache on local disk."),
    "train": ("train:train", "Train a model, or resume training."),
    "sample": ("sample:sample", "Generate text from a trained model."),
    "tokenizer": ("tokenizer:app", "Train a tokenizer."),
    "pretokenize": ("pretokenize:pretokenize", "Write the token ids of text files to .npy files."),
    "import": ("import_:import_", "Turn another program's tokens into a dataset."),
    "export": ("export:export", "Convert tokens to another program's format."),
    "reshard": ("reshard:reshard", "Copy a dataset into shards of another size."),
}
# By default, cyclopts shows an optional positional argument as [ARGS].
_USAGES = {
    "download": "Usage: tokenmill download [OPTIONS] [REPO]",
    "view": "Usage: tokenmill view [OPTIONS] [DATA...]",
    "explain": "Usage: tokenmill explain [OPTIONS] [DATA...]",
    "where": "Usage: tokenmill where [OPTIONS] [DATA...] WHAT",
    "search": "Usage: tokenmill search [OPTIONS] DATA... [TEXT]",
    "index": "Usage: tokenmill index [OPTIONS] DATA...",
    "stats": "Usage: tokenmill stats [OPTIONS] DATA...",
    "spikes": "Usage: tokenmill spikes [OPTIONS] [RUN]",
    "exclude": "Usage: tokenmill exclude [OPTIONS] DATA [WHAT...]",
    "train": "Usage: tokenmill train [OPTIONS] [DATA...]",
}

app = App(name="tokenmill", help=HELP, help_format="markdown", suppress_keyboard_interrupt=False)
for _number, (_name, (_place, _help)) in enumerate(_COMMANDS.items()):
    _usage = {"usage": _USAGES[_name]} if _name in _USAGES else {}
    app.command(f"tokenmill.cli.{_place}", name=_name, help=_help, sort_key=_number, **_usage)
app.register_install_completion_command(help="Install tab completion for bash, zsh or fish.")


def run(arguments: Sequence[str], flags: Mapping[str, str]) -> int:
    """Run a command, and return its exit status. Wrong arguments raise a UsageError."""
    set_flags(lambda: {**find_flags(arguments), **flags})
    try:
        _use_docstring(arguments)
        status = app(
            arguments, result_action="return_value", exit_on_error=False, print_error=False
        )
    except CycloptsError as error:
        command = " ".join(["tokenmill", *(error.command_chain or ())])
        raise UsageError(f"{_name_missing(error) or error}\nSee {command} --help.") from None
    return int(status or 0)


def find_flags(command: Sequence[str]) -> dict[str, str]:
    """Map each argument of a command to its flag or positional name.

    >>> find_flags(["reshard"])
    {'path': 'PATH', 'out': '--out', 'tokens_per_shard': '--tokens-per-shard', 'compress': '--compress', \
'exclude': '--exclude'}
    """
    _, apps, _ = app.parse_commands(command)
    arguments = apps[-1].assemble_argument_collection() if len(apps) > 1 else ()
    found: dict[str, str] = {}
    for one in arguments:
        name = one.names[0]
        if " " in name:  # such as DATA WHAT: several arguments in one list
            found |= {word.lower(): word for word in name.split()}
        elif name != "*":
            found[one.field_info.name] = name
    return found


def _name_missing(error: CycloptsError) -> str | None:
    """Return a message that names the missing argument, or None if the error is another one."""
    if not isinstance(error, MissingArgumentError) or error.argument is None:
        return None
    name = error.argument.names[0]
    if error.argument.index is not None:
        name = name.removeprefix("--").upper()
    return f"{' '.join(error.command_chain or ())} needs {name}."


def _use_docstring(arguments: Sequence[str]) -> None:
    """Make `COMMAND --help` show the docstring instead of the short text in `_COMMANDS`."""
    _, apps, _ = app.parse_commands(arguments)
    for command in apps[1:]:
        if command.default_command is not None and not command.name[0].startswith("-"):
            command.help = None
