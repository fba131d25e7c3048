"""TensorBoard and Weights & Biases, for those who have them: the lines of `metrics.jsonl`, there too."""

from __future__ import annotations

import importlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenmill.errors import UsageError
from tokenmill.training.config import Config
from tokenmill.training.folder import BOARD_NAME
from tokenmill.training.loop import Board


class TensorBoard:
    """Event files in the run's folder; those of steps after the one gone on from are left out."""

    def __init__(self, path: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError("`tensorboard` needs: pip install torch tensorboard") from error
        writer: Any = SummaryWriter
        self._writer = writer(str(path / BOARD_NAME), purge_step=step + 1)

    def add(self, line: dict[str, Any]) -> None:
        """One more line."""
        for name, value in line.items():
            if name == "sample":
                self._writer.add_text(name, value, line["step"])
            elif name != "step":
                self._writer.add_scalar(name, value, line["step"])

    def close(self) -> None:
        """No more lines come."""
        self._writer.close()


class WeightsAndBiases:
    """A run of the same name in the project tokenmill, which goes on with this one."""

    def __init__(self, path: Path, config: Config) -> None:
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise UsageError("`wandb` needs: pip install wandb") from error
        self._run = wandb.init(
            project="tokenmill",
            name=path.name,
            id=path.name,
            resume="allow",
            dir=str(path),
            config=asdict(config),
        )

    def add(self, line: dict[str, Any]) -> None:
        """One more line."""
        self._run.log({name: value for name, value in line.items() if name != "step"}, line["step"])

    def close(self) -> None:
        """No more lines come."""
        self._run.finish()


def open_board(name: str, path: Path, *, step: int, config: Config) -> Board:
    """The board tensorboard or wandb of the run in a folder, which goes on after a step."""
    if name == "tensorboard":
        return TensorBoard(path, step)
    if name == "wandb":
        return WeightsAndBiases(path, config)
    raise UsageError(f"there is no board {name!r}; there are tensorboard and wandb.")
