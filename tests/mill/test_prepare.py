"""`prepare` from files to files, against the slow and obvious way of doing the same."""

from __future__ import annotations

import fcntl
import filecmp
import json
import os
import random
import shutil
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import in_process
from inputs import make_inputs
from naive import (
    END,
    check_dataset,
    encode_bytes,
    encode_gpt2,
    key_of,
    make_expected,
)

import tokenmill
from tokenmill.errors import FolderError, InputError, TokenizerError, UsageError
from tokenmill.mill import lines, plan
from tokenmill.store.verify import verify
from tokenmill.tokenizers import Tokenizer, load_tokenizer
from tokenmill.tokenizers.raw_bytes import ByteTokenizer


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return load_tokenizer("gpt2")


@pytest.fixture
def no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk is most of the time that tiny shards take."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


SEPARATORS = {"auto": END, "file": None, "line": b"\n", "blank-line": b"", "##": b"##", "aa": b"aa"}


@pytest.mark.parametrize("seed", range(40))
def test_random_inputs_become_what_the_naive_way_makes_of_them(
    tmp_path: Path, seed: int, gpt2: Tokenizer, no_flush: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    paths = make_inputs(tmp_path, chance)
    documents = chance.choice(list(SEPARATORS))
    settings: dict[str, Any] = {
        "normalize": chance.random() < 0.7,
        "dedup": chance.choice(["documents", "lines", "none"]),
        "val_fraction": chance.choice([0, 0.3, 0.9]),
        "eot": chance.choice(["after", "before", "none"]),
        "on_bad_text": chance.choice(["repair", "drop"]),
        "min_line": chance.choice([1, 3, 10, 20]),
    }
    if settings["dedup"] == "lines":
        # The lines of a dropped document in pieces count as seen, and there are many here.
        settings["on_bad_text"] = "repair"
    tokens_per_shard = chance.choice([7, 50, 200, 10**6])
    by_bytes = chance.random() < 0.6
    expected = make_expected(
        paths,
        encode=encode_bytes if by_bytes else encode_gpt2,
        eot_id=256 if by_bytes else 50256,
        separator=SEPARATORS[documents],
        **settings,
    )
    # Half a line is never removed, and in blocks of a few bytes many lines are cut in halves.
    block = chance.choice([300, 1000] if settings["dedup"] == "lines" else [8, 16, 50, 300])
    halves = watch_for_halves(monkeypatch)
    with in_process(
        part=chance.choice([16, 40, 100, 1000]), block=block, keys=chance.choice([3, 20, 1 << 16])
    ):
        try:
            tokenmill.prepare(
                paths,
                tmp_path / "out",
                tokenizer="bytes" if by_bytes else gpt2,
                documents=documents,
                tokens_per_shard=tokens_per_shard,
                workers=1,
                **settings,
            )
        except InputError as error:
            assert "No document was kept" in str(error)  # noqa: PT017
            assert not any(expected.documents.values())
            return
    if not halves:
        check_dataset(tmp_path / "out", expected, paths, tokens_per_shard)
    assert verify(tmp_path / "out") == []


def watch_for_halves(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    found = []
    find = lines._find_lines

    def watch(text: bytes, min_line: int, **flags: bool) -> Any:
        if flags.get("mid_line"):
            found.append(True)
        return find(text, min_line, **flags)

    monkeypatch.setattr(lines, "_find_lines", watch)
    return found


def files_in(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def assert_same_files(one: Path, other: Path) -> None:
    assert files_in(one) == files_in(other)
    _, different, unreadable = filecmp.cmpfiles(one, other, files_in(one), shallow=False)
    assert not different
    assert not unreadable


def python_sources(size: int) -> Iterator[str]:
    """Texts out of Python's own library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        yield text
        size -= len(text)
        if size < 0:
            return


def make_mixed(folder: Path) -> list[Path]:
    """Half a megabyte or so in all kinds of files, with duplicates across them."""
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    texts = list(python_sources(400_000))
    words = "one two three\nfour five six\nseven\n" * 40
    texts[3] = texts[0]
    some = texts[::3]
    (folder / "a.txt").write_text("<|endoftext|>".join([*some, "", words]))
    (folder / "b.md").write_text(f"# Title\n\n{words}")
    rows = [json.dumps({"text": text, "id": n}) for n, text in enumerate([*texts[1::3], words])]
    rows[2:2] = ["", "not json", '{"id": 1}']
    with gzip.open(folder / "c.jsonl.gz", "wt") as file:
        file.write("\n".join(rows))
    (folder / "d.jsonl").write_text("\n".join(reversed([*rows, "[]"])))
    column = pa.array([*texts[2::3], None, texts[0]])
    pq.write_table(pa.table({"text": column}), folder / "e.parquet", row_group_size=3)
    return sorted(folder.iterdir())


@pytest.mark.parametrize("dedup", ["documents", "lines"])
def test_any_number_of_workers_writes_the_same_bytes(
    tmp_path: Path, dedup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_mixed(tmp_path / "in")
    monkeypatch.setattr(plan, "PART_BYTES", 20_000)
    settings: dict[str, Any] = {"dedup": dedup, "val_fraction": 0.2}
    for workers in (1, 2, 3):
        report = tokenmill.prepare(
            tmp_path / "in",
            tmp_path / f"out{workers}",
            workers=workers,
            tokens_per_shard=30_000,
            **settings,
        )
        assert report.parts > 15
        assert not report.was_finished
    assert_same_files(tmp_path / "out1", tmp_path / "out2")
    assert_same_files(tmp_path / "out1", tmp_path / "out3")
    expected = make_expected(paths, encode=encode_gpt2, eot_id=50256, **settings)
    expected.dropped["not a JSON object"] = expected.dropped.pop("odd")
    manifest = check_dataset(tmp_path / "out1", expected, paths, 30_000)
    assert manifest["dtype"] == "uint16"
    assert len(manifest["splits"]["train"]["shards"]) > 2
    assert verify(tmp_path / "out1") == []
    assert not (tmp_path / "out1" / ".work").exists()


GIANT = 10_000_000


def make_giants(folder: Path) -> dict[str, str]:
    """Documents longer than several parts and blocks, in which cuts must be found in many ways."""
    chance = random.Random(5)
    folder.mkdir()
    prose = " ".join("".join(python_sources(600_000)).split())
    words = prose.split(" ")
    chance.shuffle(words)
    lines = [" ".join(words[i : i + 12]) for i in range(0, len(words), 12)]
    letters = [chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(200_000)]
    dense = ["".join(letters[i : i + 40]) for i in range(0, len(letters), 40)]

    def fill(pieces: Sequence[str], between: str) -> str:
        block = between.join(pieces) + between
        return block * (GIANT // len(block.encode()) + 1)

    giants = {
        "a-newlines.txt": fill(lines, "\n"),
        "b-spaces.txt": fill(words, " "),
        "c-returns.txt": fill(lines, "\r\n"),
        "d-dense.txt": fill(dense, "\n"),
        "e-numbers-first.txt": "1234567890\n" * 500_000 + fill(lines, "\n"),
    }
    for name, text in giants.items():
        (folder / name).write_bytes(text.encode())
    return giants


def test_giant_documents_have_the_ids_of_the_whole(
    tmp_path: Path, gpt2: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    giants = make_giants(tmp_path / "in")
    shutil.copy(tmp_path / "in" / "a-newlines.txt", tmp_path / "in" / "f-again.txt")
    row = json.dumps({"text": giants["b-spaces.txt"]})
    (tmp_path / "in" / "g-again.jsonl").write_text(f'{{"text": "small"}}\n{row}\n')
    giants["g-again.jsonl"] = "small"
    monkeypatch.setattr(plan, "PART_BYTES", 3 << 20)
    for workers in (1, 3):
        report = tokenmill.prepare(
            tmp_path / "in",
            tmp_path / f"out{workers}",
            tokenizer=gpt2,
            workers=workers,
            normalize=False,
            val_fraction=0,
        )
        assert report.parts > 20
    assert_same_files(tmp_path / "out1", tmp_path / "out3")
    dropped = report.manifest.ledger["dropped"]
    # The giant on Windows lines and the numbers come once; two came twice.
    assert dropped["duplicate"]["documents"] == 2
    table = np.load(tmp_path / "out1" / "train" / "shard_00000.docs.npy")
    tokens = np.fromfile(tmp_path / "out1" / "train" / "shard_00000.bin", "<u2")
    assert len(table) == len(giants)
    for record, text in zip(table, giants.values(), strict=True):
        data = text.encode()
        assert tuple(record["key"].tolist()) == key_of(data)
        whole, _ = gpt2.encode_batch([data])
        start, length = int(record["first"]), int(record["length"])
        assert tokens[start + length - 1] == 50256
        assert np.array_equal(tokens[start : start + length - 1], whole)


def test_cleaned_giants_are_those_of_the_whole_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(9)
    pieces = [
        "word",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\n \n\n",
        "\t",
        "e\u0301",
        "\ufeff",
        "क\u0958",
        "日本",
        "1.",
    ]
    text = "".join(chance.choices(pieces, k=1_000_000)) + " the end"
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(text.encode() * 2)
    monkeypatch.setattr(plan, "PART_BYTES", 1 << 20)
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    report = tokenmill.prepare(
        paths, tmp_path / "out", tokenizer="bytes", workers=2, val_fraction=0
    )
    assert report.parts > 8
    expected = make_expected(paths, encode=encode_bytes, eot_id=256, val_fraction=0)
    assert expected.dropped["duplicate"][0] == 1
    check_dataset(tmp_path / "out", expected, paths, 100_000_000)


def test_ids_across_cuts_where_a_pattern_takes_punctuation_and_newlines_together(
    tmp_path: Path,
) -> None:
    # U+0958 becomes a letter and a mark; cl100k's pattern joins the mark with the newline.
    tokenizer = load_cl100k(tmp_path)
    assert tokenizer.cuttable
    text = ("क\u0958\n" * 50 + "word\n" + "\u0958\r\n" * 30 + "ends\n") * 20
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    with in_process(part=500, block=64):
        tokenmill.prepare(path, tmp_path / "out", tokenizer=tokenizer, val_fraction=0, workers=1)
    expected = make_expected(
        [path],
        encode=lambda data: tokenizer.encode_batch([data])[0].tolist(),
        eot_id=tokenizer.eot_id,
        val_fraction=0,
    )
    check_dataset(tmp_path / "out", expected, [path], 100_000_000)


def load_cl100k(folder: Path) -> Tokenizer:
    """A tokenizer with cl100k's pattern in which a mark and a newline are one token."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {value: chr(value) for value in visible}
    for value in range(256):
        letters.setdefault(value, chr(256 + len(letters) - len(visible)))
    vocabulary = {letters[value]: value for value in range(256)}
    mark = "".join(letters[byte] for byte in "\u093c".encode())
    merges = [f"{mark[0]} {mark[1]}", f"{mark[:2]} {mark[2]}", f"{mark} {letters[10]}"]
    for number, merge in enumerate(merges):
        vocabulary[merge.replace(" ", "")] = 256 + number
    end = {"id": 259, "content": "<|endoftext|>", "special": True, "single_word": False}
    end |= {"lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    document = {
        "version": "1.0",
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, byte_level | {"use_regex": False}],
        },
        "post_processor": None,
        "decoder": byte_level | {"use_regex": False},
        "model": {"type": "BPE", "vocab": vocabulary | {"<|endoftext|>": 259}, "merges": merges},
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document))
    return load_tokenizer(path)


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        name: ((folder / name).stat().st_mtime_ns, (folder / name).read_bytes())
        for name in files_in(folder)
        if name != ".work/lock"
    }


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("<|endoftext|>".join(f"Document {n}, with some words." for n in range(40)))
    return path


def make(source: Any, out: Path, **options: Any) -> Any:
    with in_process():
        return tokenmill.prepare(source, out, **{"tokenizer": "bytes", "workers": 1, **options})


def test_a_finished_folder_is_not_touched(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    first = make(text, out)
    before = snapshot(out)
    again = make(text, out)
    assert again.was_finished
    assert not first.was_finished
    assert again.manifest == first.manifest
    # How the work is done, and what to do about files that are not bad, change no byte.
    assert make(text, out, workers=2, memory=1 << 30, skip_bad_files=True).was_finished
    assert snapshot(out) == before
    assert not (out / ".work").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"val_fraction": 0.5}, "val_fraction was 0.01, is 0.5"),
        ({"eot": "none"}, "eot was 'after', is 'none'"),
        ({"dedup": "none"}, "dedup was 'documents', is 'none'"),
        ({"tokens_per_shard": 7}, "tokens_per_shard was 100000000, is 7"),
        ({"tokenizer": "gpt2"}, "tokenizer was"),
        ({"source": "other.txt"}, "the input was"),
        ({"grown": True}, "text.txt"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_another_dataset_is_refused_by_what_differs(
    tmp_path: Path, text: Path, change: dict[str, Any], named: str, finished: bool
) -> None:
    out = tmp_path / "out"
    (tmp_path / "other.txt").write_text("Another text altogether.")
    source: Any = text
    if not finished:
        (tmp_path / "bad.txt.gz").write_bytes(b"no gzip")
        source = [text, tmp_path / "bad.txt.gz"]
        with pytest.raises(InputError):
            make(source, out)
    else:
        make(source, out)
    before = snapshot(out)
    change = dict(change)
    if "source" in change:
        source = tmp_path / change.pop("source")
    if change.pop("grown", None):
        with text.open("a") as file:
            file.write("more")
    with pytest.raises(FolderError, match=named) as caught:
        make(source, out, **change)
    assert "--restart" in str(caught.value)
    assert snapshot(out) == before
    if finished:
        assert not (out / ".work").exists()
        make(source, out, restart=True, **change)
        make(source, tmp_path / "fresh", **change)
        assert_same_files(out, tmp_path / "fresh")


def test_a_restart_begins_again_and_spares_what_is_not_its_own(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    make(text, out, tokens_per_shard=100)
    (out / "notes.txt").write_text("mine")
    before = (out / "train" / "shard_00000.bin").stat().st_ino
    report = make(text, out, tokens_per_shard=1000, restart=True)
    assert not report.was_finished
    assert (out / "train" / "shard_00000.bin").stat().st_ino != before
    assert (out / "notes.txt").read_text() == "mine"
    assert len(report.manifest.splits["train"].shards) == 2


def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    (out / "sub").mkdir(parents=True)
    (out / "thesis.tex").write_text("mine")
    for options in ({}, {"restart": True}):
        with pytest.raises(FolderError, match=r"thesis\.tex"):
            make(text, out, **options)
        assert files_in(out) == ["thesis.tex"]
        assert sorted(os.listdir(out)) == ["sub", "thesis.tex"]
    with pytest.raises(FolderError, match="is a file"):
        make(text, text)


def test_a_second_run_is_refused_while_one_holds_the_folder(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    (out / ".work").mkdir(parents=True)
    with (out / ".work" / "lock").open("w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        for restart in (False, True):
            with pytest.raises(FolderError, match=r"Another run.*process 4711"):
                make(text, out, restart=restart)
    make(text, out)
    assert verify(out) == []


@pytest.mark.parametrize("dedup", ["documents", "lines"])
def test_a_repaired_file_goes_on_and_ends_like_a_clean_run(tmp_path: Path, dedup: str) -> None:
    paths = make_mixed(tmp_path / "in")
    sound = (tmp_path / "in" / "c.jsonl.gz").read_bytes()
    options: dict[str, Any] = {"dedup": dedup, "tokens_per_shard": 50_000}
    with in_process(part=30_000):
        tokenmill.prepare(
            tmp_path / "in", tmp_path / "clean", tokenizer="bytes", workers=1, **options
        )
        (tmp_path / "in" / "c.jsonl.gz").write_bytes(sound[: len(sound) // 2])
        with pytest.raises(InputError, match=r"1 file could not be read.*\n.*c\.jsonl\.gz.*short"):
            tokenmill.prepare(
                tmp_path / "in", tmp_path / "out", tokenizer="bytes", workers=1, **options
            )
        assert not (tmp_path / "out" / "dataset_metadata.json").exists()
        shutil.copytree(tmp_path / "out", tmp_path / "skipped")
        skipped = tokenmill.prepare(
            tmp_path / "in",
            tmp_path / "skipped",
            tokenizer="bytes",
            workers=1,
            skip_bad_files=True,
            **options,
        )
        (tmp_path / "in" / "c.jsonl.gz").write_bytes(sound)
        report = tokenmill.prepare(
            tmp_path / "in", tmp_path / "out", tokenizer="bytes", workers=1, **options
        )
    assert_same_files(tmp_path / "clean", tmp_path / "out")
    if dedup == "documents":
        assert report.parts_done_before == report.parts - 1
        assert skipped.parts_done_before == skipped.parts - 1
    told = skipped.manifest.ledger["set_aside"]
    assert [entry["source"] for entry in told] == [str(tmp_path / "in" / "c.jsonl.gz")]
    assert "cut short" in told[0]["reason"]
    left = [path for path in paths if path.name != "c.jsonl.gz"]
    expected = make_expected(left, encode=encode_bytes, eot_id=256, dedup=dedup)
    for split in ("train", "val"):
        found = np.concatenate(
            [
                np.fromfile(tmp_path / "skipped" / shard.path, "<u2")
                for shard in skipped.manifest.splits[split].shards
            ]
            or [np.zeros(0, "<u2")]
        )
        assert found.tolist() == expected.tokens[split]
    assert verify(tmp_path / "skipped") == []


def test_nothing_kept_is_an_error_that_says_what_was_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "x"}\n{"body": "y"}\n')
    with pytest.raises(InputError, match="No document was kept out of 2") as caught:
        make(path, tmp_path / "out")
    assert "no field 'text': 2" in str(caught.value)
    assert "line 1" in str(caught.value)
    assert "--text-field" in str(caught.value)
    assert not (tmp_path / "out" / "dataset_metadata.json").exists()
    assert make(path, tmp_path / "other", text_field="body").manifest.splits["train"].documents == 2
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "blank.txt").write_bytes(b" \n\n ")
    with pytest.raises(InputError, match="empty: 2"):
        make([tmp_path / "empty.txt", tmp_path / "blank.txt"], tmp_path / "out3")


def test_rejected_texts_are_named_by_line_and_place_also_in_late_parts(tmp_path: Path) -> None:
    documents = [f"line one of {n}\nline two\nline three".encode() for n in range(200)]
    for number in (0, 3, 77, 150, 199):
        documents[number] = documents[number].replace(b"two", b"tw\xff")
    data = END.join(documents)
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with in_process(part=500, block=128):
        report = tokenmill.prepare(
            path,
            tmp_path / "out",
            tokenizer="bytes",
            workers=1,
            on_bad_text="drop",
        )
    assert report.parts > 10
    rejected = (tmp_path / "out" / "rejected.jsonl").read_text()
    told = [json.loads(line) for line in rejected.splitlines()]
    places = [at for at in range(len(data)) if data[at] == 0xFF]
    assert [entry["line"] for entry in told] == [data.count(b"\n", 0, at) + 1 for at in places]
    assert [entry["reason"].split(":")[0] for entry in told] == [
        f"invalid UTF-8 at byte {at}" for at in places
    ]
    assert [entry["offset"] for entry in told] == [data.rfind(b"line one", 0, at) for at in places]
    assert report.manifest.ledger["dropped"]["invalid UTF-8"]["documents"] == 5


def test_a_giant_with_bad_text_is_dropped_or_repaired_as_a_whole(
    tmp_path: Path, no_flush: None
) -> None:
    giant = b"many words in lines\n" * 200
    bad = giant[:2000] + b" \xff\xfe " + giant[2000:]
    path = tmp_path / "a.txt"
    path.write_bytes(b"<|endoftext|>".join([b"first", bad, b"second", giant]))
    for on_bad_text in ("drop", "repair"):
        out = tmp_path / on_bad_text
        with in_process(part=700, block=128):
            tokenmill.prepare(
                path,
                out,
                tokenizer="bytes",
                workers=1,
                on_bad_text=on_bad_text,
                tokens_per_shard=1000,
            )
        expected = make_expected([path], encode=encode_bytes, eot_id=256, on_bad_text=on_bad_text)
        manifest = check_dataset(out, expected, [path], 1000)
        assert manifest["ledger"]["repaired_documents"] == (on_bad_text == "repair")
    with pytest.raises(InputError, match=r"invalid UTF-8 at byte 2019"), in_process(part=700):
        tokenmill.prepare(
            path, tmp_path / "refuse", tokenizer="bytes", workers=1, on_bad_text="refuse"
        )


def test_a_dropped_giant_does_not_make_a_duplicate_of_a_good_document(tmp_path: Path) -> None:
    bad = b"many words in lines\n" * 100 + b"\xff"
    good = bad.replace(b"\xff", "\ufffd".encode())
    path = tmp_path / "a.txt"
    path.write_bytes(bad + b"<|endoftext|>" + good)
    for part in (1 << 20, 700):
        out = tmp_path / str(part)
        with in_process(part=part, block=128):
            report = tokenmill.prepare(
                path, out, tokenizer="bytes", workers=1, on_bad_text="drop", val_fraction=0
            )
        assert report.manifest.splits["train"].documents == 1
        assert list(report.manifest.ledger["dropped"]) == ["invalid UTF-8"]


class WordTokenizer:
    """The least that the Protocol asks for; its `state` is the bytes tokenizer's."""

    name = "words"
    vocab_size = 1 << 20
    special_ids: dict[str, int] = {}  # noqa: RUF012
    fingerprint = "words-1"
    cuttable = False

    def __init__(self, eot_id: int | None = 7) -> None:
        self.eot_id = eot_id

    def encode_batch(self, texts: Sequence[bytes]) -> Any:
        ids = [[len(word) + 70_000 for word in text.split()] for text in texts]
        offsets = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        return np.array([x for text in ids for x in text], np.uint32), offsets

    def decode(self, ids: Any) -> str:
        return " ".join("x" * (int(number) - 70_000) for number in ids)

    def state(self) -> dict[str, Any]:
        return ByteTokenizer().state()


def encode_words(text: bytes) -> list[int]:
    return [len(word) + 70_000 for word in text.split()]


def test_a_tokenizer_of_ones_own_works_in_the_workers(tmp_path: Path, text: Path) -> None:
    assert isinstance(WordTokenizer(), Tokenizer)
    report = tokenmill.prepare(text, tmp_path / "out", tokenizer=WordTokenizer(), workers=2)
    expected = make_expected([text], encode=encode_words, eot_id=7)
    check_dataset(tmp_path / "out", expected, [text], 100_000_000)
    assert report.manifest.dtype == "uint32"
    assert report.manifest.vocab_size == 1 << 20


def test_a_tokenizer_without_end_of_text_needs_to_be_told(tmp_path: Path, text: Path) -> None:
    for eot in ("after", "before"):
        with pytest.raises(UsageError, match="--eot none"):
            make(text, tmp_path / "out", tokenizer=WordTokenizer(None), eot=eot)
    assert not (tmp_path / "out").exists()
    make(text, tmp_path / "out", tokenizer=WordTokenizer(None), eot="none")
    expected = make_expected([text], encode=encode_words, eot_id=None, eot="none")
    check_dataset(tmp_path / "out", expected, [text], 100_000_000)


def test_ids_that_do_not_fit_are_refused(tmp_path: Path, text: Path) -> None:
    with pytest.raises(UsageError, match="beyond uint16"):
        make(text, tmp_path / "out", tokenizer=WordTokenizer(), dtype="uint16")
    liar = WordTokenizer()
    liar.vocab_size = 300
    with pytest.raises(TokenizerError, match="beyond its vocabulary of 300"):
        make(text, tmp_path / "out", tokenizer=liar)
    assert not (tmp_path / "out" / "dataset_metadata.json").exists()
    report = make(text, tmp_path / "wide", dtype="uint32")
    assert report.manifest.dtype == "uint32"
    assert verify(tmp_path / "wide") == []


class SilentTokenizer(WordTokenizer):
    """Gives no ids for some texts, as models that remove characters do."""

    fingerprint = "silent-1"

    def encode_batch(self, texts: Sequence[bytes]) -> Any:
        return super().encode_batch([text.replace(b"~", b"") for text in texts])


@pytest.mark.parametrize("tokens_per_shard", [1, 2, 3, 100])
def test_documents_without_tokens_are_counted_where_they_go(
    tmp_path: Path, no_flush: None, tokens_per_shard: int
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("<|endoftext|>".join(["~", "a b", "~~", "c", "~~~", "~~~~"]))
    out = tmp_path / "out"
    tokenizer = SilentTokenizer()
    tokenizer.fingerprint = ByteTokenizer().fingerprint
    report = make(
        path,
        out,
        tokenizer=tokenizer,
        eot="none",
        val_fraction=0,
        tokens_per_shard=tokens_per_shard,
    )
    ledger = report.manifest.ledger
    train = report.manifest.splits["train"]
    assert ledger["documents_kept"] == train.documents == 2
    assert ledger["dropped"]["no tokens"] == {"documents": 4, "bytes": 10}
    assert ledger["tokens"] == train.tokens == 3
    tables = [np.load(out / shard.documents_path) for shard in train.shards]
    assert sum(map(len, tables)) == 2
    assert all((table["length"] > 0).all() for table in tables)


def test_a_sentencepiece_model_takes_documents_whole(tmp_path: Path) -> None:
    import io

    import sentencepiece

    model = io.BytesIO()
    sentences = [line for text in python_sources(200_000) for line in text.splitlines() if line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type="bpe",
        byte_fallback=True,
        vocab_size=600,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    (tmp_path / "small.model").write_bytes(model.getvalue())
    tokenizer = load_tokenizer(tmp_path / "small.model")
    assert not tokenizer.cuttable
    reference = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    path = tmp_path / "a.txt"
    path.write_text("<|endoftext|>".join(["one long document\n" * 300, "short", "words " * 500]))
    with in_process(part=1000, block=100):
        report = tokenmill.prepare(
            path, tmp_path / "out", tokenizer=tokenizer, workers=1, val_fraction=0
        )
    assert report.parts > 5
    expected = make_expected(
        [path],
        encode=lambda data: reference.encode(data.decode()),
        eot_id=tokenizer.eot_id,
        val_fraction=0,
    )
    check_dataset(tmp_path / "out", expected, [path], 100_000_000)
    assert verify(tmp_path / "out") == []


def test_wrong_calls_say_what_is_wrong_before_any_work(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    for options, told in [
        ({"workers": 0}, "workers is 0"),
        ({"memory": 1000}, "memory is 1,000 bytes"),
        ({"tokens_per_shards": 5}, "unknown setting: tokens_per_shards"),
        ({"tokens_per_shard": 1e6}, "tokens_per_shard is 1000000.0"),
        ({"tokens_per_shard": "100"}, "tokens_per_shard is '100'"),
        ({"tokens_per_shard": 0}, "tokens_per_shard is 0"),
        ({"min_line": 2.5}, "min_line is 2.5"),
        ({"val_fraction": "0.1"}, "val_fraction is '0.1'"),
        ({"val_fraction": 1}, "val_fraction is 1"),
        ({"val_fraction": float("nan")}, "val_fraction is nan"),
        ({"normalize": "no"}, "normalize is 'no'"),
        ({"documents": None}, "documents is None"),
        ({"documents": ""}, "documents is empty"),
        ({"dedup": True}, "dedup is True"),
        ({"eot": "sometimes"}, "eot is 'sometimes'"),
    ]:
        with pytest.raises(UsageError, match=told):
            make(text, out, **options)
    with pytest.raises(InputError, match="No input"):
        make([], out)
    with pytest.raises(InputError, match=r"Did you mean .*text\.txt"):
        make(tmp_path / "texts.txt", out)
    assert not out.exists()


def test_an_output_folder_inside_the_input_folder_is_not_read(tmp_path: Path, text: Path) -> None:
    first = make(tmp_path, tmp_path / "out")
    assert len(first.manifest.sources) == 1
    assert make(tmp_path, tmp_path / "out").was_finished
