"""Saved states: complete, offline, equal in another process, and refused if damaged."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import (
    CONFIGURATIONS,
    TRICKY,
    make_document,
    make_small_states,
    unflatten,
    write_document,
)

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers import Tokenizer, from_state, load_tokenizer
from tokenmill.tokenizers.registry import restore

BATCH = [text.encode() for text in TRICKY]


@pytest.mark.parametrize("name", ["gpt2", "bytes", *CONFIGURATIONS])
def test_a_state_restores_the_same_tokenizer(name: str, tmp_path: Path) -> None:
    if name in ("gpt2", "bytes"):
        tokenizer = load_tokenizer(name)
    else:
        path = write_document(tmp_path, make_document(**CONFIGURATIONS[name]))
        tokenizer = load_tokenizer(path)
        path.unlink()
    again = from_state(json.loads(json.dumps(tokenizer.state())))
    assert again.fingerprint == tokenizer.fingerprint
    assert again.state() == tokenizer.state()
    for attribute in ("name", "vocab_size", "special_ids", "eot_id", "cuttable"):
        assert getattr(again, attribute) == getattr(tokenizer, attribute)
    ids, offsets = tokenizer.encode_batch(BATCH)
    assert unflatten(*again.encode_batch(BATCH)) == unflatten(ids, offsets)
    assert again.decode(ids) == tokenizer.decode(ids)


def test_golden_fingerprints(gpt2: Tokenizer) -> None:
    # Datasets contain these. If they changed, no dataset would accept its own tokenizer.
    assert gpt2.fingerprint == "15e64fd0e899018b3955a4686c9343e5"
    assert load_tokenizer("bytes").fingerprint == "e705aee7da076c63956ee1837759816e"


def test_another_process_restores_a_tokenizer_from_a_file(gpt2: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_state.json"
    path.write_text(json.dumps(gpt2.state()))
    code = (
        "import hashlib, json, pathlib, sys; from tokenmill.tokenizers import from_state\n"
        "t = from_state(json.loads(pathlib.Path(sys.argv[1]).read_text()))\n"
        "print(t.fingerprint, hashlib.sha256(t.encode_batch([b'Hello world'] * 9)[0]).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    ids = hashlib.sha256(gpt2.encode_batch([b"Hello world"] * 9)[0]).hexdigest()
    assert done.stdout.split() == [gpt2.fingerprint, ids]


def test_tokenizers_can_be_pickled(gpt2: Tokenizer) -> None:
    for tokenizer in (gpt2, *map(from_state, STATES.values())):
        ids = tokenizer.encode_batch([b"a b"])[0].tolist()
        again = pickle.loads(pickle.dumps(tokenizer))
        assert again.fingerprint == tokenizer.fingerprint
        assert again.encode_batch([b"a b"])[0].tolist() == ids


STATES = make_small_states()


@pytest.mark.parametrize("kind", STATES)
def test_small_states_are_valid(kind: str) -> None:
    assert from_state(STATES[kind]).encode_batch([b"a"])[1].tolist() == [0, 1]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places in a state to damage: all in short lists and dicts, a few in long ones."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in list(value)[:12]:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for key in range(min(3, len(value))):
            yield from places(value[key], (*path, key))


PLACES = [(kind, path) for kind, state in STATES.items() for path in places(state)]
JUNK = [None, 3, -1, 2**40, 1.5, True, "x", "", "a b", [], [3], [None], {}, {"type": "x"}, {"a": 1}]


@given(st.sampled_from(PLACES), st.sampled_from(JUNK), st.booleans())
@settings(deadline=None, max_examples=400)
def test_a_damaged_state_is_refused_or_harmless(
    place: tuple[str, tuple[Any, ...]], junk: Any, remove: bool
) -> None:
    kind, path = place
    state = copy.deepcopy(STATES[kind])
    parent = state
    for key in path[:-1]:
        parent = parent[key]
    if remove:
        del parent[path[-1]]
    else:
        parent[path[-1]] = junk
    try:
        tokenizer = restore(state)  # without a child, which must not be needed here
    except TokenizerError:
        return
    ids, _ = tokenizer.encode_batch([b"a b\n", b"x"])
    assert ids.max(initial=0) < tokenizer.vocab_size
    assert len(tokenizer.fingerprint) == 32


@pytest.mark.parametrize("state", [None, [], "gpt2", {}, {"kind": None}, {"kind": "os.system"}])
def test_values_that_are_not_states_are_refused(state: Any) -> None:
    with pytest.raises(TokenizerError):
        from_state(state)
