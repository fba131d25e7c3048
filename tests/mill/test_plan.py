"""plan.py: which files are read, in which order, as what, and where they are cut."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokenmill.errors import InputError
from tokenmill.mill import plan as plan_module
from tokenmill.mill.plan import Plan, find_files, make_plan
from tokenmill.mill.settings import Settings


def names_found(*inputs: Path | str, leave_out: Path | None = None) -> list[str]:
    sources, _ = find_files(inputs, leave_out=leave_out)
    return [Path(source.path).name for source in sources]


def write_all(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("some text\n")


def test_folders_are_walked_in_the_order_of_names_without_hidden_entries(tmp_path: Path) -> None:
    write_all(tmp_path, "b.txt", "a/2.txt", "a/1.txt", "c/x.txt", ".hidden.txt", ".git/y.txt")
    assert names_found(tmp_path) == ["b.txt", "1.txt", "2.txt", "x.txt"]
    assert names_found(tmp_path, leave_out=tmp_path / "a") == ["b.txt", "x.txt"]


def test_inputs_keep_the_given_order_and_come_once(tmp_path: Path) -> None:
    write_all(tmp_path, "a.txt", "b.txt", "c.txt")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    given = (tmp_path / "c.txt", tmp_path / "link.txt", tmp_path)
    assert names_found(*given) == ["c.txt", "link.txt", "b.txt"]
    assert names_found(tmp_path / "[ab].txt", tmp_path / "*.txt") == ["a.txt", "b.txt", "c.txt"]


def test_globs_reach_into_folders(tmp_path: Path) -> None:
    write_all(tmp_path, "x/a.txt", "x/y/b.txt", "z.txt")
    assert names_found(f"{tmp_path}/**/*.txt") == ["a.txt", "b.txt", "z.txt"]
    assert names_found(f"{tmp_path}/x*") == ["a.txt", "b.txt"]
    write_all(tmp_path, "q[1].txt")
    assert names_found(tmp_path / "q[1].txt") == ["q[1].txt"]


def test_what_is_not_there_is_an_error_with_a_hint(tmp_path: Path) -> None:
    write_all(tmp_path, "corpus.txt")
    with pytest.raises(InputError, match=r"Did you mean .*corpus\.txt"):
        find_files([tmp_path / "corpsu.txt"])
    with pytest.raises(InputError, match="Nothing matches"):
        find_files([tmp_path / "*.md"])
    with pytest.raises(InputError, match="No input"):
        find_files([])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="No text was found"):
        find_files([tmp_path / "empty"])


@pytest.mark.parametrize(
    ("name", "kind", "compression"),
    [
        ("a.txt", "text", None),
        ("a.TXT", "text", None),
        ("a.jsonl", "jsonl", None),
        ("a.ndjson", "jsonl", None),
        ("a.JSONL.GZ", "jsonl", "gzip"),
        ("a.json.zst", "jsonl", "zstd"),
        ("a.txt.xz", "text", "xz"),
        ("a.bz2", "text", "bz2"),
        ("a.parquet", "parquet", None),
        ("noending", "text", None),
    ],
)
def test_a_name_tells_what_a_file_is(
    tmp_path: Path, name: str, kind: str, compression: str | None
) -> None:
    write_all(tmp_path, name)
    ((source,), _) = find_files([tmp_path / name])
    assert (source.kind, source.compression) == (kind, compression)
    assert source.size == 10
    assert source.modified == (tmp_path / name).stat().st_mtime_ns
    assert source.unit == ("row" if kind == "parquet" else "byte")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'{"text": "a"}\n{"text": "b"}\n', "jsonl"),
        (b'{"text": "a"}', "jsonl"),
        (b'{\n  "text": "a"\n}\n', "text"),
        (b'\n\n{"text": "a"}\n{"text": "b"}', "jsonl"),
        (b'[\n  {"text": "a"}\n]\n', "array"),
        (b"", "jsonl"),
    ],
)
def test_json_is_judged_by_its_head(tmp_path: Path, content: bytes, kind: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    ((source,), _) = find_files([tmp_path / "a.json"])
    assert source.kind == kind


def test_only_text_is_taken_out_of_folders_but_named_files_are_taken_anyway(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    (tmp_path / "latin.dat").write_bytes("Grüße".encode("latin-1"))
    (tmp_path / "utf8.dat").write_bytes("Grüße".encode())
    (tmp_path / "cut.dat").write_bytes(b"a" * 8191 + "ü".encode())  # half of it in the head
    (tmp_path / "late.dat").write_bytes(b"a" * 8000 + b"\xff" + b"a" * 1000)
    (tmp_path / "Makefile").write_text("all:\n")
    sources, passed_over = find_files([tmp_path])
    assert [Path(source.path).name for source in sources] == ["Makefile", "cut.dat", "utf8.dat"]
    assert sorted(Path(path).name for path in passed_over) == ["image.png", "late.dat", "latin.dat"]
    assert names_found(tmp_path / "image.png") == ["image.png"]
    for name in ("Makefile", "cut.dat", "utf8.dat"):
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match="3 files there are not text"):
        find_files([tmp_path])


def plan_of(*paths: Path, fingerprint: str = "x", **settings: object) -> Plan:
    sources, passed_over = find_files(paths)
    return make_plan(sources, Settings(**settings), fingerprint, passed_over)  # type: ignore[arg-type]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "PART_BYTES", 100)


def make_files(folder: Path) -> list[Path]:
    """Plain files of many sizes, and some that are not cut into bytes."""
    sizes = [0, 10, 90, 1, 99, 100, 101, 0, 350, 5, 1000, 3]
    paths = []
    for number, size in enumerate(sizes):
        path = folder / f"{number:02}.{'jsonl' if number % 3 == 0 else 'txt'}"
        path.write_bytes(b"x" * size)
        paths.append(path)
    (folder / "50.txt.gz").write_bytes(b"x" * 500)
    table = pa.table({"text": pa.array(["some words " * 5] * 40)})
    pq.write_table(table, folder / "60.parquet", row_group_size=1, use_dictionary=False)
    (folder / "70.parquet").write_bytes(b"no footer")
    (folder / "80.txt").write_bytes(b"x" * 7)
    return sorted(folder.iterdir())


def test_parts_cover_every_file_once_and_in_order(tmp_path: Path, small_parts: None) -> None:
    paths = make_files(tmp_path)
    plan = plan_of(*paths)
    assert plan.step == 100
    covered: dict[int, list[tuple[int, int]]] = {}
    with_text = []
    for part in plan.parts:
        for piece in part.pieces:
            covered.setdefault(piece.source, []).append((piece.start, piece.end))
            if plan.sources[piece.source].size:
                with_text.append((piece.source, piece.start))
    assert sorted(covered) == list(range(len(paths)))
    assert with_text == sorted(with_text)
    for number, ranges in covered.items():
        source = plan.sources[number]
        groups = 40 if source.path.endswith("60.parquet") else source.size
        assert ranges[0][0] == 0
        assert ranges[-1][1] == groups
        assert all(one[1] == other[0] for one, other in pairwise(ranges))
        if source.compression:
            assert len(ranges) == 1
        elif source.kind != "parquet" and source.size > 100:
            assert all(start % 100 == 0 for start, _ in ranges)
            assert len(ranges) == -(-source.size // 100)
    assert len(covered[paths.index(tmp_path / "60.parquet")]) > 10
    assert len({part.name for part in plan.parts}) == len(plan.parts)
    assert plan.size == sum(path.stat().st_size for path in paths)


def test_small_files_share_a_part_up_to_its_size(tmp_path: Path, small_parts: None) -> None:
    for number in range(25):
        (tmp_path / f"{number:02}.txt").write_bytes(b"x" * 30)
    plan = plan_of(tmp_path)
    assert [len(part.pieces) for part in plan.parts] == [3] * 8 + [1]
    assert [part.size for part in plan.parts] == [90] * 8 + [30]


def test_a_text_whose_separator_overlaps_itself_is_one_part(
    tmp_path: Path, small_parts: None
) -> None:
    for name in ("a.txt", "b.jsonl"):
        (tmp_path / name).write_bytes(b"x" * 1000)
    assert len(plan_of(tmp_path / "a.txt").parts) == 10
    assert len(plan_of(tmp_path / "a.txt", documents="----").parts) == 1
    assert len(plan_of(tmp_path / "b.jsonl", documents="----").parts) == 10


def test_parts_grow_with_the_input_so_that_they_stay_countable(
    tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "MOST_PARTS", 10)
    (tmp_path / "a.txt").write_bytes(b"x" * 12_345)
    plan = plan_of(tmp_path)
    assert len(plan.parts) <= 10
    assert plan.step == 1300


def test_a_part_has_another_name_if_anything_that_decides_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    name = plan_of(path).name
    assert plan_of(path).name == name
    # These do not decide what a segment holds.
    assert plan_of(path, val_fraction=0.5, tokens_per_shard=7, skip_bad_files=True).name == name
    others = [
        plan_of(path, fingerprint="y").name,
        plan_of(path, normalize=False).name,
        plan_of(path, eot="none").name,
        plan_of(path, dedup="lines").name,
        plan_of(path, min_line=5).name,
        plan_of(path, documents="file").name,
        plan_of(path, text_field="body").name,
        plan_of(path, on_bad_text="drop").name,
        plan_of(path, dtype="uint32").name,
    ]
    os.utime(path, ns=(1, 1))
    others.append(plan_of(path).name)
    path.write_text("texts")
    others.append(plan_of(path).name)
    assert len({name, *others}) == len(others) + 1
