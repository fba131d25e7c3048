"""A run leaves correct results and resumes after any interruption as if there had been none."""

from __future__ import annotations

import math
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tokenmill.errors import FolderError, StateError, UsageError, WorkError
from tokenmill.load.mixture import Mixture
from tokenmill.store.tokens import Tokens
from tokenmill.training.backend import StepRows
from tokenmill.training.backends import open_backend
from tokenmill.training.checkpoints import Checkpoints
from tokenmill.training.config import Config
from tokenmill.training.data import RunData
from tokenmill.training.display import RunWatcher, format_line
from tokenmill.training.model import first_values, make_shape
from tokenmill.training.run import train
from tokenmill.training.run_folder import TIMES, RunFolder, read_metrics

torch = pytest.importorskip("torch")

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


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def data() -> RunData:
    tokenizer = tokenmill.load_tokenizer("bytes")
    ids = np.frombuffer((TEXT * 20).encode(), np.uint8).astype(np.uint16)
    ids[::90] = 256
    return RunData(
        train=Tokens.of(ids, eot_id=256),
        val=Tokens.of(ids[:500], split="val", eot_id=256),
        vocab=257,
        tokenizer=tokenizer,
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


@pytest.fixture(scope="module")
def uninterrupted(data: RunData, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    runs = tmp_path_factory.mktemp("uninterrupted")
    assert train(data, name="a", config=CONFIG, runs=runs).step == 20
    return results(runs / "a")


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("step", [3, 12, 15, 18, 20])  # at 15 and 20, before a validation
def test_a_stopped_run_resumes_as_if_never_stopped(
    data: RunData, uninterrupted: dict[str, Any], tmp_path: Path, step: int, number: int
) -> None:
    before = signal.getsignal(number)
    watch = Watch(step, number)
    report = train(data, name="a", config=CONFIG, runs=tmp_path, watcher=watch)
    assert report.was_stopped
    assert "Stopping after this micro-batch" in watch.notes[-1]
    assert report.step in (step, step + 1)
    assert signal.getsignal(number) == before
    watch = Watch()
    report = train(data, name="a", config=CONFIG, runs=tmp_path, watcher=watch)
    assert report.step == 20
    assert not report.was_stopped
    assert any("resuming" in note for note in watch.notes)
    assert results(tmp_path / "a") == uninterrupted


class StopInStep(Watch):
    """Sends a signal after the first micro-batch of the run."""

    def expect(self, seconds: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_stop_between_micro_batches_drops_the_step_and_nothing_else(
    data: RunData, tmp_path: Path
) -> None:
    config = replace(CONFIG, micro_batch=1)  # four a step
    train(data, name="whole", config=config, runs=tmp_path)
    for step in (0, 6):
        if step:
            short = replace(config, max_steps=step, sample_tokens=0, val_every=0)
            train(data, name=f"at {step}", config=short, runs=tmp_path)
        watch = StopInStep()
        report = train(data, name=f"at {step}", config=config, runs=tmp_path, watcher=watch)
        assert (report.step, report.was_stopped) == (step, True)
    again = train(data, name="at 0", config=config, runs=tmp_path)
    assert (again.step, again.was_stopped) == (20, False)
    assert results(tmp_path / "at 0") == results(tmp_path / "whole")


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


def test_the_time_left_at_the_first_step_agrees_with_the_estimate(
    data: RunData, tmp_path: Path
) -> None:
    """The first step also warms up, so the time left must not be computed from it."""
    quiet = replace(CONFIG, log_every=1000, val_every=0, sample_tokens=0)
    watch = Lines()
    train(data, name="a", config=quiet, runs=tmp_path, watcher=watch)  # no estimate in step 1
    assert math.isnan(watch.left[0])
    assert "left" not in format_line(watch.lines[0], 20, watch.left[0])
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


def test_a_damaged_checkpoint_costs_only_a_few_steps(
    data: RunData, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    train(data, name="a", config=CONFIG, runs=tmp_path, watcher=Watch(15))
    newest = Checkpoints(tmp_path / "a" / "checkpoints").newest()
    assert newest is not None
    os.truncate(newest.path / "optimizer.safetensors", 100)
    watch = Watch()
    train(data, name="a", config=CONFIG, runs=tmp_path, watcher=watch)
    assert str(newest.path) in watch.warnings[0]
    assert results(tmp_path / "a") == uninterrupted


def test_a_finished_run_is_not_changed(data: RunData, tmp_path: Path) -> None:
    short = replace(CONFIG, max_steps=2, val_every=0, sample_tokens=0)
    first = train(data, name="a", config=short, runs=tmp_path)
    there = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = train(data, name="a", config=short, runs=tmp_path)
    assert again == replace(first, was_finished=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == there
    longer = train(data, name="a", config=replace(short, max_steps=3), runs=tmp_path)
    assert longer.step == 3
    fresh = train(data, name="a", config=short, runs=tmp_path, restart=True)
    assert (fresh.step, fresh.was_finished) == (2, False)
    assert sorted(os.listdir(tmp_path / "a" / "checkpoints")) == ["step_0000002"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"within_documents": True}, {"mask_fraction": 0.2, "noise_fraction": 0.1}],
    ids=["plain", "within documents", "augmented"],
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
    _give_values(tmp_path / "a", values)
    train(data, name="a", config=config, runs=tmp_path)
    found = np.fromfile(tmp_path / "a" / "row_losses.f32", "<f4")
    backend = open_backend("torch", config, make_shape(257, config), values)
    loader = tokenmill.Loader(
        data.train, batch_size=4, seq_len=16, seed=42, documents=config.within_documents
    )
    from tokenmill.training.augment import augment

    for step in range(1, 5):
        batch = loader.batch_at(step)
        assert batch.tokens is not None
        inputs, targets = augment(batch.tokens, 4 * step, config=config, vocab=257, eot_id=256)
        documents = batch.documents.ids if batch.documents else None
        losses = backend.evaluate(StepRows(inputs=inputs, targets=targets, documents=documents))
        assert found[4 * step : 4 * step + 4] == pytest.approx(losses.mean(axis=1), abs=1e-5)


def _give_values(folder: Path, values: dict[str, Any]) -> None:
    """Put other values into a run's checkpoint."""
    checkpoints = Checkpoints(folder / "checkpoints")
    found = checkpoints.newest()
    assert found is not None
    checkpoints.write(found.state, values, found.optimizer_state(), keep=1)


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


def test_changing_micro_batches_keeps_the_rows(data: RunData, tmp_path: Path) -> None:
    config = replace(CONFIG, optimizer="adamw", val_every=0, sample_tokens=0)
    train(data, name="a", config=config, runs=tmp_path)
    train(data, name="b", config=replace(config, micro_batch=1), runs=tmp_path, watcher=Watch(9))
    train(data, name="b", config=replace(config, micro_batch=3), runs=tmp_path)
    one, other = (np.fromfile(tmp_path / name / "row_losses.f32", "<f4") for name in "ab")
    assert one == pytest.approx(other, abs=1e-5)


def test_a_mixture_with_other_weights_is_refused(data: RunData, tmp_path: Path) -> None:
    assert isinstance(data.train, Tokens)
    numbers = Tokens.of(np.arange(1000) % 100)
    mixed = replace(data, train=Mixture({"a": (data.train, 0.5), "b": (numbers, 0.5)}))
    train(mixed, name="a", config=CONFIG, runs=tmp_path, watcher=Watch(9))
    other = replace(data, train=Mixture({"a": (data.train, 0.9), "b": (numbers, 0.1)}))
    with pytest.raises(StateError, match=r"the mixture: a 0\.5, b 0\.5 then, a 0\.9, b") as refused:
        train(other, name="a", config=CONFIG, runs=tmp_path)
    assert "`restart=True`" in str(refused.value)
    assert "the data of" not in str(refused.value)
    assert train(mixed, name="a", config=CONFIG, runs=tmp_path).step == 20


def test_another_run_is_refused_by_name(data: RunData, tmp_path: Path) -> None:
    short = replace(CONFIG, max_steps=2)
    train(data, name="a", config=short, runs=tmp_path)
    longer = replace(CONFIG, max_steps=4)
    others = {
        "the data of train": (replace(data, train=Tokens.of(np.arange(900) % 256)), longer),
        "the tokenizer": (replace(data, tokenizer=None), longer),
        "the model's layers: 1 then, 2 now": (data, replace(longer, layers=2)),
        "the model's seq_len: 16 then, 32 now": (data, replace(longer, seq_len=32)),
        "the seed: 42 then, 7 now": (data, replace(longer, seed=7)),
        "the optimizer: muon then, adamw now": (data, replace(longer, optimizer="adamw")),
    }
    for found, (other, config) in others.items():
        with pytest.raises(StateError) as refused:
            train(other, name="a", config=config, runs=tmp_path)
        assert found in str(refused.value)
        assert "`restart=True`" in str(refused.value)
    with pytest.raises(StateError, match="the backend: torch then, jax now"):
        train(data, name="a", config=longer, runs=tmp_path, backend="jax")
    assert train(data, name="a", config=longer, runs=tmp_path).step == 4


def test_an_infinite_gradient_stops_the_run_before_the_next_checkpoint(
    data: RunData, tmp_path: Path
) -> None:
    sound = replace(CONFIG, max_steps=8, softcap=0.0)
    train(data, name="a", config=sound, runs=tmp_path)
    rates = {"learning_rate": 1e30, "matrix_learning_rate": 1e30}
    wild = replace(sound, **rates, clip=0.0, max_steps=40, log_every=9)
    with pytest.raises(WorkError, match=r"rows? \d+ .* in step \d+: training cannot") as stopped:
        train(data, name="a", config=wild, runs=tmp_path)
    assert "the checkpoint of step 8 is in" in str(stopped.value)
    assert "`learning_rate=5e+29` and `matrix_learning_rate=5e+29` to resume there" in str(
        stopped.value
    )
    newest = Checkpoints(tmp_path / "a" / "checkpoints").newest()
    assert newest is not None
    assert newest.state.step == 8
    report = train(data, name="a", config=replace(sound, max_steps=10), runs=tmp_path)
    assert report.step == 10
    assert np.isfinite(np.fromfile(tmp_path / "a" / "row_losses.f32", "<f4")).all()


def test_a_nan_loss_is_reported_with_its_row(data: RunData, tmp_path: Path) -> None:
    train(data, name="a", config=replace(CONFIG, max_steps=2), runs=tmp_path)
    first = Checkpoints(tmp_path / "a" / "checkpoints").newest()
    assert first is not None
    values = first.parameters()
    values["embedding"][:] = np.nan
    _give_values(tmp_path / "a", values)
    with pytest.raises(
        WorkError, match=r"^The loss of row 8 is nan \(and of 3 more of the 4 rows\)"
    ):
        train(data, name="a", config=CONFIG, runs=tmp_path)
    assert np.isnan(np.fromfile(tmp_path / "a" / "row_losses.f32", "<f4")[8])


def test_an_id_outside_the_vocabulary_stops_the_run_with_a_checkpoint(
    data: RunData, tmp_path: Path
) -> None:
    assert isinstance(data.train, Tokens)
    ids = data.train[:]
    last = tokenmill.Loader(data.train, batch_size=4, seq_len=16, seed=42).batch_at(6)
    start = next(
        place
        for place in range(0, len(ids) - 16, 16)
        if (ids[place : place + 16] == last.inputs[1]).all()
        and place not in _starts(data.train, 0, 24)
    )
    ids[start + 8] = 300
    damaged = replace(data, train=Tokens.of(ids, eot_id=256))
    with pytest.raises(WorkError, match=r"row \d+ of the run contains the id 300") as stopped:
        train(damaged, name="a", config=replace(CONFIG, max_steps=999), runs=tmp_path)
    found = Checkpoints(tmp_path / "a" / "checkpoints").newest()
    assert found is not None
    row = int(str(stopped.value).split()[1])
    assert found.state.row == row // 4 * 4
    assert f"the checkpoint of step {found.state.step} is in" in str(stopped.value)


def _starts(tokens: Tokens, first: int, end: int) -> set[int]:
    loader = tokenmill.Loader(tokens, batch_size=4, seq_len=16, seed=42)
    return set(loader.rows.locate(np.arange(first, end)).tolist())


def test_a_second_process_in_a_folder_is_refused(data: RunData, tmp_path: Path) -> None:
    short = replace(CONFIG, max_steps=1)
    with (
        RunFolder(tmp_path / "a"),
        pytest.raises(FolderError, match=rf"working in .*process {os.getpid()}"),
    ):
        train(data, name="a", config=short, runs=tmp_path)
    assert train(data, name="a", config=short, runs=tmp_path).step == 1


def test_bad_names_and_foreign_folders_are_refused(data: RunData, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(FolderError, match=r"thesis\.tex"):
        train(data, name="mine", config=CONFIG, runs=tmp_path)
    for name in ("", "..", "a/b", "."):
        with pytest.raises(UsageError, match="not a name for a run"):
            train(data, name=name, config=CONFIG, runs=tmp_path)
    with pytest.raises(UsageError, match="torch or jax"):
        train(data, name="a", config=CONFIG, runs=tmp_path, backend="tensorflow")


@pytest.mark.parametrize("board", ["tensorboard", "wandb"])
def test_a_missing_board_is_reported_before_training(
    data: RunData, tmp_path: Path, board: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("tensorboard", "torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=f"`{board}` needs: pip install"):
        train(data, name="a", config=CONFIG, runs=tmp_path, boards=[board])
    assert not (tmp_path / "a" / "checkpoints").exists()


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


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("torch", "rank 0 of 2.*rank 0 of 1.*torchrun"),
        ("jax", "2 processes.*JAX_COORDINATOR_ADDRESS"),
    ],
)
def test_unconnected_ranks_are_refused_with_the_command_to_start_them(
    data: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, words: str
) -> None:
    pytest.importorskip(backend)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=words):
        train(data, name="a", config=CONFIG, runs=tmp_path, backend=backend)
