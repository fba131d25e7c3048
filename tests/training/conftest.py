"""Fixtures of tests that train."""

from __future__ import annotations

from typing import Any

import pytest
from run_fixtures import CONFIG, make_data, results

from tokenmill.training.data import RunData
from tokenmill.training.run import train


@pytest.fixture(scope="module")
def one_thread() -> None:
    pytest.importorskip("torch").set_num_threads(1)


@pytest.fixture(scope="session")
def data() -> RunData:
    return make_data()


@pytest.fixture(scope="session")
def uninterrupted(data: RunData, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("torch").set_num_threads(1)
    runs = tmp_path_factory.mktemp("uninterrupted")
    assert train(data, name="a", config=CONFIG, runs=runs).step == 20
    return results(runs / "a")
