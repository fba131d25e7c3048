"""Batches of a `TextDataSource` for JAX: through Grain, or through TensorFlow.

Each function imports its framework when called, so you need only one of the two frameworks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokenmill.compat.text_source import read_configs

if TYPE_CHECKING:
    import jax
    import tensorflow as tf
    from grain import IterDataset


def load_text_dataset(
    d_config: Any, m_config: Any, t_config: Any, tokenizer_name: str, pad_token_id: int | None
) -> IterDataset[Any]:
    """Make batches of (inputs, targets), each (batch_size, maxlen), as JAX arrays.

    Each configuration is an object or a mapping. `d_config` needs dataset_name; it may have split,
    batch_size, shuffle_seed, tokenizer_name, cache_size, cache_dir and prefetch_buffer_size.
    `m_config` needs maxlen, and `t_config` may have num_epochs. If `jax.set_mesh` has set a mesh,
    rows are divided over the mesh's axis `data` or, without such an axis, over its first axis.
    Iterators have Grain's `get_state` and `set_state`.

    >>> import pathlib, tempfile
    >>> text = pathlib.Path(tempfile.mkdtemp()) / "stories.txt"
    >>> _ = text.write_text("To be, or not to be.<|endoftext|>That is the question." * 20)
    >>> data = {"dataset_name": text, "split": "train", "batch_size": 4}
    >>> dataset = load_text_dataset(data, {"maxlen": 16}, {"num_epochs": 2}, "bytes", 256)
    >>> inputs, targets = next(iter(dataset))
    >>> inputs.shape, targets.dtype
    ((4, 16), dtype('int32'))
    """
    import grain
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    batches, prefetch = read_configs(d_config, m_config, t_config, tokenizer_name, pad_token_id)
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

    # Grain's thread only reads. The caller's thread moves arrays to devices: a program must not end
    # while another thread is inside JAX.
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=prefetch)
    return grain.MapDataset.source(batches).to_iter_dataset(options).map(place)


def load_text_dataset_tf_fallback(
    d_config: Any, m_config: Any, t_config: Any, tokenizer_name: str, pad_token_id: int | None
) -> tf.data.Dataset:
    """Make a `tf.data.Dataset` of the batches of `load_text_dataset`, in the same order.

    >>> import pathlib, tempfile
    >>> text = pathlib.Path(tempfile.mkdtemp()) / "stories.txt"
    >>> _ = text.write_text("To be, or not to be.<|endoftext|>That is the question." * 20)
    >>> data = {"dataset_name": text, "split": "train", "batch_size": 4}
    >>> dataset = load_text_dataset_tf_fallback(data, {"maxlen": 16}, {}, "bytes", 256)
    >>> next(iter(dataset))[0].shape
    TensorShape([4, 16])
    """
    import tensorflow as tf

    batches, prefetch = read_configs(d_config, m_config, t_config, tokenizer_name, pad_token_id)
    shape = (batches.batch_size, batches.source.max_length)

    def read(step: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], ...]:
        return batches[int(step)]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def place(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        parts = tf.numpy_function(read, [step], [tf.int32, tf.int32], stateful=False)
        return tuple(tf.ensure_shape(part, shape) for part in parts)

    return tf.data.Dataset.range(len(batches)).map(place).prefetch(prefetch)
