"""Checkpoints are complete or absent, damaged ones are skipped by name, the newest and best stay."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tokenmill.errors import StateError
from tokenmill.storage.files import is_temporary
from tokenmill.training.checkpoint_files import NotFiniteError, RunState
from tokenmill.training.checkpoints import Checkpoints, refuse_other_run
from tokenmill.training.config import Config
from tokenmill.training.model import first_values, make_shape, optimizer_shapes

CONFIG = Config(layers=1, heads=1, width=4, seq_len=8, batch_tokens=64)
SHAPE = make_shape(62, CONFIG)
STATE = RunState(
    step=100,
    row=800,
    loader={"version": 1, "row": 800},
    vocab=62,
    eot_id=61,
    shape=asdict(SHAPE),
    config=asdict(CONFIG),
    backend="torch",
    fingerprints={"train": "aaaa", "tokenizer": "bbbb"},
    val_loss=None,
)
MODEL = first_values(SHAPE, 1)
OPTIMIZER = {
    name: np.full(size, 7, np.float32)
    for name, size in optimizer_shapes(SHAPE, CONFIG.optimizer).items()
}


def at_step(step: int, **changes: Any) -> RunState:
    loader = {"version": 1, "row": 8 * step}
    return msgspec.structs.replace(STATE, step=step, row=8 * step, loader=loader, **changes)


def write(folder: Path, *steps: int, losses: dict[int, float] | None = None, keep: int = 9) -> None:
    for step in steps:
        state = at_step(step, val_loss=(losses or {}).get(step))
        Checkpoints(folder).write(state, MODEL, OPTIMIZER, keep=keep)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_arrays_round_trip_bit_for_bit(tmp_path: Path, data: st.DataObject) -> None:
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
    held = {
        name: data.draw(arrays.arrays(np.float32, value.shape, elements=finite, fill=finite))
        for name, value in list(MODEL.items())[-2:]
    }
    Checkpoints(tmp_path).write(STATE, MODEL | held, OPTIMIZER, keep=1)
    found = Checkpoints(tmp_path).newest()
    assert found is not None
    assert found.state == STATE
    for there, here in (
        (found.parameters(), MODEL | held),
        (found.optimizer_state(), OPTIMIZER),
    ):
        assert there.keys() == here.keys()
        for name, array in here.items():
            assert (there[name].dtype, there[name].shape) == (array.dtype, array.shape)
            assert there[name].tobytes() == array.tobytes()


def test_other_programs_can_read_the_arrays(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path).write(STATE, MODEL, OPTIMIZER, keep=1)
    for name, arrays_there in (("model", MODEL), ("optimizer", OPTIMIZER)):
        found = safetensors.numpy.load_file(path / f"{name}.safetensors")
        assert found.keys() == arrays_there.keys()
        assert all(np.array_equal(found[one], arrays_there[one]) for one in found)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["model", "optimizer"])
def test_a_value_that_is_not_finite_is_never_written(
    tmp_path: Path, where: str, number: float
) -> None:
    write(tmp_path, 100)
    held = {"model": dict(MODEL), "optimizer": dict(OPTIMIZER)}
    name = list(held[where])[-1]
    held[where][name] = held[where][name].copy()
    held[where][name].flat[-1] = number
    with pytest.raises(NotFiniteError, match=f"{name} has a value that is NaN or infinite"):
        Checkpoints(tmp_path).write(at_step(200), held["model"], held["optimizer"], keep=1)
    assert os.listdir(tmp_path) == ["step_0000100"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "emptied", "removed", "one bit", "longer"])
def test_damaged_checkpoint_is_named_and_the_one_before_used(
    tmp_path: Path, name: str, damage: str
) -> None:
    write(tmp_path, 100, 200)
    path = tmp_path / "step_0000200" / name
    data = path.read_bytes()
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(
            {"cut": data[:-5], "emptied": b"", "one bit": changed, "longer": data + b"{}"}[damage]
        )
    warnings: list[str] = []
    found = Checkpoints(tmp_path).newest(warnings.append)
    assert found is not None
    assert found.state.step == 100
    assert len(warnings) == 1
    assert str(tmp_path / "step_0000200") in warnings[0]
    assert name in warnings[0]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_flipped_bit_is_detected(tmp_path: Path, data: st.DataObject) -> None:
    if not tmp_path.joinpath("step_0000100").exists():
        write(tmp_path, 100)
    name = data.draw(st.sampled_from(["model.safetensors", "optimizer.safetensors", "state.json"]))
    path = tmp_path / "step_0000100" / name
    sound = path.read_bytes()
    changed = bytearray(sound)
    changed[data.draw(st.integers(0, len(sound) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(changed)
    try:
        with pytest.raises(StateError):
            Checkpoints(tmp_path).newest()
    finally:
        path.write_bytes(sound)


def test_foreign_incomplete_and_renamed_checkpoints_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, 100, 200)
    later = tmp_path / "step_0000300"
    shutil.copytree(tmp_path / "step_0000200", later)  # another step's
    other = tmp_path / "step_0000400"
    other.mkdir()
    (other / "state.json").write_bytes(orjson.dumps({"version": 1}))
    (tmp_path / "step_0000500").mkdir()
    temporary = tmp_path / "step_0000600.123.tmp"
    shutil.copytree(tmp_path / "step_0000200", temporary)
    (tmp_path / "notes").mkdir()
    for digits in ("٠٠٠٠٠٠٧", "9" * 200):  # not ASCII; more than any step has
        shutil.copytree(tmp_path / "step_0000200", tmp_path / f"step_{digits}")
    warnings: list[str] = []
    found = Checkpoints(tmp_path).newest(warnings.append)
    assert found is not None
    assert found.state.step == 200
    assert [warning.split()[2].split("/")[-1].rstrip(":") for warning in warnings] == [
        "step_0000500",
        "step_0000400",
        "step_0000300",
    ]
    assert "state.json is missing" in warnings[0]
    assert "version 1, but this tokenmill reads 2" in warnings[1]
    assert "belongs to step 200" in warnings[2]
    assert is_temporary(temporary.name)  # so that claiming the folder removes it


def test_only_damaged_checkpoints_are_an_error_and_no_checkpoint_is_not(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "no").newest() is None
    write(tmp_path, 100)
    (tmp_path / "step_0000100" / "model.safetensors").unlink()
    with pytest.raises(StateError, match=r"None of the 1 checkpoints .* `restart=True`"):
        Checkpoints(tmp_path).newest()


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    losses=st.lists(st.none() | st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=7),
    keep=st.integers(1, 3),
)
def test_the_newest_and_the_best_are_kept(
    tmp_path: Path, losses: list[float | None], keep: int
) -> None:
    shutil.rmtree(tmp_path)
    known = {step: loss for step, loss in enumerate(losses, 1) if loss is not None}
    write(tmp_path, *range(1, len(losses) + 1), losses=known, keep=keep)
    expected = set(range(max(1, len(losses) - keep + 1), len(losses) + 1))
    if known:
        first_best = min(known, key=lambda step: (known[step], step))
        expected.add(first_best)
        found = Checkpoints(tmp_path).best()
        assert found is not None
        assert found.state.val_loss == known[first_best]
    assert sorted(os.listdir(tmp_path)) == [f"step_{step:07}" for step in sorted(expected)]


def test_a_damaged_checkpoint_is_overwritten(tmp_path: Path) -> None:
    write(tmp_path, 100, 200, 300)
    (tmp_path / "step_0000200" / "state.json").write_text("{")
    (tmp_path / "step_0000300" / "state.json").write_text("{")
    write(tmp_path, 200)
    found = Checkpoints(tmp_path).newest()
    assert found is not None
    assert found.state.step == 200
    assert sorted(os.listdir(tmp_path)) == ["step_0000100", "step_0000200", "step_0000300"]


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, 100)
    before = (tmp_path / "step_0000100" / "state.json").read_bytes()
    broken = OPTIMIZER | {"a": np.ones(3, np.complex256)}  # no such dtype in safetensors
    with pytest.raises(Exception, match="complex256"):
        Checkpoints(tmp_path).write(STATE, MODEL, broken, keep=1)
    assert os.listdir(tmp_path) == ["step_0000100"]
    assert (tmp_path / "step_0000100" / "state.json").read_bytes() == before
    assert Checkpoints(tmp_path).newest() is not None


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"fingerprints": {"train": "cccc", "tokenizer": "bbbb"}}, "train: aaaa then, cccc now"),
        ({"fingerprints": {"train": "aaaa", "tokenizer": "d"}}, "tokenizer: bbbb then, d now"),
        ({"fingerprints": {"train": "aaaa"}}, "tokenizer: bbbb then, none now"),
        ({"shape": STATE.shape | {"layers": 3}}, "layers: 1 then, 3 now"),
        ({"backend": "jax"}, "the backend: torch then, jax now"),
        ({"config": STATE.config | {"optimizer": "adamw"}}, "the optimizer: muon then, adamw now"),
    ],
)
def test_another_run_is_refused_by_name_with_both_values(other: dict, text: str) -> None:
    with pytest.raises(StateError) as refused:
        refuse_other_run(STATE, msgspec.structs.replace(STATE, **other), "What to do.")
    assert text in str(refused.value)
    assert str(refused.value).endswith("\n  What to do.")
    assert str(refused.value).count(" then, ") == 1


def test_other_validation_data_is_refused_by_the_checksums_of_its_manifest() -> None:
    one, other, cut = (
        msgspec.structs.replace(STATE, fingerprints={**STATE.fingerprints, "val": identity})
        for identity in ("sample:cut:sum", "sample:cut:other", "sample:other:other")
    )
    refuse_other_run(one, cut, "")  # the same tokens in shards of another size
    with pytest.raises(StateError, match="the data of val: sample:cut:sum then, sample:cut:other"):
        refuse_other_run(one, other, "")


def test_settings_that_may_change_are_not_refused() -> None:
    changed = msgspec.structs.replace(
        STATE, config={**STATE.config, "learning_rate": 1.0}, step=5, row=9
    )
    refuse_other_run(STATE, changed, "")
    assert changed != STATE


def test_another_order_of_a_mixture_is_refused() -> None:
    weights = {"weights": [[0, [0.7, 0.3]]]}
    one, other = (
        msgspec.structs.replace(STATE, loader={"names": names, **weights})
        for names in (["web", "code"], ["code", "web"])
    )
    refuse_other_run(one, one, "")
    with pytest.raises(StateError, match=r"web 0\.7, code 0\.3 then, code 0\.7, web 0\.3 now"):
        refuse_other_run(one, other, "")


def test_files_have_the_permissions_of_the_folder(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path).write(STATE, MODEL, OPTIMIZER, keep=1)
    modes = {file.stat().st_mode & 0o777 for file in path.iterdir()}
    assert modes == {path.stat().st_mode & 0o666}
