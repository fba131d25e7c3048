"""A batch of texts as one flat run of ids in which every text ends with a terminator.

That is what goes to disk, so a tokenizer that can make it in one step does (`encode_terminated`,
a method); for any other tokenizer it is built here from `encode_batch`, at the price of one more
copy of the ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenmill.tokenizers.protocol import Ids, Offsets, Tokenizer


def encode_terminated(tokenizer: Tokenizer, texts: Sequence[bytes]) -> tuple[Ids, Offsets]:
    """The ids of all texts, each followed by one slot that holds the end-of-text id.

    The slot is there, with 0 in it, also where a tokenizer has no end-of-text id. The
    `len(texts) + 1` offsets count the slots: text `i` is `ids[offsets[i] : offsets[i + 1] - 1]`.

    >>> from tokenmill.tokenizers import load_tokenizer
    >>> ids, offsets = encode_terminated(load_tokenizer("bytes"), [b"ab", b"", b"c"])
    >>> ids.tolist(), offsets.tolist()
    ([97, 98, 256, 256, 99, 256], [0, 3, 4, 6])
    """
    own = getattr(tokenizer, "encode_terminated", None)
    if own is not None:
        ids, offsets = own(texts)
        return ids, offsets
    ids, offsets = tokenizer.encode_batch(texts)
    slots = np.arange(len(texts) + 1, dtype=np.int64)
    terminated = np.empty(len(ids) + len(texts), dtype=np.uint32)
    is_text = np.ones(len(terminated), dtype=bool)
    ends = offsets[1:] + slots[:-1]
    is_text[ends] = False
    terminated[is_text] = ids
    terminated[ends] = tokenizer.eot_id or 0
    return terminated, offsets + slots


def encode_block(tokenizer: Tokenizer, block: bytes) -> tuple[Ids, Offsets]:
    """As `encode_terminated`, for texts joined by NUL bytes, of which none has any in it.

    >>> from tokenmill.tokenizers import load_tokenizer
    >>> ids, offsets = encode_block(load_tokenizer("bytes"), b"ab\\0\\0c")
    >>> ids.tolist(), offsets.tolist()
    ([97, 98, 256, 256, 99, 256], [0, 3, 4, 6])
    """
    own = getattr(tokenizer, "encode_block", None)
    if own is not None:
        ids, offsets = own(block)
        return ids, offsets
    return encode_terminated(tokenizer, block.split(b"\0"))


def drop_terminators(ids: Ids, offsets: Offsets) -> tuple[Ids, Offsets]:
    """The reverse: the same ids and offsets without the slots.

    >>> ids, offsets = drop_terminators(np.array([7, 8, 0, 0], np.uint32), np.array([0, 3, 4]))
    >>> ids.tolist(), offsets.tolist()
    ([7, 8], [0, 2, 2])
    """
    is_text = np.ones(len(ids), dtype=bool)
    is_text[offsets[1:] - 1] = False
    return ids[is_text], offsets - np.arange(len(offsets), dtype=np.int64)


def concatenate(runs: Sequence[tuple[Ids, Offsets]]) -> tuple[Ids, Offsets]:
    """Several batches as one.

    >>> one = np.array([5, 0], np.uint32), np.array([0, 2])
    >>> ids, offsets = concatenate([one, one])
    >>> ids.tolist(), offsets.tolist()
    ([5, 0, 5, 0], [0, 2, 4])
    """
    ids = np.concatenate([np.zeros(0, np.uint32), *(ids for ids, _ in runs)])
    lengths = [np.diff(offsets) for _, offsets in runs]
    return ids, np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths]))


def gather(pieces: Sequence[Ids], eot_id: int | None) -> tuple[Ids, Offsets]:
    """Ids text by text as one flat run with terminators.

    >>> ids, offsets = gather([np.array([5, 6], np.uint32), np.array([], np.uint32)], 9)
    >>> ids.tolist(), offsets.tolist()
    ([5, 6, 9, 9], [0, 3, 4])
    """
    offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
    np.cumsum([len(piece) + 1 for piece in pieces], out=offsets[1:])
    ids = np.empty(int(offsets[-1]), dtype=np.uint32)
    for piece, start in zip(pieces, offsets.tolist(), strict=False):
        ids[start : start + len(piece)] = piece
    ids[offsets[1:] - 1] = eot_id or 0
    return ids, offsets
