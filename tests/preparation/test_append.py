"""Datasets that grow: documents are added behind the others, and earlier generations stay as they were.

The oracle keeps texts in lists and sets. It shares with the library only the choice of a split.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import xxhash
import zstandard
from preparing import files_in, make, make_in_workers, small

import tokenmill
from tokenmill.cli import main
from tokenmill.convert.reshard import reshard
from tokenmill.errors import FolderError, StateError, UsageError
from tokenmill.inspect.info import describe
from tokenmill.inspect.where.where import where
from tokenmill.preparation.sift import belongs_to_val

END = "<|endoftext|>"
VAL = 0.3


def write_texts(path: Path, seed: int, count: int = 60) -> list[str]:
    """Write documents, of which many are equal to others and to those of other seeds; some are long."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        number = rng.randrange(100)
        texts.append(f"Document {number} " + "and so on, " * (number % 40))
    path.write_text(END.join(text.strip() for text in texts))
    return [text.strip() for text in texts]


def grow(folder: Path, inputs: list[list[str]]) -> dict[str, list[tuple[str, int]]]:
    """The oracle: the texts of each split, with the numbers of their sources."""
    seen: set[str] = set()
    splits: dict[str, list[tuple[str, int]]] = {"train": [], "val": []}
    source = 0
    for texts in inputs:
        fresh = [text for text in dict.fromkeys(texts) if text not in seen]
        seen.update(fresh)
        for text in fresh:
            digest = xxhash.xxh3_128_intdigest(text.encode())
            key = np.array([[digest >> 64, digest & (2**64 - 1)]], np.uint64)
            splits["val" if belongs_to_val(key, VAL)[0] else "train"].append((text, source))
        source += bool(fresh)  # an input that adds nothing is not recorded
    return splits


def read(folder: Path) -> dict[str, list[tuple[str, int]]]:
    """The texts and sources in a folder, read with NumPy from the files that its manifest names."""
    manifest = json.loads((folder / "dataset_metadata.json").read_text())
    found = {}
    for name, split in manifest["splits"].items():
        ids, tables, start = [], [], 0
        for shard in split["shards"]:
            data = (folder / shard["path"]).read_bytes()
            if shard["path"].endswith(".zst"):
                with zstandard.ZstdDecompressor().stream_reader(
                    data, read_across_frames=True
                ) as stream:
                    data = stream.read()
            ids.append(np.frombuffer(data, "<u2"))
            table = np.load(folder / shard["documents_path"])
            tables += [(start + int(r["first"]), int(r["length"]), int(r["source"])) for r in table]
            start += len(ids[-1])
        tokens = np.concatenate([*ids, np.empty(0, "<u2")])
        found[name] = []
        for first, length, source in tables:
            assert tokens[first + length - 1] == 256
            text = tokens[first : first + length - 1].astype(np.uint8).tobytes().decode()
            found[name].append((text, source))
        assert sum(length for _, length, _ in tables) == len(tokens)
    return found


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of three generations: `data`, with `gen1`, `gen2`: the manifests before it grew."""
    folder = tmp_path_factory.mktemp("grown")
    for seed in range(3):
        write_texts(folder / f"{seed}.txt", seed)
        more = {"append": True} if seed else {"val_fraction": VAL, "tokens_per_shard": 2000}
        make(folder / f"{seed}.txt", folder / "data", **more)
        (folder / f"gen{seed + 1}").write_bytes(
            (folder / "data" / "dataset_metadata.json").read_bytes()
        )
    return folder


@pytest.mark.parametrize("seed", range(3))
def test_appends_equal_sets_of_documents(tmp_path: Path, seed: int) -> None:
    """Documents span parts, keys are sorted on disk, and one input adds nothing."""
    limits = small(part=900, block=64, keys=20)
    inputs = [write_texts(tmp_path / f"{n}.txt", 10 * seed + n) for n in range(3)]
    inputs.insert(2, inputs[0])
    (tmp_path / "again.txt").write_text((tmp_path / "0.txt").read_text())
    files = [tmp_path / name for name in ("0.txt", "1.txt", "again.txt", "2.txt")]
    settings = {"val_fraction": VAL, "tokens_per_shard": 700, "limits": limits}
    dedups = []
    for number, file in enumerate(files):
        more = {"append": True, "limits": limits} if number else settings
        report = make(file, tmp_path / "data", **more)
        dedups.append(report.added_documents)
        assert read(tmp_path / "data") == grow(tmp_path, inputs[: number + 1])
        assert tokenmill.verify(tmp_path / "data") == []
    assert dedups[0] is None
    assert dedups[2] == 0
    assert report.manifest.generation == 3
    ledger = report.manifest.ledger
    assert ledger["documents_in"] == sum(map(len, inputs)) - len(inputs[2])
    assert ledger["documents_kept"] == len(set().union(*inputs))
    names = [Path(source.path).name for source in report.manifest.sources]
    assert names == ["0.txt", "1.txt", "2.txt"]


def test_bytes_do_not_depend_on_workers_or_limits(tmp_path: Path, grown: Path) -> None:
    for number in range(3):
        more = {"append": True} if number else {"val_fraction": VAL, "tokens_per_shard": 2000}
        make_in_workers(grown / f"{number}.txt", tmp_path / "data", workers=2, **more)
    assert files_in(tmp_path / "data") == files_in(grown / "data")
    for name in files_in(tmp_path / "data"):
        assert (tmp_path / "data" / name).read_bytes() == (grown / "data" / name).read_bytes()


def test_an_append_changes_no_file_but_the_manifest(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.txt", 1)
    (tmp_path / "b.jsonl").write_text('{"text": "new"}\nno JSON\n')
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\nno JSON\n')
    make([tmp_path / "a.txt", tmp_path / "a.jsonl"], tmp_path / "data", tokens_per_shard=500)
    before = {name: (tmp_path / "data" / name).read_bytes() for name in files_in(tmp_path / "data")}
    make(tmp_path / "b.jsonl", tmp_path / "data", append=True)
    manifest = before.pop("dataset_metadata.json")
    for name, data in before.items():
        assert (tmp_path / "data" / name).read_bytes() == data
    new = set(files_in(tmp_path / "data")) - before.keys()
    assert {"sources_2.jsonl", "rejected_2.jsonl"} <= new
    first = tokenmill.open(tmp_path / "data", generation=1)
    assert first.manifest is not None
    assert first.manifest.to_json() == manifest
    listed = (tmp_path / "data" / "rejected_2.jsonl").read_text().splitlines()
    reasons = [json.loads(line)["source"] for line in listed]
    assert [Path(one).name for one in reasons] == ["b.jsonl"]


def test_earlier_generations_open_as_they_were(grown: Path) -> None:
    for number in (1, 2, 3):
        dataset = tokenmill.open(grown / "data", generation=number)
        assert dataset.manifest is not None
        assert dataset.manifest.to_json() == (grown / f"gen{number}").read_bytes()
        assert [source.path for source in dataset.manifest.sources] == [
            str(grown / f"{n}.txt") for n in range(number)
        ]
        for tokens in dataset.values():
            last = tokens.documents.at(len(tokens) - 1)
            assert Path(last.source.path).name == f"{number - 1}.txt"
    for wrong in (0, 4):
        with pytest.raises(UsageError, match=r"has 3 generations"):
            tokenmill.open(grown / "data", generation=wrong)
    np.save(grown / "x.npy", np.arange(9))
    with pytest.raises(UsageError, match="Omit `generation`"):
        tokenmill.open(grown / "x.npy", generation=1)


@pytest.mark.parametrize("order", ["shuffled", "blocks", "sequential"])
def test_a_state_resumes_on_its_generation_and_is_refused_on_another(
    tmp_path: Path, grown: Path, order: str
) -> None:
    make(grown / "0.txt", tmp_path / "alone", val_fraction=VAL, tokens_per_shard=2000)
    settings = {"batch_size": 3, "seq_len": 20, "seed": 7, "order": order}
    run = tokenmill.Loader(tokenmill.open(tmp_path / "alone")["train"], **settings)
    for _ in range(4):
        next(run)
    state = json.loads(json.dumps(run.state_dict()))
    assert "generation" not in json.dumps(state)
    for newer in (2, 3):
        other = tokenmill.Loader(
            tokenmill.open(grown / "data", generation=newer)["train"], **settings
        )
        assert other.state_dict()["sources"][""]["generation"] == newer
        with pytest.raises(StateError, match=r"open\(path, generation=1\)"):
            other.load_state_dict(state)
    resumed = tokenmill.Loader(tokenmill.open(grown / "data", generation=1)["train"], **settings)
    resumed.load_state_dict(state)
    for _ in range(30):
        assert np.array_equal(next(resumed).inputs, next(run).inputs)


def test_a_state_of_a_mixture_names_the_source_that_has_grown(grown: Path) -> None:
    other = tokenmill.Tokens.of(np.arange(500, dtype=np.uint16))

    def load(generation: int) -> tokenmill.Loader:
        tokens = tokenmill.open(grown / "data", generation=generation)["train"]
        mixture = tokenmill.Mixture({"web": (tokens, 0.5), "code": (other, 0.5)})
        return tokenmill.Loader(mixture, batch_size=2, seq_len=8)

    state = load(2).state_dict()
    with pytest.raises(StateError, match=r"open\(PATH of web, generation=2\)"):
        load(3).load_state_dict(state)
    load(2).load_state_dict(state)


def test_the_same_tokens_are_the_same_data_in_a_copy_without_generations(
    tmp_path: Path, grown: Path
) -> None:
    reshard(grown / "data", tmp_path / "copy", tokens_per_shard=1000)
    assert tokenmill.verify(tmp_path / "copy") == []
    assert tokenmill.open(tmp_path / "copy").manifest.generation == 1
    assert read(tmp_path / "copy") == read(grown / "data")
    settings = {"batch_size": 3, "seq_len": 20}
    loaders = [
        tokenmill.Loader(tokenmill.open(folder)["train"], **settings)
        for folder in (grown / "data", tmp_path / "copy")
    ]
    loaders[1].load_state_dict(loaders[0].state_dict())
    assert np.array_equal(next(loaders[0]).inputs, next(loaders[1]).inputs)
    last = tokenmill.open(grown / "data")["train"].documents[-1]
    assert last.source.path == str(grown / "2.txt")
    for folder in (grown / "data", tmp_path / "copy"):
        for asked in (last.key, f"{last.source.path}:byte={last.offset}"):
            (found,) = where(folder, asked).documents
            assert (found.split, found.start) == ("train", last.start)
            assert found.document.source == last.source


def test_a_shuffled_run_over_a_grown_dataset_reads_every_row_once(grown: Path) -> None:
    tokens = tokenmill.open(grown / "data")["train"]
    loader = tokenmill.Loader(tokens, batch_size=1, seq_len=16, limit_epochs=1)
    rows = sorted(tuple(batch.inputs[0].tolist()) for batch in loader)
    whole = tokens[:]
    count = (len(whole) - 1) // 16
    assert rows == sorted(tuple(whole[16 * n : 16 * n + 16].tolist()) for n in range(count))


def test_the_same_command_again_changes_nothing(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.txt", 1)
    write_texts(tmp_path / "b.txt", 2)
    make(tmp_path / "a.txt", tmp_path / "data", val_fraction=VAL)
    make(tmp_path / "b.txt", tmp_path / "data", append=True)
    before = {name: (tmp_path / "data" / name).read_bytes() for name in files_in(tmp_path / "data")}
    assert make(tmp_path / "b.txt", tmp_path / "data", append=True).added_documents == 0
    assert make(tmp_path / "a.txt", tmp_path / "data", val_fraction=VAL).was_finished
    after = {name: (tmp_path / "data" / name).read_bytes() for name in files_in(tmp_path / "data")}
    assert after == before
    with pytest.raises(FolderError, match="made differently"):
        make(tmp_path / "b.txt", tmp_path / "data", val_fraction=VAL)
    assert files_in(tmp_path / "data") == sorted(before)


def test_without_deduplication_an_append_adds_everything_once(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "a.txt", 1)
    more = write_texts(tmp_path / "b.txt", 1)
    make(tmp_path / "a.txt", tmp_path / "data", dedup="none", val_fraction=0)
    for _ in range(2):  # the second time, the files are those of the newest generation
        report = make(tmp_path / "b.txt", tmp_path / "data", append=True)
    assert report.was_finished
    found = read(tmp_path / "data")["train"]
    assert found == [*((text, 0) for text in texts), *((text, 1) for text in more)]


def test_compressed_datasets_grow_by_compressed_shards(tmp_path: Path, grown: Path) -> None:
    for number in range(3):
        more = {"append": True} if number else {"val_fraction": VAL, "tokens_per_shard": 2000}
        make(grown / f"{number}.txt", tmp_path / "data", compress="zstd", **more)
    assert read(tmp_path / "data") == read(grown / "data")
    assert tokenmill.verify(tmp_path / "data") == []
    assert not [name for name in files_in(tmp_path / "data") if name.endswith(".bin")]
    plain, packed = (
        tokenmill.open(folder / "data", generation=2)["train"] for folder in (grown, tmp_path)
    )
    assert np.array_equal(plain[:], packed[:])


def test_listed_documents_are_not_added(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(END.join(["one", "two"]))
    (tmp_path / "b.txt").write_text(END.join(["three", "four", "two"]))
    make(tmp_path / "a.txt", tmp_path / "data", val_fraction=0)
    key = xxhash.xxh3_128_hexdigest(b"three")
    (tmp_path / "data.exclude.jsonl").write_text(json.dumps({"key": key}))
    report = make(tmp_path / "b.txt", tmp_path / "data", append=True)
    assert read(tmp_path / "data")["train"] == [("one", 0), ("two", 0), ("four", 1)]
    assert report.manifest.ledger["dropped"] == {
        "duplicate": {"documents": 1, "bytes": 3},
        "excluded": {"documents": 1, "bytes": 5},
    }
    assert key in (tmp_path / "data" / "excluded_2.jsonl").read_text()


def test_other_settings_are_refused_by_name(tmp_path: Path, grown: Path) -> None:
    before = files_in(grown / "data")
    for settings, names in (
        ({"normalize": False}, "normalize was True, is False"),
        ({"val_fraction": 0.5}, "val_fraction was 0.3, is 0.5"),
        ({"eot": "before", "dedup": "none"}, "dedup was .*; eot was"),
        ({"compress": "zstd"}, "compress was None, is 'zstd'"),
    ):
        with pytest.raises(UsageError, match=names):
            make(grown / "1.txt", grown / "data", append=True, **settings)
    with pytest.raises(UsageError, match="not 'gpt2'"):
        make(grown / "1.txt", grown / "data", append=True, tokenizer="gpt2")
    assert files_in(grown / "data") == before


def test_datasets_that_cannot_grow_are_refused_with_the_reason(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.txt", 1)
    with pytest.raises(UsageError, match="no finished dataset to add to"):
        make(tmp_path / "a.txt", tmp_path / "none", append=True)
    make(tmp_path / "a.txt", tmp_path / "lines", dedup="lines")
    with pytest.raises(UsageError, match="which lines stay depends on all texts"):
        make(tmp_path / "a.txt", tmp_path / "lines", append=True)
    np.save(tmp_path / "x.npy", np.arange(200) % 256)
    tokenmill.import_dataset(tmp_path / "x.npy", tmp_path / "imported", tokenizer="bytes")
    with pytest.raises(UsageError, match="train on both as a mixture"):
        make(tmp_path / "a.txt", tmp_path / "imported", append=True)


def test_an_input_without_usable_documents_is_an_error(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.txt", 1)
    (tmp_path / "b.jsonl").write_text('{"other": "field"}\n')
    make(tmp_path / "a.txt", tmp_path / "data")
    before = (tmp_path / "data" / "dataset_metadata.json").read_bytes()
    with pytest.raises(tokenmill.TokenmillError, match="No document was kept"):
        make(tmp_path / "b.jsonl", tmp_path / "data", append=True)
    assert (tmp_path / "data" / "dataset_metadata.json").read_bytes() == before
    assert tokenmill.open(tmp_path / "data")["train"]
    (tmp_path / "b.jsonl").write_text('{"text": "other"}\n')
    make(tmp_path / "b.jsonl", tmp_path / "data", append=True, restart=True)
    assert read(tmp_path / "data")["train"][-1] == ("other", 1)
    assert tokenmill.open(tmp_path / "data", generation=1).manifest.to_json() == before


def test_a_damaged_document_table_of_the_dataset_is_refused(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.txt", 1)
    write_texts(tmp_path / "b.txt", 2)
    make(tmp_path / "a.txt", tmp_path / "data")
    table = tmp_path / "data" / "train" / "shard_00000.docs.npy"
    data = bytearray(table.read_bytes())
    data[-30] ^= 1
    table.write_bytes(data)
    with pytest.raises(tokenmill.TokenmillError, match=r"shard_00000\.docs\.npy .* checksum"):
        make(tmp_path / "b.txt", tmp_path / "data", append=True)


def test_commands_see_one_dataset(tmp_path: Path, grown: Path) -> None:
    data = tokenmill.open(grown / "data")
    tokenmill.export(grown / "data", tmp_path / "npy", to="npy", tokens_per_shard=3000)
    exported = tokenmill.open(tmp_path / "npy")
    assert {name: tokens[:].tolist() for name, tokens in exported.items()} == {
        name: tokens[:].tolist() for name, tokens in data.items()
    }
    make([grown / f"{n}.txt" for n in range(3)], tmp_path / "once", val_fraction=VAL)
    assert tokenmill.diff(grown / "data", tmp_path / "once", progress=False).is_same
    last = data["train"].documents[-1]
    row = (last.start - 1) // 20
    explained = tokenmill.explain(
        grown / "data", step=row, seq_len=20, batch_size=1, order="sequential"
    )
    sources = [one.document.source for one in explained.rows[0].documents]
    assert last.source in sources
    tokenmill.exclude(grown / "data", last.key, out=tmp_path / "list.jsonl")
    reshard(grown / "data", tmp_path / "without", exclude=tmp_path / "list.jsonl")
    left = read(tmp_path / "without")["train"]
    assert left == read(grown / "data")["train"][:-1]
    assert tokenmill.verify(tmp_path / "without") == []


def test_info_lists_the_generations(grown: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = describe(grown / "data").generations
    sizes = [tokenmill.open(grown / "data", generation=n) for n in (1, 2, 3)]
    assert [one.tokens for one in found] == [sum(map(len, one.values())) for one in sizes]
    assert [one.number for one in found] == [1, 2, 3]
    assert main(["info", str(grown / "data"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["generations"]
    assert [one["documents"] for one in shown] == [one.documents for one in found]
    assert describe(grown / "data").documents == found[-1].documents


def test_where_finds_the_records_of_a_file_that_was_added_twice(tmp_path: Path) -> None:
    """A file that grows is added again and again: each line is in one generation."""
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n")
    make(file, tmp_path / "data", documents="line", val_fraction=0)
    file.write_text("one\ntwo\nthree\n")
    report = make(file, tmp_path / "data", append=True)
    assert report.added_documents == 1
    for line, start in ((1, 0), (2, 4), (3, 8)):
        (found,) = where(tmp_path / "data", f"{file}:{line}").documents
        assert (found.split, found.start) == ("train", start)
    files = where(tmp_path / "data", str(file)).files
    assert [one.documents for one in files] == [{"train": 2}, {"train": 1}]


def test_shards_of_an_abandoned_append_are_removed(tmp_path: Path) -> None:
    """Another input, which adds nothing, is tried after a run that had written shards."""
    write_texts(tmp_path / "a.txt", 1)
    make(tmp_path / "a.txt", tmp_path / "data")
    before = files_in(tmp_path / "data")
    for name in ("shard_00001.bin", "shard_00001.docs.npy"):
        (tmp_path / "data" / "train" / name).write_bytes(b"left")
    assert make(tmp_path / "a.txt", tmp_path / "data", append=True).added_documents == 0
    assert files_in(tmp_path / "data") == before
