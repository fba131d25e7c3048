"""`pretokenize`: the ids that tiktoken gives, in a file that NumPy reads."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive import END, encode_gpt2, split_text

from tokenmill.errors import FolderError, InputError, UsageError
from tokenmill.preparation.prepare import prepare
from tokenmill.preparation.pretokenize import _UNCHANGED, npy_path, pretokenize
from tokenmill.progress import Nobody
from tokenmill.storage.lock import FileLock
from tokenmill.tokenizers import Tokenizer, load_tokenizer

TEXT = (
    b"First document,  with  spaces.\r\n\r\n\r\n<|endoftext|>"
    b"First document,  with  spaces.\r\n\r\n\r\n<|endoftext|><|endoftext|>"
    + "Grüße aus Köln \u0958\n".encode() * 30
    + b"trailing blanks  \n\n"
)


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return load_tokenizer("gpt2")


def expected_ids(data: bytes) -> list[int]:
    ids: list[int] = []
    for _, text in split_text(data, END):
        if text:
            ids += [*encode_gpt2(text), 50256]
    return ids


def run(path: Path, tokenizer: Any, **options: Any) -> Any:
    return pretokenize(path, tokenizer=tokenizer, workers=1, **options)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("auto", "uint16"),
        ("uint16", "uint16"),
        ("uint32", "uint32"),
        ("int32", "int32"),
        ("int64", "int64"),
    ],
)
def test_the_text_is_not_changed(tmp_path: Path, gpt2: Tokenizer, dtype: str, kind: str) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(TEXT)
    made = run(path, gpt2, dtype=dtype)
    assert made.path == tmp_path / "x.npy"
    array = np.load(made.path, mmap_mode="r")
    assert array.dtype == np.dtype(kind)
    assert array.tolist() == expected_ids(TEXT)
    assert (made.tokens, made.dtype, made.was_there) == (len(array), kind, False)
    assert made.documents == 3
    assert made.characters == len(TEXT.replace(END, b"").decode())
    assert sorted(os.listdir(tmp_path)) == ["x.npy", "x.txt"]


def test_compressed_files_and_records_work_too(tmp_path: Path, gpt2: Tokenizer) -> None:
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(TEXT))
    assert np.load(run(path, gpt2).path).tolist() == expected_ids(TEXT)
    path = tmp_path / "y.jsonl"
    path.write_text(json.dumps({"text": "one  two"}) + "\n" + json.dumps({"text": "three\n"}))
    expected = [*encode_gpt2(b"one  two"), 50256, *encode_gpt2(b"three\n"), 50256]
    assert np.load(run(path, gpt2).path).tolist() == expected


def test_an_existing_file_is_not_made_again(tmp_path: Path, gpt2: Tokenizer) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(TEXT)
    run(path, gpt2)
    before = (tmp_path / "x.npy").stat()
    again = run(path, gpt2)
    assert again.was_there
    assert again.tokens == len(expected_ids(TEXT))
    assert (tmp_path / "x.npy").stat().st_mtime_ns == before.st_mtime_ns
    assert not run(path, gpt2, restart=True).was_there
    assert (tmp_path / "x.npy").stat().st_ino != before.st_ino


def test_an_existing_file_of_other_ids_is_refused(tmp_path: Path, gpt2: Tokenizer) -> None:
    path, target = tmp_path / "x.txt", tmp_path / "x.npy"
    path.write_bytes(TEXT)
    run(path, gpt2)
    sound = target.read_bytes()
    with pytest.raises(FolderError, match=r"holds uint16, not int32.*`restart=True`"):
        run(path, gpt2, dtype="int32")
    with pytest.raises(FolderError, match=r"does not hold the ids that tokenizer bytes gives"):
        run(path, "bytes")
    other = tmp_path / "x.jsonl"
    other.write_text('{"text": "Another text of that name."}')
    os.utime(other, ns=(0, 0))
    with pytest.raises(FolderError, match=r"gives for .*x\.jsonl"):
        run(other, gpt2)
    start = b"\x93NUMPY\x01\x00"
    absurd = "{'descr': '<u2', 'fortran_order': False, 'shape': (%d,)}"
    headers = [b"(" * 9_000, (absurd % 2**60).encode(), (absurd % 2**80).encode()]
    hostile = [start + len(header).to_bytes(2, "little") + header for header in headers]
    for damaged in (b"", b"no array", sound[:100], sound[:-2], bytes(len(sound)), *hostile):
        target.write_bytes(damaged)
        with pytest.raises(FolderError, match=r"not a valid \.npy file"):
            run(path, gpt2)
    np.save(target, np.zeros((3, 4), np.uint16))
    with pytest.raises(FolderError, match="does not hold the ids"):
        run(path, gpt2)
    target.write_bytes(sound)
    os.utime(target, ns=(0, 0))
    with pytest.raises(FolderError, match="is older than"):
        run(path, gpt2)
    assert target.read_bytes() == sound
    run(path, gpt2, restart=True)
    assert target.read_bytes() == sound


class Notes(Nobody):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_ids_that_changed_before_they_were_copied_are_made_again(tmp_path: Path) -> None:
    path, watcher = tmp_path / "x.txt", Notes()
    path.write_bytes(TEXT)
    wanted = run(path, "bytes").path.read_bytes()
    (tmp_path / "x.npy").unlink()
    work = tmp_path / ".x.npy.work"
    prepare(path, work, tokenizer="bytes", workers=1, **_UNCHANGED)  # killed before the copy
    shard = work / "train" / "shard_00000.bin"
    data = bytearray(shard.read_bytes())
    data[10] ^= 1
    shard.write_bytes(data)
    assert run(path, "bytes", watcher=watcher).path.read_bytes() == wanted
    assert watcher.notes == [
        f"The ids in {work} changed after they were written; making them again."
    ]
    assert sorted(os.listdir(tmp_path)) == ["x.npy", "x.txt"]


def test_invalid_arguments_are_named(tmp_path: Path, gpt2: Tokenizer) -> None:
    with pytest.raises(InputError, match="There is no file"):
        run(tmp_path / "gone.txt", gpt2)
    path = tmp_path / "x.txt"
    path.write_bytes(TEXT)
    with pytest.raises(UsageError, match="`dtype` is 'float32'"):
        run(path, gpt2, dtype="float32")
    np.save(tmp_path / "y.npy", np.zeros(3))
    with pytest.raises(InputError, match=r"is a \.npy file already"):
        run(tmp_path / "y.npy", gpt2)
    assert sorted(os.listdir(tmp_path)) == ["x.txt", "y.npy"]


def test_the_ids_go_beside_the_text() -> None:
    for text, npy in [
        ("a/b.txt", "a/b.npy"),
        ("a/b.txt.gz", "a/b.npy"),
        ("b.c.jsonl.zst", "b.c.npy"),
        ("noending", "noending.npy"),
    ]:
        assert npy_path(text) == Path(npy)


def test_skipped_records_are_counted_and_listed(tmp_path: Path, gpt2: Tokenizer) -> None:
    text = tmp_path / "x.jsonl"
    text.write_bytes(b'{"text": "kept"}\nnonsense\n{"text": "\xff"}\n')
    made = pretokenize(text, tokenizer=gpt2, workers=1)
    assert made.documents == 2
    assert made.repaired == 1
    assert made.dropped == {"not JSON": {"documents": 1, "bytes": 8}}
    assert made.rejected == tmp_path / "x.rejected.jsonl"
    assert '"line":2' in made.rejected.read_text()


def test_the_folder_of_a_run_that_is_about_to_finish_is_left_to_it(tmp_path: Path) -> None:
    text = tmp_path / "x.txt"
    text.write_text("one")
    made = run(text, "bytes")
    folder = tmp_path / ".x.npy.work"
    folder.mkdir()
    lock = FileLock(folder, is_folder=True)
    assert lock.acquire()
    with pytest.raises(FolderError, match="Another run is working in"):
        run(text, "bytes")
    assert folder.exists()
    lock.release()
    assert run(text, "bytes").was_there
    assert not folder.exists()
    assert made.path.exists()
