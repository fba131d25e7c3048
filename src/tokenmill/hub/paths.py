"""Parse paths on the Hugging Face Hub: hf://datasets/OWNER/NAME@REVISION/PATH."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from tokenmill.errors import UsageError

_SCHEME = re.compile(r"hf:/{1,2}")  # pathlib.Path turns two slashes into one
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.\-]*"
_HUB_PATH = re.compile(
    rf"(?P<repository>{_NAME}/{_NAME})"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/@]+|[^/@]+))?"
    r"(?:/+(?P<path>.*?))?/*",
    re.DOTALL,
)
# Names that git allows. A revision becomes a path in the cache, so no component between slashes may
# be empty or start with a dot.
_PART = r"(?!\.)[^\s\x00-\x1f\x7f\ud800-\udfff:~^?*\[\\/]+"
_REVISION = re.compile(rf"{_PART}(?:/{_PART})*")


@dataclass(frozen=True, kw_only=True)
class HubPath:
    """A repository, a revision, and a file, folder or glob in the repository ("" for all)."""

    repository: str
    revision: str = "main"
    path: str = ""

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"hf://datasets/{self.repository}{revision}" + (f"/{self.path}" if self.path else "")


def is_hub_path(path: str | os.PathLike[str]) -> bool:
    """Return whether a path begins with hf://.

    >>> is_hub_path("hf://datasets/OWNER/NAME"), is_hub_path("data/corpus")
    (True, False)
    """
    return _SCHEME.match(os.fspath(path)) is not None


def parse_hub_path(text: str | os.PathLike[str]) -> HubPath:
    """Parse a Hub path. The prefix `hf://datasets/` is optional.

    >>> parse_hub_path("hf://datasets/OWNER/NAME@v1/data")
    HubPath(repository='OWNER/NAME', revision='v1', path='data')
    >>> str(parse_hub_path("OWNER/NAME"))
    'hf://datasets/OWNER/NAME'
    """
    text = os.fspath(text)
    rest = _SCHEME.sub("", text, count=1)
    if rest != text:
        rest = rest.removeprefix("datasets/") if rest.startswith("datasets/") else ""
    match = _HUB_PATH.fullmatch(rest)
    revision = unquote((match and match["revision"]) or "main")
    if not match or not _REVISION.fullmatch(revision) or ".." in revision:
        raise UsageError(
            f"{text!r} is not a dataset on the Hub. Write OWNER/NAME or hf://datasets/OWNER/NAME; "
            "append /FOLDER or /FILE for a part of it."
        )
    return HubPath(
        repository=match["repository"],
        revision=revision,
        path=match["path"] or "",
    )
