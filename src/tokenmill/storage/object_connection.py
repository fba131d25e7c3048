"""Connect to object stores, with the credentials that the platforms' own tools use.

S3: the environment, then the profile AWS_PROFILE or `default` in ~/.aws, then the role of the
machine. AWS_ENDPOINT_URL is the address of an S3-compatible server. Google Cloud Storage: the
application default credentials. Azure: the AZURE_STORAGE_ variables, or the machine's identity.

A process keeps one connection per bucket. All threads may use it, but a forked process must not.
"""

from __future__ import annotations

import configparser
import os
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tokenmill.errors import StorageError, UsageError
from tokenmill.storage.addresses import WEB, Address, find_full_address
from tokenmill.storage.object_errors import CREDENTIALS

_RETRIES = "TOKENMILL_STORAGE_RETRIES"
_TIMEOUT = "TOKENMILL_STORAGE_TIMEOUT"
_PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_", "https": "HTTPS_", "http": "HTTP_"}
# obstore reads these variables itself, before it asks for the role of the machine.
_OTHER_KEYS = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_CONNECTIONS = 64  # buckets that stay connected

_process: int | None = None  # the process that made the first connection


def connect(address: Address) -> tuple[Any, str]:
    """Return a connection to the bucket or host of an address, and the object's name there."""
    _refuse_fork()
    if address.scheme not in WEB:
        return _connect(address.scheme, address.place), address.key
    full = urlsplit(find_full_address(address))
    query = f"?{full.query}" if full.query else ""
    return _connect(address.scheme, f"{full.netloc}/{query}"), unquote(address.key)


def disconnect() -> None:
    """Forget all connections; the next request reads the environment again."""
    _connect.cache_clear()


def _refuse_fork() -> None:
    global _process
    if _process is None:
        _process = os.getpid()
    if _process != os.getpid():
        raise StorageError(
            "A forked process cannot read from an object store after its parent process has done "
            "so. Start processes with the method spawn, for example "
            "DataLoader(..., multiprocessing_context='spawn')."
        )


@lru_cache(maxsize=_CONNECTIONS)
def _connect(scheme: str, place: str) -> Any:
    try:
        from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store
    except ImportError as error:
        raise StorageError(
            "Reading from and writing to object stores needs the package obstore: "
            "pip install 'tokenmill[cloud]'"
        ) from error
    options: dict[str, Any] = {
        "client_options": {
            "timeout": timedelta(seconds=_read_number(_TIMEOUT, 60)),
            "connect_timeout": timedelta(seconds=min(10, _read_number(_TIMEOUT, 60))),
        },
        "retry_config": {
            "max_retries": _read_number(_RETRIES, 8),
            "retry_timeout": timedelta(seconds=2 * _read_number(_TIMEOUT, 60)),
        },
    }
    try:
        if scheme in WEB:
            options["client_options"]["allow_http"] = scheme == "http"
            return HTTPStore(f"{scheme}://{place}", **options)
        if scheme == "gs":
            return GCSStore(place, **options)
        if scheme == "az":
            return AzureStore(place, **options)
        return S3Store(place, **_find_s3_options(options))
    except StorageError:
        raise
    except Exception as error:
        # The text of the error may contain a value from the environment.
        raise StorageError(
            f"{scheme}://{place.partition('?')[0].rpartition('@')[2]}: the settings in the "
            f"environment cannot be used ({type(error).__name__}). Check the variables that "
            f"begin with {_PREFIXES[scheme]}."
        ) from None


def _find_s3_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return `options` with the settings for S3, from the environment or else from a profile."""
    profile = _read_profile()
    endpoint = (
        os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
        or profile.get("endpoint_url")
    )
    config: dict[str, Any] = {}
    if endpoint:
        config["endpoint"] = endpoint
        options["client_options"]["allow_http"] = endpoint.startswith("http://")
    if not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        config["region"] = profile.get("region", "us-east-1")
    if not os.environ.get("AWS_ACCESS_KEY_ID"):
        if "aws_access_key_id" in profile:
            config["access_key_id"] = profile["aws_access_key_id"]
            config["secret_access_key"] = profile.get("aws_secret_access_key", "")
            if "aws_session_token" in profile:
                config["session_token"] = profile["aws_session_token"]
        elif name := os.environ.get("AWS_PROFILE"):
            options["credential_provider"] = _ask_boto(name)
        elif _is_true("AWS_EC2_METADATA_DISABLED") and not any(map(os.environ.get, _OTHER_KEYS)):
            raise StorageError(f"No credentials for S3 were found. {CREDENTIALS['s3']}")
    return {**options, "config": config}


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("true", "1")


def _ask_boto(profile: str) -> Any:
    """Return a provider that gets credentials from boto3, for a profile without an access key."""
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise StorageError(
            f"The profile {profile!r} (AWS_PROFILE) has no access key in ~/.aws/credentials. If it "
            "uses single sign-on or assumes a role, install boto3: pip install boto3"
        ) from None
    return Boto3CredentialProvider(boto3.Session(profile_name=profile))


def _read_profile() -> dict[str, str]:
    """Return the settings of the profile AWS_PROFILE, or else `default`, from the files in ~/.aws."""
    name = os.environ.get("AWS_PROFILE", "default")
    home = Path("~/.aws").expanduser()
    files = {
        os.environ.get("AWS_CONFIG_FILE", home / "config"): (f"profile {name}", name),
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"): (name,),
    }
    found: dict[str, str] = {}
    for file, sections in files.items():
        parser = configparser.ConfigParser(interpolation=None, default_section="")
        try:
            parser.read(file)
        except (OSError, UnicodeError, configparser.Error):
            continue  # ignore the file: the tools of AWS report what is wrong with it
        for section in sections:
            if parser.has_section(section):
                found |= dict(parser[section])
    return found


def _read_number(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isascii() or not text.isdigit() or not 0 <= int(text) <= 86_400:
        raise UsageError(f"{variable} is {text[:40]!r}; it must be a whole number from 0 to 86400.")
    return int(text)
