"""Cleans text: the eight rules of docs/cleaning.md, on many documents at once."""

import re
import unicodedata

_REMOVED = re.compile("[\ufeff\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")


def clean(text: str) -> str:
    r"""One document, cleaned.

    >>> clean("\ufeffOne  two. \r\n\r\n\r\n    three\t\n")
    'One two.\n\n    three'
    """
    return clean_block(text.replace("\0", "").encode()).decode()


def clean_block(block: bytes, *, continues: bool = False, goes_on: bool = False) -> bytes:
    """Documents as UTF-8 joined by NUL bytes, each cleaned, still joined by NUL bytes."""
    if continues or goes_on:
        # A full stop composes with nothing and is never removed: it stands for the text beyond.
        whole = clean_block(b"." * continues + block + b"." * goes_on)
        return whole[continues : len(whole) - goes_on]
    text = _REMOVED.sub("", block.decode())
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x85", "\n")
    text = unicodedata.normalize("NFC", text)
    text = "\n".join([line.rstrip(" \t") for line in text.split("\n")])
    text = "\0".join([document.rstrip(" \t\n") for document in text.split("\0")])
    text = re.sub("(?<=[^ \t\n\0])  +", " ", text)
    text = re.sub("\n{3,}", "\n\n", text)
    return re.sub("(\\A|\0)\n+", r"\1", text).encode()
