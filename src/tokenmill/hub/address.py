"""What a user writes for a dataset on the hub, taken apart."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from tokenmill.errors import UsageError

_SCHEME = re.compile(r"hf:/{1,2}")  # one slash is what a pathlib.Path leaves of two
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.\-]*"
_ADDRESS = re.compile(
    rf"(?P<repository>{_NAME}/{_NAME})"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/@]+|[^/@]+))?"
    r"(?:/+(?P<path>.*?))?/*",
    re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class Address:
    """A dataset's repository, a revision of it, and a file, folder or glob in it (or all)."""

    repository: str
    revision: str = "main"
    path: str = ""

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"hf://datasets/{self.repository}{revision}" + (f"/{self.path}" if self.path else "")


def is_address(path: str | os.PathLike[str]) -> bool:
    """Whether a path is meant for the hub.

    >>> is_address("hf://datasets/OWNER/NAME"), is_address("data/corpus")
    (True, False)
    """
    return _SCHEME.match(os.fspath(path)) is not None


def parse_address(text: str | os.PathLike[str]) -> Address:
    """The parts of an address; the `hf://datasets/` before it may be left out.

    >>> parse_address("hf://datasets/OWNER/NAME@v1/data")
    Address(repository='OWNER/NAME', revision='v1', path='data')
    >>> str(parse_address("OWNER/NAME"))
    'hf://datasets/OWNER/NAME'
    """
    text = os.fspath(text)
    rest = _SCHEME.sub("", text, count=1)
    if rest != text:
        kind, _, rest = rest.partition("/")
        if kind != "datasets":
            rest = ""
    match = _ADDRESS.fullmatch(rest)
    if not match or ".." in unquote(match["revision"] or ""):
        raise UsageError(
            f"{text!r} is not a dataset on the hub. Write it like OWNER/NAME or "
            "hf://datasets/OWNER/NAME, with /FOLDER or /FILE behind it for a part of it."
        )
    return Address(
        repository=match["repository"],
        revision=unquote(match["revision"] or "main"),
        path=match["path"] or "",
    )
