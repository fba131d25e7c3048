"""cache.py: `open` and `prepare` on hf:// addresses, in the cache that the hub's own tools use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_hub import LocalHub, llmc_shard

import tokenmill

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
def hub(served: LocalHub) -> LocalHub:
    served.fail()
    return served


def python(hub: LocalHub, folder: Path, code: str, **variables: str) -> str:
    """Run Python with a cache in `folder`; returns what it prints, or the error's last line."""
    told = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import tokenmill\n{code}"],
        cwd=folder,
        env={**os.environ, **hub.environment(folder / "home"), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return told.stdout.strip() if told.returncode == 0 else told.stderr.strip().splitlines()[-1]


COUNT = "data = tokenmill.open({!r}); print(len(data['train']), len(data['val']))"
WEB = COUNT.format("hf://datasets/lab/web")


def blobs(folder: Path) -> list[Path]:
    return sorted((folder / "home/hub/datasets--lab--web/blobs").iterdir())


def test_shards_are_fetched_once_and_opened(hub: LocalHub, tmp_path: Path) -> None:
    assert python(hub, tmp_path, WEB) == "10000 5000"
    assert hub.sent() == sum(map(len, SHARDS.values()))
    hub.fail()
    assert python(hub, tmp_path, WEB) == "10000 5000"
    assert [one["path"] for one in hub.asked("lab")] == ["/api/datasets/lab/web/revision/main"]
    assert sorted(path.read_bytes() for path in blobs(tmp_path)) == sorted(SHARDS.values())


@pytest.mark.parametrize("address", ["lab/deep", "lab/deep/tokens"])
def test_tokens_in_a_folder_are_found(hub: LocalHub, tmp_path: Path, address: str) -> None:
    assert python(hub, tmp_path, COUNT.format(f"hf://datasets/{address}")) == "10000 5000"


def test_one_file_is_opened_alone(hub: LocalHub, tmp_path: Path) -> None:
    code = "print(tokenmill.open('hf://datasets/lab/web/web_02.bin')['train'][:2].tolist())"
    assert python(hub, tmp_path, code) == "[2, 2]"
    assert len(blobs(tmp_path)) == 1
    assert python(hub, tmp_path, WEB) == "10000 5000"  # and the rest when it is wanted


def test_without_a_network_what_is_here_is_used(hub: LocalHub, tmp_path: Path) -> None:
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    told = python(hub, tmp_path, WEB, **nowhere)
    assert "WorkError: The hub at http://127.0.0.1:9 cannot be reached" in told
    one = "tokenmill.open('hf://datasets/lab/web/web_02.bin')"
    assert python(hub, tmp_path, one) == ""
    assert python(hub, tmp_path, one, **nowhere) == ""
    # Two shards of three are not here: half a dataset is no dataset.
    assert "WorkError: The hub" in python(hub, tmp_path, WEB, **nowhere)
    python(hub, tmp_path, WEB)
    assert python(hub, tmp_path, WEB, **nowhere) == "10000 5000"
    assert python(hub, tmp_path, WEB, HF_HUB_OFFLINE="1") == "10000 5000"
    assert "HF_HUB_OFFLINE" in python(hub, tmp_path, WEB.replace("web", "deep"), HF_HUB_OFFLINE="1")


def test_the_hub_s_own_tools_and_this_share_the_cache(hub: LocalHub, tmp_path: Path) -> None:
    theirs = (
        "from huggingface_hub import hf_hub_download as get\n"
        "for number in (1, 2, 3): path = get('lab/web', f'web_0{number}.bin', repo_type='dataset'"
    )
    assert python(hub, tmp_path, f"{theirs})") == ""
    hub.fail()
    assert python(hub, tmp_path, WEB) == "10000 5000"
    assert hub.sent() == 0
    other = tmp_path / "other"
    other.mkdir()
    assert python(hub, other, WEB) == "10000 5000"
    told = python(hub, other, f"{theirs}, local_files_only=True)\nprint(open(path, 'rb').read(4))")
    assert told == str(SHARDS["web_03.bin"][:4])


def test_a_change_elsewhere_in_the_repository_fetches_nothing_again(
    hub: LocalHub, tmp_path: Path
) -> None:
    python(hub, tmp_path, WEB)
    hub.fail()
    hub.put("lab/web", {"README.md": f"# another card for {tmp_path}".encode()})
    assert python(hub, tmp_path, WEB) == "10000 5000"
    assert hub.sent() == 0
    assert hub.asked("/tree/")


def test_a_file_cut_short_in_the_cache_is_fetched_again(hub: LocalHub, tmp_path: Path) -> None:
    python(hub, tmp_path, WEB)
    os.truncate(blobs(tmp_path)[0], 3_000)
    assert python(hub, tmp_path, WEB) == "10000 5000"
    assert sorted(path.read_bytes() for path in blobs(tmp_path)) == sorted(SHARDS.values())


@pytest.mark.parametrize("fetched_by", ["this", "the hub's tools"])
def test_a_prepared_dataset_opens_and_verifies(
    hub: LocalHub, tmp_path: Path, fetched_by: str
) -> None:
    if fetched_by != "this":
        theirs = (
            "import huggingface_hub as h; h.snapshot_download('lab/prepared', repo_type='dataset')"
        )
        assert python(hub, tmp_path, theirs) == ""
    code = (
        "address = 'hf://datasets/lab/prepared'\n"
        "data = tokenmill.open(address)\n"
        "report = tokenmill.verify(address)\n"
        "print(data['train'][:].tolist() + data['val'][:].tolist())"
    )
    expected = tokenmill.open(hub.folder / "lab/prepared")
    ids = expected["train"][:].tolist() + expected["val"][:].tolist()
    assert python(hub, tmp_path, code) == str(ids)


def test_prepare_reads_text_from_the_hub_as_from_a_folder(hub: LocalHub, tmp_path: Path) -> None:
    options = "tokenizer='bytes', workers=1, val_fraction=0, dedup='none'"
    told = python(
        hub,
        tmp_path,
        f"report = tokenmill.prepare('hf://datasets/lab/text', 'data', {options})\n"
        "print(report.manifest.ledger['documents_in'])",
    )
    assert told == str(7 + 7 + len(TEXTS))  # files of equal contents are two files all the same
    local = tmp_path / "local"
    tokenmill.prepare(
        hub.folder / "lab/text", local, tokenizer="bytes", workers=1, val_fraction=0, dedup="none"
    )
    shard = "train/shard_00000.bin"
    assert (tmp_path / "data" / shard).read_bytes() == (local / shard).read_bytes()


def test_prepare_takes_a_part_of_a_repository(hub: LocalHub, tmp_path: Path) -> None:
    for address, count in (("a", 14), ("a/1.jsonl", 7), ("*/[13].jsonl", 307)):
        code = (
            "from tokenmill.mill.find import find_files\n"
            f"files, _ = find_files(['hf://datasets/lab/text/{address}'])\n"
            "print(sum(open(file.path).read().count('\\n') for file in files))"
        )
        assert python(hub, tmp_path, code) == str(count)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("tokenmill.open('hf://datasets/lab/text')", "holds text, not tokens. Make tokens of it"),
        ("tokenmill.prepare('hf://datasets/lab/web', 'x')", "holds tokens, not text"),
        ("tokenmill.open('hf://datasets/lab/web/*1.bin')", "tokenmill download 'hf://datasets/lab"),
        ("tokenmill.open('hf://datasets/lab/no')", "no dataset 'lab/no'"),
        ("tokenmill.open('hf://lab/web')", "hf://datasets/OWNER/NAME"),
        ("tokenmill.open('hf://datasets/lab/web/x')", "There is no 'x' in lab/web"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_fetched(
    hub: LocalHub, tmp_path: Path, code: str, expected: str
) -> None:
    assert expected in python(hub, tmp_path, code)
    assert hub.sent() == 0
