"""Objects in a real S3 server: reads, atomic writes, conditional writes, and every kind of failure."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from servers import KEY, SECRET, Proxy

from tokenmill.errors import StorageError, UsageError
from tokenmill.storage import object_connection, object_store
from tokenmill.storage.object_errors import ObjectChangedError
from tokenmill.storage.object_path import as_path
from tokenmill.storage.object_store import LONGEST, ObjectStorage


def test_objects_are_read_listed_written_and_deleted_like_files(bucket: str) -> None:
    storage = ObjectStorage(f"{bucket}/corpus")
    for name, data in (("a/one", b"12345"), ("a/two", b"2"), ("b", b""), ("a é+%20", b"x")):
        storage.write(name, data)
    assert storage.read("a/one", 1, 3) == b"234"
    assert storage.read("a/one", 4, 100) == b"5"
    assert storage.read("a/one", 9) == storage.read("b") == b""
    assert [entry[:2] for entry in storage.list("a/")] == [("a/one", 5), ("a/two", 1)]
    assert [entry.name for entry in storage.list("a/t")] == ["a/two"]
    assert [entry.name for entry in storage.list()] == ["a é+%20", "a/one", "a/two", "b"]
    assert list(storage.list("nothing/")) == []
    assert storage.find("a/one").version == next(storage.list("a/one")).version != ""
    storage.delete("a/one")
    storage.delete("a/one")
    with pytest.raises(FileNotFoundError, match=f"{bucket}/corpus/a/one"):
        storage.read("a/one")
    assert not (as_path(f"{bucket}/corp")).exists()


def test_only_one_of_many_writers_creates_an_object(bucket: str) -> None:
    storage = ObjectStorage(bucket)
    storage.write("other", b"")
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: storage.create("claim", b"%d" % n), range(8)))
    assert made.count(True) == 1
    assert storage.read("claim") == b"%d" % made.index(True)


def test_a_large_object_is_uploaded_in_parts_and_read_in_any_order(
    bucket: str, tmp_path: Path
) -> None:
    data = random.Random(1).randbytes(2 * LONGEST + 12_345)
    (tmp_path / "large").write_bytes(data)
    storage = ObjectStorage(bucket)
    with (tmp_path / "large").open("rb") as file:
        storage.upload("large", file)
    assert storage.read("large") == data
    places = random.Random(2).sample(range(len(data) - 5000), 200)
    ranges = [(place, place + 5000) for place in places]
    assert storage.read_ranges("large", ranges) == [data[a:b] for a, b in ranges]
    with as_path(f"{bucket}/large").open("rb") as file:
        read = []
        while block := file.read(300_000):
            read.append(block)
        assert b"".join(read) == data
        assert file.read(1) == b""
        file.seek(-10, os.SEEK_END)
        assert (file.read(), file.tell()) == (data[-10:], len(data))
        file.seek(7)
        buffer = bytearray(100)
        assert file.readinto(buffer) == 100
        assert buffer == data[7:107]


def test_reads_in_order_need_few_requests(bucket: str, proxy: Proxy) -> None:
    size = 3 * LONGEST
    as_path(f"{bucket}/x").write_bytes(bytes(size))
    proxy.requests.clear()
    with as_path(f"{bucket}/x").open("rb") as file:
        assert sum(iter(lambda: len(file.read(1 << 18)), 0)) == size
    # 64 KiB, then blocks that double up to 8 MiB, and one question for the size.
    assert len(proxy.requests) <= 12
    proxy.requests.clear()
    ranges = [(place, place + 100) for place in range(0, 4_000_000, 10_000)]
    ObjectStorage(bucket).read_ranges("x", ranges)
    assert len(proxy.requests) == 2  # of at most 2 MiB


def test_a_replaced_object_is_not_read_on(bucket: str) -> None:
    path = as_path(f"{bucket}/x")
    path.write_bytes(b"a" * (3 * LONGEST))
    before = path.stat()
    with path.open("rb") as file:
        assert file.read(10) == b"a" * 10
        path.write_bytes(b"b" * (3 * LONGEST))
        with pytest.raises(ObjectChangedError, match="replaced"):
            file.read()
    assert path.stat().st_mtime_ns != before.st_mtime_ns
    with path.open("rb") as file:
        path.write_bytes(b"b")
        with pytest.raises(ObjectChangedError, match="replaced"):
            file.read()
        path.unlink()
        with pytest.raises(FileNotFoundError, match=f"{bucket}/x"):
            file.read()


@pytest.mark.parametrize("fault", ["503", "429", "500", "cut"])
def test_requests_that_fail_in_passing_are_repeated(bucket: str, proxy: Proxy, fault: str) -> None:
    data = random.Random(3).randbytes(200_000)
    as_path(f"{bucket}/x").write_bytes(data)
    proxy.fail(fault, part="/x", times=2)
    assert as_path(f"{bucket}/x").read_bytes() == data
    assert [method for method, _ in proxy.requests].count("GET") == 3


def test_a_bounded_number_of_objects_is_remembered(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_MOST_KNOWN", 3)
    monkeypatch.setattr(object_store, "_known", {})
    storage = ObjectStorage(bucket)
    for number in range(5):
        storage.write(str(number), b"x")
        assert storage.find(str(number)).size == 1
    assert [one.name for one in object_store._known.values()] == ["2", "3", "4"]


def test_an_answer_that_is_cut_four_times_is_read_at_the_fifth_attempt(
    bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENMILL_STORAGE_RETRIES", "0")  # of the library
    object_connection.disconnect()
    data = random.Random(3).randbytes(200_000)
    as_path(f"{bucket}/x").write_bytes(data)
    proxy.fail("cut", part="/x", times=4)
    assert as_path(f"{bucket}/x").read_bytes() == data
    assert [method for method, _ in proxy.requests].count("GET") == 5


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("503 SlowDown", r"too many requests \(SlowDown\)\. Wait a minute\."),
        ("429", r"too many requests"),
        ("400 AuthorizationHeaderMalformed", r"in another region .* Set AWS_REGION"),
        ("301 PermanentRedirect", r"in another region"),
        ("403 AccessDenied", r"access denied \(AccessDenied\)"),
        ("500", r"the server answered with an error \(HTTP 500\)"),
        ("cut", r"the connection ended in the middle of an answer\. Check the network\."),
        ("delay", r"the server did not answer in time\. Check the network\."),
    ],
)
def test_requests_that_keep_failing_end_soon_with_the_reason(
    bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, fault: str, said: str
) -> None:
    as_path(f"{bucket}/x").write_bytes(b"12345")
    if fault == "delay":
        monkeypatch.setenv("TOKENMILL_STORAGE_TIMEOUT", "1")
        object_connection.disconnect()
    proxy.fail(fault, part="/x")
    started = time.monotonic()
    with pytest.raises(StorageError, match=f"^{bucket}/x: .*{said}"):
        as_path(f"{bucket}/x").read_bytes()
    assert time.monotonic() - started < 20


def test_an_upload_that_fails_leaves_no_object(bucket: str, proxy: Proxy, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(3 * LONGEST))
    storage = ObjectStorage(bucket)
    storage.write("other", b"")
    proxy.fail("503 SlowDown", method="PUT", part="partNumber=2")
    failing = pytest.raises(StorageError, match=f"^{bucket}/x: .*SlowDown")
    with (tmp_path / "x").open("rb") as file, failing:
        storage.upload("x", file)
    assert [entry.name for entry in storage.list()] == ["other"]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong-secret", r"access denied \((SignatureDoesNotMatch|HTTP 403)"),
        ("AWS_ACCESS_KEY_ID", "wrong-key", r"access denied \((InvalidAccessKeyId|HTTP 403)"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", r"the server cannot be reached\. .*AWS_ENDPOINT_URL"),
        ("AWS_ENDPOINT_URL", "http://server.invalid", r"the server cannot be reached"),
    ],
)  # fmt: skip
def test_errors_name_the_cause_and_the_cure_but_no_secret(
    bucket: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    as_path(f"{bucket}/x").write_bytes(b"1")
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("TOKENMILL_STORAGE_RETRIES", "1")
    object_connection.disconnect()
    path = as_path(f"{bucket}/x")
    for act in (path.read_bytes, path.is_file, path.is_dir, lambda: path.write_bytes(b"2")):
        with pytest.raises(StorageError, match=said) as caught:
            act()
        shown = f"{caught.value!r} {caught.value.__cause__!r}"
        assert bucket in shown
        assert SECRET not in shown
        assert "secret" not in shown.lower().replace("aws_secret_access_key", "")


def test_a_missing_bucket_is_named(bucket: str) -> None:
    with pytest.raises(StorageError, match=r"^s3://no-such-bucket: there is no such bucket\."):
        as_path("s3://no-such-bucket/corpus").exists()


def test_a_profile_gives_credentials_region_and_endpoint(
    bucket: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name)
    folder = Path(os.environ["HOME"], ".aws")
    folder.mkdir()
    (folder / "config").write_text(
        f"[profile other]\nregion = eu-west-1\nendpoint_url = {server}\n[default]\nregion = x\n"
    )
    (folder / "credentials").write_text(
        f"[default]\naws_access_key_id = no\naws_secret_access_key = no\n"
        f"[other]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "other")
    object_connection.disconnect()
    as_path(f"{bucket}/x").write_bytes(b"1")
    assert as_path(f"{bucket}/x").read_bytes() == b"1"


def test_missing_credentials_are_named(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    object_connection.disconnect()
    with pytest.raises(StorageError, match=r"No credentials for S3 were found\. Set AWS_ACCESS"):
        as_path(f"{bucket}/x").exists()
    monkeypatch.setenv("AWS_PROFILE", "nowhere")
    with pytest.raises(
        StorageError, match=r"The profile 'nowhere' \(AWS_PROFILE\) has no access key"
    ):
        as_path(f"{bucket}/x").exists()


FORKS = """
import os, sys
from tokenmill.errors import StorageError
from tokenmill.storage.object_path import as_path
path = as_path(sys.argv[1])
path.write_bytes(b"1")
if os.fork() == 0:
    try:
        path.read_bytes()
    except StorageError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
print(path.read_bytes())
"""


def test_a_fork_is_refused_instead_of_waiting_for_ever(bucket: str) -> None:
    command = [sys.executable, "-c", FORKS, f"{bucket}/x"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "A forked process cannot read from an object store" in said
    assert said.endswith("b'1'\n")


@pytest.mark.parametrize(
    "address", ["s3://", "s3:///key", "s3://bucket/a//b", "s3://bucket/../x", "gs://b/./x", "az://b/\n"]
)  # fmt: skip
def test_addresses_that_name_no_object_are_refused(address: str) -> None:
    with pytest.raises(UsageError):
        as_path(address)


def test_credentials_in_an_address_are_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match="must not contain credentials") as caught:
        as_path("s3://name:word@bucket/x")
    assert "word" not in str(caught.value)
