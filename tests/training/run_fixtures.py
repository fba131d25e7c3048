"""A small text, small settings and a watcher, for tests of whole runs."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tokenmill
from tokenmill.store.tokens import Tokens
from tokenmill.training.checkpoints import Checkpoints
from tokenmill.training.config import Config
from tokenmill.training.data import RunData
from tokenmill.training.display import RunWatcher
from tokenmill.training.run_folder import TIMES, read_metrics

TEXT = "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n"
CONFIG = Config(
    layers=1,
    heads=2,
    width=16,
    seq_len=16,
    batch_tokens=64,
    max_steps=20,
    warmup_steps=3,
    log_every=3,
    val_every=5,
    val_tokens=200,
    sample_every=10,
    sample_tokens=8,
    checkpoint_every=4,
)


def make_data() -> RunData:
    """The text as bytes, with an end-of-text id at every 90th place."""
    ids = np.frombuffer((TEXT * 20).encode(), np.uint8).astype(np.uint16)
    ids[::90] = 256
    return RunData(
        train=Tokens.of(ids, eot_id=256),
        val=Tokens.of(ids[:500], split="val", eot_id=256),
        vocab=257,
        tokenizer=tokenmill.load_tokenizer("bytes"),
        eot_id=256,
        describe="a text",
    )


class Watch(RunWatcher):
    """Records notes and warnings, and sends this process a signal at the line of a step."""

    def __init__(self, step: int = -1, number: int = signal.SIGTERM) -> None:
        self.step, self.number = step, number
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def expect(self, seconds: float) -> None:
        self.expected = seconds

    def line(self, line: dict[str, Any], steps: int, seconds_left: float) -> None:
        if line["step"] == self.step and "loss" in line:
            os.kill(os.getpid(), self.number)


def results(folder: Path) -> dict[str, Any]:
    """Everything that must be equal in two runs."""
    newest = Checkpoints(folder / "checkpoints").newest()
    assert newest is not None
    lines = [
        {name: value for name, value in line.items() if name not in TIMES}
        for line in read_metrics(folder)
    ]
    return {
        "state": newest.state,
        "model": (newest.path / "model.safetensors").read_bytes(),
        "optimizer": (newest.path / "optimizer.safetensors").read_bytes(),
        "rows": (folder / "row_losses.f32").read_bytes(),
        "lines": lines,
    }


def give_values(folder: Path, values: dict[str, Any]) -> None:
    """Put other values into a run's checkpoint."""
    checkpoints = Checkpoints(folder / "checkpoints")
    found = checkpoints.newest()
    assert found is not None
    checkpoints.write(found.state, values, found.optimizer_state(), keep=1)


def find_starts(tokens: Tokens, first: int, end: int) -> list[int]:
    """Where some rows of a run begin."""
    loader = tokenmill.Loader(tokens, batch_size=4, seq_len=16, seed=42)
    return list(loader.rows.locate(np.arange(first, end)).tolist())


def damage(data: RunData, step: int) -> RunData:
    """The data with an id outside the vocabulary in a row of a step, counted from 0."""
    assert isinstance(data.train, Tokens)
    ids = data.train[:]
    ids[find_starts(data.train, 4 * step, 4 * step + 1)[0] + 8] = 300
    return replace(data, train=Tokens.of(ids, eot_id=data.eot_id))
