"""Functions with hand-written gradients, compared with PyTorch's autograd in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from tokenmill.training.model import EPSILON  # noqa: E402
from tokenmill.training.torch_model import (  # noqa: E402
    CHUNK_ROWS,
    capped_losses,
    norm,
    rotate_and_norm,
    squared_relu,
)


def random(*size: int, seed: int = 0) -> Any:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def plain_norm(x: Any) -> Any:
    return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt()


def assert_same(one: Callable[[Any], Any], other: Callable[[Any], Any], x: Any) -> None:
    """The same values, and the same gradient of some sum of them, as in float64."""
    exact = x.double().requires_grad_()
    wanted = other(exact)
    weights = random(*wanted.shape, seed=5)
    (wanted * weights).sum().backward()
    given = x.clone().requires_grad_()
    found = one(given * 1.0)  # one that may be written to
    (found * weights).sum().backward()
    assert torch.allclose(found.double(), wanted, atol=1e-5, rtol=1e-5)
    assert torch.allclose(given.grad.double(), exact.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 100.0])
def test_norm(scale: float) -> None:
    x = scale * random(3, 5, 16)
    assert_same(lambda x: norm(x) * scale, lambda x: plain_norm(x) * scale, x)


def test_rotate_and_norm() -> None:
    angles = random(7, 1, 4, seed=1)

    def plain(x: Any) -> Any:
        cosines, sines = angles.double().cos(), angles.double().sin()
        first, second = x.chunk(2, -1)
        turned = (first * cosines + second * sines, second * cosines - first * sines)
        return plain_norm(torch.cat(turned, -1))

    assert_same(lambda x: rotate_and_norm(x, angles.cos(), angles.sin()), plain, random(2, 7, 3, 8))


def test_squared_relu() -> None:
    assert_same(squared_relu, lambda x: F.relu(x).square(), random(6, 9))


@pytest.mark.parametrize("softcap", [0.0, 1.5, 15.0])
@pytest.mark.parametrize("count", [1, CHUNK_ROWS, 2 * CHUNK_ROWS + 3])
def test_losses_in_chunks(softcap: float, count: int) -> None:
    vocab, width = 3000, 4
    states, head = 3 * random(count, width), 3 * random(vocab, width, seed=1)
    targets = torch.arange(count) * 7 % vocab
    states.requires_grad_()
    head.requires_grad_()
    total, losses = capped_losses(states, head, targets, softcap)
    (total / count).backward()
    exact = [x.detach().double().requires_grad_() for x in (states, head)]
    logits = exact[0] @ exact[1].T
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    wanted = F.cross_entropy(logits, targets, reduction="none")
    wanted.mean().backward()
    assert not losses.requires_grad
    assert torch.allclose(losses.double(), wanted, atol=1e-4, rtol=1e-5)
    assert total.item() == pytest.approx(wanted.sum().item(), rel=1e-5)
    for found, right in zip((states, head), exact, strict=True):
        assert torch.allclose(found.grad.double(), right.grad, atol=1e-6, rtol=1e-4)


def test_large_logits_do_not_overflow() -> None:
    states, head = torch.tensor([[1.0]]), torch.tensor([[1000.0], [0.0]])
    assert capped_losses(states, head, torch.tensor([1]), 0.0)[1].tolist() == [1000.0]
    assert capped_losses(states, head, torch.tensor([0]), 0.0)[1].tolist() == [0.0]


def test_evaluation_computes_no_gradients() -> None:
    states, head = random(4, 3).requires_grad_(), random(9, 3).requires_grad_()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        total, losses = capped_losses(states, head, torch.arange(4), 15.0)
    assert counter.get_total_flops() == 2 * 4 * 3 * 9  # one product, of the states and the head
    assert not total.requires_grad
    assert float(total) == pytest.approx(float(losses.sum()))
