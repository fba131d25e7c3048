"""Files of losses: what is read, what is refused, and what is asked for."""

from __future__ import annotations

import json
import pickle
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenmill.errors import TokenmillError
from tokenmill.inspect.spikes import losses
from tokenmill.inspect.spikes.losses import read_losses

VALUES = [4.5, float("nan"), float("inf"), 2.25]


def same(found, expected=VALUES) -> bool:
    return np.array_equal(np.asarray(found, np.float64), np.array(expected), equal_nan=True)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4", ">f8"])
def test_npy_of_any_float_is_mapped(tmp_path, dtype):
    np.save(tmp_path / "a.npy", np.array(VALUES, dtype))
    found = read_losses(tmp_path / "a.npy")
    assert same(found.values)
    assert (found.per, found.numbers) == (None, None)


def test_npy_with_two_dimensions_has_rows_of_steps(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6.0).reshape(2, 3))
    found = read_losses(tmp_path / "a.npy")
    assert (found.per, found.values.tolist()) == ("row", [0, 1, 2, 3, 4, 5])


def test_raw_floats_are_read(tmp_path):
    (tmp_path / "a.f32").write_bytes(np.array(VALUES, "<f4").tobytes())
    assert same(read_losses(tmp_path / "a.f32").values)


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json"])
def test_json_lines_are_read_as_python_writes_them(tmp_path, name):
    lines = [json.dumps({"step": n, "loss": value, "lr": 1}) for n, value in enumerate(VALUES)]
    (tmp_path / name).write_text("\n\n".join(lines))
    found = read_losses(tmp_path / name)
    assert same(found.values)
    assert (found.per, found.numbers.tolist(), found.notes) == ("step", [0, 1, 2, 3], ())


def test_lines_may_be_sparse_unordered_and_repeated(tmp_path):
    pairs = [(30, 3.0), (10, 1.0), (20, 9.0), (20, 2.0)]
    text = "".join(f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in pairs)
    (tmp_path / "a.jsonl").write_text(text + '{"step": 40, "val_loss": 4}\n')
    found = read_losses(tmp_path / "a.jsonl")
    assert (found.numbers.tolist(), found.values.tolist()) == ([10, 20, 30], [1, 2, 3])
    assert "repeats 1 number" in found.notes[1]
    assert "1 line of" in found.notes[0]


def test_lines_with_a_step_and_a_row_need_a_choice(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"step": 1, "row": 7, "loss": 2}\n')
    with pytest.raises(TokenmillError, match="per='row'"):
        read_losses(tmp_path / "a.jsonl")
    assert read_losses(tmp_path / "a.jsonl", per="row").numbers.tolist() == [7]
    assert read_losses(tmp_path / "a.jsonl", per="step").numbers.tolist() == [1]


def test_lines_may_have_only_a_loss(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"loss": 2}\n{"loss": 1e300}\n')
    found = read_losses(tmp_path / "a.jsonl")
    assert (found.values.tolist(), found.per, found.numbers) == ([2, float("inf")], None, None)


class Trap:
    def __reduce__(self):
        return exec, ("raise SystemExit('loaded a pickle')",)


def header(text: str, version: int = 1) -> bytes:
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.npy", b"\x93NUMPY", "no readable .npy header"),
        ("a.npy", header("(" * 5000), "no readable .npy header"),
        ("a.npy", header("{'descr': '<f4', 'fortran_order': False, 'shape': (9,)}"), "cut short"),
        (
            "a.npy",
            header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1)}") + b"1234",
            "cut short",
        ),
        (
            "a.npy",
            header("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 900 + ",)}"),
            "cut short",
        ),
        ("a.npy", header("{'descr': '<i4', 'fortran_order': False, 'shape': (0,)}"), "int32"),
        ("a.npy", header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"), "objects"),
        ("a.f32", b"12345", "not a multiple of 4"),
        ("a.f32", b"", "no losses"),
        ("a.jsonl", b"", "no losses"),
        ("a.jsonl", b"[" * 60_000, "line 1 is not a JSON object"),
        ("a.jsonl", b"x" * 70_000, "line 1 is longer"),
        ("a.jsonl", b'{"loss": "high"}', "line 1 is not a JSON object"),
        ("a.jsonl", b'{"loss": 1}\n{"loss": {"a": NaN}}', "line 2 is not a JSON object"),
        ("a.jsonl", b'{"loss": NaN, "step": ' + b"9" * 5000 + b"}", "line 1 is not a JSON object"),
        ("a.jsonl", b'{"loss": 1, "step": -1}', "step -1 is invalid"),
        ("a.jsonl", b'{"loss": 1, "row": 4611686018427387904}', "row 4611686018427387904"),
        ("a.csv", b"1,2", r"expected \.f32"),
    ],
)
def test_what_cannot_be_read_is_an_error(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TokenmillError, match=words):
        read_losses(tmp_path / name)


def test_no_pickle_is_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.array([Trap()]), allow_pickle=True)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Trap()))
    for name in ("a.npy", "b.npy"):
        with pytest.raises(TokenmillError):
            read_losses(tmp_path / name)


def test_json_lines_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(losses, "MOST_LINES", 3)
    (tmp_path / "a.jsonl").write_text('{"loss": 1}\n' * 4)
    with pytest.raises(TokenmillError, match="more than 3 losses"):
        read_losses(tmp_path / "a.jsonl")


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.binary(max_size=300), st.sampled_from(["a.npy", "a.f32", "a.jsonl"]), st.booleans())
def test_no_bytes_crash(tmp_path, data, name, is_npy):
    (tmp_path / name).write_bytes((b"\x93NUMPY\x01\x00" if is_npy else b"") + data)
    with suppress(TokenmillError):
        assert len(read_losses(tmp_path / name).values)
