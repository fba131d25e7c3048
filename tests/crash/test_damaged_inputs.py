"""Input that is damaged in any way: named, with its place, and nothing good is lost with it."""

from __future__ import annotations

import bz2
import ctypes
import gzip
import json
import lzma
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from runs import contents, kill_all, run, start, wait_until, words

import tokenmill
from tokenmill.errors import InputError, TokenmillError

TEXT = words(40_000, 7).encode()
OPTIONS = {"tokenizer": "bytes", "workers": 1, "val_fraction": 0.0}
FLAGS = ("--tokenizer", "bytes", "--workers", "1", "--val-fraction", "0")


def parquet_bytes(rows: int = 3_000) -> bytes:
    table = pa.table({"text": [f"row {i} {words(20, i)}" for i in range(rows)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=500, write_page_checksum=True)
    return sink.getvalue().to_pybytes()


SOUND: dict[str, Callable[[], bytes]] = {
    "x.txt.gz": lambda: gzip.compress(TEXT, 1),
    "x.txt.zst": lambda: zstandard.ZstdCompressor(write_checksum=True).compress(TEXT),
    "x.txt.bz2": lambda: bz2.compress(TEXT, 1),
    "x.txt.xz": lambda: lzma.compress(TEXT, preset=0),
    "x.parquet": parquet_bytes,
}


def cut_by_a_byte(data: bytes) -> bytes:
    return data[:-1]


def flip(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def tokens_of(out: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(out.glob("train/*.bin")))


@pytest.mark.parametrize("damage", [cut_by_a_byte, flip])
@pytest.mark.parametrize("name", SOUND)
def test_damaged_file_is_named_and_can_be_repaired_or_skipped(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    texts, out = tmp_path / "texts", tmp_path / "out"
    texts.mkdir()
    (texts / "a.txt").write_text("good before")
    (texts / "z.txt").write_text("good behind")
    bad, sound = texts / name, SOUND[name]()
    bad.write_bytes(damage(sound))
    with pytest.raises(InputError, match="1 file could not be read") as failure:
        tokenmill.prepare(texts, out, **OPTIONS)
    assert str(bad) in str(failure.value)
    assert "`skip_bad_files=True`" in str(failure.value)
    assert not (out / "dataset_metadata.json").exists()

    aside = tokenmill.prepare(texts, tmp_path / "aside", skip_bad_files=True, **OPTIONS)
    assert [entry["source"] for entry in aside.manifest.ledger["set_aside"]] == [str(bad)]
    eot = [256]
    assert np.frombuffer(tokens_of(tmp_path / "aside"), "<u2").tolist() == (
        [*b"good before", *eot, *b"good behind", *eot]
    )

    bad.write_bytes(sound)
    tokenmill.prepare(texts, out, **OPTIONS)
    tokenmill.prepare(texts, tmp_path / "clean", **OPTIONS)
    assert contents(out) == contents(tmp_path / "clean")


@pytest.mark.parametrize("dedup", ["documents", "lines"])
def test_file_with_one_bad_part_is_skipped_as_a_whole(tmp_path: Path, dedup: str) -> None:
    texts, out = tmp_path / "texts", tmp_path / "out"
    texts.mkdir()
    line = "a line of a file that is cut into three parts\n"
    large = (line * (40 * 2**20 // len(line))).encode()
    (texts / "a.txt").write_text("good before")
    (texts / "large.txt").write_bytes(large[: 20 << 20] + b"\xff" + large[20 << 20 :])
    (texts / "z.txt").write_text("good behind")
    options = {**OPTIONS, "on_bad_text": "refuse", "dedup": dedup}
    with pytest.raises(InputError, match=r"large.txt: invalid UTF-8 at byte"):
        tokenmill.prepare(texts, out, **options)
    report = tokenmill.prepare(texts, out, skip_bad_files=True, **options)
    assert report.parts_done_before >= (dedup == "documents")
    assert [entry["source"] for entry in report.manifest.ledger["set_aside"]] == [
        str(texts / "large.txt")
    ]
    assert report.manifest.ledger["documents_kept"] == 2
    assert report.manifest.ledger["documents_in"] == 2
    tokenmill.prepare(texts, tmp_path / "at once", skip_bad_files=True, **options)
    assert contents(out) == contents(tmp_path / "at once")


GOOD = [{"text": f"good {i}"} for i in range(5)]
BAD_LINES = {
    "cut short": (b'{"text": "never', "not JSON"),
    "not JSON": (b"plain text", "not JSON"),
    "an array": (b'["text"]', "a JSON array, not an object"),
    "no field": (b'{"content": "x"}', "no field 'text'"),
    "a number": (b'{"text": 3}', "field 'text' is a number, not a string"),
    "null": (b'{"text": null}', "field 'text' is a null, not a string"),
    "lone surrogate": (b'{"text": "\\ud800"}', "field 'text' holds a lone surrogate"),
    "too deep": (b'{"text": ' + b"[" * 100_000, "not JSON: nested too deeply"),
}


def test_bad_records_are_listed_with_their_places_and_the_good_ones_kept(tmp_path: Path) -> None:
    bad, good = tmp_path / "bad.jsonl", tmp_path / "good.jsonl"
    lines: list[bytes] = []
    wanted = []
    for i, (line, reason) in enumerate(BAD_LINES.values()):
        lines.append(json.dumps(GOOD[i % 5] | {"n": i}).encode())
        wanted.append((len(lines) + 1, sum(len(line) + 1 for line in lines), reason))
        lines += [line, b""]
    bad.write_bytes(b"\n".join(lines))
    good.write_text("\n".join(map(json.dumps, GOOD)))
    said = run("prepare", bad, "--out", tmp_path / "out", *FLAGS)
    assert said.returncode == 0, said.stderr
    assert str(tmp_path / "out" / "rejected.jsonl") in said.stdout
    rejected = [
        json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    ]
    assert [(entry["line"], entry["offset"]) for entry in rejected] == [
        (line, offset) for line, offset, _ in wanted
    ]
    assert {entry["source"] for entry in rejected} == {str(bad)}
    for entry, (_, _, reason) in zip(rejected, wanted, strict=True):
        assert entry["reason"].startswith(reason)
    tokenmill.prepare(good, tmp_path / "good", **OPTIONS)
    assert tokens_of(tmp_path / "out") == tokens_of(tmp_path / "good")


def test_a_run_without_usable_input_reports_the_reasons(tmp_path: Path) -> None:
    text = tmp_path / "x.jsonl"
    text.write_text('{"content": "x"}\n')
    said = run("prepare", text, "--out", tmp_path / "out", *FLAGS)
    assert said.returncode == 1
    assert f"{text}, line 1: no field 'text'" in said.stderr
    assert "--text-field" in said.stderr
    again = run(
        "prepare", text, "--out", tmp_path / "out", *FLAGS, "--text-field", "content", "--restart"
    )
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("name", ["x.txt", "x.jsonl"])
def test_invalid_utf_8_is_repaired_dropped_or_refused(tmp_path: Path, name: str) -> None:
    text = tmp_path / name
    if name == "x.txt":
        text.write_bytes(
            "one\n<|endoftext|>tw\0o<|endoftext|>three".replace("\0", "\xff").encode("latin1")
        )
        offset, place, line = 17, 19, 2
    else:
        text.write_bytes(b'{"text": "one"}\n{"text": "tw\xffo"}\n{"text": "three"}\n')
        offset, place, line = 16, 28, 2
    kept = tokenmill.prepare(text, tmp_path / "repair", **OPTIONS)
    assert kept.manifest.ledger["repaired_documents"] == 1
    assert "tw\ufffdo" in run("peek", tmp_path / "repair", "--document", "1").stdout
    tokenmill.prepare(text, tmp_path / "drop", on_bad_text="drop", **OPTIONS)
    rejected = json.loads((tmp_path / "drop" / "rejected.jsonl").read_text())
    assert rejected == {
        "source": str(text),
        "line": line,
        "offset": offset,
        "reason": f"invalid UTF-8 at byte {place}: invalid start byte",
    }
    good = tmp_path / "good.txt"
    good.write_text("one<|endoftext|>three")
    tokenmill.prepare(good, tmp_path / "good", **OPTIONS)
    assert tokens_of(tmp_path / "drop") == tokens_of(tmp_path / "good")
    with pytest.raises(InputError, match=f"invalid UTF-8 at byte {place}"):
        tokenmill.prepare(text, tmp_path / "refuse", on_bad_text="refuse", **OPTIONS)


@pytest.mark.parametrize("name", ["x.txt", "x.jsonl"])
@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-16LE", "UTF-16BE", "UTF-32", "UTF-32LE"])
def test_utf_16_and_utf_32_are_read_like_the_text_that_iconv_makes(
    tmp_path: Path, encoding: str, name: str
) -> None:
    wide, text = tmp_path / f"wide-{name}", tmp_path / name
    wide.write_bytes('{"text": "Grüße aus einer anderen Welt"}'.encode(encoding))
    convert = ["iconv", "-f", encoding, "-t", "UTF-8", wide]
    text.write_bytes(subprocess.run(convert, check=True, capture_output=True).stdout)
    for source in (wide, text):
        report = tokenmill.prepare(source, tmp_path / source.stem, **OPTIONS)
        assert report.manifest.ledger["repaired_documents"] == 0
    assert tokens_of(tmp_path / wide.stem) == tokens_of(tmp_path / text.stem)


def test_truncated_json_array_is_named_at_the_end_or_skipped(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("good")
    (texts / "array.json").write_text(json.dumps(GOOD, indent=1)[:-3])
    with pytest.raises(InputError, match=r"array.json: the JSON array is cut short"):
        tokenmill.prepare(texts, tmp_path / "out", **OPTIONS)
    report = tokenmill.prepare(texts, tmp_path / "out", skip_bad_files=True, **OPTIONS)
    assert [entry["source"] for entry in report.manifest.ledger["set_aside"]] == [
        str(texts / "array.json")
    ]


def test_binary_files_in_a_folder_are_passed_over_and_counted(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("good")
    (texts / "program").write_bytes(b"\x7fELF\0\0" * 10)
    (texts / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\xff" * 10)
    (texts / "NOTES").write_text("a text without an ending to its name")
    report = tokenmill.prepare(texts, tmp_path / "out", **OPTIONS)
    assert [Path(source.path).name for source in report.manifest.sources] == ["NOTES", "a.txt"]
    planned = run("prepare", texts, "--dry-run", *FLAGS)
    assert "2 (2 files that are not text passed over)" in planned.stdout


@pytest.mark.parametrize("given", [".", "*"])
def test_broken_link_is_refused_immediately_or_skipped(tmp_path: Path, given: str) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("good")
    (texts / "b.parquet").symlink_to("../blobs/b5bb9d")
    os.mkfifo(texts / "pipe.txt")
    command = ("prepare", texts / given, "--out", tmp_path / "out", *FLAGS)
    refused = run(*command)
    assert refused.returncode == 1
    assert f"{texts / 'b.parquet'}: a broken link to ../blobs/b5bb9d" in refused.stderr
    assert not (tmp_path / "out").exists()
    said = run(*command, "--skip-bad-files")
    assert said.returncode == 0, said.stderr
    assert f"Skipped: {texts / 'b.parquet'}: a broken link to ../blobs/b5bb9d." in said.stdout
    assert f"1 pipe, socket or device ({texts / 'pipe.txt'})" in said.stderr


def test_file_name_that_is_not_utf_8_is_stored_as_a_uri(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    odd = {b"caf\xe9.txt": b"words", b"caf\xe9.parquet": parquet_bytes(9), b"\xff.jsonl": b"broken"}
    for name, data in odd.items():
        with open(os.path.join(os.fsencode(texts), name), "wb") as file:  # noqa: PTH118, PTH123
            file.write(data)
    (texts / "plain.txt").write_text("good")
    command = ("prepare", texts, "--out", tmp_path / "out", *FLAGS)
    said = run(*command)
    assert said.returncode == 0, said.stderr
    manifest = json.loads((tmp_path / "out" / "dataset_metadata.json").read_text())
    listed = (tmp_path / "out" / "sources.jsonl").read_text().splitlines()
    uris = [f"{texts.as_uri()}/{name}" for name in ("caf%E9.parquet", "caf%E9.txt")]
    assert [json.loads(source)["path"] for source in listed] == [
        *uris, str(texts / "plain.txt"), f"{texts.as_uri()}/%FF.jsonl",
    ]  # fmt: skip
    assert manifest["ledger"]["documents_kept"] == 11
    rejected = json.loads((tmp_path / "out" / "rejected.jsonl").read_text())
    assert rejected["source"] == f"{texts.as_uri()}/%FF.jsonl"
    assert run(*command).returncode == 0


class MeddlesWith:
    """A watcher that changes the input when a stage begins."""

    def __init__(self, stage: str, meddle: Callable[[], object]) -> None:
        self.stage, self.meddle = stage, meddle

    def begin(self, stage: str, total: int, done: int = 0, unit: str = "bytes") -> None:
        if stage == self.stage:
            self.meddle()

    def advance(self, *_: int) -> None: ...
    def note(self, text: str) -> None: ...


def _shrink(path: Path) -> None:
    path.write_text("shorter")


def _grow(path: Path) -> None:
    with path.open("a") as file:
        file.write("\nand one line more, which is of some length")


def _alter(path: Path) -> None:
    path.write_text(path.read_text().swapcase())


@pytest.mark.parametrize(
    ("dedup", "skip"), [("documents", False), ("lines", False), ("lines", True)]
)
@pytest.mark.parametrize("meddle", [_shrink, _grow, _alter, Path.unlink])
def test_a_file_that_changes_during_a_run_is_named_and_the_next_run_reads_it_again(
    tmp_path: Path, dedup: str, meddle: Callable[[Path], None], skip: bool
) -> None:
    texts, out = tmp_path / "texts", tmp_path / "out"
    texts.mkdir()
    for name in "abc":
        (texts / f"{name}.txt").write_text("a line that all of them have in common\nand " + name)
    options = {**OPTIONS, "dedup": dedup, "skip_bad_files": skip}
    watcher = MeddlesWith("tokenizing", lambda: meddle(texts / "b.txt"))
    gone = meddle is Path.unlink
    said = "b.txt: " + ("No such file" if gone else "the file changed")
    with pytest.raises(InputError, match=re.escape(said)):
        tokenmill.prepare(texts, out, watcher=watcher, **options)
    if gone:
        (texts / "b.txt").write_text("back again")
    tokenmill.prepare(texts, out, **options)
    report = tokenmill.prepare(texts, tmp_path / "clean", **options)
    assert contents(out) == contents(tmp_path / "clean")
    assert report.manifest.ledger["set_aside"] == []


def _obey_permissions() -> None:
    """Give up root's right to read everything, if this is root."""
    libc = ctypes.CDLL(None)
    drop_from_bounding_set, override, read_search = 24, 1, 2
    for capability in (override, read_search):
        libc.prctl(drop_from_bounding_set, capability, 0, 0, 0)


def test_file_without_permission_is_named(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("a.txt", "b.txt", "c.json", "d.parquet"):
        (texts / name).write_text('{"text": "good"}')
    for name in ("b.txt", "c.json", "d.parquet"):
        (texts / name).chmod(0)
    command = ("prepare", texts, "--out", tmp_path / "out", *FLAGS)
    said = run(*command, preexec_fn=_obey_permissions)
    assert said.returncode == 1
    for name in ("b.txt", "c.json"):
        assert f"{texts / name}: Permission denied" in said.stderr
    assert f"{texts / 'd.parquet'}: " in said.stderr
    assert "Traceback" not in said.stderr
    aside = run(*command, "--skip-bad-files", preexec_fn=_obey_permissions)
    assert aside.returncode == 0
    assert f"Skipped: {texts / 'b.txt'}: Permission denied." in aside.stdout
    texts.chmod(0)
    folder = run("prepare", texts, "--out", tmp_path / "other", preexec_fn=_obey_permissions)
    texts.chmod(0o755)
    assert folder.returncode == 1
    assert f"{texts}: Permission denied" in folder.stderr


def test_error_of_the_library_is_a_tokenmill_error(tmp_path: Path) -> None:
    with pytest.raises(TokenmillError):
        tokenmill.prepare(tmp_path / "nothing", tmp_path / "out")


@pytest.mark.parametrize("dedup", ["documents", "lines"])
def test_file_that_can_be_read_now_is_not_skipped_for_an_earlier_failure(
    tmp_path: Path, dedup: str
) -> None:
    texts, out = tmp_path / "texts", tmp_path / "out"
    texts.mkdir()
    for name in ("a.txt", "b.txt"):
        (texts / name).write_text(f"a line of one of the files\nand {name}")
    command = ("prepare", texts, "--out", out, *FLAGS, "--dedup", dedup, "--skip-bad-files")
    (texts / "a.txt").chmod(0)
    process = start(*command, preexec_fn=_obey_permissions)
    assert wait_until(lambda: any(out.glob(".work/segments/*.json")))
    kill_all(process)
    (texts / "a.txt").chmod(0o644)
    assert run(*command).returncode == 0
    tokenmill.prepare(texts, tmp_path / "clean", skip_bad_files=True, dedup=dedup, **OPTIONS)
    assert contents(out) == contents(tmp_path / "clean")
