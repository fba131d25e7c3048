"""The data module under a real trainer: the rows that a model saw, over epochs and restarts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from tokenmill import Loader, Mixture, Tokens
from tokenmill.errors import StateError, UsageError
from tokenmill.lightning import TokenDataModule

# Warnings of Lightning itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed from"),
]

LENGTH = 4
TRAIN = Tokens.of(np.arange(50 * LENGTH + 1))  # token n is n, so a row shows its window
VAL = Tokens.of(np.arange(1_000, 1_000 + 7 * LENGTH + 3))


class Model(pl.LightningModule):
    """Records the first token of every row of its batches."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[int] = []
        self.batch_rows: list[int] = []
        self.stop_at = stop_at

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        inputs, targets = batch
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        if self.stop_at is not None and len(self.batch_rows) == self.stop_at:
            raise RuntimeError("out of memory, say")
        self.seen += inputs[:, 0].tolist()
        self.batch_rows.append(len(inputs))
        return (self.weight * inputs.float().mean()).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class ValidatedModel(Model):
    """Records those of each validation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.validated: list[list[int]] = []

    def on_validation_epoch_start(self) -> None:
        self.validated.append([])

    def validation_step(self, batch: Any, number: int) -> None:
        self.validated[-1] += batch[0][:, 0].tolist()


def every(folder: Path, steps: int) -> ModelCheckpoint:
    return ModelCheckpoint(folder, filename="{step}", every_n_train_steps=steps, save_top_k=-1)


def trainer(folder: Path, *callbacks: Callback, **settings: Any) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **{"enable_checkpointing": bool(callbacks), "num_sanity_val_steps": 0, **settings},
    )


def module(data: Tokens | Mixture = TRAIN, val: Tokens | None = None, **settings: Any) -> Any:
    settings = {"batch_size": 4, "seq_len": LENGTH, "seed": 7, **settings}
    return TokenDataModule(data, val, **settings)


def firsts(rows: int, data: Tokens | Mixture = TRAIN) -> list[int]:
    """The first tokens of the first rows of the run, from `tokenmill.Loader`."""
    loader = Loader(data, batch_size=rows, seq_len=LENGTH, seed=7, prefetch=0)
    return next(loader).inputs[:, 0].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_continue_with_the_rows_of_the_run(tmp_path: Path, workers: int) -> None:
    model = Model()
    trainer(tmp_path, max_epochs=3).fit(model, module(num_workers=workers))
    steps = 50 // 4
    assert model.batch_rows == [4] * (3 * steps)
    assert model.seen == firsts(3 * steps * 4)
    assert sorted(model.seen[:50]) == list(range(0, 50 * LENGTH, LENGTH))
    assert sorted(model.seen[50:100]) == sorted(model.seen[:50])
    assert model.seen[50:100] != model.seen[:50]


def test_epochs_cut_short_by_the_trainer_lose_no_rows(tmp_path: Path) -> None:
    model = Model()
    trainer(tmp_path, max_epochs=4, limit_train_batches=5).fit(model, module())
    assert model.seen == firsts(4 * 5 * 4)


def test_reloaded_dataloaders_continue(tmp_path: Path) -> None:
    model = Model()
    again = trainer(tmp_path, max_epochs=3, reload_dataloaders_every_n_epochs=1)
    again.fit(model, module(epoch_steps=3))
    assert model.seen == firsts(3 * 3 * 4)


def test_another_trainer_continues_with_the_rows_of_the_run(tmp_path: Path) -> None:
    model, data = Model(), module()
    for _ in range(2):
        trainer(tmp_path, max_steps=5).fit(model, data)
    assert model.seen == firsts(2 * 5 * 4)


@pytest.mark.parametrize("limits", [{"max_epochs": 3}, {"max_steps": 30}], ids=["epochs", "steps"])
@pytest.mark.parametrize(("step", "workers"), [(5, 0), (12, 0), (17, 0), (24, 0), (17, 2)])
def test_a_checkpoint_resumes_at_the_next_row(
    tmp_path: Path, workers: int, limits: dict[str, int], step: int
) -> None:
    whole = Model()
    trainer(tmp_path, every(tmp_path, step), **limits).fit(whole, module(num_workers=workers))
    again = Model()
    trainer(tmp_path, every(tmp_path / "again", step), **limits).fit(
        again, module(num_workers=workers), ckpt_path=tmp_path / f"step={step}.ckpt"
    )
    assert again.seen == whole.seen[step * 4 :]
    assert whole.seen == firsts(len(whole.seen))


@pytest.mark.parametrize("after_validation", [True, False])
def test_a_checkpoint_at_the_end_of_an_epoch_resumes_with_the_next(
    tmp_path: Path, after_validation: bool
) -> None:
    saved = [
        ModelCheckpoint(
            folder, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=not after_validation
        )
        for folder in (tmp_path, tmp_path / "again")
    ]
    whole = ValidatedModel()
    trainer(tmp_path, saved[0], max_epochs=3).fit(whole, module(val=VAL))
    again = ValidatedModel()
    trainer(tmp_path, saved[1], max_epochs=3).fit(
        again, module(val=VAL), ckpt_path=tmp_path / "epoch=0.ckpt"
    )
    assert again.seen == whole.seen[12 * 4 :]


def test_a_checkpoint_after_validation_within_an_epoch_resumes(tmp_path: Path) -> None:
    saved = [
        ModelCheckpoint(folder, filename="{step}", save_top_k=-1, save_on_train_epoch_end=False)
        for folder in (tmp_path, tmp_path / "again")
    ]
    settings = {"max_epochs": 2, "val_check_interval": 5}
    whole, again = ValidatedModel(), ValidatedModel()
    trainer(tmp_path, saved[0], **settings).fit(whole, module(val=VAL))
    trainer(tmp_path, saved[1], **settings).fit(
        again, module(val=VAL), ckpt_path=tmp_path / "step=10.ckpt"
    )
    assert again.seen == whole.seen[10 * 4 :]


def test_a_checkpoint_counts_batches_whose_gradients_are_summed(tmp_path: Path) -> None:
    settings = {"max_epochs": 2, "accumulate_grad_batches": 2}
    whole, again = Model(), Model()
    trainer(tmp_path, every(tmp_path, 4), **settings).fit(whole, module())
    trainer(tmp_path, every(tmp_path / "again", 4), **settings).fit(
        again, module(), ckpt_path=tmp_path / "step=4.ckpt"
    )
    assert again.seen == whole.seen[4 * 2 * 4 :]


def test_a_checkpoint_resumes_with_another_batch_size(tmp_path: Path) -> None:
    trainer(tmp_path, every(tmp_path, 5), max_steps=5).fit(Model(), module())
    again = Model()
    trainer(tmp_path, every(tmp_path / "again", 5), max_steps=9).fit(
        again, module(batch_size=6), ckpt_path=tmp_path / "step=5.ckpt"
    )
    assert again.seen == firsts(20 + 4 * 6)[20:]


def test_a_checkpoint_saved_within_a_step_repeats_its_rows(tmp_path: Path) -> None:
    class SaveOnError(Callback):
        def on_exception(self, trainer: pl.Trainer, *_: Any) -> None:
            trainer.save_checkpoint(tmp_path / "broken.ckpt")

    broken = Model(stop_at=7)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer(tmp_path, SaveOnError(), max_steps=20, enable_checkpointing=False).fit(
            broken, module()
        )
    again = Model()
    trainer(tmp_path, max_epochs=1).fit(again, module(), ckpt_path=tmp_path / "broken.ckpt")
    assert broken.seen + again.seen == firsts(12 * 4)


def test_a_checkpoint_saved_after_a_failed_fit_repeats_its_rows(tmp_path: Path) -> None:
    broken, fit = Model(stop_at=7), trainer(tmp_path, max_steps=20, enable_checkpointing=False)
    with pytest.raises(RuntimeError, match="out of memory"):
        fit.fit(broken, module())
    fit.save_checkpoint(tmp_path / "broken.ckpt")
    again = Model()
    trainer(tmp_path, max_epochs=1).fit(again, module(), ckpt_path=tmp_path / "broken.ckpt")
    assert broken.seen + again.seen == firsts(12 * 4)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, every(tmp_path, 5), max_steps=5).fit(Model(), module())
    with pytest.raises(StateError, match="seed is 7 in the state and 8 here"):
        trainer(tmp_path, max_steps=9).fit(
            Model(), module(seed=8), ckpt_path=tmp_path / "step=5.ckpt"
        )


@pytest.mark.parametrize("settings", [{}, {"order": "blocks", "block_rows": 2}])
def test_validation_has_the_same_rows_each_time(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = ValidatedModel()
    trainer(tmp_path, max_epochs=2, val_check_interval=4, num_sanity_val_steps=1).fit(
        model, module(val=VAL, **settings)
    )
    expected = list(range(1_000, 1_000 + 7 * LENGTH, LENGTH))
    assert model.validated == [expected[:4], *[expected] * 6]


def test_an_empty_validation_split_disables_validation(tmp_path: Path) -> None:
    model = Model()
    data = module(val=Tokens.of(VAL[:0], split="val"))
    trainer(tmp_path, max_epochs=1, num_sanity_val_steps=1).fit(model, data)
    assert len(model.seen) == 48


def test_validating_with_a_checkpoint_does_not_move_the_run(tmp_path: Path) -> None:
    model, data = ValidatedModel(), module(val=VAL, val_rows=5)
    run = trainer(tmp_path, every(tmp_path, 5), max_steps=10)
    run.fit(model, data)
    run.validate(model, data, ckpt_path=tmp_path / "step=5.ckpt", verbose=False)
    assert model.validated[-1] == list(range(1_000, 1_000 + 5 * LENGTH, LENGTH))
    assert data.state_dict()["row"] == 40


def test_the_learning_rate_finder_consumes_no_rows(tmp_path: Path) -> None:
    model, data = Model(), module()
    run = trainer(tmp_path, max_steps=5, enable_checkpointing=True)
    pl.tuner.Tuner(run).lr_find(model, datamodule=data, num_training=20, update_attr=False)
    assert len(model.seen) > 0
    model.seen = []
    run.fit(model, data)
    assert model.seen == firsts(5 * 4)


def test_overfitting_sees_the_same_batches_each_epoch(tmp_path: Path) -> None:
    model = Model()
    trainer(tmp_path, max_epochs=3, overfit_batches=2).fit(model, module())
    assert model.seen == firsts(8) * 3


def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    before, data = set(threading.enumerate()), module(val=VAL)
    trainer(tmp_path, max_steps=5).fit(ValidatedModel(), data)
    for thread in set(threading.enumerate()) - before:
        if thread.name == "tokenmill":
            thread.join(timeout=5)  # one without work may be about to end
            assert not thread.is_alive()


def test_mixtures_have_epochs_of_the_given_steps(tmp_path: Path) -> None:
    mixed = Mixture({"train": (TRAIN, 1), "val": (VAL, 1)}, block=4)
    model = Model()
    trainer(tmp_path, max_epochs=2).fit(model, module(mixed, epoch_steps=5))
    assert model.seen == firsts(40, mixed)
    assert len(module(mixed).train_dataloader()) == (50 + 7) // 4


def test_batches_have_documents(tmp_path: Path) -> None:
    tokens = Tokens.of(np.arange(201) % 10, eot_id=0)
    batch = next(iter(module(tokens, documents=True).train_dataloader()))
    assert batch.documents.cu_seqlens[-1] == 16


def test_a_module_without_a_trainer_counts_its_batches() -> None:
    data = module()
    taken = [batch for _, batch in zip(range(3), data.train_dataloader(), strict=False)]
    state = json.loads(json.dumps(data.state_dict()))
    assert state["row"] == 12
    other = module(batch_size=3)
    other.load_state_dict(state)
    taken.append(next(iter(other.train_dataloader())))
    assert torch.cat([batch.inputs[:, 0] for batch in taken]).tolist() == firsts(15)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 1}, "`rank` is set by the trainer"),
        ({"limit_epochs": 1}, "`limit_epochs` is set by the trainer"),
        ({"limit_tokens": 1}, "`limit_tokens` is set by the trainer"),
        ({"sed": 3}, "not an argument of tokenmill.Loader"),
        ({"epoch_steps": 0}, "`epoch_steps` is 0"),
    ],
)
def test_settings_of_the_trainer_and_unknown_ones_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        module(**settings)


RANKS = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import lightning.pytorch as pl
from test_lightning import VAL, ValidatedModel, module
model = ValidatedModel()
run = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False, max_steps=15,
    enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    enable_checkpointing=False)
os.environ["RANK"], os.environ["WORLD_SIZE"] = "5", "6"  # of another launcher; must be ignored
run.fit(model, module(val=VAL), ckpt_path=sys.argv[2] + "/step=5.ckpt")
with open(f"{sys.argv[2]}/{run.global_rank}.json", "w") as file:
    json.dump([model.seen, model.validated], file)
"""


def test_a_run_resumes_with_more_ranks_taken_from_the_trainer(tmp_path: Path) -> None:
    trainer(tmp_path, every(tmp_path, 5), max_steps=5).fit(Model(), module())
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    subprocess.run(
        [sys.executable, script, Path(__file__).parent, tmp_path],
        check=True,
        capture_output=True,
        timeout=120,
    )
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    seen = np.concatenate([np.reshape(rank[0], (10, 4)) for rank in ranks], axis=1)
    assert seen.ravel().tolist() == firsts(20 + 10 * 8)[20:]
    # 7 rows: a batch of 4 on one, of 3 on the other.
    expected = list(range(1_000, 1_000 + 7 * LENGTH, LENGTH))
    validations = [first + second for first, second in zip(ranks[0][1], ranks[1][1], strict=True)]
    assert expected in validations
    assert all(found == expected for found in validations)
