"""Encode the documents of a chunk slice by slice, so that memory does not grow with the chunk.

A document that arrives in pieces is encoded as one text: the end of a piece whose ids are not yet
settled is held until the next piece, so pieces need not be cut where tokens end.
"""

from __future__ import annotations

import numpy as np

from tokenmill.preparation.texts import Prepared
from tokenmill.sources.records import Chunk
from tokenmill.tokenizers import Ids, Offsets, Tokenizer
from tokenmill.tokenizers.id_arrays import join_batches, terminate_texts
from tokenmill.tokenizers.long_text import WINDOW, LongText, encode_long

_SLICE = 2 * WINDOW  # bytes of one text that are encoded at once
_MOST = 8 * _SLICE  # of several texts, which take less memory; copying ids per slice takes time
Run = tuple[Ids, Offsets]


class Encoder:
    """Encodes the chunks of a part, in order. `most` is how many bytes of a text may be held."""

    def __init__(self, tokenizer: Tokenizer, most: int) -> None:
        self._tokenizer = tokenizer
        self._most = most
        self._open: LongText | None = None

    def encode(self, prepared: Prepared, chunk: Chunk) -> Run:
        """The ids of all texts, each followed by a terminator; see `encode_terminated`."""
        sizes = prepared.text_sizes
        first, last = int(chunk.continues), len(sizes) - int(chunk.goes_on)
        whole = not first and last == len(sizes)
        if whole and int(sizes.max()) <= _SLICE and int(sizes.sum()) <= _MOST:
            return self._encode_some(prepared, 0, last)
        runs = []
        if first:
            ends_here = not (chunk.goes_on and len(sizes) == 1)
            runs.append(self._go_on(prepared.texts[0], ends_here=ends_here))
        ends = np.cumsum(sizes)
        while first < last:
            room = (ends[first - 1] if first else 0) + _SLICE
            stop = min(last, int(np.searchsorted(ends, room, side="right")))
            runs.append(self._encode_some(prepared, first, max(stop, first + 1)))
            first = max(stop, first + 1)
        if chunk.goes_on and first < len(sizes):
            self._open = None
            runs.append(self._go_on(prepared.texts[-1], ends_here=False))
        return runs[0] if len(runs) == 1 else join_batches(runs)

    def finish(self) -> Ids:
        """The remaining ids of a document that continues in the next part."""
        if self._open is None:
            return np.zeros(0, np.uint32)
        ids = self._open.finish()
        self._open = None
        return np.concatenate([np.zeros(0, np.uint32), *ids])

    def _encode_some(self, prepared: Prepared, first: int, stop: int) -> Run:
        if stop == first + 1 and prepared.text_sizes[first] > _SLICE:
            ids = encode_long(self._tokenizer, prepared.texts[first], self._most)
            return terminate_texts([ids], self._tokenizer.eot_id)
        if prepared.block is None:
            return self._tokenizer.encode_terminated(prepared.texts[first:stop])
        return self._tokenizer.encode_block(prepared.cut_block(first, stop))

    def _go_on(self, text: bytes, *, ends_here: bool) -> Run:
        """Encode a piece of a document that arrives in pieces."""
        if self._open is None:
            self._open = LongText(self._tokenizer, self._most)
        ids = self._open.feed(text)
        if ends_here:
            ids += self._open.finish()
            self._open = None
        joined = np.concatenate([np.zeros(0, np.uint32), *ids])
        return terminate_texts([joined], self._tokenizer.eot_id)
