"""Standard input: copied once, read like a file, and used again by a resumed run."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from preparing import assert_same_files

import tokenmill

COMMAND = [sys.executable, "-m", "tokenmill.cli", "prepare"]
QUICK = ["--tokenizer", "bytes", "--val-fraction", "0", "--workers", "1"]
TEXT = "<|endoftext|>".join(f"Text number {n}." for n in range(100)).encode()
LINES = b"".join(json.dumps({"text": f"Text number {n}."}).encode() + b"\n" for n in range(100))


def run(out: Path, data: bytes, *options: str, inputs: tuple[str, ...] = ("-",)) -> str:
    command = [*COMMAND, *inputs, "--out", str(out), *QUICK, *options]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return (done.stdout + done.stderr).decode()


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (TEXT, "a.txt"),
        (LINES, "a.jsonl"),
        (b"\n\n" + LINES, "a.jsonl"),
        (gzip.compress(LINES), "a.jsonl.gz"),
        (TEXT.decode().encode("utf-16"), "a.txt"),
    ],
)
def test_standard_input_gives_the_tokens_of_the_file(
    tmp_path: Path, data: bytes, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    run(tmp_path / "piped", data)
    run(tmp_path / "read", b"", inputs=(str(path),))
    piped, read = tokenmill.open(tmp_path / "piped"), tokenmill.open(tmp_path / "read")
    assert piped["train"][:].tolist() == read["train"][:].tolist()
    assert [one.offset for one in piped["train"].documents] == [
        one.offset for one in read["train"].documents
    ]
    assert [source.path for source in piped.manifest.sources] == ["-"]
    assert not (tmp_path / "piped" / ".work").exists()


def test_standard_input_keeps_its_place_among_the_inputs(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"The file {name}.")
    inputs = (str(tmp_path / "a.txt"), "-", str(tmp_path / "b.txt"))
    run(tmp_path / "out", b"piped", inputs=inputs)
    data = tokenmill.open(tmp_path / "out")
    assert (
        data.tokenizer.decode(data["train"][:])
        .replace("<|endoftext|>", "|")
        .startswith("The file a.txt.")
    )
    assert [source.path for source in data.manifest.sources] == list(inputs)
    assert [one.source.path for one in data["train"].documents] == list(inputs)


def test_a_finished_dataset_is_not_changed(tmp_path: Path) -> None:
    run(tmp_path / "out", TEXT)
    assert "already finished" in run(tmp_path / "out", b"")
    assert "already finished" not in run(tmp_path / "out", b"other text", "--restart")
    assert tokenmill.open(tmp_path / "out").manifest.ledger["documents_in"] == 1


def test_a_run_killed_after_the_copy_resumes_from_it(tmp_path: Path) -> None:
    words = b"".join(b"word %d and some more of it\n" % n for n in range(200_000))
    run(tmp_path / "whole", words)
    out, receipt = tmp_path / "out", tmp_path / "out" / ".work" / "stdin.json"
    command = [*COMMAND, "-", "--out", str(out), *QUICK]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(words)
    process.stdin.close()
    while not receipt.exists() and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert receipt.exists()
    assert not (out / "dataset_metadata.json").exists()
    assert "Using the copy of standard input" in run(out, b"")
    assert_same_files(tmp_path / "whole", out)


def test_an_incomplete_or_changed_copy_is_not_used(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [*COMMAND, "-", "--out", str(out), *QUICK]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(b"the beginning" * 10_000)
    process.stdin.flush()
    while not list(out.glob(".work/stdin*")) and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    assert not (out / ".work" / "stdin.json").exists()
    run(out, TEXT)
    run(tmp_path / "whole", TEXT)
    assert_same_files(tmp_path / "whole", out)


def test_what_cannot_be_read_from_standard_input(tmp_path: Path) -> None:
    def fail(data: bytes, *options: str) -> str:
        command = [*COMMAND, "-", "--out", str(tmp_path / "out"), *QUICK, *options]
        done = subprocess.run(command, input=data, capture_output=True, check=False)
        assert done.returncode == 1, done.stdout
        return done.stderr.decode()

    assert "Standard input is not text" in fail(b"\0\1\2\3" * 100, "--restart")
    assert "can only be read by a run of prepare" in fail(TEXT, "--dry-run")
    assert "-: the gzip stream" in fail(gzip.compress(TEXT)[:-9], "--restart")
    controller, terminal = os.openpty()
    try:
        command = [*COMMAND, "-", "--out", str(tmp_path / "tty"), *QUICK]
        done = subprocess.run(command, stdin=terminal, capture_output=True, check=False)
    finally:
        os.close(controller)
        os.close(terminal)
    assert b"Standard input is not a pipe" in done.stderr
