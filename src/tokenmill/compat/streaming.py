"""`StreamingDataset`: the ids in X.npy beside X.txt, by the name of the guide about memory maps.

The first 90% of the tokens are for training, the rest for validation, as the guide has it. Without
X.npy the text is tokenized in memory, to the same ids, and a warning tells the command that spares
it. A file whose ids are of an older text is warned of.
"""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any, Literal

from tokenmill.compat.encoding import encode_text
from tokenmill.dataset.opening import open as open_tokens
from tokenmill.errors import InputError, UsageError
from tokenmill.preparation.pretokenize import npy_path
from tokenmill.store.tokens import Tokens
from tokenmill.torch import TokenRows

_VAL_FRACTION = 0.1


class StreamingDataset(TokenRows):
    """The sequences of a part of a text, by index, as (inputs, targets); a map-style dataset.

    >>> import tempfile
    >>> text = Path(tempfile.mkdtemp()) / "x.txt"
    >>> _ = text.write_text("To be, or not to be: that is the question. " * 9)
    >>> import tokenmill
    >>> _ = tokenmill.pretokenize(text)
    >>> dataset = StreamingDataset(text, seq_length=8, verbose=False)
    >>> len(dataset), dataset[0].inputs.tolist()
    (13, [2514, 307, 11, 393, 407, 284, 307, 25])

    Parameters
    ----------
    path_to_txt
        The text; its ids are looked for beside it.
    tokenizer
        For a text without ids; gpt2 by default. A name, a path, or anything with `encode(text)`.
    seq_length, seq_len
        The tokens of a sequence, by either name.
    split
        train (the first 90%) or val.
    verbose
        Whether to print what is used.
    """

    def __init__(
        self,
        path_to_txt: str | os.PathLike[str],
        tokenizer: Any = None,
        seq_length: int = 128,
        split: Literal["train", "val"] = "train",
        *,
        seq_len: int | None = None,
        verbose: bool = True,
    ) -> None:
        if split not in ("train", "val"):
            raise UsageError(f"`split` is {split!r}; it must be train or val.")
        text = Path(path_to_txt)
        total, place = self._open(text, tokenizer, split, verbose)
        start, stop = (0, place) if split == "train" else (place, total)
        super().__init__(self.tokens, seq_len=seq_len or seq_length, order="sequential")
        if verbose:
            _say(f"   Total tokens in file: {total:,}")
            _say(
                f"   Using {split} portion: {stop - start:,} tokens (indices {start:,} to {stop:,})"
            )
            _say(
                f"StreamingDataset ({split}): {len(self):,} sequences from {stop - start:,} tokens"
            )

    def _open(self, text: Path, tokenizer: Any, split: str, verbose: bool) -> tuple[int, int]:
        """Find the tokens; tells how many there are in all, and how many of them for training."""
        path = npy_path(text)
        if path.exists():
            if verbose:
                _say(f"🚀 Using memory-mapped file: {path}")
                _say("   (This uses ~0MB RAM regardless of dataset size!)")
            _warn_if_older(path, text)
            data = open_tokens(path, val_fraction=_VAL_FRACTION)
            self.tokens = data[split]
            return len(data["train"]) + len(data["val"]), len(data["train"])
        if not text.is_file():
            raise InputError(f"There is neither {text} nor {path}. Check the path.")
        warnings.warn(
            f"No .npy file found: {path}. All of {text} is tokenized in memory; to do so once and "
            f"for all, type: tokenmill pretokenize {shlex.quote(str(text))}",
            stacklevel=3,
        )
        ids = encode_text("gpt2" if tokenizer is None else tokenizer, text.read_bytes())
        place = int(len(ids) * (1 - _VAL_FRACTION))
        self.tokens = Tokens.of(ids[:place] if split == "train" else ids[place:], split=split)
        return len(ids), place


def _warn_if_older(path: Path, text: Path) -> None:
    if text.exists() and path.stat().st_mtime_ns < text.stat().st_mtime_ns:
        warnings.warn(
            f"{path} is older than {text}, and may hold the ids of another text. To make it anew, "
            f"type: tokenmill pretokenize --restart {shlex.quote(str(text))}",
            stacklevel=4,
        )


def _say(line: str) -> None:
    """Print a line, also where the output cannot show all of it."""
    encoding = sys.stdout.encoding or "utf-8"
    print(line.encode(encoding, "replace").decode(encoding))
