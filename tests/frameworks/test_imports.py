"""A framework is imported by the module with its name, and by no other."""

import subprocess
import sys

import pytest

FRAMEWORKS = ("torch", "lightning", "jax", "grain", "tensorflow", "transformers", "accelerate")


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("tokenmill.compat.text_source", set()),
        ("tokenmill.load.steps", set()),
        ("tokenmill.jax", {"jax"}),
        ("tokenmill.grain", {"grain", "jax"}),
        ("tokenmill.huggingface", {"torch"}),
    ],
)
def test_a_module_imports_no_other_framework(module, allowed):
    code = f"import sys, {module}; print(*[name for name in {FRAMEWORKS} if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert set(told.stdout.split()) <= allowed
