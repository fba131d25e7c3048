"""`tokenmill tokenizer`: train a tokenizer on your own text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tokenmill.cli.console import quote, show, show_next, typed
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

    Memory use grows with the number of different words in the text. A few GB of text are enough:
    more text hardly improves the tokenizer. The same files always give the same tokenizer.

    Parameters
    ----------
    inputs
        Files, folders or globs to read: plain text, source code, JSON lines or Parquet. Files may
        be compressed (.gz, .zst, .bz2, .xz).
    vocab_size
        Number of ids in the vocabulary, such as 32000. Includes 256 ids for bytes and one id for
        <|endoftext|>.
    out
        File to write the tokenizer to.
    text_field
        Name of the JSON field or Parquet column that contains the text.
    """
    tokenizer = train_tokenizer(inputs, vocab_size=vocab_size, out=out, text_field=text_field)
    show(f"{out}: {count(tokenizer.vocab_size)} ids; {tokenizer.eot_id} is the end of text.")
    if tokenizer.vocab_size < vocab_size:
        show(f"The text has too few different words for {count(vocab_size)} ids.")
    texts = " ".join(map(quote, inputs))
    if text_field != "text":
        texts += f" --text-field {quote(text_field)}"
    show_next(f"tokenmill prepare {texts} --tokenizer {typed(out)} --out data/corpus")
    return 0
