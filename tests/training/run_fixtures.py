"""A small text, small settings and a watcher, for tests of whole runs."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np

import tokenmill
from tokenmill.store.tokens import Tokens
from tokenmill.training.config import Config
from tokenmill.training.data import RunData
from tokenmill.training.display import RunWatcher

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
