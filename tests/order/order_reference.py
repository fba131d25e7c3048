"""A second implementation of docs/order.md in plain Python integers: the oracle of these tests.

`python tests/order/order_reference.py > tests/golden/order.json` wrote the golden values.
"""

from __future__ import annotations

import json
import math
from fractions import Fraction

import xxhash

LIMIT = 2**64
WEYL = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB


def make_key(*parts):
    joined = b""
    for part in parts:
        if isinstance(part, str):
            letter, text = b"s", part.encode("utf-8", "surrogatepass")
        else:
            letter, text = b"i", b"%d" % part
        joined += letter + len(text).to_bytes(8, "little") + text
    return int.from_bytes(xxhash.xxh3_64(joined, seed=0).digest(), "big")


def mix(x):
    x = (x ^ x >> 30) * FIRST % LIMIT
    x = (x ^ x >> 27) * SECOND % LIMIT
    return x ^ x >> 31


def derive(key, n):
    return mix((key + (n + 1) * WEYL) % LIMIT)


def permute(place, size, key):
    height = math.isqrt(size)
    while height * height < size or height % 2:
        height += 1
    width = math.ceil(Fraction(size, height))
    while True:
        place = one_pass(place, size, key, height, width)
        if place < size:
            return place


def one_pass(x, size, key, height, width):
    row, column = divmod(x, width)
    for i in range(32 if size < 64 else 16 if size < 4096 else 8):
        round_key = (mix(key) + i * WEYL) % LIMIT
        if i % 2 == 0:
            row = (row + amount(column, round_key, height)) % height
        else:
            column = (column + amount(row, round_key, width)) % width
    return row * width + column


def amount(c, round_key, side):
    h = (c ^ round_key) * FIRST % LIMIT
    h = (h ^ h >> 32) * SECOND % LIMIT
    return (h >> 32) * side >> 32


def row_start(
    n, *, tokens, seq_len, seed=0, name="", kind="shuffled", block_rows=None, group_blocks=None
):
    key = make_key("rows", kind, seed, name)
    if kind == "random":
        return derive(key, n) % (tokens - seq_len)
    windows = (tokens - 1) // seq_len
    epoch, place = divmod(n, windows)
    if kind == "shuffled":
        place = permute(place, windows, derive(key, epoch))
    if kind == "blocks":
        block_rows = block_rows or max(1, 2**19 // seq_len)
        place = window_by_blocks(
            place, windows, block_rows, group_blocks or 256, derive(key, epoch)
        )
    return place * seq_len


def window_by_blocks(place, windows, block_rows, group_blocks, epoch_key):
    blocks = math.ceil(Fraction(windows, block_rows))
    last_size = windows - (blocks - 1) * block_rows
    last_position = derive(epoch_key, 1) % blocks
    with_last = last_position // group_blocks
    short = block_rows - last_size

    def first_place(group):
        return min(group * group_blocks * block_rows - (group > with_last) * short, windows)

    low, high = 0, blocks  # groups before `low` start at or before the place
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if first_place(middle) <= place else (low, middle)
    size = first_place(low + 1) - first_place(low)
    row = permute(place - first_place(low), size, derive(epoch_key, low + 2))
    others = size - last_size if low == with_last else size
    if row >= others:
        return (blocks - 1) * block_rows + row - others
    position, offset = divmod(row, block_rows)
    position += low * group_blocks - (low > with_last)
    return permute(position, blocks - 1, derive(epoch_key, 0)) * block_rows + offset


def share_slots(weights, slots):
    fractions = [Fraction(weight) for weight in weights]
    quotas = [fraction * slots / sum(fractions) for fraction in fractions]
    shares = [quota.numerator // quota.denominator for quota in quotas]
    while sum(shares) < slots:
        left = [quota - share for quota, share in zip(quotas, shares, strict=True)]
        shares[left.index(max(left))] += 1
    return shares


def lay_out(key, shares):
    """The source of each slot of a block."""
    slots = sorted(range(sum(shares)), key=lambda s: (derive(key, s) >> 20, s))
    sources = [None] * len(slots)
    for source, share in enumerate(shares):
        for _ in range(share):
            sources[slots.pop(0)] = source
    return sources


def mixture(rows, *, phases, seed=0, block):
    """(source, row in the source) of the first rows of a run."""
    given = [0] * len(phases[0][1])
    assigned = []
    ends = [first for first, _ in phases[1:]] + [math.inf]
    for (first, weights), end in zip(phases, ends, strict=True):
        shares = share_slots(weights, block)
        phase_key = make_key("mixture", seed, first)
        for n in range(first, min(end, rows)):
            number, slot = divmod(n - first, block)
            if slot == 0:
                sources = lay_out(derive(phase_key, number), shares)
            assigned.append((sources[slot], given[sources[slot]]))
            given[sources[slot]] += 1
    return assigned


def golden():
    keys = [["rows", "shuffled", 1, "web"], [-5, "é"], [2**70, ""], []]
    sizes = [1, 2, 3, 10, 63, 64, 1000, 4095, 4096, 10**6 + 3, 2**40 + 1, 2**62]
    permutations = [
        (size, key, [0, size // 3, size // 2, size - 1])
        for size in sizes
        for key in (0, 1, 0xFEDCBA9876543210)
    ]
    orders = [
        {"tokens": 1_000, "seq_len": 64, "seed": 1, "name": "web"},
        {"tokens": 10**12, "seq_len": 2048, "seed": 2, "name": "code"},
        {"tokens": 10**12, "seq_len": 2048, "seed": 2, "name": "code", "kind": "blocks"},
        {
            "tokens": 1_000,
            "seq_len": 9,
            "seed": -3,
            "kind": "blocks",
            "block_rows": 7,
            "group_blocks": 5,
        },
        {"tokens": 1_000, "seq_len": 9, "kind": "blocks", "block_rows": 4, "group_blocks": 1},
        {"tokens": 1_000, "seq_len": 9, "kind": "sequential"},
        {"tokens": 1_000, "seq_len": 9, "seed": 4, "kind": "random"},
    ]
    rows = [*range(20), 110, 111, 112, 10**9, 10**15]
    mixtures = [
        {"phases": [[0, [0.5, 0.3, 0.2]]], "seed": 7, "block": 10_000},
        {"phases": [[0, [3, 1, 0.5]], [37, [0, 1, 1]], [60, [2, 0, 1]]], "seed": 8, "block": 16},
    ]
    return {
        "keys": [{"parts": parts, "key": make_key(*parts)} for parts in keys],
        "permutations": [
            {
                "size": size,
                "key": key,
                "places": places,
                "to": [permute(p, size, key) for p in places],
            }
            for size, key, places in permutations
        ],
        "rows": [
            {"order": order, "rows": rows, "starts": [row_start(n, **order) for n in rows]}
            for order in orders
        ],
        "mixtures": [{"order": order, "assigned": mixture(100, **order)} for order in mixtures],
    }


if __name__ == "__main__":
    entries = (
        f'"{name}": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]"
        for name, cases in golden().items()
    )
    print("{\n" + ",\n".join(entries) + "\n}")
