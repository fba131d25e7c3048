"""A sound dataset to look at and to damage."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for dataset_builder, from wherever pytest starts

from dataset_builder import build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small sound dataset with several shards, and a document that spans shards."""
    build(tmp_path / "data")
    return tmp_path / "data"
