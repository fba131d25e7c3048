"""Every fault of an object store in every use of it: the message, and that nothing is lost.

Faults are provoked against a real S3 server through a proxy. Each test then removes the fault, does the
same again, and compares every byte or row with those of a local folder.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from servers import SECRET, Proxy

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import TokenmillError
from tokenmill.preparation.plan import make_plan
from tokenmill.preparation.prepare import run_plan
from tokenmill.progress import Nobody
from tokenmill.storage import object_connection
from tokenmill.storage.addresses import parse_address
from tokenmill.storage.object_path import as_path

# A fault of the proxy, and what the message says about it: the reason, then the cure.
FAULTS = {
    "no permission": ("403 AccessDenied", "access denied (AccessDenied). Check that the credentials"),
    "wrong region": (
        "400 AuthorizationHeaderMalformed",
        "the bucket is in another region (AuthorizationHeaderMalformed). Set AWS_REGION",
    ),
    "HTTP 429": ("429", "too many requests (HTTP 429). Wait a minute. Run the same command again."),
    "HTTP 503": ("503 SlowDown", "too many requests (SlowDown). Wait a minute. Run the same command again."),
    "timeout": ("delay", "the server did not answer in time. Check the network. Run the same"),
    "cut": ("cut", "the connection ended in the middle of an answer. Check the network. Run"),
}  # fmt: skip
NO_BUCKET = (
    "s3://no-such-bucket: there is no such bucket. Check its name; for an S3-compatible store"
)
OPTIONS = "--tokenizer bytes --val-fraction 0.1 --tokens-per-shard 20000 --workers 1".split()
SETTINGS = {"tokenizer": "bytes", "val_fraction": 0.1, "tokens_per_shard": 20_000, "workers": 1}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "texts"
    folder.mkdir()
    for name in "abc":
        documents = [f"Document {name} {n}: " + "word " * (n % 97) for n in range(150)]
        (folder / f"{name}.txt").write_text("<|endoftext|>".join(documents))
    return folder


@pytest.fixture(scope="module")
def local(texts: Path) -> Path:
    tokenmill.prepare(texts, texts.with_name("data"), **SETTINGS)
    return texts.with_name("data")


@pytest.fixture
def impatient(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Proxy:
    """A proxy whose faults are reported soon."""
    monkeypatch.setenv("TOKENMILL_STORAGE_RETRIES", "1")
    if "timeout" in request.node.name:
        monkeypatch.setenv("TOKENMILL_STORAGE_TIMEOUT", "2")
        monkeypatch.setenv("TOKENMILL_STORAGE_RETRIES", "0")
    object_connection.disconnect()
    return proxy


def upload(folder: Path, address: str) -> str:
    for path in folder.rglob("*"):
        if path.is_file():
            as_path(f"{address}/{path.relative_to(folder)}").write_bytes(path.read_bytes())
    return address


def tokens_of(dataset: str | Path) -> dict[str, bytes]:
    """The files of a dataset that do not name the input files."""
    root = as_path(dataset)
    files = sorted(
        one for one in root.rglob("*") if one.is_file() and one.suffix in (".bin", ".npy")
    )
    return {one.relative_to(root).as_posix(): one.read_bytes() for one in files}


def check(said: str, *expected: str) -> None:
    """A message has an address, a reason and a cure, but no secret and no traceback."""
    print(said)
    for text in expected:
        assert text in said
    assert "Traceback" not in said
    assert "bug in tokenmill" not in said
    assert SECRET not in said


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Run a command; returns its status and what it printed on standard error."""
    capsys.readouterr()
    status = main([*map(str, words)])
    return status, capsys.readouterr().err


@pytest.mark.parametrize("fault", ["no bucket", *FAULTS])
def test_faults_while_inputs_are_read(
    texts: Path, local: Path, bucket: str, impatient: Proxy, tmp_path: Path, fault: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    remote, out = upload(texts, f"{bucket}/texts"), tmp_path / "out"
    if fault == "no bucket":
        status, said = run(capsys, "prepare", "s3://no-such-bucket/x", "--out", out, *OPTIONS)
        check(said, NO_BUCKET)
        assert status == 1
        return
    how, expected = FAULTS[fault]
    impatient.fail(how, part="b.txt")
    status, said = run(capsys, "prepare", remote, "--out", out, *OPTIONS)
    check(said, f"{remote}/b.txt: ", expected)
    assert status == 1
    assert not (out / "dataset_metadata.json").exists()
    impatient.clear()
    assert run(capsys, "prepare", remote, "--out", out, *OPTIONS)[0] == 0
    assert tokens_of(out) == tokens_of(local)


@pytest.mark.parametrize("fault", ["replaced", "vanished"])
def test_inputs_that_change_after_planning(
    texts: Path, local: Path, bucket: str, tmp_path: Path, fault: str
) -> None:
    remote, out = upload(texts, f"{bucket}/texts"), tmp_path / "out"
    plan = make_plan(remote, out, **SETTINGS)
    changed = as_path(f"{remote}/b.txt")
    changed.write_bytes(b"other text") if fault == "replaced" else changed.unlink()
    with pytest.raises(TokenmillError) as caught:
        run_plan(plan, out, Nobody())
    reason = "the file changed since the run began" if fault == "replaced" else "No such object"
    check(
        str(caught.value), "1 file could not be read", f"{changed}: {reason}", "Repair or replace"
    )
    changed.write_bytes((texts / "b.txt").read_bytes())
    run_plan(make_plan(remote, out, **SETTINGS), out, Nobody())
    assert tokens_of(out) == tokens_of(local)


@pytest.mark.parametrize("fault", ["no bucket", *FAULTS])
def test_faults_while_outputs_are_written(
    texts: Path, local: Path, bucket: str, impatient: Proxy, fault: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = f"{bucket}/out"
    if fault == "no bucket":
        status, said = run(capsys, "prepare", texts, "--out", "s3://no-such-bucket/x", *OPTIONS)
        check(said, NO_BUCKET)
        assert status == 1
        return
    how, expected = FAULTS[fault]
    impatient.fail(how, method="PUT", part="train/shard_00001.bin")
    status, said = run(capsys, "prepare", texts, "--out", out, *OPTIONS)
    check(said, f"{out}/train/shard_00001.bin: ", expected)
    assert status == 1
    assert not as_path(f"{out}/dataset_metadata.json").exists()
    with pytest.raises(TokenmillError, match="is not finished"):
        tokenmill.open(out)
    impatient.clear()
    assert run(capsys, "prepare", texts, "--out", out, *OPTIONS)[0] == 0
    assert tokens_of(out) == tokens_of(local)
    assert tokenmill.verify(out) == []


@pytest.mark.parametrize("fault", ["replaced", "vanished"])
def test_outputs_that_change_before_a_run_resumes(
    texts: Path, local: Path, bucket: str, impatient: Proxy, fault: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = f"{bucket}/out"
    impatient.fail("503", method="PUT", part="dataset_metadata.json")
    assert run(capsys, "prepare", texts, "--out", out, *OPTIONS)[0] == 1
    impatient.clear()
    shard = as_path(f"{out}/train/shard_00001.bin")
    shard.write_bytes(bytes(40_000)) if fault == "replaced" else shard.unlink()
    status, said = run(capsys, "prepare", texts, "--out", out, *OPTIONS)
    assert status == 0
    check(said, "train/shard_00001.bin")
    assert tokens_of(out) == tokens_of(local)


def load(dataset: str | Path, state: dict[str, object] | None = None) -> tokenmill.Loader:
    tokens = tokenmill.open(dataset, cache_dir=tempfile.mkdtemp(dir=Path.home()))["train"]
    loader = tokenmill.Loader(tokens, batch_size=8, seq_len=64, seed=3, order="shuffled")
    if state is not None:
        loader.load_state_dict(state)
    return loader


def rows_of(loader: tokenmill.Loader) -> Iterator[np.ndarray]:
    return (batch.inputs for batch in loader)


@pytest.mark.parametrize("fault", ["no bucket", *FAULTS, "replaced", "vanished"])
def test_faults_while_training_data_are_read(
    local: Path, bucket: str, impatient: Proxy, fault: str
) -> None:
    data = upload(local, f"{bucket}/data")
    loader = load(data)
    first = [batch for _, batch in zip(range(2), rows_of(loader), strict=False)]
    state = loader.state_dict()
    shard = f"{data}/train/shard_00001.bin"

    def provoke() -> object:
        return next(rows_of(load(data, state)))

    if fault == "no bucket":
        expected = [NO_BUCKET]
        provoke = functools.partial(load, "s3://no-such-bucket/data")
    elif fault == "replaced":
        tokens = tokenmill.open(data, cache_bytes=0)["train"]
        provoke = functools.partial(tokens.__getitem__, slice(20_000, 20_010))
        expected = [
            f"train/shard_00001.bin in {data} cannot be read: the object was replaced while it was being read",
            "Open the data again, or run the same command again.",
        ]
        provoke()
        store, key = object_connection.connect(parse_address(shard))
        store.put(key, bytes(40_000))  # as another process does
    elif fault == "vanished":
        as_path(shard).unlink()
        expected = [f"train/shard_00001.bin is missing from {data}", "Copy the file again"]
    else:
        impatient.fail(FAULTS[fault][0], part="shard_00001.bin")
        expected = [f"{shard}: ", FAULTS[fault][1]]
    with pytest.raises(TokenmillError) as caught:
        provoke()
    check(str(caught.value), *expected)
    impatient.clear()
    upload(local, data)
    rest = rows_of(load(data, state))
    found = np.concatenate(list(itertools.chain(first, itertools.islice(rest, 6))))
    wanted = np.concatenate(list(itertools.islice(rows_of(load(local)), 8)))
    assert np.array_equal(found, wanted)
