"""Starts `tokenmill view` as a real process, and asks it for pages with a plain HTTP client."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import urlsplit


@dataclass
class Answer:
    """The answer to a request."""

    status: int
    headers: http.client.HTTPMessage
    text: str


class Viewer:
    """A running viewer. `get` asks like the browser that opened it."""

    def __init__(
        self, *arguments: object, program: tuple[str, ...] = ("-m", "tokenmill.cli")
    ) -> None:
        command = [
            sys.executable,
            *program,
            "view",
            *map(str, arguments),
            "--no-browser",
        ]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "500"},
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            _, error = self.process.communicate()
            raise RuntimeError(error)
        parts = urlsplit(self.url)
        self.host, self.token = parts.netloc, parts.query.partition("=")[2]
        first = self.ask(f"/?token={self.token}")
        assert first.status == 303
        self.cookie = first.headers["set-cookie"].partition(";")[0]

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """End the server; returns its status and what else it printed."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        output, error = self.process.communicate(timeout=30)
        return self.process.returncode, output + error

    def ask(
        self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> Answer:
        """Send a request with exactly these headers."""
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.putrequest(method, path, skip_host="Host" in (headers or {}))
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return Answer(response.status, response.headers, text)

    def get(self, path: str, **headers: str) -> Answer:
        """Send a request with the cookie."""
        return self.ask(path, {"Cookie": self.cookie, **headers})

    def page(self, path: str) -> str:
        """Return the HTML of a page that must exist."""
        answer = self.get(path)
        assert answer.status == 200, answer.text
        return answer.text


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def read_tags(html: str, name: str) -> list[dict[str, str | None]]:
    """Return the attributes of all tags with a name."""
    parser = _Text()
    parser.feed(html)
    return [attributes for tag, attributes in parser.tags if tag == name]


def read_text(html: str) -> str:
    """Return all text of a page."""
    parser = _Text()
    parser.feed(html)
    return "".join(parser.parts)


def read_links(html: str, start: str) -> list[str]:
    """Return the targets of links that begin with some text."""
    found = [str(one.get("href", "")) for one in read_tags(html, "a")]
    return [one for one in found if one.startswith(start)]
