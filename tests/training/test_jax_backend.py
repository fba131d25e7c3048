"""JAX's backend: exact states, and the same losses on any devices and processes."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax_program
import numpy as np
import pytest
from jax_program import CONFIG, LENGTH, ROWS, SHAPE, make_rows

from tokenmill.errors import StateError, UsageError
from tokenmill.training.backend import StepRows
from tokenmill.training.backends import open_backend
from tokenmill.training.model import first_values

PROGRAM = Path(jax_program.__file__)


def start(arguments, *, processes, flags=""):
    """Run Python in some connected processes; returns what the first one prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    several = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(processes)}
    started = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env={
                **os.environ,
                "XLA_FLAGS": flags,
                "JAX_PLATFORMS": "cpu",
                **({**several, "JAX_PROCESS_ID": str(process)} if processes > 1 else {}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(processes)
    ]
    printed = []
    for process in started:
        printed.append(process.communicate(timeout=240)[0])
        assert process.returncode == 0, printed[-1]
    return printed[0]


def run(begin, first, last, keep, *, processes=1, devices=1, flags=""):
    """What each process writes, and the state after the last step."""
    arguments = [PROGRAM, begin, str(first), str(last), keep]
    flags = f"--xla_force_host_platform_device_count={devices} {flags}"
    start(arguments, processes=processes, flags=flags)
    found = [dict(np.load(f"{keep}-{process}.npz")) for process in range(processes)]
    return found, dict(np.load(f"{keep}-state.npz"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Six steps of one device: the prefix of the files, the results, and the state."""
    keep = tmp_path_factory.mktemp("jax") / "whole"
    (found,), state = run("-", 0, 6, keep)
    assert len(state) == 8 + 3 * 2 + 6  # parameters, AdamW's of two of them, Muon's of the others
    assert found["losses"].shape == (6, ROWS)
    return keep, found, state


def test_a_new_process_continues_bit_for_bit(tmp_path, uninterrupted):
    keep, whole, expected = uninterrupted
    (found,), state = run(f"{keep}-half.npz", 3, 6, tmp_path / "rest")
    assert np.array_equal(found["losses"], whole["losses"][3:])
    assert np.array_equal(found["norms"], whole["norms"][3:])
    assert np.array_equal(found["evaluated"], whole["evaluated"])
    assert list(state) == list(expected)
    for name, value in expected.items():
        assert state[name].dtype == value.dtype == np.float32
        assert np.array_equal(state[name], value), name


@pytest.mark.parametrize(("processes", "devices"), [(1, 4), (2, 2)])
def test_several_devices_and_processes_match_one_device(
    tmp_path, uninterrupted, processes, devices
):
    _, whole, expected = uninterrupted
    every, state = run(
        "-",
        0,
        6,
        tmp_path / "run",
        processes=processes,
        devices=devices,
        flags="--xla_backend_optimization_level=0",  # to compile quickly
    )
    for rank, found in enumerate(every):
        assert str(found["device"]).startswith("4 x ")
        np.testing.assert_allclose(found["losses"], whole["losses"], rtol=0, atol=1e-5)
        np.testing.assert_allclose(found["norms"], whole["norms"], rtol=1e-4)
        assert found["evaluated"].shape == (5 - rank, LENGTH)
        thirds = sum(rank + 1 / 3 for rank in range(processes))
        rows = sum(5 - rank for rank in range(processes))
        assert found["total"].tolist() == [[thirds, rows]]
    np.testing.assert_allclose(every[0]["evaluated"], whole["evaluated"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(every[0]["logits"], whole["logits"], rtol=0, atol=1e-4)
    for name, value in expected.items():
        np.testing.assert_allclose(state[name], value, rtol=0, atol=1e-4, err_msg=name)


@pytest.fixture(scope="module")
def backend():
    """A model that takes all rows of a step at once."""
    return open_backend("jax", replace(CONFIG, micro_batch=ROWS), SHAPE, first_values(SHAPE, 1))


def test_micro_batches_change_losses_by_rounding_only(backend, uninterrupted):
    _, whole, _ = uninterrupted
    for step in range(6):
        backend.step(make_rows(step), 1.0)
    losses = [report.row_losses for report in backend.report()]
    np.testing.assert_allclose(losses, whole["losses"], rtol=0, atol=1e-5)


def test_a_stop_between_micro_batches_drops_the_step():
    backend = open_backend("jax", replace(CONFIG, micro_batch=1), SHAPE, first_values(SHAPE, 1))
    before = {name: value.tobytes() for name, value in backend.parameters().items()}
    asked = []

    def pause(done, count):
        asked.append((done, count))
        return done == 2

    assert not backend.step(make_rows(0), 1.0, pause)
    assert asked == [(0, ROWS), (1, ROWS), (2, ROWS)]
    assert backend.report() == []
    assert {name: value.tobytes() for name, value in backend.parameters().items()} == before


def test_the_callers_memory_may_be_reused(backend):
    begin = backend.parameters(), backend.optimizer_state()
    losses = []
    for write in (False, True):
        given = [{name: value.copy() for name, value in part.items()} for part in begin]
        backend.load(*given)
        backend.report()
        rows = make_rows(5)
        backend.step(rows, 1.0)
        if write:
            for array in (rows.inputs, rows.targets, rows.documents):
                array[:] = 0
            for part in given:
                for array in part.values():
                    array[...] = 7.0
        backend.step(make_rows(6), 1.0)
        losses.append([report.row_losses for report in backend.report()])
    assert np.array_equal(*losses)


def test_copies_of_the_state_do_not_change(backend):
    parts = backend.parameters(), backend.optimizer_state()
    before = [{name: value.tobytes() for name, value in part.items()} for part in parts]
    backend.step(make_rows(7), 1.0)
    backend.report()
    assert [{name: value.tobytes() for name, value in part.items()} for part in parts] == before
    assert backend.parameters()["head"].tobytes() != before[0]["head"]


def test_attention_stays_inside_documents(backend):
    rows = make_rows(8)
    whole = np.zeros_like(rows.documents)
    halves = whole.copy()
    halves[:, LENGTH // 2 :] = 1
    changed = rows.inputs.copy()
    changed[:, : LENGTH // 2] = 1

    def second_half(inputs, documents):
        losses = backend.evaluate(
            StepRows(inputs=inputs, targets=rows.targets, documents=documents)
        )
        return losses[:, LENGTH // 2 :]

    assert np.array_equal(second_half(rows.inputs, halves), second_half(changed, halves))
    assert not np.allclose(second_half(rows.inputs, whole), second_half(changed, whole))


def test_an_id_outside_the_vocabulary_makes_the_loss_nan(backend):
    rows = make_rows(9)
    for name in ("inputs", "targets"):
        wrong = getattr(rows, name).copy()
        wrong[3, LENGTH - 1] = SHAPE.vocab
        losses = backend.evaluate(replace(rows, **{name: wrong}))
        assert np.isnan(losses[3, LENGTH - 1])
        assert np.isfinite(np.delete(losses, 3, axis=0)).all()


def test_bfloat16_is_near_float32(uninterrupted):
    _, whole, _ = uninterrupted
    backend = open_backend("jax", replace(CONFIG, dtype="bfloat16"), SHAPE, first_values(SHAPE, 1))
    for step in range(6):
        backend.step(make_rows(step), 1.0)
    losses = np.array([report.row_losses for report in backend.report()])
    assert 1e-4 < np.abs(losses - whole["losses"]).max() < 0.05
    assert all(value.dtype == np.float32 for value in backend.parameters().values())


def test_a_state_that_does_not_fit_is_refused_by_name(backend):
    parameters, state = backend.parameters(), backend.optimizer_state()
    less = {name: value for name, value in state.items() if name != "head.exp_avg"}
    with pytest.raises(StateError, match=r"head\.exp_avg is missing"):
        backend.load(parameters, less)
    with pytest.raises(StateError, match=r"head\.momentum_buffer is .* but unknown"):
        backend.load(parameters, {**state, "head.momentum_buffer": state["head.exp_avg"]})
    with pytest.raises(StateError, match=r"parameter head is \(1, 32\)"):
        backend.load({**parameters, "head": parameters["head"][:1]}, state)
    adamw = open_backend("jax", replace(CONFIG, optimizer="adamw"), SHAPE, parameters)
    with pytest.raises(StateError, match="the optimizer that wrote the checkpoint"):
        adamw.load(parameters, state)


def test_processes_without_a_coordinator_address_are_refused(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="JAX_COORDINATOR_ADDRESS=HOST:PORT"):
        open_backend("jax", CONFIG, SHAPE, first_values(SHAPE, 1))


def test_connected_processes_choose_the_default_settings(tmp_path):
    text = tmp_path / "digits.txt"
    text.write_text("0123456789" * 1000)
    flags = (
        "--backend jax --tokenizer bytes --layers 1 --heads 2 --width 16 --seq-len 16 "
        "--batch-tokens 64 --max-steps 2"
    ).split()
    paths = ["--input-file", text, "--runs", tmp_path / "runs"]
    printed = start(["-m", "tokenmill.cli", "train", *paths, *flags], processes=2)
    assert "Training on the CPU with the preset `laptop`" in printed
    assert (tmp_path / "runs" / "digits" / "checkpoints" / "step_0000002").is_dir()
