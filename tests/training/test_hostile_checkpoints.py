"""A checkpoint from a stranger is used only if every byte of it fits; else the one before is used."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hostile_checkpoints import CASES, set_state
from run_fixtures import CONFIG, Watch, make_data

from tokenmill.errors import StateError, TokenmillError
from tokenmill.training.checkpoints import Checkpoints
from tokenmill.training.run import train
from tokenmill.training.run_folder import read_metrics

BACKENDS = ("torch", "jax")
SHORT = replace(
    CONFIG, max_steps=4, checkpoint_every=2, val_every=0, sample_tokens=0, log_every=2, keep=2
)
DATA = replace(make_data(), val=None)


@pytest.fixture(scope="module", params=BACKENDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with checkpoints of the steps 2 and 4."""
    pytest.importorskip(request.param)
    runs = tmp_path_factory.mktemp(request.param)
    train(DATA, name=request.param, config=SHORT, runs=runs, backend=request.param)
    return runs / request.param


def copy(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / run.name)
    return tmp_path / run.name


def resume(folder: Path, watch: Watch) -> int:
    return train(
        DATA, name=folder.name, config=SHORT, runs=folder.parent, backend=folder.name, watcher=watch
    ).step


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_checkpoint_is_skipped_with_file_and_reason(
    run: Path, tmp_path: Path, case: str
) -> None:
    folder = tmp_path / "checkpoints"
    shutil.copytree(run / "checkpoints", folder)
    newest = folder / "step_0000004"
    CASES[case](newest)
    warnings: list[str] = []
    found = Checkpoints(folder).newest(warnings.append)
    assert found is not None
    assert found.state.step == 2
    (warning,) = warnings
    assert warning.startswith(f"Skipping checkpoint {newest}: ")
    assert any(name in warning for name in ("state.json", "model.safe", "optimizer.safe"))
    assert "\n" not in warning
    assert len(warning) < len(str(newest)) + 500
    shutil.rmtree(folder / "step_0000002")
    with pytest.raises(StateError) as refused:
        Checkpoints(folder).newest()
    text = str(refused.value)
    assert text.startswith(f"None of the 1 checkpoints in {folder} can be used. step_0000004: ")
    assert text.endswith("Restore one from a backup, or add `restart=True` to start over.")
    assert len(text) < 2 * len(str(folder)) + 700


@pytest.mark.parametrize("case", list(CASES)[::12])
def test_a_run_steps_back_past_a_hostile_checkpoint(run: Path, tmp_path: Path, case: str) -> None:
    folder = copy(run, tmp_path)
    newest = folder / "checkpoints" / "step_0000004"
    sound = (newest / "model.safetensors").read_bytes()
    CASES[case](newest)
    watch = Watch()
    assert resume(folder, watch) == 4
    assert [warning.partition(":")[0] for warning in watch.warnings] == [
        f"Skipping checkpoint {newest}"
    ]
    assert any("resuming  from step 2" in note for note in watch.notes)
    assert (newest / "model.safetensors").read_bytes() == sound


MEASURE = """
import resource, shutil, sys
from pathlib import Path
from hostile_checkpoints import CASES
from tokenmill.errors import StateError
from tokenmill.training.checkpoints import Checkpoints
Checkpoints(Path(sys.argv[1])).newest()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
for case, change in CASES.items():
    shutil.copytree(sys.argv[1], sys.argv[2])
    change(Path(sys.argv[2]) / "step_0000004")
    assert Checkpoints(Path(sys.argv[2])).newest().state.step == 2, case
    shutil.rmtree(sys.argv[2])
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_hostile_checkpoints_take_bounded_memory(run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURE, run / "checkpoints", tmp_path / "copy"]
    here = Path(__file__).parent
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=here)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("fingerprints", "train"), "0" * 32, "the data of train: 0000"),
        (("fingerprints",), {}, "the tokenizer: none then"),
        (("loader", "version"), 2, "version 2"),
        (("loader", "version"), "1", "version '1'"),
        (("loader", "seed"), "42", "seed is '42' in the state and 42 here"),
        (("loader", "sources"), {}, "sources"),
        (("loader", "sources"), {"": {"tokens": 10**30}}, "tokens is 1000000000000"),
        (("loader", "weights"), [[0, [1.0]]], "the mixture: damaged then, none now"),
        (("loader", "weights"), ["web"], "the mixture: damaged then, none now"),
        (("loader", "names"), "web", "names"),
        (("backend",), "BACKEND", "the backend"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_by_name(
    run: Path, tmp_path: Path, keys: tuple[str, ...], value: object, message: str
) -> None:
    folder = copy(run, tmp_path)
    if value == "BACKEND":
        value = next(name for name in BACKENDS if name != run.name)
    set_state(*keys, value=value)(folder / "checkpoints" / "step_0000004")
    with pytest.raises(StateError) as refused:
        resume(folder, Watch())
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "lines",
    [
        b"",
        b"\0" * 100,
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b"7\n",
        b"[]\n",
        b'{"step": true}\n',
        b'{"step": "1"}\n',
        b'{"step": -1}\n',
        b'{"step": 1000000000000000000, "row": 1, "loss": 1.0}\n',
        b'{"step": 1, "loss": 1.0}\n',
        b'{"step": 1, "row": 4, "loss": "low"}\n',
        b'{"step": 1, "row": -4, "loss": 1.0}\n',
        b'{"step": 1, "row": 1e300, "loss": 1.0}\n',
        b'{"step": 1, "row": 999999999999, "loss": 1.0}\n',
        b'{"step": 1, "row": 4, "loss": null}\n',
        b'{"step": 1, "loss": null}\n',
        b'{"step": 1, "val_loss": [1]}\n',
        b'{"step": 1, "val_loss": {"a": 1}}\n',
        b'{"step": 1, "sample": 7}\n',
    ],
    ids=lambda lines: repr(lines[:40]),
)
def test_hostile_metrics_do_not_keep_a_run_from_resuming(
    run: Path, tmp_path: Path, lines: bytes
) -> None:
    folder = copy(run, tmp_path)
    shutil.rmtree(folder / "checkpoints" / "step_0000004")
    (folder / "metrics.jsonl").write_bytes(lines)
    assert resume(folder, Watch()) == 4
    assert read_metrics(folder)[-1]["step"] == 4
    assert len(np.fromfile(folder / "row_losses.f32", "<f4")) == 16


def test_metrics_that_do_not_fit_in_memory_are_refused(run: Path, tmp_path: Path) -> None:
    folder = copy(run, tmp_path)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(
        TokenmillError, match=r"metrics\.jsonl has 1,099,511,627,776 bytes; at most"
    ):
        resume(folder, Watch())


@pytest.mark.parametrize("size", [0, 7, 1_000])
def test_row_losses_of_another_length_are_cut_or_filled(
    run: Path, tmp_path: Path, size: int
) -> None:
    folder = copy(run, tmp_path)
    shutil.rmtree(folder / "checkpoints" / "step_0000004")
    (folder / "row_losses.f32").write_bytes(bytes(size))
    assert resume(folder, Watch()) == 4
    losses = np.fromfile(folder / "row_losses.f32", "<f4")
    assert len(losses) == 16
    assert np.isfinite(losses[8:]).all()


def test_folders_with_other_names_are_ignored(run: Path, tmp_path: Path) -> None:
    checkpoints = copy(run, tmp_path) / "checkpoints"
    for name in ("step_٠٠٠٠٠٠٩", f"step_{'9' * 200}", "step_-000009", "step_0000009\n", "step_9"):
        (checkpoints / name).mkdir()
    warnings: list[str] = []
    found = Checkpoints(checkpoints).newest(warnings.append)
    assert found is not None
    assert (found.state.step, warnings) == (4, [])
