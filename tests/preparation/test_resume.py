"""A resumed run trusts no file of the run before: it keeps what is unchanged and redoes the rest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import xxhash
from preparing import InProcessEngine, assert_same_files, small, write_documents

from tokenmill.dataset.verify import verify
from tokenmill.errors import FolderError, InputError, WorkError
from tokenmill.preparation.bundles import Run, _explain_failures
from tokenmill.preparation.engine import Progress, Task
from tokenmill.preparation.folder import PreparationFolder
from tokenmill.preparation.key_files import KeyLayout
from tokenmill.preparation.pack import CheckShard, PackShard
from tokenmill.preparation.partitions import MarkRepeats
from tokenmill.preparation.plan import Plan, make_plan
from tokenmill.preparation.prepare import Report, run_plan
from tokenmill.preparation.segment import Bundle, CheckBundle, SegmentReceipt, find_bundle
from tokenmill.preparation.sift import SiftSegment
from tokenmill.progress import Nobody
from tokenmill.sources.files import BadFileError

OPTIONS: dict[str, Any] = {
    "tokenizer": "bytes",
    "workers": 1,
    "tokens_per_shard": 300,
    "val_fraction": 0.2,
}
LIMITS = small(part=400, block=100)


class Notes(Nobody):
    """A watcher that keeps the notices."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Engine(InProcessEngine):
    """Counts tasks, and stops after some shards, as a kill would."""

    def __init__(self, plan: Plan, shards: int | None = None) -> None:
        super().__init__(plan)
        self.shards = shards
        self.done: list[Task] = []

    def run(self, tasks: Sequence[Task], progress: Progress) -> Iterator[tuple[int, Any]]:
        for result in super().run(tasks, progress):
            self.done.append(tasks[result[0]])
            yield result
            packed = sum(isinstance(task, PackShard) for task in self.done)
            if packed == self.shards:
                raise WorkError("stopped")

    def count(self, kind: type) -> int:
        return sum(isinstance(task, kind) for task in self.done)


def run(text: Path, out: Path, shards: int | None = None) -> tuple[Report, Engine, list[str]]:
    plan = make_plan(text, out, limits=LIMITS, **OPTIONS)
    engines: list[Engine] = []

    def start(plan: Plan) -> Engine:
        engines.append(Engine(plan, shards))
        return engines[0]

    watcher = Notes()
    report = run_plan(plan, out, watcher, start=start)
    return report, engines[0], watcher.notes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, the dataset made from it, and a run that stopped after four shards."""
    folder = tmp_path_factory.mktemp("made")
    text = write_documents(folder / "text.txt")
    with text.open("a") as file:
        file.write("<|endoftext|>" + "A document that spans parts. " * 40)
    run(text, folder / "clean")
    with pytest.raises(WorkError, match="stopped"):
        run(text, folder / "stopped", 4)
    assert len(list((folder / "stopped" / ".work" / "shards").iterdir())) == 4
    return folder


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "stopped", tmp_path / "out"))


def shards_of(out: Path) -> list[Path]:
    return sorted(out.glob("*/shard_*.bin"))


def test_finished_shards_are_checked_and_not_written_again(made: Path, out: Path) -> None:
    before = {path: path.stat().st_ino for path in out.glob("*/shard_*")}
    _, engine, notes = run(made / "text.txt", out)
    assert_same_files(made / "clean", out)
    assert len(before) == 8
    assert {path: path.stat().st_ino for path in before} == before
    total = len(shards_of(out))
    assert (engine.count(CheckShard), engine.count(PackShard)) == (4, total - 4)
    assert notes == []


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def fill_with_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def lengthen(path: Path) -> None:
    os.truncate(path, 1 << 40)  # a sparse file: takes no space


def link_to_copy(path: Path) -> None:
    outside = next(one for one in path.parents if one.name == "out").with_name("outside")
    path.rename(outside)
    path.symlink_to(outside)


DAMAGE = [flip, truncate, empty, fill_with_zeros, lengthen, Path.unlink]


@pytest.mark.parametrize("suffix", [".bin", ".docs.npy"])
@pytest.mark.parametrize("damage", [*DAMAGE, link_to_copy])
def test_a_shard_that_changed_is_written_again_with_a_notice(
    made: Path, out: Path, damage: Callable[[Path], None], suffix: str
) -> None:
    shard = max(shards_of(out), key=lambda one: one.with_suffix(".docs.npy").stat().st_size)
    damage(shard.with_suffix(suffix))
    _, engine, notes = run(made / "text.txt", out)
    assert_same_files(made / "clean", out)
    assert not any(path.is_symlink() for path in out.rglob("*"))
    assert verify(out) == []
    name = shard.relative_to(out).as_posix()
    assert notes == [
        f"{name} or its document table changed after it was written; writing it again."
    ]
    assert engine.count(PackShard) == len(shards_of(out)) - 3


def seal(content: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(content).encode() + b"\n" + content


def edit(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Change the content of a receipt and update its checksum, as an attacker would."""

    def damage(path: Path) -> None:
        value = json.loads(path.read_bytes().partition(b"\n")[2])
        path.write_bytes(seal(json.dumps(change(value)).encode()))

    return damage


def put(*keys: str, value: Any) -> Callable[[Path], None]:
    def change(receipt: Any) -> Any:
        inner = receipt
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        return receipt

    return edit(change)


def make_deep(path: Path) -> None:
    path.write_bytes(seal(b"[" * 100_000))


@pytest.mark.parametrize(
    "damage",
    [
        *DAMAGE,
        make_deep,
        edit(lambda _: None),
        edit(lambda _: []),
        put("shard", value=None),
        put("shard", "tokens", value=-1),
        put("shard", "tokens", value=1 << 40),
        put("shard", "tokens", value="300"),
        put("shard", "documents", value=1 << 55),
        put("shard", "documents", value=1 << 70),
        put("shard", "path", value="../../outside"),
        put("shard", "path", value="val/shard_00000.bin"),
        put("shard", "xxh3_128", value=5),
        put("shard", "more", value=5),
        put("facts", value=[]),
    ],
)
def test_a_damaged_receipt_of_a_shard_is_not_trusted(
    made: Path, out: Path, damage: Callable[[Path], None]
) -> None:
    damage(min((out / ".work" / "shards").iterdir()))
    run(made / "text.txt", out)
    assert_same_files(made / "clean", out)


def test_the_receipt_of_another_shard_is_not_trusted(made: Path, out: Path) -> None:
    receipts = sorted((out / ".work" / "shards").iterdir())
    shutil.copyfile(receipts[0], receipts[1])
    _, engine, _ = run(made / "text.txt", out)
    assert_same_files(made / "clean", out)
    assert engine.count(CheckShard) == 3


def change_a_count(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"documents_in":', b'"documents_in":1', 1))
    assert path.read_bytes() != data


@pytest.mark.parametrize(
    "damage",
    [
        *DAMAGE,
        make_deep,
        change_a_count,
        edit(lambda _: 7),
        put("name", value="../x"),
        put("files", value=[]),
        put("files", value={}),
        put("files", value={"../../x": [0, ""]}),
        put("files", "docs", value=[1 << 60, ""]),
        put("files", "docs", value=None),
        put("facts", value={}),
        put("facts", "records", value=1 << 50),
        put("facts", "records", value=-5),
        put("facts", "documents_in", value="many"),
        put("facts", "dropped", value={"empty": [1]}),
        put("facts", "lines", value=[-1]),
        put("facts", "skipped", value=[5]),
    ],
)
def test_a_damaged_receipt_of_a_segment_is_not_trusted(
    made: Path, out: Path, damage: Callable[[Path], None]
) -> None:
    receipts = sorted((out / ".work" / "segments").glob("*.json"))
    assert len(receipts) > 2
    damage(receipts[1])
    report, _, _ = run(made / "text.txt", out)
    assert_same_files(made / "clean", out)
    assert report.parts_done_before >= report.parts - 1


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", ["tokens", "docs", "text"])
def test_a_changed_segment_is_made_again(
    made: Path, out: Path, damage: Callable[[Path], None], kind: str
) -> None:
    segments = out / ".work" / "segments"
    damage(next(path for path in segments.glob(f"*.{kind}") if path.stat().st_size))
    report, _, _ = run(made / "text.txt", out)
    assert_same_files(made / "clean", out)
    assert report.parts_done_before == report.parts - 1


MADE = {"marks": MarkRepeats, "fates": SiftSegment}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", ["marks", "fates"])
def test_changed_marks_and_fates_are_made_again(
    made: Path, out: Path, damage: Callable[[Path], None], kind: str
) -> None:
    files = [path for path in (out / ".work" / kind).glob(f"*.{kind}") if path.stat().st_size > 9]
    damage(max(files))
    assert len(files) > 2
    _, engine, _ = run(made / "text.txt", out)
    assert_same_files(made / "clean", out)
    assert {name: engine.count(task) for name, task in MADE.items()} == {
        name: int(name == kind) for name in MADE
    }


@pytest.mark.parametrize(
    "damage",
    [
        *DAMAGE,
        make_deep,
        edit(lambda _: 7),
        put("name", value="../x"),
        put("files", value={}),
        put("files", value={"../../x": [0, ""]}),
        put("facts", value={}),
        put("facts", "keys", value=1 << 50),
        put("facts", "runs", value=-5),
        put("facts", "records", value=1 << 50),
        put("facts", "tokens", value=[5]),
    ],
)
@pytest.mark.parametrize("kind", ["marks", "fates"])
def test_a_damaged_receipt_of_marks_or_fates_is_not_trusted(
    made: Path, out: Path, damage: Callable[[Path], None], kind: str
) -> None:
    receipts = (out / ".work" / kind).glob("*.json")
    damage(min(path for path in receipts if not path.name.endswith(".keys.json")))
    run(made / "text.txt", out)
    assert_same_files(made / "clean", out)


def take_a_token(receipt: Any) -> Any:
    tokens = receipt["facts"]["tokens"]
    tokens[tokens.index(max(tokens))] -= 1
    return receipt


@pytest.mark.parametrize(
    "damage",
    [
        put("facts", "tokens", value=[1 << 40, 0]),
        put("facts", "sources", value=[[99, 0, 1, 1]]),
        put("facts", "kept", value=77),
        edit(take_a_token),
    ],
)
def test_forged_fates_that_do_not_fit_are_refused(
    made: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    for receipt in (made / "stopped/.work/fates").glob("*.json"):
        out = Path(shutil.copytree(made / "stopped", tmp_path / receipt.stem))
        damage(out / ".work/fates" / receipt.name)
        with pytest.raises(FolderError, match=r"The unfinished run is damaged: .*restart=True"):
            run(made / "text.txt", out)


def test_finished_marks_and_fates_are_not_made_again(made: Path, out: Path) -> None:
    _, engine, _ = run(made / "text.txt", out)
    assert [engine.count(task) for task in MADE.values()] == [0, 0]


def test_a_bundle_with_text_that_was_cut_back_is_intact(tmp_path: Path) -> None:
    with Bundle(tmp_path, "x") as bundle:
        for file in ("tokens", "docs"):
            bundle.write(file, b"")
        bundle.write("text", b"kept, and cut")
        bundle.cut_back("text", 9)
        bundle.write("text", b"more")
        names = ("tokens", "records", "keys", "documents_in", "bytes_in", "repeated_lines")
        facts = dict.fromkeys(names, 0) | {"dropped": {}, "lines": [], "skipped": []}
        facts["fragments"] = []
        bundle.finish(facts)
    assert (tmp_path / "x.text").read_bytes() == b"keptmore"
    receipt = find_bundle(tmp_path, "x", SegmentReceipt, KeyLayout(partitions=1, run_keys=1))
    assert receipt is not None
    assert CheckBundle(tmp_path, receipt).run(None) is True  # type: ignore[arg-type]
    (tmp_path / "x.text").write_bytes(b"keptless")
    assert CheckBundle(tmp_path, receipt).run(None) is False  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 500,
        b"[]",
        b"5",
        b"[" * 100_000,
        b'{"settings": 5, "tokenizer": "", "sources": []}',
        b'{"settings": {}, "tokenizer": "", "sources": 5}',
        b'{"settings": {}, "tokenizer": "", "sources": [5]}',
        b'{"settings": {}, "tokenizer": "", "sources": [{}]}',
        b'{"settings": {}, "tokenizer": [], "sources": [{"path": []}]}',
        b'{"settings": {"a": "' + b"x" * 1_000_000 + b'"}, "tokenizer": "", "sources": []}',
    ],
)
def test_a_damaged_plan_is_refused(made: Path, out: Path, content: bytes) -> None:
    (out / ".work" / "plan.json").write_bytes(content)
    with pytest.raises(FolderError, match=r"restart=True") as caught:
        run(made / "text.txt", out)
    assert len(str(caught.value)) < 3_000


def test_a_plan_that_is_too_large_is_not_read(made: Path, out: Path) -> None:
    os.truncate(out / ".work" / "plan.json", 1 << 40)
    with pytest.raises(FolderError, match=r"plan\.json .*1,099,511,627,776 bytes"):
        run(made / "text.txt", out)


@pytest.mark.parametrize("content", [b"", b"\0" * 50, b"5", b"[5]", b"[{}]", b"{}", b"[" * 100_000])
def test_a_damaged_list_of_failures_is_refused(tmp_path: Path, content: bytes) -> None:
    write_documents(tmp_path / "text.txt")
    (tmp_path / "bad.txt.gz").write_bytes(b"no gzip")
    inputs: Any = [tmp_path / "bad.txt.gz", tmp_path / "text.txt"]
    with pytest.raises(InputError):
        run(inputs, tmp_path / "out")
    (tmp_path / "out" / ".work" / "failed.json").write_bytes(content)
    with pytest.raises(FolderError, match=r"failed\.json .*restart=True"):
        run(inputs, tmp_path / "out")


def test_only_files_that_could_not_be_read_are_scanned_again(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text(name * 40)
    out = tmp_path / "out"
    paths = [tmp_path / f"{name}.txt" for name in ("a", "b", "c")]
    plan = make_plan(paths, out, tokenizer="bytes", dedup="lines", workers=1, limits=small(part=40))
    assert len(plan.parts) == 3
    with PreparationFolder(out, restart=False) as folder:
        scans = [folder.segments / f"{part.scan_name}.json" for part in plan.parts]
        for scan in scans:
            scan.touch()
        run = Run(plan, folder, InProcessEngine(plan), Nobody())
        error = _explain_failures(run, [BadFileError(plan.sources[1].path, "it is damaged")])
        assert "1 file could not be read" in str(error)
        assert [scan.exists() for scan in scans] == [True, False, True]
        assert folder.failed_files() == [plan.sources[1].path]
