"""Restore a tokenizer from its state, such as a dataset's `tokenizer_state.json`.

A state names the kind of the tokenizer. The class for a kind is built in, registered, or provided
by an installed package as an entry point of the group `tokenmill.tokenizers`. A dataset may be
untrusted: nothing in a state is ever used as the name of a module to import, and a damaged state
raises a TokenizerError.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from inspect import isabstract
from typing import Any, TypeVar

import orjson

from tokenmill.errors import TokenizerError, UnregisteredTokenizerError
from tokenmill.tokenizers.base import Tokenizer
from tokenmill.tokenizers.library import LibraryTokenizer
from tokenmill.tokenizers.minimal import ByteTokenizer, UnknownTokenizer
from tokenmill.tokenizers.sentencepiece import SentencePieceTokenizer
from tokenmill.tokenizers.tiktoken import TiktokenTokenizer
from tokenmill.tokenizers.tokenizer_json import JsonTokenizer
from tokenmill.tokenizers.trial import try_in_child
from tokenmill.wording import brief

ENTRY_POINTS = "tokenmill.tokenizers"
_BUILT_IN = (
    ByteTokenizer,
    UnknownTokenizer,
    JsonTokenizer,
    TiktokenTokenizer,
    SentencePieceTokenizer,
    LibraryTokenizer,
)
_WITH_VOCABULARY = (JsonTokenizer, TiktokenTokenizer, SentencePieceTokenizer, LibraryTokenizer)
_classes: dict[str, type[Tokenizer]] = {built_in.kind: built_in for built_in in _BUILT_IN}

Class = TypeVar("Class", bound=type[Tokenizer])


def register_tokenizer(tokenizer_class: Class) -> Class:
    """Register a tokenizer class, so that datasets find it by its `kind`. Usable as a decorator.

    Call it in the module that defines the class, so that importing the module registers the class.
    A class that is defined again, as in a notebook, replaces its earlier version. If a class with
    another name has the same kind, a TokenizerError is raised.
    """
    _check_class(tokenizer_class)
    kind = tokenizer_class.kind
    current = _classes.setdefault(kind, tokenizer_class)
    if (current.__module__, current.__qualname__) != (
        tokenizer_class.__module__,
        tokenizer_class.__qualname__,
    ):
        raise TokenizerError(
            f"the kind {kind!r} of {_name(tokenizer_class)} is already used by {_name(current)}. "
            "Choose another `kind`."
        )
    _classes[kind] = tokenizer_class
    return tokenizer_class


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer that lacks a required attribute."""
    found = type(tokenizer)
    _check_class(found)
    vocab_size, eot_id = tokenizer.vocab_size, tokenizer.eot_id
    if not tokenizer.name or not isinstance(tokenizer.name, str):
        raise TokenizerError(f"{_name(found)} has no `name`. Set it on the class or in __init__.")
    if not isinstance(vocab_size, int) or not 0 < vocab_size <= 1 << 32:
        raise TokenizerError(
            f"`vocab_size` of {_name(found)} must be from 1 to 2**32, got {vocab_size!r}. "
            "Set it to one more than the largest id."
        )
    if eot_id is not None and (not isinstance(eot_id, int) or not 0 <= eot_id < vocab_size):
        raise TokenizerError(
            f"`eot_id` of {_name(found)} must be an id below {vocab_size}, or None, got {eot_id!r}."
        )


def check_picklable(tokenizer: Tokenizer) -> None:
    """Refuse a user's tokenizer that cannot be sent to worker processes."""
    found = type(tokenizer)
    if found in _BUILT_IN:
        return
    if found.__module__ == "__main__":
        raise TokenizerError(
            f"{_name(found)} is defined in a script or notebook, where worker processes cannot "
            "import it. Move the class to a module: a .py file that the script imports."
        )
    try:
        pickle.dumps(tokenizer)
    except Exception as error:
        raise TokenizerError(
            f"{_name(found)} cannot be pickled for worker processes ({error}). Define the class at "
            "the top level of a module, and omit what cannot be pickled from __getstate__."
        ) from error


def from_state(state: Mapping[str, Any]) -> Tokenizer:
    """Restore a tokenizer from what its `state()` returned.

    If the tokenizer is built in and has a vocabulary, a child process loads it first: see `trial.py`.

    >>> from tokenmill.tokenizers import load_tokenizer
    >>> gpt2 = load_tokenizer("gpt2")
    >>> from_state(gpt2.state()).fingerprint == gpt2.fingerprint
    True
    >>> from_state({"kind": "telepathy"})
    Traceback (most recent call last):
    ...
    tokenmill.errors.UnregisteredTokenizerError: no tokenizer class of kind 'telepathy' is \
registered. Import the module that defines it and call tokenmill.register_tokenizer(THE_CLASS), or \
install the package that provides it.
    """
    if not isinstance(state, Mapping):
        raise TokenizerError(
            f"the state of a tokenizer must be an object, got {type(state).__name__}. Pass what "
            "its state() returned."
        )
    kind = state.get("kind")
    if not isinstance(kind, str):
        raise TokenizerError(
            f"the state of a tokenizer is damaged: its `kind` must be a name, got {brief(kind)}. "
            "Use an undamaged copy of it."
        )
    tokenizer_class = _find_class(kind)
    if tokenizer_class in _WITH_VOCABULARY:
        try:
            data = orjson.dumps(state, option=orjson.OPT_SORT_KEYS)
        except TypeError as error:
            raise TokenizerError(
                f"the state of a tokenizer is damaged: {error}. Use an undamaged copy of it."
            ) from error
        try_in_child(data, where="the state of a tokenizer", state=True)
    return restore(state)


def restore(state: Mapping[str, Any]) -> Tokenizer:
    """Restore a tokenizer as `from_state` does, but without the trial in a child process."""
    try:
        return _find_class(state["kind"]).from_settings(
            {name: value for name, value in state.items() if name != "kind"}
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = str(error)[:300]
        raise TokenizerError(
            f"the state of a tokenizer is damaged: {type(error).__name__} {reason}. Use an "
            "undamaged copy of it."
        ) from error


def _find_class(kind: str) -> type[Tokenizer]:
    if kind in _classes:
        return _classes[kind]
    # Imported only here: it takes 12 ms, a sixth of the time to import this package.
    from importlib.metadata import entry_points

    for entry_point in entry_points(group=ENTRY_POINTS, name=kind):
        try:
            found: type[Tokenizer] = entry_point.load()
        except Exception as error:
            raise TokenizerError(
                f"the tokenizer class of kind {kind!r} cannot be imported from {entry_point.value!r}: "
                f"{type(error).__name__}: {error}. Fix or reinstall the package that provides it."
            ) from error
        _check_class(found)
        if found.kind != kind:
            raise TokenizerError(
                f"the entry point {kind!r} in {ENTRY_POINTS!r} is {_name(found)}, whose `kind` is "
                f"{found.kind!r}. Give both the same name."
            )
        return register_tokenizer(found)
    raise UnregisteredTokenizerError(
        f"no tokenizer class of kind {brief(kind)} is registered. Import the module that defines it and "
        "call tokenmill.register_tokenizer(THE_CLASS), or install the package that provides it."
    )


def _check_class(found: Any) -> None:
    if not isinstance(found, type) or not issubclass(found, Tokenizer) or isabstract(found):
        raise TokenizerError(
            f"{found!r} is not a tokenizer class. Subclass tokenmill.Tokenizer and implement encode, "
            "decode and settings."
        )
    if not isinstance(found.kind, str) or not found.kind:
        raise TokenizerError(
            f"{_name(found)} has no `kind`. Set it on the class, to a name that no other tokenizer "
            "uses."
        )


def _name(tokenizer_class: type) -> str:
    return f"{tokenizer_class.__module__}.{tokenizer_class.__qualname__}"
