"""Load a tokenizer by name or path.

`load_tokenizer` accepts:

- `gpt2` and `bytes`, which are built in;
- a `tokenizer.json`, or a folder that contains one;
- a tiktoken file or a SentencePiece model;
- the state of a tokenizer, such as a dataset's `tokenizer_state.json`. The tokenizer's class must be
  built in, registered, or provided by an installed package;
- `organisation/name` on the Hugging Face Hub. Only this needs a network.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tokenmill.errors import DatasetError, TokenizerError
from tokenmill.hub.single_file import fetch
from tokenmill.storage.reading import FOREIGN_CURE, find_cure, read_foreign
from tokenmill.tokenizers.base import Tokenizer, choose_eot
from tokenmill.tokenizers.bpe import UnsupportedError
from tokenmill.tokenizers.gpt2 import read_gpt2
from tokenmill.tokenizers.library import LibraryTokenizer, LibraryVocabulary, has_library
from tokenmill.tokenizers.limits import MOST_BYTES, parse_object
from tokenmill.tokenizers.minimal import ByteTokenizer
from tokenmill.tokenizers.registry import check_tokenizer, from_state
from tokenmill.tokenizers.sentencepiece import (
    SentencePieceTokenizer,
    SentencePieceVocabulary,
    read_model_file,
)
from tokenmill.tokenizers.tiktoken import (
    TiktokenTokenizer,
    TiktokenVocabulary,
    read_tiktoken_file,
)
from tokenmill.tokenizers.tokenizer_json import (
    JsonTokenizer,
    JsonVocabulary,
    check_added_ids,
)
from tokenmill.tokenizers.trial import try_in_child

_ACCEPTED = (
    "gpt2, bytes, a path to a tokenizer.json or to a folder with one, a path to a .tiktoken file "
    "or a SentencePiece .model, a dataset's tokenizer_state.json, or organisation/name on the "
    "Hugging Face Hub"
)


def load_tokenizer(
    name: str | os.PathLike[str] | Tokenizer,
    *,
    scheme: str | None = None,
    eot: str | int | None = None,
) -> Tokenizer:
    """Return a tokenizer, loaded by its name or path; docs/tokenizers.md lists what is accepted.

    If `name` is already an instance of `tokenmill.Tokenizer`, it is checked and returned.

    `scheme` says how text is split before merging. Only .tiktoken files need it, unless they have
    the name of a published file. `eot` is the special token, or the id, between documents. By
    default, `eot` comes from the tokenizer's configuration, or is a special token with a common
    spelling.

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
    if isinstance(name, Tokenizer):
        check_tokenizer(name)
        return name
    if not isinstance(name, (str, os.PathLike)):
        raise TokenizerError(
            f"{name!r} is not a tokenizer. Use {_ACCEPTED}, or an instance of a subclass of "
            "tokenmill.Tokenizer."
        )
    text = os.fspath(name)
    path = Path(text)
    if scheme is not None and path.suffix != ".tiktoken":
        raise TokenizerError(
            f"`scheme` ({scheme!r}) is only for .tiktoken files. {text!r} is not one, so omit `scheme`."
        )
    if text == "bytes":
        return ByteTokenizer(eot=eot)
    if text == "gpt2":
        return _load_gpt2(eot)
    mode = _find_mode(path) if text else 0
    if stat.S_ISDIR(mode):
        return _load_folder(path, eot)
    if stat.S_ISREG(mode):
        return _load_file(path, scheme, eot)
    if _looks_like_hub_name(text):
        return _load_from_hub(text, eot)
    raise TokenizerError(f"There is no tokenizer {text!r}. {_suggest(text)}Use {_ACCEPTED}.")


def _load_gpt2(eot: str | int | None) -> Tokenizer:
    vocabulary = JsonVocabulary(read_gpt2(), "gpt2")
    eot_id = choose_eot(vocabulary.special_ids, vocabulary.vocab_size, eot, where="gpt2")
    # The files match their checksums, so gigatoken accepts them: build its tables when needed.
    return JsonTokenizer(vocabulary, name="gpt2", eot_id=eot_id, checked=True)


def _find_mode(path: Path) -> int:
    """Return the `st_mode` of a path; 0 if it does not exist."""
    try:
        return path.stat().st_mode
    except PermissionError as error:
        raise _refuse(path, error) from error
    except (OSError, ValueError):  # no such file, or a name that no file can have
        return 0


def _refuse(path: Path, error: OSError) -> TokenizerError:
    return TokenizerError(
        f"{str(path)!r} cannot be read: {error.strerror}. {find_cure(error, FOREIGN_CURE)}"
    )


def _load_folder(folder: Path, eot: str | int | None) -> Tokenizer:
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise _refuse(folder, error) from error
    if "tokenizer.json" in names:
        return _load_file(folder / "tokenizer.json", None, eot, name=folder.resolve().name)
    models = [name for name in names if name.endswith(".model")]
    if len(models) == 1:
        return _load_file(folder / models[0], None, eot)
    raise TokenizerError(
        f"the folder {str(folder)!r} contains no tokenizer.json, and not exactly one .model file. "
        "Give the path of a tokenizer's file."
    )


def _load_file(
    path: Path, scheme: str | None, eot: str | int | None, *, name: str | None = None
) -> Tokenizer:
    if path.suffix not in (".json", ".model", ".tiktoken"):
        raise TokenizerError(
            f"{str(path)!r} is not a known kind of tokenizer file. Use {_ACCEPTED}."
        )
    data = _read(path)
    configured = None
    if path.suffix == ".json":
        if b'"kind"' in data:
            document = parse_object(data, path.name)
            if "kind" in document and "model" not in document:
                return _restore(document, path, eot)
        configured = _read_configured_eot(path.with_name("tokenizer_config.json"))
    stem = path.stem if path.name != "tokenizer.json" else path.resolve().parent.name
    return _load(
        data,
        where=path.name,
        suffix=path.suffix,
        name=name or stem,
        scheme=scheme,
        eot=eot,
        configured=configured,
    )


def _load(data: bytes, **settings: Any) -> Tokenizer:
    try_in_child(data, **settings)
    return read_tokenizer(data, **settings)


def read_tokenizer(
    data: bytes,
    *,
    where: str,
    suffix: str,
    name: str,
    scheme: str | None = None,
    eot: str | int | None = None,
    configured: str | None = None,
) -> Tokenizer:
    """Make a tokenizer from the content of a file, without a trial in a child process.

    Error messages call the file `where`. `configured` is the end-of-text token that the
    tokenizer_config.json beside the file names.
    """
    name = name.encode(errors="replace").decode()  # a name that is not UTF-8 cannot be saved
    if suffix == ".tiktoken":
        return _finish(read_tiktoken_file(data, where, scheme, eot), name, eot)
    if suffix == ".model":
        return _finish(read_model_file(data, where), name, eot)
    document = parse_object(data, where)
    try:
        return _finish(_read_document(document, where), name, eot, configured)
    except UnsupportedError as error:
        return _finish(_read_for_library(document, where, error), name, eot, configured)


def _read(path: Path) -> bytes:
    try:
        return read_foreign(path.parent, path.name, MOST_BYTES)
    except DatasetError as error:
        raise TokenizerError(str(error)) from error


def _restore(state: Mapping[str, Any], path: Path, eot: str | int | None) -> Tokenizer:
    if eot is not None:
        raise TokenizerError(
            f"`eot` is {eot!r}, but {str(path)!r} is the state of a tokenizer, which includes the "
            "end-of-text id. Omit `eot`."
        )
    tokenizer = from_state(state)
    check_tokenizer(tokenizer)
    return tokenizer


def _load_from_hub(name: str, eot: str | int | None) -> Tokenizer:
    file = fetch(name, "tokenizer.json", suggestion=_suggest(name))
    try:
        configured = _read_configured_eot(fetch(name, "tokenizer_config.json"))
    except TokenizerError:  # the repository has no tokenizer_config.json
        configured = None
    return _load(_read(file), where=name, suffix=".json", name=name, eot=eot, configured=configured)


def _read_document(
    document: Mapping[str, Any], where: str
) -> JsonVocabulary | SentencePieceVocabulary:
    model = document.get("model")
    if isinstance(model, Mapping) and model.get("byte_fallback"):
        return SentencePieceVocabulary(document, where)
    vocabulary = JsonVocabulary(document, where)
    check_added_ids(document, where)
    return vocabulary


def _read_for_library(
    document: Mapping[str, Any], where: str, refusal: UnsupportedError
) -> LibraryVocabulary:
    """Read a tokenizer.json for the `tokenizers` library, because gigatoken cannot be exact."""
    try:
        vocabulary = LibraryVocabulary(document, where)
        if has_library():
            vocabulary.check()
            return vocabulary
    except TokenizerError as error:
        reason = str(error).partition(" cannot be used as a tokenizer: ")[2] or str(error)
        raise TokenizerError(
            f"{refusal}; the `tokenizers` library cannot encode it either: {reason}"
        ) from error
    raise TokenizerError(
        f"{refusal}. The `tokenizers` library may be able to encode it: "
        "pip install 'tokenmill[tokenizers]'"
    ) from None


def _finish(
    vocabulary: JsonVocabulary | TiktokenVocabulary | SentencePieceVocabulary | LibraryVocabulary,
    name: str,
    eot: str | int | None,
    configured: str | None = None,
) -> Tokenizer:
    eot_id = choose_eot(vocabulary.special_ids, vocabulary.vocab_size, eot, configured, where=name)
    if isinstance(vocabulary, SentencePieceVocabulary):
        return SentencePieceTokenizer(vocabulary, name=name, eot_id=eot_id)
    if isinstance(vocabulary, LibraryVocabulary):
        return LibraryTokenizer(vocabulary, name=name, eot_id=eot_id)
    if isinstance(vocabulary, TiktokenVocabulary):
        return TiktokenTokenizer(vocabulary, name=name, eot_id=eot_id)
    return JsonTokenizer(vocabulary, name=name, eot_id=eot_id)


def _read_configured_eot(config: Path) -> str | None:
    """Return the `eos_token` in a tokenizer_config.json; None if there is no such file or entry."""
    if not _find_mode(config):
        return None
    token = parse_object(_read(config), config.name, "tokenizer_config.json").get("eos_token")
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _looks_like_hub_name(text: str) -> bool:
    has_suffix = text.endswith((".json", ".model", ".tiktoken", ".txt", "/"))
    return not has_suffix and re.fullmatch(r"[\w][\w.-]*/[\w][\w.-]*", text) is not None


def _suggest(text: str) -> str:
    if text.endswith((".json", ".model", ".tiktoken")):
        return "No such file exists. "
    near = get_close_matches(text.rpartition("/")[2].lower(), ("gpt2", "bytes"), n=1, cutoff=0.6)
    return f"Did you mean {near[0]!r}? " if near else ""
