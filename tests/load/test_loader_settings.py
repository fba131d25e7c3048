"""Settings check themselves, do not change, and identify a run in its state."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest

from tokenmill import Loader, Tokens
from tokenmill.load.settings import LoaderArguments, LoaderSettings, RowSettings


def test_settings_are_normalized_and_frozen() -> None:
    arguments = {"batch_size": np.int64(2), "seq_len": 4, "dtype": "int32"}
    settings = LoaderSettings(**arguments, rank=1, world_size=3)
    assert (type(settings.batch_size), settings.dtype) == (int, np.dtype(np.int32))
    assert settings.global_batch == 6
    with pytest.raises(FrozenInstanceError):
        settings.seed = 1  # type: ignore[misc]


def test_arguments_and_settings_have_the_same_names() -> None:
    names = {field.name for field in fields(LoaderSettings)}
    assert names == LoaderArguments.__annotations__.keys() | {"documents"}


def test_a_state_has_the_settings_of_rows_and_no_others() -> None:
    loader = Loader(Tokens.of(range(100)), batch_size=2, seq_len=4, seed=7, order="blocks")
    state = json.loads(json.dumps(loader.state_dict()))
    assert state.items() >= loader.settings.identity.items()
    found = {field.name for field in fields(LoaderSettings)} & state.keys()
    assert found == {field.name for field in fields(RowSettings)}


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(TypeError, match="'sed'"):
        Loader(Tokens.of(range(100)), batch_size=2, seq_len=4, sed=7)  # type: ignore[call-overload]
