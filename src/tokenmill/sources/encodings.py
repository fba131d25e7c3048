"""Find the encoding of bytes that are not UTF-8, and convert them to UTF-8.

UTF-16 and UTF-32 are recognized with certainty, by their byte order mark or by the places of their
NUL bytes. The name of an 8-bit or East Asian encoding is a guess that the user has to check.

Converting takes a block of memory. A byte that is invalid in its encoding becomes a byte that is
invalid in UTF-8, so that all invalid text is treated alike later.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from unicodedata import category

_MARKS = (  # UTF-32 first: its little-endian mark begins with the mark of UTF-16
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
# For each encoding: the bytes per code unit, and the index of the most significant one.
_WIDE = {"UTF-32LE": (4, 3), "UTF-32BE": (4, 0), "UTF-16LE": (2, 1), "UTF-16BE": (2, 0)}
_STOPS_LE = tuple(stop.encode("utf-16-le") for stop in "、。")
_STOPS_BE = tuple(stop.encode("utf-16-be") for stop in "、。")
_HEAD = 4096
_FEW = 32  # fewer than one NUL byte in this many bytes may be accidental
_SAMPLE = 1 << 14  # bytes; more makes the guess slower but hardly better
_LEAST = 4  # bytes beyond ASCII; with fewer, a guess is worthless
_GUESSED = {  # Python's name of each codec, and iconv's; the most common first
    "cp1252": "WINDOWS-1252",
    "cp1250": "WINDOWS-1250",
    "cp1251": "WINDOWS-1251",
    "koi8_r": "KOI8-R",
    "cp1253": "WINDOWS-1253",
    "cp1255": "WINDOWS-1255",
    "cp1256": "WINDOWS-1256",
    "cp932": "SHIFT_JIS",
    "euc_jp": "EUC-JP",
    "gb18030": "GB18030",
    "big5": "BIG5",
    "cp949": "EUC-KR",
}


def find_wide_encoding(head: bytes) -> str | None:
    """Recognise UTF-16 or UTF-32 by the first bytes of a text. Returns None for other encodings.

    >>> find_wide_encoding("words".encode("utf-16-le")), find_wide_encoding(b"words")
    ('UTF-16LE', None)
    """
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    head = head[:_HEAD]
    if head.count(0) * _FEW >= len(head):
        for name, (width, high) in _WIDE.items():
            # In the right byte order, few characters have a low byte of 0; in the wrong one, most do.
            low = head[width - 1 - high :: width].count(0)
            if head[high::width].count(0) > 4 * low and _decode(head, name):
                return name
    # Chinese and Japanese have few NUL bytes. But their comma U+3001 and full stop U+3002 contain a
    # control byte (1 or 2), which text in other encodings hardly ever has.
    for name, stops in (("UTF-16LE", _STOPS_LE), ("UTF-16BE", _STOPS_BE)):
        if any(stop in head for stop in stops) and {"、", "。"} & _decode(head, name):
            return None if _decode(head, "UTF-8") else name
    return None


def _decode(head: bytes, encoding: str) -> set[str]:
    """Return the distinct characters of a text, or an empty set if it is not in this encoding."""
    try:
        characters = set(codecs.getincrementaldecoder(encoding)().decode(head))
    except UnicodeDecodeError:
        return set()
    odd = {"Cc", "Cn", "Co"}  # control, unassigned and private-use characters do not occur in text
    plain = all(
        character in "\t\n\r\f" or category(character) not in odd for character in characters
    )
    return characters if plain else set()


AUTO = "auto"
_INVALID = "tokenmill.invalid"  # how codecs treat invalid bytes
_GROWTH = 4  # a byte in another encoding is less than so many bytes of UTF-8
# Python converts these only as a whole, or into something that is not text.
_REFUSED = frozenset(
    "utf-7 idna punycode unicode-escape raw-unicode-escape undefined mbcs oem".split()
)


def name_encoding(name: str) -> str | None:
    """Return Python's name of an encoding; None if it is unknown, or cannot be read in pieces.

    >>> name_encoding("Windows-1252"), name_encoding("SHIFT_JIS"), name_encoding("rot13")
    ('cp1252', 'shift_jis', None)
    """
    try:
        codec = codecs.lookup(name)
        "".encode(name)  # refuses codecs that do not convert text
    except (LookupError, ValueError):  # a name with a NUL byte is a ValueError
        return None
    if codec.name.replace("_", "-") in _REFUSED or codec.incrementaldecoder is None:
        return None
    return codec.name


def choose_encoding(head: bytes, named: str) -> str | None:
    r"""Return the encoding to convert a text from; None if it is UTF-8.

    `head` are its first bytes. A byte order mark takes precedence over the encoding that the user
    `named`. With "auto", UTF-16 and UTF-32 are recognized.

    >>> choose_encoding("words".encode("utf-16-le"), "auto"), choose_encoding(b"words", "auto")
    ('UTF-16LE', None)
    >>> choose_encoding(b"words", "cp1252"), choose_encoding(b"\xef\xbb\xbfwords", "cp1252")
    ('cp1252', None)
    """
    if named == AUTO:
        return find_wide_encoding(head)
    if marked := next((name for mark, name in _MARKS if head.startswith(mark)), None):
        return marked
    if named in ("utf-16", "utf-32"):  # without a mark, Python does not read these in pieces
        return find_wide_encoding(head) or f"{named}-le"
    return None if named == "utf-8" or head.startswith(codecs.BOM_UTF8) else named


def convert(blocks: Iterable[bytes], encoding: str, block_bytes: int) -> Iterator[bytes]:
    r"""Yield a text in UTF-8, in blocks of at most `block_bytes`.

    >>> b"".join(convert([b"gr\xf6", b"\xdfer"], "latin-1", 100)).decode()
    'größer'
    """
    decoder = codecs.getincrementaldecoder(encoding)(_INVALID)
    width = max(1, block_bytes // _GROWTH)
    for block in blocks:
        for start in range(0, len(block), width):
            if converted := decoder.decode(block[start : start + width]).encode("utf-8", _INVALID):
                yield converted
    if rest := decoder.decode(b"", True).encode("utf-8", _INVALID):
        yield rest


def _keep_invalid(error: UnicodeError) -> tuple[str | bytes, int]:
    """Decode each invalid byte as a lone surrogate, and encode this as a byte that is not UTF-8."""
    if isinstance(error, UnicodeDecodeError):
        return "\udcff" * (error.end - error.start), error.end
    if isinstance(error, UnicodeEncodeError):
        return b"\xff" * (error.end - error.start), error.end
    raise error


codecs.register_error(_INVALID, _keep_invalid)


def guess_encoding(sample: bytes) -> str | None:
    """Guess the encoding of text that is not UTF-8. Returns its name for iconv, or None if unclear.

    >>> guess_encoding("Привет, как дела? Всё хорошо, спасибо.".encode("koi8-r"))
    'KOI8-R'
    """
    sample = sample[:_SAMPLE]
    if sum(byte >= 0x80 for byte in sample) < _LEAST:
        return None
    from charset_normalizer import from_bytes

    matches = from_bytes(sample, cp_isolation=list(_GUESSED), preemptive_behaviour=False)
    if not matches:
        return None
    best = matches[0]
    fitting = set(best.could_be_from_charset)
    for match in matches:
        # By chance, Western European text can score higher as Central European. So if one of them is
        # the best, the other is accepted too, and the more common one is chosen.
        latin = {best.encoding, match.encoding} == {"cp1250", "cp1252"}
        if match.chaos <= best.chaos and (latin or match.coherence == best.coherence):
            fitting.update(match.could_be_from_charset)
    return next((name for codec, name in _GUESSED.items() if codec in fitting), None)
