"""Who may read the pages: only the browser that opened the printed URL, and nobody else.

The URL that the server prints ends in `?token=…`. The first request with the right token gets a
cookie and is redirected to the same page without the token. From then on, the cookie suffices, so
every URL of the application can be bookmarked and opened in the same browser until the server ends.
Adding `?token=…` to any URL opens it in another browser.

The URL with which the server itself opens the browser has another token, which is valid only once,
because other users of the machine can see the command line of the browser.

Requests are refused:

- without the token or the cookie;
- for any host but 127.0.0.1 or localhost with the server's port, so that a web site cannot reach
  the server through a name of its own that resolves to 127.0.0.1 (DNS rebinding);
- from pages of another origin. If a link in another page leads here, the refusal has a link to
  the same place, which works because it is followed from a page of this server;
- with any method but GET and HEAD.

Every answer forbids frames, scripts and styles that are not files of the application, and requests
to other servers. So text of a dataset could not run scripts even if it were not escaped.

The cookie has the port in its name, because cookies of one host are shared by all ports.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

TOKEN_NAME = "token"  # noqa: S105 (the name of a parameter, not its value)
HOSTS = ("127.0.0.1", "localhost")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_MOST_QUERY = 8192  # bytes of the longest query that is parsed
_MOST_PARAMETERS = 100

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a request is refused. `link` is a URL of this server to continue at, or empty."""

    status: int
    title: str
    text: str
    link: str = ""


class Guard:
    """Passes requests of the right browser on to `app`, and adds security headers to every answer.

    `refuse` makes the answer to a refused request. Paths that start with one of `public` need no
    token; they must not show anything about a dataset. `once` is a token that is valid once.
    """

    def __init__(
        self,
        app: Application,
        *,
        token: str,
        refuse: Callable[[Refusal], Application],
        public: tuple[str, ...] = (),
        once: str = "",
    ) -> None:
        self._app, self._token, self._refuse, self._public = app, token, refuse, public
        self._once = once
        # The cookie is a hash: servers on other ports receive it, but cannot learn the token from it.
        self._secret = hashlib.sha256(f"tokenmill view {token}".encode()).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no web sockets
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        port = (scope.get("server") or ("", 0))[1]
        query = scope["query_string"].decode("latin-1")
        given = _read_parameter(query, TOKEN_NAME)
        has_token = given is not None and self._is_right(given)
        answer = _check_origin(scope, headers, port, has_token=has_token)
        if answer is None and has_token:
            target = _remove_token(scope["path"], query)
            await self._start(scope, headers, receive, self._finish(send), port, target)
            return
        if answer is None and not self._is_open(scope, headers, port):
            answer = _NO_TOKEN
        app = self._app if answer is None else self._refuse(answer)
        await app(scope, receive, self._finish(send))

    def _is_right(self, given: str) -> bool:
        if self._once and _is_equal(given, self._once):
            self._once = ""
            return True
        return _is_equal(given, self._token)

    async def _start(
        self,
        scope: Scope,
        headers: dict[str, str],
        receive: Receive,
        send: Send,
        port: int,
        target: str,
    ) -> None:
        """Give the browser its cookie, and redirect it to the same page without the token."""

        async def add_cookie(message: Any) -> None:
            if message["type"] == "http.response.start":
                cookie = f"{_name_cookie(port)}={self._secret}; Path=/; HttpOnly; SameSite=Strict"
                message["headers"] = [*message["headers"], (b"set-cookie", cookie.encode())]
            await send(message)

        if headers.get("sec-fetch-site") in (None, "none", "same-origin"):
            await add_cookie(
                {
                    "type": "http.response.start",
                    "status": 303,
                    "headers": [(b"location", target.encode()), (b"content-length", b"0")],
                }
            )
            await send({"type": "http.response.body", "body": b""})
            return
        # After a redirect, the browser would still say that another site sent it, and would not
        # send the cookie.
        await self._refuse(Refusal(status=200, title="Open", text=_WELCOME, link=target))(
            scope, receive, add_cookie
        )

    def _is_open(self, scope: Scope, headers: dict[str, str], port: int) -> bool:
        if scope["path"].startswith(self._public) and self._public:
            return True
        try:
            cookies = SimpleCookie(headers.get("cookie", "")[:_MOST_QUERY])
        except CookieError:
            return False
        cookie = cookies.get(_name_cookie(port))
        return cookie is not None and _is_equal(cookie.value, self._secret)

    def _finish(self, send: Send) -> Send:
        async def add_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message["headers"]}
                added = {"cache-control": "no-store", **HEADERS}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.encode(), value.encode())
                        for name, value in added.items()
                        if name.encode() not in there
                    ),
                ]
            await send(message)

        return add_headers


_WELCOME = "This link came from another page. Follow it to open the viewer."
_NO_TOKEN = Refusal(
    status=403,
    title="Not open in this browser",
    text="Open the URL that tokenmill view printed when it started. Its end, ?token=…, may also be "
    "added to this URL.",
)


def _check_origin(
    scope: Scope, headers: dict[str, str], port: int, *, has_token: bool
) -> Refusal | None:
    """Return why a request is refused because of its host, method or origin; None if it is not."""
    hosts = {f"{host}:{port}" for host in HOSTS}
    if headers.get("host", "").lower() not in hosts:
        return Refusal(
            status=421,
            title="Wrong host",
            text=f"This server answers only requests to {' and '.join(sorted(hosts))}.",
        )
    if scope["method"] not in ("GET", "HEAD"):
        return Refusal(
            status=405,
            title="Wrong method",
            text="This server only shows pages: it answers GET and HEAD.",
        )
    origin = headers.get("origin")
    if origin is not None and origin not in {f"http://{host}" for host in hosts}:
        return Refusal(
            status=403, title="Wrong origin", text="Pages of other sites may not read this."
        )
    site = headers.get("sec-fetch-site", "none")
    if site in ("none", "same-origin"):
        return None
    is_navigation = (
        headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )
    if is_navigation and has_token:
        return None
    query = scope["query_string"].decode("latin-1")
    return Refusal(
        status=403,
        title="A link from another page",
        text="Another page sent you here. If you wanted to come here, continue.",
        link=_remove_token(scope["path"], query) if is_navigation else "",
    )


def _name_cookie(port: int) -> str:
    return f"tokenmill_{port}"


def _is_equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _parse(query: str) -> list[tuple[str, str]]:
    if len(query) > _MOST_QUERY:
        return []
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
    except ValueError:  # too many parameters
        return []


def _read_parameter(query: str, name: str) -> str | None:
    return next((value for key, value in _parse(query) if key == name), None)


def _remove_token(path: str, query: str) -> str:
    """Return the address of the same page without the token.

    >>> _remove_token("/documents", "split=val&token=abc")
    '/documents?split=val'
    >>> _remove_token("//example.org", "token=abc")
    '/example.org'
    """
    kept = [(key, value) for key, value in _parse(query) if key != TOKEN_NAME]
    place = "/" + quote(path.lstrip("/\\"), safe="/-_.~")
    return f"{place}?{urlencode(kept)}" if kept else place
