"""A share of the fuzzer with a fixed seed, and everything that it ever found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STORE = (
    "manifest grown-manifest sources tables frames npy-header loader-state checkpoint metrics "
    "configuration"
)
FORMATS = "npy llmc megatron datatrove olmo mds litdata nanogpt raw array_record"
TOKENIZERS = (
    "tokenizer-json split-json piece-json sentencepiece tiktoken tokenizer-state unigram-json"
)
TEXTS = "jsonl text gzip zstd bz2 xz parquet arrow tar warc"
RECORDS = "csv json-array kept-fields template"
RUNS = "prepare-receipts import-receipts reshard-receipts export-record hub commands sample"
STORAGE = "addresses objects cache key-files"
INSPECTED = "exclusions key-index statistics word-index run-data view"
CASES = {
    STORE: 250,
    FORMATS: 200,
    TOKENIZERS: 50,
    TEXTS: 200,
    RECORDS: 60,
    RUNS: 60,
    STORAGE: 40,
    INSPECTED: 12,
}


def fuzz(*arguments: str) -> str:
    """Run the fuzzer in a process of its own, because it forks; returns what it prints."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.lab.fuzz", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    return run.stdout


@pytest.mark.parametrize("parsers", CASES)
def test_mutated_files_are_read_or_refused(parsers: str) -> None:
    fuzz(*parsers.split(), "--seed", "1", "--cases", str(CASES[parsers]))


def test_sound_files_are_accepted() -> None:
    printed = fuzz("--sound")
    names = {line.partition(":")[0] for line in printed.splitlines()}
    assert names == {name for parsers in CASES for name in parsers.split()}


def test_past_fuzzing_finds_are_read_or_refused() -> None:
    fuzz("--found")


FAULTS = """
import os, time
from pathlib import Path
from tests.lab.fuzz.case import Case, Parser, require
from tests.lab.fuzz.forks import run_batch
from tokenmill.errors import DatasetError

def refuse():
    raise DatasetError("refused")

def wait():
    time.sleep(1000)

def compute():
    while True:
        pass

class Faulty(Parser):
    name = "faulty"
    faults = [refuse, lambda: 1 / 0, os.abort, refuse, lambda: bytearray(2 << 30),
              lambda: require(False, "other ids"), compute, refuse]

    def prepare(self, folder): ...
    def make(self, random): return Case({})
    def check(self, case, folder): self.faults[case.facts["number"]]()

cases = [Case({}, {"number": number}) for number in range(len(Faulty.faults))]
batch = run_batch(Faulty(), 0, 0, len(cases), cases)
print(batch.done, [(failure.case, failure.what.partition("\\n")[0]) for failure in batch.failures])
"""


def test_each_kind_of_failure_is_noticed_and_the_next_case_runs() -> None:
    run = subprocess.run(
        [sys.executable, "-c", FAULTS], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert run.stdout.strip() == str(
        [
            (1, "ZeroDivisionError: division by zero"),
            (2, "the process was ended by SIGABRT"),
            (4, "MemoryError: "),
            (5, "WrongResultError: other ids"),
            (6, "it took over 5 s of processor time"),
        ]
    ).join(["8 ", ""]), run.stdout + run.stderr
