"""The manifest: damage, hostile values and other versions are refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from dataset_builder import build, edit_manifest, seal_bytes

import tokenmill
from tokenmill.dataset.verify import verify
from tokenmill.errors import DatasetError, UsageError
from tokenmill.storage.folder import Folder
from tokenmill.store import manifest as manifest_module
from tokenmill.store.manifest import Manifest, Split, check_shard_count
from tokenmill.store.tables import Shard, ShardTable, SourceTable


@pytest.fixture
def folder(tmp_path):
    """A small sound dataset with several shards, and documents that span them."""
    build(tmp_path / "data")
    return tmp_path / "data"


def test_an_edited_manifest_is_refused(folder):
    path = folder / "dataset_metadata.json"
    body = json.loads(path.read_bytes())
    body["settings"]["seed"] = 8
    path.write_text(json.dumps(body, indent=2))
    with pytest.raises(DatasetError, match="its own checksum"):
        tokenmill.open(folder)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("vocab_size", 70_000),
        ("vocab_size", True),
        ("vocab_size", -1),
        ("eot", {"place": "after", "id": None}),
        ("eot", {"place": "after", "id": True}),
        ("eot", {"place": "after", "id": 300}),
        ("eot", {"place": "between", "id": 256}),
        ("splits", {"a\x1b[2J": {"tokens": 0, "documents": 0, "shards": []}}),
        ("splits", {"train": {"tokens": 1, "documents": 0, "shards": []}}),
        ("splits", []),
        ("sources", [{"path": "a"}]),
        ("sources", {"path": "../sources.jsonl", "count": 1, "bytes": 1, "xxh3_128": ""}),
        ("sources", {"path": "sources.jsonl", "count": -1, "bytes": 1, "xxh3_128": ""}),
        ("version", 1),
        ("version", 2),
        ("version", 4),
        ("version", True),
        ("version", "3"),
        ("version", None),
        ("vocab_size", 5.0),
        ("dtype", "uint64"),
        ("tokenizer", {"name": "bytes"}),
        ("tokenizer", {"name": "bytes", "fingerprint": "", "more": 1}),
        ("settings", []),
        ("sources", {"path": "a\x1b", "count": 1, "bytes": 1, "xxh3_128": ""}),
        ("format", "other"),
        ("ledger", None),
    ],
)
def test_an_impossible_value_is_refused(folder, where, value):
    edit_manifest(folder, lambda body: body.update({where: value}))
    with pytest.raises(DatasetError, match=r"dataset_metadata\.json"):
        tokenmill.open(folder)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("vocab_sise", "vocab_size"), ("setings", "settings"), ("zzz", None)],
)
def test_an_unknown_entry_is_refused_with_the_nearest_right_name(folder, wrong, near):
    edit_manifest(folder, lambda body: body.update({wrong: 1}))
    with pytest.raises(DatasetError, match=f"unknown field '{wrong}'") as caught:
        tokenmill.open(folder)
    assert (f"did you mean '{near}'?" in str(caught.value)) == (near is not None)


@pytest.mark.parametrize("name", ["a\x1b[2J", "x" * 1_000_000])
def test_a_hostile_name_is_shortened_and_made_visible(folder, name):
    edit_manifest(folder, lambda body: body.update({name: 1}))
    with pytest.raises(DatasetError, match="unknown field") as caught:
        tokenmill.open(folder)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_an_unknown_or_missing_entry_of_a_shard_is_refused_with_its_place(folder):
    def change(edit):
        edit_manifest(folder, lambda body: edit(body["splits"]["train"]["shards"][1]))

    change(lambda shard: shard.update(document=1))
    with pytest.raises(DatasetError, match=r"'document'.*shards\[1\].*did you mean 'documents'"):
        tokenmill.open(folder)
    change(lambda shard: shard.pop("document"))
    tokenmill.open(folder)
    change(lambda shard: shard.pop("documents"))
    with pytest.raises(DatasetError, match=r"missing required field 'documents'.*shards\[1\]"):
        tokenmill.open(folder)


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        (b'"vocab_size"', "vocab_size"),
        (b'"fingerprint"', "fingerprint"),
        (b'"documents_path"', "documents_path"),
        (b'"seed"', "seed"),
        (b'"duplicate"', "duplicate"),
        (b'"train"', "train"),
    ],
)
def test_an_entry_given_twice_is_refused_by_name(folder, entry, key):
    path = folder / "dataset_metadata.json"
    data = path.read_bytes()
    place = data.index(entry)
    end, depth = place + len(entry) + 1, 0
    while depth or data[end] not in b",}\n":
        depth += (data[end] in b"{[") - (data[end] in b"}]")
        end += 1
    twice = (
        data[:end] + b", " + data[place:end].replace(entry, rb'"\u%04x%s' % (entry[1], entry[2:]))
    )
    path.write_bytes(seal_bytes(twice + data[end:]))
    with pytest.raises(DatasetError, match=f"has the entry '{key}' twice"):
        tokenmill.open(folder)


def test_text_with_quotes_and_escapes_in_a_manifest_is_fine(folder):
    strange = {'"\\"': ["\\", '"', "\n", "\x00", 'a"b\\"c', {"": "é\u2028"}]}
    edit_manifest(folder, lambda body: body["settings"].update(strange))
    assert tokenmill.open(folder).manifest.settings['"\\"'] == strange['"\\"']


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"a":' * 100_000, b'"', b"\xff", b'{"a":"\\ud800"}']
)
def test_a_manifest_that_is_not_json_is_refused(folder, data):
    (folder / "dataset_metadata.json").write_bytes(data)
    with pytest.raises(DatasetError, match=r"dataset_metadata\.json is damaged: it is not "):
        tokenmill.open(folder)


def test_deep_settings_are_refused(folder):
    path = folder / "dataset_metadata.json"
    deep = b"[" * 50_000 + b"]" * 50_000
    path.write_bytes(seal_bytes(path.read_bytes().replace(b'"seed": 7', b'"seed": ' + deep)))
    with pytest.raises(DatasetError, match=r"dataset_metadata\.json"):
        tokenmill.open(folder)


def test_counts_beyond_64_bits_are_refused(folder):
    def edit(body):
        body["splits"]["train"]["tokens"] = body["splits"]["train"]["shards"][0]["tokens"] = 2**63
        del body["splits"]["train"]["shards"][1:]

    edit_manifest(folder, edit)
    with pytest.raises(DatasetError, match=r"dataset_metadata\.json"):
        tokenmill.open(folder)


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_version_is_refused_until_restart_makes_it_again(tmp_path, version):
    (tmp_path / "a.txt").write_text("To be, or not to be.")
    options = {"tokenizer": "bytes", "val_fraction": 0}
    tokenmill.prepare(tmp_path / "a.txt", tmp_path / "out", **options)
    edit_manifest(tmp_path / "out", lambda body: body.update(version=version))
    for use in (
        lambda: tokenmill.open(tmp_path / "out"),
        lambda: tokenmill.prepare(tmp_path / "a.txt", tmp_path / "out", **options),
    ):
        with pytest.raises(DatasetError, match=rf"version {version}, but .*again.*--restart"):
            use()
    (problem,) = verify(tmp_path / "out")
    assert (problem.file, f"version {version}" in problem.what) == ("dataset_metadata.json", True)
    tokenmill.prepare(tmp_path / "a.txt", tmp_path / "out", restart=True, **options)
    assert verify(tmp_path / "out") == []


def test_a_newer_version_is_refused(folder):
    edit_manifest(folder, lambda body: body.update(version=6))
    with pytest.raises(DatasetError, match=r"has version 6, .* or a newer one\."):
        tokenmill.open(folder)


@pytest.mark.parametrize(
    "path", ["../x.bin", "/etc/passwd", "a/../../x", "", "a\x1b[31m", "a\\b", "a\nb"]
)
def test_a_path_out_of_the_folder_is_refused(folder, path):
    def edit(body):
        body["splits"]["train"]["shards"][0]["path"] = path

    edit_manifest(folder, edit)
    with pytest.raises(DatasetError, match=r"dataset_metadata\.json is damaged"):
        tokenmill.open(folder)


def test_a_name_with_dots_stays_inside_the_folder(folder):
    (folder / "train/shard_00000.bin").rename(folder / "train/a..b")

    def edit(body):
        body["splits"]["train"]["shards"][0]["path"] = "train/a..b"

    edit_manifest(folder, edit)
    assert tokenmill.open(folder)["train"][0] == ord("H")


OPEN = """
import resource, sys
import tokenmill
if sys.argv[2] != "0":
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
try:
    print(tokenmill.open(sys.argv[1]))
except tokenmill.errors.DatasetError as error:
    print(error)
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def open_in_child(folder, memory=0):
    """What opening prints, and the most memory that the process had, in MB."""
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not say how much memory a process had")
    done = subprocess.run(
        [sys.executable, "-c", OPEN, folder, str(memory)],
        capture_output=True,
        text=True,
        check=True,
        env={"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)},
    )
    text, size = done.stdout.rstrip().rsplit("\n", 1)
    return text, int(size) >> 10


@pytest.mark.parametrize("where", ["settings", "ledger"])
def test_many_small_values_are_refused_before_they_take_memory(folder, where):
    path = folder / "dataset_metadata.json"
    edit_manifest(folder, lambda body: body[where].update(x=5))
    values = b"[" + b"{}," * 20_000_000 + b"{}]"  # 60 MB, which would take 1.4 GB
    path.write_bytes(seal_bytes(path.read_bytes().replace(b'"x": 5', b'"x": ' + values)))
    text, size = open_in_child(folder, 1 << 30)
    assert (
        f"dataset_metadata.json is damaged: it has more than 4,194,304 values in '{where}'" in text
    )
    assert size < 400


def test_a_long_name_is_refused(folder):
    edit_manifest(folder, lambda body: body["tokenizer"].update(name="x" * 5_000))
    with pytest.raises(DatasetError, match=r"length <= 4096 - at '\$\.tokenizer\.name'"):
        tokenmill.open(folder)


def test_many_splits_are_refused(folder):
    nothing = {"tokens": 0, "documents": 0, "shards": []}
    edit_manifest(
        folder, lambda body: body["splits"].update({f"x{n}": nothing for n in range(1_001)})
    )
    with pytest.raises(DatasetError, match=r"length <= 1000 - at '\$\.splits'"):
        tokenmill.open(folder)


def make_manifest(shards):
    return Manifest(
        dtype="uint16",
        vocab_size=257,
        tokenizer="bytes",
        tokenizer_fingerprint="",
        eot="after",
        eot_id=256,
        splits={"train": Split(shards=ShardTable.of(shards))},
        sources=SourceTable.of([]),
    )


def test_a_manifest_of_150_000_shards_takes_little_memory(tmp_path):
    shards = [
        Shard(
            path=f"train/shard_{number:05}.bin",
            tokens=100_000_000,
            documents=90_000,
            xxh3_128=f"{number:032x}",
            documents_path=f"train/shard_{number:05}.docs.npy",
            documents_xxh3_128=f"{number:032x}",
        )
        for number in range(150_000)
    ]
    make_manifest(shards).write(Folder(tmp_path))
    assert (tmp_path / "dataset_metadata.json").stat().st_size > 40_000_000
    text, size = open_in_child(tmp_path)
    assert "train 15,000,000,000,000 tokens" in text
    assert size < 250  # 150 when this was written, of which Python and NumPy are 30


def test_more_shards_than_a_manifest_can_list_are_refused_before_any_work(tmp_path, monkeypatch):
    check_shard_count([335_544 * 10], 10)
    with pytest.raises(UsageError, match="makes 335,545 shards; at most 335,544"):
        check_shard_count([335_544 * 10, 1], 10)
    monkeypatch.setattr(manifest_module, "MOST_BYTES", 500)
    with pytest.raises(DatasetError, match="at most 500 can be read"):
        make_manifest([]).write(Folder(tmp_path))
    assert not list(tmp_path.iterdir())
