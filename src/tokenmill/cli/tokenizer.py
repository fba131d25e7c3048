"""`tokenmill tokenizer`: train a tokenizer on text of one's own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tokenmill.cli.console import count, stdout
from tokenmill.tokenizers import train_tokenizer

__all__ = ["app", "train"]

app = App(name="tokenizer", help="Train a tokenizer.")


@app.command
def train(
    *inputs: Annotated[str, Parameter(negative=())],
    vocab_size: int,
    out: Path = Path("tokenizer.json"),
) -> int:
    """Train a byte-level BPE tokenizer on plain text.

    Memory grows with the number of different words in the text, so a sample of a few GB is
    enough and more is hardly better. The same files give the same tokenizer.

    Parameters
    ----------
    inputs
        Text files, folders with `*.txt` files, or patterns such as `'texts/*.md'`.
    vocab_size
        How many ids, the 256 bytes and <|endoftext|> included, such as 32000.
    out
        The tokenizer.json to write.
    """
    tokenizer = train_tokenizer(inputs, vocab_size=vocab_size, out=out)
    stdout.print(
        f"{out}: {count(tokenizer.vocab_size)} ids, end of text {tokenizer.eot_id}, "
        f"fingerprint {tokenizer.fingerprint}"
    )
    if tokenizer.vocab_size < vocab_size:
        stdout.print(f"The text has too few words for the {count(vocab_size)} ids asked for.")
    texts = " ".join(map(shlex.quote, inputs))
    stdout.print(
        f"Next: tokenmill prepare {texts} --tokenizer {shlex.quote(str(out))} --out data/corpus"
    )
    return 0
