"""Settings of a run from a file, JSON or YAML, and from flags.

A file has the names of `Config`, flat or in the sections `model`, `training` and `data`, which have no
effect. The guides' names for the same settings also work. An unknown key is an error that suggests a
known one; a value of the wrong type is an error that says so. Whole numbers may be written as 1e6, and
numbers as 3e-4 even in YAML, which reads that as text.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_type_hints

import orjson

from tokenmill.errors import InputError, UsageError
from tokenmill.training.config import Config
from tokenmill.training.presets import find_preset, preset_names

_NAMES = [field.name for field in fields(Config)]
_SECTIONS = (
    "model training data model_config training_config train_config data_config"  # as in the guide
).split()
_GUIDES = {  # what the guides call it
    "block_size": "seq_len",
    "max_length": "seq_len",
    "maxlen": "seq_len",
    "max_iters": "max_steps",
    "shuffle_seed": "seed",
}
_DATA = ("dataset_name", "tokenizer_name", "num_epochs", "name")
# Of the loaders by hand: one thread reads ahead, rows are packed, and nothing is padded or cached.
_NEEDLESS = (
    "worker_count worker_buffer_size prefetch_buffer_size cache_size cache_dir split pad_token_id"
).split()
_ELSEWHERE = {  # what other programs call it, to suggest the name here
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
_NUMBER = re.compile(r"[+-]?(\d[\d_]*)(\.\d*)?([eE][+-]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """A file of settings that may also say what to train on, as the guide about JAX has it."""

    config: Config
    dataset_name: str | None = None
    tokenizer_name: str | None = None
    num_epochs: float | None = None
    name: str | None = None


def read_config(path: str | os.PathLike[str]) -> Config:
    """The settings of a preset, by its name, or those in a file, JSON or YAML.

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
    tokenmill.errors.UsageError: /.../small.json: there is no setting 'layer'; did you mean \
'layers'? There are: layers, heads, kv_heads, ...
    """
    found = read_run_file(path)
    named = [name for name in _DATA if getattr(found, name) is not None]
    if named:
        raise UsageError(
            f"{os.fspath(path)} says what to train on ({', '.join(named)}). Remove that from the "
            "file, and use `data`, `tokenizer` and `name`."
        )
    return found.config


def read_run_file(path: str | os.PathLike[str]) -> RunFile:
    """The settings in a file or of a preset, and what it says about the data."""
    where = os.fspath(path)
    try:
        return _make(dict(_flatten(_parse(find_preset(path) or Path(path)))))
    except UsageError as error:
        told = str(error).replace("`", "")  # in a file, a setting is not an argument
        raise UsageError(f"{where}: {told}") from None


def override(config: Config, **flags: Any) -> Config:
    """The same settings but for some; those that are None stay.

    >>> override(Config(), max_steps=10, seq_len=None).max_steps
    10
    >>> override(Config(), max_step=10)
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: there is no setting 'max_step'; did you mean 'max_steps'? There \
are: layers, heads, kv_heads, ...
    """
    given = {name: value for name, value in flags.items() if value is not None}
    for name in given:
        if name not in _NAMES:
            raise _unknown(name)
    return replace(config, **given)


def _parse(path: Path) -> Mapping[str, Any]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"{path} is neither a preset nor a file. The presets are {', '.join(preset_names())}."
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    found = _parse_yaml(data) if path.suffix in (".yaml", ".yml") else _parse_json(data)
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise UsageError("this is not a list of settings, each a name and a value.")
    return found


def _parse_json(data: bytes) -> Any:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"this is not JSON: {error}.") from error
    with suppress(RecursionError):  # settings are not that deep; reported later
        json.loads(data, object_pairs_hook=_refuse_repeats)  # orjson takes the last of them
    return found


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} is there twice.")


def _parse_yaml(data: bytes) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise UsageError(
            "YAML needs the package PyYAML: pip install pyyaml. Or write the settings as JSON."
        ) from error
    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        told = " ".join(str(error).split())
        raise UsageError(f"this is not YAML: {told}.") from error


def _flatten(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """All settings, those in sections included; one that is there twice is an error."""
    seen: set[str] = set()
    for name, value in found.items():
        inner = {name: value}
        if name in _SECTIONS:
            inner = {} if value is None else value
            if not isinstance(inner, dict):
                raise UsageError(f"{name} is {value!r}; it must hold settings.")
        for key, one in inner.items():
            own = _GUIDES.get(key, key)
            if own in seen:
                raise UsageError(f"{own} is there twice.")
            seen.add(own)
            yield own, one


def _make(found: dict[str, Any]) -> RunFile:
    for name in [name for name in found if name in _NEEDLESS]:
        del found[name]
    about_data = {name: found.pop(name) for name in _DATA if name in found}
    if "num_epochs" in about_data and "max_steps" in found:
        raise UsageError("max_steps and num_epochs both say where a run ends; leave one out.")
    rows = found.pop("batch_size", None)
    kinds = get_type_hints(Config)
    for name, value in found.items():
        if name not in kinds:
            raise _unknown(name)
        found[name] = _as_number(value, kinds[name])
    if rows is not None:
        if "batch_tokens" in found:
            raise UsageError("batch_size and batch_tokens are the same in rows and in tokens.")
        if type(rows) is not int:
            raise UsageError(f"batch_size is {rows!r}; it must be a whole number.")
        found["batch_tokens"] = rows * found.get("seq_len", Config.seq_len)
    return RunFile(config=Config(**found), **_check_data(about_data))


def _check_data(found: dict[str, Any]) -> dict[str, Any]:
    """What a file says of the data, each of its kind."""
    for name, value in found.items():
        if name == "num_epochs":
            value = found[name] = _as_number(value, float)
            if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
                raise UsageError(f"{name} is {value!r}; it must be a positive number.")
        elif not isinstance(value, str) or not value:
            raise UsageError(f"{name} is {value!r}; it must be text.")
    return found


def _as_number(value: Any, kind: Any) -> Any:
    """A number that was written in another way, or what it was."""
    whole = kind is int or int in get_args(kind)
    if (whole or kind is float) and isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    return int(value) if whole and isinstance(value, float) and value.is_integer() else value


def _unknown(name: str) -> UsageError:
    near = get_close_matches(name, [*_NAMES, *_ELSEWHERE], n=1, cutoff=0.6)
    meant = [_ELSEWHERE.get(one, one) for one in near]
    hint = f"; did you mean {meant[0]!r}?" if meant else "."
    return UsageError(f"there is no setting {name!r}{hint} There are: {', '.join(_NAMES)}.")
