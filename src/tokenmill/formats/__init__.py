"""The formats that `tokenmill.open` reads and `tokenmill.export` writes, one module per format.

`tokenmill.open` tries the formats in the order of `FORMATS` and takes the first that accepts the
data. Formats with a magic number or a manifest are tried first. If no format accepts the data, the
error says for each format why not. To add a format, write a module with a subclass of
`base.Format`, and add an instance of it to `FORMATS`.
"""

from __future__ import annotations

from pathlib import Path

from tokenmill.errors import DatasetError, UsageError
from tokenmill.formats.array_record import ArrayRecord
from tokenmill.formats.base import Contents, Format, NotThisFormat, OpenRequest
from tokenmill.formats.datatrove import Datatrove
from tokenmill.formats.litdata import LitData
from tokenmill.formats.llmc import Llmc
from tokenmill.formats.mds import Mds
from tokenmill.formats.megatron import Megatron
from tokenmill.formats.nanogpt import NanoGPT
from tokenmill.formats.npy import Npy
from tokenmill.formats.olmo import Olmo
from tokenmill.formats.prepared import Prepared
from tokenmill.formats.raw import Raw
from tokenmill.sources.detect_text import explain_text
from tokenmill.storage.names import MANIFEST_NAME
from tokenmill.storage.reading import find_cure

FORMATS: tuple[Format, ...] = (
    Prepared(),
    Megatron(),
    Npy(),
    Llmc(),
    Datatrove(),
    Olmo(),
    LitData(),
    Mds(),
    ArrayRecord(),
    NanoGPT(),
    Raw(),
)

_MOST_INSIDE = 1000  # how many entries of a folder are searched for datasets

WRITABLE = {one.name: one for one in FORMATS if one.is_writable}


def find_writable(name: str) -> Format:
    """Return the writable format with this name or alias; raise an error if there is none."""
    for one in WRITABLE.values():
        if name in (one.name, *one.aliases):
            return one
    raise UsageError(f"`to` is {name!r}; it must be one of {', '.join(WRITABLE)}.")


def recognize(request: OpenRequest) -> tuple[str, Contents]:
    """Recognize the format of a file or folder; return the format's name and the contents."""
    candidates = [
        one
        for one in FORMATS
        if request.format is None or request.format in (one.name, *one.aliases)
    ]
    if not candidates:
        known = ", ".join(one.name for one in FORMATS)
        raise UsageError(f"`format` is {request.format!r}; it must be one of {known}.")
    reasons = []
    for one in candidates:
        try:
            return one.name, one.read(request)
        except NotThisFormat as reason:
            reasons.append(f"  {one.name + ':':14}{reason}")
        except OSError as error:
            cure = find_cure(error, "")
            raise DatasetError(
                f"{request.path} cannot be read: {error.strerror}. {cure}".rstrip()
            ) from error
    raise _explain_failure(request, reasons)


def _explain_failure(request: OpenRequest, reasons: list[str]) -> DatasetError:
    """Return the error for a path that is not in a known format."""
    path = request.path / request.chosen[0] if request.chosen else request.path
    if request.format is None and (text := explain_text(path)):
        return DatasetError(text)
    if inside := _find_datasets(path):
        return DatasetError(
            f"{path} is a folder of datasets. Open one of them: {', '.join(inside)}"
        )
    cure = "Pass the `format`. For a file that has only ids, pass the `dtype` of the ids."
    if request.format is not None:
        cure = "Omit `format` to let tokenmill recognize it, or fix the problem above."
    if request.is_folder:
        broken = {name: one for name, one in request.others.items() if one != "is a folder"}
        reasons = reasons + [f"  {name} {one}" for name, one in [*broken.items()][:3]]
    return DatasetError("\n".join([f"{path} is not token data in a known format.", *reasons, cure]))


def _find_datasets(folder: Path) -> list[str]:
    """Return the paths of up to five prepared datasets in a folder, to suggest them in an error."""
    inside = sorted(folder.iterdir())[:_MOST_INSIDE] if folder.is_dir() else []
    return [str(path) for path in inside if (path / MANIFEST_NAME).is_file()][:5]
