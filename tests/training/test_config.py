"""Settings of a run: files, presets, overrides, and errors that name the setting."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from tokenmill.errors import InputError, UsageError
from tokenmill.training.config import Config
from tokenmill.training.config_file import PRESETS, override, read_config, read_run_file
from tokenmill.training.model import count_operations, count_parameters, make_shape
from tokenmill.training.run import train

SMALL = {"layers": 2, "heads": 2, "width": 32, "seq_len": 64, "batch_tokens": 640}


def write(folder: Path, text: str, name: str = "config.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_default_settings_stay_the_same() -> None:
    golden = Path(__file__).parents[1] / "golden" / "config.json"
    assert asdict(Config()) == json.loads(golden.read_text())


@pytest.mark.parametrize("name", ["124M", "150M", "250M"])
def test_a_preset_has_the_parameters_of_its_name(name: str) -> None:
    config = read_config(name)
    assert read_config(f"configs/{name}_1024.json") == config  # as the guides call it
    assert config.seq_len == 1024
    assert make_shape(50_257, config).vocab == 50_304
    millions = count_parameters(make_shape(50_257, config)) / 1e6
    assert millions == pytest.approx(int(name[:-1]), rel=0.05)


@pytest.mark.parametrize("name", PRESETS)
def test_a_name_selects_its_preset(name: str) -> None:
    assert read_config(name) == Config(**PRESETS[name])


def test_tiny_is_tiny_with_any_vocabulary() -> None:
    tiny = read_config("tiny")
    small, large = (make_shape(vocab, tiny) for vocab in (2_048, 50_257))
    assert count_parameters(small) < 1e6
    assert count_parameters(large) < 4e6
    assert count_operations(large) < 2.5 * count_operations(small)


def test_a_file_takes_precedence_over_the_preset_of_the_same_stem(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, '{"layers": 7}', "tiny.json")).layers == 7
    assert read_config(tmp_path / "gone" / "tiny.json") == read_config("tiny")


def test_an_unknown_name_lists_the_presets() -> None:
    with pytest.raises(InputError, match=r"125M is neither .* tiny, laptop, 124M, 150M, 250M\."):
        read_config("125M")


def test_a_written_configuration_can_be_read_again(tmp_path: Path) -> None:
    config = Config(**SMALL, micro_batch=3, within_documents=True, dtype="bfloat16")
    assert read_config(write(tmp_path, json.dumps(asdict(config)), "config.json")) == config


def test_yaml_json_and_sections_are_equivalent(tmp_path: Path) -> None:
    flat = read_config(write(tmp_path, json.dumps(SMALL), "a.json"))
    sections = """
model: {layers: 2, heads: 2, width: 32}
training:
  batch_tokens: 640
seq_len: 64
data:
"""
    assert read_config(write(tmp_path, sections)) == flat == Config(**SMALL)


def test_numbers_may_have_exponents(tmp_path: Path) -> None:
    found = read_config(write(tmp_path, "learning_rate: 3e-4\nval_tokens: 1e6\nclip: 1\n"))
    assert (found.learning_rate, found.val_tokens, found.clip) == (3e-4, 1_000_000, 1)
    assert type(found.val_tokens) is int


def test_settings_may_have_the_names_of_the_guides(tmp_path: Path) -> None:
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
    ("text", "message"),
    [
        (
            "layer: 2",
            "unknown setting 'layer'; did you mean 'layers'? The settings are: layers, heads",
        ),
        ("n_embd: 768", "did you mean 'width'?"),
        ("model: {xyzzy: 1}", "unknown setting 'xyzzy'. The settings are: layers"),
        ("layers: two", "layers is 'two'; expected int, got str"),
        ("layers: 2.5", "layers is 2.5; expected int, got float"),
        ("layers: true", "layers is True; expected int, got bool"),
        ("layers: 0", "layers is 0; it must be between 1 and 4,096"),
        ("within_documents: 1", "within_documents is 1; expected bool, got int"),
        ("learning_rate: fast", "learning_rate is 'fast'; expected float, got str"),
        ("learning_rate: .nan", "learning_rate is nan; it must be finite"),
        ("learning_rate: .inf", "learning_rate is inf; it must be finite"),
        ("val_tokens: 0", "val_tokens is 0; it must be between 1 and 1,000,000,000,000"),
        ("kv_heads: two", "kv_heads is 'two'; expected int or None, got str"),
        ("optimizer: sgd", "optimizer is 'sgd'; expected muon or adamw"),
        ("mask_fraction: 1.5", "mask_fraction is 1.5; it must be between 0 and 1"),
        ("beta2: 1", "beta2 is 1; it must be 0 or more, and below 1"),
        ("batch_tokens: 1000", "not a multiple of seq_len (1,024); try 1,024"),
        ("{fim_fraction: 0.5, within_documents: true}", "cannot be combined"),
        ("{batch_size: 8, batch_tokens: 8192}", "batch_size and batch_tokens"),
        ("{num_epochs: 1, max_steps: 10}", "omit one"),
        ("{seq_len: 8, maxlen: 8}", "duplicate key seq_len"),
        ("layers: 2\nlayers: 3", "duplicate key layers"),
        ("model: {layers: 2, layers: 3}", "duplicate key layers"),
        ("batch_size: many", "batch_size is 'many'"),
        ("model: 3", "model is 3; it must contain names and values of settings"),
        ("- a\n- b", "expected names and values of settings"),
        ("layers: 1000000000", "layers is 1000000000; it must be between 1 and 4,096"),
        ("heads: 1000000000", "heads is 1000000000; it must be between 1 and 4,096"),
        ("width: 1e12", "width is 1000000000000; it must be between 1 and 1,048,576"),
        ("seq_len: 0", "seq_len is 0; it must be between 1 and 1,048,576"),
        ("seq_len: -1", "seq_len is -1; it must be between 1 and 1,048,576"),
        ("batch_tokens: 1e18", "it must be between 1 and 268,435,456"),
        ("batch_size: 1e18", "batch_size is '1e18'; expected int"),
        ("max_steps: 1e18", "it must be between 1 and 1,000,000,000,000"),
        ("max_steps: 1e300", "max_steps is a number of 997 bits; it must be between 1 and"),
        ("seed: 1e30", "seed is a number of 100 bits; it must be 0 or more, and below 2**64"),
        (f"batch_size: [0x{'f' * 4_000}]", "batch_size is [a number of 16,000 bits]; expected int"),
        (f"num_epochs: 0x{'f' * 4_000}", "num_epochs is a number of 16,000 bits; it must be above"),
        ("seed: -1", "seed is -1; it must be 0 or more, and below 2**64"),
        ("learning_rate: 1e39", "learning_rate is 1e+39; it must be between 0 and 1e+30"),
        ("rank_timeout: 0", "rank_timeout is 0; it must be between 1 and 604,800"),
        ("beta1: true", "beta1 is True; expected float, got bool"),
        ("layers: '1__0'", "layers is '1__0'; expected int, got str"),
        ("layers: '\u0663'", "layers is '\u0663'; expected int, got str"),
        ("model: {1: 2}", "model is {1: 2}; it must contain names and values of settings"),
        ("num_epochs: true", "num_epochs is True; it must be above 0, and at most 1,000,000"),
        ("num_epochs: 1e300", "it must be above 0, and at most 1,000,000"),
        ("layers: &a [*a]", "an alias (*name) is not allowed"),
        ("layers: !!timestamp x", "not YAML"),
        ("layers: !!bool x", "not YAML"),
        ("!!map [a]", "not YAML"),
        ("layers: " + "[" * 100_000, "nested too deeply"),
        ("layers: " + "9" * 5_000, "not YAML: Exceeds the limit"),
        (f"{'a' * 500}: 1", f"unknown setting '{'a' * 47}...{'a' * 48}'."),
        (
            f"layers: {'a' * 10_000}",
            f"layers is '{'a' * 47}...{'a' * 48}'; expected int",
        ),
        ("#" * ((1 << 20) + 1), "at most 1,048,576 bytes"),
        ("\0\0\0", "not YAML"),
        ("{layers: 2", "not YAML"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_config(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 800


LAUGHS = "\n".join(
    [
        "a0: &a0 {layers: 2}",
        *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 9)),
    ]
)


def test_a_bomb_of_aliases_is_refused_before_it_grows(tmp_path: Path) -> None:
    """Eight lines that stand for 43 million keys."""
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from tokenmill.errors import UsageError
from tokenmill.training.config_file import read_config
try:
    read_config(sys.argv[1])
except UsageError as error:
    print(error)
"""
    command = [sys.executable, "-c", code, write(tmp_path, LAUGHS)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "an alias (*name) is not allowed" in ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"layers": ' + "[" * 100_000, "nested too deeply"),
        ('{"learning_rate": NaN}', "learning_rate is nan; it must be finite"),
        ('{"learning_rate": 1e999}', "learning_rate is inf; it must be finite"),
        ('{"layers": "1__0"}', "layers is '1__0'; expected int, got str"),
        (
            '{"layers": ' + "9" * 4_000 + "}",
            "layers is a number of 13,288 bits; it must be between",
        ),
        ('{"layers": ' + "9" * 5_000 + "}", "not JSON: Exceeds the limit"),
        (
            "layers = 2",
            "not JSON: Expecting value: line 1 column 1 (char 0). If it is YAML, rename",
        ),
    ],
)
def test_a_wrong_setting_in_json_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text, "config.json")
    with pytest.raises(UsageError) as caught:
        read_config(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_model_that_cannot_fit_in_memory_is_refused_before_it_is_made(tmp_path: Path) -> None:
    """Each value is in its range, and together they take 800 TB."""
    (tmp_path / "text.txt").write_text("0123456789" * 1_000)
    given = {"input_file": tmp_path / "text.txt", "tokenizer": "bytes", "runs": tmp_path / "runs"}
    huge = {"layers": 4096, "width": 1 << 16, "heads": 4, "seq_len": 16, "batch_tokens": 64}
    with pytest.raises(
        UsageError, match=r"parameters, which take 844\.4 TB or more, .*`layers` is 4,096"
    ):
        train(**given, **huge)
    with pytest.raises(
        UsageError, match=r"`vocab_size` is 1099511627776; it must be between 1 and"
    ):
        train(**given, **SMALL, vocab_size=1 << 40)
    assert not (tmp_path / "runs").exists()


def test_a_file_that_names_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"also names the data \(dataset_name\)"):
        read_config(write(tmp_path, "dataset_name: stories.txt"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a preset nor a file"):
        read_config(tmp_path / "no.json")
    with pytest.raises(UsageError, match="not JSON"):
        read_config(write(tmp_path, "layers: 2", "a.json"))


def test_a_duplicate_key_in_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="duplicate key layers"):
        read_config(write(tmp_path, '{"model": {"layers": 1, "layers": 2}}', "a.json"))


def test_overrides_take_precedence_and_none_keeps() -> None:
    config = override(Config(**SMALL), max_steps=7, layers=None)
    assert asdict(config) == asdict(Config(**SMALL)) | {"max_steps": 7}
    with pytest.raises(UsageError, match="did you mean 'max_steps'"):
        override(config, max_step=7)
    with pytest.raises(UsageError, match="not a multiple"):
        override(config, seq_len=63)


def test_every_setting_is_explained() -> None:
    explained = (Config.__doc__ or "").partition("Parameters")[2]
    assert [field.name for field in fields(Config) if field.name not in explained] == []


def test_every_flag_of_train_has_help() -> None:
    command = [sys.executable, "-m", "tokenmill.cli", "train", "--help"]
    env = {**os.environ, "COLUMNS": "400"}
    shown = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"^│ (?:DATA )?(--\S+)(?: \S+)* {2,}(\S.*?) *│$", shown, re.MULTILINE)
    sentences = {flag: text.partition(" [")[0] for flag, text in rows}
    flags = {"--data", "--device", *(f"--{one.name.replace('_', '-')}" for one in fields(Config))}
    assert flags <= sentences.keys()
    assert all(len(text) > 10 and text.endswith((".", "...")) for text in sentences.values()), shown
    assert len(set(sentences.values())) == len(sentences)


def test_yaml_is_not_needed_for_json(tmp_path: Path) -> None:
    path = write(tmp_path, "{}", "a.json")
    code = """
import sys
sys.modules["yaml"] = None
from tokenmill.training.config_file import read_config
read_config(sys.argv[1])
try:
    read_config(sys.argv[2])
except Exception as error:
    print(error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code, path, write(tmp_path, "layers: 2")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pip install pyyaml" in ended.stdout
