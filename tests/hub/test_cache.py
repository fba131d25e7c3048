"""cache.py: `open` and `prepare` on hf:// paths, in the cache that the Hub's own tools use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_hub import LocalHub, llmc_shard

import tokenmill
from tokenmill.errors import TokenmillError, WorkError
from tokenmill.sources.find import find_files

SHARDS = {f"web_{number:02}.bin": llmc_shard([number] * 5_000) for number in range(1, 4)}
TEXTS = [f"Some text, number {number}." for number in range(300)]


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHub]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "text.jsonl").write_bytes(lines(TEXTS))
    tokenmill.prepare(
        folder / "text.jsonl",
        folder / "lab/prepared",
        tokenizer="bytes",
        workers=1,
        val_fraction=0.2,
    )
    with LocalHub(folder) as hub:
        hub.put("lab/web", {**SHARDS, "README.md": b"# card"})
        hub.put("lab/deep", {f"tokens/{name}": data for name, data in SHARDS.items()})
        same = lines(TEXTS[:7])
        hub.put("lab/text", {"a/1.jsonl": same, "a/2.jsonl": same, "b/3.jsonl": lines(TEXTS)})
        yield hub


@pytest.fixture
def hub(served: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    served.fail()
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    return served


def python(code: str, **variables: str) -> str:
    """Run code in a new process; returns what it prints, or the last line of its error."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import tokenmill\n{code}"],
        env={**os.environ, "HF_HUB_DISABLE_XET": "1", **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return run.stdout.strip() if run.returncode == 0 else run.stderr.strip().splitlines()[-1]


def count(address: str = "lab/web") -> tuple[int, int]:
    data = tokenmill.open(f"hf://datasets/{address}")
    return len(data["train"]), len(data["val"])


ALL = (10_000, 5_000)


def blobs(folder: Path) -> list[Path]:
    return sorted((folder / "cache/datasets--lab--web/blobs").iterdir())


def test_shards_are_fetched_once_and_opened(
    hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert count() == ALL
    assert hub.sent() == sum(map(len, SHARDS.values()))
    assert "hf://datasets/lab/web: fetching 3 files" in capsys.readouterr().err
    hub.fail()
    assert count() == ALL
    assert [one["path"] for one in hub.requests("lab")] == ["/api/datasets/lab/web/revision/main"]
    assert sorted(path.read_bytes() for path in blobs(tmp_path)) == sorted(SHARDS.values())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("address", ["lab/deep", "lab/deep/tokens"])
def test_tokens_in_a_folder_are_found(hub: LocalHub, address: str) -> None:
    assert count(address) == ALL


def test_one_file_is_opened_alone(hub: LocalHub, tmp_path: Path) -> None:
    one = tokenmill.open("hf://datasets/lab/web/web_02.bin")
    assert one["train"][:2].tolist() == [2, 2]
    assert len(blobs(tmp_path)) == 1
    assert count() == ALL  # the rest is fetched when needed


def test_without_a_network_the_cache_is_used(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = "hf://datasets/lab/web/web_02.bin"
    tokenmill.open(one)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    tokenmill.open(one)
    # Two of three shards are missing: an incomplete dataset is refused.
    for address in ("lab/web", "lab/deep"):
        with pytest.raises(WorkError, match=r"^Cannot reach the Hub at http://127\.0\.0\.1:9"):
            count(address)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    count()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert count() == ALL


def test_without_a_network_a_damaged_reference_is_not_followed(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count()
    folder = tmp_path / "cache/datasets--lab--web"
    (listing,) = (folder / "tokenmill").iterdir()
    (folder / "refs/main").write_text("../elsewhere")
    listing.rename(folder / "elsewhere.json")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(WorkError, match=r"^Cannot reach the Hub at http://127\.0\.0\.1:9"):
        count()


def test_offline_mode_sends_no_request(hub: LocalHub) -> None:
    count()
    hub.fail()
    code = "tokenmill.open('hf://datasets/lab/web'); tokenmill.open('hf://datasets/lab/deep')"
    error = python(code, HF_HUB_OFFLINE="1")
    assert "WorkError: lab/deep is not complete in the cache, and HF_HUB_OFFLINE" in error
    assert hub.requests("/") == []


def test_the_cache_is_shared_with_huggingface_hub(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = (
        "from huggingface_hub import hf_hub_download as get\n"
        "for number in (1, 2, 3): path = get('lab/web', f'web_0{number}.bin', repo_type='dataset'"
    )
    assert python(f"{theirs})") == ""
    hub.fail()
    assert count() == ALL
    assert hub.sent() == 0
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "other"))
    assert count() == ALL
    found = python(f"{theirs}, local_files_only=True)\nprint(open(path, 'rb').read(4))")
    assert found == str(SHARDS["web_03.bin"][:4])


def test_a_new_commit_fetches_only_changed_files(hub: LocalHub, tmp_path: Path) -> None:
    count()
    hub.fail()
    hub.put("lab/web", {"README.md": f"# another card for {tmp_path}".encode()})
    assert count() == ALL
    assert hub.sent() == 0
    assert hub.requests("/tree/")


def test_a_truncated_file_in_the_cache_is_fetched_again(hub: LocalHub, tmp_path: Path) -> None:
    count()
    os.truncate(blobs(tmp_path)[0], 3_000)
    assert count() == ALL
    assert sorted(path.read_bytes() for path in blobs(tmp_path)) == sorted(SHARDS.values())


@pytest.mark.parametrize("fetched_by", ["tokenmill", "huggingface_hub"])
def test_a_prepared_dataset_opens_and_verifies(hub: LocalHub, fetched_by: str) -> None:
    if fetched_by == "huggingface_hub":
        code = "from huggingface_hub import snapshot_download as get"
        assert python(f"{code}; get('lab/prepared', repo_type='dataset')") == ""
    address = "hf://datasets/lab/prepared"
    data, expected = tokenmill.open(address), tokenmill.open(hub.folder / "lab/prepared")
    for split in ("train", "val"):
        assert data[split][:].tolist() == expected[split][:].tolist()
    tokenmill.verify(address)


def test_prepare_reads_text_from_the_hub_like_a_folder(hub: LocalHub, tmp_path: Path) -> None:
    reports = [
        tokenmill.prepare(
            text, tmp_path / name, tokenizer="bytes", workers=1, val_fraction=0, dedup="none"
        )
        for name, text in (("hub", "hf://datasets/lab/text"), ("local", hub.folder / "lab/text"))
    ]
    # Two files with equal contents count twice.
    assert [report.manifest.ledger["documents_in"] for report in reports] == [14 + len(TEXTS)] * 2
    shards = [report.path / "train/shard_00000.bin" for report in reports]
    assert shards[0].read_bytes() == shards[1].read_bytes()


@pytest.mark.parametrize(
    ("path", "expected"), [("a", 14), ("a/1.jsonl", 7), ("*/[13].jsonl", 7 + len(TEXTS))]
)
def test_prepare_takes_a_part_of_a_repository(hub: LocalHub, path: str, expected: int) -> None:
    files, _ = find_files([f"hf://datasets/lab/text/{path}"])
    assert sum(Path(file.path).read_text().count("\n") for file in files) == expected


@pytest.mark.parametrize(
    ("use", "address", "text"),
    [
        (tokenmill.open, "datasets/lab/text", r"holds text, not tokens\. Make tokens from it"),
        (lambda text: find_files([text]), "datasets/lab/web", "holds tokens, not text"),
        (tokenmill.open, "datasets/lab/web/*1.bin", "tokenmill download 'hf://datasets/lab/web/"),
        (tokenmill.open, "datasets/lab/no", "no dataset 'lab/no'"),
        (tokenmill.open, "lab/web", "hf://datasets/OWNER/NAME"),
        (tokenmill.open, "datasets/lab/web/x", "lab/web has no 'x'"),
    ],
)
def test_wrong_requests_fail_before_anything_is_fetched(
    hub: LocalHub, use: Callable[[str], object], address: str, text: str
) -> None:
    with pytest.raises(TokenmillError, match=text):
        use(f"hf://{address}")
    assert hub.sent() == 0
