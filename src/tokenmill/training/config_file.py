"""Settings from presets, from JSON and YAML files, and from keyword arguments.

The keys in a file are the fields of `Config`. They are at the top level, or in the sections
`model`, `training` and `data`; which section makes no difference. The names used by the guides that
docs/guides.md lists also work. An unknown key is an error that suggests a known key, and a
duplicate key is an error.

Whole numbers may be written as 1e6. A number such as 3e-4, which PyYAML reads as text, is accepted.
Files are at most 1 MiB. YAML aliases are refused, because a few lines of them can expand to
gigabytes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_type_hints

from tokenmill.errors import InputError, UsageError
from tokenmill.training.config import Config
from tokenmill.wording import brief

_SMALL: dict[str, Any] = {
    "layers": 3,
    "heads": 3,
    "width": 96,
    "embedding_width": 32,
    "shortlist": 2048,
}
_SMALL |= {"seq_len": 128, "max_steps": 1000, "warmup_steps": 20}
_SMALL |= {"learning_rate": 0.01, "matrix_learning_rate": 0.01}
_TINY: dict[str, Any] = {
    "batch_tokens": 2048,
    "decay_fraction": 0.5,
    "log_every": 100,
    "val_every": 400,
}
_TINY |= {"val_tokens": 32_768, "sample_tokens": 0, "checkpoint_every": 200}
_LAPTOP = {"batch_tokens": 4096, "decay_fraction": 0.4, "log_every": 50, "sample_tokens": 128}
_LARGE = {"seq_len": 1024, "batch_tokens": 524_288, "warmup_steps": 100}
PRESETS: dict[str, dict[str, Any]] = {  # the smallest model first
    "tiny": _SMALL | _TINY,
    "laptop": _SMALL | _LAPTOP,
    "124M": _LARGE | {"layers": 12, "heads": 10, "width": 640, "max_steps": 5000},
    "150M": _LARGE | {"layers": 10, "heads": 12, "width": 768, "max_steps": 6000},
    "250M": _LARGE | {"layers": 16, "heads": 14, "width": 896, "max_steps": 10_000},
}
# The guides' paths, such as configs/150M_1024.json, select a preset if there is no such file.
_GUIDE_PRESETS = {"124M_1024": "124M", "150M_1024": "150M", "250M_1024": "250M", "tiny_cpu": "tiny"}

_NAMES = [field.name for field in fields(Config)]
_SECTIONS = "model training data model_config training_config train_config data_config".split()
GUIDE_NAMES = {
    "block_size": "seq_len",
    "max_length": "seq_len",
    "maxlen": "seq_len",
    "max_iters": "max_steps",
    "shuffle_seed": "seed",
}
DATA_NAMES = ("dataset_name", "tokenizer_name", "num_epochs", "name")
# Settings of hand-written loaders, accepted and ignored: in tokenmill, one thread reads ahead, and
# nothing is padded or cached.
IGNORED_NAMES = (
    "worker_count worker_buffer_size prefetch_buffer_size cache_size cache_dir split pad_token_id"
).split()
_OTHER_PROGRAMS = {  # names in other programs, to suggest the name here
    "n_layer": "layers",
    "num_layers": "layers",
    "n_head": "heads",
    "num_heads": "heads",
    "n_kv_head": "kv_heads",
    "n_embd": "width",
    "d_model": "width",
    "embed_dim": "width",
    "hidden_size": "width",
    "context_length": "seq_len",
    "lr": "learning_rate",
    "grad_clip": "clip",
    "eval_interval": "val_every",
    "log_interval": "log_every",
    "num_steps": "max_steps",
    "gradient_accumulation_steps": "batch_tokens",
    "device_batch_size": "micro_batch",
    "random_seed": "seed",
}
_NUMBER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_MOST_BYTES = 1 << 20
_MOST_EPOCHS = 1_000_000
_TOO_DEEP = "it is nested too deeply. Write each setting at the top level or in a section."


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """The settings in a file. The file may also name the data, as in the guide about JAX."""

    config: Config
    dataset_name: str | None = None
    tokenizer_name: str | None = None
    num_epochs: float | None = None
    name: str | None = None


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read settings from a preset, given by its name, or from a JSON or YAML file.

    >>> read_config("tiny").layers
    3
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "small.json"
    >>> _ = file.write_text('{"layers": 2, "heads": 2, "width": 64, "seq_len": 128}')
    >>> read_config(file).layers
    2
    >>> _ = file.write_text('{"layer": 2}')
    >>> read_config(file)
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: /.../small.json: unknown setting 'layer'; did you mean 'layers'? \
The settings are: layers, heads, kv_heads, ...
    """
    found = read_run_file(path)
    if named := [name for name in DATA_NAMES if getattr(found, name) is not None]:
        raise UsageError(
            f"{os.fspath(path)} also names the data ({', '.join(named)}). Remove that from the "
            "file, and pass `data`, `tokenizer` and `name` instead."
        )
    return found.config


def read_run_file(path: str | os.PathLike[str]) -> RunFile:
    """Read settings from a preset or a file, and the data that the file names."""
    preset = _find_preset(os.fspath(path))
    if preset is not None:
        return RunFile(config=Config(**PRESETS[preset]))
    try:
        return _make(dict(_flatten(_parse(Path(path)))))
    except UsageError as error:
        text = str(error).replace("`", "")  # backticks are for arguments, not for keys
        raise UsageError(f"{os.fspath(path)}: {text}") from None


def override(config: Config, **settings: Any) -> Config:
    """Return the config with some settings replaced; None keeps a setting.

    >>> override(Config(), max_steps=10, seq_len=None).max_steps
    10
    >>> override(Config(), max_step=10)
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: unknown setting 'max_step'; did you mean 'max_steps'? The settings \
are: layers, heads, kv_heads, ...
    """
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given:
        _check_name(name)
    return replace(config, **given)


def _find_preset(text: str) -> str | None:
    """Return the name of the preset that `text` selects, or None if `text` is a file.

    A preset's name selects it. If there is no such file, a path from a guide does too, such as
    configs/150M_1024.json.
    """
    if text not in PRESETS and Path(text).exists():
        return None
    stem = Path(text).stem
    stem = _GUIDE_PRESETS.get(stem, stem)
    return stem if stem in PRESETS else None


def _parse(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:  # perhaps a pipe, as in --config <(…)
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise InputError(
            f"{path} is neither a preset nor a file. The presets are {', '.join(PRESETS)}."
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{str(path)!r} cannot be read: {error}.") from error
    if len(data) > _MOST_BYTES:
        raise UsageError(f"the file is too large: settings may take at most {_MOST_BYTES:,} bytes.")
    found = _parse_yaml(data) if path.suffix in (".yaml", ".yml") else _parse_json(data)
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise UsageError('expected names and values of settings, such as {"layers": 2}.')
    return found


def _parse_json(data: bytes) -> Any:
    try:
        return json.loads(data, object_pairs_hook=_make_dict)
    except RecursionError as error:
        raise UsageError(_TOO_DEEP) from error
    except ValueError as error:
        raise UsageError(
            f"this is not JSON: {error}. If it is YAML, rename the file to end in .yaml."
        ) from error


def _parse_yaml(data: bytes) -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise UsageError(
            "YAML needs the package PyYAML: pip install pyyaml. Or write the settings as JSON."
        ) from error

    class UniqueKeyLoader(yaml.SafeLoader):
        """A loader that refuses aliases and duplicate keys. PyYAML would keep the last key."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            _make_dict([(key, None) for key in keys if isinstance(key, str)])
            return super().construct_mapping(node, deep)

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise UsageError("an alias (*name) is not allowed; write the value again.")
            return super().compose_node(parent, index)

    try:
        return yaml.load(data, UniqueKeyLoader)  # noqa: S506  a SafeLoader
    except (UsageError, MemoryError):
        raise
    except RecursionError as error:
        raise UsageError(_TOO_DEEP) from error
    except Exception as error:  # for wrong tags, PyYAML also raises KeyError, AttributeError, …
        raise UsageError(f"this is not YAML: {' '.join(str(error).split())}.") from error


def _make_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise UsageError(f"duplicate key {brief(name)[1:-1]}.")
        made[name] = value
    return made


def _flatten(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each setting, at the top level or in a section, under its name in `Config`."""
    seen: set[str] = set()
    for name, value in found.items():
        inner = {name: value}
        if name in _SECTIONS:
            inner = {} if value is None else value
            if not isinstance(inner, dict) or not all(isinstance(key, str) for key in inner):
                raise UsageError(
                    f"{name} is {brief(value)}; it must contain names and values of settings, such "
                    'as {"layers": 2}.'
                )
        for key, one in inner.items():
            own = GUIDE_NAMES.get(key, key)
            if own in seen:
                raise UsageError(f"duplicate key {own}.")
            seen.add(own)
            yield own, one


def _make(found: dict[str, Any]) -> RunFile:
    kinds = get_type_hints(Config)
    about_data = {name: found.pop(name) for name in DATA_NAMES if name in found}
    rows = found.pop("batch_size", None)
    settings = {}
    for name, value in found.items():
        if name not in IGNORED_NAMES:
            _check_name(name)
            settings[name] = _as_number(value, kinds[name])
    if "num_epochs" in about_data and "max_steps" in settings:
        raise UsageError("max_steps and num_epochs both set the length of the run; omit one.")
    if rows is not None:
        if "batch_tokens" in settings:
            raise UsageError("batch_size and batch_tokens both set the size of a step; omit one.")
        if type(rows) is not int:
            raise UsageError(f"batch_size is {brief(rows)}; expected int.")
        length = settings.get("seq_len", Config.seq_len)
        if type(length) is int:  # if not, `Config` raises the error
            settings["batch_tokens"] = rows * length
    return RunFile(config=Config(**settings), **_check_data(about_data))


def _check_data(found: dict[str, Any]) -> dict[str, Any]:
    for name, value in found.items():
        if name == "num_epochs":
            value = found[name] = _as_number(value, float)
            if type(value) not in (int, float) or not 0 < value <= _MOST_EPOCHS:
                raise UsageError(
                    f"{name} is {brief(value)}; it must be above 0, and at most {_MOST_EPOCHS:,}."
                )
        elif not isinstance(value, str) or not value:
            raise UsageError(f"{name} is {brief(value)}; it must be text.")
    return found


def _as_number(value: Any, kind: Any) -> Any:
    """Return text such as "3e-4" as a number, and 1e6 as an integer if the setting needs one.

    Other values are returned unchanged.
    """
    whole = kind is int or int in get_args(kind)
    if (whole or kind is float) and isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    return int(value) if whole and isinstance(value, float) and value.is_integer() else value


def _check_name(name: str) -> None:
    """Raise `UsageError`, suggesting the nearest name, if there is no such setting."""
    if name in _NAMES:
        return
    near = get_close_matches(name, [*_NAMES, *_OTHER_PROGRAMS], n=1, cutoff=0.6)
    hint = f"; did you mean {_OTHER_PROGRAMS.get(near[0], near[0])!r}?" if near else "."
    raise UsageError(f"unknown setting {brief(name)}{hint} The settings are: {', '.join(_NAMES)}.")
