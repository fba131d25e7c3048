"""Object stores: addresses, and the answers of an S3 server on 127.0.0.1.

The objects are a prepared dataset. Changed listings and headers, and objects that are replaced while
they are read, are refused, or give the same ids.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
from tests.store.dataset_builder import build

import tokenmill
from tokenmill.storage import object_store

from ..case import Case, Parser, read_files, refused, require
from ..mutate import STRINGS, change_bytes
from ..serving import Handler, serve
from .store import TEXTS

_ADDRESSES = (
    *("s3://bucket/corpus", "s3://b", "gs://bucket/a/b", "az://box/a", "https://host/a.txt?sig=1"),
    *(
        "https://user:word@host/a",
        "http://[::1]:9/x",
        "https://[::1/x",
        "https://[v1.x]/y",
        "s3:/b/c",
    ),
    *("s3:///x", "s3://", "s3://b/../x", "s3://b/a//b", "s3://b@c/x", "https://host:99999/x"),
    *(
        "https://h/a?x=\0",
        "https://\ud800/x?y=1",
        "s3://b/\ud800",
        "https://h\u2100/x",
        "s3://b/%00",
    ),
)
_LISTING = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult><Name>b</Name><Prefix>{prefix}</Prefix><KeyCount>{count}</KeyCount>
<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"""
_ENTRY = (
    "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    "<ETag>&quot;{etag}&quot;</ETag><Size>{size}</Size></Contents>"
)
_SETTINGS = {
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "AWS_REGION": "us-east-1",
    "TOKENMILL_STORAGE_TIMEOUT": "2",
    "TOKENMILL_STORAGE_RETRIES": "0",
}


class AddressParser(Parser):
    name = "addresses"

    def prepare(self, folder: Path) -> None:
        self.sound = {}

    def list_sound(self) -> list[Case]:
        return [Case({}, {"address": "s3://bucket/corpus"})]

    def make(self, random: Random) -> Case:
        address = random.choice(_ADDRESSES)
        if random.randrange(3):
            data = change_bytes(random, address.encode("utf-8", "surrogatepass"))
            address = data.decode("utf-8", "surrogateescape")
        if random.randrange(3) == 0:
            place = random.randrange(len(address) + 1)
            address = address[:place] + random.choice(STRINGS)[:200] + address[place:]
        return Case({}, {"address": address})

    def check(self, case: Case, folder: Path) -> None:
        from tokenmill.storage.addresses import find_full_address, is_address, parse_address
        from tokenmill.storage.object_path import as_path

        text = case.facts["address"]
        as_path(text)
        if is_address(text):
            address = parse_address(text)
            require(parse_address(str(address)) == address, "an address is not its own address")
            full = find_full_address(address)
            require(address.place in full, "the full address is of another place")


class _Handler(Handler):
    def do_GET(self) -> None:
        url, facts = urlsplit(self.path), self.case.facts
        key = unquote(url.path).removeprefix("/b/").strip("/")
        start, status, headers = 0, 200, {}
        if "list-type" in url.query:
            body = self._list(parse_qs(url.query).get("prefix", [""])[0])
        elif key not in self.case.files:
            status, body = 404, b"<Error><Code>NoSuchKey</Code></Error>"
        else:
            body = self.case.files[key]
            headers = {"ETag": '"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
            if (wanted := self.headers.get("Range", "")).startswith("bytes="):
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start, stop = int(first or 0), int(last) + 1 if last else len(body)
                headers["Content-Range"] = f"bytes {start}-{min(stop, len(body)) - 1}/{len(body)}"
                status, body = 206, body[start:stop]
                if key == facts.get("replaced"):  # since its size was asked for
                    body = bytes(byte ^ 1 for byte in body)
                    headers["ETag"] = '"2"'
        if facts.get("part", "") in self.path:
            status = facts.get("status") or status
            headers |= facts.get("headers", {})
            self.close_connection = True  # a wrong length would keep the client waiting
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _list(self, prefix: str) -> bytes:
        if (listing := self.case.files.get("listing")) is not None:
            return listing
        return make_listing(self.case.files, prefix)


def make_listing(files: dict[str, bytes], prefix: str) -> bytes:
    """The answer of a server that has these objects."""
    names = [name for name in sorted(files) if name.startswith(prefix)]
    entries = [_ENTRY.format(key=name, etag=1, size=len(files[name])) for name in names]
    return _LISTING.format(prefix=prefix, count=len(names), entries="".join(entries)).encode()


_HEADERS: dict[str, tuple[str | None, ...]] = {
    "ETag": (None, '"2"', "", "1", 'W/"1"', '"' + "x" * 5000 + '"', "\x7f"),
    "Content-Length": ("0", "1", "-1", "99999999999999999999", "x", "40", None),
    "Content-Range": (
        None,
        "bytes 0-1/2",
        "bytes 5-1/2",
        "x",
        "bytes */*",
        f"bytes 0-{2**63}/{2**64}",
    ),
    "Last-Modified": (None, "never", "Thu, 01 Jan 9999 00:00:00 GMT", "1"),
    "x-amz-version-id": ("7", "", "x" * 3000),
    "Content-Type": ("text/html", ""),
}


class ObjectsParser(Parser):
    name = "objects"

    def prepare(self, folder: Path) -> None:
        import obstore  # noqa: F401

        object_store._ATTEMPTS = 1  # there is a pause before the next one
        self.ids = build(folder, TEXTS, shard_tokens=20)
        self.sound = {f"data/{name}": data for name, data in read_files(folder).items()}

    def make(self, random: Random) -> Case:
        files, facts = dict(self.sound), dict[str, Any]()
        parts = ["", "list-type", "dataset_metadata", ".bin", ".npy", "tokenizer"]
        facts["part"] = random.choice(parts)
        match random.randrange(5):
            case 0:
                facts["replaced"] = random.choice([name for name in files if ".bin" in name])
            case 1:
                files["listing"] = change_bytes(random, make_listing(self.sound, "data/"))
            case 2:
                facts["status"] = random.choice(
                    (200, 204, 206, 301, 304, 400, 403, 404, 412, 416, 500, 503)
                )
            case _:
                name = random.choice([*_HEADERS])
                facts["headers"] = {name: random.choice(_HEADERS[name])}
        return Case(files, facts)

    def check(self, case: Case, folder: Path) -> None:
        from tokenmill.storage.object_connection import disconnect
        from tokenmill.storage.object_path import as_path

        before = os.environ.get("AWS_ENDPOINT_URL")
        os.environ |= {**_SETTINGS, "AWS_ENDPOINT_URL": serve(_Handler, case)}
        if os.environ["AWS_ENDPOINT_URL"] != before:
            disconnect()
        with refused(), suppress(OSError):  # as of other paths
            for path in as_path("s3://b/data").rglob("*"):
                path.is_file()
        with refused():
            dataset = tokenmill.open("s3://b/data")
            for split in dataset.splits:
                with refused():
                    same = np.array_equal(dataset[split][:], self.ids[split])
                    require(same, "a changed answer gives other ids")


PARSERS = [AddressParser(), ObjectsParser()]
