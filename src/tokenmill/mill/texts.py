"""The texts of a chunk made fit to be tokenized: valid, and clean if asked for.

Many documents are checked and cleaned at once, joined by NUL bytes. Only a chunk with invalid
UTF-8 in it is looked at text by text.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.mill.clean import clean_block
from tokenmill.mill.plan import SourceFile
from tokenmill.mill.records import Chunk, Rejection, count_byte
from tokenmill.mill.settings import Settings
from tokenmill.mill.sources import BadFileError, is_utf8

__all__ = ["BAD_TEXT", "REPAIRED", "Prepared", "prepare_chunk"]

BAD_TEXT, REPAIRED = 4, 8  # flags of a text


@dataclass(slots=True)
class Prepared:
    """The documents of a chunk that are fit to be tokenized, cleaned."""

    texts: list[bytes]
    offsets: list[int]
    sizes: list[int]
    flags: list[int]


def prepare_chunk(chunk: Chunk, settings: Settings, source: SourceFile) -> Prepared:
    """Decode and clean a chunk. Documents with bad text leave it if they are to be dropped;
    of a document in pieces, the piece stays and is flagged."""
    texts, offsets = chunk.texts, chunk.offsets
    sizes = list(map(len, texts))
    flags = [0] * len(texts)
    joined = b"\0".join(texts)
    if not joined.isascii() and not is_utf8(joined):
        _judge_bad_text(chunk, settings, source, texts := list(texts), flags)
        keep = [
            i
            for i, flag in enumerate(flags)
            if flag != BAD_TEXT
            or (i == 0 and chunk.continues)
            or (i == len(texts) - 1 and chunk.goes_on)
        ]
        texts = [texts[i] for i in keep]
        offsets = [offsets[i] for i in keep]
        sizes = [sizes[i] for i in keep]
        flags = [flags[i] for i in keep]
        joined = b"\0".join(texts)
    if settings.normalize and texts:
        if count_byte(joined, 0) != len(texts) - 1:
            joined = b"\0".join([text.replace(b"\0", b"") for text in texts])
        joined = clean_block(joined, continues=chunk.continues, goes_on=chunk.goes_on)
        texts = joined.split(b"\0")
    return Prepared(texts, offsets, sizes, flags)


def _judge_bad_text(
    chunk: Chunk, settings: Settings, source: SourceFile, texts: list[bytes], flags: list[int]
) -> None:
    """Find the texts that are no UTF-8, and repair, flag or refuse them."""
    for i, text in enumerate(texts):
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            offset = chunk.offsets[i]
            place = offset + error.start if source.kind == "text" else offset
            if settings.on_bad_text == "refuse":
                raise BadFileError(
                    source.path,
                    f"invalid UTF-8 at {source.unit} {place} ({error.reason}); repair it, or see "
                    "--on-bad-text",
                ) from error
            texts[i] = text.decode("utf-8", "replace").encode()
            flags[i] = REPAIRED if settings.on_bad_text == "repair" else BAD_TEXT
            if flags[i] == BAD_TEXT:
                reason = f"invalid UTF-8 at {source.unit} {place}: {error.reason}"
                line = chunk.line_of(place)
                chunk.rejections.append(Rejection(line, offset, "invalid UTF-8", reason, len(text)))
