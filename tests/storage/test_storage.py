"""Durable files, locks and claimed folders, with real processes and threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import xxhash

from tokenmill.errors import FolderError
from tokenmill.storage.files import AtomicFile, NpyFile, remove_temporaries, write_file
from tokenmill.storage.folder import Entry, Folder
from tokenmill.storage.lock import FileLock
from tokenmill.storage.output import OutputFolder


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with AtomicFile(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert list(tmp_path.iterdir()) == []
    write_file(path, b"old")
    with AtomicFile(path) as file:
        file.write(b"new")
        file.write(np.arange(3, dtype="<u2"))
        assert path.read_bytes() == b"old"
        checksum = file.finish()
    assert path.read_bytes() == b"new\0\0\1\0\2\0"
    assert checksum == xxhash.xxh3_128_hexdigest(path.read_bytes())
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_an_npy_file_is_readable_by_numpy_and_its_checksum_covers_the_header(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.npy"
    for length in (0, 1, 100_000):
        ids = np.arange(length, dtype="<u4")
        with NpyFile(path, ids.dtype) as file:
            file.write(ids)
            checksum = file.finish()
        assert np.array_equal(np.load(path), ids)
        assert checksum == xxhash.xxh3_128_hexdigest(path.read_bytes())


KILLED = """
import os, sys, pathlib
from tokenmill.storage.files import AtomicFile
from tokenmill.storage.lock import FileLock
folder = pathlib.Path(sys.argv[1])
lock = FileLock(folder / "lock")
file = AtomicFile(folder / "data")
file.write(b"half")
print(lock.acquire(), flush=True)
sys.stdin.read()
"""


def test_a_killed_process_releases_its_lock_and_leaves_only_a_temporary_file(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        lock = FileLock(tmp_path / "lock")
        assert not lock.acquire()
        assert lock.owner == process.pid
        with pytest.raises(FolderError, match=rf"Busy \(process {process.pid}\)\. Wait\."):
            lock.acquire_or_refuse("Busy", "Wait.")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert lock.acquire()
    assert not (tmp_path / "data").exists()
    assert len(list(tmp_path.iterdir())) == 2
    remove_temporaries(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["lock"]
    lock.release(remove=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["²", "٣٣", "9" * 5000, "12 34", ""])
def test_a_lock_with_an_invalid_owner_is_still_held(tmp_path: Path, text: str) -> None:
    lock = FileLock(tmp_path / "lock")
    assert lock.acquire()
    (tmp_path / "lock").write_text(text)
    other = FileLock(tmp_path / "lock")
    assert not other.acquire()
    assert other.owner is None or text.startswith(str(other.owner))


CREATES = """
import sys
from tokenmill.storage.folder import Folder
sys.stdin.readline()
print(Folder(sys.argv[1]).create("claim", sys.argv[2].encode()))
"""


def test_one_of_many_processes_creates_a_file(tmp_path: Path) -> None:
    def start(number: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", CREATES, str(tmp_path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    processes = [start(number) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(lambda process: process.communicate("\n")[0], processes))
    assert sorted(said) == ["False\n"] * 3 + ["True\n"]
    assert (tmp_path / "claim").read_text() == str(said.index("True\n"))
    assert [one.name for one in tmp_path.iterdir()] == ["claim"]


def test_a_folder_reads_ranges_lists_prefixes_and_deletes(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for name, data in (("a/one", b"12345"), ("a/two", b"2"), ("b", b"")):
        folder.write(name, data)
    (tmp_path / "a" / "three.123.tmp").write_bytes(b"half-written")
    assert folder.read("a/one", 1, 3) == b"234"
    assert list(folder.list("a/")) == [Entry("a/one", 5), Entry("a/two", 1)]
    assert list(folder.list("a/t")) == [Entry("a/two", 1)]
    folder.delete("a/one")
    folder.delete("a/one")
    assert [entry.name for entry in folder.list()] == ["a/two", "b"]
    with pytest.raises(FileNotFoundError):
        folder.read("a/one")


def test_an_output_folder_refuses_other_files_and_a_second_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(FolderError, match=r"holds other files \(thesis.tex\)"):
        OutputFolder(tmp_path, marks={"record"})
    (tmp_path / "thesis.tex").unlink()
    (tmp_path / "left.123.tmp").write_text("half-written")
    with OutputFolder(tmp_path, marks={"record"}) as folder:
        assert list(tmp_path.iterdir()) == []
        folder.remember("record", {"to": "npy"})
        with pytest.raises(FolderError, match="Another run is working in"):
            OutputFolder(tmp_path, marks={"record"})
    with OutputFolder(tmp_path, marks={"record"}) as folder:
        folder.remember("record", {"to": "npy"})
    (tmp_path / "record").write_bytes(b"{")
    with (
        OutputFolder(tmp_path, marks={"record"}) as folder,
        pytest.raises(FolderError, match=r"record is damaged .* Delete"),
    ):
        folder.remember("record", {"to": "npy"})


def test_an_output_folder_accepts_what_a_run_left_that_was_killed_at_its_start(
    tmp_path: Path,
) -> None:
    (tmp_path / ".work").mkdir()
    (tmp_path / ".work" / "record.json.123.tmp").write_text("half-written")
    with OutputFolder(tmp_path, marks={".work/record.json"}) as folder:
        folder.remember(".work/record.json", {"to": "npy"})
    assert [path.name for path in (tmp_path / ".work").iterdir()] == ["record.json"]
