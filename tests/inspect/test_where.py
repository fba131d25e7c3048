"""`where` against brute force: every record of a corpus is found, or its absence explained."""

from __future__ import annotations

import bisect
import gzip
import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "preparation"))

from preparing import make, small

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import DatasetError, UsageError
from tokenmill.inspect.where import keys, source_places
from tokenmill.inspect.where.where import where


@dataclass(frozen=True)
class Record:
    """A record of an input file: its place, and its text or the reason why it has none."""

    file: str
    place: int  # a byte or a row
    line: int | None
    size: int
    text: str | None
    fault: str | None = None


def make_texts(count: int) -> list[str | None]:
    """Random texts, of which some repeat and some are empty; None stands for a bad record."""
    pick = random.Random(7)
    words = "to be or not that is the question whether nobler in mind suffer".split()
    texts: list[str | None] = []
    for number in range(count):
        kind = pick.random()
        if kind < 0.15 and texts:
            texts.append(pick.choice(texts))
        elif kind < 0.2:
            texts.append("")
        elif kind < 0.25:
            texts.append(None)
        else:
            some = " ".join(pick.choices(words, k=pick.randint(1, 30)))
            texts.append(f"{some} {number}é")
    return texts


def write_jsonl(
    texts: list[str | None],
) -> tuple[bytes, list[tuple[int, int, str | None, str | None]]]:
    data, places = b"", []
    for line, text in enumerate(texts, 1):
        record = json.dumps({"id": line, "text": text}, ensure_ascii=bool(line % 2)).encode()
        places.append((len(data), line, text, "field 'text' is not a string"))
        data += record + b"\n"
    return data, places


def write_corpus(folder: Path) -> list[Record]:
    """Write files of all kinds; returns all records in input order."""
    folder.mkdir()
    pool = make_texts(400)
    records: list[Record] = []

    def add(name: str, data: bytes, places: list[tuple[int, int, str | None, str | None]]) -> None:
        ends = [place for place, *_ in places[1:]] + [len(data)]
        for (place, line, text, fault), end in zip(places, ends, strict=True):
            problem = fault if text is None else None
            records.append(Record(name, place, line, end - place, text, problem))

    lines = [text or "" for text in pool[:80]]
    data, places = b"", []
    for line, text in enumerate(lines, 1):
        places.append((len(data), line, text, None))
        data += text.encode() + b"\n"
    (folder / "a.txt").write_bytes(data)
    add("a.txt", data, places)
    data, places = write_jsonl(pool[60:200])
    (folder / "b.jsonl").write_bytes(data)
    add("b.jsonl", data, places)
    data, places = write_jsonl(pool[180:280])
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(data))
    add("c.jsonl.gz", data, places)
    rows = pool[250:400]
    pq.write_table(pa.table({"text": rows}), folder / "d.parquet", row_group_size=40)
    for row, text in enumerate(rows):
        fault = None if text is not None else "field 'text' is not a string"
        records.append(Record("d.parquet", row, None, 1, text, fault))
    return records


@pytest.fixture(scope="module", params=["small tables", "large tables"])
def corpus(request, tmp_path_factory):
    """A dataset and all records of its input. Its files are cut into parts of some hundred bytes."""
    folder = tmp_path_factory.mktemp("where")
    records = write_corpus(folder / "texts")
    make(
        folder / "texts",
        folder / "data",
        limits=small(part=3000, block=500),
        documents="line",
        val_fraction=0.3,
        tokens_per_shard=2000,
    )
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "large tables":  # as if there were too many documents to read all
            patch.setattr(keys, "SCANNED", -1)
            patch.setattr(source_places, "SCANNED", -1)
        yield folder / "data", records


def key_of(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())


def kept(records: list[Record]) -> dict[str, Record]:
    """The first record of each text, by the key of the text."""
    first: dict[str, Record] = {}
    for record in records:
        if record.text:
            first.setdefault(key_of(record.text), record)
    return first


def check_document(data: Path, found, record: Record) -> None:
    document = found.document
    assert document.key == key_of(record.text)
    assert document.source.path.endswith(f"texts/{record.file}")
    assert document.offset == record.place
    tokens = tokenmill.open(data)[found.split]
    text = bytes(tokens[found.start : found.start + found.length - 1].astype("u1")).decode()
    assert text == record.text


def check(data: Path, first: dict[str, Record], record: Record, what: str) -> None:
    """Compare the answer for one place of a record with the oracle."""
    found = where(data, what)
    if record.text and first[key_of(record.text)] == record:
        (document,) = found.documents
        assert not found.absences
        check_document(data, document, record)
        return
    assert not found.documents
    (absence,) = found.absences
    assert absence.source.endswith(f"texts/{record.file}")
    assert absence.start == record.place
    if record.text:
        assert absence.reason == "duplicate"
        assert absence.key == key_of(record.text)
        (twin,) = absence.twins
        check_document(data, twin, first[key_of(record.text)])
    else:
        assert absence.reason == (record.fault or "empty")


def test_every_record_is_found_by_its_place(corpus):
    data, records = corpus
    first = kept(records)
    assert len(first) < len(records)
    pick = random.Random(3)
    for record in records:
        inside = record.place + pick.randrange(record.size)
        unit = "row" if record.file.endswith(".parquet") else "byte"
        check(data, first, record, f"{record.file}:{unit}={inside}")


def test_every_record_is_found_by_its_line(corpus):
    data, records = corpus
    first = kept(records)
    for record in records[::3]:
        number = record.place if record.line is None else record.line
        check(data, first, record, f"texts/{record.file}:{number}")


def test_every_document_is_found_by_its_key(corpus):
    data, records = corpus
    for key, record in kept(records).items():
        (found,) = where(data, key).documents
        check_document(data, found, record)


def test_documents_are_found_by_some_of_their_text(corpus):
    data, records = corpus
    first = list(kept(records).values())
    for record in first[::40]:
        text = record.text[-12:]
        same = {one.text for one in first if text in one.text}
        found = where(data, text, kind="text", limit=1000)
        texts = set()
        for one in found.documents:
            tokens = tokenmill.open(data)[one.split]
            ids = tokens[one.start : one.start + one.length - 1]
            texts.add(bytes(ids.astype("u1")).decode())
        assert texts == same


def test_a_file_lists_its_documents(corpus):
    data, records = corpus
    first = kept(records)
    for file in ("a.txt", "b.jsonl", "c.jsonl.gz", "d.parquet"):
        (found,) = where(data, file, limit=5).files
        own = [record for record in first.values() if record.file == file]
        assert sum(found.documents.values()) == len(own)
        assert [one.offset for one in found.first] == [record.place for record in own[:5]]
        by_split = {}
        dataset = tokenmill.open(data)
        for split in dataset:
            numbers = [one for one in dataset[split].documents if one.source == found.source]
            by_split |= {split: len(numbers)} if numbers else {}
        assert found.documents == by_split


def test_all_documents_of_the_tables_have_a_record(corpus):
    data, records = corpus
    dataset = tokenmill.open(data)
    in_tables = {one.key for split in dataset for one in dataset[split].documents}
    assert in_tables == set(kept(records))


@settings(max_examples=25, deadline=None)
@given(
    text=st.text("ab \n", max_size=30).filter(lambda text: text.strip("\n")).map(str.encode),
    compressed=st.booleans(),
    part=st.sampled_from([5, 1000]),
    is_large=st.booleans(),
)
def test_every_byte_of_any_text_belongs_to_its_line(
    tmp_path_factory, text, compressed, part, is_large
):
    folder = tmp_path_factory.mktemp("any")
    file = folder / ("a.txt.gz" if compressed else "a.txt")
    file.write_bytes(gzip.compress(text) if compressed else text)
    options = {"documents": "line", "normalize": False, "val_fraction": 0.5}
    make(file, folder / "data", limits=small(part=part, block=10), **options)
    lines = text.split(b"\n")[: -1 if text.endswith(b"\n") else None]
    starts = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]
    with pytest.MonkeyPatch.context() as patch:
        if is_large:
            patch.setattr(keys, "SCANNED", -1)
            patch.setattr(source_places, "SCANNED", -1)
        for byte in range(len(text)):
            number = bisect.bisect_right(starts, byte) - 1
            line, first = lines[number], starts[lines.index(lines[number])]
            found = where(folder / "data", f"{file.name}:byte={byte}")
            if line and first == starts[number]:
                assert found.documents[0].document.offset == first
                continue
            (absence,) = found.absences
            assert absence.start == starts[number]
            assert absence.reason == ("duplicate" if line else "empty")
            twins = [twin.document.offset for twin in absence.twins]
            assert twins == ([first] if line else [])


@pytest.fixture
def lines(tmp_path):
    """A dataset of lines, one of which repeats."""
    (tmp_path / "a.txt").write_text("one\ntwo\none\nthree\n")
    tokenmill.prepare(
        tmp_path / "a.txt", tmp_path / "data", tokenizer="bytes", documents="line", val_fraction=0
    )
    return tmp_path


def test_without_the_file_bytes_are_found_and_lines_are_not(lines):
    (lines / "a.txt").unlink()
    found = where(lines / "data", "a.txt:byte=5")
    assert found.documents[0].document.offset == 4
    assert "does not exist" in found.notes[0]
    assert where(lines / "data", "a.txt:byte=4").notes == ()
    with pytest.raises(UsageError, match=r"a\.txt:byte=BYTE"):
        where(lines / "data", "a.txt:2")


def test_a_file_that_moved_is_read_where_it_is(lines):
    (lines / "moved").mkdir()
    (lines / "a.txt").rename(lines / "moved" / "a.txt")
    # The end of the path is not the source's, so the record is compared by its text.
    absence = where(lines / "data", f"{lines}/moved/a.txt:3")
    assert absence.documents[0].document.offset == 0
    assert "is not a source" in absence.notes[0]


def test_a_changed_file_is_reported(lines):
    (lines / "a.txt").write_text("one\nnew and longer\none\nthree\n")
    found = where(lines / "data", "a.txt:1")
    assert "has changed" in found.notes[0]
    assert found.documents[0].document.offset == 0
    (absence,) = where(lines / "data", "a.txt:2").absences
    assert absence.reason == "unknown"
    assert absence.key == key_of("new and longer")


def test_rejected_records_are_explained_without_their_file(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\nnot json\n{"text": "two"}\n')
    tokenmill.prepare(tmp_path / "a.jsonl", tmp_path / "data", tokenizer="bytes", val_fraction=0)
    (tmp_path / "a.jsonl").unlink()
    for what in ("a.jsonl:2", "a.jsonl:byte=16"):
        (absence,) = where(tmp_path / "data", what).absences
        assert absence.reason == "rejected"
        assert "not JSON" in absence.detail


def test_excluded_documents_are_explained(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "list.jsonl").write_text(json.dumps({"key": key_of("two")}) + "\n")
    tokenmill.prepare(
        tmp_path / "a.jsonl",
        tmp_path / "data",
        tokenizer="bytes",
        val_fraction=0,
        exclude=tmp_path / "list.jsonl",
    )
    for what in ("a.jsonl:2", "a.jsonl:byte=20", key_of("two"), key_of("two")[:8]):
        (absence,) = where(tmp_path / "data", what).absences
        assert (absence.reason, absence.start, absence.key) == ("excluded", 16, key_of("two"))
    (tmp_path / "a.jsonl").unlink()
    (absence,) = where(tmp_path / "data", "a.jsonl:byte=16").absences
    assert absence.reason == "excluded"


def test_records_without_unique_lines_are_explained(tmp_path):
    line = "a line that is long enough to be removed if it is repeated"
    texts = [f"{line}\nfirst", line, "second"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in texts))
    tokenmill.prepare(
        tmp_path / "a.jsonl", tmp_path / "data", tokenizer="bytes", dedup="lines", val_fraction=0
    )
    assert where(tmp_path / "data", "a.jsonl:2").absences[0].reason == "only repeated lines"
    assert where(tmp_path / "data", "a.jsonl:3").documents[0].document.number == 1
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps({"text": one}) + "\n" for one in ("second", line)))
    assert where(tmp_path / "data", f"{other}:1").documents[0].document.number == 1
    (absence,) = where(tmp_path / "data", f"{other}:2").absences
    assert absence.reason == "unknown"
    assert "no document of the dataset has its text" in absence.detail


def test_invalid_utf8_that_is_dropped_is_explained(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine\nbad \xff byte\nalso fine\n")
    tokenmill.prepare(
        tmp_path / "a.txt",
        tmp_path / "data",
        tokenizer="bytes",
        documents="line",
        on_bad_text="drop",
        val_fraction=0,
    )
    (absence,) = where(tmp_path / "data", "a.txt:2").absences
    assert absence.reason == "invalid UTF-8"
    assert "byte 9" in absence.detail


def test_an_empty_file_is_explained(tmp_path, capsys):
    (tmp_path / "t").mkdir()
    (tmp_path / "t/a.txt").write_text("fine")
    (tmp_path / "t/b.txt").touch()
    (tmp_path / "t/c.txt.gz").write_bytes(gzip.compress(b""))
    tokenmill.prepare(tmp_path / "t", tmp_path / "data", tokenizer="bytes", val_fraction=0)
    data = tmp_path / "data"
    for file in ("b.txt", "c.txt.gz"):
        for what in (file, f"{file}:1", f"{file}:byte=0"):
            (absence,) = where(data, what).absences
            assert (absence.reason, absence.detail) == ("empty", "the file has no text")
        with pytest.raises(UsageError, match="no line 2: it has 0 lines"):
            where(data, f"{file}:2")
    assert main(["where", str(data), "b.txt"]) == 1
    shown = capsys.readouterr().out
    assert "holds:  no document of the dataset\n\nsource:  " in shown
    assert shown.endswith(f"\nNext:  tokenmill info {data}\n")
    (tmp_path / "t/b.txt").unlink()
    assert where(data, "b.txt:1").absences[0].reason == "empty"


def test_a_file_that_was_skipped_is_explained(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t/a.txt").write_text("fine")
    (tmp_path / "t/b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "lost"}\n' * 50)[:-20])
    tokenmill.prepare(
        tmp_path / "t", tmp_path / "data", tokenizer="bytes", skip_bad_files=True, val_fraction=0
    )
    (file,) = where(tmp_path / "data", "b.jsonl.gz").files
    assert "cut short" in file.fault
    (absence,) = where(tmp_path / "data", "b.jsonl.gz:1").absences
    assert absence.reason == "skipped file"


@pytest.mark.parametrize("documents", ["auto", "blank-line", "file", "---"])
def test_places_between_separators_belong_to_the_document_before(tmp_path, documents):
    separator = {"auto": "<|endoftext|>", "blank-line": "\n\n", "file": "", "---": "---"}[documents]
    texts = [f"document {number} {'word ' * number}end" for number in range(30)]
    whole = separator.join(texts[:3] + texts[:1] + texts[3:])
    (tmp_path / "a.txt").write_text(whole)
    make(
        tmp_path / "a.txt",
        tmp_path / "data",
        limits=small(part=300, block=100),
        documents=documents,
        val_fraction=0,
    )
    starts = [0] if documents == "file" else []
    place = 0
    for text in texts[:3] + texts[:1] + texts[3:] if not starts else []:
        starts.append(place)
        place += len(text) + len(separator)
    for byte in range(0, len(whole), 7):
        found = where(tmp_path / "data", f"a.txt:byte={byte}")
        number = bisect.bisect_right(starts, byte) - 1
        if number == 3:
            assert found.absences[0].reason == "duplicate"
            assert found.absences[0].twins[0].document.offset == 0
        else:
            assert found.documents[0].document.offset == starts[number]


def test_names_of_sources_may_be_shortened(tmp_path, monkeypatch):
    for folder in ("x/web", "x/code"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.txt").write_text(folder)
    (tmp_path / "x/web/only.txt").write_text("only")
    (tmp_path / "x/web/odd:7.txt").write_text("odd")
    monkeypatch.chdir(tmp_path)
    tokenmill.prepare("x", "data", tokenizer="bytes", val_fraction=0)
    for what in ("only.txt", "web/only.txt", "./x/web/only.txt", f"{tmp_path}/x/web/only.txt:1"):
        (found,) = where("data", what).documents
        assert found.document.source.path == "x/web/only.txt"
    assert where("data", "odd:7.txt").documents[0].document.source.path == "x/web/odd:7.txt"
    with pytest.raises(UsageError, match=r"may be several sources: x/code/a\.txt, x/web/a\.txt"):
        where("data", "a.txt")
    with pytest.raises(UsageError, match=r"Did you mean x/web/only\.txt"):
        where("data", "onli.txt")
    with pytest.raises(UsageError, match="no line 9: it has 1 line"):
        where("data", "only.txt:9")
    with pytest.raises(UsageError, match="no byte 99"):
        where("data", "only.txt:byte=99")
    with pytest.raises(UsageError, match="counted from 1"):
        where("data", "only.txt:0")
    with pytest.raises(UsageError, match="has no row=3"):
        where("data", "only.txt:row=3")


def test_an_ambiguous_key_lists_some(tmp_path):
    texts = [f"{number}" for number in range(20_000)]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    tokenmill.prepare(
        tmp_path / "a.txt", tmp_path / "data", tokenizer="bytes", documents="line", val_fraction=0
    )
    known: dict[str, list[str]] = {}
    for text in texts:
        known.setdefault(key_of(text)[:6], []).append(key_of(text))
    start, several = next((start, keys) for start, keys in known.items() if len(keys) > 1)
    with pytest.raises(UsageError, match=f"several keys, such as {min(several)}"):
        where(tmp_path / "data", start)
    assert where(tmp_path / "data", several[0][:12]).documents[0].document.key == several[0]


def test_a_word_of_hexadecimal_digits_is_searched_as_text(tmp_path):
    (tmp_path / "a.txt").write_text("a facade of stone")
    tokenmill.prepare(tmp_path / "a.txt", tmp_path / "data", tokenizer="bytes", val_fraction=0)
    found = where(tmp_path / "data", "facade")
    assert (found.kind, found.documents[0].found) == ("text", 2)
    assert not where(tmp_path / "data", "facade", kind="key").documents


def test_a_text_with_a_dot_is_searched_unless_it_ends_like_a_source(tmp_path):
    (tmp_path / "a.txt").write_text("see www.example.com for readme.txt")
    tokenmill.prepare(tmp_path / "a.txt", tmp_path / "data", tokenizer="bytes", val_fraction=0)
    assert where(tmp_path / "data", "www.example.com").documents[0].found == 4
    with pytest.raises(UsageError, match="kind='text'"):
        where(tmp_path / "data", "readme.txt")
    assert where(tmp_path / "data", "readme.txt", kind="text").documents[0].found == 24


def test_a_text_that_is_not_found_may_be_a_misspelled_source(tmp_path, capsys):
    (tmp_path / "ast.py").write_text("some code")
    tokenmill.prepare(tmp_path / "ast.py", tmp_path / "data", tokenizer="bytes", val_fraction=0)
    for what in ("ast.pi", "ast.py:", "ast.py:-1"):
        found = where(tmp_path / "data", what)
        assert (found.kind, found.documents) == ("text", ())
        assert found.notes[0].endswith(f"Did you mean {tmp_path}/ast.py?")
        assert main(["where", str(tmp_path / "data"), what]) == 1
        assert f"No document has this text: {what}\nnote: No source is" in capsys.readouterr().out
    assert where(tmp_path / "data", "unlike any source").notes == ()
    assert where(tmp_path / "data", "ast.pi", kind="text").notes == ()


def test_equal_documents_are_all_found_by_their_key(tmp_path):
    (tmp_path / "a.txt").write_text("same\n" * 30)
    tokenmill.prepare(
        tmp_path / "a.txt",
        tmp_path / "data",
        tokenizer="bytes",
        documents="line",
        dedup="none",
        val_fraction=0,
    )
    found = where(tmp_path / "data", key_of("same"), limit=7)
    assert [one.document.number for one in found.documents] == list(range(7))
    assert not found.is_all
    assert where(tmp_path / "data", key_of("same"), limit=30).is_all


def test_mixtures_are_searched_in_all_their_datasets(tmp_path):
    for name in ("web", "code"):
        (tmp_path / f"{name}.txt").write_text(f"same\nonly in {name}\n")
        tokenmill.prepare(
            tmp_path / f"{name}.txt",
            tmp_path / name,
            tokenizer="bytes",
            documents="line",
            val_fraction=0,
        )
    data = [f"web={tmp_path}/web:0.7", f"code={tmp_path}/code:0.3"]
    assert [one.name for one in where(data, key_of("same")).documents] == ["web", "code"]
    assert [one.name for one in where(data, "only in", kind="text").documents] == ["web", "code"]
    assert [one.name for one in where(data, "code.txt:2").documents] == ["code"]
    with pytest.raises(UsageError, match="a number needs one dataset"):
        where(data, "token=1")


def test_other_formats_are_searched_by_text_and_number(tmp_path):
    (tmp_path / "a.txt").write_text("one two\nthree four\n")
    tokenmill.prepare(
        tmp_path / "a.txt", tmp_path / "data", tokenizer="bytes", documents="line", val_fraction=0
    )
    tokenmill.export(tmp_path / "data", tmp_path / "out", to="megatron")
    found = where(tmp_path / "out", "four", tokenizer="bytes").documents[0]
    assert (found.document.number, found.document.key) == (1, None)
    assert where(tmp_path / "out", "document=1").documents[0].start == 8
    assert where(tmp_path / "out", "token=9").documents[0].document.number == 1
    for kind in ("file", "key"):
        with pytest.raises(DatasetError, match="neither keys nor sources"):
            where(tmp_path / "out", "a.txt", kind=kind)
    with pytest.raises(UsageError, match="no document 2: it has 2 documents"):
        where(tmp_path / "out", "document=2")
    with pytest.raises(DatasetError, match=r"records no sources and no keys.*`tokenizer=NAME`"):
        where(tmp_path / "out", "a.txt:1")
    (note,) = where(tmp_path / "out", "a.txt:1", tokenizer="bytes").notes
    assert "files cannot be found" in note


def test_imported_tokens_are_found_in_their_files(tmp_path):
    (tmp_path / "a.txt").write_text("one two\nthree four\n")
    tokenmill.prepare(
        tmp_path / "a.txt", tmp_path / "data", tokenizer="bytes", documents="line", val_fraction=0
    )
    tokenmill.export(tmp_path / "data", tmp_path / "out", to="npy")
    tokenmill.import_dataset(tmp_path / "out", tmp_path / "again", tokenizer="bytes")
    name = tokenmill.open(tmp_path / "again")["train"].documents[0].source.path
    for row in range(19):
        (found,) = where(tmp_path / "again", f"{name}:row={row}").documents
        assert found.document.number == int(row >= 8)


def test_the_command_prints_facts_and_the_next_command(lines, capsys):
    data = str(lines / "data")
    assert main(["where", data, "a.txt:2"]) == 0
    shown = capsys.readouterr().out
    assert "document: 1 of split train" in shown
    assert f"tokenmill peek {data} --document 1" in shown
    assert main(["where", data, "a.txt:3"]) == 1
    shown = capsys.readouterr().out
    assert "not in the dataset: duplicate" in shown
    assert "The same text is in:" in shown
    assert main(["where", data, "a.txt"]) == 0
    assert "holds:  3 documents in train" in capsys.readouterr().out
    assert main(["where", data, "a.txt:2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"][0]["document"]["offset"] == 4
    assert main(["where", data, "four"]) == 1
    assert "No document has this text: four" in capsys.readouterr().out
    assert main(["where", data]) == 2
    assert "needs DATA and WHAT" in capsys.readouterr().err
    assert main(["where", data, ""]) == 2
    assert "WHAT is empty; give a file" in capsys.readouterr().err


def test_errors_have_status_2(lines, capsys):
    data = str(lines / "data")
    for wrong in (
        [str(lines / "nothing"), "one"],
        [data, "token=3", "--split", "nope"],
        [data, "one", "--tokenizer", str(lines / "missing.json")],
        [data, "a.txt:99"],
    ):
        assert main(["where", *wrong]) == 2
        captured = capsys.readouterr()
        assert (captured.out, captured.err[:11]) == ("", "tokenmill: ")


def test_the_next_command_can_be_pasted_whatever_the_names(tmp_path, capsys):
    name = "it's\x1b[31m\n<b>\t\\.txt"
    (tmp_path / name).write_text("one\ntwo\n")
    data = tmp_path / "da\nta"
    tokenmill.prepare(tmp_path / name, data, tokenizer="bytes", documents="line", val_fraction=0)
    assert main(["where", str(data), f"{tmp_path}/{name}:2"]) == 0
    peek, again = capsys.readouterr().out.partition("Next:  ")[2].splitlines()
    for command, expected in (
        (peek, ["tokenmill", "peek", str(data), "--document", "1"]),
        (again, ["tokenmill", "where", str(data), f"{tmp_path}/{name}:2", "--run", "runs/NAME"]),
    ):
        script = f"printf '%s\\0' {command.strip()}"
        done = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, check=True)
        assert done.stdout.decode().split("\0")[:-1] == expected


def test_hostile_names_and_texts_are_escaped(tmp_path, capsys):
    name = "a\x1b[31m.txt"
    (tmp_path / name).write_text("text \x1b]0;title\x07 end\n" * 2)
    tokenmill.prepare(
        tmp_path / name,
        tmp_path / "data",
        tokenizer="bytes",
        documents="line",
        normalize=False,
        val_fraction=0,
    )
    for what in (name, f"{name}:1", f"{name}:2", "end", f"{name}x.txt"):
        main(["where", str(tmp_path / "data"), what])
        main(["where", str(tmp_path / "data"), what, "--json"])
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert "\x07" not in printed.out + printed.err


def test_a_device_named_by_a_dataset_is_not_read(lines):
    from dataset_builder import edit_manifest, write_sources

    entry = write_sources(lines / "data", [{"path": "/dev/zero", "bytes": 5, "unit": "byte"}])
    edit_manifest(lines / "data", lambda body: body.update(sources=entry))
    with pytest.raises(UsageError, match="does not exist"):
        where(lines / "data", "zero:3")
