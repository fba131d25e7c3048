"""The formats that `tokenmill.open` reads in place, one module each.

Recognition is certain or an error: the formats are asked in turn, those with a magic number or a
manifest first, and each says what is there or why it is not its own. To add one, write a module
with `NAME` and `read` (see `protocol`) and put it in `FORMATS`.
"""

from __future__ import annotations

from pathlib import Path

from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats import (
    array_record,
    datatrove,
    litdata,
    llmc,
    mds,
    megatron,
    nanogpt,
    npy,
    olmo,
    prepared,
    raw,
)
from tokenmill.formats.protocol import Asked, Contents, Format, NotThisFormat
from tokenmill.sources.detect_text import explain_text
from tokenmill.storage.names import MANIFEST_NAME
from tokenmill.storage.reading import find_cure

FORMATS: tuple[Format, ...] = (
    prepared,
    megatron,
    npy,
    llmc,
    datatrove,
    olmo,
    litdata,
    mds,
    array_record,
    nanogpt,
    raw,
)

OTHER_NAMES = {"llm.c": llmc.NAME}  # other spellings that are accepted


def recognize(asked: Asked) -> tuple[str, Contents]:
    """The name of the format of a file or folder, and what is in it."""
    name = OTHER_NAMES.get(asked.format or "", asked.format)
    chosen = [one for one in FORMATS if name in (None, one.NAME)]
    if not chosen:
        known = ", ".join(one.NAME for one in FORMATS)
        raise UsageError(f"`format` is {asked.format!r}; it must be one of {known}.")
    reasons = []
    for one in chosen:
        try:
            return one.NAME, one.read(asked)
        except NotThisFormat as reason:
            reasons.append(f"  {one.NAME + ':':14}{reason}")
        except OSError as error:
            cure = find_cure(error, "")
            raise DatasetError(
                f"{asked.path} cannot be read: {error.strerror}. {cure}".rstrip()
            ) from error
    what = asked.path / asked.chosen[0] if asked.chosen else asked.path
    if text := explain_text(what):
        raise DatasetError(text)
    if inside := _find_datasets(what):
        raise DatasetError(
            f"{what} is not a dataset, but has datasets in it. Name one of them: {', '.join(inside)}"
        )
    cure = "Give its `format`, or, if it contains only ids, their `dtype`."
    if asked.format is not None:
        cure = "Give what is missing, or omit `format` to have it recognised."
    if asked.is_folder:
        broken = {name: one for name, one in asked.others.items() if one != "is a folder"}
        reasons += [f"  {name} {one}" for name, one in [*broken.items()][:3]]
    raise DatasetError("\n".join([f"{what} is not token data in a known format.", *reasons, cure]))


def _find_datasets(folder: Path) -> list[str]:
    """Up to five prepared datasets directly in a folder."""
    return [str(found.parent) for found in sorted(folder.glob(f"*/{MANIFEST_NAME}"))[:5]]
