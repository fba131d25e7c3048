"""`Trainer` and Accelerate, with real processes: every row once, resumed exactly, labels unshifted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from page_programs import (
    CPU,
    assert_same,
    expected_rows,
    make_corpus,
    read_program,
    run,
    take_rows,
)

import tokenmill
from tokenmill.huggingface import TokenRows

HERE = Path(__file__).parent


@pytest.mark.parametrize("title", ["Trainer", "Accelerate"])
def test_the_documented_program_sees_every_row_once_despite_a_crash(tmp_path, title):
    assert make_corpus(tmp_path) == 80  # in steps of 4 rows on each of 2 processes, 10 an epoch
    program = read_program(title)
    run(tmp_path, program, processes=2, crash_at=18)
    crashed = [rows[:15] for rows in take_rows(tmp_path, 2)]  # to the last checkpoint
    run(tmp_path, program, processes=2)
    resumed = take_rows(tmp_path, 2)
    taken = [before + after for before, after in zip(crashed, resumed, strict=True)]
    assert_same(taken, expected_rows(tmp_path, 2, batch_size=4, steps=20))
    for epoch in (slice(0, 10), slice(10, 20)):
        seen = {row.tobytes() for rows in taken for batch in rows[epoch] for row in batch}
        assert len(seen) == 80


def launch(program, folder, processes=1, environment=CPU):
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    result = subprocess.run(
        [*command, HERE / program, folder],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The output of accelerate_program.py on each of two ranks."""
    folder = tmp_path_factory.mktemp("accelerate")
    np.save(folder / "ids.npy", np.arange(64 * 4 + 1, dtype=np.uint16))
    launch("accelerate_program.py", folder, processes=2)
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in (0, 1)]


def run_order(rows):
    """The windows of the first rows of the run, from `tokenmill.Loader`."""
    tokens = tokenmill.Tokens.of(range(64 * 4 + 1))
    loader = tokenmill.Loader(tokens, batch_size=1, seq_len=4, seed=3, prefetch=0)
    return [int(loader.batch_at(row).inputs[0, 0]) // 4 for row in range(rows)]


def interleave(ranks, name):
    """The windows of two ranks, in the order of their steps."""
    pairs = zip(ranks[0][name], ranks[1][name], strict=True)
    return [window for pair in pairs for batch in pair for window in batch]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("default", 64),
        ("dispatched", 64),
        ("split", 64),
        ("three epochs", 192),
        ("three epochs, persistent workers", 192),
        ("uneven, dropped", 56),
        ("uneven, not evened", 61),
        ("stateful", 64),
        ("registered", 64),
        ("batches of all ranks", 64),
    ],
)
def test_accelerate_divides_the_rows_of_the_run(ranks, name, rows):
    assert interleave(ranks, name) == run_order(rows)


def test_accelerate_fills_the_last_batch_with_the_first_rows(ranks):
    order = run_order(61)
    assert interleave(ranks, "uneven") == order + order[:3]


def test_validation_has_the_same_rows_in_every_epoch(ranks):
    assert interleave(ranks, "the same rows to validate") == [*range(16), *range(16)]


def test_a_share_of_the_rows_is_not_divided_again(ranks):
    for rank in (0, 1):
        assert f"rank {rank} of 2" in ranks[rank]["batches"]
        assert "tokenmill.huggingface.TokenRows" in ranks[rank]["batches"]


def test_shuffling_rows_again_warns_once(ranks):
    for taken, warned in (rank["warning"] for rank in ranks):
        assert sorted(row for batch in taken for row in batch) == list(range(64))
        assert len(warned) == 1
        assert "train_sampling_strategy" in warned[0]


def test_a_model_learns_to_count_and_resumes_exactly(tmp_path):
    launch("counting_program.py", tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["predicted"] == list(range(5, 21))
    tokens = tokenmill.Tokens.of(np.arange(16 * 32 + 1) % 29)
    loader = tokenmill.Loader(tokens, batch_size=8, seq_len=16, seed=1, prefetch=0)
    assert len(result["seen"]) == 40 * 4
    for step, (input_ids, labels) in enumerate(result["seen"]):
        assert input_ids == labels == loader.batch_at(step).inputs.tolist()


# Every other program here sets ACCELERATE_USE_CPU, without which Accelerate ignores other processes.
UNDIVIDED = """
from accelerate import Accelerator
from torch.utils.data import DataLoader

import tokenmill
from tokenmill.huggingface import TokenRows

rows = TokenRows(tokenmill.Tokens.of(range(1_000)), seq_len=4)
loader = Accelerator().prepare(DataLoader(rows, batch_size=4))
try:
    print(f"read {len(list(loader))} batches\\n", end="")
except tokenmill.TokenmillError as error:
    print(f"{error}\\n", end="")
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="Accelerate divides rows among GPUs")
def test_rows_that_accelerate_does_not_divide_are_refused(tmp_path):
    (tmp_path / "program.py").write_text(UNDIVIDED)
    environment = {**CPU, "ACCELERATE_USE_CPU": "false"}
    program = tmp_path / "program.py"
    result = launch(program, tmp_path, processes=2, environment=environment).splitlines()
    assert len(result) == 2
    assert all("2 processes" in line and "ACCELERATE_USE_CPU=true" in line for line in result)
    result = launch(program, tmp_path, environment=environment)
    assert result == "read 63 batches\n"


def test_labels_do_not_share_the_memory_of_the_inputs():
    row = TokenRows(tokenmill.Tokens.of(range(100)), seq_len=9)[3]
    row["labels"][:] = -100
    assert row["input_ids"].min() >= 0
