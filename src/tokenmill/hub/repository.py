"""Requests to the Hub: the commit of a revision, the files at a commit, and what errors mean.

`huggingface_hub` makes the requests; its environment variables set endpoint, token, proxies and
timeouts. Listing costs one request, and one more for each further 1,000 files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill.errors import InputError, TokenmillError, UsageError, WorkError
from tokenmill.hub.paths import HubPath
from tokenmill.wording import one_line

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_RESUMES = "What has arrived is kept; the same command resumes from there."


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """One file. `digest` is its SHA-256, or git's SHA-1 for small files that git stores."""

    path: str
    size: int
    digest: str

    def __post_init__(self) -> None:
        parts = self.path.replace("\\", "/").split("/")
        if {"", ".", ".."} & set(parts) or ":" in parts[0] or "\0" in self.path:
            raise InputError(
                f"The repository has a file named {self.path!r}, which could be written outside the "
                "target folder. Nothing was downloaded."
            )
        if one_line(self.path) != self.path:
            raise InputError(
                f"The repository has a file named {self.path!r}. Names with line ends, or with "
                "characters that are invisible or reorder text, are refused. Nothing was downloaded."
            )
        if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", self.digest) or self.size < 0:
            raise InputError(f"The Hub gives no valid checksum for {self.path!r}. Try again later.")


def connect() -> HfApi:
    """A client of the Hub; sends no request."""
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise UsageError(
            "Reading from the Hugging Face Hub needs the package huggingface_hub. Install it with: "
            "pip install 'tokenmill[hub]'"
        ) from None
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="tokenmill")


def find_commit(where: HubPath) -> str:
    """The commit that a revision points to now."""
    if _COMMIT.fullmatch(where.revision):
        return where.revision
    hub = connect()
    with explain_hub_errors(where.repository):
        found = hub.dataset_info(where.repository, revision=where.revision).sha or ""
    if not _COMMIT.fullmatch(found):
        raise InputError(
            f"{hub.endpoint} does not answer like the Hub: it returned no commit for "
            f"{where.repository}. Check HF_ENDPOINT."
        )
    return found


def list_files(repository: str, commit: str) -> tuple[HubFile, ...]:
    """All files of a repository at a commit."""
    from huggingface_hub import RepoFile

    with explain_hub_errors(repository):
        entries = connect().list_repo_tree(
            repository, recursive=True, revision=commit, repo_type="dataset"
        )
        files = [entry for entry in entries if isinstance(entry, RepoFile)]
    return tuple(
        HubFile(
            path=file.path,
            size=file.lfs.size if file.lfs else file.size,
            digest=file.lfs.sha256 if file.lfs else file.blob_id,
        )
        for file in files
    )


@contextmanager
def explain_hub_errors(repository: str) -> Iterator[None]:
    """Raise the errors of `huggingface_hub` as tokenmill's, in one sentence with the cure."""
    from huggingface_hub import errors

    endpoint = connect().endpoint
    page = f"{endpoint}/datasets/{repository}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise InputError(
            f"{repository} is gated, and you have no access. Accept its terms at {page}, log in "
            "with: hf auth login, and run the same command again."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"The Hub has no dataset {repository!r}, or it is private. Check the name at {page}; if "
            "it is private, log in with: hf auth login"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"{repository} has no such revision. Omit the @ and what follows it, or see "
            f"{page}/tree/main for the revisions that exist."
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise InputError(
            f"{repository} lists a file that does not exist. Run the same command again; if that "
            f"does not help, see {page}/tree/main."
        ) from error
    except errors.HfHubHTTPError as error:
        raise _explain_status(repository, page, error) from error
    except errors.OfflineModeIsEnabled as error:
        raise WorkError(
            f"{repository} is not complete in the cache, and HF_HUB_OFFLINE is set. Unset it, and "
            "run the same command again."
        ) from error
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # of either HTTP library
        reason = " ".join(str(error).split()) or type(error).__name__
        raise WorkError(
            f"Cannot reach the Hub at {endpoint} ({reason}). Check the network, and HTTPS_PROXY and "
            f"HF_ENDPOINT if you set them. {_RESUMES}"
        ) from error


def _explain_status(repository: str, page: str, error: HfHubHTTPError) -> TokenmillError:
    status = error.response.status_code
    if status in (401, 403):
        return InputError(
            f"The Hub denies access to {repository} (HTTP {status}). Log in with: hf auth login, "
            f"and check your access at {page}."
        )
    if status == 404:
        return InputError(f"The Hub has no {error.request.url}. See {page} for its files.")
    if status == 429:
        return WorkError(
            "Rate limited by the Hub (HTTP 429). Wait a few minutes, or log in with: hf auth login. "
            f"{_RESUMES}"
        )
    return WorkError(
        f"The Hub answers with HTTP {status} for {repository}. Try again later. {_RESUMES}"
    )
