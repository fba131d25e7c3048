"""The state of a loader: its content, and the runs that it can resume."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokenmill import Loader, Mixture, Tokens
from tokenmill.errors import StateError, UsageError

NAMES = list(enumerate("abc"))
IDS = np.random.default_rng(0).integers(0, 60_000, 5_003).astype(np.uint16)


@pytest.fixture
def mixture():
    web, code = Tokens.of(np.arange(3_000)), Tokens.of(np.arange(10_000, 11_000))
    return Mixture({"web": (web, 3), "code": (code, 1)}, changes={100: {"code": 3}}, block=20)


def test_a_state_is_small_and_identifies_its_run():
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
    ],
)
def test_a_state_of_another_run_is_refused_by_name_unless_forced(change, named):
    state = Loader(Tokens.of(IDS), batch_size=3, seq_len=16, seed=5).state_dict() | {"row": 9}
    other = Loader(Tokens.of(IDS), batch_size=3, **({"seq_len": 16, "seed": 5} | change))
    (name,) = change
    with pytest.raises(StateError, match=rf"row 9 anyway, use `force=\['{name}'\]`") as caught:
        other.load_state_dict(state)
    assert named in str(caught.value)
    assert other.row == 0
    other.load_state_dict(state, force=[name])
    assert other.row == 9
    other.load_state_dict({**state, "row": 12}, force=True)
    assert other.row == 12


def test_force_accepts_what_it_names_and_nothing_else(mixture):
    state = Loader(mixture, batch_size=3, seq_len=16, seed=5).state_dict() | {"row": 9}
    changed = Tokens.of(np.arange(1, 3_001))
    other_web = Mixture(
        {"web": (changed, 3), "code": (mixture.tokens[1], 1)}, changes={100: {"code": 3}}, block=20
    )
    other = Loader(other_web, batch_size=3, seq_len=16, seed=6)
    for force in ("seed", ["seed"], ["sources"], ["seed", "sources.code"]):
        with pytest.raises(StateError, match=r"force=\['s"):
            other.load_state_dict(state, force=force)
    for force in (["seed", "sources"], ["seed", "sources.web"], {"sources", "seed"}, True):
        other.load_state_dict(state, force=force)
        assert other.row == 9
    with pytest.raises(
        UsageError, match="'sed', which is not in the state; `force` can name seq_len, seed"
    ):
        other.load_state_dict(state, force=["sed"])
    plain = Loader(changed, batch_size=3, seq_len=16, seed=6)
    with pytest.raises(StateError, match="names is"):
        plain.load_state_dict(state, force=["seed", "sources"])
    plain.load_state_dict(state, force=True)


PHASE = st.tuples(*[st.integers(0, 5)] * 2).filter(any)


@settings(max_examples=40, deadline=None)
@given(
    first=PHASE,
    past=st.dictionaries(st.integers(1, 39), PHASE, max_size=2),
    futures=st.tuples(*[st.dictionaries(st.integers(40, 90), PHASE, max_size=2)] * 2),
    row=st.integers(40, 60),
)
@example(first=(1, 1), past={}, futures=({1: (0, 1)}, {}), row=1)
def test_a_state_loads_if_only_later_rows_differ(first, past, futures, row):
    """Two runs with the same first rows; one has a third source from a later row on."""

    def make(future, extra=None):
        tokens = {name: Tokens.of(np.arange(n * 10_000, n * 10_000 + 900)) for n, name in NAMES}
        sources = {name: (tokens[name], w) for name, w in zip("ab", first, strict=True)}
        changes = {at: dict(zip("ab", w, strict=True)) for at, w in (past | future).items()}
        if extra is not None:
            sources = {"c": (tokens["c"], 0), **sources}
            changes[extra] = changes.get(extra, {}) | {"c": 1}
        data = Mixture(sources, changes=changes, block=12)
        return Loader(data, batch_size=1, seq_len=16, seed=5, prefetch=0)

    one, other = make(futures[0]), make(futures[1], extra=row)
    before = min([row, *futures[0], *futures[1]])
    for number in range(before):
        assert np.array_equal(one.batch_at(number).inputs, other.batch_at(number).inputs)
    for source, target in ((one, other), (other, one)):
        state = json.loads(json.dumps(source.state_dict() | {"row": before}))
        target.load_state_dict(state)
        assert target.row == before
    if futures[0] != futures[1]:
        last = max(futures[0].keys() ^ futures[1].keys(), default=0)
        if last:
            with pytest.raises(StateError, match="changes="):
                make(futures[1]).load_state_dict(one.state_dict() | {"row": last + 1})


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
        Loader(mixture, batch_size=3, seq_len=16).load_state_dict({**state, "row": 101})


@pytest.mark.parametrize("weights", [(0.7, 0.3), (1, 1)])
def test_a_state_with_swapped_sources_is_refused(weights):
    web, code = Tokens.of(np.arange(3_000)), Tokens.of(np.arange(10_000, 11_000))
    mixed = Mixture({"web": (web, weights[0]), "code": (code, weights[1])})
    state = Loader(mixed, batch_size=3, seq_len=16).state_dict()
    swapped = Mixture({"code": (code, weights[0]), "web": (web, weights[1])})
    with pytest.raises(StateError, match=r"names is \['web', 'code'\] in the state and \['code"):
        Loader(swapped, batch_size=3, seq_len=16).load_state_dict(json.loads(json.dumps(state)))


def test_a_state_without_the_names_of_its_sources_is_refused(mixture):
    loader = Loader(mixture, batch_size=3, seq_len=16)
    state = {**loader.state_dict(), "row": 9}
    del state["names"]
    for damaged in (state, {**state, "sources": 5}):
        with pytest.raises(StateError, match="names is None in the state"):
            loader.load_state_dict(damaged)


@pytest.mark.parametrize(
    "state",
    [{}, [], None, {"version": 2}, {"version": 1, "row": -1}, {"version": 1, "row": 1 << 63}],
)
def test_an_invalid_state_is_refused(state):
    loader = Loader(Tokens.of(IDS), batch_size=3, seq_len=16)
    with pytest.raises(StateError):
        loader.load_state_dict(state)


@pytest.mark.parametrize("version", [0, 2, "1", None])
@pytest.mark.parametrize("force", [False, True])
def test_a_state_of_an_older_or_newer_version_is_refused(version, force):
    loader = Loader(Tokens.of(IDS), batch_size=3, seq_len=16)
    state = {**loader.state_dict(), "row": 9, "version": version}
    with pytest.raises(StateError, match=rf"version {version!r}; .* reads version 1\. Resume with"):
        loader.load_state_dict(state, force=force)
    assert loader.row == 0
