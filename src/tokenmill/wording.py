"""Numbers, sizes and times in readable form, and text that is safe to print.

Text in datasets and names of files may be untrusted. `harmless` replaces control characters with
visible escapes, so that text can neither move the cursor nor recolour the terminal. It also
replaces characters that are invisible or reorder text. `one_line` is for names: it escapes newlines
too, so that a name cannot look like a line of output.
"""

from __future__ import annotations

import re
import reprlib

from rich.filesize import decimal

# Control characters except tab and newline; all format characters (Cf) except signs that are drawn,
# such as U+06DD; line and paragraph separators; surrogates; noncharacters; everything that Unicode
# lists as ignorable when drawn (Default_Ignorable_Code_Point), such as fillers and tag characters.
_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b"
    "\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufdd0-\ufdef\ufe00-\ufe0d\ufeff"
    "\uffa0\ufff0-\ufffb\ufffe\uffff\U00013430-\U00013455\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(1, 17))
)
# Joiners and the variation selectors U+FE0E and U+FE0F are invisible, but emoji and Persian and
# Indic spelling need them: they change how the characters next to them are drawn. So they are kept
# next to visible characters beyond ASCII. Anywhere else they could only hide something.
_NOT_VISIBLE = f"[\x00-\xa0\u200c\u200d\ufe0e{_HIDDEN}]"
_UNSAFE = re.compile(
    f"[{_HIDDEN}]|[\u200c\u200d](?={_NOT_VISIBLE})|(?<={_NOT_VISIBLE})[\u200c\u200d]"
    f"|(?<={_NOT_VISIBLE}|\ufe0f)[\ufe0e\ufe0f](?!\u20e3)"
)


class _Repr(reprlib.Repr):
    def repr_int(self, number: int, level: int) -> str:
        if number.bit_length() > 64:  # Python refuses to print over 4,300 digits
            return f"a number of {number.bit_length():,} bits"
        return super().repr_int(number, level)


_REPR = _Repr()
_REPR.maxstring = _REPR.maxother = 100


def harmless(text: str) -> str:
    r"""Return the text with control characters and invisible characters as visible escapes.

    Joiners and variation selectors are kept where emoji and some scripts need them.

    >>> harmless("a\x1b[31mb\tc"), harmless("pay\u200bpal"), harmless("👨\u200d👩")
    ('a\\x1b[31mb\tc', 'pay\\u200bpal', '👨\u200d👩')
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def find_hidden(text: str) -> list[int]:
    r"""Return the positions of the characters that `harmless` replaces.

    >>> find_hidden("a\u202eb\x00")
    [1, 3]
    """
    if text.isascii() and text.isprintable():
        return []
    return [match.start() for match in _UNSAFE.finditer(text)]


def one_line(name: object) -> str:
    r"""Return a name from untrusted data in a form that is safe to print within a line.

    >>> one_line("a.txt\nDone.")
    'a.txt\\nDone.'
    """
    return harmless(str(name)).replace("\n", "\\n").replace("\t", "\\t")


def brief(value: object) -> str:
    """Return a shortened `repr` of a value from a file.

    >>> brief("a" * 1000) == repr("a" * 47 + "..." + "a" * 48), brief({"layers": 1 << 99})
    (True, "{'layers': a number of 100 bits}")
    """
    return _REPR.repr(value)


def count(number: int) -> str:
    """Format a number with thousands separators.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{number:,}"


def counted(number: int, thing: str) -> str:
    """Format a number and a noun, in the singular or plural.

    >>> counted(1, "document"), counted(2000, "document")
    ('1 document', '2,000 documents')
    """
    return f"{count(number)} {thing}" if number == 1 else f"{count(number)} {thing}s"


def size(number: float) -> str:
    """Format a number of bytes in decimal units.

    >>> size(999), size(1_500), size(2_000_000_000)
    ('999 bytes', '1.5 kB', '2.0 GB')
    """
    return decimal(int(number))


def duration(seconds: float) -> str:
    """Format a duration, given in seconds.

    >>> duration(4.2), duration(75), duration(8000)
    ('4 s', '1 min 15 s', '2 h 13 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
