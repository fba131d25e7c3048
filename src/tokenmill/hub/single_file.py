"""One file of a repository on the Hugging Face hub, from its cache or the network.

The only place in tokenmill's tokenizers that may open a connection; gigatoken does the work, in
the cache folder that the other tools of the hub use.
"""

from __future__ import annotations

from pathlib import Path

from tokenmill.errors import TokenizerError


def fetch(repository: str, file: str, *, suggestion: str = "") -> Path:
    """The path of a repository's file on this machine, fetched if it is not here yet."""
    from gigatoken.gigatoken_rs import hub_file

    try:
        return Path(hub_file(repository, file))
    except FileNotFoundError:
        reason = f"the hub has no {file} in {repository!r}"
    except PermissionError:
        reason = f"the hub does not let you read {repository!r}: log in, or accept its terms there"
    except Exception as error:
        causes = [line.strip() for line in str(error).splitlines() if line.strip()]
        cause = next((line[3:] for line in reversed(causes) if line[:2].rstrip(":").isdigit()), "")
        reason = (
            f"{file} of {repository!r} could not be fetched from the hub ({cause or causes[0]})"
        )
    raise TokenizerError(
        f"{reason}. {suggestion}Without a network, pass the path of a tokenizer.json instead, or "
        "'gpt2' or 'bytes', which need none"
    )
