"""Ranks with different settings get an error that names them, and no rank waits for another."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from page_programs import CPU

import tokenmill

PROGRAM = Path(__file__).with_name("same_settings_program.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

TRAIN = """
import os, sys
from tokenmill.cli import main
if os.environ["RANK"] == "1":
    sys.argv += ["--seed", "7", "--val-every", "3"]
sys.exit(main())
"""


def start(*words, **environment):
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        env={**os.environ, **CPU, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, error = process.communicate(timeout=120)
    return process.returncode, out + error


@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_loaders_that_differ_between_ranks_are_refused_by_name(tmp_path, kind):
    if kind == "torch":
        processes = [start(*TORCHRUN, PROGRAM, kind, tmp_path)]
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = [start(PROGRAM, kind, tmp_path, n, port, JAX_PLATFORMS="cpu") for n in (0, 1)]
    for process in processes:
        status, result = finish(process)
        assert status == 0, result
    ranks = [json.loads((tmp_path / f"result-{rank}.json").read_text()) for rank in (0, 1)]

    def refused(name):
        """The error of the rank that came second, and its values."""
        (one,) = [result[name] for result in ranks if result.get(name)]
        return one

    named = {
        "batch_size": ("batch_size is", " 4 ", " 8 "),
        "seed": ("seed is", " 3 ", f" {1 << 70} "),
        "seq_len": ("seq_len is", " 8 ", " 16 "),
        "limit": ("limit is", " 64 ", " 80 "),
        "data": ("sources.fingerprint is",),
    }
    for name, parts in named.items():
        for part in parts:
            assert part in refused(name).replace(".\n", " \n")
        assert "`rank=0` and `world_size=1`" in refused(name)
    for name in ("same", "same again", "one rank", "same after it"):
        assert not any(result.get(name) for result in ranks), name
    if kind == "torch":
        assert "seed is" in refused("batches")
        assert not ranks[0]["a share on one rank"]
        assert "seq_len is 8 there and 16 here" in ranks[1]["after it"]


def test_training_does_not_start_on_ranks_with_different_settings(tmp_path):
    (tmp_path / "x.txt").write_text("some text\n" * 2_000)
    tokenmill.prepare(
        tmp_path / "x.txt", tmp_path / "data", tokenizer="bytes", workers=1, dedup="none"
    )
    (tmp_path / "train.py").write_text(TRAIN)
    small = "--layers 1 --heads 2 --width 16 --seq-len 32 --batch-tokens 256 --max-steps 5"
    own = ["train", "--data", tmp_path / "data", "--runs", tmp_path, "--name", "x", *small.split()]
    status, result = finish(start(*TORCHRUN, tmp_path / "train.py", *own))
    assert status != 0
    assert "The ranks were started differently." in result
    assert "seed 42" in result or "seed 7" in result
    assert "val_every" in result
    assert "learning_rate" not in result
