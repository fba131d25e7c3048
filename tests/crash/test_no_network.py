"""Nothing needs a network: the default tokenizer comes with the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from runs import COMMAND

OWN_NETWORK = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]


def _can_unshare() -> bool:
    try:
        return subprocess.run([*OWN_NETWORK, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _can_unshare(), reason="no network namespace can be made here")
def test_prepare_to_training_works_without_a_network_or_home(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("Hello world")
    empty = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}

    def run(*arguments: str) -> None:
        said = subprocess.run(
            [*OWN_NETWORK, sys.executable, COMMAND, *arguments],
            cwd=tmp_path,
            env=empty,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert said.returncode == 0, said.stderr

    run("prepare", "x.txt", "--out", "data", "--val-fraction", "0")
    assert np.fromfile(tmp_path / "data/train/shard_00000.bin", "<u2").tolist() == [
        15496,
        995,
        50256,
    ]
    run("peek", "data")
    run("verify", "data")
    run("pretokenize", "x.txt")
    assert not (tmp_path / "home").exists()


def test_prepare_opens_no_internet_socket(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("Hello world")
    code = """
import socket, sys
def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        raise RuntimeError(f"{event} {arguments}")
sys.addaudithook(refuse)
import tokenmill
print(tokenmill.prepare("x.txt", "data", val_fraction=0).manifest.splits["train"].tokens)
"""
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (said.stdout, said.stderr) == ("3\n", "")
