"""The user's own tokenizer of docs/tokenizers.md, in real processes: prepare, open, peek, train, sample."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tokenmill.errors import TokenizerError, UnregisteredTokenizerError
from tokenmill.tokenizers import from_state, load_tokenizer

DOCS = Path(__file__).parents[2] / "docs" / "tokenizers.md"
MODULE, SCRIPT = re.findall(r"```python\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
ENTRY_POINT = re.search(r'entry-points."(.+)"\]\n"(.+)" = "(.+)"', DOCS.read_text("utf-8"))
COMMAND = str(Path(sys.executable).with_name("tokenmill"))
TRAINING = """
import tokenmill
tokenmill.train("data/corpus", name="words", config="tiny", max_steps=2, progress=False)
print(tokenmill.sample("words", "the end", tokens=5))
"""
WORDS = ["?", "the", "of", "and", "to", "in"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the module and the script of the documentation, and texts of two parts."""
    (tmp_path / "my_tokenizer.py").write_text(MODULE)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "my_texts").mkdir()
    line = "the end of the day and something to remember\n"
    for name, size in (("large.txt", 17 << 20), ("small.txt", 200_000)):
        document = line * 2_000 + "<|endoftext|>"
        (tmp_path / "my_texts" / name).write_text((document * (size // len(document) + 1))[:size])
    return tmp_path


def run(*arguments: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        arguments,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_files(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_the_documented_tokenizer_prepares_resumes_and_opens(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "script.py"], cwd=folder, start_new_session=True, stderr=subprocess.PIPE
    )
    data = folder / "data" / "corpus"
    deadline = time.monotonic() + 60
    while not list(data.glob(".work/segments/*.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[1].decode()
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (data / "dataset_metadata.json").exists()

    printed = run(sys.executable, "script.py", folder=folder)
    assert printed == "the ? of the ? and ? to ? the\n"
    resumed = read_files(data)
    data.rename(folder / "resumed")
    run(sys.executable, "script.py", folder=folder)
    assert read_files(data) == resumed

    assert tokenmill.open(data)["train"][:10].tolist() == [1, 0, 2, 1, 0, 3, 0, 4, 0, 1]
    peek = subprocess.run([COMMAND, "peek", data], capture_output=True, text=True, check=False)
    assert peek.returncode == 1
    assert "no tokenizer class of kind 'my_tokenizer.words' is registered" in peek.stderr
    assert "--restart" not in peek.stderr


def test_commands_find_the_tokenizer_of_an_installed_package(folder: Path) -> None:
    assert ENTRY_POINT is not None
    group, kind, value = ENTRY_POINT.groups()
    (folder / "my_texts" / "large.txt").unlink()
    run(sys.executable, "script.py", folder=folder)
    package = folder / "site" / "my_tokenizer-1.0.dist-info"
    package.mkdir(parents=True)
    (folder / "my_tokenizer.py").rename(folder / "site" / "my_tokenizer.py")
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: my_tokenizer\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{group}]\n{kind} = {value}\n")
    path = str(folder / "site")
    assert "the ? of the ?" in run(COMMAND, "peek", "data/corpus", folder=folder, PYTHONPATH=path)
    run(COMMAND, "verify", "data/corpus", folder=folder, PYTHONPATH=path)
    if find_spec("torch"):
        written = run(sys.executable, "-c", TRAINING, folder=folder, PYTHONPATH=path)
        assert written.startswith("the ?")


def load_class() -> Any:
    namespace: dict[str, Any] = {"__name__": "my_tokenizer"}
    exec(MODULE, namespace)
    return namespace["WordTokenizer"]


def test_a_registered_class_is_restored_from_its_state() -> None:
    tokenizer = load_class()(WORDS)
    assert load_tokenizer(tokenizer) is tokenizer
    again = from_state(json.loads(json.dumps(tokenizer.state())))
    assert type(again) is type(tokenizer)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.fingerprint != type(tokenizer)([*WORDS, "a"]).fingerprint
    assert type(from_state(tokenizer.state())) is not type(load_class()(WORDS))  # defined again


def test_default_methods_agree_with_encode() -> None:
    tokenizer = load_class()(WORDS)
    ids, offsets = tokenizer.encode_batch([b"the end", b"", b"in"])
    assert (ids.tolist(), offsets.tolist(), ids.dtype) == ([1, 0, 5], [0, 2, 2, 3], np.uint32)
    ids, offsets = tokenizer.encode_terminated([b"the end", b"", b"in"])
    assert (ids.tolist(), offsets.tolist()) == ([1, 0, 6, 6, 5, 6], [0, 3, 4, 6])
    block = tokenizer.encode_block(b"the end\0\0in")
    assert (block[0].tolist(), block[1].tolist()) == (ids.tolist(), offsets.tolist())
    assert tokenizer.encode_terminated([])[1].tolist() == [0]
    ids, size = tokenizer.settle(b"the end of th")
    assert (ids.tolist(), size) == ([1, 0, 2], len("the end of"))
    assert tokenizer.byte_lengths().tolist() == [1, 3, 2, 3, 2, 2, 5]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": ""}, "has no `kind`"),
        ({"name": ""}, "has no `name`"),
        ({"vocab_size": 0}, "`vocab_size` of .* must be from 1 to"),
        ({"vocab_size": 1 << 33}, "`vocab_size` of .* must be from 1 to"),
        ({"eot_id": 9}, "`eot_id` of .* must be an id below 3"),
    ],
)
def test_missing_attributes_are_named(changes: dict[str, Any], reason: str) -> None:
    attributes = {
        "kind": "test.attributes",
        "name": "x",
        "vocab_size": 3,
        "encode": lambda _self, _text: [],
        "decode": lambda _self, _ids: "",
        "settings": lambda _self: {},
    }
    incomplete = type("Incomplete", (tokenmill.Tokenizer,), attributes | changes)
    with pytest.raises(TokenizerError, match=reason):
        load_tokenizer(incomplete())


def test_a_class_that_workers_cannot_import_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the end")
    call = f"tokenmill.prepare('a.txt', 'data', tokenizer=WordTokenizer({WORDS}))"
    done = subprocess.run(
        [sys.executable, "-c", MODULE + call], cwd=tmp_path, capture_output=True, text=True
    )
    assert "WordTokenizer is defined in a script or notebook" in done.stderr
    assert not (tmp_path / "data").exists()

    class Local(load_class()):  # type: ignore[misc]
        kind = "test.local"

    with pytest.raises(TokenizerError, match=r"Local cannot be pickled .* top level of a module"):
        tokenmill.prepare(tmp_path / "a.txt", tmp_path / "data", tokenizer=Local(WORDS))


@pytest.mark.parametrize("ids", [[-1], [7], [0.5], [[1]], ["a"]])
def test_invalid_ids_of_a_users_tokenizer_are_refused(ids: list[Any]) -> None:
    class Wrong(load_class()):  # type: ignore[misc]
        def encode(self, _text: bytes) -> list[Any]:
            return ids

    with pytest.raises(TokenizerError, match=r"is not an id|must be a flat sequence of integers"):
        Wrong(WORDS).encode_batch([b"a"])


def test_a_kind_belongs_to_one_class() -> None:
    first = load_class()
    for kind in (first.kind, "bytes", "bpe"):
        other = type("Other", (first,), {"kind": kind})
        with pytest.raises(
            TokenizerError, match=f"the kind '{kind}' of .*Other is already used by"
        ):
            tokenmill.register_tokenizer(other)


@pytest.mark.parametrize("wrong", [int, "my_tokenizer", None, tokenmill.Tokenizer])
def test_only_complete_subclasses_can_be_registered(wrong: Any) -> None:
    with pytest.raises(TokenizerError, match=r"is not a tokenizer class\. Subclass tokenmill\."):
        tokenmill.register_tokenizer(wrong)


def test_a_state_never_imports_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for kind in ("hostile", "hostile:Tokenizer", "hostile.Tokenizer"):
        with pytest.raises(UnregisteredTokenizerError, match="register_tokenizer"):
            from_state({"kind": kind, "module": "hostile", "class": "hostile.Tokenizer"})
    assert "hostile" not in sys.modules


def test_damaged_settings_of_a_users_tokenizer_are_refused() -> None:
    kind = load_class().kind
    for settings in ({}, {"words": 3}, {"words": WORDS, "more": 1}):
        with pytest.raises(TokenizerError, match="the state of a tokenizer is damaged"):
            from_state({"kind": kind, **settings})
