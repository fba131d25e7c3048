"""`tokenmill download` on the command line: killed, stopped and resumed; what it prints."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from local_hub import LocalHub, llmc_shard

import tokenmill
from tokenmill.storage.lock import FileLock

COMMAND = [sys.executable, "-m", "tokenmill.cli"]
SHARDS = {
    f"web_train_{number:06}.bin": llmc_shard(Random(number).choices(range(50_257), k=500_000))
    for number in range(1, 4)
}
RECORDS = [f'{{"text": "record {number} of some text"}}\n' for number in range(500)]
DEFAULT = "karpathy/fineweb-edu-100B-gpt2-token-shards"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHub]:
    with LocalHub(tmp_path_factory.mktemp("site")) as hub:
        hub.put("lab/web", SHARDS)
        hub.put("lab/text", {"data/train-0.jsonl": "".join(RECORDS).encode()})
        small = {f"edu_fineweb_train_{n:06}.bin": llmc_shard([n] * 100) for n in range(1, 6)}
        hub.put(DEFAULT, small)
        yield hub


@pytest.fixture
def hub(served: LocalHub) -> LocalHub:
    served.fail()
    return served


def start(hub: LocalHub, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env={**os.environ, **hub.environment(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(hub: LocalHub, folder: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(hub, folder, *arguments)
    stdout, stderr = process.communicate(timeout=60)
    return process.returncode, stdout, stderr


def next_command(stdout: str) -> list[str]:
    command = shlex.split(stdout.partition("Next:")[2].splitlines()[0])
    assert command[0] == "tokenmill"
    return command[1:]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def arrived(folder: Path) -> int:
    sizes = 0
    for path in folder.rglob("*.*"):
        try:
            sizes += path.stat().st_size
        except FileNotFoundError:  # renamed in between
            return arrived(folder)
    return sizes


def test_a_download_killed_five_times_ends_with_the_right_bytes(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.fail(delay=0.02)
    before = 0
    for _ in range(5):
        process = start(hub, tmp_path, "download", "lab/web", "--to", "out")
        enough = before + 200_000
        wait_until(lambda enough=enough: arrived(tmp_path / "out") > enough)
        process.kill()
        process.communicate()
        before = arrived(tmp_path / "out")
    assert process.returncode == -signal.SIGKILL
    assert before < sum(map(len, SHARDS.values()))
    sent_before, _ = hub.sent(), hub.fail()
    status, _, stderr = run(hub, tmp_path, "download", "lab/web", "--to", "out")
    assert status == 0, stderr
    assert ": skipping " in stderr
    assert ", done by an earlier run." in stderr
    found = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert found == SHARDS
    # Each kill may lose what was in flight, but nothing that had arrived.
    assert hub.sent() == sum(map(len, SHARDS.values())) - before
    assert sent_before < before + 5 * 3 * 300_000


def test_ctrl_c_keeps_what_arrived_and_progress_has_rate_and_time(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.fail(delay=0.06)
    process = start(hub, tmp_path, "download", "lab/web", "--to", "out")
    assert process.stderr is not None
    line = process.stderr.readline()  # after two seconds
    assert re.fullmatch(r"downloading: \d+%, .+ MB of 3\.0 MB, .+ [kM]B/s, \d+ s left\n", line)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "run the same command again" in stderr
    assert "Traceback" not in stderr
    hub.fail()
    assert run(hub, tmp_path, "download", "lab/web", "--to", "out")[0] == 0
    assert hub.sent() < sum(map(len, SHARDS.values())) - 1_000_000


def test_ctrl_c_ends_the_wait_for_another_process(hub: LocalHub, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    lock = FileLock(tmp_path / "out", is_folder=True)
    assert lock.acquire()
    process = start(hub, tmp_path, "download", "lab/web", "--to", "out")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("Waiting for another process")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert hub.sent() == 0
    lock.release()
    assert run(hub, tmp_path, "download", "lab/web", "--to", "out")[0] == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == SHARDS


def test_a_full_disk_is_reported_and_the_download_resumes(hub: LocalHub, tmp_path: Path) -> None:
    command = [*COMMAND, "download", "lab/web", "--to", "out"]
    limited = subprocess.run(
        ["sh", "-c", 'ulimit -f 1000; exec "$@"', "sh", *command],  # blocks of 512 bytes
        cwd=tmp_path,
        env={**os.environ, **hub.environment(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert limited.returncode == 1
    assert re.match(
        r"tokenmill: Writing failed: File too large; downloaded data is kept\.\n", limited.stderr
    )
    assert list((tmp_path / "out").glob("*.bin")) == []
    hub.fail()
    assert run(hub, tmp_path, "download", "lab/web", "--to", "out")[0] == 0
    assert hub.sent() < sum(map(len, SHARDS.values()))
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == SHARDS


def test_without_arguments_it_fetches_the_shards_of_the_guide(
    hub: LocalHub, tmp_path: Path
) -> None:
    status, stdout, stderr = run(hub, tmp_path, "download")
    assert (status, stderr) == (0, "")
    folder = tmp_path / "data" / DEFAULT.partition("/")[2]
    assert sorted(os.listdir(folder)) == [f"edu_fineweb_train_{n:06}.bin" for n in (1, 2, 3)]
    status, stdout, stderr = run(hub, tmp_path, *next_command(stdout))
    assert status == 0, stderr
    assert "llmc" in stdout


@pytest.mark.parametrize("shards", ["2", "1,3"])
def test_the_next_command_opens_the_shards(hub: LocalHub, tmp_path: Path, shards: str) -> None:
    to = "a folder"
    status, stdout, _ = run(hub, tmp_path, "download", "lab/web", "--shards", shards, "--to", to)
    assert status == 0
    assert run(hub, tmp_path, *next_command(stdout))[0] == 0


def test_the_next_command_prepares_text(hub: LocalHub, tmp_path: Path) -> None:
    status, stdout, _ = run(hub, tmp_path, "download", "lab/text", "--max-files", "1")
    assert status == 0
    assert "nothing to download" in run(hub, tmp_path, "download", "lab/text")[1]
    command = [*next_command(stdout), "--tokenizer", "bytes", "--workers", "1"]
    assert run(hub, tmp_path, *command)[0] == 0
    prepared = tokenmill.open(tmp_path / command[command.index("--out") + 1])
    assert prepared.manifest is not None
    assert prepared.manifest.ledger["documents_in"] == len(RECORDS)


@pytest.mark.parametrize(
    ("arguments", "expected", "text"),
    [
        (["lab/nothing"], 1, "no dataset 'lab/nothing'"),
        (["lab/web", "--shards", "9"], 1, "no shard 9"),
        (["lab/web", "--shards", "x"], 2, "such as 1-3"),
        (["web"], 2, "OWNER/NAME"),
    ],
)
def test_errors_are_one_line(
    hub: LocalHub, tmp_path: Path, arguments: list[str], expected: int, text: str
) -> None:
    status, stdout, stderr = run(hub, tmp_path, "download", *arguments)
    assert (status, stdout) == (expected, "")
    assert re.fullmatch(rf"tokenmill: .*{text}.*\n", stderr)
    assert os.listdir(tmp_path) in ([], ["home"])


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['huggingface_hub'] = None\n"
        "from tokenmill.cli import main\n"
        "print(main(['download']), main(['info', 'hf://datasets/a/b']))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout == "2 2\n"
    assert run.stderr.count("pip install 'tokenmill[hub]'\n") == 2
