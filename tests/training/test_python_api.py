"""`tokenmill.train`, `tokenmill.sample` and `tokenmill.Config`, as they are used from Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tokenmill
from tokenmill.errors import UsageError
from tokenmill.training.config_file import override, read_config

pytest.importorskip("torch")

SMALL = {"config": "tiny", "max_steps": 3, "seq_len": 16, "batch_tokens": 64, "val_every": 0}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "x.txt").write_text("\n".join(f"line {n} and its square {n * n}" for n in range(200)))
    tokenmill.prepare(folder / "x.txt", folder / "corpus", tokenizer="bytes", workers=1)
    return folder / "corpus"


@pytest.mark.parametrize(
    "lines",
    [
        "import tokenmill; import tokenmill.training.run",
        "import tokenmill.training.run; import tokenmill",
        "from tokenmill.training import sample; import tokenmill; tokenmill.sample",
    ],
)
def test_train_is_a_function_in_any_order_of_imports(lines: str) -> None:
    code = f"{lines}; assert tokenmill.train.__name__ == 'train' and callable(tokenmill.sample)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_a_model_is_trained_and_sampled_from(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tokenmill.train(data, runs=tmp_path, val_fraction=0.2, **SMALL)
    assert report.path == tmp_path / "corpus"
    assert repr(report).startswith(f"<RunReport {tmp_path / 'corpus'}: step 3, loss ")
    assert "validation loss" in repr(report)
    assert capsys.readouterr().out == ""  # which is not a terminal here
    text = tokenmill.sample("corpus", "line", tokens=5, runs=tmp_path)
    assert text == tokenmill.sample(report.path, b"line", tokens=5)
    assert text.startswith("line")


def test_progress_is_printed_on_request(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenmill.train(data, runs=tmp_path, device="cpu", progress=True, **SMALL)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("data      ")
    assert any(line.startswith("step 1/3  loss") for line in shown)


def test_the_default_without_a_gpu_is_announced(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {name: value for name, value in SMALL.items() if name != "config"}
    flags["sample_tokens"] = 0
    tokenmill.train(data, runs=tmp_path, device="cpu", progress=True, **flags)
    shown = capsys.readouterr().out
    assert "Training on the CPU with the preset `laptop`: about 4 minutes" in shown
    assert "`config='124M'` trains a full model" in shown
    used, preset = read_config(tmp_path / "corpus" / "config.json"), read_config("laptop")
    assert used == override(preset, **flags)


def test_an_unknown_setting_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown setting 'max_step'; did you mean 'max_steps'"):
        tokenmill.train(data, runs=tmp_path, config="tiny", max_step=3)
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_without_val_split_trains_with_val_fraction(
    tmp_path: Path,
) -> None:
    (tmp_path / "x.txt").write_text("one document only, " * 100)
    tokenmill.prepare(tmp_path / "x.txt", tmp_path / "data", tokenizer="bytes", workers=1)
    assert len(tokenmill.open(tmp_path / "data").splits) == 1
    without = tokenmill.train(tmp_path / "data", name="a", runs=tmp_path / "runs", **SMALL)
    assert without.val_loss is None
    report = tokenmill.train(
        tmp_path / "data", name="b", runs=tmp_path / "runs", val_fraction=0.2, **SMALL
    )
    assert report.val_loss is not None
