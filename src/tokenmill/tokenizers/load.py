"""From a name, a path or a saved state to a tokenizer.

`load_tokenizer` understands: `gpt2` and `bytes`, which need nothing else; a `tokenizer.json` or a
folder that holds one; a tiktoken rank file; a SentencePiece model; and `organisation/name` on the
Hugging Face hub, the only one that needs a network. `from_state` needs neither network nor files,
runs nothing that the state names, and refuses a damaged state with a TokenizerError.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenmill.errors import TokenizerError
from tokenmill.hub.single_file import fetch
from tokenmill.tokenizers.bpe import BytePairTokenizer, Vocabulary
from tokenmill.tokenizers.end_of_text import choose_eot
from tokenmill.tokenizers.gpt2 import read_gpt2
from tokenmill.tokenizers.pieces import PieceTokenizer, PieceVocabulary, read_model_file
from tokenmill.tokenizers.protocol import Tokenizer
from tokenmill.tokenizers.ranks import RankVocabulary, read_rank_file
from tokenmill.tokenizers.raw_bytes import ByteTokenizer
from tokenmill.tokenizers.tokenizer_json import JsonVocabulary, check_numbers, parse_json
from tokenmill.tokenizers.unknown import UNKNOWN, UnknownTokenizer

BUILT_IN = ("gpt2", "bytes")
UNDERSTOOD = (
    "gpt2, bytes, a path to a tokenizer.json or to a folder with one, a path to a .tiktoken rank "
    "file or a SentencePiece .model, or organisation/name on the Hugging Face Hub"
)


def load_tokenizer(
    name: str | os.PathLike[str], *, scheme: str | None = None, eot: str | int | None = None
) -> Tokenizer:
    """A tokenizer by its name or path.

    `scheme` is how the text of a .tiktoken rank file is split before merging; it is needed where
    the file's name does not tell. `eot` is the special token, or the id, to stand between
    documents; by default it is found out.

    >>> tokenizer = load_tokenizer("gpt2")
    >>> tokenizer.vocab_size, tokenizer.eot_id
    (50257, 50256)
    >>> ids, offsets = tokenizer.encode_batch([b"Hello world", b"<|endoftext|>"])
    >>> ids.tolist(), offsets.tolist()
    ([15496, 995, 27, 91, 437, 1659, 5239, 91, 29], [0, 2, 9])
    >>> load_tokenizer("gpt-2")
    Traceback (most recent call last):
    ...
    tokenmill.errors.TokenizerError: There is no tokenizer 'gpt-2'. Did you mean 'gpt2'? Use gpt2, \
bytes, ...
    """
    text = os.fspath(name)
    path = Path(text)
    if scheme is not None and path.suffix != ".tiktoken":
        raise TokenizerError(
            f"`scheme` ({scheme!r}) is only for .tiktoken rank files, and {text!r} is not one"
        )
    if text == "bytes":
        return ByteTokenizer(eot=eot)
    if text == "gpt2":
        return _finish(JsonVocabulary(read_gpt2(), "gpt2"), "gpt2", eot)
    if text and path.is_dir():
        return _load_folder(path, eot)
    if path.is_file():
        return _load_file(path, scheme, eot)
    if _looks_like_hub_name(text):
        return _load_from_hub(text, eot)
    raise TokenizerError(f"There is no tokenizer {text!r}. {_suggest(text)}Use {UNDERSTOOD}.")


def from_state(state: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer whose `state()` this is.

    >>> again = from_state(load_tokenizer("gpt2").state())
    >>> again.fingerprint == load_tokenizer("gpt2").fingerprint
    True
    >>> from_state({"kind": "telepathy"})
    Traceback (most recent call last):
    ...
    tokenmill.errors.TokenizerError: a tokenizer of kind 'telepathy' is not known to this version
    """
    if not isinstance(state, Mapping):
        raise TokenizerError(f"a tokenizer's state is an object, not a {type(state).__name__}")
    kind = state.get("kind")
    try:
        if kind == "bytes":
            return ByteTokenizer(eot=_read_eot(state, 257))
        if kind == UNKNOWN:
            return UnknownTokenizer(state["vocab_size"], state["eot_id"])
        if kind in ("bpe", "sentencepiece"):
            # Special tokens are kept apart from the rest in a state, and together in a file.
            specials = [
                {"id": number, "content": token, "special": True}
                for token, number in state["special_ids"].items()
            ]
            document = dict(state["tokenizer"])
            document["added_tokens"] = [*document["added_tokens"], *specials]
            where = f"the state of tokenizer {state['name']!r}"
            if kind == "sentencepiece":
                pieces = PieceVocabulary(document, where)
                return PieceTokenizer(
                    pieces, name=str(state["name"]), eot_id=_read_eot(state, pieces.vocab_size)
                )
            vocabulary: Vocabulary = JsonVocabulary(document, where)
        elif kind == "tiktoken":
            where = f"the state of tokenizer {state['name']!r}"
            vocabulary = RankVocabulary(
                [base64.b64decode(token, validate=True) for token in state["tokens"]],
                state["scheme"],
                state["special_ids"],
                where,
            )
        else:
            raise TokenizerError(f"a tokenizer of kind {kind!r} is not known to this version")
        eot_id = _read_eot(state, vocabulary.vocab_size)
        return BytePairTokenizer(vocabulary, name=str(state["name"]), eot_id=eot_id)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TokenizerError(
            f"the state of a tokenizer is damaged: {type(error).__name__} {error}"
        ) from error


def _load_folder(folder: Path, eot: str | int | None) -> Tokenizer:
    file = folder / "tokenizer.json"
    if file.is_file():
        return _load_file(file, None, eot, name=folder.resolve().name)
    models = sorted(folder.glob("*.model"))
    if len(models) == 1:
        return _load_file(models[0], None, eot)
    raise TokenizerError(f"the folder {str(folder)!r} holds no tokenizer.json")


def _load_file(
    path: Path, scheme: str | None, eot: str | int | None, *, name: str | None = None
) -> Tokenizer:
    data = path.read_bytes()
    if path.suffix == ".tiktoken":
        vocabulary = read_rank_file(data, path.name, scheme, eot)
        return _finish(vocabulary, path.stem, eot)
    if path.suffix == ".model":
        return _finish(read_model_file(data, path.name), path.stem, eot)
    if path.suffix != ".json":
        raise TokenizerError(
            f"cannot tell what kind of tokenizer {str(path)!r} is. Use {UNDERSTOOD}."
        )
    document = parse_json(data, path.name)
    configured = _read_configured_eot(path.with_name("tokenizer_config.json"))
    fallback = path.stem if path.stem != "tokenizer" else path.resolve().parent.name
    return _finish(_read_document(document, path.name), name or fallback, eot, configured)


def _load_from_hub(name: str, eot: str | int | None) -> Tokenizer:
    file = fetch(name, "tokenizer.json", suggestion=_suggest(name))
    try:
        configured = _read_configured_eot(fetch(name, "tokenizer_config.json"))
    except TokenizerError:  # a repository without one
        configured = None
    document = parse_json(file.read_bytes(), name)
    return _finish(_read_document(document, name), name, eot, configured)


def _read_document(document: Mapping[str, Any], where: str) -> JsonVocabulary | PieceVocabulary:
    model = document.get("model")
    is_pieces = isinstance(model, Mapping) and bool(model.get("byte_fallback"))
    if is_pieces:
        return PieceVocabulary(document, where)
    vocabulary = JsonVocabulary(document, where)
    check_numbers(document, where)
    return vocabulary


def _finish(
    vocabulary: Vocabulary | PieceVocabulary,
    name: str,
    eot: str | int | None,
    configured: str | None = None,
) -> Tokenizer:
    eot_id = choose_eot(vocabulary.special_ids, vocabulary.vocab_size, eot, configured, where=name)
    if isinstance(vocabulary, PieceVocabulary):
        return PieceTokenizer(vocabulary, name=name, eot_id=eot_id)
    # GPT-2's vocabulary is known to the byte; to build its tables can wait for the first text.
    return BytePairTokenizer(vocabulary, name=name, eot_id=eot_id, trusted=name == "gpt2")


def _read_configured_eot(config: Path) -> str | None:
    """What a tokenizer_config.json calls the end of a text, if there is one and it does."""
    if not config.is_file():
        return None
    token = parse_json(config.read_bytes(), config.name).get("eos_token")
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _read_eot(state: Mapping[str, Any], vocab_size: int) -> int | None:
    eot_id = state["eot_id"]
    if eot_id is None:
        return None
    if type(eot_id) is not int or not 0 <= eot_id < vocab_size:
        raise TokenizerError(f"the state of a tokenizer is damaged: end-of-text id {eot_id!r}")
    return eot_id


def _looks_like_hub_name(text: str) -> bool:
    has_suffix = text.endswith((".json", ".model", ".tiktoken", ".txt", "/"))
    return not has_suffix and re.fullmatch(r"[\w][\w.-]*/[\w][\w.-]*", text) is not None


def _suggest(text: str) -> str:
    if text.endswith((".json", ".model", ".tiktoken")):
        return "No such file exists. "
    from difflib import get_close_matches

    near = get_close_matches(text.rpartition("/")[2].lower(), BUILT_IN, n=1, cutoff=0.6)
    return f"Did you mean {near[0]!r}? " if near else ""
