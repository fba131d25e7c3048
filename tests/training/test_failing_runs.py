"""A run that cannot start or continue stops with an error, and keeps its last good checkpoint."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_fixtures import CONFIG, damage, give_values

from tokenmill.errors import FolderError, UsageError, WorkError
from tokenmill.training.checkpoints import Checkpoints
from tokenmill.training.data import RunData
from tokenmill.training.run import train
from tokenmill.training.run_folder import RunFolder, read_metrics

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")


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
    assert "`learning_rate=5e+29` and `matrix_learning_rate=5e+29` to resume from there" in str(
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
    values["head"][:] = np.array([3e38, -3e38] * 8)  # finite, and their sums are not
    values["blocks.0.mlp.down"][:] = 3e38
    give_values(tmp_path / "a", values)
    with pytest.raises(
        WorkError, match=r"^The loss of row 8 is nan \(and of 3 more of the 4 rows\)"
    ):
        train(data, name="a", config=CONFIG, runs=tmp_path)
    assert np.isnan(np.fromfile(tmp_path / "a" / "row_losses.f32", "<f4")[8])


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_weights_that_the_last_step_made_infinite_are_not_saved(
    data: RunData, tmp_path: Path, backend: str
) -> None:
    """The losses and gradients of that step are finite, and no later step would notice."""
    pytest.importorskip(backend)
    sound = replace(CONFIG, max_steps=2, warmup_steps=0, decay_fraction=0.0)
    data = replace(data, val=None)
    given: dict[str, Any] = {"name": "a", "runs": tmp_path, "backend": backend}
    train(data, config=sound, **given)
    first = Checkpoints(tmp_path / "a" / "checkpoints").newest()
    assert first is not None
    values = first.parameters()
    values["head"][:] = 1e10
    give_values(tmp_path / "a", values)
    wild = replace(sound, max_steps=3, learning_rate=1e30)  # weight decay multiplies by -1e29
    with pytest.raises(
        WorkError, match=r"^After step 3, \w+ has a value that is NaN or infinite: "
    ) as stopped:
        train(data, config=wild, **given)
    kept = tmp_path / "a" / "checkpoints"
    assert f"the checkpoint of step 2 is in {kept}.\nLower the learning rate" in str(stopped.value)
    assert os.listdir(kept) == ["step_0000002"]
    assert train(data, config=replace(sound, max_steps=3), **given).step == 3


def test_an_id_outside_the_vocabulary_stops_the_run_with_a_checkpoint(
    data: RunData, tmp_path: Path
) -> None:
    with pytest.raises(WorkError, match=r"row \d+ of the run contains the id 300") as stopped:
        train(damage(data, 6), name="a", config=CONFIG, runs=tmp_path)
    found = Checkpoints(tmp_path / "a" / "checkpoints").newest()
    assert found is not None
    assert (found.state.step, found.state.row) == (6, 24)
    assert "the checkpoint of step 6 is in" in str(stopped.value)


def test_a_failure_right_after_a_checkpoint_keeps_its_validation_loss(
    data: RunData, tmp_path: Path
) -> None:
    config = replace(CONFIG, val_every=4, checkpoint_every=4)
    with pytest.raises(WorkError, match="Training stopped after step 8; the checkpoint of step 8"):
        train(damage(data, 8), name="a", config=config, runs=tmp_path)
    found = Checkpoints(tmp_path / "a" / "checkpoints").newest()
    assert found is not None
    last = [line for line in read_metrics(tmp_path / "a") if "val_loss" in line][-1]
    assert (found.state.step, found.state.val_loss) == (8, last["val_loss"])


def test_wrong_usage_that_a_step_notices_is_not_blamed_on_the_data(
    data: RunData, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="mask_fraction") as refused:
        train(
            replace(data, eot_id=None),
            name="a",
            config=replace(CONFIG, mask_fraction=0.5),
            runs=tmp_path,
        )
    assert "Training stopped" not in str(refused.value)
    assert "restored" not in str(refused.value)


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
