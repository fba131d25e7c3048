"""Turn errors of object stores into errors that name the address, the reason and the cure.

obstore's own messages are never shown: they contain the request, which may contain a secret.
"""

from __future__ import annotations

import errno
import re

from tokenmill.errors import StorageError
from tokenmill.storage.addresses import WEB, Address

AGAIN = "Run the same command again."
CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket, "
    "AWS_SKIP_SIGNATURE=true.",
    "gs": "Run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS; for a "
    "public bucket, GOOGLE_SKIP_SIGNATURE=true.",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or another credential; "
    "for a public container, AZURE_SKIP_SIGNATURE=true.",
}
_WEB_CREDENTIALS = "If the address has a signature, get a new address: signatures expire."
_PLACES = {"s3": "bucket", "gs": "bucket", "az": "container"}
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")

_RETRIED = re.compile(r", after \d+ retries, max_retries")

# Words in obstore's messages that identify errors without a class of their own.
_NO_PLACE = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "BareRedirect", "IllegalLocation")
_DENIED = ("AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId", "ExpiredToken")
_NO_CREDENTIALS = ("169.254.169.254", "metadata.google.internal", "MissingAccountName")
_TIMEOUT = ("TimedOut", "timed out", "operation timed out")
_CUT = ("IncompleteMessage", "IncompleteBody", "ConnectionReset", "UnexpectedEof", "kind: Body")


class ObjectChangedError(OSError):
    """An object was replaced after it was opened."""


def translate(error: Exception, address: Address) -> Exception:
    """Return the error to raise instead of `error`, which obstore raised."""
    text, name = str(error), type(error).__name__
    if name == "PreconditionError":
        return report_change(address)
    if any(mark in text for mark in _NO_PLACE):
        place = f"{address.scheme}://{address.place}"
        return StorageError(
            f"{place}: there is no such {_PLACES.get(address.scheme, 'host')}. Check its name; for "
            "an S3-compatible store, also AWS_ENDPOINT_URL."
        )
    if "MissingContentLength" in text:  # a page that is made for each request, or a folder
        what = "The server does not send the size of this file"
        return FileNotFoundError(errno.ENOENT, what, str(address))
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "No such object", str(address))
    what, cure = _explain(text, name, address.scheme)
    return StorageError(f"{address}: {what}. {cure}")


def report_change(address: Address) -> ObjectChangedError:
    """Return the error for an object that was replaced after it was opened."""
    reason = "the object was replaced while it was being read"
    return ObjectChangedError(errno.ESTALE, reason, str(address))


def is_cut(error: Exception) -> bool:
    """Return whether the connection broke during an answer, and obstore did not retry."""
    text = str(error)
    return not _RETRIED.search(text) and any(mark in text for mark in _CUT)


def _explain(text: str, name: str, scheme: str) -> tuple[str, str]:
    """Return two texts: what happened, and what to do."""
    code, status = _CODE.search(text), _STATUS.search(text)
    number = status[1] if status else ""
    detail = f" ({code[1]})" if code else f" (HTTP {number})" if number else ""
    if any(mark in text for mark in _REGION) or number == "301":
        cure = "Set AWS_REGION to the region of the bucket."
        return f"the bucket is in another region{detail}", cure
    if any(mark in text for mark in _NO_CREDENTIALS):
        return "no credentials were found", CREDENTIALS.get(scheme, _WEB_CREDENTIALS)
    if name in ("PermissionDeniedError", "UnauthenticatedError") or (
        number in ("401", "403") or any(mark in text for mark in _DENIED)
    ):
        cure = "Check that the credentials allow this operation, and listing the bucket. "
        return f"access denied{detail}", cure + CREDENTIALS.get(scheme, _WEB_CREDENTIALS)
    if number in ("429", "503") or "SlowDown" in text:
        return f"rate limited by the server: too many requests{detail}", f"Wait a minute. {AGAIN}"
    if name in ("NotSupportedError", "NotImplementedError"):
        if scheme in WEB:
            return (
                "the server cannot send parts of a file",
                "Download the file, and pass its local path.",
            )
        return "the server does not support this operation", "Use another bucket."
    if number:
        return f"the server answered with an error{detail}", AGAIN
    if any(mark in text for mark in _TIMEOUT):
        return "the server did not answer in time", f"Check the network. {AGAIN}"
    if any(mark in text for mark in _CUT):
        return "the connection ended in the middle of an answer", f"Check the network. {AGAIN}"
    cure = "Check the address and the network"
    cure += ", and AWS_ENDPOINT_URL if it is set" if scheme == "s3" else ""
    return "the server cannot be reached", f"{cure}. {AGAIN}"
