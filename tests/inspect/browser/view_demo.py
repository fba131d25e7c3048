"""Datasets and runs for the pages of `tokenmill view`: the project's own documentation and code.

`write_run` writes the files of a run as the trainer does, with losses that are made up: they fall as
losses do, differ by source, and jump where `spikes` says. All of it is deterministic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

import tokenmill
from tokenmill.load.loader import Loader
from tokenmill.load.mixture import Mixture
from tokenmill.training.config import Config
from tokenmill.training.run_folder import Record
from tokenmill.training.run_reading import DataOrigin, RunPhase, write_run_data

ROOT = Path(__file__).absolute().parents[3]
CONFIG = Config(layers=2, heads=2, width=64, seq_len=256, batch_tokens=4096, max_steps=3000)


def make_dataset(texts: Mapping[str, Sequence[str]], folder: Path, *, tokenizer: str) -> Path:
    """Prepare a dataset from JSON lines: the texts by the names of their files."""
    source = folder.with_name(f"{folder.name}-texts")
    source.mkdir(parents=True)
    for name, lines in texts.items():
        text = "".join(json.dumps({"text": line}) + "\n" for line in lines)
        (source / f"{name}.jsonl").write_text(text)
    tokenmill.prepare(source, folder, tokenizer=tokenizer, workers=1, val_fraction=0.05)
    return folder


def make_demo_data(folder: Path) -> dict[str, Path]:
    """Prepare the paragraphs of the documentation and the modules of the code as two datasets."""
    guides = {
        page.stem: re.split(r"\n\n+", page.read_text())
        for page in sorted((ROOT / "docs").glob("*.md"))
    }
    code = {
        package.name: [file.read_text() for file in sorted(package.glob("*.py"))]
        for package in sorted((ROOT / "src/tokenmill").iterdir())
        if package.is_dir() and package.name != "__pycache__"
    }
    return {
        "guides": make_dataset(guides, folder / "guides", tokenizer="gpt2"),
        "code": make_dataset(code, folder / "code", tokenizer="gpt2"),
    }


class RunWriter:
    """Writes the files of a run, step by step, as the trainer does."""

    def __init__(
        self,
        folder: Path,
        data: Sequence[str],
        loader: Loader,
        config: Config = CONFIG,
        *,
        batch_rows: int | None = None,
        world_size: int = 1,
        val_fraction: float | None = None,
    ) -> None:
        folder.mkdir(parents=True)
        self.rows = batch_rows or config.batch_rows
        phase = RunPhase(step=0, row=0, batch_rows=self.rows, world_size=world_size)
        origin = DataOrigin.of(data, val_fraction=val_fraction)
        write_run_data(folder, origin, loader.rows.identity, phase)
        (folder / "config.json").write_text(json.dumps(asdict(config)))
        self.config = config
        self.record = Record(folder, step=0, row=0)
        self.step = 0

    def write(self, losses: np.ndarray, *, val_loss: float | None = None) -> None:
        """Write the losses of some steps, an array (steps, rows), and a line of metrics."""
        self.record.add_losses(self.step * self.rows, losses.astype(np.float32).ravel())
        self.step += len(losses)
        row = self.step * self.rows
        self.record.add(
            {
                "step": self.step,
                "row": row,
                "tokens": row * self.config.seq_len,
                "loss": float(losses.mean()),
                "tokens_per_second": 182_400.0,
            }
        )
        if val_loss is not None:
            self.record.add({"step": self.step, "val_loss": val_loss})
        self.record.flush()

    def close(self) -> None:
        self.record.close()


def make_loader(data: Mapping[str, Path], weights: Sequence[float], config: Config) -> Loader:
    """Return the loader that a run on a mixture of datasets uses."""
    opened = {name: tokenmill.open(path) for name, path in data.items()}
    sources = {
        name: (dataset["train"], weight)
        for (name, dataset), weight in zip(opened.items(), weights, strict=True)
    }
    return Loader(
        Mixture(sources), batch_size=config.batch_rows, seq_len=config.seq_len, seed=config.seed
    )


def make_up_losses(
    loader: Loader, config: Config, *, seed: int, floor: float, spikes: Mapping[int, float]
) -> np.ndarray:
    """Return losses (steps, rows) that fall with the steps; `spikes` are steps with one bad row."""
    random = np.random.default_rng(seed)
    steps = np.arange(config.max_steps)
    level = floor + (10.8 - floor) * (0.72 * np.exp(-steps / 60) + 0.28 * np.exp(-steps / 900))
    rows = config.max_steps * config.batch_rows
    sources = loader.rows.locate_in_sources(np.arange(rows))[0].reshape(config.max_steps, -1)
    found = level[:, None] + np.array([0.35, -0.5])[sources] + random.normal(0, 0.28, sources.shape)
    for step, height in spikes.items():
        found[step, 5] += height * 9
        found[step : step + 12] += height * 0.35 * np.exp(-np.arange(12) / 4)[:, None]
    return found


def write_demo_runs(
    folder: Path, data: Mapping[str, Path], *, only: Callable[[str], bool] = lambda _: True
) -> list[Path]:
    """Write two complete runs on a mixture of the datasets."""
    weights = (0.7, 0.3)
    named = [
        f"{name}={path}:{weight}"
        for (name, path), weight in zip(data.items(), weights, strict=True)
    ]
    loader = make_loader(data, weights, CONFIG)
    plans = {
        "wider": {"seed": 1, "floor": 3.05, "spikes": {1240: 1.7, 1985: 1.2}},
        "baseline": {"seed": 2, "floor": 3.3, "spikes": {870: 1.8}},
    }
    for name, plan in plans.items():
        if not only(name):
            continue
        losses = make_up_losses(loader, CONFIG, **plan)
        writer = RunWriter(folder / name, named, loader)
        for step in range(0, CONFIG.max_steps, 20):
            part = losses[step : step + 20]
            is_due = (step + 20) % 150 == 0
            val = float(losses[max(0, step - 80) : step + 20].mean()) + 0.06 if is_due else None
            writer.write(part, val_loss=val)
        writer.close()
    return [folder / name for name in plans if only(name)]
