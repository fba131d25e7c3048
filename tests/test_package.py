"""The public names: few, documented, and loaded only when used."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_type_hints

import pytest

import tokenmill
from tokenmill import errors
from tokenmill.preparation.settings import PrepareArguments, PrepareSettings


def test_exactly_the_public_names_resolve() -> None:
    assert sorted(tokenmill.__all__) == tokenmill.__all__ == sorted(tokenmill._WHERE)
    assert dir(tokenmill) == sorted([*tokenmill.__all__, "__version__"])
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tokenmill.nonsense  # noqa: B018


@pytest.mark.parametrize("name", tokenmill.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    thing = getattr(tokenmill, name)
    assert inspect.getdoc(thing)
    assert thing is getattr(importlib.import_module(tokenmill._WHERE[name]), name)


def test_type_checkers_know_every_setting_of_prepare() -> None:
    """Their names and types are those of the fields of `PrepareSettings`."""
    known = get_type_hints(PrepareArguments)
    for name in ("filter", "language"):  # the settings are tuples; arguments may also be text
        assert known.pop(name) == str | Sequence[str]
        known[name] = tuple[str, ...]
    assert known == get_type_hints(PrepareSettings)
    assert inspect.signature(tokenmill.prepare).parameters["settings"].annotation == (
        "Unpack[PrepareArguments]"
    )


def test_reports_and_loaders_have_a_one_line_repr(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("To be, or not to be.")
    report = tokenmill.prepare(
        tmp_path / "a.txt", tmp_path / "data", tokenizer="bytes", val_fraction=0
    )
    assert repr(report) == f"<Report {str(tmp_path / 'data')!r}: train 21 tokens, val 0 tokens>"
    tokens = tokenmill.Tokens.of(range(1_000))
    loader = tokenmill.Loader(
        tokens, batch_size=2, seq_len=4, rank=1, world_size=3, limit_rows=1200
    )
    next(loader)
    assert repr(loader) == f"<Loader 2 x 4 of {tokens!r}, rank 1 of 3, row 6 of 1,200>"


def test_star_import_gives_the_public_names() -> None:
    code = "from tokenmill import *; import tokenmill; print(set(tokenmill.__all__) <= set(dir()))"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True)
    assert result.stdout == b"True\n"


def test_every_exception_is_in_the_tree() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), tokenmill.TokenmillError)
        assert name in (errors.__doc__ or "")


def _modules() -> list[str]:
    found = pkgutil.walk_packages(tokenmill.__path__, "tokenmill.")
    return [module.name for module in found if not module.name.endswith("__main__")]


@pytest.mark.parametrize("name", _modules())
def test_every_module_has_a_docstring(name: str) -> None:
    frameworks = {"torch", "jax", "grain", "lightning", "tensorflow", "huggingface", "ray"}
    if frameworks & set(re.split("[._]", name)):
        pytest.skip("needs a framework")
    module = importlib.import_module(name)
    assert module.__doc__ or not Path(str(module.__file__)).read_text().strip()
    for public in getattr(module, "__all__", []):
        assert hasattr(module, public), public
