"""The one door to `huggingface_hub`: that it is installed, and what its errors mean to a user.

Endpoint, token, proxies and time limits are the library's own affair, by its own variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokenmill.errors import InputError, TokenmillError, UsageError, WorkError

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

_GOES_ON = "What has arrived is kept; the same command resumes from there."


def connect() -> HfApi:
    """The hub, as far as it can be had before the first request."""
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise UsageError(
            "Reading from the Hugging Face hub needs the package huggingface_hub. Install it with: "
            "pip install 'tokenmill[hub]'"
        ) from None
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="tokenmill")


@contextmanager
def telling(repository: str, endpoint: str) -> Iterator[None]:
    """Say what went wrong at the hub in one sentence, and what to do about it."""
    from huggingface_hub import errors

    page = f"{endpoint}/datasets/{repository}"
    try:
        yield
    except TokenmillError:
        raise
    except errors.GatedRepoError as error:
        raise InputError(
            f"{repository} is gated, and the hub does not let you in. Accept its terms at {page}, "
            "log in with: hf auth login, and run the same command again."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"The hub has no dataset {repository!r}, or it is private. Look for it at {page}; if it "
            "is private, log in with: hf auth login"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"{repository} has no such revision. Leave the part behind the @ away, or see "
            f"{page}/tree/main for those there are."
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise InputError(
            f"A file that {repository} lists is not there. Run the same command again; if that does "
            f"not help, see {page}/tree/main."
        ) from error
    except errors.HfHubHTTPError as error:
        raise _by_status(repository, page, error) from error
    except errors.OfflineModeIsEnabled as error:
        raise WorkError(
            f"The hub may not be asked for {repository}, because HF_HUB_OFFLINE is set. Unset it, "
            "and run the same command again."
        ) from error
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # of whichever HTTP library
        raise WorkError(
            f"The hub at {endpoint} cannot be reached ({_reason(error)}). Check the network, and "
            f"HTTPS_PROXY and HF_ENDPOINT if you set them. {_GOES_ON}"
        ) from error


def _by_status(repository: str, page: str, error: HfHubHTTPError) -> TokenmillError:
    status = error.response.status_code
    if status in (401, 403):
        return InputError(
            f"The hub does not let you read {repository} (status {status}). Log in with: "
            f"hf auth login, and see at {page} whether you may."
        )
    if status == 404:
        return InputError(f"The hub has no {error.request.url}. See {page} for what there is.")
    if status == 429:
        return WorkError(
            "The hub answers that you ask too much of it at once (status 429). Wait some minutes, "
            f"or log in with: hf auth login. {_GOES_ON}"
        )
    return WorkError(
        f"The hub answers with status {status} for {repository}. Try again later. {_GOES_ON}"
    )


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
