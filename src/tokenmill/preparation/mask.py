r"""Replace email addresses and IP addresses by fixed words, as a part of cleaning.

    jane.doe@example.org   <EMAIL>
    192.168.0.1            <IP>
    2001:db8::1            <IP>

An email address is a name of up to 64 letters, digits and ``.!#$%&'*+/=?^_`{|}~-``, of which the first
is a letter or a digit, then ``@`` and at least two labels, of which the last has only letters, two or
more. An IPv4 address is four numbers up to 255. A letter, a digit, or a fifth number next to it makes
it a version and not an address. An IPv6 address has eight groups, or `::` and three groups, or `::` and
a first group of four digits; so the slice `1::2` of Python stays.

Only around `@`, dots between digits, and colons that are close together are addresses searched. NUL
bytes stay, and texts on both sides of them are independent. A document is divided into fragments before
white space, and so not within an address, unless it has no white space in several MB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import AddressValueError, IPv6Address

import numpy as np
import numpy.typing as npt

EMAIL, IP = b"<EMAIL>", b"<IP>"
EMAILS, IPS = "masked email addresses", "masked IP addresses"  # in the ledger

_MOST_NAME, _MOST_DOMAIN, _MOST_HEX = 64, 255, 40  # bytes
_NAME = re.compile(rb"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+\Z")
_FIRST = re.compile(rb"[A-Za-z0-9]")
_DOMAIN = re.compile(
    rb"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]{2,63}(?![A-Za-z0-9])"
)
_NUMBER = rb"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = re.compile(rb"(?<![A-Za-z0-9_.])%s(?:\.%s){3}(?![A-Za-z0-9_]|\.[0-9])" % (_NUMBER, _NUMBER))
_HEX_BEFORE, _HEX = re.compile(rb"[0-9A-Fa-f:]+\Z"), re.compile(rb"[0-9A-Fa-f:]+")
_WORD = re.compile(rb"[A-Za-z0-9_]")

Range = tuple[int, int]


def mask(text: bytes, *, emails: bool, ips: bool) -> tuple[bytes, Mapping[str, int]]:
    """Replace addresses in a text, or in texts joined by NUL bytes. Also returns how many there were.

    >>> mask(b"Ask jane@example.org, or 10.0.0.1 for 1.2.3.", emails=True, ips=True)[0]
    b'Ask <EMAIL>, or <IP> for 1.2.3.'
    """
    counts = {}
    if emails and b"@" in text:
        text, counts[EMAILS] = _replace(text, _find_emails(text), EMAIL)
    if ips:
        text, first = _replace(text, _find_ipv6(text), IP)
        text, second = _replace(text, _find_ipv4(text), IP)
        counts[IPS] = first + second
    return text, {name: count for name, count in counts.items() if count}


def _replace(text: bytes, ranges: Iterator[Range], word: bytes) -> tuple[bytes, int]:
    pieces, end = [], 0
    for start, stop in ranges:
        pieces.append(text[end:start])
        end = stop
    return word.join([*pieces, text[end:]]), len(pieces)


def _find_emails(text: bytes) -> Iterator[Range]:
    place, end = text.find(b"@"), 0
    while place >= 0:
        domain = _DOMAIN.match(text, place, place + _MOST_DOMAIN + 2)
        if domain and domain.end() - place - 1 <= _MOST_DOMAIN:
            name = _NAME.search(text[max(end, place - _MOST_NAME - 1) : place])
            if name and len(name[0]) <= _MOST_NAME and (first := _FIRST.search(name[0])):
                end = domain.end()
                yield place - len(name[0]) + first.start(), end
        place = text.find(b"@", place + 1)


def _find_ipv4(text: bytes) -> Iterator[Range]:
    if text.count(b".") < 3:
        return
    data = np.frombuffer(text, np.uint8)
    digits = data - np.uint8(48) < 10
    dots = np.flatnonzero(data[1:-1] == ord(".")) + 1
    dots = dots[digits[dots - 1] & digits[dots + 1]]
    # The first of three dots with one to three bytes between two of them.
    gaps = np.diff(dots) <= 4
    end = 0
    for dot in dots[:-2][gaps[:-1] & gaps[1:]].tolist():
        start = dot
        while start > max(end, dot - 3) and digits[start - 1]:
            start -= 1
        if match := _IPV4.match(text, start):
            end = match.end()
            yield start, end


def _find_ipv6(text: bytes) -> Iterator[Range]:
    if text.count(b":") < 2:
        return
    colons = np.flatnonzero(np.frombuffer(text, np.uint8) == ord(":"))
    end = 0
    for colon in _begin_ipv6(colons).tolist():
        if colon < end:
            continue
        before = _HEX_BEFORE.search(text[max(0, colon - _MOST_HEX) : colon])
        start = max(end, colon - len(before[0])) if before else colon
        match = _HEX.match(text, start)
        if match is None:
            continue
        end = match.end()
        address = match[0]
        if address.endswith(b":") and not address.endswith(b"::"):
            address = address[:-1]
        stop = start + len(address)
        around = text[max(0, start - 1) : start] + text[stop : stop + 1]
        if len(address) < _MOST_HEX and not _WORD.search(around) and _is_ipv6(address):
            yield start, stop


def _begin_ipv6(colons: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the colons that are followed by another one, or by six within groups of four digits."""
    double = np.zeros(len(colons), np.bool_)
    double[:-1] = np.diff(colons) == 1
    double[: max(0, len(colons) - 6)] |= colons[6:] - colons[:-6] <= 30
    return colons[double]


def _is_ipv6(address: bytes) -> bool:
    try:
        IPv6Address(address.decode())
    except AddressValueError:
        return False
    groups = [group for group in address.split(b":") if group]
    return len(groups) >= 3 or (len(groups) == 2 and len(groups[0]) == 4)
