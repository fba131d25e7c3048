"""Send requests to the Hub, bounded in time and memory, with errors that say what to do.

`huggingface_hub` makes the connections; its environment variables set endpoint, token, proxies and
timeouts. Its error handling is not used, because it reads the whole body of an error, waits as long
as the server asks, and raises other exceptions if the body has an unexpected form. Compressed
answers are neither requested nor decompressed, because a few compressed bytes could expand to
gigabytes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tokenmill.errors import InputError, TokenmillError, UsageError, WorkError
from tokenmill.storage.decoding import parse_json

if TYPE_CHECKING:
    from httpx2 import Response

ANSWER_BYTES = 64 << 20  # limit for a JSON answer; a page of files has less than 1 MB
ANSWER_SECONDS = 120.0
LONGEST_WAIT = 300.0  # seconds; if the server asks for a longer wait, wait this long
_RESUMES = "Downloaded data is kept. To resume, run the same command again."


class Unavailable(WorkError):  # noqa: N818  (named after what users see)
    """The Hub is busy or cannot be reached. The same request may work later.

    `wait` is the number of seconds that the Hub asks to wait.
    """

    def __init__(self, text: str, wait: float = 0) -> None:
        super().__init__(text)
        self.wait = wait


def find_endpoint() -> str:
    """Return the address of the Hub. No request is sent."""
    try:
        from huggingface_hub import constants
    except ImportError:
        raise UsageError(
            "Reading from the Hugging Face Hub needs the package huggingface_hub. Install it with: "
            "pip install 'tokenmill[hub]'"
        ) from None
    endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    if not re.fullmatch(
        r"https?://[^\s/?#@\[\]]+(/[^\s?#]*)?|https?://\[[0-9a-f:.]+\](:\d+)?", endpoint
    ):
        raise UsageError(
            f"HF_ENDPOINT is {endpoint!r}; it must be an address such as https://huggingface.co."
        )
    return endpoint


@contextmanager
def request(
    url: str, repository: str, headers: Mapping[str, str] | None = None
) -> Iterator[Response]:
    """Send a GET request; yield the response. Raise an error unless the status is 200 or 206."""
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # these names load lazily
        build_hf_headers,
        http_stream_backoff,
    )

    sent = {**build_hf_headers(library_name="tokenmill"), "Accept-Encoding": "identity"}
    try:
        with http_stream_backoff(
            "GET",
            url,
            headers={**sent, **(headers or {})},
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
            retry_on_exceptions=(),  # callers retry themselves, and resume
            retry_on_status_codes=(),
        ) as response:
            if response.status_code not in (200, 206):
                raise _explain_status(repository, response)
            yield response
    except errors.OfflineModeIsEnabled as error:
        raise WorkError(
            f"{repository} is not complete in the cache, and HF_HUB_OFFLINE is set. Unset "
            "HF_HUB_OFFLINE, and run the same command again."
        ) from error
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # the connection failed
        reason = " ".join(str(error).split()) or type(error).__name__
        raise Unavailable(
            f"Cannot reach the Hub at {find_endpoint()} ({reason}). Check the network, and "
            f"HTTPS_PROXY and HF_ENDPOINT if you set them. {_RESUMES}"
        ) from error


def read_json(url: str, repository: str, *, attempts: int = 1) -> tuple[Any, str | None]:
    """Return JSON from the Hub, and the query string of the next page; None if it is the last page.

    If the Hub is unavailable, try up to `attempts` times.
    """
    for attempt in range(1, attempts):
        try:
            return _read_json(url, repository)
        except Unavailable as error:
            time.sleep(max(error.wait, 2 ** (attempt - 1)))
    return _read_json(url, repository)


def _read_json(url: str, repository: str) -> tuple[Any, str | None]:
    body, started = bytearray(), time.monotonic()
    with request(url, repository) as response:
        following = response.links.get("next", {}).get("url")
        for block in response.iter_raw():
            body += block
            if len(body) > ANSWER_BYTES:
                raise not_the_hub(f"its answer about {repository} has over {ANSWER_BYTES:,} bytes")
            if time.monotonic() - started > ANSWER_SECONDS:
                raise Unavailable(
                    f"The Hub sent only {len(body):,} bytes about {repository} in "
                    f"{ANSWER_SECONDS:.0f} seconds. Try again later. {_RESUMES}"
                )
    try:
        # Use only the query string of the next page: its address could name another server.
        return parse_json(bytes(body)), None if following is None else urlsplit(following).query
    except ValueError as error:
        raise not_the_hub(f"its answer about {repository} is not valid JSON ({error})") from None


def not_the_hub(what: str) -> InputError:
    """Return the error for an answer that cannot come from the Hub; `what` says what is odd about it."""
    return InputError(
        f"{find_endpoint()} does not answer like the Hub: {what}. Check HF_ENDPOINT if you set it, "
        "and check whether a proxy or a login page answers instead of the Hub."
    )


def _explain_status(repository: str, response: Response) -> TokenmillError:
    status, code = response.status_code, response.headers.get("X-Error-Code")
    page = f"{find_endpoint()}/datasets/{repository}"
    if code == "GatedRepo":
        return InputError(
            f"{repository} is gated, and you have no access. Accept its terms at {page}, log in "
            "with: hf auth login, and run the same command again."
        )
    if code == "RepoNotFound":
        return InputError(
            f"The Hub has no dataset {repository!r}, or the dataset is private. Check the name at "
            f"{page}. For a private dataset, log in with: hf auth login"
        )
    if code == "RevisionNotFound":
        return InputError(
            f"{repository} has no such revision. Omit @REVISION, or see the revisions at "
            f"{page}/tree/main"
        )
    if code == "EntryNotFound":
        return InputError(
            f"{repository} lists a file that does not exist. Run the same command again; if that "
            f"does not help, see {page}/tree/main."
        )
    if status in (401, 403):
        return InputError(
            f"The Hub denies access to {repository} (HTTP {status}). Check the name and your access "
            f"at {page}, and log in with: hf auth login"
        )
    if status == 404:
        return InputError(
            f"The Hub has nothing at {response.url} (HTTP 404). Check the name at {page}, and "
            "HF_ENDPOINT if you set it."
        )
    if status == 429:
        return Unavailable(
            "Rate limited by the Hub (HTTP 429). Wait a few minutes, or log in with: hf auth login. "
            f"{_RESUMES}",
            _find_wait(response.headers),
        )
    text = f"The Hub answers with HTTP {status} for {repository}. Try again later. {_RESUMES}"
    return Unavailable(text, _find_wait(response.headers)) if status >= 500 else WorkError(text)


def _find_wait(headers: Mapping[str, str]) -> float:
    """Return how many seconds the server asks to wait, at most `LONGEST_WAIT`."""
    found = re.fullmatch("([0-9]{1,9})", headers.get("Retry-After", "")) or re.search(
        r"\bt=([0-9]{1,9})\b", headers.get("RateLimit", "")
    )
    return min(float(found[1]), LONGEST_WAIT) if found else 0.0
