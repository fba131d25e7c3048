"""Names, paths and folders; the end-of-text token; errors that name the cure."""

from __future__ import annotations

import hashlib
import json
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from vocabularies import END, added, make_document, write_document

import tokenmill
from tokenmill.errors import TokenizerError
from tokenmill.tokenizers import Tokenizer, load_tokenizer


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # An endpoint without a server, and an empty cache.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))


def test_load_tokenizer_is_public_and_returns_tokenizers() -> None:
    assert tokenmill.load_tokenizer is load_tokenizer
    assert isinstance(load_tokenizer("gpt2"), Tokenizer)
    assert isinstance(load_tokenizer("bytes"), Tokenizer)


def test_a_file_and_its_folder_give_the_same_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    path = write_document(folder, make_document())
    by_file, by_text, by_folder = map(load_tokenizer, (path, str(path), folder))
    assert by_file.name == by_text.name == by_folder.name == "my-model"
    assert by_file.fingerprint == by_text.fingerprint == by_folder.fingerprint
    other = path.rename(folder / "other.json")
    assert load_tokenizer(other).name == "other"


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves single files like the Hub, with the commit and tag that its cache needs."""

    def end_headers(self) -> None:
        self.send_header("X-Repo-Commit", "0123456789" * 4)
        self.send_header("ETag", '"' + hashlib.sha1(self.path.encode()).hexdigest() + '"')
        super().end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


WITHOUT_END = {
    "vocab": {
        token: number
        for token, number in make_document()["model"]["vocab"].items()
        if token != "<|endoftext|>"
    }
}
ENDS = [added(END + number, token) for number, token in enumerate(("<|im_end|>", "</s>", "<pad>"))]


@pytest.mark.parametrize(
    ("config", "eot", "expected"),
    [
        (None, None, END + 1),
        ({"eos_token": "<|im_end|>"}, None, END),
        ({"eos_token": {"content": "<|im_end|>"}}, None, END),
        ({"eos_token": "<gone>"}, None, END + 1),
        ({"eos_token": None}, None, END + 1),
        ({"eos_token": "<|im_end|>"}, "<pad>", END + 2),
        (None, END, END),
        (None, str(END), END),
        (None, 0, 0),
    ],
)
def test_the_end_of_text_token_is_requested_configured_or_recognized(
    config: dict[str, Any] | None, eot: str | int | None, expected: int, tmp_path: Path
) -> None:
    document = make_document(added_tokens=ENDS, model=WITHOUT_END)
    write_document(tmp_path, document)
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path, eot=eot)
    assert tokenizer.eot_id == expected
    assert tokenizer.encode_batch([b""])[1].tolist() == [0, 0]


def test_a_tokenizer_without_an_end_of_text_token_has_none(tmp_path: Path) -> None:
    document = make_document(added_tokens=[added(END, "<pad>")], model=WITHOUT_END)
    tokenizer = load_tokenizer(write_document(tmp_path, document))
    assert tokenizer.eot_id is None
    ids, offsets = tokenizer.encode_terminated([b"a", b""])
    assert (ids.tolist(), offsets.tolist()) == ([64, 0, 0], [0, 2, 3])
    with pytest.raises(TokenizerError, match="no special token '</s>'; it has: '<pad>'"):
        load_tokenizer(tmp_path, eot="</s>")
    with pytest.raises(TokenizerError, match=f"{END + 1} is not an id of .*ids are 0 to {END}"):
        load_tokenizer(tmp_path, eot=END + 1)


def test_the_fingerprint_depends_on_the_end_of_text_token(tmp_path: Path) -> None:
    write_document(tmp_path, make_document())
    one, other = load_tokenizer(tmp_path), load_tokenizer(tmp_path, eot=0)
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == load_tokenizer(tmp_path).fingerprint


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gpt-2", "There is no tokenizer 'gpt-2'. Did you mean 'gpt2'?"),
        ("GPT2", "Did you mean 'gpt2'?"),
        ("byte", "Did you mean 'bytes'?"),
        ("nonsense", "There is no tokenizer 'nonsense'. Use gpt2, bytes, a path"),
        ("", "Use gpt2, bytes"),
        ("x/tokenizer.json", "There is no tokenizer 'x/tokenizer.json'. No such file exists"),
        ("/no/such/place", "Use gpt2, bytes"),
        ("../models/mine", "Use gpt2, bytes"),
        ("openai-community/gpt2", "pass the path of a tokenizer.json instead"),
        ("openai-community/gpt2", "Did you mean 'gpt2'?"),
    ],
)
def test_errors_for_wrong_names_list_what_is_accepted(name: str, reason: str) -> None:
    start = time.monotonic()
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(name)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 5


def test_a_tokenizer_on_the_hub_is_downloaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site" / "some-lab" / "small" / "resolve" / "main"
    folder.mkdir(parents=True)
    write_document(folder, make_document(added_tokens=ENDS[:2], model=WITHOUT_END))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    handler = partial(QuietHandler, directory=str(tmp_path / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        tokenizer = load_tokenizer("some-lab/small")
        with pytest.raises(TokenizerError, match=r"has no tokenizer\.json in 'some-lab/other'"):
            load_tokenizer("some-lab/other")
        server.shutdown()
    assert (tokenizer.name, tokenizer.eot_id) == ("some-lab/small", END)
    assert load_tokenizer("some-lab/small").fingerprint == tokenizer.fingerprint


def test_the_state_of_a_dataset_gives_its_tokenizer(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("some words\n" * 20)
    for name in ("gpt2", "bytes"):
        tokenmill.prepare(text, tmp_path / name, tokenizer=name, progress=False)
        restored = load_tokenizer(tmp_path / name / "tokenizer_state.json")
        assert (restored.name, restored.fingerprint) == (name, load_tokenizer(name).fingerprint)


def test_a_state_that_gives_no_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    for state, says in (
        ({"kind": "telepathy"}, "no tokenizer class of kind 'telepathy' is registered"),
        ({"kind": 5}, "its `kind` must be a name, got 5"),
        ({"kind": "bytes"}, "damaged: KeyError 'eot_id'"),
        ({"kind": "bytes", "eot_id": 300}, "end-of-text id 300"),
    ):
        path.write_text(json.dumps(state))
        with pytest.raises(TokenizerError, match=says):
            load_tokenizer(path)
    path.write_text(json.dumps({"kind": "bytes", "eot_id": 256}))
    with pytest.raises(TokenizerError, match="Omit `eot`"):
        load_tokenizer(path, eot=3)


def test_files_that_are_not_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"contains no tokenizer\.json"):
        load_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    for data in (b"", b"{", b"[]", b"null", b"{}", b'{"model": 3}', b'{"model": {}}', b"\xff\xfe"):
        path.write_bytes(data)
        with pytest.raises(TokenizerError, match=r"^tokenizer\.json is .*not a tokenizer\.json"):
            load_tokenizer(path)
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(TokenizerError, match="is not a known kind of tokenizer file"):
        load_tokenizer(text)


def test_an_object_that_is_not_a_tokenizer_is_refused() -> None:
    for wrong in (None, 3, object(), b"gpt2"):
        with pytest.raises(TokenizerError, match=r"is not a tokenizer\. Use gpt2, bytes, a path"):
            load_tokenizer(wrong)  # type: ignore[arg-type]
