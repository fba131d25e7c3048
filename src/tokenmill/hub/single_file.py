"""Fetch one file of a repository on the Hugging Face Hub, or find it in the local cache.

This is only for tokenizers. The package gigatoken fetches the file, so the package
`huggingface_hub` (the extra `hub`) is not needed.
"""

from __future__ import annotations

from pathlib import Path

from tokenmill.errors import TokenizerError


def fetch(repository: str, file: str, *, suggestion: str = "") -> Path:
    """Return the local path of a file in a repository; fetch the file first if needed.

    If that fails, the error message includes `suggestion`.
    """
    from gigatoken.gigatoken_rs import hub_file

    try:
        return Path(hub_file(repository, file))
    except FileNotFoundError:
        reason = f"the hub has no {file} in {repository!r}"
    except PermissionError:
        reason = f"the hub denies access to {repository!r}: log in, or accept its terms there"
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        causes = lines[lines.index("Caused by:") + 1 :] if "Caused by:" in lines else lines
        numbered = [
            line[3:] for line in causes if line[:2].rstrip(":").isdigit()
        ]  # the last cause is the root
        cause = (numbered[-1:] or causes[:1] or [type(error).__name__])[0]
        reason = f"{file} of {repository!r} could not be fetched from the hub ({cause})"
    raise TokenizerError(
        f"{reason}. {suggestion}Without a network, pass the path of a tokenizer.json instead, or "
        "'gpt2' or 'bytes', which need no file"
    )
