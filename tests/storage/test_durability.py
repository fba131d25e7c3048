"""Every file is flushed before it gets its name, and its folder after, in every process of a command.

`recorder/sitecustomize.py` logs each flush with the content on disk at that time, so data that is
still in a buffer of the process shows.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import tokenmill
from tokenmill.errors import WorkError
from tokenmill.formats import WRITABLE
from tokenmill.storage.files import make_folder, sync_folder, write_file

RECORDER = Path(__file__).parent / "recorder"
sys.path += [str(RECORDER), str(Path(__file__).parents[1] / "hub")]
from local_hub import LocalHub  # noqa: E402
from sitecustomize import checksum, identify  # noqa: E402

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="the recorder reads /proc/self/fd"
)

COMMANDS = """
import sys
from pathlib import Path
import numpy as np
import tokenmill
from tokenmill.formats import WRITABLE
from tokenmill.training.checkpoints import Checkpoints, RunState
from tokenmill.training.run_folder import Record

root = Path(sys.argv[1])
options = {"tokenizer": "bytes", "workers": 2, "tokens_per_shard": 2_000, "progress": False}
tokenmill.prepare(root / "texts", root / "new" / "prepared", val_fraction=0.2, **options)
for name in WRITABLE:
    tokenmill.export(root / "new" / "prepared", root / name, to=name, tokens_per_shard=1_500)
tokenmill.import_dataset(
    root / "npy", root / "imported", tokenizer="bytes", tokens_per_shard=2_000
)
tokenmill.reshard(root / "new" / "prepared", root / "resharded", tokens_per_shard=500)
(root / "beside").mkdir()
(root / "texts" / "a.jsonl").rename(root / "beside" / "a.jsonl")
tokenmill.pretokenize(root / "beside" / "a.jsonl", tokenizer="bytes", progress=False)

tokenmill.download("lab/text", to=root / "downloaded")
tokenmill.train_tokenizer(root / "texts" / "b.txt", vocab_size=260, out=root / "vocabulary/a.json")

run = root / "run"
(run / "checkpoints").mkdir(parents=True)
record = Record(run, step=0, row=0)
checkpoints = Checkpoints(run / "checkpoints")
for step in (1, 2):
    record.add_losses(step - 1, np.ones(1, np.float32))
    record.add({"step": step, "row": step, "loss": 1.0})
    record.flush()
    state = RunState(
        step=step, row=step, loader={}, vocab=256, eot_id=None, shape={}, config={},
        backend="torch", fingerprints={}, val_loss=None,
    )
    arrays = {"head": np.ones((200, 200), np.float32)}
    checkpoints.write(state, arrays, arrays, keep=2)
"""


class Event(NamedTuple):
    """See `recorder/sitecustomize.py`."""

    time: int
    kind: str
    file: str
    content: str


class Log(NamedTuple):
    """What a command did, and where."""

    root: Path
    events: list[Event]

    def find_named(self, path: Path, kind: str = "name") -> int:
        """When a file or folder got the path that it has; 0 if never."""
        wanted = kind, identify(path.lstat()), str(path)
        return max((one.time for one in self.events if one[1:] == wanted), default=0)

    def find_synced(self, path: Path, after: int = 0) -> int:
        """When a file was first flushed with its final content, or a folder; fails if never."""
        found, status = identify(path.stat()), path.stat()
        content = checksum(path) if stat.S_ISREG(status.st_mode) else ""
        times = [one.time for one in self.events if one[1:] == ("sync", found, content)]
        times = [time for time in times if time > after]
        assert times, f"{path} was not flushed" + (" after it got its name" if after else "")
        return times[0]

    def check(self, path: Path) -> int:
        """Check that a file or folder is durable; returns since when."""
        synced = self.find_synced(path) if path.is_file() else 0
        named = self.find_named(path)
        moved = [parent for parent in path.parents if parent.name.startswith("step_")]
        if moved:  # a checkpoint: files in a new folder, which is renamed when they are complete
            named = self.find_named(moved[0])
            assert self.find_synced(path.parent) < named
        if made := self.find_named(path, "made"):
            return max(synced, self.find_synced(path.parent, after=made))
        assert synced < named, f"{path} got its name before it was flushed"
        return self.find_synced((moved[0] if moved else path).parent, after=named)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    root = tmp_path_factory.mktemp("recorded")
    (root / "texts").mkdir()
    lines = (json.dumps({"text": f"{number} and more text"}) + "\n" for number in range(300))
    (root / "texts" / "a.jsonl").write_text("".join(lines) + '{"no": "text"}\n')
    (root / "texts" / "b.txt").write_bytes(b"repaired \xff text\n" * 10)
    path = root / "log.jsonl"
    with LocalHub(tmp_path_factory.mktemp("site")) as hub:
        hub.put("lab/text", {f"data/train-{n}.jsonl": b'{"text": "a"}\n' * n for n in (1, 2)})
        recording = {"PYTHONPATH": str(RECORDER), "RECORD_TO": str(path), "HF_ENDPOINT": hub.url}
        subprocess.run(
            [sys.executable, "-P", "-c", COMMANDS, root],
            env={**os.environ, **recording},
            check=True,
            timeout=120,
        )
    return Log(root, [Event(*json.loads(line)) for line in path.read_text().splitlines()])


DATASETS = ["new/prepared", "imported", "resharded"]
OTHERS = ["beside", "downloaded", "vocabulary", "run"]


@pytest.mark.parametrize("folder", [*DATASETS, "new", *WRITABLE, *OTHERS])
def test_every_file_is_flushed_before_it_gets_its_name_and_its_folder_after(
    log: Log, folder: str
) -> None:
    source = log.root / "beside" / "a.jsonl"
    paths = [path for path in (log.root / folder).rglob("*") if path != source]
    assert paths
    for path in paths:
        log.check(path)
    if folder in DATASETS or folder in WRITABLE:
        log.check(log.root / folder)  # the new folder's own name


@pytest.mark.parametrize("folder", DATASETS)
def test_a_manifest_appears_after_everything_that_it_names_is_durable(
    log: Log, folder: str
) -> None:
    manifest = log.root / folder / "dataset_metadata.json"
    others = [path for path in (log.root / folder).rglob("*") if path != manifest]
    assert len([path for path in others if path.suffix == ".bin"]) > 3
    complete = log.find_named(manifest)
    assert complete
    for path in others:
        assert log.check(path) < complete, path


def test_losses_are_flushed_before_the_checkpoint_that_counts_them(log: Log) -> None:
    run = log.root / "run"
    for name in ("metrics.jsonl", "row_losses.f32"):
        assert log.find_synced(run / name) < log.find_named(run / "checkpoints" / "step_0000002")


def test_any_flush_that_fails_stops_an_export_and_a_rerun_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.arange(100, dtype=np.uint16))
    flush = os.fsync
    calls, failing = 0, -1

    def fail(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(handle)

    def export(folder: Path) -> dict[str, bytes]:
        nonlocal calls
        calls = 0
        tokenmill.export(tmp_path / "x.npy", folder, to="mds", eot_id=0, vocab_size=100)
        return {
            str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()
        }

    monkeypatch.setattr(os, "fsync", fail)
    whole = export(tmp_path / "whole")
    total = calls
    # Three files and the folder of each, the new folder `train`, the output's own name twice, and once
    # the names in it, which an earlier run may have left unflushed.
    assert total == 10
    for number in range(1, total + 1):
        out, failing = tmp_path / str(number), number
        with pytest.raises(WorkError, match=r"Writing failed.*Input/output error"):
            export(out)
        failing = -1
        assert export(out) == whole


def test_a_file_system_that_cannot_flush_folders_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(OSError) as refused:
        os.fsync(os.open("/proc", os.O_RDONLY))
    assert refused.value.errno == errno.EINVAL
    sync_folder(Path("/proc"))
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "missing")
    unlisted = tmp_path / "unlisted"
    unlisted.mkdir(mode=0o300)
    write_file(unlisted / "a", b"1")


def test_new_folders_on_the_way_are_all_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    flush = os.fsync

    def note(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())
        flush(handle)

    monkeypatch.setattr(os, "fsync", note)
    make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path / name for name in (".", "a", "a/b")]
