"""Memory stays under the cap that the user sets, also for text that overflows every cache."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import kill_all, members, start

import tokenmill
from tokenmill.errors import InputError
from tokenmill.preparation.estimate import estimate
from tokenmill.preparation.plan import make_plan

CAP = 700_000_000


def make_new_words(path: Path, size: int) -> None:
    """Text in which almost no word occurs twice."""
    rng = np.random.default_rng(5)
    letters = rng.integers(97, 123, size, np.uint8)
    letters[9::10] = 32
    letters[99::100] = 10
    path.write_bytes(letters.tobytes())


def proportional_memory(process: int) -> int:
    """What a process has in memory; pages that several share are divided among them."""
    try:
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    return int(rollup.partition("\nPss:")[2].split()[0]) << 10


def find_peak(text: Path, out: Path, memory: int, workers: int) -> tuple[int, int, str]:
    """Peak memory of all processes of a run, its exit status, and its error output."""
    options = ("--out", out, "--workers", str(workers), "--memory", str(memory))
    process = start("prepare", text, *options)
    peak = 0
    began = time.monotonic()
    while process.poll() is None:
        peak = max(peak, sum(map(proportional_memory, members(process.pid))))
        time.sleep(0.05)
        if time.monotonic() - began > 90:
            kill_all(process)
    _, said = process.communicate()
    return peak, process.returncode, said


def test_words_that_never_repeat_do_not_fill_the_memory(tmp_path: Path) -> None:
    text = tmp_path / "x.txt"
    make_new_words(text, 64_000_000)
    peak, status, said = find_peak(text, tmp_path / "data", CAP, 2)
    assert status == 0, said
    assert (tmp_path / "data" / "train" / "shard_00000.bin").stat().st_size > 30_000_000
    assert peak < CAP


SMALL_CAP, MAIN_PROCESS = 200_000_000, 157_286_400
UNCUT = {"letters": b"a" * 24_000_000, "Chinese": "中文在此。\n".encode() * 1_500_000}


@pytest.mark.parametrize("name", UNCUT)
def test_text_without_a_letter_before_white_space_stays_under_the_cap(
    name: str, tmp_path: Path
) -> None:
    text = tmp_path / "x.txt"
    text.write_bytes(UNCUT[name])
    peak, status, said = find_peak(text, tmp_path / "data", SMALL_CAP, 1)
    assert status == 0, said
    assert peak < SMALL_CAP + MAIN_PROCESS


def test_a_dry_run_promises_the_memory_that_these_tests_allow(tmp_path: Path) -> None:
    text = tmp_path / "x.txt"
    text.write_text("some words")
    estimated = estimate(make_plan(text, tmp_path / "data", memory=SMALL_CAP, workers=1))
    assert estimated.memory == SMALL_CAP + MAIN_PROCESS


def test_a_record_too_large_for_the_cap_is_refused_with_a_sufficient_cap(
    tmp_path: Path,
) -> None:
    text = tmp_path / "x.jsonl"
    text.write_bytes(b'{"text": "small"}\n{"text": "' + b"a" * 40_000_000 + b'"}\n')
    peak, status, said = find_peak(text, tmp_path / "data", SMALL_CAP, 1)
    assert status == 1
    assert "x.jsonl: the line at byte 18 has 40,000,012 bytes" in said
    assert "0.5" in said
    assert peak < SMALL_CAP + MAIN_PROCESS


def test_a_parquet_value_too_large_for_the_cap_is_refused_before_it_is_read(
    tmp_path: Path,
) -> None:
    text = tmp_path / "x.parquet"
    pq.write_table(
        pa.table({"text": ["small", "a" * 12_000_000]}), text, row_group_size=1, compression="none"
    )
    with pytest.raises(InputError, match=r"x\.parquet: the texts from row 1 on have 12,0\d\d,\d+ "):
        tokenmill.prepare(text, tmp_path / "data", memory=SMALL_CAP, workers=1)


def test_a_parquet_dictionary_too_large_for_the_cap_is_refused_with_a_sufficient_cap(
    tmp_path: Path,
) -> None:
    text = tmp_path / "x.parquet"
    words = np.random.default_rng(1).integers(97, 123, 48_000_000, np.uint8)
    words[9::10] = 32
    cells = [cell.tobytes().decode() for cell in np.split(words, 24)]
    pq.write_table(pa.table({"text": cells}), text)
    peak, status, said = find_peak(text, tmp_path / "data", SMALL_CAP, 1)
    assert status == 1
    assert "x.parquet: the dictionary of the texts from row 0 on has 48,0" in said
    assert peak < SMALL_CAP + MAIN_PROCESS
    (enough,) = re.findall(r"--memory[= ](\d+)", said)
    peak, status, said = find_peak(text, tmp_path / "data", int(enough), 1)
    assert status == 0, said
    assert peak < int(enough) + MAIN_PROCESS


@pytest.mark.parametrize("workers", [1, 2])
def test_words_of_many_scripts_that_never_repeat_stay_under_a_small_cap(
    workers: int, tmp_path: Path
) -> None:
    text = tmp_path / "x.txt"
    rng = np.random.default_rng(2)
    letters = np.array([c for c in range(0x250, 0xD7A0) if chr(c).isalpha()], np.uint32)
    with text.open("wb") as file:
        for _ in range(16):
            codes = letters[rng.integers(0, len(letters), 1_000_000)]
            codes[9::10], codes[99::100] = 32, 10
            file.write(codes.tobytes().decode("utf-32-le").encode())
    cap = 150_000_000 * workers
    peak, status, said = find_peak(text, tmp_path / "data", cap, workers)
    assert status == 0, said
    assert peak < cap + MAIN_PROCESS


def test_text_too_large_for_the_cap_is_never_skipped(tmp_path: Path) -> None:
    """The dataset must not depend on `memory`, so such a file cannot be skipped."""
    (tmp_path / "a.txt").write_text("some words")
    (tmp_path / "b.txt").write_bytes(b" " * 9_000_000 + b"x")
    with pytest.raises(InputError, match=r"b\.txt: .* cannot be cut") as refused:
        tokenmill.prepare(
            [tmp_path / "a.txt", tmp_path / "b.txt"],
            tmp_path / "data",
            memory=SMALL_CAP,
            workers=1,
            skip_bad_files=True,
        )
    assert "skip_bad_files" not in str(refused.value)
