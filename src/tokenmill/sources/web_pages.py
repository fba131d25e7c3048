"""Make text of HTML with resiliparse: the main content, without navigation and boilerplate.

The text depends on the version of resiliparse, so `describe_extractor` is part of the names of
unfinished work. It extracts about 20 MB of HTML a second on one core.
"""

from __future__ import annotations

import codecs
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any


class MissingExtractorError(Exception):
    """resiliparse is not installed."""

    def __init__(self) -> None:
        super().__init__("text in HTML needs resiliparse: pip install 'tokenmill[warc]'")


def describe_extractor() -> str:
    """Return the name and version of what makes text of HTML."""
    try:
        return f"resiliparse {version('resiliparse')}"
    except PackageNotFoundError:
        return ""


def extract_text(html: bytes, charset: str | None) -> bytes:
    """Return the text of a page in UTF-8. `charset` is its encoding, if it is known."""
    extract, detect = _load()
    if charset is None or not _is_known(charset):
        charset = detect(html)
    text: str = extract(
        html.decode(charset, "replace"),
        main_content=True,
        alt_texts=False,
        preserve_formatting=True,
    )
    return text.encode("utf-8", "replace")


def decode_text(content: bytes, charset: str | None) -> bytes:
    """Return plain text in UTF-8. If its encoding is not known, it is left as it is."""
    if charset is None or not _is_known(charset):
        return content
    return content.decode(charset, "replace").encode()


def _is_known(charset: str) -> bool:
    try:
        codecs.lookup(charset)
        "".encode(charset)
    except (LookupError, ValueError):
        return False
    return True


@cache
def _load() -> tuple[Any, Any]:
    try:
        from resiliparse.extract.html2text import extract_plain_text
        from resiliparse.parse.encoding import detect_encoding
    except ImportError:
        raise MissingExtractorError from None

    def detect(html: bytes) -> str:
        found = detect_encoding(html, from_html_meta=True)
        return found if found and _is_known(found) else "utf-8"

    return extract_plain_text, detect
