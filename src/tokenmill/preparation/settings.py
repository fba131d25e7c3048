"""The settings that decide the bytes of a dataset. They are checked, and stored in the manifest.

Options that never change a byte, such as `workers` and `memory`, are not among them.
`PrepareArguments` has the same names, so that type checkers know the arguments of `prepare`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict, get_args, get_type_hints

from tokenmill.errors import UsageError

EOT_TEXT = "<|endoftext|>"
SPLITS = ("train", "val")
_TYPE_NAMES = {str: "a string", bool: "True or False", int: "a whole number", float: "a number"}


class PrepareArguments(TypedDict, total=False):
    """The fields of `PrepareSettings`, as keyword arguments. All may be omitted."""

    documents: str
    text_field: str
    normalize: bool
    dedup: Literal["documents", "lines", "none"]
    min_line: int
    val_fraction: float
    tokens_per_shard: int
    eot: Literal["after", "before", "none"]
    dtype: Literal["auto", "uint16", "uint32"]
    compress: Literal["none", "zstd"]
    on_bad_text: Literal["repair", "drop", "refuse"]
    skip_bad_files: bool
    sample: float
    weight: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class PrepareSettings:
    """The settings that decide what a dataset contains.

    >>> PrepareSettings(val_fraction=2)
    Traceback (most recent call last):
    ...
    tokenmill.errors.UsageError: `val_fraction` is 2; it must be at least 0 and below 1.

    Parameters
    ----------
    documents
        How to split plain text into documents: auto, file (one document per file), line,
        blank-line, or any other text as the separator. auto splits at <|endoftext|>.
    text_field
        Name of the JSON field or Parquet column that contains the text.
    normalize
        Clean the text: convert Unicode to NFC; clean up line ends, control characters and white
        space.
    dedup
        Duplicates to remove: documents, lines or none. The first copy stays.
    min_line
        Length, in characters, of the shortest repeated line to remove. Used only if `dedup` is
        lines.
    val_fraction
        Share of the documents to hold out for validation.
    tokens_per_shard
        Tokens per shard. The last shard of a split may have fewer.
    eot
        Where to put the end-of-text token: after each document, before each document, or nowhere
        (none).
    dtype
        Type of the stored ids. auto means uint16 if the vocabulary allows it, otherwise uint32.
    compress
        Compress shards with zstd, to about a third of the size. Loading becomes slower.
    on_bad_text
        What to do about invalid UTF-8: repair replaces invalid bytes with U+FFFD, drop drops the
        document, refuse rejects the file.
    skip_bad_files
        Skip files that cannot be read, instead of stopping with an error.
    sample
        Share of the documents to take, chosen by a hash of their text. A smaller sample is part of a
        larger one.
    weight
        Share of the documents to take from some input files, as PATTERN=SHARE, such as 'web/*=0.5'.
        Multiplies `sample`. May be repeated; the first pattern that matches a file counts.
    """

    documents: str = "auto"
    text_field: str = "text"
    normalize: bool = True
    dedup: Literal["documents", "lines", "none"] = "documents"
    min_line: int = 20
    val_fraction: float = 0.01
    tokens_per_shard: int = 100_000_000
    eot: Literal["after", "before", "none"] = "after"
    dtype: Literal["auto", "uint16", "uint32"] = "auto"
    compress: Literal["none", "zstd"] = "none"
    on_bad_text: Literal["repair", "drop", "refuse"] = "repair"
    skip_bad_files: bool = False
    sample: float = 1.0
    weight: Sequence[str] = ()

    def __post_init__(self) -> None:
        given = [self.weight] if isinstance(self.weight, str) else self.weight
        object.__setattr__(self, "weight", tuple(given))
        for name, kind in get_type_hints(type(self)).items():
            if name == "weight":
                continue
            allowed = get_args(kind)
            if allowed and getattr(self, name) not in allowed:
                raise UsageError(
                    f"`{name}` is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}."
                )
            accepted = (int, float) if kind is float else kind
            if not allowed and (
                not isinstance(getattr(self, name), accepted)
                or (kind is not bool and isinstance(getattr(self, name), bool))
            ):
                raise UsageError(
                    f"`{name}` is {getattr(self, name)!r}; it must be {_TYPE_NAMES[kind]}."
                )
        if not 0 <= self.val_fraction < 1:
            raise UsageError(
                f"`val_fraction` is {self.val_fraction}; it must be at least 0 and below 1."
            )
        if not 1 <= self.tokens_per_shard < 1 << 62:
            raise UsageError(
                f"`tokens_per_shard` is {self.tokens_per_shard}; it must be positive, and below 2**62."
            )
        if not 1 <= self.min_line < 1 << 62:
            raise UsageError(
                f"`min_line` is {self.min_line}; it must be at least 1, and below 2**62."
            )
        if not 0 < self.sample <= 1:
            raise UsageError(f"`sample` is {self.sample}; it must be above 0, and at most 1.")
        if self.takes_sample and self.dedup == "lines":
            raise UsageError(
                "`sample` and `weight` cannot be combined with `dedup='lines'`: a line could be removed "
                "because of a document that is not in the sample. Use `dedup='documents'`."
            )
        for name in ("documents", "text_field"):
            if not _is_unicode(getattr(self, name)):
                raise UsageError(
                    f"`{name}` is {getattr(self, name)!r}, which is not valid Unicode. Give it as UTF-8."
                )
        if not self.documents:
            raise UsageError(
                "`documents` is empty; give auto, file, line, blank-line or a separator."
            )
        if not self.text_field:
            raise UsageError(
                "`text_field` is empty; give the name of the field that holds the text."
            )

    @property
    def takes_sample(self) -> bool:
        """Whether some documents may be left out because they are not in the sample."""
        return self.sample < 1 or bool(self.weights)

    @property
    def weights(self) -> list[tuple[str, float]]:
        """The patterns and shares of `weight`, in order."""
        return [_parse_weight(text) for text in self.weight]

    @property
    def separator(self) -> bytes | None:
        """The bytes between two documents of a plain text; None if a file is one document.

        For `auto`, the separator is `<|endoftext|>`: a file that does not contain it is one document.
        An empty separator means blank lines.
        """
        known = {"auto": EOT_TEXT.encode(), "file": None, "line": b"\n", "blank-line": b""}
        if self.documents in known:
            return known[self.documents]
        escapes = {"\\n": "\n", "\\t": "\t", "\\r": "\r"}
        text = self.documents
        for written, meant in escapes.items():
            text = text.replace(written, meant)
        return text.encode()

    def to_json(self) -> dict[str, Any]:
        """Return the settings as the manifest stores them.

        `compress`, `sample` and `weight` are omitted if they have their defaults.
        """
        settings = asdict(self)
        compress, sample = settings.pop("compress"), settings.pop("sample")
        weight = list(settings.pop("weight"))
        return (
            settings
            | ({} if compress == "none" else {"compress": compress})
            | ({} if sample == 1 else {"sample": sample})
            | ({"weight": weight} if weight else {})
        )


def _parse_weight(text: object) -> tuple[str, float]:
    """Return the pattern and the share of an entry of `weight`."""
    pattern, sign, number = str(text).rpartition("=")
    try:
        share = float(number)
    except ValueError:
        share = -1.0
    if not pattern or not sign or not _is_unicode(pattern) or not share >= 0:
        raise UsageError(
            f"`weight` is {text!r}; it must be PATTERN=SHARE with a share from 0 to 1, such as "
            "'web/*=0.5'."
        )
    if share > 1:
        raise UsageError(
            f"`weight` is {text!r}, but a share cannot be above 1, because a dataset has each document "
            "once. To train on some sources more often, prepare them as datasets of their own, and give "
            "the mixture weights: tokenmill train web=DATA:0.3 books=DATA2:0.7"
        )
    return pattern, share


def _is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates. A shell argument that is not UTF-8 has some."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
