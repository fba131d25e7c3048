"""Runs the programs of docs/distributed.md under torchrun, and records the rows they train on."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

import tokenmill

PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"
SEQ_LEN = 64
CPU = {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}

# Runs before a program: records every batch that reaches a token embedding; with crash_at=N the
# process kills itself at its N-th training batch.
RECORDER = """
import atexit, json, os, signal, time
import torch

# PyTorch 2.13 aborts if the interpreter ends while a thread of gloo still frees a tensor.
atexit.register(time.sleep, 1)

def record(module, arguments, given=[]):
    if isinstance(module, torch.nn.Embedding) and module.num_embeddings > 64:
        rank = os.environ.get("RANK", "0")
        kind = "train" if module.training else "val"
        with open(f"{kind}-{rank}.jsonl", "a") as file:
            print(json.dumps(arguments[0].tolist()), file=file)
        given += [0] * module.training
        if len(given) == int(os.environ.get("CRASH_AT", -1)):
            os.kill(os.getpid(), signal.SIGKILL)

torch.nn.modules.module.register_module_forward_pre_hook(record)
torch.set_num_threads(1)
"""


def read_program(title):
    """The program under a heading of the page."""
    section = PAGE.read_text().split(f"# {title}\n")[1].split("\n#")[0]
    (program,) = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return program


def make_corpus(folder, documents=145):
    """Prepare a dataset whose rows all differ; returns the number of training rows."""
    rng = np.random.default_rng(0)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz ", np.uint8)
    texts = [rng.choice(letters, 50).tobytes().decode() for _ in range(documents)]
    (folder / "input.txt").write_text("<|endoftext|>".join(texts))
    dataset = folder / "data" / "corpus"
    tokenmill.prepare(folder / "input.txt", dataset, tokenizer="bytes", val_fraction=0.3, workers=1)
    return (len(tokenmill.open(dataset)["train"]) - 1) // SEQ_LEN


def run(folder, program, processes, crash_at=None):
    """Run a program to its end or its crash; returns its output."""
    (folder / "train.py").write_text(RECORDER + program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    result = subprocess.run(
        [*command, f"--nproc-per-node={processes}", "train.py"],
        cwd=folder,
        env={**os.environ, **CPU} | ({"CRASH_AT": str(crash_at)} if crash_at else {}),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (result.returncode != 0) == (crash_at is not None), result.stderr
    return result.stdout


def take_rows(folder, processes, kind="train"):
    """The batches of each process since the last call, as arrays (rows, seq_len)."""
    taken = []
    for rank in range(processes):
        path = folder / f"{kind}-{rank}.jsonl"
        taken.append([np.array(json.loads(line)) for line in path.read_text().splitlines()])
        path.unlink()
    return taken


def expected_rows(folder, processes, batch_size, steps, first=0, seed=1):
    """The expected batches of each process, from `tokenmill.Loader`."""
    tokens = tokenmill.open(folder / "data" / "corpus")["train"]
    settings = {"batch_size": batch_size, "seq_len": SEQ_LEN, "seed": seed, "prefetch": 0}
    return [
        [
            tokenmill.Loader(tokens, **settings, rank=rank, world_size=processes).batch_at(step)
            for step in range(first, steps)
        ]
        for rank in range(processes)
    ]


def assert_same(taken, expected):
    for own, wanted in zip(taken, expected, strict=True):
        for batch, one in zip(own, wanted, strict=True):
            assert np.array_equal(batch, one.inputs)
