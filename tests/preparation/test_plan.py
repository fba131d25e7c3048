"""plan.py: where files are cut into parts, and what names them."""

from __future__ import annotations

import gzip
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.preparation.plan import Limits, Plan, make_plan


def plan_of(*paths: Path, tokenizer: str = "bytes", **options: Any) -> Plan:
    return make_plan(paths, "out", tokenizer=tokenizer, **options)


SMALL_PARTS = Limits(part_bytes=100)


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


def test_parts_cover_every_file_once_and_in_order(tmp_path: Path) -> None:
    paths = make_files(tmp_path)
    plan = plan_of(*paths, limits=SMALL_PARTS)
    assert plan.step == 100
    covered: dict[int, list[tuple[int, int]]] = {}
    with_text = []
    for part in plan.parts:
        for one in part.ranges:
            covered.setdefault(one.source, []).append((one.start, one.end))
            if plan.sources[one.source].size:
                with_text.append((one.source, one.start))
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
    assert len(covered[paths.index(tmp_path / "60.parquet")]) == 40
    assert len({part.name for part in plan.parts}) == len(plan.parts)
    assert plan.size == sum(path.stat().st_size for path in paths)


def test_the_workers_share_the_memory(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x")
    plan = plan_of(tmp_path, workers=3, memory=10 << 30)
    assert (plan.workers, plan.memory) == (3, 10 << 30)
    assert plan.share == (10 << 30) // 3


def test_small_files_share_a_part_up_to_its_size(tmp_path: Path) -> None:
    for number in range(25):
        (tmp_path / f"{number:02}.txt").write_bytes(b"x" * 30)
    plan = plan_of(tmp_path, limits=SMALL_PARTS)
    assert [len(part.ranges) for part in plan.parts] == [3] * 8 + [1]
    assert [part.size for part in plan.parts] == [90] * 8 + [30]


def test_a_text_whose_separator_overlaps_itself_is_one_part(tmp_path: Path) -> None:
    for name in ("a.txt", "b.jsonl"):
        (tmp_path / name).write_bytes(b"x" * 1000)
    options: dict[str, Any] = {"documents": "----", "limits": SMALL_PARTS}
    assert len(plan_of(tmp_path / "a.txt", limits=SMALL_PARTS).parts) == 10
    assert len(plan_of(tmp_path / "a.txt", **options).parts) == 1
    assert len(plan_of(tmp_path / "b.jsonl", **options).parts) == 10


def test_parts_grow_with_the_input_so_that_their_number_is_limited(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 12_345)
    plan = plan_of(tmp_path, limits=Limits(part_bytes=100, parts=10))
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
        plan_of(path, tokenizer="gpt2").name,
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


def test_small_compressed_and_parquet_files_share_parts_with_others(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array(["some words"])})
    for number in range(300):
        (tmp_path / f"{number:03}.txt").write_text("text")
        (tmp_path / f"{number:03}.txt.gz").write_bytes(gzip.compress(b"text"))
    for number in range(3):
        pq.write_table(table, tmp_path / f"{number:03}.parquet")
    (tmp_path / "999.txt.gz").write_bytes(b"x" * (5 << 20))  # over a part, out of its compression
    assert [len(part.ranges) for part in plan_of(tmp_path).parts] == [603, 1]


def test_the_number_of_files_in_a_part_is_limited(tmp_path: Path) -> None:
    for number in range(25):
        (tmp_path / f"{number:02}.txt").write_text("text")
    plan = plan_of(tmp_path, limits=Limits(files_per_part=10))
    assert [len(part.ranges) for part in plan.parts] == [10, 10, 5]
