"""Output folders that a stranger filled: nothing outside of them is written, and nothing hangs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tokenmill
from tokenmill.cli import main
from tokenmill.compat.text_source import open_texts
from tokenmill.errors import FolderError
from tokenmill.progress import Display
from tokenmill.storage.files import AtomicFile, remove_temporaries, temporary_path, write_file
from tokenmill.storage.folder import Folder
from tokenmill.storage.lock import FileLock
from tokenmill.storage.output import OutputFolder
from tokenmill.training.checkpoints import Checkpoints, RunState
from tokenmill.training.run_folder import Record, RunFolder

LINK = r"is a symbolic link\. .* delete it, or replace it"


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    """Opening a pipe would hang."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder of the user that nothing may change."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("content")
    (folder / "shard_00000.bin").write_text("content")
    (folder / "half.1.tmp").write_text("content")
    yield folder
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert found == dict.fromkeys(("precious", "shard_00000.bin", "half.1.tmp"), "content")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("To be, or not to be.")
    return path


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "precious")


def dangle(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "new")


def link_folder(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def hard_link(path: Path, outside: Path) -> None:
    path.hardlink_to(outside / "precious")


def pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, _: Path) -> None:
    path.mkdir()


KINDS = {
    link: LINK,
    dangle: LINK,
    link_folder: LINK,
    hard_link: r"has a second name \(a hard link\), .* Replace it with a copy",
    pipe: r"is not a regular file\. Delete it",
    folder: r"is not a regular file\. Delete it",
}


@pytest.mark.parametrize("name", ["metrics.jsonl", "row_losses.f32", "lock"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_writes_only_to_ordinary_files_of_its_folder(
    tmp_path: Path, outside: Path, name: str, kind: Callable[[Path, Path], None]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    kind(run / name, outside)
    with pytest.raises(FolderError, match=f"{name} {KINDS[kind]}"), RunFolder(run):
        Record(run, step=0, row=0)
    (run / name).rmdir() if kind is folder else (run / name).unlink()
    with RunFolder(run):
        Record(run, step=0, row=0).close()


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_a_run_refuses_linked_folders_before_it_starts(
    tmp_path: Path, outside: Path, name: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    (run / name).symlink_to(outside)
    with pytest.raises(FolderError, match=f"{name} {LINK}"):
        RunFolder(run)
    RunFolder(run, restart=True).close()  # discards the link, not what it leads to
    assert not (run / name).exists()


def test_a_checkpoint_is_not_written_through_a_link(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(outside)
    state = RunState(
        step=1, row=1, loader={}, vocab=256, eot_id=None, shape={}, config={}, backend="torch",
        fingerprints={}, val_loss=None,
    )  # fmt: skip
    with pytest.raises(FolderError, match=f"checkpoints {LINK}"):
        Checkpoints(tmp_path / "checkpoints").write(state, {}, {}, keep=1)


def prepare(text: Path, out: Path, **more: Any) -> None:
    tokenmill.prepare(text, out, tokenizer="bytes", workers=1, progress=False, **more)


@pytest.mark.parametrize("name", ["train", "val", ".work"])
def test_prepare_refuses_linked_folders(
    tmp_path: Path, outside: Path, text: Path, name: str
) -> None:
    out = tmp_path / "out"
    (out / ".work").mkdir(parents=True)
    (out / ".work").rmdir() if name == ".work" else None
    (out / name).symlink_to(outside)
    with pytest.raises(FolderError, match=f"{name} {LINK}"):
        prepare(text, out)
    if name != ".work":
        prepare(text, out, restart=True)  # discards the link, not the shards behind it
        assert tokenmill.open(out).splits


@pytest.mark.parametrize("kind", [link, hard_link, pipe])
@pytest.mark.parametrize("name", ["lock", "fates", "segments", "segments/x.json", "marks/x.marks"])
def test_prepare_refuses_what_is_not_a_file_in_its_work_folder(
    tmp_path: Path, outside: Path, text: Path, name: str, kind: Callable[[Path, Path], None]
) -> None:
    path = tmp_path / "out" / ".work" / name
    path.parent.mkdir(parents=True)
    kind(path, outside)
    with pytest.raises(FolderError, match=KINDS[kind]):
        prepare(text, tmp_path / "out")


class Stopped(Exception):
    """As if the process had been killed after its first shard."""


class Stopping(Display):
    """Stops a run."""

    def advance(self, *_: int) -> None:
        raise Stopped


@pytest.mark.parametrize(
    ("command", "name"),
    [("import", "train"), ("import", ".work"), ("reshard", "train"), ("export", "train")],
)
def test_import_reshard_and_export_refuse_linked_folders(
    tmp_path: Path, outside: Path, text: Path, command: str, name: str
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    prepare(text, data, val_fraction=0)
    runs: dict[str, Callable[..., object]] = {
        "import": partial(tokenmill.import_dataset, data / "train", out, vocab_size=257),
        "reshard": partial(tokenmill.reshard, data, out),
        "export": partial(tokenmill.export, data, out, to="mds"),
    }
    options = {"dtype": "uint16", "format": "raw"} if command == "import" else {}
    run = partial(runs[command], tokens_per_shard=10, **options)
    with pytest.raises(Stopped):
        run(watcher=Stopping())
    (out / name).rename(tmp_path / "real")
    (out / name).symlink_to(outside if name == "train" else tmp_path / "real")
    with pytest.raises(FolderError, match=f"{name} {LINK}"):
        run()
    (out / name).unlink()
    (tmp_path / "real").rename(out / name)
    run()


@pytest.mark.parametrize("name", ["pretokenize", "open_texts"])
def test_a_work_folder_beside_the_text_may_not_be_a_link(
    tmp_path: Path, outside: Path, text: Path, name: str
) -> None:
    if name == "pretokenize":
        (tmp_path / ".texts.npy.work").symlink_to(outside)
        with pytest.raises(FolderError, match=LINK):
            tokenmill.pretokenize(text, tokenizer="bytes")
    else:
        (tmp_path / "texts.txt.tokens").symlink_to(outside)
        with pytest.raises(FolderError, match=LINK):
            open_texts(text, "bytes")
        (tmp_path / "texts.txt.tokens").unlink()
        tokens = open_texts(text, "bytes").path
        tokens.rename(tmp_path / "real")
        tokens.symlink_to(tmp_path / "real")
        with pytest.raises(FolderError, match=LINK):
            open_texts(text, "bytes")


def test_temporary_files_replace_links_and_do_not_follow_them(
    tmp_path: Path, outside: Path
) -> None:
    path = tmp_path / "a"
    temporary_path(path).symlink_to(outside / "precious")
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert not path.is_symlink()
    temporary_path(path).symlink_to(outside / "new")
    with AtomicFile(path) as file:
        file.write(b"newer")
        file.finish()
    temporary_path(tmp_path / "b").symlink_to(outside / "precious")
    assert Folder(tmp_path).create("b", b"1")
    (tmp_path / "c").symlink_to(outside)
    with pytest.raises(FolderError, match=LINK):
        Folder(tmp_path).write("c/new", b"1")
    with pytest.raises(FolderError, match=LINK):
        Folder(tmp_path).create("c/new", b"1")
    os.mkfifo(tmp_path / "d")
    with pytest.raises(FolderError, match="not a regular file"):
        Folder(tmp_path).read("d")


@pytest.mark.parametrize("make", [pipe, folder])
def test_a_file_takes_the_place_of_files_and_links_only(
    tmp_path: Path, outside: Path, make: Callable[[Path, Path], None]
) -> None:
    make(tmp_path / "there", outside)
    before = (tmp_path / "there").stat()
    with pytest.raises(FolderError, match=r"so it is not replaced\. Delete it"):
        write_file(tmp_path / "there", b"new")
    with pytest.raises(FolderError, match="so it is not replaced"):
        AtomicFile(tmp_path / "there")
    assert os.path.samestat((tmp_path / "there").stat(), before)
    (tmp_path / "link").symlink_to(outside / "precious")
    write_file(tmp_path / "link", b"new")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to(tmp_path / "pipe")
    with pytest.raises(FolderError, match="not a regular file"):
        write_file(tmp_path / "to_pipe", b"new")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["link", "outside", "pipe", "there", "to_pipe"]


def test_leftovers_behind_links_are_not_removed(tmp_path: Path, outside: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "record").write_text("{}")
    (out / "elsewhere").symlink_to(outside)
    (out / "left.1.tmp").symlink_to(outside)
    OutputFolder(out, marks=["record"]).close()
    assert sorted(path.name for path in out.iterdir()) == ["elsewhere", "record"]
    remove_temporaries(out)


def test_an_output_folder_that_the_user_named_may_be_a_link(tmp_path: Path, text: Path) -> None:
    real = tmp_path / "scratch"
    real.mkdir()
    (tmp_path / "data").symlink_to(real)
    prepare(text, tmp_path / "data" / "corpus", val_fraction=0)
    for name in ("prepared", "exported", "run"):
        (real / name).mkdir()
        (tmp_path / name).symlink_to(real / name)
    prepare(text, tmp_path / "prepared", val_fraction=0)
    tokenmill.export(tmp_path / "prepared", tmp_path / "exported", to="mds")
    with RunFolder(tmp_path / "run"):
        Record(tmp_path / "run", step=0, row=0).close()
        assert not FileLock(tmp_path / "run" / "lock").acquire()
    assert (tmp_path / "prepared").is_symlink()
    assert tokenmill.open(tmp_path / "exported" / "train")


def test_the_command_line_prints_the_link_and_no_traceback(
    tmp_path: Path, outside: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out" / ".work").mkdir(parents=True)
    (tmp_path / "out" / "train").symlink_to(outside)
    command = ["prepare", str(text), "--tokenizer", "bytes", "--out", str(tmp_path / "out")]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path / 'out' / 'train'} is a symbolic link" in said
    assert "Traceback" not in said
