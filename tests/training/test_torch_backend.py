"""The PyTorch backend: bit-exact after load, equal for any micro-batches and ranks, and causal."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from two_ranks import CONFIG, SHAPE, global_batch, load, save, take_steps  # noqa: E402

from tokenmill.errors import StateError, UsageError  # noqa: E402
from tokenmill.training.backend import StepRows  # noqa: E402
from tokenmill.training.backends import open_backend  # noqa: E402
from tokenmill.training.config import Config  # noqa: E402
from tokenmill.training.model import Shape, first_values  # noqa: E402
from tokenmill.training.torch_backend import TorchBackend  # noqa: E402

SCRIPT = Path(__file__).with_name("two_ranks.py")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make(config: Config = CONFIG, shape: Shape = SHAPE, seed: int = 1) -> TorchBackend:
    backend = open_backend("torch", config, shape, first_values(shape, seed))
    assert isinstance(backend, TorchBackend)
    return backend


def learned(config: Config = CONFIG, shape: Shape = SHAPE) -> TorchBackend:
    """A backend without zero parameters; initially, half of them are zero."""
    backend = make(config, shape)
    take_steps(backend, 0, 10)
    return backend


def rows_of(ids: Any, documents: Any = None) -> StepRows:
    return StepRows(inputs=ids[:, :-1], targets=ids[:, 1:], documents=documents)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_continues_bit_for_bit_after_load(optimizer: Any) -> None:
    config = replace(CONFIG, optimizer=optimizer)
    one = make(config)
    take_steps(one, 0, 3)
    other = make(config, seed=2)
    other.load(one.parameters(), one.optimizer_state())
    losses, norms = take_steps(one, 3, 4)
    other_losses, other_norms = take_steps(other, 3, 4)
    assert np.array_equal(losses, other_losses)
    assert norms == other_norms
    for states in zip(
        (*one.parameters().items(), *one.optimizer_state().items()),
        (*other.parameters().items(), *other.optimizer_state().items()),
        strict=True,
    ):
        (name, value), (other_name, other_value) = states
        assert name == other_name
        assert value.tobytes() == other_value.tobytes(), name


def test_parameters_and_state_are_copies() -> None:
    backend = learned()
    before, remembered = backend.parameters(), backend.optimizer_state()
    kept = {name: value.copy() for name, value in {**before, **remembered}.items()}
    take_steps(backend, 10, 1)
    for name, value in {**before, **remembered}.items():
        assert np.array_equal(value, kept[name]), name
    assert not np.array_equal(backend.parameters()["head"], before["head"])


@pytest.mark.parametrize("micro_batch", [1, 5, 12, None])
def test_micro_batches_change_losses_by_rounding_only(micro_batch: int | None) -> None:
    one, other = make(), make(replace(CONFIG, micro_batch=micro_batch))
    losses, norms = take_steps(one, 0, 12)
    other_losses, other_norms = take_steps(other, 0, 12)
    assert losses[-1].mean() < losses[0].mean() - 0.3  # something was learned
    assert np.abs(losses - other_losses).max() < 1e-5
    assert np.allclose(norms, other_norms, rtol=1e-4)


def test_a_step_on_many_micro_batches_has_the_gradient_of_the_mean() -> None:
    # Momentum after one step is 1 - beta1 times the gradient, which nothing has clipped.
    config = replace(CONFIG, optimizer="adamw", clip=0.0)
    whole, cut = (make(replace(config, micro_batch=size)) for size in (12, 5))
    for backend in (whole, cut):
        take_steps(backend, 0, 1)
    gradient = whole.optimizer_state()["head.exp_avg"]
    assert np.abs(gradient).max() > 1e-4
    assert np.allclose(cut.optimizer_state()["head.exp_avg"], gradient, atol=1e-8)


def test_gradients_are_clipped_and_the_norm_before_that_is_reported() -> None:
    config = replace(CONFIG, optimizer="adamw")
    free, held = make(replace(config, clip=0.0)), make(replace(config, clip=0.01))
    (_, norms), (_, held_norms) = take_steps(free, 0, 1), take_steps(held, 0, 1)
    assert norms == held_norms
    assert norms[0] > 0.02

    def size(backend: TorchBackend) -> float:
        means = [v for n, v in backend.optimizer_state().items() if n.endswith(".exp_avg")]
        return math.sqrt(sum(float((mean.astype(float) ** 2).sum()) for mean in means))

    assert size(free) == pytest.approx(0.1 * norms[0], rel=1e-5)
    assert size(held) == pytest.approx(0.1 * 0.01, rel=1e-3)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_weights_decay_in_matrices_and_the_head_only(optimizer: Any) -> None:
    config = replace(CONFIG, optimizer=optimizer, learning_rate=0.1, matrix_learning_rate=0.1)
    some, none = (make(replace(config, weight_decay=decay)) for decay in (0.5, 0.0))
    for backend in (some, none):
        values = learned().parameters()
        backend.load(values, backend.optimizer_state())
        take_steps(backend, 0, 1)
    after, without = some.parameters(), none.parameters()
    for name, value in values.items():
        decay = 0.0 if name == "embedding" else 0.5
        assert np.allclose(after[name] - without[name], -0.1 * decay * value, atol=1e-6), name


def test_float32_muon_matches_pytorchs_muon() -> None:
    from tokenmill.training.torch_optimizers import Float32Muon

    settings: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    for size in ((48, 48), (48, 12), (12, 48)):
        first = torch.randn(size, generator=torch.Generator().manual_seed(3))
        one, other = torch.nn.Parameter(first.clone()), torch.nn.Parameter(first.clone())
        ours, theirs = Float32Muon([one], **settings), torch.optim.Muon([other], **settings)
        ours.state[one] = {"momentum_buffer": torch.zeros(size)}
        for step in range(3):
            gradient = torch.randn(size, generator=torch.Generator().manual_seed(step))
            one.grad, other.grad = gradient, gradient.clone()
            ours.step()
            theirs.step()
        moved, away = (one - first).norm(), (one - other).norm()
        assert away < 0.01 * moved  # which bfloat16 accounts for


def test_a_state_that_does_not_fit_is_refused_by_name() -> None:
    muon, adamw = make(), make(replace(CONFIG, optimizer="adamw"))
    with pytest.raises(StateError, match=r"blocks\.0\.attention\.query\.step"):
        adamw.load(muon.parameters(), muon.optimizer_state())
    wide = first_values(replace(SHAPE, vocab=128), 1)
    with pytest.raises(StateError, match="embedding"):
        muon.load(wide, muon.optimizer_state())


def test_no_loss_depends_on_later_tokens() -> None:
    backend = learned()
    ids = global_batch(50)
    losses = backend.evaluate(rows_of(ids))
    assert losses.shape == (12, 16)
    changed = ids.copy()
    changed[:, 9] += 1
    changed %= 64
    other = backend.evaluate(rows_of(changed))
    assert np.array_equal(other[:, :8], losses[:, :8])
    assert (other[:, 9:] != losses[:, 9:]).any(1).all()


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_attention_inside_documents_equals_each_document_alone(kv_heads: int) -> None:
    shape = replace(SHAPE, kv_heads=kv_heads)
    backend = learned(replace(CONFIG, kv_heads=kv_heads), shape)
    ids = global_batch(60)[:1]
    numbers = np.array([[0] * 3 + [1] + [2] * 7 + [3] * 5], np.int32)
    together = backend.evaluate(rows_of(ids, numbers))
    first = 0
    for length in (3, 1, 7, 5):
        alone = backend.evaluate(rows_of(ids[:, first : first + length + 1]))
        assert np.allclose(together[:, first : first + length], alone, atol=1e-5)
        first += length
    assert np.abs(together - backend.evaluate(rows_of(ids))).max() > 1e-3


def test_micro_batches_work_with_attention_inside_documents() -> None:
    numbers = np.repeat(np.arange(4, dtype=np.int32), 4)[None].repeat(12, 0)
    numbers[::2] //= 2
    found = []
    for micro_batch in (5, 12):
        backend = make(replace(CONFIG, micro_batch=micro_batch))
        for step in range(5):
            backend.step(rows_of(global_batch(step), numbers), 1.0)
        found.append(np.stack([one.row_losses for one in backend.report()]))
    assert np.abs(found[0] - found[1]).max() < 1e-5


def test_grouped_queries_are_repeated_keys_and_values() -> None:
    grouped = learned()  # four heads on two keys
    values = grouped.parameters()
    for name, value in values.items():
        if name.endswith((".key", ".value")):
            values[name] = value.reshape(2, 8, 32).repeat(2, 0).reshape(32, 32)
    every = replace(SHAPE, kv_heads=4)
    whole = open_backend("torch", CONFIG, every, values)
    numbers = np.repeat(np.arange(2, dtype=np.int32), 8)[None].repeat(12, 0)
    for documents in (None, numbers):
        rows = rows_of(global_batch(70), documents)
        assert np.allclose(grouped.evaluate(rows), whole.evaluate(rows), atol=1e-5)


@pytest.mark.parametrize("softcap", [0.0, 2.0, 15.0])
def test_losses_match_the_logits(softcap: float) -> None:
    backend = learned(shape=replace(SHAPE, softcap=softcap))
    ids = global_batch(80)
    losses = backend.evaluate(rows_of(ids))
    for row in range(3):
        for length in (1, 7, 16):
            logits = backend.next_logits(ids[row, :length]).astype(float)
            assert softcap == 0 or np.abs(logits).max() <= softcap
            loss = np.log(np.exp(logits).sum()) - logits[ids[row, length]]
            assert losses[row, length - 1] == pytest.approx(loss, abs=1e-5)
    long = np.concatenate([ids[1], ids[2]])
    assert np.array_equal(backend.next_logits(long), backend.next_logits(long[-16:]))


def test_bfloat16_learns_about_the_same() -> None:
    whole, _ = take_steps(make(), 0, 10)
    half, _ = take_steps(make(replace(CONFIG, dtype="bfloat16")), 0, 10)
    assert half.dtype == np.float32
    assert not np.array_equal(half, whole)
    assert np.abs(half - whole).max() < 0.05


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What one process has after 6, and after 12 steps."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("alone")
    backend = make()
    paths = [folder / "6.npz", folder / "12.npz"]
    for number, path in enumerate(paths):
        save(path, backend, *take_steps(backend, 6 * number, 6))
    return paths


def run_two(first: int, steps: int, begin: Path | str, end: Path) -> str:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += [str(SCRIPT), str(first), str(steps), str(begin), str(end)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout


def assert_same(path: Path, other: Path) -> None:
    with np.load(path) as one, np.load(other) as two:
        assert one["losses"].shape == (6, 12)
        assert np.ptp(one["losses"], 1)[1:].min() > 1e-2  # so that another order of rows would show
        assert np.abs(one["losses"] - two["losses"]).max() < 1e-5
        for name in one:
            if name.startswith("value/"):
                assert np.allclose(one[name], two[name], atol=1e-4), name


def test_two_ranks_match_one_and_each_resumes_the_other(alone: list[Path], tmp_path: Path) -> None:
    two = tmp_path / "two.npz"
    found = run_two(0, 6, "-", two)
    assert "13 rows" in found
    assert "2 ranks cannot share the" in found
    assert_same(two, alone[0])

    one_after_two = make(seed=9)
    load(two, one_after_two)
    save(tmp_path / "one.npz", one_after_two, *take_steps(one_after_two, 6, 6))
    assert_same(tmp_path / "one.npz", alone[1])

    run_two(6, 6, alone[0], tmp_path / "after.npz")
    assert_same(tmp_path / "after.npz", alone[1])


GROUP = """
import sys

import torch

import tokenmill

def train(rank, folder):
    torch.set_num_threads(1)
    address = f"file://{folder}/meeting"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    report = tokenmill.train(
        input_file=f"{folder}/text.txt", tokenizer="bytes", runs=folder, name="run",
        layers=1, heads=2, width=16, seq_len=16, batch_tokens=64, max_steps=2, warmup_steps=1,
    )
    assert report.step == 2

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (sys.argv[1],), nprocs=2)
"""


def test_train_uses_the_ranks_of_an_existing_process_group(
    tmp_path: Path,
) -> None:
    (tmp_path / "text.txt").write_text("0123456789" * 100)
    (tmp_path / "program.py").write_text(GROUP)
    command = [sys.executable, tmp_path / "program.py", tmp_path]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert len(np.fromfile(tmp_path / "run" / "row_losses.f32", "<f4")) == 2 * 4


@pytest.mark.parametrize("device", ["nonsense", "meta"])
def test_a_device_that_pytorch_cannot_use_is_refused(device: str) -> None:
    with pytest.raises(UsageError, match=f"`device` is '{device}', which PyTorch cannot use here"):
        open_backend("torch", CONFIG, SHAPE, first_values(SHAPE, 1), device=device)


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(StateError, match="head"):
        open_backend(
            "torch", CONFIG, SHAPE, {**first_values(SHAPE, 1), "head": np.zeros((1, 1), np.float32)}
        )
