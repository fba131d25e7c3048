"""Change files on purpose: bytes, numbers in headers, JSON values.

Every function takes a `random.Random`, so that a seed reproduces each change. Structured changes
keep a file well-formed around the one value that is wrong, so that they reach the code behind the
parser; changes of bytes reach the parser itself.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

INTEGERS = (
    *(0, 1, -1, 2, 3, 7, 100, 255, 256, 65535, 65536, -(2**31), -(2**63)),
    *(2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**40, 2**53, 2**53 + 1, 2**56, 2**62),
    *(2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, 10**5000),
)
STRINGS = (
    *("", " ", ".", "..", "../x", "../../../etc/passwd", "/etc/passwd", "a/../../x", "x\\..\\y"),
    *("\0", "a\0b", "\n", "x\ny", "\r", "\x1b[31mred\x1b[0m", "\u202e", "\u2028", "\u061c"),
    *("\ud800", "a\udfffb", "\ufeff", "\u200b", "é", "e\u0301", "😀", "𝟗", "٣", "²", "x" * 300),
    *("9" * 5000, "y" * 100_000, "NaN", "1e999", "-0", "0x10", "1_0", "true", "null", "{}", "%s"),
    *("uint16", "uint8", "int64", "float32", "<u2", ">u2", "|O", "gpt2", "bytes", "train", "val"),
)
DEEP = (50, 500, 5_000, 100_000)


class Raw(bytes):
    """JSON text that is written as it is."""


class Pairs(list):
    """A JSON object as pairs, so that it can have a key twice."""


ODD = (
    *(Raw(b"1e999"), Raw(b"-0"), Raw(b"NaN"), Raw(b"-Infinity"), Raw(b"1.0"), Raw(b"1e3")),
    *(Raw(b"0.1e-400"), Raw(b"01"), Raw(b"+1"), Raw(b"tru"), Raw(b""), Raw(b'"\\ud800"')),
    *(None, True, False, 1.5, -0.0, [], {}, [[]], {"": None}, [1, "a", None]),
)


def pick_value(random: Random) -> Any:
    """Any JSON value that a careless reader may not expect."""
    kind = random.randrange(10)
    if kind < 4:
        return random.choice(INTEGERS)
    if kind < 7:
        return random.choice(STRINGS)
    if kind < 9:
        return random.choice(ODD)
    depth = random.choice(DEEP)
    opening, closing = random.choice([(b"[", b"]"), (b'{"a":', b"}")])
    inner = b"0" if opening != b"[" else b""
    return Raw(opening * depth + inner + closing * depth)


def change_tree(random: Random, value: Any, most: int = 3) -> Any:
    """A JSON value with one to `most` changes."""
    value = _as_pairs(value)
    for _ in range(random.choice([1, 1, 1, *range(1, most + 1)])):
        value = _change_somewhere(random, value)
    return value


def _as_pairs(value: Any) -> Any:
    if isinstance(value, dict):
        return Pairs((key, _as_pairs(one)) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return [_as_pairs(one) for one in value]
    return value


def _list_places(value: Any, found: list[tuple[Any, int]]) -> None:
    if isinstance(value, list):
        for number, one in enumerate(value):
            found.append((value, number))
            _list_places(one[1] if isinstance(value, Pairs) else one, found)


def _change_somewhere(random: Random, value: Any) -> Any:
    places: list[tuple[Any, int]] = []
    _list_places(value, places)
    if not places or random.randrange(60) == 0:
        return pick_value(random)
    # Long lists would otherwise receive nearly all changes.
    owners = list({id(owner): owner for owner, _ in places}.values())
    owner = random.choice(owners)
    number = random.randrange(len(owner)) if len(owner) else 0
    if random.randrange(3) == 0:
        owner, number = random.choice(places)
    if not owner:
        owner.append(
            ("new", pick_value(random)) if isinstance(owner, Pairs) else pick_value(random)
        )
    elif isinstance(owner, Pairs):
        _change_pair(random, owner, number)
    else:
        _change_item(random, owner, number)
    return value


def _change_pair(random: Random, owner: Pairs, number: int) -> None:
    key, value = owner[number]
    match random.randrange(12):
        case 0:
            del owner[number]
        case 1:
            owner.append((key, value))
        case 2:
            owner.append((key, pick_value(random)))
        case 3:
            name = random.choice([key.upper(), key + "s", key[1:], *STRINGS[:40]])
            owner[number] = (name, value)
        case 4:
            owner.insert(0, (random.choice(STRINGS), pick_value(random)))
        case 5:
            other = random.randrange(len(owner))
            (one, a), (two, b) = owner[number], owner[other]
            owner[number], owner[other] = (one, b), (two, a)
        case _:
            owner[number] = (key, _change_value(random, value))


def _change_item(random: Random, owner: list[Any], number: int) -> None:
    match random.randrange(10):
        case 0:
            del owner[number]
        case 1:
            owner.insert(number, owner[number])
        case 2:
            other = random.randrange(len(owner))
            owner[number], owner[other] = owner[other], owner[number]
        case 3:
            owner.append(pick_value(random))
        case 4:
            del owner[:]
        case _:
            owner[number] = _change_value(random, owner[number])


def _change_value(random: Random, value: Any) -> Any:
    if isinstance(value, bool) or value is None or random.randrange(3) == 0:
        return pick_value(random)
    if isinstance(value, (int, float)):
        near = [value + 1, value - 1, -value, value * 2, [value]]
        if abs(value) < 1 << 70:
            near += [float(value), str(value)]
        return random.choice([*near, *INTEGERS])
    if isinstance(value, str):
        place = random.randrange(len(value) + 1)
        near = [
            value[:place] + random.choice(STRINGS[:36]) + value[place:],
            value[:place] + value[place + 1 :],
            value * 2,
            "../" + value,
            value + "/",
            f"{value}\0",
            [value],
        ]
        return random.choice([*near, *STRINGS])
    return random.choice([pick_value(random), [value], value])


def dump(value: Any, random: Random | None = None) -> bytes:
    """JSON text of a value that may hold `Raw` text, `Pairs` and lone surrogates."""
    indent = random is not None and random.randrange(4) == 0
    parts: list[bytes] = []
    _dump(value, parts.append, b"\n" if indent else b"")
    return b"".join(parts)


def _dump(value: Any, write: Callable[[bytes], None], space: bytes) -> None:
    if isinstance(value, Raw):
        write(value)
    elif isinstance(value, (Pairs, dict)):
        write(b"{")
        for number, (key, one) in enumerate(value.items() if isinstance(value, dict) else value):
            write((b"," if number else b"") + space + _dump_text(str(key)) + b": ")
            _dump(one, write, space)
        write(space + b"}")
    elif isinstance(value, (list, tuple)):
        write(b"[")
        for number, one in enumerate(value):
            write((b"," if number else b"") + space)
            _dump(one, write, space)
        write(space + b"]")
    elif isinstance(value, str):
        write(_dump_text(value))
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > 1 << 70:
        write(b"1" + b"0" * (len(hex(value)) * 6 // 5))  # Python prints at most 4,300 digits
    else:
        write(json.dumps(value).encode())


def _dump_text(text: str) -> bytes:
    try:
        return json.dumps(text, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(text).encode()


def change_bytes(random: Random, data: bytes, most: int = 3) -> bytes:
    """Bytes with one to `most` changes."""
    for _ in range(random.choice([1, 1, *range(1, most + 1)])):
        data = random.choice(_BYTE_CHANGES)(random, data)
    return data


def _place(random: Random, data: bytes) -> int:
    # Damage matters most in headers: the first bytes are changed as often as all others.
    end = random.choice([len(data), min(len(data), 140)])
    return random.randrange(end) if end else 0


def _flip(random: Random, data: bytes) -> bytes:
    place = _place(random, data)
    changed = bytearray(data)
    if changed:
        changed[place] ^= 1 << random.randrange(8)
    return bytes(changed)


def _overwrite(random: Random, data: bytes) -> bytes:
    place = _place(random, data)
    other = random.choice([pack_integer(random, random.choice([1, 2, 4, 8])), random.randbytes(1)])
    return data[:place] + other + data[place + len(other) :]


def _insert(random: Random, data: bytes) -> bytes:
    place = _place(random, data)
    start = _place(random, data)
    other = [random.randbytes(random.randrange(1, 9)), bytes(random.choice([1, 4, 64, 5000]))]
    other += [data[start : start + random.choice([1, 4, 16, 100])]]
    return data[:place] + random.choice(other) + data[place:]


def _cut(random: Random, data: bytes) -> bytes:
    place = _place(random, data)
    return data[:place] + data[place + random.choice([1, 2, 4, 8, 64, 1000]) :]


def _truncate(random: Random, data: bytes) -> bytes:
    return data[: random.choice([_place(random, data), max(0, len(data) - random.randrange(1, 9))])]


def _extend(random: Random, data: bytes) -> bytes:
    more = [bytes(random.choice([1, 2, 8, 512])), random.randbytes(random.randrange(1, 9))]
    return data + random.choice([*more, data[-random.randrange(1, 17) :], b"\n"])


def _swap(random: Random, data: bytes) -> bytes:
    size = random.choice([1, 2, 4, 8, 16, 100])
    one, two = sorted((_place(random, data), _place(random, data)))
    two = max(two, one + size)
    return (
        data[:one]
        + data[two : two + size]
        + data[one + size : two]
        + (data[one : one + size] + data[two + size :])
    )


_BYTE_CHANGES = (_flip, _flip, _overwrite, _overwrite, _insert, _cut, _truncate, _extend, _swap)


def pack_integer(random: Random, width: int) -> bytes:
    """A boundary value as `width` bytes, little-endian or big-endian."""
    number = random.choice(INTEGERS) % (1 << 8 * width)
    return number.to_bytes(width, random.choice(["little", "little", "little", "big"]))


def change_fields(random: Random, data: bytes, fields: Sequence[tuple[int, str]]) -> bytes:
    """A binary file with one to three of its numbers changed; `fields` are offsets and formats."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 3])):
        offset, kind = random.choice(fields)
        width = struct.calcsize(kind)
        if offset + width > len(changed):
            continue
        before = int.from_bytes(changed[offset : offset + width], "little")
        number = random.choice(
            [before + 1, before - 1, before * 2, *INTEGERS, random.getrandbits(40)]
        )
        changed[offset : offset + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(changed)


def change_lines(random: Random, data: bytes) -> bytes:
    """A text file with lines removed, repeated, swapped, joined or changed."""
    lines = data.splitlines(keepends=True)
    for _ in range(random.choice([1, 1, 2])):
        if not lines:
            break
        place = random.randrange(len(lines))
        match random.randrange(7):
            case 0:
                del lines[place]
            case 1:
                lines.insert(place, lines[place])
            case 2:
                other = random.randrange(len(lines))
                lines[place], lines[other] = lines[other], lines[place]
            case 3:
                lines[place] = lines[place].rstrip(b"\r\n")
            case 4:
                lines[place] = lines[place].rstrip(b"\r\n") + random.choice(
                    [b"\r\n", b"\r", b"\n\n"]
                )
            case 5:
                text = random.choice(STRINGS).encode("utf-8", "surrogatepass")
                words = lines[place].split(b" ")
                words[random.randrange(len(words))] = text
                lines[place] = b" ".join(words)
            case _:
                lines[place] = change_bytes(random, lines[place], 1)
    return b"".join(lines)
