"""The settings that decide the bytes of a dataset. They are checked, and stored in the manifest.

Options that never change a byte, such as `workers` and `memory`, are not among them.
`PrepareArguments` has the same names, so that type checkers know the arguments of `prepare`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypedDict, get_args, get_origin, get_type_hints

from tokenmill.contamination.evaluation import check_size
from tokenmill.errors import UsageError
from tokenmill.preparation.filters.rules import parse_filters, split_list
from tokenmill.sources.encodings import AUTO, name_encoding
from tokenmill.sources.fields import parse_text_field
from tokenmill.sources.kept_fields import parse_kept_fields

EOT_TEXT = "<|endoftext|>"
_NEWER = (
    "compress",
    "csv",
    "decontaminate_action",
    "decontaminate_common",
    "decontaminate_field",
    "decontaminate_words",
    "encoding",
    "filter",
    "keep_fields",
    "language",
    "mask_emails",
    "mask_ips",
    "near_threshold",
    "sample",
    "weight",
)
SPLITS = ("train", "val")
_TYPE_NAMES = {str: "a string", bool: "True or False", int: "a whole number", float: "a number"}


class PrepareArguments(TypedDict, total=False):
    """The fields of `PrepareSettings`, as keyword arguments. All may be omitted."""

    documents: str
    text_field: str
    csv: Literal["auto", "records", "text"]
    keep_fields: str
    encoding: str
    normalize: bool
    dedup: Literal["documents", "near", "lines", "none"]
    near_threshold: float
    min_line: int
    val_fraction: float
    tokens_per_shard: int
    eot: Literal["after", "before", "none"]
    dtype: Literal["auto", "uint16", "uint32"]
    compress: Literal["none", "zstd"]
    on_bad_text: Literal["repair", "drop", "refuse"]
    skip_bad_files: bool
    decontaminate_action: Literal["drop", "cut", "report"]
    decontaminate_words: int
    decontaminate_common: int
    decontaminate_field: str
    filter: str | Sequence[str]
    language: str | Sequence[str]
    mask_emails: bool
    mask_ips: bool
    sample: float
    weight: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class PrepareSettings:
    r"""The settings that decide what a dataset contains.

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
        Name of the JSON field or Parquet column that contains the text, such as text or meta.text.
        {title}\n\n{body} joins several fields; {title?} may be missing.
    csv
        How to read CSV and TSV files: records (the text is the column that `text_field` names), text
        (plain text), or auto (records if you give `text_field` and the header has that column).
    keep_fields
        Fields of each record to keep beside the tokens, such as url,date,meta.lang. `peek` and
        `explain` show them.
    encoding
        Encoding of plain text and JSON lines, such as cp1252 or shift_jis. auto means UTF-8, and
        UTF-16 or UTF-32 where a file is certainly in one of them.
    normalize
        Clean the text: convert Unicode to NFC; clean up line ends, control characters and white
        space.
    dedup
        Duplicates to remove: documents, near (equal documents, then similar ones), lines or none.
        The first copy stays.
    near_threshold
        Similarity from which documents are near duplicates: the share of runs of five words that
        two documents have in common. Used only if `dedup` is near.
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
    decontaminate_action
        What to do about documents that contain evaluation texts: drop the document, cut the passage,
        or only report it.
    decontaminate_words
        Number of words in a row that a document must share with an evaluation text.
    decontaminate_common
        Ignore words in a row that occur in more than this number of documents, or of evaluation
        texts.
    decontaminate_field
        Name of the JSON field or Parquet column of evaluation files that contains the text.
    filter
        Drop documents by rules: gopher, c4 or fineweb, a rule such as min_words=30, a rule with
        another threshold such as gopher.min_words=30 (or off), script=Latin:0.5, or a function
        my_module:function. May be repeated, or a list with commas.
    language
        Drop documents in other languages. Codes such as en,de; any drops none and counts the
        documents of each language.
    mask_emails
        Replace email addresses with the word EMAIL, in angle brackets.
    mask_ips
        Replace IP addresses with the word IP, in angle brackets.
    sample
        Share of the documents to take, chosen by a hash of their text. A smaller sample is part of a
        larger one.
    weight
        Share of the documents to take from some input files, as PATTERN=SHARE, such as 'web/*=0.5'.
        Multiplies `sample`. May be repeated; the first pattern that matches a file counts.
    """

    documents: str = "auto"
    text_field: str = "text"
    csv: Literal["auto", "records", "text"] = "auto"
    keep_fields: str = ""
    encoding: str = AUTO
    normalize: bool = True
    dedup: Literal["documents", "near", "lines", "none"] = "documents"
    near_threshold: float = 0.8
    min_line: int = 20
    val_fraction: float = 0.01
    tokens_per_shard: int = 100_000_000
    eot: Literal["after", "before", "none"] = "after"
    dtype: Literal["auto", "uint16", "uint32"] = "auto"
    compress: Literal["none", "zstd"] = "none"
    on_bad_text: Literal["repair", "drop", "refuse"] = "repair"
    skip_bad_files: bool = False
    decontaminate_action: Literal["drop", "cut", "report"] = "drop"
    decontaminate_words: int = 13
    decontaminate_common: int = 100
    decontaminate_field: str = "text"
    filter: tuple[str, ...] = ()
    language: tuple[str, ...] = ()
    mask_emails: bool = False
    mask_ips: bool = False
    sample: float = 1.0
    weight: Sequence[str] = ()

    def __post_init__(self) -> None:
        given = [self.weight] if isinstance(self.weight, str) else self.weight
        object.__setattr__(self, "weight", tuple(given))
        for name, kind in get_type_hints(type(self)).items():
            if name == "weight":
                continue
            if get_origin(kind) is tuple:
                self._split(name)
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
        if not 0.3 <= self.near_threshold <= 1:
            raise UsageError(
                f"`near_threshold` is {self.near_threshold}; it must be at least 0.3, and at most 1."
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
        check_size(self.decontaminate_words, "decontaminate_words")
        if not 1 <= self.decontaminate_common < 1 << 62:
            raise UsageError(
                f"`decontaminate_common` is {self.decontaminate_common}; it must be at least 1, and below "
                "2**62."
            )
        for name in ("documents", "text_field", "decontaminate_field", "keep_fields"):
            if not _is_unicode(getattr(self, name)):
                raise UsageError(
                    f"`{name}` is {getattr(self, name)!r}, which is not valid Unicode. Give it as UTF-8."
                )
        if not self.documents:
            raise UsageError(
                "`documents` is empty; give auto, file, line, blank-line or a separator."
            )
        if self.encoding != AUTO:
            known = name_encoding(self.encoding)
            if known is None:
                raise UsageError(
                    f"`encoding` is {self.encoding!r}, which is not an encoding that can be read. "
                    "Use auto, or a name such as cp1252, latin-1, shift_jis, gb18030 or utf-16."
                )
            object.__setattr__(self, "encoding", known)  # one name for each, to compare runs
        for name in ("text_field", "decontaminate_field"):
            if not getattr(self, name):
                raise UsageError(
                    f"`{name}` is empty; give the name of the field that holds the text."
                )
        parse_text_field(self.text_field)  # raises an error for an invalid template
        parse_kept_fields(self.keep_fields)
        parse_filters(self.filter)

    def _split(self, name: str) -> None:
        """Check a setting that is a list, or text with commas, and store it as a tuple."""
        value = getattr(self, name)
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, (list, tuple)) or not all(
            isinstance(one, str) and _is_unicode(one) for one in listed
        ):
            raise UsageError(f"`{name}` is {value!r}; it must be text, or a list of texts.")
        object.__setattr__(self, name, split_list(listed))

    @property
    def converts(self) -> bool:
        """Whether all text is converted to UTF-8, which is possible only from its beginning."""
        return self.encoding not in (AUTO, "utf-8")

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

        Those that came later than the first datasets are last, and are omitted if they have their
        defaults. The threshold is stored if it was used.
        """
        settings = asdict(self)
        for field in fields(self):
            if field.name in _NEWER:
                value = settings.pop(field.name)
                is_used = self.dedup == "near" and field.name == "near_threshold"
                if value != field.default or is_used:
                    settings[field.name] = list(value) if isinstance(value, tuple) else value
        if self.dedup != "near":
            settings.pop("near_threshold", None)
        return settings

    @property
    def removes_repeats(self) -> bool:
        """Whether equal documents are removed."""
        return self.dedup in ("documents", "near")


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
