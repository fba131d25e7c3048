"""Choose and open a backend: PyTorch or JAX, imported only when used.

PyTorch's OpenMP threads spin while they wait at barriers. On a busy machine, they take cores away
from the threads that they wait for. So this module sets `GOMP_SPINCOUNT` to 3,000 before it imports
PyTorch, unless you set that variable or `OMP_WAIT_POLICY`. On two cores with two other busy
processes, this gives 15,129 tokens/s instead of 9,340. On a quiet machine, it gives 38,657 instead
of 38,900.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tokenmill.errors import UsageError
from tokenmill.load.distributed import find_rank
from tokenmill.training.backend import Backend
from tokenmill.training.config import Config
from tokenmill.training.model import Arrays, Shape


def open_backend(
    name: str, config: Config, shape: Shape, values: Arrays, device: str | None = None
) -> Backend:
    """Open the backend `torch` or `jax` with initial weights. The default device is the fastest."""
    with _importing(name):
        if name == "torch":
            from tokenmill.training.torch_backend import TorchBackend

            return TorchBackend(config, shape, values, device)
        from tokenmill.training.jax_backend import JaxBackend

        return JaxBackend(config, shape, values, device)


def find_ranks(name: str) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks.

    They come from PyTorch's process group if the caller has started one, else from the launcher's
    environment variables.
    """
    if name == "torch":
        with _importing(name):
            import torch.distributed as dist

            if dist.is_available() and dist.is_initialized():
                return dist.get_rank(), dist.get_world_size()
    return find_rank(None, None)


def check_device(name: str, device: str | None) -> None:
    """Raise `UsageError` if PyTorch cannot use `device`. Does nothing for JAX.

    JAX devices are checked when the backend opens.
    """
    if name == "torch" and device is not None:
        with _importing(name):
            from tokenmill.training.torch_backend import choose_device

            choose_device(device)


def has_accelerator(name: str, device: str | None, stack: ExitStack) -> bool:
    """Return whether a backend would compute on something faster than the CPU.

    JAX must connect its processes before it looks for devices, so this function connects them.
    Closing `stack` disconnects them.

    >>> has_accelerator("torch", "cpu", ExitStack())
    False
    """
    if device is not None:
        return device != "cpu"
    with _importing(name):
        if name == "torch":
            import torch

            return torch.cuda.is_available() or torch.backends.mps.is_available()
        import jax

        from tokenmill.training.jax_backend import start_processes

        if start_processes():
            stack.callback(jax.distributed.shutdown)
        return jax.default_backend() != "cpu"


@contextmanager
def _importing(name: str) -> Iterator[None]:
    """Turn a failed import in the `with` block into an error that names the package to install."""
    if name not in ("torch", "jax"):
        raise UsageError(f"`backend` is {name!r}; expected torch or jax.")
    if name == "torch" and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # libgomp reads this when it is loaded
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The backend {name} needs the package {error.name}: pip install 'tokenmill[{name}]'."
        ) from error
