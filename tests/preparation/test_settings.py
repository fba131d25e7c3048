"""settings.py: what a separator means, and that the settings survive the manifest."""

from __future__ import annotations

import json

import pytest

from tokenmill.errors import UsageError
from tokenmill.preparation.settings import PrepareSettings


@pytest.mark.parametrize(
    ("documents", "separator"),
    [
        ("auto", b"<|endoftext|>"),
        ("file", None),
        ("line", b"\n"),
        ("blank-line", b""),
        ("---", b"---"),
        ("\\n\\n", b"\n\n"),
        ("\\t|\\r\\n", b"\t|\r\n"),
        ("§", "§".encode()),
    ],
)
def test_documents_name_a_separator(documents: str, separator: bytes | None) -> None:
    assert PrepareSettings(documents=documents).separator == separator


def test_settings_survive_json() -> None:
    settings = PrepareSettings(val_fraction=0.1 + 0.2, documents="§", min_line=3, eot="none")
    assert PrepareSettings(**json.loads(json.dumps(settings.to_json()))) == settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_line": True},
        {"min_line": 0},
        {"skip_bad_files": 1},
        {"text_field": 3},
        {"text_field": ""},
        {"val_fraction": -0.1},
        {"dtype": "int64"},
        {"on_bad_text": None},
    ],
)
def test_invalid_settings_are_refused_by_name(wrong: dict[str, object]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=name):
        PrepareSettings(**wrong)  # type: ignore[arg-type]
