"""Generate text from a trained model, token by token, given only the folder of its run.

Guarantees: the ids depend only on the logits, the settings and the seed. The random numbers come
from NumPy's Philox, so both backends draw the same ids from the same logits. Ids that only pad the
model's vocabulary are never drawn.

Costs: each token takes one forward pass over the last `seq_len` ids; nothing is cached between
passes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.dataset.opening import load_saved_tokenizer
from tokenmill.errors import StateError, TokenizerError, UsageError
from tokenmill.storage.names import TOKENIZER_NAME
from tokenmill.tokenizers import Tokenizer
from tokenmill.training.backend import Backend
from tokenmill.training.backends import open_backend
from tokenmill.training.checkpoint_files import RunState
from tokenmill.training.checkpoints import Checkpoints
from tokenmill.training.run_folder import CHECKPOINTS_NAME, CONFIG_NAME, find_folder

NextLogits = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float32]]


def generate(
    next_logits: NextLogits,
    prompt_ids: Sequence[int] | npt.NDArray[Any],
    count: int,
    *,
    seed: int,
    temperature: float = 0.8,
    top_k: int | None = 50,
    vocab: int,
    stop_id: int | None = None,
) -> Iterator[int]:
    """Yield up to `count` generated ids after a prompt. Stops if `stop_id` is drawn.

    Only ids below `vocab` are drawn. A `temperature` of 0 always takes the most likely id. `top_k`
    is the number of most likely ids to sample from; None or 0 means all ids.

    >>> def count_up(ids):
    ...     logits = np.zeros(16, np.float32)
    ...     logits[(ids[-1] + 1) % 16] = 50
    ...     return logits
    >>> list(generate(count_up, [3], 5, seed=0, vocab=16))
    [4, 5, 6, 7, 8]
    >>> list(generate(count_up, [3], 5, seed=0, vocab=16, stop_id=6))
    [4, 5]
    """
    if not 0 <= temperature < float("inf"):
        raise UsageError(f"`temperature` is {temperature}; it must be 0 or a positive number.")
    if top_k is not None and top_k < 0:
        raise UsageError(f"`top_k` is {top_k}; it must be 1 or more, or 0 for no limit.")
    if not len(prompt_ids):
        raise UsageError(
            "the `prompt` has no tokens; give at least one, such as the end-of-text id."
        )
    random = np.random.Generator(np.random.Philox(key=[seed % 2**64, 1]))
    ids = np.asarray(prompt_ids, np.int64)
    for _ in range(count):
        drawn = _draw(next_logits(ids)[:vocab], random.random(), temperature, top_k)
        if drawn == stop_id:
            return
        yield drawn
        ids = np.append(ids, drawn)


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """The model of a run at a step, with its tokenizer."""

    backend: Backend
    tokenizer: Tokenizer
    vocab: int
    eot_id: int | None
    step: int

    def complete(
        self,
        prompt: bytes,
        tokens: int = 200,
        *,
        seed: int = 0,
        temperature: float = 0.8,
        top_k: int | None = 50,
    ) -> Iterator[str]:
        """Yield the prompt and the text generated after it, piece by piece.

        Generation ends after `tokens` tokens, or earlier if the model ends the text. An empty
        prompt starts a new document. An incomplete character is held back until it is complete.
        Joined, the pieces equal the text of all ids decoded at once.
        """
        ids = self.tokenizer.encode_batch([prompt])[0].tolist()
        before = [] if self.eot_id is None else [self.eot_id]
        if not ids and not before:
            raise UsageError("the tokenizer has no end-of-text id to start with; give a `prompt`.")
        shown = ""
        for number in generate(
            self.backend.next_logits,
            before + ids,
            tokens,
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            vocab=self.vocab,
            stop_id=self.eot_id,
        ):
            # The first piece includes the prompt. Decoding all ids is cheap compared to the model.
            ids.append(number)
            text = self.tokenizer.decode(ids).rstrip("\ufffd")
            if text.startswith(shown) and text != shown:
                yield text[len(shown) :]
                shown = text
        if rest := self.tokenizer.decode(ids)[len(shown) :]:
            yield rest


def sample(
    run: str | os.PathLike[str],
    prompt: str | bytes = "",
    *,
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = 50,
    seed: int = 0,
    best: bool = False,
    runs: str | os.PathLike[str] = "runs",
    backend: str | None = None,
    device: str | None = None,
    warn: Callable[[str], None] = warnings.warn,
    on_text: Callable[[str], object] = lambda _: None,
) -> str:
    """Generate text from a trained model; returns the prompt and the text after it.

    >>> sample("none", "Once upon a time")
    Traceback (most recent call last):
    ...
    tokenmill.errors.StateError: runs/none has no checkpoint. Train a model first: tokenmill train \
DATA --name none

    Parameters
    ----------
    run
        The name of a run in `runs`, or the path of its folder.
    prompt
        Text to continue. By default, the model starts a new document.
    tokens
        Maximum number of tokens to generate. The model may end the text earlier.
    temperature
        Randomness of the text. 0 always takes the most likely token; higher values give more
        variety.
    top_k
        Number of most likely tokens to choose the next token from. 0 or None means all tokens.
    seed
        Seed of the random choices. Another seed gives another text.
    best
        Whether to use the checkpoint with the lowest validation loss instead of the newest.
    runs
        Folder that contains all runs.
    backend
        Framework to run the model with, torch or jax. By default, the framework that trained the
        model.
    device
        Device to run on, such as cpu, cuda, cuda:1 or mps. By default, the fastest device.
    warn
        Called with a warning if a damaged checkpoint is skipped.
    on_text
        Called with each piece of the text as soon as it is generated.
    """
    folder = Path(run)
    if not (folder / CHECKPOINTS_NAME).is_dir():
        if folder.is_dir() and len(folder.parts) > 1:
            raise StateError(
                f"{folder} is not the folder of a run: it has no {CHECKPOINTS_NAME}. Train a model "
                "first: tokenmill train DATA --name NAME"
            )
        folder = find_folder(runs, os.fspath(run))
    model = load_run_for_sampling(folder, backend=backend, device=device, best=best, warn=warn)
    given = prompt.encode() if isinstance(prompt, str) else prompt
    pieces = []
    for piece in model.complete(given, tokens, seed=seed, temperature=temperature, top_k=top_k):
        pieces.append(piece)
        on_text(piece)
    return "".join(pieces)


def load_run_for_sampling(
    folder: str | os.PathLike[str],
    *,
    backend: str | None = None,
    device: str | None = None,
    best: bool = False,
    warn: Callable[[str], None] = lambda _: None,
) -> TrainedModel:
    """Load the model of a run from its newest intact checkpoint or, with `best`, its best one.

    Changes nothing in the folder, so the run may still be training. By default, `backend` is the
    one that trained the model; either backend can load it.

    >>> load_run_for_sampling("runs/none")
    Traceback (most recent call last):
    ...
    tokenmill.errors.StateError: runs/none has no checkpoint. Train a model first: tokenmill train \
DATA --name none
    """
    path = Path(folder)
    checkpoints = Checkpoints(path / CHECKPOINTS_NAME)
    found = checkpoints.best(warn) if best else checkpoints.newest(warn)
    if found is None and (path / CONFIG_NAME).exists():
        raise StateError(
            f"{path} has no checkpoint yet. Training writes one every `checkpoint_every` steps, and "
            "when you stop it with Ctrl-C."
        )
    if found is None:
        raise StateError(
            f"{path} has no checkpoint. Train a model first: tokenmill train DATA --name {path.name}"
        )
    state = found.state
    tokenizer = _load_tokenizer(path, state)
    config, shape = state.read_settings()
    config = replace(config, compile="off", micro_batch=None)
    return TrainedModel(
        backend=open_backend(backend or state.backend, config, shape, found.parameters(), device),
        tokenizer=tokenizer,
        vocab=min(state.vocab, tokenizer.vocab_size),
        eot_id=state.eot_id,
        step=state.step,
    )


def _load_tokenizer(path: Path, state: RunState) -> Tokenizer:
    """Return the tokenizer that the run was trained with."""
    if not (path / TOKENIZER_NAME).exists():
        raise TokenizerError(
            f"{path} has no {TOKENIZER_NAME}: the training data did not include its tokenizer. "
            "Train again with `tokenizer=NAME`."
        )
    tokenizer = load_saved_tokenizer(path)
    if tokenizer.fingerprint != state.fingerprints.get("tokenizer"):
        raise TokenizerError(
            f"{TOKENIZER_NAME} in {path} is not the tokenizer that the run was trained with. "
            "Restore the file from a backup."
        )
    return tokenizer


def _draw(logits: npt.NDArray[Any], number: float, temperature: float, top_k: int | None) -> int:
    """Return one of the `top_k` most likely ids, chosen by a random number from 0 to 1."""
    if not temperature:
        return int(logits.argmax())
    values = logits.astype(np.float64)
    # A stable sort, so that ties are resolved the same in both backends.
    order = np.argsort(-values, kind="stable")[: top_k or None]
    values = values[order]
    shares = np.exp((values - values[0]) / temperature).cumsum()
    place = int(np.searchsorted(shares, number * shares[-1], side="right"))
    return int(order[min(place, len(order) - 1)])
