"""Tokenizers made to exhaust memory or time, or to crash native code, are refused with the reason.

Each case runs in a process with limits, since without the checks it would need gigabytes or abort.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import orjson
import pytest
from dataset_builder import build
from vocabularies import added, make_document, make_small_states, write_document

from tokenmill.errors import TokenizerError, UnregisteredTokenizerError
from tokenmill.tokenizers import Tokenizer, from_state, load_tokenizer
from tokenmill.tokenizers.minimal import UnknownTokenizer
from tokenmill.tokenizers.trial import _KNOWN

# Prints the error of the call in argv[1], with the data on standard input.
LIMITED = """
import json, resource, sys
import gigatoken, numpy
from tokenmill.errors import TokenmillError
from tokenmill.tokenizers.load import load_tokenizer
from tokenmill.tokenizers.registry import restore
for kind, most in (("AS", 3 << 29), ("CPU", 10), ("CORE", 0)):
    kind = getattr(resource, "RLIMIT_" + kind)
    resource.setrlimit(kind, (most, most))
try:
    tokenizer = eval(sys.argv[1])
    print(tokenizer, len(tokenizer.encode(b"a" * 41)), len(tokenizer.decode([0, 1])))
except TokenmillError as error:
    print(error)
"""


def run_limited(call: str, data: bytes = b"", *, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, call], input=data, capture_output=True, check=False
    )
    assert done.returncode == status, done.stderr.decode(errors="replace")[-1000:]
    return done.stdout.decode() or done.stderr.decode()


Edit = Callable[[dict[str, Any]], Any]


def add_token(number: int) -> Edit:
    token = added(number, "<x>", special=False)
    return lambda state: state["tokenizer"]["added_tokens"].append(token)


def normalize(*steps: dict[str, Any]) -> Edit:
    sequence = {"type": "Sequence", "normalizers": list(steps)}
    return lambda state: state["tokenizer"].update(normalizer=sequence)


def map_characters(data: bytes) -> Edit:
    encoded = base64.b64encode(data).decode()
    return normalize({"type": "Precompiled", "precompiled_charsmap": encoded})


def replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def nest(depth: int) -> dict[str, Any]:
    step: dict[str, Any] = {"type": "NFC"}
    for _ in range(depth):
        step = {"type": "Sequence", "normalizers": [step]}
    return step


def add_specials(**ids: Any) -> Edit:
    return lambda state: state.update(special_ids=ids, eot_id=None)


GAPS = "At most 1,048,576 ids may be without a token"
CASES: dict[str, tuple[str, Edit, str]] = {
    "added id 2**28": ("bpe", add_token(1 << 28), GAPS),
    "added id 2**31": ("bpe", add_token(1 << 31), GAPS),
    "special id 2**28": ("bpe", add_specials(end=1 << 28), GAPS),
    "special id of tiktoken": ("tiktoken", add_specials(end=1 << 28), GAPS),
    "id of a piece": (
        "sentencepiece",
        lambda state: state["tokenizer"]["model"]["vocab"].update(zz=1 << 28),
        GAPS,
    ),
    "negative id": ("sentencepiece", add_specials(end=-5), "has the id -5"),
    "infinite id": ("sentencepiece", add_specials(end=float("inf")), "has the id inf"),
    "special token of 100 kB": (
        "bpe",
        lambda state: (add_token(400)(state), add_specials(**{"ab" * 50_000: 401})(state)),
        "is not a text of 1 to 256 characters",
    ),
    "size of a character map": (
        "sentencepiece",
        map_characters(struct.pack("<I", (1 << 32) - 4) + b"x" * 40),
        "has a character map of 44 bytes whose trie claims 4,294,967,292 bytes",
    ),
    "trie that leads out": (
        "sentencepiece",
        map_characters(struct.pack("<II", 4, 0x7FFFFFFF) + b"x\0"),
        "index out of bounds",
    ),
    "character that becomes 100 kB": (
        "sentencepiece",
        map_characters(struct.pack("<II", 4, 0) + b"x" * 100_000),
        "makes a text more than 256 times as long",
    ),
    "chained Replace": (
        "sentencepiece",
        normalize(*[replace("a", "a" * 8)] * 9),
        "makes a text more than 256 times as long",
    ),
    "chained Prepend": (
        "sentencepiece",
        normalize(*[{"type": "Prepend", "prepend": "a" * 129}] * 2),
        "makes a text more than 256 times as long",
    ),
    "Replace of nothing": ("sentencepiece", normalize(replace("", "aa")), "has the step"),
    "many steps": ("sentencepiece", normalize(*[replace("a", "b")] * 33), "more than 32 steps"),
    "nested normalizer": ("bpe", normalize(nest(200)), "nested more than 8 deep"),
    "long name": ("bpe", lambda state: state.update(name="x" * 2000), "damaged: ValueError name"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_state_is_refused_before_it_reaches_native_code(case: str) -> None:
    kind, edit, reason = CASES[case]
    state = copy.deepcopy(make_small_states()[kind])
    edit(state)
    said = run_limited("restore(json.load(sys.stdin))", json.dumps(state).encode())
    assert reason in said
    assert len(said) < 500
    assert "\n" not in said.strip()


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_a_deeply_nested_normalizer_is_refused(kind: str, tmp_path: Path) -> None:
    state = copy.deepcopy(make_small_states()[kind])
    state["tokenizer"]["normalizer"] = "HERE"
    inner = b'{"type": "Sequence", "normalizers": [' * 400 + b'{"type": "NFC"}' + b"]}" * 400
    data = json.dumps(state).encode().replace(b'"HERE"', inner)
    assert "nested more than 8 deep" in run_limited(
        "restore(__import__('orjson').loads(sys.stdin.buffer.read()))", data
    )
    path = tmp_path / "state.json"
    path.write_bytes(data)
    with pytest.raises(TokenizerError, match="Recursion limit"):
        load_tokenizer(path)


def test_a_hostile_file_is_refused(tmp_path: Path) -> None:
    document = make_document(added_tokens=[added(1 << 28, "<x>", special=False)])
    path = write_document(tmp_path, document)
    said = run_limited(f"load_tokenizer({str(path)!r})")
    assert said.startswith("tokenizer.json cannot be used as a tokenizer: it has 5,258 tokens")
    assert GAPS in said


def test_verify_reports_a_hostile_tokenizer(tmp_path: Path) -> None:
    build(tmp_path, {"train": ["some text"]})
    state = make_small_states()["bpe"]
    add_token(1 << 28)(state)
    (tmp_path / "tokenizer_state.json").write_text(json.dumps(state))
    said = run_limited(f"exit(__import__('tokenmill').verify({str(tmp_path)!r}))", status=1)
    assert "tokenizer_state.json" in said
    assert GAPS in said


def make_model(pieces: list[bytes]) -> bytes:
    """A SentencePiece model, in the wire format of protocol buffers."""

    def field(number: int, content: bytes) -> bytes:
        size, encoded = len(content), b""
        while size > 127:
            size, encoded = size >> 7, encoded + bytes([size & 127 | 128])
        return bytes([number << 3 | 2]) + encoded + bytes([size]) + content

    made = b"".join(field(1, field(1, piece)) for piece in pieces)
    return made + field(2, b"\x18\x02" + b"\x98\x02\x01")  # BPE with byte fallback


def test_a_model_that_needs_too_much_memory_is_refused_by_the_child(tmp_path: Path) -> None:
    # Each of these pieces can be merged from all shorter ones: half a million merges of 2 kB.
    path = tmp_path / "runs.model"
    path.write_bytes(make_model([b"a" * length for length in range(1, 1500)]))
    said = run_limited(f"load_tokenizer({str(path)!r})")
    assert said.startswith(
        "runs.model cannot be used as a tokenizer: loading it takes more than 1."
    )
    assert "GB of memory. Get it again from a source that you trust." in said


def test_a_model_that_takes_too_long_is_refused_by_the_child(tmp_path: Path) -> None:
    path = tmp_path / "slow.model"
    path.write_bytes(b"\xff" * 900_000)  # one number of 6 million bits, read 7 bits at a time
    said = run_limited(f"load_tokenizer({str(path)!r})")
    assert "slow.model cannot be used as a tokenizer: loading it takes more than 5 s" in said


def test_the_state_of_gpt2_needs_no_child(gpt2: Tokenizer) -> None:
    data = orjson.dumps(gpt2.state(), option=orjson.OPT_SORT_KEYS)
    assert hashlib.sha256(data).hexdigest() in _KNOWN


def test_an_installed_package_is_imported_only_if_it_declares_a_tokenizer() -> None:
    points = [*entry_points(group="console_scripts"), *entry_points(group="pytest11")]
    for kind in [text for point in points[:10] for text in (point.name, point.value)]:
        with pytest.raises(UnregisteredTokenizerError):
            from_state({"kind": kind})


def make_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


UNREADABLE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "folder": (Path.mkdir, "tokenizer.json in .* is not a regular file"),
    "pipe": (os.mkfifo, "is not a regular file"),
    "a terabyte": (make_sparse, "has 1,099,511,627,776 bytes, but at most 67,108,864 are allowed"),
    "link to itself": (link_to_itself, "cannot be read: "),
    "not UTF-8": (lambda path: path.write_bytes(b'{"\xff": 1}'), "not valid JSON"),
    "not a number": (lambda path: path.write_bytes(b'{"a": NaN}'), "not valid JSON"),
    "half a surrogate": (lambda path: path.write_bytes(b'{"a": "\\ud800"}'), "not valid JSON"),
    "nested": (lambda path: path.write_bytes(b'{"a":' * 5000), "not valid JSON"),
    "many values": (
        lambda path: path.write_bytes(b'{"a":[' + b"[]," * (5 << 20) + b"1]}"),
        "has more than 8,388,608 values",
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_file_that_cannot_be_read_is_refused_by_name(case: str, tmp_path: Path) -> None:
    make, reason = UNREADABLE[case]
    path = tmp_path / "tokenizer.json"
    make(path)
    with pytest.raises(TokenizerError, match=reason) as caught:
        load_tokenizer(tmp_path)
    assert "tokenizer.json" in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 5000 + ".json", "a\0b.json", "x" * 300])
def test_a_name_that_no_file_can_have_is_not_a_tokenizer(name: str) -> None:
    with pytest.raises(TokenizerError, match="There is no tokenizer"):
        load_tokenizer(name)


CLOSED = """
import os, sys
from tokenmill.errors import TokenizerError
from tokenmill.tokenizers import load_tokenizer
file, folder, inside = sys.argv[1:]
if os.geteuid() == 0:  # root may read everything
    os.setuid(65534)
for path in (file, folder, inside):
    try:
        load_tokenizer(path)
    except TokenizerError as error:
        print(error)
"""


def test_a_tokenizer_without_permission_is_named_with_the_cure() -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        file, folder = Path(place) / "tokenizer.json", Path(place) / "closed"
        file.touch(0)
        folder.mkdir(0)
        inside = folder / "tokenizer.json"
        done = subprocess.run(
            [sys.executable, "-c", CLOSED, file, folder, inside],
            capture_output=True,
            text=True,
            check=True,
        )
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all("Permission denied. Let this user read it: chmod a+r" in line for line in lines)


def test_a_folder_whose_name_is_not_utf8_gives_a_tokenizer_that_can_be_saved(
    tmp_path: Path,
) -> None:
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/m\xff"))
    folder.mkdir()
    write_document(folder, make_document())
    tokenizer = load_tokenizer(folder)
    assert tokenizer.name == "m?"
    assert from_state(tokenizer.state()).fingerprint == tokenizer.fingerprint


def test_an_end_of_text_of_many_digits_is_not_an_id() -> None:
    with pytest.raises(TokenizerError, match="has no special token"):
        load_tokenizer("bytes", eot="9" * 5000)


def test_the_bytes_of_unknown_ids_are_refused_at_once() -> None:
    with pytest.raises(TokenizerError, match="imported without their tokenizer"):
        UnknownTokenizer(1 << 32).byte_lengths()
