"""`load_text_dataset_tf_fallback`: the batches of `load_text_dataset` as a `tf.data.Dataset`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tokenmill.compat.text_source import read_settings


def load_text_dataset_tf_fallback(
    d_config: Any, m_config: Any, t_config: Any, tokenizer_name: str, pad_token_id: int | None
) -> tf.data.Dataset:
    """The same batches in the same order as `load_text_dataset` gives, by TensorFlow.

    >>> import pathlib, tempfile
    >>> text = pathlib.Path(tempfile.mkdtemp()) / "stories.txt"
    >>> _ = text.write_text("To be, or not to be.<|endoftext|>That is the question." * 20)
    >>> data = {"dataset_name": text, "split": "train", "batch_size": 4}
    >>> dataset = load_text_dataset_tf_fallback(data, {"maxlen": 16}, {}, "bytes", 256)
    >>> next(iter(dataset))[0].shape
    TensorShape([4, 16])
    """
    settings = read_settings(d_config, m_config, t_config, tokenizer_name, pad_token_id)
    batches = settings.batches
    shape = (batches.batch_size, settings.source.max_length)

    def read(step: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], ...]:
        return batches[int(step)]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def place(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        parts = tf.numpy_function(read, [step], [tf.int32, tf.int32], stateful=False)
        return tuple(tf.ensure_shape(part, shape) for part in parts)

    return tf.data.Dataset.range(len(batches)).map(place).prefetch(settings.prefetch)
