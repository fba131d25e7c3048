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

    The command only reads a checkpoint, so it also works while the run is training.

    Parameters
    ----------
    name
        Name of the run, as given to tokenmill train, or path of the run's folder.
    prompt
        Text to continue. By default, the model starts a new document.
    tokens
        Maximum number of tokens to generate. The model may end the text earlier.
    temperature
        Randomness of the text. 0 always takes the most likely token; higher values give more
        variety.
    top_k
        Number of most likely tokens to choose the next token from. 0 means all tokens.
    seed
        Seed of the random choices. Another seed gives another text.
    best
        Use the checkpoint with the lowest validation loss instead of the newest checkpoint.
    runs
        Folder that contains all runs.
    backend
        Framework to run the model with. By default, the framework that trained the model.
    device
        Device to run on, such as cpu, cuda, cuda:1 or mps. By default, the fastest device.
    """
    Path.cwd()  # raises an error if the current folder was deleted; PyTorch would exit silently
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
