"""Sampling: by probability, the same for the same seed, and from only the run's folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tokenmill.cli import main
from tokenmill.errors import StateError, TokenizerError, UsageError
from tokenmill.tokenizers import load_tokenizer
from tokenmill.training.config import Config
from tokenmill.training.data import open_data
from tokenmill.training.run import train
from tokenmill.training.sample import TrainedModel, generate, load_run_for_sampling, sample

LOGITS = np.array([0.5, 2.0, 1.0, -1.0, 9.0], np.float32)


def draw(count: int = 4_000, seed: int = 0, **settings: object) -> np.ndarray:
    """Many draws from the same logits, of which the last is only padding."""
    drawn = generate(lambda ids: LOGITS, [0], count, seed=seed, vocab=4, **settings)  # type: ignore[arg-type]
    return np.array(list(drawn))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [2, 3, 0, None, 100])
def test_ids_are_drawn_by_their_probabilities(temperature: float, top_k: int | None) -> None:
    logits = LOGITS[:4].astype(np.float64)
    kept = np.sort(logits)[::-1][: top_k or None]
    shares = np.where(logits >= kept[-1], np.exp(logits / temperature), 0)
    shares /= shares.sum()
    found = np.bincount(draw(temperature=temperature, top_k=top_k), minlength=4) / 4_000
    assert np.abs(found - shares).max() < 0.03
    assert (found[shares == 0] == 0).all()


def test_the_same_seed_draws_the_same() -> None:
    assert np.array_equal(draw(50, 7), draw(50, 7))
    assert not np.array_equal(draw(50, 7), draw(50, 8))
    assert np.array_equal(draw(50, 7)[:20], draw(20, 7))


def test_temperature_0_is_greedy_and_padding_ids_are_never_drawn() -> None:
    assert set(draw(temperature=0).tolist()) == {1}
    assert draw(temperature=100.0, top_k=0).max() == 3


def test_each_id_is_drawn_after_all_before_it() -> None:
    seen: list[list[int]] = []

    def next_logits(ids: np.ndarray) -> np.ndarray:
        seen.append(ids.tolist())
        return np.eye(8, dtype=np.float32)[len(ids)] * 1_000

    assert list(generate(next_logits, [1, 2], 3, seed=0, vocab=8)) == [2, 3, 4]
    assert seen == [[1, 2], [1, 2, 2], [1, 2, 2, 3]]
    assert list(generate(next_logits, [1, 2], 9, seed=0, vocab=8, stop_id=4)) == [2, 3]


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1}, {"temperature": float("nan")}, {"top_k": -1}]
)
def test_wrong_sampling_settings_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        draw(**wrong)
    with pytest.raises(UsageError, match="prompt"):
        list(generate(lambda ids: LOGITS, [], 1, seed=0, vocab=4))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has memorized one sentence; its data is deleted."""
    folder = tmp_path_factory.mktemp("runs")
    text = folder / "input.txt"
    text.write_text("the mill turns text into tokens, and " * 200)
    config = Config(
        layers=1, heads=2, width=32, seq_len=32, batch_tokens=256, max_steps=100, warmup_steps=2
    )
    config = Config(**{**config.__dict__, "learning_rate": 0.02, "matrix_learning_rate": 0.02})
    data = open_data([], input_file=text, tokenizer="bytes", config=config)
    train(data, name="mill", config=config, runs=folder / "runs")
    text.unlink()
    return folder / "runs"


def test_the_command_continues_a_prompt(runs: Path) -> None:
    arguments = ["--runs", runs, "--name", "mill", "--prompt", "the mill", "--tokens", "20"]
    shown = subprocess.run(
        [sys.executable, "-m", "tokenmill.cli", "sample", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert shown.stderr == ""
    assert shown.stdout == "the mill turns text into tok\n"


class Slow:
    """A backend that draws the bytes of a text, and records what was shown before each of them."""

    def __init__(self, text: str, shown: list[str]) -> None:
        self.ids, self.shown = list(text.encode()), shown
        self.before: list[str] = []

    def next_logits(self, ids: np.ndarray) -> np.ndarray:
        self.before.append("".join(self.shown))
        return np.eye(257, dtype=np.float32)[self.ids[len(self.before) - 1]] * 1_000


def test_text_is_streamed_by_whole_characters() -> None:
    shown: list[str] = []
    backend = Slow("aé→\N{HUNDRED POINTS SYMBOL}z", shown)
    model = TrainedModel(
        backend=backend,  # type: ignore[arg-type]
        tokenizer=load_tokenizer("bytes"),
        vocab=257,
        eot_id=256,
        step=1,
    )
    for piece in model.complete("¿".encode(), len(backend.ids) - 2, seed=0):
        shown.append(piece)
    # Complete characters are shown before the next byte is drawn; an incomplete one only at the end.
    assert backend.before == ["", "¿a", "¿a", *["¿aé"] * 3, *["¿aé→"] * 3]
    assert shown == ["¿a", "é", "→", "\ufffd"]


def test_the_command_streams_the_text(runs: Path) -> None:
    arguments = ["--runs", runs, "--name", "mill", "--prompt", "the mill", "--tokens", "300"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenmill.cli", "sample", *map(str, arguments)],
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    pieces = list(iter(lambda: os.read(process.stdout.fileno(), 1 << 16), b""))  # type: ignore[union-attr]
    process.stdout.close()
    assert process.wait() == 0
    assert b"".join(pieces).startswith(b"the mill turns text into tokens")
    assert len(pieces) > 3


def test_both_backends_generate_the_same_text(runs: Path) -> None:
    texts = {
        "".join(load_run_for_sampling(runs / "mill", backend=name).complete(b"", 30, temperature=0))
        for name in ("torch", "jax")
    }
    assert len(texts) == 1


def test_control_characters_in_a_prompt_are_escaped(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--runs", str(runs), "--name", "mill", "--prompt", "\x1b[31m", "--tokens", "1"]
    assert main(["sample", *arguments]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("\\x1b[31m")
    assert "\x1b" not in shown


def test_sampling_changes_nothing(runs: Path) -> None:
    def look() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in runs.rglob("*")}

    before = look()
    list(load_run_for_sampling(runs / "mill").complete(b"a", 2))
    assert look() == before


def test_a_missing_run_and_a_wrong_tokenizer_are_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="tokenmill train"):
        load_run_for_sampling(tmp_path / "none")
    copy = tmp_path / "copy"
    shutil.copytree(runs / "mill", copy)
    state = copy / "tokenizer_state.json"
    state.write_text(json.dumps(load_tokenizer("gpt2").state()))
    with pytest.raises(TokenizerError, match="not the tokenizer"):
        load_run_for_sampling(copy)
    state.unlink()
    with pytest.raises(TokenizerError, match="Train again with `tokenizer=NAME`"):
        load_run_for_sampling(copy)


def test_a_run_without_checkpoint_and_a_dataset_have_different_errors(tmp_path: Path) -> None:
    begun = tmp_path / "runs" / "begun"
    begun.mkdir(parents=True)
    (begun / "config.json").write_text("{}")
    with pytest.raises(
        StateError, match=r"begun has no checkpoint yet\. Training writes one every"
    ):
        sample("begun", runs=tmp_path / "runs")
    dataset = tmp_path / "data" / "corpus"
    dataset.mkdir(parents=True)
    with pytest.raises(StateError, match="corpus is not the folder of a run"):
        sample(dataset, runs=tmp_path / "runs")


def test_a_damaged_checkpoint_is_skipped_with_a_warning(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs / "mill", copy)
    (whole,) = (copy / "checkpoints").iterdir()
    later = whole.with_name("step_0000101")
    shutil.copytree(whole, later)
    (later / "state.json").unlink()
    shown: list[str] = []
    assert load_run_for_sampling(copy, warn=shown.append).step == 100
    assert "step_0000101" in shown[0]
