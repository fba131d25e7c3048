"""A run leaves lines, losses and validations that are right, in its own folder."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_fixtures import CONFIG, Watch, give_values

import tokenmill
from tokenmill.training.augment import augment
from tokenmill.training.backend import StepRows
from tokenmill.training.backends import open_backend
from tokenmill.training.checkpoints import Checkpoints
from tokenmill.training.config import Config
from tokenmill.training.data import RunData
from tokenmill.training.display import RunWatcher, format_line
from tokenmill.training.model import first_values, make_shape
from tokenmill.training.run import train
from tokenmill.training.run_folder import read_metrics
from tokenmill.training.sample import generate

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")


def test_lines_are_written_at_their_steps(uninterrupted: dict[str, Any]) -> None:
    steps = {
        name: [line["step"] for line in uninterrupted["lines"] if name in line]
        for name in ("loss", "val_loss", "sample")
    }
    assert steps["loss"] == [3, 6, 9, 12, 15, 18, 20]
    assert steps["val_loss"] == [5, 10, 15, 20]
    assert steps["sample"] == [10, 20]
    losses = np.frombuffer(uninterrupted["rows"], "<f4").astype(float)
    assert len(losses) == 80
    means = [losses[4 * a : 4 * b].mean() for a, b in ((0, 3), (3, 6), (18, 20))]
    found = [line["loss"] for line in uninterrupted["lines"] if "loss" in line]
    assert [found[0], found[1], found[-1]] == pytest.approx(means)
    assert found[-1] < found[0]


class Lines(Watch):
    """Records the lines that are shown."""

    def __init__(self, silence: float = RunWatcher.silence) -> None:
        super().__init__()
        self.silence = silence
        self.lines: list[dict[str, Any]] = []
        self.left: list[float] = []

    def line(self, line: dict[str, Any], steps: int, seconds_left: float) -> None:
        self.lines.append(line)
        self.left.append(seconds_left)


@pytest.mark.parametrize("micro_batch", [None, 1])
def test_the_first_loss_is_shown_after_the_first_step_and_the_time_is_estimated(
    data: RunData, tmp_path: Path, micro_batch: int | None
) -> None:
    watch = Lines()
    quiet = replace(CONFIG, log_every=1000, val_every=0, sample_tokens=0, micro_batch=micro_batch)
    train(data, name="a", config=quiet, runs=tmp_path, watcher=watch)
    assert watch.lines[0]["step"] == 1
    assert watch.lines[0]["loss"] > 0
    assert watch.expected > 0
    assert not any("micro-batches done" in note for note in watch.notes)
    assert [line["step"] for line in read_metrics(tmp_path / "a") if "loss" in line] == [20]


def test_the_time_left_agrees_with_the_estimate_and_later_with_the_last_steps(
    data: RunData, tmp_path: Path
) -> None:
    """The first step also warms up, so the time left must not be computed from it."""
    quiet = replace(CONFIG, log_every=1000, val_every=0, sample_tokens=0)
    watch = Lines()
    often = replace(quiet, log_every=3)
    train(data, name="a", config=often, runs=tmp_path, watcher=watch)  # no estimate in step 1
    assert math.isnan(watch.left[0])
    assert "left" not in format_line(watch.lines[0], 20, watch.left[0])
    place = [line["step"] for line in watch.lines].index(6)
    assert watch.left[place] == pytest.approx(watch.lines[place]["seconds"] / 3 * (20 - 6))
    watch = Lines()  # the second of four micro-batches is the estimate
    train(data, name="b", config=replace(quiet, micro_batch=1), runs=tmp_path, watcher=watch)
    assert watch.left[0] == pytest.approx(watch.expected * (19 * 4) / (20 * 4 - 2))


def test_a_line_is_shown_after_a_time_of_silence(data: RunData, tmp_path: Path) -> None:
    """Between steps, in a step and in a validation."""
    assert RunWatcher.silence <= 10  # seconds
    watch = Lines(silence=0.0)
    slow = replace(CONFIG, max_steps=3, micro_batch=1, log_every=1000, sample_tokens=0)
    train(data, name="a", config=slow, runs=tmp_path, watcher=watch)
    assert [line["step"] for line in watch.lines if "loss" in line] == [1, 2, 3]
    assert "step 2: 3 of 4 micro-batches done" in watch.notes
    assert any(note.startswith("step 3: 1 of ") and "validated" in note for note in watch.notes)
    watch = Lines(silence=1e9)
    train(data, name="b", config=slow, runs=tmp_path, watcher=watch)
    assert 2 not in [line["step"] for line in watch.lines]
    assert not any(note.startswith("step 2: ") for note in watch.notes)


@pytest.mark.parametrize("micro_batch", [1, None])
def test_lines_are_no_closer_than_the_time_of_silence(
    data: RunData, tmp_path: Path, micro_batch: int | None
) -> None:
    """The first line takes long, so another is due at once; after that, none is due for a while."""

    class Slow(Lines):
        def line(self, line: dict[str, Any], steps: int, seconds_left: float) -> None:
            if not self.lines:
                self.began = time.monotonic()
                time.sleep(self.silence)
            super().line(line, steps, seconds_left)

    watch = Slow(silence=0.2)
    config = replace(
        CONFIG,
        max_steps=2 if micro_batch else 60,
        batch_tokens=960 if micro_batch else 16,
        micro_batch=micro_batch,
        log_every=1000,
        val_every=0,
        sample_tokens=0,
        checkpoint_every=1000,
    )
    train(replace(data, val=None), name="a", config=config, runs=tmp_path, watcher=watch)
    seconds = time.monotonic() - watch.began
    shown = [note for note in watch.notes if "micro-batches done" in note] + watch.lines[1:-1]
    assert 1 <= len(shown) <= seconds / watch.silence


def test_validation_uses_the_configured_number_of_tokens(data: RunData, tmp_path: Path) -> None:
    config = replace(CONFIG, max_steps=4, val_every=0, val_tokens=None, sample_tokens=0)
    assert config.validation_tokens == 32
    found = {
        tokens: train(
            data, name=str(tokens), config=replace(config, val_tokens=tokens), runs=tmp_path
        ).val_loss
        for tokens in (None, 32, 480)
    }
    assert found[None] == found[32] != found[480]


def test_default_validation_is_proportional_to_the_run() -> None:
    short = Config(max_steps=20, batch_tokens=1024)
    assert short.validation_tokens <= 20 * 1024 / 4
    assert Config().validation_tokens == 1_048_576
    assert replace(short, val_tokens=5_000).validation_tokens == 5_000


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"within_documents": True},
        {"mask_fraction": 0.2, "noise_fraction": 0.1},
        {"order": "blocks"},
    ],
    ids=["plain", "within documents", "augmented", "blocks"],
)
def test_row_losses_belong_to_their_rows(
    data: RunData, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """A model that learns nothing has, at every step, the losses that it has for these rows."""
    still = {"learning_rate": 0.0, "matrix_learning_rate": 0.0, "max_steps": 5}
    config = replace(CONFIG, **still, **changes)
    values = first_values(make_shape(257, config), config.seed)
    random = np.random.default_rng(0)
    values = {
        name: random.normal(0, 0.3, value.shape).astype(np.float32)
        for name, value in values.items()
    }
    train(data, name="a", config=replace(config, max_steps=1), runs=tmp_path)
    give_values(tmp_path / "a", values)
    train(data, name="a", config=config, runs=tmp_path)
    found = np.fromfile(tmp_path / "a" / "row_losses.f32", "<f4")
    backend = open_backend("torch", config, make_shape(257, config), values)
    loader = tokenmill.Loader(
        data.train,
        batch_size=4,
        seq_len=16,
        seed=42,
        order=config.order,
        documents=config.within_documents,
    )
    for step in range(1, 5):
        batch = loader.batch_at(step)
        assert batch.tokens is not None
        inputs, targets = augment(batch.tokens, 4 * step, config=config, vocab=257, eot_id=256)
        documents = batch.documents.ids if batch.documents else None
        losses = backend.evaluate(StepRows(inputs=inputs, targets=targets, documents=documents))
        assert found[4 * step : 4 * step + 4] == pytest.approx(losses.mean(axis=1), abs=1e-5)


def test_validation_is_the_mean_loss_and_bits_per_byte_of_the_first_rows(
    data: RunData, tmp_path: Path
) -> None:
    train(data, name="a", config=CONFIG, runs=tmp_path)
    found = Checkpoints(tmp_path / "a" / "checkpoints").newest()
    assert found is not None
    assert data.val is not None
    backend = open_backend("torch", CONFIG, make_shape(257, CONFIG), found.parameters())
    ids = data.val[: 12 * 16 + 1].astype(np.int64)  # 200 tokens are 12 rows
    nats, text_nats, size = [], [], 0
    for row in range(12):
        some = ids[16 * row : 16 * row + 17]
        losses = backend.evaluate(StepRows(inputs=some[None, :-1], targets=some[None, 1:]))[0]
        nats += losses.tolist()
        text_nats += losses[some[1:] != 256].tolist()
        size += int((some[1:] != 256).sum())  # an id of this tokenizer is a byte
    last = [line for line in read_metrics(tmp_path / "a") if "val_loss" in line][-1]
    assert last["val_loss"] == pytest.approx(np.mean(nats), abs=1e-5)
    assert last["bits_per_byte"] == pytest.approx(sum(text_nats) / math.log(2) / size, abs=1e-5)
    assert found.state.val_loss == last["val_loss"]


def test_tensorboard_has_the_lines_of_the_metrics(data: RunData, tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(data, name="a", config=CONFIG, runs=tmp_path, boards=["tensorboard"], watcher=Watch(9))
    train(data, name="a", config=CONFIG, runs=tmp_path, boards=["tensorboard"])
    found = events.EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    found.Reload()
    for name in ("loss", "val_loss"):
        logged = {line["step"]: line[name] for line in read_metrics(tmp_path / "a") if name in line}
        shown = {scalar.step: scalar.value for scalar in found.Scalars(name)}
        assert shown == pytest.approx(logged, abs=1e-5)


@pytest.mark.parametrize(("eot_id", "first"), [(256, 256), (None, 0)])
def test_a_sample_begins_with_the_end_of_text_or_else_the_first_id(
    data: RunData, tmp_path: Path, eot_id: int | None, first: int
) -> None:
    still = {"learning_rate": 0.0, "matrix_learning_rate": 0.0, "sample_every": 0}
    config = replace(CONFIG, **still, max_steps=1)
    data = replace(data, eot_id=eot_id)
    train(data, name="a", config=config, runs=tmp_path)
    random = np.random.default_rng(0)
    values = {
        name: random.normal(0, 1, value.shape).astype(np.float32)
        for name, value in first_values(make_shape(257, config), 1).items()
    }
    give_values(tmp_path / "a", values)  # with which every id depends on the ids before it
    train(data, name="a", config=replace(config, max_steps=2), runs=tmp_path)
    (sample,) = [
        line["sample"]
        for line in read_metrics(tmp_path / "a")
        if line["step"] == 2 and "sample" in line
    ]
    backend = open_backend("torch", config, make_shape(257, config), values)
    texts = [
        tokenmill.load_tokenizer("bytes").decode(
            list(generate(backend.next_logits, [start], 8, seed=44, vocab=257, stop_id=eot_id))
        )
        for start in (first, 256 - first)
    ]
    assert sample == texts[0] != texts[1]
