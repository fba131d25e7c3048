import numpy as np
import pytest
from expected_batches import IDS

import tokenmill


@pytest.fixture
def path(tmp_path):
    np.save(tmp_path / "ids.npy", IDS)
    return tmp_path / "ids.npy"


@pytest.fixture
def tokens(path):
    """From a file, as usual: each worker maps it."""
    return tokenmill.open(path)["train"]
