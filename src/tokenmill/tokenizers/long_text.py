r"""Encode one long text piece by piece, in bounded memory, with exactly the ids of the whole text.

`LongText` works with any tokenizer. It asks `Tokenizer.settle` which ids at the start of the text are
final, and holds the rest of the text until more arrives. `Settler` implements `settle` for byte-level
BPE.

Most texts have a place to cut (`cutting.py`). But there is none inside one long match of the
pre-tokenizer's pattern, such as 50 MB of `a` or of Chinese without punctuation. Merging such a run
takes 25 times its size in memory, so it is merged in windows. Here is why that gives the same ids.

Byte-pair merging repeatedly merges the pair with the lowest rank (the leftmost, if there are several)
until no pair can be merged. Let E(x) be the resulting tokens of x. Three facts:

(1) If E(uv) has a token boundary between u and v, then E(uv) = E(u)E(v). Proof: no merge crossed the
    boundary, and a merge that was the first choice in uv was also the first choice in its own half.
(2) If E(pt) = E(p)t and E(ts) = tE(s) for a token t, then E(pts) = E(p)tE(s). Proof: suppose that a
    merge crosses a boundary of t. Take the first such merge, and say it crosses the boundary with p.
    Until then, all choices in pt are the same as without s, so this merge would also happen in E(pt),
    a contradiction. The boundary with s is symmetric.
(3) Every token has at most L bytes. So for any continuation z, E(wz) has a token boundary n that is
    among the last L bytes of w or at the end of w. By (1), E(wz) begins with E(w[:n]).

Encode the window w once. Choose a place u near its end, and encode w[u:n] for every n that (3) allows.
Look for a token t that E(w) and all of these results have at the same place. If there is one, then by
(1) and (2) every E(w[:n]) begins with the tokens of E(w) up to and including t. By (3), so does E(wz)
for every z: these tokens are final.

Everything that is encoded must be valid UTF-8, so n must be the start of a character. In (3), n is
the start of the token that crosses the end of w. So a token that begins or ends inside a character
must never cross the end of w. To ensure that, w never ends between two bytes that occur side by side
in such a token (`_find_straddled_pairs`).

With `ignore_merges`, and in tiktoken, a match that is itself a token is not merged. That cannot
happen here: every window is longer than any token. The tests compare with two libraries, and would
fail if either of them merged differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from unicodedata import is_normalized

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TooLongError
from tokenmill.tokenizers.base import NO_IDS, Tokenizer
from tokenmill.tokenizers.cutting import LETTER, MARK, NUMBER, CutRules, find_character_start
from tokenmill.tokenizers.id_arrays import Ids, Offsets

WINDOW = 512 << 10  # bytes encoded at once; gigatoken needs up to 25 times as much for one word
_LEAST_WINDOW = 1
_LONGEST = 256  # bytes of a token; with longer tokens, windows would cost too much
_OVERLAPS = (8, 64)  # distances to try from u to the end of w, in multiples of the longest token


class LongText:
    """Encodes one text piece by piece.

    `window` bytes are encoded at once, or more if no ids are final yet. Text without final ids is
    held in memory. `feed` raises a TooLongError if it would hold more than `most` bytes and more
    than two windows. Both numbers are divided by the tokenizer's `weight`.
    """

    def __init__(self, tokenizer: Tokenizer, most: int, *, window: int = WINDOW) -> None:
        self._tokenizer = tokenizer
        self._window = max(_LEAST_WINDOW, window // tokenizer.weight)
        self._most = most // tokenizer.weight
        self._rest = b""
        self._tried = 0  # bytes at the start of `_rest` that were tried and have no final ids

    def feed(self, text: bytes) -> list[Ids]:
        """Add some valid UTF-8. Returns the ids that are now final."""
        data = self._rest + text if self._rest else text
        found: list[Ids] = []
        start = 0
        size = max(self._window, 2 * self._tried)
        while len(data) - start > size:
            stop = find_character_start(data, start + size)
            ids, taken = self._tokenizer.settle(data[start:stop])
            if taken:
                found.append(ids)
                start += taken
                self._tried, size = 0, self._window
            else:
                self._tried, size = size, 2 * size
        self._rest = data[start:] if start else data
        if len(self._rest) > max(self._most, 2 * self._window):
            size, name = len(self._rest), self._tokenizer.name
            raise TooLongError(
                size * self._tokenizer.weight,
                f"{size:,} bytes of a document cannot be cut for the tokenizer {name}",
            )
        return found

    def finish(self) -> list[Ids]:
        """End the text. Returns the remaining ids."""
        rest, self._rest, self._tried = self._rest, b"", 0
        return [self._tokenizer.encode_batch([rest])[0]] if rest else []


class Settler:
    """Finds the final ids at the start of a text: those that no following text can change."""

    def __init__(
        self,
        rules: CutRules,
        encode_batch: Callable[[Sequence[bytes]], tuple[Ids, Offsets]],
        spellings: Sequence[bytes | None],
        *,
        merging: bool,
    ) -> None:
        self._rules = rules
        self._encode = encode_batch
        self._lengths = np.array([len(spelling or b"") for spelling in spellings], np.int64)
        self._longest = int(self._lengths.max())
        self._merging = merging and self._longest <= _LONGEST
        self._straddled = _find_straddled_pairs(spellings)

    def settle(self, text: bytes) -> tuple[Ids, int]:
        """Return the final ids at the start of a text, and the number of bytes that they cover."""
        cut = self._rules.find_last_cut(text)
        if not cut and self._merging:
            return self._settle_run(text)
        return self._encode([text[:cut]])[0], cut

    def _settle_run(self, text: bytes) -> tuple[Ids, int]:
        nothing = NO_IDS, 0
        places = _find_characters(text)
        end = next(
            (
                int(place)
                for place in places[:0:-1][: self._longest]
                if (text[place - 1] << 8 | text[place]) not in self._straddled
            ),
            0,
        )
        window = text[:end]
        if not window:
            return nothing
        kind, start = self._rules.find_last_run(window)
        if kind == NUMBER and self._rules.family in ("cl100k", "o200k"):
            cut = self._rules.cut_numbers_by_three(window) if start == 0 else 0
            return self._encode([window[:cut]])[0], cut
        if kind == 0 or not self._is_matched_alone(window, kind, start):
            return nothing
        if self._rules.nfc and not is_normalized("NFC", window.decode()):
            return nothing  # positions in the text and in the encoded bytes would differ
        ids = self._encode([window])[0]
        ends = np.cumsum(self._lengths[ids])
        if ends[-1] != len(window):
            return nothing
        character_ends = ends[(np.frombuffer(text, np.uint8)[ends] & 0xC0) != 0x80]
        for times in _OVERLAPS:
            # Put u at the end of a token. Then even in a run of one repeated letter, encoding from
            # u gives tokens at the same places as encoding the whole window.
            near = character_ends[
                : np.searchsorted(character_ends, end - times * self._longest, side="right")
            ]
            if not len(near) or near[-1] < start:
                return nothing
            settled = self._common_end(window, int(near[-1]), places, ends)
            if settled:
                return ids[: np.searchsorted(ends, settled) + 1], settled
        return nothing

    def _is_matched_alone(self, window: bytes, kind: int, start: int) -> bool:
        """Return whether the pattern matches the end of `window` regardless of the text before it.

        The end is a run from `start` on, whose characters all belong to the group `kind`. With
        every family except o200k, the result is always True. o200k can match letters without case
        together with the letters before them. So with o200k, a run of letters without case must
        not follow a letter, a combining mark or a character of unknown class.
        """
        if self._rules.family != "o200k" or kind != LETTER or start == 0:
            return True
        return int(self._rules.classify(window[:start])[-1]) > MARK

    def _common_end(
        self, window: bytes, start: int, places: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> int:
        """Return where the last final token of a window ends; 0 if no token is final.

        A token is final if no following text can change it. This token is t in the module's proof;
        `window` is w and `start` is u. `places` are the offsets where characters start, and `ends`
        those where tokens of the window end. A token that ends inside a character does not count,
        because the rest of the text would not be valid UTF-8.
        """
        low = np.searchsorted(places, len(window) - self._longest)
        stops = places[low : np.searchsorted(places, len(window), side="right")].tolist()
        common = _find_spans(start, ends[np.searchsorted(ends, start, side="right") :])
        ids, offsets = self._encode([window[start:stop] for stop in stops])
        for i in range(len(stops)):
            lengths = self._lengths[ids[offsets[i] : offsets[i + 1]]]
            common &= _find_spans(start, start + np.cumsum(lengths))
        whole = set(places[np.searchsorted(places, start) :].tolist())
        return max((end for _, end in common if end in whole), default=0)


def _find_spans(start: int, ends: npt.NDArray[np.int64]) -> set[tuple[int, int]]:
    """Return the (start, end) of each of some consecutive tokens. The first starts at `start`."""
    return set(pairwise([start, *ends.tolist()]))


def _find_characters(text: bytes) -> npt.NDArray[np.int64]:
    """Return the offsets of the bytes where characters start."""
    starts = np.flatnonzero((np.frombuffer(text, np.uint8) & 0xC0) != 0x80)
    return starts.astype(np.int64)


def _find_straddled_pairs(spellings: Sequence[bytes | None]) -> frozenset[int]:
    """Return the pairs of bytes between which the window w of the module's proof may not end.

    These are the pairs of neighbouring bytes in tokens that begin or end inside a character. Only
    pairs whose second byte starts a character count. A pair is the number `first << 8 | second`.
    """
    pairs: set[int] = set()
    for spelling in spellings:
        if spelling is None or spelling.isascii():
            continue
        try:
            spelling.decode()
        except UnicodeDecodeError:
            pairs.update(
                before << 8 | after for before, after in pairwise(spelling) if after & 0xC0 != 0x80
            )
    return frozenset(pairs)
