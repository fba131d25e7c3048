"""OLMo's and dolma's pairs: `x.npy` has ids without a header, `x.csv.gz` one line per document.

Despite its name, `x.npy` is not a NumPy file. It does not store the dtype; the user passes it. A
line starts with two numbers: the position of the document's first token, and the position after its
last token. The rest of the line is ignored.

Checked at opening: that each file holds a whole number of ids. When the documents of a file are
first used, all lines of its table are read, and must cover the file in order. The document starts
of the last `KEPT` files stay in memory, 8 bytes per document.
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
_LONGEST = 1 << 16  # most bytes of a line
_CURE = (
    "Copy or download both files again. To open the ids without their documents, pass "
    "`format='raw'`."
)


class Olmo(Format):
    """Reads an `x.npy` with its `x.csv.gz`, or a folder of such pairs."""

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
            raise NotThisFormat("no other file gives the dtype; pass it, such as `dtype='uint32'`")
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
    """Read and check all document starts of a file from its table, `x.csv.gz`."""
    name, tokens = names[number], counts[number]
    starts = array("q", [0])
    for line_number, line in enumerate(_read_lines(folder, name), 1):
        start, _, rest = line.partition(b",")
        end = rest.partition(b",")[0].strip()
        if not (start.isdigit() and end.isdigit() and len(start) < 19 and len(end) < 19):
            what = f"does not start line {line_number:,} with two numbers ({line[:80]!r})"
            raise DamagedFileError(name, what, _CURE)
        # Refuse empty documents. Then there are no more documents than tokens, which bounds memory.
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
