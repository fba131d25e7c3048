"""What `tokenmill prepare` prints: skipped files, refused files, singular and plural."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from shell import QUICK, run

import tokenmill
from tokenmill.cli.console import parse_size
from tokenmill.cli.prepare import show_report
from tokenmill.errors import UsageError


def test_dry_run_names_skipped_and_unusable_files(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("some words")
    (texts / "b.zip").write_bytes(b"PK")
    (texts / "c.png").write_bytes(bytes(10))
    (texts / "d").symlink_to(tmp_path)
    (texts / "e.jsonl").write_text('{"id": 1, "body": "words"}\n')
    (texts / "f.txt.gz").write_text("plain")
    result = run("prepare", texts, "--dry-run", *QUICK)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    kinds = "1 file that is not text, 1 archive, 1 link that leads out of its folder passed over"
    assert lines[0] == f"files      3 ({kinds})"
    named = (
        f"1 file that is not text ({texts}/c.png), 1 archive ({texts}/b.zip), 1 link that "
        "leads out of its folder"
    )
    assert f"passed over: {named} ({texts}/d)" in lines
    refused = [line for line in lines if line.startswith("cannot be used: ")]
    assert [Path(line.split(": ")[1]).name for line in refused] == ["e.jsonl", "f.txt.gz"]
    assert "it has id, body; name the field with --text-field NAME" in refused[0]
    assert "gzip" in refused[1]
    result = run("prepare", texts, "--dry-run", *QUICK, "--text-field", "body")
    assert "e.jsonl" not in result.stdout
    (texts / "f.txt.gz").unlink()
    result = run("prepare", texts, "--out", tmp_path / "out", *QUICK, "--text-field", "body")
    assert f"Passed over: {named} ({texts}/d).\n" in result.stderr


def test_long_lists_of_unusable_files_are_cut(tmp_path: Path) -> None:
    for number in range(25):
        (tmp_path / f"{number:02}.txt.gz").write_text("plain")
    result = run("prepare", tmp_path, "--dry-run", *QUICK)
    assert result.stdout.count("cannot be used: ") == 20
    assert "… and 5 more files that cannot be used" in result.stdout


@pytest.mark.parametrize(("bad", "repaired"), [(1, "1 document had"), (2, "2 documents had")])
def test_singular_and_plural(tmp_path: Path, bad: int, repaired: str) -> None:
    line = b"a line that comes again and again\n"
    text = tmp_path / "a.txt"
    text.write_bytes(
        b"<|endoftext|>".join([line * (1 + bad), *(b"\xff%d" % n for n in range(bad))])
    )
    options = ("--dedup", "lines", "--val-fraction", "0")
    result = run("prepare", text, "--out", tmp_path / "out", *QUICK, *options)
    assert result.returncode == 0, result.stderr
    listed = tmp_path / "out" / "repaired.jsonl"
    assert f"Repaired: {repaired} invalid UTF-8: see {listed}." in result.stdout
    assert len(listed.read_text().splitlines()) == bad
    assert f"Lines: {bad} repeated line{'s' if bad > 1 else ''} removed." in result.stdout
    made = run("pretokenize", text, "--tokenizer", "bytes", "--workers", bad)
    listed = tmp_path / "a.repaired.jsonl"
    assert f"  repaired: {repaired} invalid UTF-8: see {listed}" in made.stdout
    assert len(listed.read_text().splitlines()) == bad
    assert "rejected" not in made.stdout
    planned = run("prepare", text, "--dry-run", "--tokenizer", "bytes", "--workers", bad)
    assert planned.stdout.count(f"with {bad} worker{'s' if bad > 1 else ''}\n") == 1
    assert not re.search(r"\b1 \w+s\b", result.stdout + made.stdout.replace("s.", "."))


def test_the_result_agrees_with_info_and_ends_with_the_next_commands(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("<|endoftext|>".join(f"document {n}" for n in range(300)))
    out = tmp_path / "out"
    result = run("prepare", tmp_path / "a.txt", "--out", out, *QUICK, "--val-fraction", "0.1")
    steps = result.stdout.partition("Next:")[2].splitlines()
    assert [line.strip() for line in steps] == [
        f"tokenmill {command} {out}" for command in ("info", "peek", "train")
    ]
    shown = run("info", out).stdout
    for split in ("train", "val"):
        (row,) = (
            line.split() for line in result.stdout.splitlines() if line.split()[:1] == [split]
        )
        assert row in [line.split() for line in shown.splitlines()]


def test_an_empty_training_split_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words")
    out = tmp_path / "out"
    result = run("prepare", tmp_path / "a.txt", "--out", out, *QUICK, "--val-fraction", "0.999999")
    assert "The training split is empty" in result.stdout
    assert "tokenmill train" not in result.stdout
    result = run("peek", out)
    assert result.returncode == 1
    assert "Splits with tokens: val." in result.stderr
    assert run("info", out).stdout.startswith(f"{out}: 11 tokens of 1 document\n")


def test_a_file_in_another_encoding_is_named_with_the_cure(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes("L'été dernier, nous avons visité la forêt près du château.".encode("cp1252"))
    result = run("prepare", text, "--out", tmp_path / "out", *QUICK, "--val-fraction", "0")
    assert (
        f"Not UTF-8: {text}: 10.3% of its text was replaced; it looks like WINDOWS-1252: "
        "convert it with iconv -f WINDOWS-1252 -t UTF-8, or pass --encoding WINDOWS-1252 if all "
        "files are."
    ) in result.stdout


def test_a_dataset_without_a_count_of_encodings_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    report = tokenmill.prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer="bytes", workers=1)
    del report.manifest.ledger["other_encodings"]  # as older versions wrote it
    show_report(report, 1.0)
    shown = capsys.readouterr().out
    assert "Repaired: 1 document had invalid UTF-8" in shown
    assert "more files" not in shown


def test_the_final_rate_counts_the_bytes_that_progress_counts(tmp_path: Path) -> None:
    text = tmp_path / "a.txt.gz"
    text.write_bytes(gzip.compress(b"the same words again and again\n" * 300_000))
    first = tokenmill.prepare(text, tmp_path / "data", tokenizer="bytes")
    again = tokenmill.prepare(text, tmp_path / "data", tokenizer="bytes")
    assert (first.bytes_read, again.bytes_read) == (text.stat().st_size, 0)
    result = run("prepare", text, "--out", tmp_path / "other", *QUICK)
    (rate,) = re.findall(r"\d s, ([\d.]+ [kM]?B)/s\.", result.stdout)
    # 9 MB of text are 23 kB on the disk, and no run takes less than a hundredth of a second.
    assert parse_size(rate) < 100 * text.stat().st_size


@pytest.mark.parametrize("text", ["9" * 400 + "GB", "²GB", "٣GB", "9" * 5000])
def test_absurd_sizes_are_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("option", ["--text-field", "--documents"])
def test_an_argument_that_is_not_utf_8_is_wrong_usage(tmp_path: Path, option: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    result = run("prepare", tmp_path, "--out", tmp_path / "out", option, "t\udcff", *QUICK)
    assert result.returncode == 2
    assert f"{option} is 't\\udcff', which is not valid Unicode" in result.stderr


def test_a_newline_in_a_name_forges_no_line(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    forged = "Next:  rm -rf ."
    records = json.dumps({f"id\n{forged}": 1})
    (texts / f"a\n{forged}.jsonl").write_text(f'{records}\n{{"text": "a"}}\n')
    (texts / f"b\n{forged}.txt.gz").write_bytes(b"not gzip")
    (texts / f"c\n{forged}.zip").write_bytes(b"PK")
    for options in ([], ["--skip-bad-files"], ["--dry-run"], ["--text-field", "body"]):
        result = run("prepare", texts, "--out", tmp_path / "out", *options, *QUICK)
        lines = (result.stdout + result.stderr).splitlines()
        assert not [line for line in lines if line.startswith(forged)], lines
    for command in ("info", "peek", "verify"):
        result = run(command, tmp_path / "out")
        assert result.returncode == 0, result.stderr
        lines = result.stdout.splitlines()
        assert not [line for line in lines if line.startswith(forged)], lines


def test_a_newline_in_an_untrusted_manifest_forges_no_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words")
    out = tmp_path / "out"
    assert run("prepare", tmp_path / "a.txt", "--out", out, *QUICK).returncode == 0
    listed = json.loads((out / "sources.jsonl").read_text())
    (out / "sources.jsonl").write_text(json.dumps(listed | {"path": "a\nNext: evil\u200b"}) + "\n")
    (out / "train\nNext: evil").write_text("")
    for command in ("info", "peek", "verify"):
        result = run(command, out)
        assert "\nNext: evil" not in result.stdout + result.stderr, command
        assert "\u200b" not in result.stdout, command
