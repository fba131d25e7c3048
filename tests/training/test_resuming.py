"""A run resumes after any interruption as if there had been none, and never as another run."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_fixtures import CONFIG, Watch, results

from tokenmill.errors import StateError
from tokenmill.load.mixture import Mixture
from tokenmill.store.tokens import Tokens
from tokenmill.training.checkpoints import Checkpoints
from tokenmill.training.data import RunData
from tokenmill.training.run import train

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_a_stop_interrupts_a_sample(
    data: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[Any] = []

    def next_logits(_: object, ids: Any) -> Any:
        computed.append(ids)
        return np.zeros(257, np.float32)

    backend = "tokenmill.training.torch_backend.TorchBackend"
    monkeypatch.setattr(f"{backend}.next_logits", next_logits)
    config = replace(CONFIG, log_every=1, sample_every=1, sample_tokens=100, val_every=0)
    assert train(data, name="a", config=config, runs=tmp_path, watcher=Watch(1)).was_stopped
    assert len(computed) == 1


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
    quiet, told = Watch(), Watch()
    changed = replace(short, log_every=1)
    assert train(data, name="a", config=changed, runs=tmp_path, watcher=quiet).was_finished
    longer = replace(short, max_steps=3)
    assert train(data, name="a", config=longer, runs=tmp_path, watcher=told).step == 3
    assert not any(note.startswith("From step") for note in quiet.notes)
    assert "From step 2 on: max_steps 2 → 3." in told.notes
    fresh = train(data, name="a", config=short, runs=tmp_path, restart=True)
    assert (fresh.step, fresh.was_finished) == (2, False)
    assert sorted(os.listdir(tmp_path / "a" / "checkpoints")) == ["step_0000002"]


@pytest.mark.parametrize("left", [None, b"<svg>of an earlier step</svg>"])
def test_a_run_killed_before_its_last_chart_draws_it_when_run_again(
    data: RunData, tmp_path: Path, left: bytes | None
) -> None:
    short = replace(CONFIG, max_steps=2, val_every=0, sample_tokens=0)
    train(data, name="a", config=short, runs=tmp_path)
    chart = tmp_path / "a" / "loss.svg"
    drawn = chart.read_bytes()
    chart.unlink()
    if left is not None:
        chart.write_bytes(left)
    assert train(data, name="a", config=short, runs=tmp_path).was_finished
    assert chart.read_bytes() == drawn


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
