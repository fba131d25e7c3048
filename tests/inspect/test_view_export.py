"""`tokenmill view --export` writes pages that need nothing but themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from view_client import read_tags, read_text

import tokenmill


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    (folder / "a.txt").write_text("".join(f"<b>Document {n}</b><|endoftext|>" for n in range(40)))
    tokenmill.prepare(folder / "a.txt", folder / "data", tokenizer="bytes", val_fraction=0)
    return folder / "data"


def export(data: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tokenmill.cli", "view", data, "--export", folder, *options]
    return subprocess.run(command, capture_output=True, text=True)


def test_pages_link_only_to_each_other(data, tmp_path):
    made = export(data, tmp_path / "card", "--document", "3", "--documents", "4")
    assert made.returncode == 0, made.stderr
    files = {str(one.relative_to(tmp_path / "card")) for one in (tmp_path / "card").rglob("*")}
    pages = {name for name in files if name.endswith(".html")}
    assert {"index.html", "documents.html", "document_0.html", "document_3.html"} <= pages
    assert len(pages) == 2 + 5
    assert f"Wrote {len(pages)} pages" in made.stdout
    for name in pages:
        html = (tmp_path / "card" / name).read_text()
        assert "token=" not in html
        targets = [one.get("href") for tag in ("a", "link") for one in read_tags(html, tag)]
        targets += [one.get("src") for one in read_tags(html, "script")]
        for target in targets:
            assert target == "#content" or target in files, (name, target)
        assert not read_tags(html, "form")
        assert "<b>Document" not in html
    assert "Document 3" in read_text((tmp_path / "card" / "document_3.html").read_text())
    assert "Length of documents" in (tmp_path / "card" / "index.html").read_text()


def test_an_export_replaces_only_an_export(data, tmp_path):
    card = tmp_path / "card"
    assert export(data, card).returncode == 0
    assert export(data, card, "--documents", "1").returncode == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.html").write_text("mine")
    refused = export(data, tmp_path / "mine")
    assert refused.returncode == 1
    assert "is not empty" in refused.stderr
    assert (tmp_path / "mine" / "index.html").read_text() == "mine"


def test_pages_of_documents_of_an_earlier_export_are_removed(data, tmp_path):
    card = tmp_path / "card"
    assert export(data, card, "--document", "3", "--document", "7").returncode == 0
    (card / "document_of_mine.html").write_text("mine")
    assert export(data, card, "--document", "7").returncode == 0
    names = {path.name for path in card.iterdir()}
    pages = {"index.html", "documents.html", "document_7.html"}
    assert names == {*pages, "document_of_mine.html", "static"}
    assert export(data, card).returncode == 0
    assert {path.name for path in card.iterdir()} == {
        *("index.html", "document_of_mine.html", "static")
    }


def test_an_export_does_not_write_through_a_link(data, tmp_path):
    other = tmp_path / "other"
    assert export(data, other).returncode == 0
    (other / "static" / "view.css").write_text("mine")
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "static").symlink_to(other / "static")
    refused = export(data, tmp_path / "card")
    assert refused.returncode == 1
    assert "is a symbolic link" in refused.stderr
    assert (other / "static" / "view.css").read_text() == "mine"
    assert [path.name for path in (tmp_path / "card").iterdir()] == ["static"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--split", "nope"], "nope"),
        (["--documents", "-1"], "--documents is -1"),
        (["--run", "runs/r"], "Omit --run"),
    ],
)
def test_options_that_an_export_cannot_follow_are_refused(data, tmp_path, options, fault):
    refused = export(data, tmp_path / "card", *options)
    assert refused.returncode in (1, 2)
    assert fault in refused.stderr
    assert not (tmp_path / "card").exists()


def test_documents_of_data_without_documents_are_refused(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(100, dtype=np.uint16))
    refused = export(tmp_path / "ids.npy", tmp_path / "card", "--documents", "3")
    assert refused.returncode == 2
    assert "no document table" in refused.stderr
    assert not (tmp_path / "card").exists()
    command = [sys.executable, "-m", "tokenmill.cli", "view", tmp_path / "ids.npy"]
    refused = subprocess.run([*command, "--documents", "3"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "need --export" in refused.stderr


def test_a_missing_document_is_an_error_before_anything_is_written(data, tmp_path):
    refused = export(data, tmp_path / "card", "--document", "99")
    assert refused.returncode == 2
    assert "has no document 99" in refused.stderr
    assert not (tmp_path / "card").exists()
