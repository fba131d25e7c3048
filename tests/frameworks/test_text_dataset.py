"""The names of the guide about Grain: texts as padded examples."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.compat import (
    TextDataSource,
    load_text_dataset,
    load_text_dataset_tf_fallback,
)
from tokenmill.compat.text_source import _cut, read_configs
from tokenmill.errors import DatasetError, FolderError, InputError, TokenizerError, UsageError

TEXTS = [f"Story {number} " + "went on " * (number % 9) for number in range(400)]
EOT = 256


def write(path, texts=TEXTS):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def stories(tmp_path):
    return write(tmp_path / "stories.jsonl")


def naive_examples(texts, length, pad):
    """A naive implementation, one document at a time."""
    examples = []
    for text in texts:
        ids = [*text.encode(), EOT]
        for start in range(0, max(len(ids) - 1, 1), length):
            inputs, targets = ids[start : start + length], ids[start + 1 : start + length + 1]
            examples.append([ids + [pad] * (length - len(ids)) for ids in (inputs, targets)])
    return examples


def config(path, **more):
    data = {"dataset_name": path, "split": "train", "batch_size": 16, **more}
    return data, {"maxlen": 32}, {"num_epochs": 2}, "bytes", 0


@pytest.mark.parametrize("length", [1, 7, 32, 200])
def test_examples_are_padded_documents_and_no_token_is_lost(tmp_path, length):
    source = TextDataSource(write(tmp_path / "s.jsonl"), "train", "bytes", length, pad_token_id=7)
    validation = TextDataSource(tmp_path / "s.jsonl", "validation", "bytes", length, pad_token_id=7)
    found = [
        [example[part].tolist() for part in ("input_ids", "targets")]
        for split in (source, validation)
        for example in (split[number] for number in range(len(split)))
    ]
    wanted = naive_examples(TEXTS, length, 7)
    assert len(validation) > 0
    assert sorted(found) == sorted(wanted)
    assert source[-1]["targets"].tolist() == source[len(source) - 1]["targets"].tolist()
    with pytest.raises(IndexError, match="is out of range: there are"):
        source[len(source)]


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.lists(st.integers(1, 5), max_size=12), min_size=1, max_size=8), st.integers(1, 9)
)
def test_every_token_except_the_first_of_a_document_is_a_target_once(documents, length):
    ids = [token for document in documents for token in (*document, 0)]
    starts, lengths = _cut(tokenmill.Tokens.of(ids, eot_id=0), length)
    begins = {0} | {place + 1 for place, token in enumerate(ids[:-1]) if token == 0}
    targets = [
        start + place
        for start, size in zip(starts.tolist(), lengths.tolist(), strict=True)
        for place in range(1, size)
    ]
    assert sorted(targets) == [place for place in range(len(ids)) if place not in begins]
    assert all(1 <= size <= length + 1 for size in lengths)


@pytest.mark.parametrize("size", [0, 1, 50, 10**9])
def test_caching_does_not_change_examples(stories, size):
    source = TextDataSource(stories, "train", "bytes", 16)
    expected = source.read(np.arange(len(source)))
    other = TextDataSource(stories, "train", "bytes", 16, cache_size=size)
    again = pickle.loads(pickle.dumps(other))
    assert np.array_equal(again.read(np.arange(len(source))), expected)


def make_source(path):
    return len(TextDataSource(path, "train", "bytes", 16))


def test_a_text_is_tokenized_once_even_by_processes_that_start_together(stories):
    code = f"""
from tokenmill.compat import TextDataSource
print(len(TextDataSource({str(stories)!r}, "train", "bytes", 16)))
"""
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3)
    ]
    lengths = {process.communicate()[0] for process in started}
    assert lengths == {f"{make_source(stories)}\n".encode()}
    (manifest,) = stories.parent.glob("stories.jsonl.tokens/*/dataset_metadata.json")
    before = manifest.stat().st_mtime_ns
    make_source(stories)
    assert manifest.stat().st_mtime_ns == before


def test_a_changed_text_is_reported(stories):
    make_source(stories)
    write(stories, [*TEXTS, "One more."])
    with pytest.raises(FolderError, match=r"remove .*stories.jsonl.tokens"):
        make_source(stories)


def test_a_prepared_dataset_is_used_directly_with_its_tokenizer(stories, tmp_path):
    tokenmill.prepare(
        stories, tmp_path / "data", tokenizer="bytes", val_fraction=0, normalize=False
    )
    source = TextDataSource(tmp_path / "data", "train", "bytes", 16)
    assert len(source) == len(naive_examples(TEXTS, 16, 0))
    with pytest.raises(TokenizerError):
        TextDataSource(tmp_path / "data", "train", "gpt2", 16)
    with pytest.raises(DatasetError, match="val"):
        TextDataSource(tmp_path / "data", "validation", "bytes", 16)


def test_grain_and_tensorflow_give_the_same_batches_each_example_once_an_epoch(stories):
    by_grain = list(load_text_dataset(*config(stories)))
    by_tensorflow = list(load_text_dataset_tf_fallback(*config(stories)))
    for ours, theirs in zip(by_grain, by_tensorflow, strict=True):
        assert isinstance(ours[0], jax.Array)
        assert ours[0].shape == ours[1].shape == (16, 32)
        for one, other in zip(ours, theirs, strict=True):
            assert np.array_equal(one, other)
    source = TextDataSource(stories, "train", "bytes", 32, pad_token_id=0)
    assert len(by_grain) == 2 * len(source) // 16
    rows = np.concatenate([np.hstack(batch) for batch in by_grain])
    first = rows[: len(source)]
    examples = [np.hstack(list(source[number].values())) for number in range(len(source))]
    assert sorted(first.tolist()) == sorted(np.stack(examples).tolist())
    assert not np.array_equal(first[:100], rows[len(source) :][:100])  # another order


def test_an_iterator_continues_from_its_state(stories):
    dataset = load_text_dataset(*config(stories))
    batches = iter(dataset)
    for _ in range(5):
        next(batches)
    again = iter(dataset)
    again.set_state(json.loads(json.dumps(batches.get_state())))
    for _ in range(4):
        for one, other in zip(next(batches), next(again), strict=True):
            assert np.array_equal(one, other)


def test_a_mesh_that_is_set_gets_the_rows_divided(stories):
    with jax.set_mesh(jax.make_mesh((1, 1), ("model", "data"))):
        dataset = load_text_dataset(*config(stories))
        inputs, _ = next(iter(dataset))
    assert inputs.sharding.spec == jax.sharding.PartitionSpec("data")
    assert np.array_equal(inputs, next(iter(load_text_dataset(*config(stories))))[0])


class DataConfig:
    dataset_name: Path
    split = "train"
    batch_size = 16


def test_configurations_may_be_objects(stories):
    settings = DataConfig()
    settings.dataset_name = stories
    inputs, _ = next(iter(load_text_dataset(settings, *config(stories)[1:])))
    assert np.array_equal(inputs, next(iter(load_text_dataset(*config(stories))))[0])
    with pytest.raises(UsageError, match="no maxlen"):
        load_text_dataset(settings, {}, {}, "bytes", 0)


def test_four_batches_are_prefetched_unless_configured(stories):
    assert read_configs(*config(stories))[1] == 4
    assert read_configs(*config(stories, prefetch_buffer_size=9))[1] == 9


def test_missing_paths_are_named(tmp_path):
    with pytest.raises(InputError, match=r"roneneldan/TinyStories.*downloaded"):
        load_text_dataset(*config("roneneldan/TinyStories"))


def test_the_guides_script_prints_a_table(stories, tmp_path):
    script = Path(__file__).parents[2] / "scripts" / "benchmark_data_loading.py"
    words = ["--num_batches", "5", "--batch_size", "8", "--maxlen", "32", "--skip_tf"]
    done = subprocess.run(
        [sys.executable, script, *words, "--dataset_name", stories],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    assert "Grain" in done.stdout
    assert "tf.data" not in done.stdout
    assert "tokens/s" in done.stdout
