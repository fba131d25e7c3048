"""Invalid settings, and data that cannot be read: which error comes, and when."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest

import tokenmill
from tokenmill import Loader, Mixture, Tokens
from tokenmill.errors import DatasetError, UsageError

IDS = np.random.default_rng(0).integers(0, 60_000, 5_003).astype(np.uint16)


def test_a_missing_shard_raises_an_error_at_its_rows(tmp_path):
    for number in range(40):
        np.full(1_000, number, "<u2").tofile(tmp_path / f"train_{number:03}.bin")
    tokens = tokenmill.open(tmp_path, dtype="uint16")["train"]
    (tmp_path / "train_030.bin").unlink()
    mixture = Mixture({"a": (tokens, 1), "b": (Tokens.of(np.zeros(5_000, "<u2")), 1)}, block=10)
    loader = Loader(mixture, batch_size=4, seq_len=50, order="sequential")
    given = []
    with pytest.raises(DatasetError, match=r"train_030\.bin is missing"):
        given.extend(batch.row for batch in loader)
    assert given[-1] > 4 * 250


def test_an_id_that_does_not_fit_the_dtype_raises_an_error():
    ids = np.zeros(1_000, np.int64)
    ids[500] = 70_000
    for contiguous in (False, True):
        loader = Loader(
            Tokens.of(ids), batch_size=8, seq_len=10, order="sequential", dtype=np.uint16,
            contiguous=contiguous,
        )  # fmt: skip
        for _ in range(6):
            next(loader)
        with pytest.raises(DatasetError, match="70000"):
            next(loader)
        with pytest.raises(DatasetError, match="70000"):  # again, and it does not hang
            next(loader)
        assert loader.row == 48


def test_a_truncated_file_raises_an_error(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, IDS)
    loader = Loader(tokenmill.open(path)["train"], batch_size=4, seq_len=16)
    with path.open("r+b") as file:
        file.truncate(1_000)
    with pytest.raises(DatasetError, match=r"x\.npy"):
        next(loader)


CUT = """
import os, pickle, sys
import tokenmill
from tokenmill import Loader, Mixture

folder, how = sys.argv[1:]
whole, part = (tokenmill.open(f"{folder}/{name}.npy")["train"] for name in ("whole", "part"))
data = {
    "mapped": lambda: part,
    "unmapped": part.unmapped,
    "pickled": lambda: pickle.loads(pickle.dumps(part.unmapped())),
    "in memory": part.in_memory,
    "mixture": Mixture({"a": (whole, 1), "b": (part, 1)}).unmapped,
    "half": lambda: Mixture({"a": (whole, 1), "b": (part.unmapped(), 1)}),
}[how]()
loader = Loader(data, batch_size=8, seq_len=512, prefetch=0)
next(loader)
os.truncate(f"{folder}/part.npy", 4096)
try:
    for _ in range(50):
        next(loader)
    print("read")
except tokenmill.errors.DatasetError as error:
    print(error)
"""


@pytest.mark.parametrize("how", ["mapped", "unmapped", "pickled", "in memory", "mixture", "half"])
def test_a_file_that_is_cut_while_it_is_read_kills_only_through_a_map(tmp_path, how):
    for name in ("whole", "part"):
        np.save(tmp_path / f"{name}.npy", np.resize(IDS, 100_000))
    done = subprocess.run(
        [sys.executable, "-c", CUT, tmp_path, how], capture_output=True, text=True, check=False
    )
    if how == "mapped":
        assert done.returncode == -signal.SIGBUS
    elif how == "in memory":
        assert (done.returncode, done.stdout) == (0, "read\n")
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("part.npy is 196,032 bytes too short: expected 200,128")


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
@pytest.mark.parametrize("prefetch", [None, 0, 3])
def test_readable_batches_come_before_the_error(tmp_path, prefetch, order):
    header = np.zeros(256, "<i4")
    for number in range(41):
        header[:3] = 20240520, 1, 100
        data = header.tobytes() + IDS[number * 100 : (number + 1) * 100].astype("<u2").tobytes()
        (tmp_path / f"x_{number:06}.bin").write_bytes(data)
    tokens = tokenmill.open(tmp_path)["train"]
    (tmp_path / "x_000020.bin").unlink()
    loader = Loader(tokens, batch_size=2, seq_len=16, order=order, prefetch=prefetch, seed=2)
    starts = loader.rows.locate(np.arange(200))
    bad = int(np.flatnonzero((starts < 2_100) & (starts + 17 > 2_000))[0])
    assert bad > 20
    with pytest.raises(DatasetError, match="x_000020"):  # noqa: PT012
        for batch in iter(lambda: next(loader), None):
            assert np.array_equal(batch.inputs[0], IDS[starts[batch.row] :][:16])
    assert loader.row == bad // 2 * 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "`batch_size` is 0"),
        ({"seq_len": 0}, "`seq_len` is 0"),
        ({"seq_len": 5_003}, "5,003 tokens, too few"),
        ({"prefetch": -1}, "`prefetch` is -1"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"rank": 1}, "together"),
        ({"limit_rows": 1, "limit_epochs": 1}, "only one of"),
        ({"limit_rows": -1}, "-1"),
        ({"limit_rows": 1e3}, "whole number"),
        ({"limit_tokens": 1e9}, "whole number"),
        ({"limit_epochs": float("nan")}, "`limit_epochs` is nan"),
        ({"limit_epochs": float("inf")}, "`limit_epochs` is inf"),
        ({"batch_size": 4.0}, "whole number"),
        ({"seq_len": 4.0}, "whole number"),
        ({"dtype": np.float32}, "float32"),
    ],
)
def test_invalid_settings_are_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        Loader(Tokens.of(IDS), **({"batch_size": 4, "seq_len": 16} | wrong))


def test_data_other_than_a_split_or_mixture_is_refused():
    with pytest.raises(UsageError, match=r'data\["train"\]'):
        Loader(IDS, batch_size=4, seq_len=16)


def test_the_name_of_a_source_must_be_a_string():  # as in JSON, which holds the state
    with pytest.raises(UsageError, match="the name of a source is 1"):
        Mixture({1: (Tokens.of(IDS), 1)})


@pytest.mark.parametrize("source", [Tokens.of(IDS), IDS, (IDS, 1), (Tokens.of(IDS),)])
def test_a_source_must_be_a_pair_of_tokens_and_weight(source):
    with pytest.raises(UsageError, match="pair of tokens and weight"):
        Mixture({"a": source})


def test_unknown_documents_raise_an_error_before_the_first_batch():
    known, unknown = Tokens.of(np.arange(100), eot_id=0), Tokens.of(np.arange(100))
    mixed = Mixture({"a": (known, 1), "b": (unknown, 1)})
    for data in (unknown, mixed):
        with pytest.raises(DatasetError, match="`eot_id=ID`"):
            Loader(data, batch_size=2, seq_len=9, documents=True)
