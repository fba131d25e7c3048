"""The state of a loader: what is in it, and which run it belongs to."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tokenmill import Loader, Mixture, Tokens
from tokenmill.errors import StateError

IDS = np.random.default_rng(0).integers(0, 60_000, 5_003).astype(np.uint16)


@pytest.fixture
def mixture():
    web, code = Tokens.of(np.arange(3_000)), Tokens.of(np.arange(10_000, 11_000))
    return Mixture({"web": (web, 3), "code": (code, 1)}, changes={100: {"code": 3}}, block=20)


def test_a_state_is_small_and_says_what_it_is_of():
    loader = Loader(Tokens.of(IDS), batch_size=3, seq_len=16, seed=5)
    next(loader)
    state = loader.state_dict()
    assert state["row"] == 3
    assert state["version"] == 1
    assert len(json.dumps(state)) < 400
    other = Loader(Tokens.of(IDS), batch_size=7, seq_len=16, seed=5, prefetch=0)
    other.load_state_dict(json.loads(json.dumps(state)))
    assert next(other).row == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 6}, "seed is 5 in the state and 6 here"),
        ({"seq_len": 15}, "seq_len is 16 in the state and 15 here"),
        ({"order": "sequential"}, "order is 'shuffled' in the state and 'sequential' here"),
        ({"shuffle_block": 4}, "shuffle_block is None in the state and 4 here"),
    ],
)
def test_a_state_of_another_run_is_refused_by_name_unless_forced(change, named):
    state = Loader(Tokens.of(IDS), batch_size=3, seq_len=16, seed=5).state_dict() | {"row": 9}
    other = Loader(Tokens.of(IDS), batch_size=3, **({"seq_len": 16, "seed": 5} | change))
    with pytest.raises(StateError, match="force=True") as caught:
        other.load_state_dict(state)
    assert named in str(caught.value)
    assert other.row == 0
    other.load_state_dict(state, force=True)
    assert other.row == 9


def test_a_state_of_other_data_or_another_mixture_is_refused(mixture):
    state = Loader(Tokens.of(IDS), batch_size=3, seq_len=16).state_dict()
    changed = IDS.copy()
    changed[0] += 1
    with pytest.raises(StateError, match="fingerprint"):
        Loader(Tokens.of(changed), batch_size=3, seq_len=16).load_state_dict(state)
    with pytest.raises(StateError, match=r"sources\.web"):
        Loader(mixture, batch_size=3, seq_len=16).load_state_dict(state)
    state = Loader(mixture, batch_size=3, seq_len=16).state_dict()
    mixture.phases = mixture.phases[:1]
    with pytest.raises(StateError, match="weights"):
        Loader(mixture, batch_size=3, seq_len=16).load_state_dict(state)


@pytest.mark.parametrize("weights", [(0.7, 0.3), (1, 1)])
def test_a_state_knows_whose_weights_are_which(weights):
    web, code = Tokens.of(np.arange(3_000)), Tokens.of(np.arange(10_000, 11_000))
    mixed = Mixture({"web": (web, weights[0]), "code": (code, weights[1])})
    state = Loader(mixed, batch_size=3, seq_len=16).state_dict()
    swapped = Mixture({"code": (code, weights[0]), "web": (web, weights[1])})
    with pytest.raises(StateError, match=r"names is \['web', 'code'\] in the state and \['code"):
        Loader(swapped, batch_size=3, seq_len=16).load_state_dict(json.loads(json.dumps(state)))


def test_a_state_without_names_is_read_in_the_order_of_its_sources():
    web, code = Tokens.of(np.arange(3_000)), Tokens.of(np.arange(10_000, 11_000))
    mixed = Loader(Mixture({"web": (web, 1), "code": (code, 1)}), batch_size=3, seq_len=16)
    state = {**mixed.state_dict(), "row": 9}
    del state["names"]
    mixed.load_state_dict(json.loads(json.dumps(state)))
    assert mixed.row == 9
    swapped = Loader(Mixture({"code": (code, 1), "web": (web, 1)}), batch_size=3, seq_len=16)
    with pytest.raises(StateError, match="names is"):
        swapped.load_state_dict(state)
    with pytest.raises(StateError, match="names is None"):
        mixed.load_state_dict({**state, "sources": 5})


@pytest.mark.parametrize(
    "state",
    [{}, [], None, {"version": 2}, {"version": 1, "row": -1}, {"version": 1, "row": 1 << 63}],
)
def test_what_is_no_state_is_refused(state):
    loader = Loader(Tokens.of(IDS), batch_size=3, seq_len=16)
    with pytest.raises(StateError):
        loader.load_state_dict(state)
