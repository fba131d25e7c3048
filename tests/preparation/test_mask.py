"""Masks: the addresses that a plain implementation finds, for any text and any cut of the input."""

from __future__ import annotations

import ipaddress
import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preparing import assert_same_files, make, small

from tokenmill.preparation.mask import EMAILS, IPS, mask

NAME = r"A-Za-z0-9.!#$%&'*+/=?^_`{|}~-"
EMAIL = re.compile(
    rf"([{NAME}]+)@((?:[A-Za-z0-9](?:[A-Za-z0-9-]{{0,61}}[A-Za-z0-9])?\.)+[A-Za-z]{{2,63}})(?![A-Za-z0-9])"
)
PIECES = [
    "jane", "jane.doe", ".x", "@", "@", "example.org", "x.y", ".com", "org2", "a-b.co", "-", "+", "'",
    "1.2.3.4", "10.0.0.1", "255.255.255.255", "256.1.1.1", "1.2.3", ".5", "v", "01.2.3.4", "1", ".",
    "::1", "fe80::1", "2001:db8::1", "1:2:3:4:5:6:7:8", "std::vector", "::", ":", "12:30:45", "ab",
    "2001:0db8:0000:0000:0000:ff00:0042:8329", "::ffff:1.2.3.4", " ", " ", "\n", ",", "(", "é", "日",
]  # fmt: skip


def plain_mask(text: str) -> str:
    def email(match: re.Match[str]) -> str:
        name, domain = match.groups()
        at = next((i for i, c in enumerate(name) if c.isalnum()), None)
        if at is None or len(name) > 64 or len(domain) > 255:
            return match[0]
        return name[:at] + "<EMAIL>"

    text = EMAIL.sub(email, text)
    text = re.sub(r"[0-9A-Fa-f:]+", lambda match: _ipv6(match, text), text)
    pieces, place = [], 0
    pattern = re.compile(
        r"(?<![A-Za-z0-9_.])(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?![A-Za-z0-9_]|\.[0-9])",
        re.ASCII,
    )
    while place < len(text):
        match = pattern.match(text, place)
        if match and all(part == str(int(part)) and int(part) < 256 for part in match.groups()):
            pieces.append("<IP>")
            place = match.end()
        else:
            pieces.append(text[place])
            place += 1
    return "".join(pieces)


def _ipv6(match: re.Match[str], text: str) -> str:
    address = match[0]
    if address.endswith(":") and not address.endswith("::"):
        address = address[:-1]
    before, after = text[: match.start()][-1:], text[match.start() + len(address) :][:1]
    if re.search(r"[A-Za-z0-9_]", before + after):
        return match[0]
    groups = [group for group in address.split(":") if group]
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return match[0]
    if len(groups) < 2 or (len(groups) == 2 and len(groups[0]) != 4):
        return match[0]
    return "<IP>" + match[0][len(address) :]


@given(st.lists(st.sampled_from(PIECES) | st.text("a1.:@ é", max_size=6), max_size=30).map("".join))
def test_addresses_are_those_of_a_plain_search(text: str) -> None:
    masked, counts = mask(text.encode(), emails=True, ips=True)
    assert masked.decode() == plain_mask(text)
    assert counts.get(EMAILS, 0) == masked.count(b"<EMAIL>") - text.count("<EMAIL>")
    assert counts.get(IPS, 0) == masked.count(b"<IP>") - text.count("<IP>")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Write to <jane+x@mail.example.org>.", "Write to <<EMAIL>>."),
        ("a@b c@d.e @x.org", "a@b c@d.e @x.org"),
        ("a" * 65 + "@x.org", "a" * 65 + "@x.org"),
        ("host 10.0.0.1:80, net 10.0.0.0/8", "host <IP>:80, net <IP>/8"),
        ("version 1.2.3.4.5, v1.2.3.4", "version 1.2.3.4.5, v1.2.3.4"),
        ("at fe80::1: up; x[1::2]; a::b", "at <IP>: up; x[1::2]; a::b"),
    ],
)
def test_examples(text: str, masked: str) -> None:
    assert mask(text.encode(), emails=True, ips=True)[0].decode() == masked


def test_texts_do_not_touch() -> None:
    assert mask(b"a@x.or\0g 1.2.3.\x004", emails=True, ips=True)[0] == b"<EMAIL>\0g 1.2.3.\x004"


def test_masks_come_before_keys_and_are_counted(tmp_path: Path) -> None:
    chance = random.Random(2)
    words = ["mail", "a@example.org", "b@example.org", "10.1.2.3", "10.1.2.4", "and", "then\n"]
    texts = [" ".join(chance.choices(words, k=chance.randrange(1, 400))) for _ in range(60)]
    texts += ["from a@example.org", "from b@example.org"]
    (tmp_path / "in.txt").write_text("<|endoftext|>".join(texts))
    for number, limits in enumerate([small(part=900, block=200), small()]):
        out = tmp_path / f"out{number}"
        make(tmp_path / "in.txt", out, limits=limits, mask_emails=True, mask_ips=True)
    assert_same_files(tmp_path / "out0", tmp_path / "out1")
    ledger = json.loads((out / "dataset_metadata.json").read_bytes())["ledger"]
    whole = "<|endoftext|>".join(texts)
    assert ledger["counts"] == {EMAILS: whole.count("@"), IPS: whole.count("10.1.2.")}
    assert ledger["dropped"]["duplicate"]["documents"] == 1
    tokens = b"".join(path.read_bytes() for path in sorted(out.glob("*/*.bin")))
    assert tokens[::2].count(b"<EMAIL>") > 100
    assert b"@" not in tokens[::2]
