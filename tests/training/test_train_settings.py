"""Settings of a run: what a file may hold, what flags change, and what is refused by name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from tokenmill.errors import InputError, UsageError
from tokenmill.training.config import Config
from tokenmill.training.model import count_operations, count_parameters
from tokenmill.training.presets import find_preset, preset_names
from tokenmill.training.run import make_shape
from tokenmill.training.settings import override, read_config, read_run_file

SMALL = {"layers": 2, "heads": 2, "width": 32, "seq_len": 64, "batch_tokens": 640}


def write(folder: Path, text: str, name: str = "config.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["124M", "150M", "250M"])
def test_a_configuration_has_the_parameters_of_its_name(name: str) -> None:
    config = read_config(name)
    assert read_config(f"configs/{name}_1024.json") == config  # as the guides call it
    assert config.seq_len == 1024
    assert make_shape(50_257, config).vocab == 50_304
    millions = count_parameters(make_shape(50_257, config)) / 1e6
    assert millions == pytest.approx(int(name[:-1]), rel=0.05)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_what_its_file_says(name: str) -> None:
    file = find_preset(name)
    assert file is not None
    assert read_config(name) == Config(**json.loads(file.read_text()))


def test_tiny_is_tiny_with_any_vocabulary() -> None:
    tiny = read_config("tiny")
    small, large = (make_shape(vocab, tiny) for vocab in (2_048, 50_257))
    assert count_parameters(small) < 1e6
    assert count_parameters(large) < 4e6
    assert count_operations(large) < 2.5 * count_operations(small)


def test_a_file_goes_before_the_preset_of_the_same_stem(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, '{"layers": 7}', "tiny.json")).layers == 7
    assert read_config(tmp_path / "gone" / "tiny.json") == read_config("tiny")


def test_an_unknown_name_lists_the_presets() -> None:
    with pytest.raises(InputError, match=r"125M is neither .* tiny, laptop, 124M, 150M, 250M\."):
        read_config("125M")


def test_what_a_run_writes_can_be_read_again(tmp_path: Path) -> None:
    config = Config(**SMALL, micro_batch=3, within_documents=True, dtype="bfloat16")
    assert read_config(write(tmp_path, json.dumps(asdict(config)), "config.json")) == config


def test_yaml_and_json_mean_the_same_with_sections_or_without(tmp_path: Path) -> None:
    flat = read_config(write(tmp_path, json.dumps(SMALL), "a.json"))
    sections = """
model: {layers: 2, heads: 2, width: 32}
training:
  batch_tokens: 640
seq_len: 64
data:
"""
    assert read_config(write(tmp_path, sections)) == flat == Config(**SMALL)


def test_numbers_may_be_written_as_people_do(tmp_path: Path) -> None:
    found = read_config(write(tmp_path, "learning_rate: 3e-4\nval_tokens: 1e6\nclip: 1\n"))
    assert (found.learning_rate, found.val_tokens, found.clip) == (3e-4, 1_000_000, 1)
    assert type(found.val_tokens) is int


def test_the_guides_names_are_understood(tmp_path: Path) -> None:
    found = read_run_file(
        write(
            tmp_path,
            """
data_config:
  dataset_name: stories.txt
  batch_size: 512
  tokenizer_name: 'gpt2'
  shuffle_seed: 7
  worker_count: 4
model_config:
  maxlen: 256
train_config:
  num_epochs: 2
""",
        )
    )
    assert found.config == Config(seq_len=256, batch_tokens=512 * 256, seed=7)
    assert (found.dataset_name, found.tokenizer_name, found.num_epochs) == (
        "stories.txt",
        "gpt2",
        2,
    )
    sharded = read_config(write(tmp_path, "{block_size: 64, batch_size: 10, max_iters: 5}"))
    assert sharded == Config(seq_len=64, batch_tokens=640, max_steps=5)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("layer: 2", "no setting 'layer'; did you mean 'layers'? There are: layers, heads"),
        ("n_embd: 768", "did you mean 'width'?"),
        ("model: {xyzzy: 1}", "no setting 'xyzzy'. There are: layers"),
        ("layers: two", "layers is 'two'; it must be a whole number"),
        ("layers: 2.5", "layers is 2.5; it must be a whole number"),
        ("layers: true", "layers is True; it must be a whole number"),
        ("layers: 0", "layers is 0; it must be at least 1"),
        ("within_documents: 1", "within_documents is 1; it must be true or false"),
        ("learning_rate: fast", "learning_rate is 'fast'; it must be a number"),
        ("learning_rate: .nan", "learning_rate is nan"),
        ("optimizer: sgd", "optimizer is 'sgd'; it must be one of muon, adamw"),
        ("mask_fraction: 1.5", "mask_fraction is 1.5; it must be from 0 to 1"),
        ("beta2: 1", "beta2 is 1"),
        ("batch_tokens: 1000", "not a multiple of seq_len, 1,024; try 1,024"),
        ("{fim_fraction: 0.5, within_documents: true}", "cannot be combined"),
        ("{batch_size: 8, batch_tokens: 8192}", "batch_size and batch_tokens"),
        ("{num_epochs: 1, max_steps: 10}", "leave one out"),
        ("{seq_len: 8, maxlen: 8}", "seq_len is there twice"),
        ("batch_size: many", "batch_size is 'many'"),
        ("model: 3", "model is 3; it must hold settings"),
        ("- a\n- b", "not a list of settings"),
        ("{layers: 2", "not YAML"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_config(path)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_names_data_is_not_for_the_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"what to train on \(dataset_name\)"):
        read_config(write(tmp_path, "dataset_name: stories.txt"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a preset nor a file"):
        read_config(tmp_path / "no.json")
    with pytest.raises(UsageError, match="not JSON"):
        read_config(write(tmp_path, "layers: 2", "a.json"))


def test_what_is_there_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="layers is there twice"):
        read_config(write(tmp_path, '{"model": {"layers": 1, "layers": 2}}', "a.json"))


@pytest.mark.parametrize("setting", [{"learning_rate": float("inf")}, {"val_tokens": 0}])
def test_numbers_that_cannot_be_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"`{next(iter(setting))}` is .*; it must be"):
        Config(**setting)


def test_flags_go_before_files_and_none_stays() -> None:
    config = override(Config(**SMALL), max_steps=7, layers=None)
    assert asdict(config) == asdict(Config(**SMALL)) | {"max_steps": 7}
    with pytest.raises(UsageError, match="did you mean 'max_steps'"):
        override(config, max_step=7)
    with pytest.raises(UsageError, match="not a multiple"):
        override(config, seq_len=63)


def test_every_setting_is_explained() -> None:
    told = (Config.__doc__ or "").partition("Parameters")[2]
    assert [field.name for field in fields(Config) if field.name not in told] == []


def test_every_flag_of_train_has_its_own_sentence() -> None:
    command = [sys.executable, "-m", "tokenmill.cli", "train", "--help"]
    env = {**os.environ, "COLUMNS": "400"}
    told = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"^│ (?:DATA )?(--\S+)(?: \S+)* {2,}(\S.*?) *│$", told, re.MULTILINE)
    sentences = {flag: text.partition(" [")[0] for flag, text in rows}
    flags = {"--data", "--device", *(f"--{one.name.replace('_', '-')}" for one in fields(Config))}
    assert flags <= sentences.keys()
    assert all(len(text) > 10 and text.endswith((".", "...")) for text in sentences.values()), told
    assert len(set(sentences.values())) == len(sentences)


def test_yaml_is_not_needed_for_json(tmp_path: Path) -> None:
    path = write(tmp_path, "{}", "a.json")
    code = """
import sys
sys.modules["yaml"] = None
from tokenmill.training.settings import read_config
read_config(sys.argv[1])
try:
    read_config(sys.argv[2])
except Exception as error:
    print(error)
"""
    told = subprocess.run(
        [sys.executable, "-c", code, path, write(tmp_path, "layers: 2")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pip install pyyaml" in told.stdout
