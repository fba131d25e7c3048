"""Only the module with the name of a framework imports it."""

import subprocess
import sys

import pytest

FRAMEWORKS = ("torch", "lightning", "jax", "grain", "tensorflow", "transformers", "accelerate")


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("tokenmill.compat.text_source", set()),
        ("tokenmill.load.adapters", set()),
        ("tokenmill.jax", {"jax"}),
        ("tokenmill.grain", {"grain", "jax"}),
        ("tokenmill.huggingface", {"torch"}),
    ],
)
def test_a_module_imports_no_other_framework(module, allowed):
    code = f"import sys, {module}; print(*[name for name in {FRAMEWORKS} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.split()) <= allowed


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("torch", "torch", "torch"),
        ("lightning", "lightning", "lightning"),
        ("jax", "jax", "jax"),
        ("grain", "grain", "jax"),
        ("tensorflow", "tensorflow", "tensorflow"),
        ("huggingface", "torch", "huggingface"),
    ],
)
def test_a_missing_framework_is_an_import_error_with_the_line_to_install_it(module, missing, extra):
    code = f"import sys; sys.modules[{missing!r}] = None; import tokenmill.{module}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert "ModuleNotFoundError" in result.stderr
    assert result.stderr.endswith(f"Install it with: pip install 'tokenmill[{extra}]'\n")
