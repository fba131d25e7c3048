"""`tokenmill tokenizer`: train a tokenizer on your own text."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tokenmill.cli.console import show, show_next, typed
from tokenmill.preparation.train_tokenizer import train_tokenizer
from tokenmill.wording import count

app = App(name="tokenizer", help="Train a tokenizer.")


@app.command
def train(
    *inputs: Annotated[str, Parameter(name="INPUT", required=True, json_list=False)],
    vocab_size: int,
    out: Path = Path("tokenizer.json"),
    text_field: str = "text",
) -> int:
    """Train a byte-level BPE tokenizer on text.

    Memory grows with the number of different words. A sample of a few GB is enough: more text
    hardly improves the result. The same files give the same tokenizer.

    Parameters
    ----------
    inputs
        Files, folders and globs: text, source code, JSON lines, Parquet; .gz .zst .bz2 .xz too.
    vocab_size
        Number of ids, including the 256 bytes and <|endoftext|>, such as 32000.
    out
        The tokenizer.json to write.
    text_field
        The JSON field, or Parquet column, with the text.
    """
    tokenizer = train_tokenizer(inputs, vocab_size=vocab_size, out=out, text_field=text_field)
    show(f"{out}: {count(tokenizer.vocab_size)} ids; {tokenizer.eot_id} is the end of text.")
    if tokenizer.vocab_size < vocab_size:
        show(f"The text has too few different words for {count(vocab_size)} ids.")
    texts = " ".join(map(shlex.quote, inputs))
    if text_field != "text":
        texts += f" --text-field {shlex.quote(text_field)}"
    show_next(f"tokenmill prepare {texts} --tokenizer {typed(out)} --out data/corpus")
    return 0
