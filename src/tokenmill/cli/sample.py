"""`tokenmill sample`: text from a trained model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from tokenmill.cli.console import harmless, stderr, stdout
from tokenmill.cli.flags import name_flags

__all__ = ["sample"]


def sample(
    *,
    name: str,
    prompt: str = "",
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int = 50,
    seed: int = 0,
    best: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    runs: Path = Path("runs"),
    backend: Literal["torch", "jax"] | None = None,
) -> int:
    """Let a trained model write.

    The run may be going on: its newest checkpoint is read, and nothing is changed.

    Parameters
    ----------
    name
        The run, as it was named in training.
    prompt
        How the text begins; without it, the model begins.
    tokens
        How many tokens to write at most; fewer where the model ends the text.
    temperature
        0 takes the likeliest token each time; higher is more varied.
    top_k
        Draw among so many of the likeliest tokens; 0: among all.
    seed
        Another seed, another text.
    best
        Take the checkpoint with the least validation loss.
    runs
        The folder of all runs.
    backend
        The framework, if not the one that trained it.
    """
    from tokenmill.trainer.folder import find_folder
    from tokenmill.trainer.sample import load_run_for_sampling

    model = load_run_for_sampling(find_folder(runs, name), backend=backend, best=best, warn=_warn)
    # What was typed, to the byte, is the prompt.
    text = model.complete(
        os.fsencode(prompt), tokens, seed=seed, temperature=temperature, top_k=top_k
    )
    stdout.print(Text(harmless(text)))
    return 0


def _warn(text: str) -> None:
    stderr.print(Text(f"tokenmill: {harmless(name_flags(text))}"))
