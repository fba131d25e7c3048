"""Addresses of object stores: s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY, https://HOST/PATH.

An address may contain a secret: `https://user:password@host/file`, or a signature in a query. Only
`find_full_address` returns the secret; paths, messages and manifests never contain it. The full
address is kept in an environment variable, so that the worker processes of a run find it too.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

import xxhash

from tokenmill.errors import UsageError
from tokenmill.wording import one_line

BUCKETS = ("s3", "gs", "az")
WEB = ("https", "http")  # read-only, and cannot list files
_ADDRESS = re.compile(
    rf"(?P<scheme>{'|'.join((*BUCKETS, *WEB))}):/{{1,2}}(?P<rest>.*)", re.DOTALL
)  # pathlib.Path turns two slashes into one
_VARIABLE = "TOKENMILL_ADDRESS_"
_SECRETS = re.compile(r"(?<=://)[^/\s@]+@|\?[^\s)\"'>]*")


@dataclass(frozen=True)
class Address:
    """The parts of an address. `place` is a bucket, a container or a host; `key` may be empty."""

    scheme: str
    place: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}" + (f"/{self.key}" if self.key else "")


def is_address(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is an address of an object store.

    >>> is_address("s3://bucket/corpus"), is_address("data/corpus"), is_address("hf://a/b")
    (True, False, False)
    """
    return _ADDRESS.match(os.fspath(path)) is not None


def parse_address(path: str | os.PathLike[str]) -> Address:
    """Return the parts of an address, without secrets.

    >>> parse_address("s3://bucket/corpus/train/")
    Address(scheme='s3', place='bucket', key='corpus/train')
    >>> str(parse_address("https://user:password@host/a.txt?signature=1"))
    'https://host/a.txt'
    """
    text = os.fspath(path)
    match = _ADDRESS.match(text)
    assert match is not None
    scheme, rest = match["scheme"], match["rest"]
    if not rest.isprintable():
        raise _refuse_name(text)
    if scheme in WEB:
        try:
            rest = _keep_secret(scheme, rest)
        except ValueError:  # from urlsplit, for a malformed host such as `[x`
            raise UsageError(
                f"{hide_secrets(text)} is not a web address. Check the name of the host."
            ) from None
    place, _, key = rest.partition("/")
    key = key.rstrip("/")
    if "@" in place:
        raise UsageError(
            f"{hide_secrets(text)} must not contain credentials. Remove the part before the @, and set "
            "environment variables instead, such as AWS_PROFILE."
        )
    if not place:
        raise UsageError(f"{one_line(text)} names no bucket. Write {scheme}://BUCKET/NAME.")
    parts = key.split("/") if key else []
    if any(part in ("", ".", "..") for part in parts):
        raise _refuse_name(text)
    return Address(scheme, place, key)


def _refuse_name(text: str) -> UsageError:
    return UsageError(
        f"{one_line(hide_secrets(text))} is not supported: no part between slashes may be empty, '.' "
        "or '..', or contain control characters. Correct the address, or rename the object."
    )


def find_full_address(address: Address) -> str:
    """Return the address with its secrets. Never print or log the result.

    If secrets are known only for a folder above the address, returns that folder's address.
    """
    public = str(address)
    while public.count("/") > 1:
        if full := os.environ.get(_variable(public)):
            return full
        public = public.rpartition("/")[0]
    return str(address)


def list_full_addresses() -> dict[str, str]:
    """Return the environment variables that `find_full_address` reads. Never print their values."""
    return {name: value for name, value in os.environ.items() if name.startswith(_VARIABLE)}


def hide_secrets(text: str) -> str:
    """Return a text with the credentials and queries of all addresses removed.

    >>> hide_secrets("no answer from https://me:word@host/a?sig=1 (timeout)")
    'no answer from https://host/a (timeout)'
    """
    return _SECRETS.sub("", text)


def _keep_secret(scheme: str, rest: str) -> str:
    """Return a web address without scheme and secrets.

    Stores the secrets for `find_full_address`.
    """
    parts = urlsplit(f"{scheme}://{rest}")
    public = f"{parts.netloc.rpartition('@')[2]}{parts.path}"
    full = f"{scheme}://{parts.netloc}{parts.path}" + (f"?{parts.query}" if parts.query else "")
    name = _variable(f"{scheme}://{public}".rstrip("/"))
    if full != f"{scheme}://{public}":
        if (before := os.environ.get(name)) is not None and _is_other_file(before, full):
            raise UsageError(
                f"Two addresses {scheme}://{public} differ only in their query, and queries are "
                "never stored. Download both files, and pass their local paths."
            )
        os.environ[name] = full
    return public


def _is_other_file(one: str, other: str) -> bool:
    """Return whether the queries of two addresses differ in more than their signatures."""
    return _without_signature(one) != _without_signature(other)


_SIGNATURE = re.compile(
    r"(?:x-amz-|x-goog-)[\w-]+|signature|expires|key-pair-id|policy|token|access_token|googleaccessid"
    r"|awsaccesskeyid|s[a-z]{1,3}",  # Azure's are sig, se, sp, st, sv, spr, sks, skoid, ...
    re.IGNORECASE,
)


def _without_signature(address: str) -> list[str]:
    query = urlsplit(address).query.split("&")
    return [part for part in query if not _SIGNATURE.fullmatch(part.partition("=")[0])]


def _variable(public: str) -> str:
    return _VARIABLE + xxhash.xxh3_128_hexdigest(public.encode()).upper()
