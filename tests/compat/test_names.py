"""The names of the guides: complete, documented with an example, loaded only when used."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from tokenmill import compat


def test_exactly_the_listed_names_resolve() -> None:
    assert sorted(compat.__all__) == compat.__all__ == sorted(compat._WHERE)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        compat.nonsense  # noqa: B018


@pytest.mark.parametrize("name", compat.__all__)
def test_every_name_is_documented_with_an_example(name: str) -> None:
    thing = getattr(compat, name)
    assert thing.__module__ == compat._WHERE[name]
    assert ">>> " in (inspect.getdoc(thing) or "")


def test_importing_the_names_loads_no_framework() -> None:
    code = (
        "import sys, tokenmill, tokenmill.compat; "
        "print([name for name in ('torch', 'lightning') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr
    code = "import sys, tokenmill; tokenmill.Loader; print('tokenmill.compat' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "False\n", result.stderr
