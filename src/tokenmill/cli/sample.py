"""`tokenmill sample`: text from a trained model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tokenmill.cli.console import warn
from tokenmill.cli.flags import name_flags
from tokenmill.wording import harmless


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

    It reads the newest checkpoint and changes nothing, so the run may still be training.

    Parameters
    ----------
    name
        Name of the run, as in training, or the path of its folder.
    prompt
        Beginning of the text; by default, the model starts a new document.
    tokens
        Maximum number of tokens; fewer if the model ends the text.
    temperature
        0 always takes the most likely token; higher values give more variety.
    top_k
        Sample among this many most likely tokens; 0 samples among all.
    seed
        Seed of the sampling; another seed gives another text.
    best
        Use the checkpoint with the lowest validation loss instead of the newest.
    runs
        Folder of all runs.
    backend
        Framework; by default the one that trained the model.
    device
        Device, such as cpu, cuda, cuda:1 or mps; by default the fastest.
    """
    Path.cwd()  # raises if the folder is gone; PyTorch would end the process without a message
    from tokenmill.training.sample import sample as generate_text

    generate_text(
        name,
        os.fsencode(prompt),  # exactly the bytes that were typed
        tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        best=best,
        runs=runs,
        backend=backend,
        device=device,
        warn=lambda text: warn(f"tokenmill: {name_flags(text)}"),
        on_text=lambda text: print(harmless(text), end="", flush=True),
    )
    print()
    return 0
