"""The model of `tokenmill.training.model` in NumPy and float64, written from its docstring alone: slow,
one row, head and position at a time where that is plainest. An oracle for the backends."""

import numpy as np

EPSILON = 1e-6


def losses(shape, values, inputs, targets, documents=None):
    """The loss of each target (rows, length)."""
    found = np.zeros(targets.shape)
    for row, (ids, asked) in enumerate(zip(inputs, targets, strict=True)):
        logits = row_logits(shape, values, ids, None if documents is None else documents[row])
        largest = logits.max(axis=1, keepdims=True)
        sums = np.log(np.exp(logits - largest).sum(axis=1)) + largest[:, 0]
        found[row] = sums - logits[np.arange(len(asked)), asked]
    return found


def row_logits(shape, values, ids, documents=None):
    """The logits (length, vocab) of one row."""
    values = {name: value.astype(np.float64) for name, value in values.items()}
    x = values["embedding"][ids]
    if shape.embedding_width:
        x = x @ values["embedding_up"].T
    x = norm(x)
    for block in range(shape.layers):
        own = {
            name.split(".", 2)[2]: value
            for name, value in values.items()
            if name.startswith(f"blocks.{block}.")
        }
        x = x + attention(shape, own, norm(x), documents) @ own["attention.out"].T
        x = x + np.maximum(norm(x) @ own["mlp.up"].T, 0) ** 2 @ own["mlp.down"].T
    x = norm(x)
    if shape.embedding_width:
        x = norm(x @ values["head_down"].T)
    logits = cap(shape, x @ values["head"].T)
    if not shape.shortlist:
        return logits
    of_groups = cap(shape, x @ values["groups"].T)
    chances = np.zeros(logits.shape)
    for place, (ids, groups) in enumerate(zip(logits, of_groups, strict=True)):
        whole = np.exp(ids[: shape.shortlist]).sum() + np.exp(groups).sum()
        chances[place, : shape.shortlist] = np.exp(ids[: shape.shortlist]) / whole
        for number, group in enumerate(groups):
            start = shape.shortlist + number * 1024
            own = np.exp(ids[start : start + 1024])
            chances[place, start : start + 1024] = np.exp(group) / whole * own / own.sum()
    return np.log(chances)


def cap(shape, logits):
    return shape.softcap * np.tanh(logits / shape.softcap) if shape.softcap else logits


def attention(shape, own, x, documents):
    size, length = shape.head, len(x)
    query, key, value = (x @ own[f"attention.{name}"].T for name in ("query", "key", "value"))
    mixed = np.zeros((length, shape.width))
    for head in range(shape.heads):
        group = head // (shape.heads // shape.kv_heads)
        here, there = (slice(number * size, (number + 1) * size) for number in (head, group))
        q = norm(turn(shape, query[:, here]))
        k = norm(turn(shape, key[:, there]))
        for place in range(length):
            seen = [
                other
                for other in range(place + 1)
                if documents is None or documents[other] == documents[place]
            ]
            weights = np.exp(k[seen] @ q[place] / np.sqrt(size))
            mixed[place, here] = weights @ value[seen, there] / weights.sum()
    return mixed


def turn(shape, x):
    """Rotate each pair of numbers by its angle, as a complex number."""
    half = shape.head // 2
    speeds = shape.rope_base ** (-2 * np.arange(half) / shape.head)
    pairs = x[:, :half] + 1j * x[:, half:]
    turned = pairs * np.exp(-1j * np.outer(np.arange(len(x)), speeds))
    return np.concatenate([turned.real, turned.imag], axis=1)


def norm(x):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPSILON)
