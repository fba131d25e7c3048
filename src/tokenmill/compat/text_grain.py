"""`load_text_dataset`: a text as batches on JAX's devices through Grain, by the guide's name."""

from __future__ import annotations

from typing import Any

import grain
import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import NamedSharding, PartitionSpec

from tokenmill.compat.text_source import read_settings


def load_text_dataset(
    d_config: Any, m_config: Any, t_config: Any, tokenizer_name: str, pad_token_id: int | None
) -> grain.IterDataset[Any]:
    """Batches of (inputs, targets), each (batch_size, maxlen), as JAX arrays.

    The configurations are objects or mappings: dataset_name, split, batch_size, and if given
    shuffle_seed, cache_size, cache_dir and prefetch_buffer_size of data; maxlen of the model; num_epochs of
    training. On a mesh that was set with `jax.set_mesh`, rows are divided over its axis `data`, or
    its first. Iterators have Grain's `get_state` and `set_state`.

    >>> import pathlib, tempfile
    >>> text = pathlib.Path(tempfile.mkdtemp()) / "stories.txt"
    >>> _ = text.write_text("To be, or not to be.<|endoftext|>That is the question." * 20)
    >>> data = {"dataset_name": text, "split": "train", "batch_size": 4}
    >>> dataset = load_text_dataset(data, {"maxlen": 16}, {"num_epochs": 2}, "bytes", 256)
    >>> inputs, targets = next(iter(dataset))
    >>> inputs.shape, targets.dtype
    ((4, 16), dtype('int32'))
    """
    settings = read_settings(d_config, m_config, t_config, tokenizer_name, pad_token_id)
    mesh = jax.sharding.get_mesh()
    sharding: Any = None
    if not mesh.empty:
        axis = "data" if "data" in mesh.axis_names else mesh.axis_names[0]
        sharding = NamedSharding(mesh, PartitionSpec(axis))  # type: ignore[no-untyped-call]

    def place(batch: tuple[npt.NDArray[np.int32], ...]) -> tuple[jax.Array, ...]:
        if sharding is None:
            return tuple(jax.device_put(part) for part in batch)
        return tuple(
            jax.make_array_from_callback(part.shape, sharding, part.__getitem__) for part in batch
        )

    # The thread reads; placing is for whoever asks, because no thread may be inside JAX when a
    # program ends.
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=settings.prefetch)
    return grain.MapDataset.source(settings.batches).to_iter_dataset(options).map(place)
