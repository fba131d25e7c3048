"""Progress in a notebook, with a real kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel")
manager = pytest.importorskip("jupyter_client.manager")

PREPARE = """
import tokenmill
tokenmill.prepare({text!r}, {out!r}, tokenizer="bytes", workers=1, progress={progress})
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    patch = pytest.MonkeyPatch()
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        patch.setenv(name, str(tmp_path_factory.mktemp(name)))
    patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    made, client = manager.start_new_kernel(kernel_name="python3", startup_timeout=120)
    yield client
    client.stop_channels()
    made.shutdown_kernel(now=True)
    patch.undo()


def run(kernel: Any, code: str) -> list[dict[str, Any]]:
    """All messages that a notebook would show for a cell, in order."""
    shown: list[dict[str, Any]] = []
    reply = kernel.execute_interactive(code, timeout=120, output_hook=shown.append)
    assert reply["content"]["status"] == "ok", reply["content"]
    return [one for one in shown if one["msg_type"] not in ("status", "execute_input")]


def test_prepare_updates_one_output_and_leaves_only_its_report(kernel: Any, tmp_path: Path) -> None:
    text = tmp_path / "x.txt"
    text.write_text("\n".join(f"document {n} of the corpus" for n in range(300_000)))
    shown = run(kernel, PREPARE.format(text=str(text), out=str(tmp_path / "a"), progress=None))
    kinds = [one["msg_type"] for one in shown]
    assert kinds[0] == "display_data"
    assert set(kinds[1:-1]) == {"update_display_data"}
    assert kinds[-1] == "execute_result"
    *lines, report = (one["content"]["data"]["text/plain"] for one in shown)
    assert len({one["content"]["transient"]["display_id"] for one in shown[:-1]}) == 1
    assert any(re.match(r"tokenizing: \d+%, .* of 8\.\d MB", line) for line in lines), lines
    assert any(line.startswith("writing shards: ") for line in lines)
    assert max(map(len, lines)) <= 100
    assert lines[-1] == ""
    assert report.startswith("<Report ")


def test_prepare_is_silent_on_request(kernel: Any, tmp_path: Path) -> None:
    text = tmp_path / "x.txt"
    text.write_text("some text")
    shown = run(kernel, PREPARE.format(text=str(text), out=str(tmp_path / "a"), progress=False))
    assert [one["msg_type"] for one in shown] == ["execute_result"]


DISPLAY = """
import numpy as np, tokenmill
tokenmill.prepare({text!r}, {out!r}, tokenizer="bytes", progress=False)
data = tokenmill.open({out!r})
batch = next(tokenmill.Loader(data["train"], batch_size=2, seq_len=8, seed=0))
found = tokenmill.stats({out!r}, progress=False)
difference = tokenmill.diff({out!r}, {out!r}, progress=False)
"""
SHOWN = ("data", "data['train']", "data['train'].documents", "batch", "found", "difference")


def test_objects_are_shown_as_tables(kernel: Any, tmp_path: Path) -> None:
    text = tmp_path / "<img src=x>.txt"
    text.write_text("\n".join(f"document {n} <b>of</b> the corpus" for n in range(1000)))
    run(kernel, DISPLAY.format(text=str(text), out=str(tmp_path / "<b>a")))
    for shown in (*SHOWN, f"tokenmill.verify({str(tmp_path / '<b>a')!r}, progress=False)"):
        (result,) = run(kernel, shown)
        assert result["msg_type"] == "execute_result"
        page = result["content"]["data"]["text/html"]
        assert page.startswith("<div><b>"), shown
        assert "<b>of" not in page
        assert "<img" not in page
        assert "<b>a" not in page
        assert result["content"]["data"]["text/plain"].count("\n") == 0


def test_statistics_show_their_progress(kernel: Any, tmp_path: Path) -> None:
    text = tmp_path / "x.txt"
    text.write_text("\n".join(f"document {n} of the corpus" for n in range(1000)))
    run(kernel, PREPARE.format(text=str(text), out=str(tmp_path / "a"), progress=False))
    shown = run(kernel, f"tokenmill.stats({str(tmp_path / 'a')!r})")
    lines = [one["content"]["data"]["text/plain"] for one in shown]
    assert any(line.startswith("counting tokens: ") for line in lines)
    assert lines[-2] == ""
    assert lines[-1].startswith("<Statistics ")
