"""tokenmill.download against a local Hub: the right bytes whatever happens, or a clear error."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from local_hub import LocalHub, llmc_shard

import tokenmill
from tokenmill.errors import (
    DatasetError,
    FolderError,
    InputError,
    TokenmillError,
    UsageError,
    WorkError,
)
from tokenmill.hub.fetch import Transfer
from tokenmill.hub.repository import HubFile

SHARDS = {
    f"web_train_{number:06}.bin": llmc_shard([Random(number).randrange(50_257)] * 150_000)
    for number in range(1, 5)
}
SIZE = len(SHARDS["web_train_000001.bin"])
CARD = b"# a card"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHub]:
    with LocalHub(tmp_path_factory.mktemp("site")) as hub:
        hub.put("lab/web", {**SHARDS, "README.md": CARD})
        hub.put("lab/bad", {"x_000001.bin": llmc_shard([1] * 100, claims=200)})
        hub.put("lab/raw", {"train.bin": b"\1\0" * 99, "val.bin": b"\2\0" * 9})
        hub.put("lab/text", {f"data/train-{n}.jsonl": b'{"text": "a"}\n' * n for n in (1, 2, 10)})
        yield hub


@pytest.fixture
def hub(served: LocalHub, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    served.fail()
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    return served


class Notes:
    """A watcher that records all calls."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int, int]] = []
        self.notes: list[str] = []
        self.read = 0

    def begin(self, stage: str, total: int, done: int = 0, unit: str = "bytes") -> None:
        self.stages.append((stage, total, done))
        self.read = 0

    def advance(self, read: int, *_: int) -> None:
        self.read += read

    def note(self, text: str) -> None:
        self.notes.append(text)


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder, including hidden ones."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def first(count: int) -> dict[str, bytes]:
    return dict(list(SHARDS.items())[:count])


def test_only_the_requested_files_are_fetched(hub: LocalHub, tmp_path: Path) -> None:
    notes = Notes()
    done = tokenmill.download("lab/web", shards="1-2", to=tmp_path, watcher=notes)
    assert contents(tmp_path) == first(2)
    assert (done.path, done.kind, done.bytes) == (tmp_path, "tokens", 2 * SIZE)
    assert done.fetched == notes.read == hub.sent() == 2 * SIZE
    assert sorted(done.files) == [tmp_path / name for name in first(2)]
    assert notes.stages == [("downloading", 2 * SIZE, 0)]
    assert int(tokenmill.open(tmp_path)["val"][0]) == Random(2).randrange(50_257)


def test_existing_files_are_not_fetched_again(hub: LocalHub, tmp_path: Path) -> None:
    tokenmill.download("lab/web", shards=[1, 2], to=tmp_path)
    hub.fail()
    done = tokenmill.download("lab/web", shards="1-3", to=tmp_path)
    assert contents(tmp_path) == first(3)
    assert done.fetched == hub.sent() == SIZE
    assert tokenmill.download("lab/web", shards="1-3", to=tmp_path).fetched == 0


def test_text_keeps_its_folders_and_git_checksums_are_checked(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.fail(alter=1)
    done = tokenmill.download("hf://datasets/lab/text", split="train", max_files=2, to=tmp_path)
    expected = {f"data/train-{n}.jsonl": b'{"text": "a"}\n' * n for n in (1, 2)}
    assert contents(tmp_path) == expected
    assert done.kind == "text"


def test_nothing_is_written_through_links_in_the_folder(hub: LocalHub, tmp_path: Path) -> None:
    out, precious = tmp_path / "out", tmp_path / "outside" / "precious"
    out.mkdir()
    precious.parent.mkdir()
    precious.write_bytes(b"content")
    (out / "data").symlink_to(precious.parent)
    with pytest.raises(FolderError, match="data is a symbolic link"):
        tokenmill.download("lab/text", to=out)
    file = HubFile(path="train.bin", size=198, digest=hashlib.sha256(b"\1\0" * 99).hexdigest())
    part = Transfer(file=file, target=out / file.path).part
    for make in (part.symlink_to, part.hardlink_to):
        make(precious)
        with pytest.raises(FolderError, match=r"symbolic link|hard link"):
            tokenmill.download("lab/raw", to=out)
        part.unlink()
    (out / "train.bin").symlink_to(precious)  # replaced, not followed
    tokenmill.download("lab/raw", to=out)
    assert not (out / "train.bin").is_symlink()
    assert [path.read_bytes() for path in precious.parent.iterdir()] == [b"content"]


def test_the_folder_is_named_after_the_repository(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tokenmill.download("lab/raw").path == Path("data/raw")
    assert set(contents(tmp_path)) == {"data/raw/train.bin", "data/raw/val.bin"}


def test_one_file_can_be_named(hub: LocalHub, tmp_path: Path) -> None:
    tokenmill.download("lab/web/web_train_000003.bin", to=tmp_path)
    assert list(contents(tmp_path)) == ["web_train_000003.bin"]


def test_the_token_is_sent_to_the_hub_and_not_to_redirects(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "made-up")
    hub.fail(cut=1, cut_after=60_000)
    tokenmill.download("lab/web", shards="1", to=tmp_path)
    assert {one["token"] for one in hub.requests("lab/web/resolve")} == {"Bearer made-up"}
    assert {one["token"] for one in hub.requests("lab/web/tree")} == {"Bearer made-up"}
    assert {one["token"] for one in hub.requests("/cdn/")} == {None}


def test_a_lost_connection_resumes(hub: LocalHub, tmp_path: Path) -> None:
    hub.fail(cut=5, cut_after=60_000)
    notes = Notes()
    tokenmill.download("lab/web", shards="1-2", to=tmp_path, watcher=notes)
    assert contents(tmp_path) == first(2)
    ranges = [one["range"] for one in hub.requests() if one["range"]]
    assert len(ranges) == 5
    assert notes.read == 2 * SIZE
    assert hub.sent() < 2 * SIZE + 5 * 70_000  # loses what was in flight, never the rest


def test_a_server_that_ignores_ranges_works(hub: LocalHub, tmp_path: Path) -> None:
    hub.fail(cut=2, cut_after=100_000, ignore_range=True)
    tokenmill.download("lab/web", shards="1", to=tmp_path)
    assert contents(tmp_path) == first(1)


def test_altered_bytes_are_fetched_once_more(hub: LocalHub, tmp_path: Path) -> None:
    hub.fail(alter=1)
    notes = Notes()
    tokenmill.download("lab/web", shards="1", to=tmp_path, watcher=notes)
    assert contents(tmp_path) == first(1)
    assert notes.read == SIZE
    assert hub.sent() == 2 * SIZE


def test_bytes_altered_every_time_are_refused(hub: LocalHub, tmp_path: Path) -> None:
    hub.fail(alter=99)
    with pytest.raises(WorkError, match=r"web_train_000001\.bin of lab/web arrived 2 times"):
        tokenmill.download("lab/web", shards="1", to=tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    hub.fail()
    tokenmill.download("lab/web", shards="1", to=tmp_path)
    assert contents(tmp_path) == first(1)


@pytest.mark.parametrize("damage", ["shorter", "longer", "altered", "empty"])
def test_a_damaged_file_in_the_folder_is_fetched_again(
    hub: LocalHub, tmp_path: Path, damage: str
) -> None:
    tokenmill.download("lab/web", shards="1-2", to=tmp_path)
    path = tmp_path / "web_train_000002.bin"
    data = path.read_bytes()
    altered = data[:5000] + b"!" + data[5001:]
    path.write_bytes(
        {"shorter": data[:-2], "longer": data + b"x", "altered": altered, "empty": b""}[damage]
    )
    hub.fail()
    notes = Notes()
    done = tokenmill.download("lab/web", shards="1-2", to=tmp_path, watcher=notes)
    assert contents(tmp_path) == first(2)
    assert done.fetched == hub.sent() == SIZE
    assert [str(path) in note for note in notes.notes] == [True]


@pytest.mark.parametrize("left", ["wrong bytes", "too many"])
def test_a_wrong_partial_file_is_discarded(hub: LocalHub, tmp_path: Path, left: str) -> None:
    data = SHARDS["web_train_000001.bin"]
    file = HubFile(path="web_train_000001.bin", size=SIZE, digest=hashlib.sha256(data).hexdigest())
    Transfer(file=file, target=tmp_path / file.path).part.write_bytes(
        b"?" * 1000 if left == "wrong bytes" else data + b"more"
    )
    notes = Notes()
    tokenmill.download("lab/web", shards="1", to=tmp_path, watcher=notes)
    assert contents(tmp_path) == first(1)
    _, total, done = notes.stages[-1]
    assert done + notes.read == total == SIZE


def test_a_shard_with_a_wrong_header_on_the_hub_is_refused(hub: LocalHub, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"x_000001\.bin has 1,224 bytes, expected"):
        tokenmill.download("lab/bad", to=tmp_path)
    assert contents(tmp_path) == {}


def test_processes_with_the_same_target_share_one_download(hub: LocalHub, tmp_path: Path) -> None:
    hub.fail(delay=0.01)
    code = f"import tokenmill; tokenmill.download('lab/web', shards='1-2', to={str(tmp_path)!r})"
    runs = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [run.wait(60) for run in runs] == [0, 0, 0]
    assert contents(tmp_path) == first(2)
    assert hub.sent() == 2 * SIZE


FAILURES = {
    "unknown repository": (
        "lab/nothing",
        {},
        InputError,
        r"no dataset 'lab/nothing'.*hf auth login",
    ),
    "unknown revision": ("lab/web@v9", {}, InputError, "no such revision"),
    "unknown path": ("lab/web/sub", {}, InputError, r"lab/web has no 'sub'"),
    "gated": ("lab/web", {"gated": 1}, InputError, r"gated.*/datasets/lab/web.*hf auth login"),
    "unauthorized": ("lab/web", {"status": 401}, InputError, r"HTTP 401.*hf auth login"),
    "forbidden": ("lab/web", {"status": 403}, InputError, r"HTTP 403.*hf auth login"),
    "out of order": ("lab/web", {"status": 500}, WorkError, r"HTTP 500.*Try again later"),
    "too many requests": ("lab/web", {"status": 429}, WorkError, "Wait a few minutes"),
    "file gone": ("lab/web", {"gone": ["web_train_000002.bin"]}, InputError, "does not exist"),
    "no name": ("web", {}, UsageError, "OWNER/NAME"),
    "leaves the folder": (
        "lab/web",
        {"claims": {"README.md": {"path": "../../evil.bin"}}},
        InputError,
        "outside the target folder",
    ),
    "larger than the disk": (
        "lab/text",
        {"claims": {"data/train-1.jsonl": {"size": 10**18}}},
        FolderError,
        "Choose fewer files",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_failures_give_one_line_with_the_cure(hub: LocalHub, tmp_path: Path, case: str) -> None:
    repository, faults, kind, text = FAILURES[case]
    hub.fail(**faults)
    with pytest.raises(TokenmillError, match=text) as caught:
        tokenmill.download(repository, to=tmp_path / "out")
    assert isinstance(caught.value, kind)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "evil.bin").exists()
    assert "web_train_000002.bin" not in contents(tmp_path / "out")


def test_unknown_shards_are_refused_with_the_existing_range(hub: LocalHub, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"lab/web has no shard 7, 9\. It has 4 shards, numbered 1 to 4"
    ):
        tokenmill.download("lab/web", shards="1,7,9", to=tmp_path)
    assert hub.sent() == 0


def test_without_a_network_the_error_comes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:  # bound and not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(
            WorkError, match=r"Cannot reach the Hub at .+ \(.+\)\. Check the network"
        ):
            tokenmill.download("lab/web", shards="1", to=tmp_path)


def test_a_folder_that_cannot_be_written_is_named(hub: LocalHub, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkError, match=r"Writing failed \(.*file.*\): Not a directory"):
        tokenmill.download("lab/raw", to=tmp_path / "file" / "sub")
