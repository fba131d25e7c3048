"""OLMo's and dolma's pairs: `x.npy` has ids without a header, `x.csv.gz` one line per document.

Despite its name, `x.npy` is not a NumPy file. It does not store the dtype; the user gives it. A line
starts with two numbers: the document's first token, and the token after its last one. The rest of
the line is ignored.

Checked at opening: that sizes are whole numbers of ids. Checked when a file's documents are first
used: that its lines cover the file in order. This reads the lines once. The starts of documents
then stay in memory, 8 bytes per document, for `KEPT` files at a time.
"""

from __future__ import annotations

import gzip
import zlib
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from tokenmill.formats import npy
from tokenmill.formats.base import Contents, Format, NotThisFormat, OpenRequest
from tokenmill.formats.file_documents import DocumentIndexes, DocumentStarts, FileDocuments
from tokenmill.formats.raw import choose_check, make_shards
from tokenmill.formats.shard_names import list_shards, split_shards
from tokenmill.storage.reading import DamagedFileError, open_foreign

KEPT = 16
_LONGEST = 1 << 16  # bytes of a line
_CURE = (
    "Copy or download both files again from their source; or, to open the ids without their "
    "documents, name the format raw."
)


class Olmo(Format):
    """One file, or a folder of files."""

    name = "olmo"

    def read(self, request: OpenRequest) -> Contents:
        names = list_shards(request, ".npy")
        if not names:
            raise NotThisFormat("it is neither an .npy file nor a folder of such files")
        if request.read_head(names[0]).startswith(npy.MAGIC):
            raise NotThisFormat(f"{names[0]} is a NumPy file, with a header")
        for name in names:
            if not (request.folder / _table_name(name)).is_file():
                raise NotThisFormat(f"{name} has no {_table_name(name)} next to it")
        if request.dtype is None:
            raise NotThisFormat("nothing gives its dtype; pass it, such as `dtype='uint32'`")
        folder, check = request.folder.absolute(), choose_check(request)
        shards, documents = {}, {}
        for split, some in split_shards(request, names).items():
            shards[split] = make_shards(folder, some, request.files, request.dtype, check)
            counts = shards[split].counts
            tables = [_table_name(name) for name in some]
            read = partial(_read_starts, folder, tables, counts.tolist())
            indexes = DocumentIndexes(names=tables, read=read)
            documents[split] = FileDocuments(indexes, counts, split, KEPT)
        return Contents(splits=shards, documents=documents)


def _read_starts(folder: Path, names: list[str], counts: list[int], number: int) -> DocumentStarts:
    """Read and check the document starts of file `number`, from all lines of its table."""
    name, tokens = names[number], counts[number]
    starts = array("q", [0])
    for line_number, line in enumerate(_read_lines(folder, name), 1):
        start, _, rest = line.partition(b",")
        end = rest.partition(b",")[0].strip()
        if not (start.isdigit() and end.isdigit() and len(start) < 19 and len(end) < 19):
            what = f"does not start line {line_number:,} with two numbers ({line[:80]!r})"
            raise DamagedFileError(name, what, _CURE)
        # Empty documents are refused, so that the number of tokens limits the number of documents.
        if int(start) != starts[-1] or not int(start) < int(end) <= tokens:
            raise DamagedFileError(
                name,
                f"has a document from token {int(start):,} to {int(end):,} in line {line_number:,}; "
                f"expected it to start at {starts[-1]:,} and to end within {tokens:,} tokens",
                _CURE,
            )
        starts.append(int(end))
    if starts[-1] != tokens:
        what = f"ends its last document at token {starts[-1]:,}, expected {tokens:,}"
        raise DamagedFileError(name, what, _CURE)
    return DocumentStarts(len(starts) - 1, np.frombuffer(starts, np.int64).__getitem__)


def _read_lines(folder: Path, name: str) -> Iterator[bytes]:
    with open_foreign(folder, name) as raw, gzip.GzipFile(fileobj=raw) as file:
        try:
            while line := file.readline(_LONGEST):
                if len(line) == _LONGEST:
                    raise DamagedFileError(name, f"has a line of over {_LONGEST:,} bytes", _CURE)
                yield line
        except (OSError, EOFError, zlib.error) as error:
            raise DamagedFileError(name, f"cannot be decompressed: {error}", _CURE) from error


def _table_name(name: str) -> str:
    return name.removesuffix(".npy") + ".csv.gz"
