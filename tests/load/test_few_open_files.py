"""A process that may open 20 files loads from any number of shards; one with fewer gets the cure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from dataset_builder import build

import tokenmill
from tokenmill.storage.disk import disk_error

pytest.importorskip("resource")

PROGRAM = """
import resource, sys
most = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
import numpy as np
import xxhash
import tokenmill

try:
    tokens = tokenmill.open(sys.argv[1])["train"]
    seen = xxhash.xxh3_64()
    for documents in (False, True):
        for prefetch in (None, 0):
            loader = tokenmill.Loader(
                tokens, batch_size=16, seq_len=8, order="random", documents=documents,
                prefetch=prefetch, limit_rows=320,
            )
            for batch in loader:
                seen.update(np.ascontiguousarray(batch.inputs).data)
                if documents:
                    seen.update(np.ascontiguousarray(batch.documents.ids).data)
    print(seen.hexdigest())
except tokenmill.errors.DatasetError as error:
    print(error)
"""


def run(folder: Path, most: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder, str(most)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("frame_tokens", [None, 6])
def test_20_open_files_are_enough_for_any_number_of_shards(
    tmp_path: Path, frame_tokens: int | None
) -> None:
    texts = {"train": [f"text number {n}" for n in range(100)]}
    build(tmp_path, texts, shard_tokens=15, frame_tokens=frame_tokens)
    tokens = tokenmill.open(tmp_path)["train"]
    assert tokens.shard_count > 90
    expected = run(tmp_path, 1024)
    assert len(expected) == 17
    assert run(tmp_path, 20) == expected
    if sys.version_info < (3, 13):  # since then, a map does not keep its file open
        assert "ulimit -n 65536" in run(tmp_path, 6)


def test_too_many_open_files_while_writing_is_an_error_with_the_cure() -> None:
    with pytest.raises(OSError) as raised:
        raise OSError(24, "Too many open files", "out/.work/spill/017")
    said = str(disk_error(raised.value))
    assert "out/.work/spill/017" in said
    assert "ulimit -n 65536, then run the same command again" in said
