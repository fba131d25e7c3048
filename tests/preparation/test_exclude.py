"""prepare(exclude=…): the result equals that of an input without the listed texts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import make_expected
from preparing import InProcessEngine, assert_same_files, make, make_in_workers, small
from xxhash import xxh3_128_hexdigest

import tokenmill
from tokenmill.errors import DatasetError, FolderError, InputError, UsageError, WorkError
from tokenmill.preparation.engine import Progress, Task
from tokenmill.preparation.exclusion import find_list, read_exclusions
from tokenmill.preparation.grind import GrindPart
from tokenmill.preparation.key_files import KeyLayout
from tokenmill.preparation.pack import PackShard
from tokenmill.preparation.partitions import MarkRepeats
from tokenmill.preparation.plan import Limits, Plan, make_plan
from tokenmill.preparation.prepare import run_plan
from tokenmill.preparation.sift import SiftSegment
from tokenmill.preparation.sorted_keys import SortedKeys
from tokenmill.progress import Nobody

OPTIONS: dict[str, Any] = {"val_fraction": 0.3, "tokens_per_shard": 300}
END = "<|endoftext|>"


def key_of(text: str) -> str:
    return xxh3_128_hexdigest(text.encode())


def write_list(path: Path, texts: Sequence[str], *more: str) -> Path:
    path.write_text(
        "".join(json.dumps({"key": key}) + "\n" for key in [*map(key_of, texts), *more])
    )
    return path


def write_files(folder: Path, documents: Sequence[str], name: str = "texts") -> Path:
    """One file per document, so that a document can be left out by deleting its file."""
    (folder / name).mkdir()
    for number, text in enumerate(documents):
        (folder / name / f"{number:03}.txt").write_text(text)
    return folder / name


def documents(count: int, seed: int = 0) -> list[str]:
    """Texts of different lengths; one in five is a repeat."""
    chance = random.Random(seed)
    made = [f"Text {n}: " + "so many words " * chance.randint(0, 30) + "ü" for n in range(count)]
    return [chance.choice(made) if chance.random() < 0.2 else text for text in made]


def read_shards(folder: Path) -> dict[str, bytes]:
    """The bytes of all shards, and the document tables without sources and offsets."""
    found = {}
    for path in sorted(folder.glob("*/shard_*")):
        data = path.read_bytes()
        if path.suffix == ".npy":
            table = np.load(path)
            data = b"".join(table[name].tobytes() for name in ("key", "first", "length"))
        found[path.relative_to(folder).as_posix()] = data
    return found


@pytest.mark.parametrize("dedup", ["documents", "none"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_excluding_documents_equals_an_input_without_them(tmp_path, dedup, share):
    texts = documents(60)
    chance = random.Random(1)
    gone = {text for text in texts[1:] if chance.random() < share} - {texts[0]}
    listed = write_list(tmp_path / "list", sorted(gone), key_of("a text that is nowhere"))
    whole = write_files(tmp_path, texts)
    rest = write_files(tmp_path, [text for text in texts if text not in gone], "rest")
    got = make(whole, tmp_path / "got", exclude=listed, dedup=dedup, **OPTIONS)
    want = make(rest, tmp_path / "want", dedup=dedup, **OPTIONS)
    assert read_shards(tmp_path / "got") == read_shards(tmp_path / "want")
    ledger, expected = got.manifest.ledger, want.manifest.ledger
    copies = [text for text in texts if text in gone]
    assert ledger["dropped"].pop("excluded") == {
        "documents": len(copies),
        "bytes": sum(len(text.encode()) for text in copies),
    }
    assert ledger["dropped"] == expected["dropped"]
    for name in ("documents_kept", "bytes_kept", "text_bytes", "characters", "tokens"):
        assert ledger[name] == expected[name]
    report = [
        json.loads(line) for line in (tmp_path / "got" / "excluded.jsonl").read_text().splitlines()
    ]
    assert [entry["key"] for entry in report] == [key_of(text) for text in copies]
    assert all(Path(entry["source"]).read_text() in gone for entry in report)
    assert tokenmill.verify(tmp_path / "got") == []


@pytest.mark.parametrize("dedup", ["documents", "lines", "none"])
def test_the_result_does_not_depend_on_parts_and_workers(tmp_path, dedup):
    texts = documents(80, seed=2) + ["A document that spans parts." * 40] * 2
    texts += ["The second one that spans parts." * 40, "short", "short"]
    (tmp_path / "a.txt").write_text(END.join(texts))
    gone = [*texts[::7], texts[81], "short"]
    listed = write_list(tmp_path / "list", gone)
    how = {"exclude": listed, "dedup": dedup, "min_line": 5000, **OPTIONS}
    make(tmp_path / "a.txt", tmp_path / "one", **how)
    counts = json.loads((tmp_path / "one" / "dataset_metadata.json").read_text())["ledger"]
    left_out = [text for text in texts if text in gone]
    assert counts["dropped"]["excluded"]["documents"] == len(left_out)
    limits = [small(part=400, block=100, keys=8), small(part=1500, block=900, keys=3)]
    for number, limit in enumerate(limits):
        made = make(tmp_path / "a.txt", tmp_path / f"small{number}", limits=limit, **how)
        assert made.parts > 3
        assert_same_files(tmp_path / "one", tmp_path / f"small{number}")
    make_in_workers(
        tmp_path / "a.txt", tmp_path / "workers", limits=limits[0], **{**how, "workers": 2}
    )
    assert_same_files(tmp_path / "one", tmp_path / "workers")


def test_documents_are_left_out_before_repeated_lines_are_forgotten(tmp_path):
    """With dedup="lines", an excluded document still counts as the first copy of its lines."""
    lines = [f"This is line number {n} of them." for n in range(6)]
    texts = ["\n".join(lines[:3]), "\n".join(lines[2:5]), lines[5]]
    whole = write_files(tmp_path, texts)
    listed = write_list(tmp_path / "list", [texts[0]])
    got = make(whole, tmp_path / "got", dedup="lines", exclude=listed, val_fraction=0)
    data = tokenmill.open(tmp_path / "got")
    text = data.tokenizer.decode(data["train"][:])
    assert text == "\n".join(lines[3:5]) + END + lines[5] + END
    assert got.manifest.ledger["duplicate_lines"] == 1


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.text("ab \n", max_size=12), min_size=1, max_size=25),
    st.sets(st.text("ab", max_size=3), max_size=6),
    st.sampled_from(["documents", "none"]),
    st.integers(20, 200),
)
def test_kept_and_dropped_are_always_what_went_in(tmp_path_factory, texts, gone, dedup, part):
    folder = tmp_path_factory.mktemp("any")
    (folder / "a.txt").write_text(END.join(texts))
    listed = write_list(folder / "list", sorted(gone))
    expected = make_expected(
        [folder / "a.txt"], encode=list, eot_id=256, dedup=dedup, val_fraction=0.3
    )
    wanted = {
        split: [
            [*document.text, 256] for document in documents if document.text.decode() not in gone
        ]
        for split, documents in expected.documents.items()
    }
    how = {"dedup": dedup, "val_fraction": 0.3, "exclude": listed}
    limits = small(part=part, block=50, keys=2)
    if not any(wanted.values()):
        with pytest.raises(InputError, match="No document was kept"):
            make(folder / "a.txt", folder / "out", limits=limits, **how)
        return
    report = make(folder / "a.txt", folder / "out", limits=limits, **how)
    ledger = report.manifest.ledger
    dropped = ledger["dropped"].values()
    for what in ("documents", "bytes"):
        assert ledger[f"{what}_in"] == ledger[f"{what}_kept"] + sum(one[what] for one in dropped)
    data = tokenmill.open(folder / "out")
    for split, lists in wanted.items():
        ids = data[split][:].tolist() if split in data else []
        assert ids == [one for ids in lists for one in ids]


class Engine(InProcessEngine):
    """Counts tasks, and stops after the first shard."""

    stops = False

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.done: list[type] = []
        made.append(self)

    def run(self, tasks: Sequence[Task], progress: Progress) -> Iterator[tuple[int, Any]]:
        for result in super().run(tasks, progress):
            self.done.append(type(tasks[result[0]]))
            yield result
            if self.stops and self.done[-1] is PackShard:
                raise WorkError("stopped")


class StoppedEngine(Engine):
    stops = True


made: list[Engine] = []


def test_another_list_repeats_the_choice_and_the_same_list_resumes(tmp_path):
    texts = documents(60, seed=3)
    whole = write_files(tmp_path, texts)
    # The two lists leave the same number of tokens, so nothing else tells their shards apart.
    pairs = {len(text): text for text in texts[:30]}
    one, other = next((pairs[len(t)], t) for t in texts[30:] if pairs.get(len(t), t) != t)
    first = write_list(tmp_path / "first", [one])
    second = write_list(tmp_path / "second", [other])
    how = {"limits": small(part=400, block=100), **OPTIONS}
    make(whole, tmp_path / "want", exclude=second, **how)
    with pytest.raises(WorkError, match="stopped"):
        make(whole, tmp_path / "out", exclude=first, start=StoppedEngine, **how)
    with pytest.raises(WorkError, match="stopped"):
        make(whole, tmp_path / "out", exclude=first, start=StoppedEngine, **how)
    assert GrindPart not in made[-1].done
    assert SiftSegment not in made[-1].done
    assert MarkRepeats not in made[-1].done
    make(whole, tmp_path / "out", exclude=second, start=Engine, **how)
    assert GrindPart not in made[-1].done
    assert made[-1].done.count(SiftSegment) > 1
    assert_same_files(tmp_path / "want", tmp_path / "out")


def test_a_list_is_its_set_of_keys(tmp_path):
    texts = documents(20, seed=4)
    whole = write_files(tmp_path, texts)
    listed = write_list(tmp_path / "list", texts[:3])
    lines = listed.read_text().splitlines()
    make(whole, tmp_path / "out", exclude=listed, **OPTIONS)
    listed.write_text(
        "\n\n".join(json.dumps({"because": "spam", **json.loads(line)}) for line in reversed(lines))
        + "\r\n"
        + lines[0].upper().replace("KEY", "key")
    )
    again = make(whole, tmp_path / "out", exclude=[listed, listed], **OPTIONS)
    assert again.was_finished
    halves = [write_list(tmp_path / f"half{n}", texts[n:3:2]) for n in range(2)]
    assert make(whole, tmp_path / "out", exclude=halves, **OPTIONS).was_finished
    with pytest.raises(FolderError, match=r"made differently:\s+exclude was \{'keys': 3"):
        make(whole, tmp_path / "out", exclude=halves[0], **OPTIONS)
    with pytest.raises(FolderError, match="is None"):
        make(whole, tmp_path / "out", exclude=False, **OPTIONS)
    (tmp_path / "empty").write_text("\n")
    make(whole, tmp_path / "none", **OPTIONS)
    assert make(whole, tmp_path / "none", exclude=tmp_path / "empty", **OPTIONS).was_finished
    assert (
        "exclude"
        not in json.loads((tmp_path / "none/dataset_metadata.json").read_text())["settings"]
    )


class Notes(Nobody):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_the_list_of_a_dataset_is_used_when_it_is_made_again(tmp_path):
    texts = documents(20, seed=5)
    whole, out = write_files(tmp_path, texts), tmp_path / "out"

    def prepare(**options: Any) -> tuple[tokenmill.Report, list[str]]:
        watcher = Notes()
        how = {"tokenizer": "bytes", "workers": 1, "watcher": watcher, **OPTIONS, **options}
        return tokenmill.prepare(whole, out, **how), watcher.notes

    first, notes = prepare()
    before = read_shards(out)
    assert notes == []
    write_list(find_list(out), texts[:2])
    again, notes = prepare()  # a finished dataset is not changed, and this is no error
    assert again.was_finished
    assert read_shards(out) == before
    assert len(notes) == 1
    assert "out.exclude.jsonl has changed since the dataset was made" in notes[0]
    third, notes = prepare(restart=True)
    assert third.manifest.ledger["dropped"]["excluded"]["documents"] >= 2
    assert "Leaving out the documents of" in notes[0]
    assert "(2 keys); `exclude=False` keeps them" in notes[0]
    assert prepare()[1] == []
    with pytest.raises(FolderError, match="made differently"):
        prepare(exclude=False)
    last, notes = prepare(exclude=False, restart=True)
    assert notes == []
    assert last.manifest == first.manifest
    assert read_shards(out) == before


def test_a_list_among_the_inputs_is_not_read_as_text(tmp_path):
    whole = write_files(tmp_path, documents(5))
    out = whole / "data"
    make(whole, out, **OPTIONS)
    write_list(find_list(out), ["nothing"])
    plan = make_plan(whole, tmp_path / "out", tokenizer="bytes", workers=1)
    assert len(plan.sources) == 5
    assert [entry.reason for entry in plan.passed_over] == [
        "a finished dataset",
        "a list of excluded documents",
    ] or [entry.reason for entry in plan.passed_over] == [
        "a list of excluded documents",
        "a finished dataset",
    ]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('{"key": "' + "0" * 31 + '"}', "line 1"),
        ('{"key": "' + "0" * 33 + '"}', "line 1"),
        ('{"key": "' + "0" * 32 + '"}\n{"key": "' + "0" * 31 + 'g"}', "line 2"),
        ('{"key": "' + "0" * 32 + '"}\n\n{"key": "' + "0" * 31 + '\\n"}', "line 3"),
        ('{"key": "' + "0" * 31 + ' "}', "line 1"),
        ('{"key": "' + "\u0660" * 32 + '"}', "line 1"),
        ('{"kee": 5}', "line 1"),
        ("0" * 32, "line 1"),
        ("[" * 100_000, "line 1"),
        ('{"key": 5}', "line 1"),
        ('{"key": "' + "0" * 32, "line 1"),
        ("\xff\xfe", "line 1"),
    ],
)
def test_a_line_that_names_no_document_is_an_error_with_its_number(tmp_path, content, fault):
    path = tmp_path / "list"
    path.write_text(content, encoding="latin-1" if "\xff" in content else "utf-8")
    with pytest.raises(DatasetError, match=fault):
        read_exclusions(path)


def test_a_list_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(UsageError, match="There is no list"):
        make(write_files(tmp_path, ["a"]), tmp_path / "out", exclude=tmp_path / "nothing")
    (tmp_path / "list").write_bytes(b" " * (6 << 20))
    with pytest.raises(DatasetError, match="too long"):
        read_exclusions(tmp_path / "list")


def test_sorted_keys_equal_a_set_of_pairs():
    chance = np.random.default_rng(1)
    keys = chance.integers(0, 2**64, (300_000, 2), np.uint64, endpoint=False)
    keys[::7, 1] = 5  # as if somebody had made keys with equal halves
    keys[::11] = keys[3]
    keys[:2] = [[0, 0], [2**64 - 1, 2**64 - 1]]
    want = np.unique(keys[:, ::-1], axis=0)[:, ::-1]
    tables = [keys[:10], keys[:0], keys[10:200_000], keys[200_000:]]
    for run in (1 << 20, 40_000, 70_001):
        got = SortedKeys.of(tables, run)
        assert np.array_equal(got.keys, want)
        assert got.checksum == SortedKeys.of([want]).checksum
        assert b"".join(map(bytes, got.read())) == want.tobytes()
        wanted = {tuple(pair) for pair in want.tolist()}
        asked = np.concatenate([keys[:3000], keys[:3000][:, ::-1], keys[:3000] ^ np.uint64(1)])
        assert got.find(asked).tolist() == [tuple(pair) in wanted for pair in asked.tolist()]
        for partitions in (1, 2, 64):
            layout = KeyLayout(partitions=partitions, run_keys=9)
            starts = got.divide(layout)
            assert starts[0] == 0
            assert starts[-1] == len(want)
            for number in range(partitions):
                some = got.keys[starts[number] : starts[number + 1]]
                assert (layout.partition_of(some) == number).all()
    nothing = SortedKeys.of([])
    assert not nothing.find(keys[:5]).any()
    assert nothing.divide(KeyLayout(partitions=4, run_keys=9)) == [0] * 5


def test_reading_a_long_list_takes_bounded_memory(tmp_path, monkeypatch):
    import tracemalloc

    from tokenmill.preparation import sorted_keys

    monkeypatch.setattr(sorted_keys, "_COPY", 1 << 14)
    chance = np.random.default_rng(2)
    count = 400_000
    halves = chance.integers(0, 2**64, (count, 2), np.uint64, endpoint=False)
    with (tmp_path / "list").open("w") as file:
        for high, low in halves.tolist():
            file.write(f'{{"key":"{high:016x}{low:016x}"}}\n')
    tables = []
    from tokenmill.preparation import exclusion

    monkeypatch.setattr(exclusion, "_BLOCK", 1 << 17)
    tracemalloc.start()
    tables = exclusion._read_keys(tmp_path / "list")
    keys = SortedKeys.of(tables, run=1 << 14)
    assert len(keys) == count
    assert keys.checksum
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * count  # less than the keys themselves
    assert np.array_equal(np.sort(keys.keys[:, 1]), np.sort(halves[:, 1]))


def test_the_task_of_a_partition_reads_the_list_in_pieces(tmp_path):
    texts = documents(100, seed=6)
    whole = write_files(tmp_path, texts)
    others = [f"{n:032x}" for n in range(5_000)]
    listed = write_list(tmp_path / "list", texts[::3], *others)
    make(whole, tmp_path / "one", exclude=listed, **OPTIONS)
    make(whole, tmp_path / "pieces", exclude=listed, limits=Limits(sorted_keys=37), **OPTIONS)
    assert_same_files(tmp_path / "one", tmp_path / "pieces")


def test_a_changed_copy_of_the_list_is_written_again(tmp_path):
    whole = write_files(tmp_path, documents(30, seed=7))
    listed = write_list(tmp_path / "list", documents(30, seed=7)[:9])
    how = {"exclude": listed, "limits": small(part=400, block=100), **OPTIONS}
    make(whole, tmp_path / "want", **how)
    with pytest.raises(WorkError):
        make(whole, tmp_path / "out", start=StoppedEngine, **how)
    (copy,) = (tmp_path / "out" / ".work" / "marks").glob("*.listed")
    copy.write_bytes(b"")
    for receipt in (tmp_path / "out" / ".work" / "marks").glob("*.json"):
        receipt.unlink()
    make(whole, tmp_path / "out", **how)
    assert_same_files(tmp_path / "want", tmp_path / "out")


def test_plans_name_their_lists(tmp_path):
    whole = write_files(tmp_path, ["a", "b"])
    listed = write_list(tmp_path / "list", ["a"])
    plan = make_plan(whole, tmp_path / "out", tokenizer="bytes", exclude=[listed])
    assert plan.exclusions is not None
    assert plan.exclusions.paths == (str(listed),)
    recorded = plan.record()["settings"]["exclude"]
    assert recorded == {"keys": 1, "xxh3_128": plan.exclusions.keys.checksum}
    assert str(listed) not in json.dumps(plan.record()["settings"])
    run_plan(plan, tmp_path / "out", Nobody())
