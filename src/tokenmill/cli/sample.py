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
    name: str,
    *,
    prompt: str = "",
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int = 50,
    seed: int = 0,
    best: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    runs: Path = Path("runs"),
    backend: Literal["torch", "jax"] | None = None,
    device: str | None = None,
) -> int:
    """Generate text from a trained model.

    The run may still be training: its newest checkpoint is read, and nothing is changed.

    Parameters
    ----------
    name
        Name of the run, as in training, or the path of its folder.
    prompt
        How the text starts; without it, the model starts.
    tokens
        Most tokens to generate; fewer where the model ends the text.
    temperature
        0 takes the likeliest token each time; higher is more varied.
    top_k
        Draw among so many of the likeliest tokens; 0 is all.
    seed
        Another seed, another text.
    best
        Take the checkpoint with the least validation loss instead of the newest.
    runs
        Folder of all runs.
    backend
        Framework, if not the one that trained it.
    device
        Device, such as cpu, cuda, cuda:1 or mps; the best by default.
    """
    from tokenmill.trainer.sample import sample as generate_text

    text = generate_text(
        name,
        os.fsencode(prompt),  # what was typed, to the byte
        tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        best=best,
        runs=runs,
        backend=backend,
        device=device,
        warn=_warn,
    )
    stdout.print(Text(harmless(text)))
    return 0


def _warn(text: str) -> None:
    stderr.print(Text(f"tokenmill: {harmless(name_flags(text))}"))
