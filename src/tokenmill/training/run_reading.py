"""How a run reads its data: `data.json` in the run's folder.

The file names the data (with absolute paths, and without secrets), the options to open it, the
settings of the order of its rows, fingerprints of its tokens, and the phases of the run. A phase is
consecutive steps with the same number of rows and ranks. So anyone can find out which rows and
documents each step and rank trained on, while the run is running or later. Nothing here affects
training.

Rank 0 writes the file whenever a run starts or resumes. A resumed run drops the phases after its
checkpoint, and adds a phase if the batch or the number of ranks changed.

The folder of a run may come from a stranger, so reading checks the size of the file, and the type
and range of every value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tokenmill.dataset.named import parse_named
from tokenmill.errors import DatasetError
from tokenmill.hub.paths import is_hub_path
from tokenmill.load.state import MOST_ROWS
from tokenmill.order.rows import Kind
from tokenmill.storage.addresses import is_address, parse_address
from tokenmill.storage.decoding import check_values, convert, decode
from tokenmill.storage.files import remove, write_file
from tokenmill.storage.reading import DamagedFileError, read_inside
from tokenmill.training.config import RowLength, Steps
from tokenmill.training.run_folder import DATA_NAME

VERSION = 1
_MOST_BYTES = 16 << 20
_CURE = "Resume the run to write the file again, or restore it from a backup."
_Text = Annotated[str, Meta(max_length=1 << 16)]
_Count = Annotated[int, Meta(ge=1, lt=1 << 62)]
_Id = Annotated[int, Meta(ge=0, lt=1 << 62)]
_Weight = Annotated[float, Meta(ge=0)]
_Row = Annotated[int, Meta(ge=0, lt=MOST_ROWS)]
# A run computes how much each source gives before each change of weights, so there is a limit.
_Weights = Annotated[list[tuple[_Row, list[_Weight]]], Meta(min_length=1, max_length=10_000)]


class RunPhase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Consecutive steps with the same batch: the first step, its first row, and the batch's size."""

    step: Steps
    row: _Row
    batch_rows: Annotated[int, Meta(ge=1, le=1 << 28)]
    world_size: Annotated[int, Meta(ge=1, le=1 << 28)]

    def __post_init__(self) -> None:
        if self.batch_rows % self.world_size:
            raise ValueError("a batch cannot be divided among the ranks")


class DataOrigin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to open the data of a run: paths or NAME=PATH:WEIGHT, and options of `tokenmill.open`.

    `tokenizer` is the name of the tokenizer, if one was given; the folder of the run contains it.
    """

    data: list[_Text]
    input_file: _Text | None = None
    tokenizer: str | None = None
    dtype: _Text | None = None
    format: _Text | None = None
    vocab_size: _Id | None = None
    eot_id: _Id | None = None
    val_fraction: Annotated[float, Meta(ge=0, lt=1)] | None = None

    @classmethod
    def of(
        cls,
        data: Sequence[str],
        *,
        input_file: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> DataOrigin:
        """Return the origin of data, with absolute paths.

        >>> DataOrigin.of(["web=https://me:secret@host/web:0.5"]).data
        ['web=https://host/web:0.5']
        """
        named = [str(one._replace(path=make_absolute(one.path))) for one in parse_named(data)]
        file = None if input_file is None else make_absolute(os.fspath(input_file))
        return cls(data=named, input_file=file, **options)


class SavedSource(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The training tokens of one dataset: their number, fingerprint, and the dataset's generation."""

    tokens: _Count
    fingerprint: _Text
    generation: _Count = 1


class RowIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decides which tokens row n holds: the same values as in the state of a loader."""

    seq_len: RowLength
    seed: int
    order: Kind
    block_rows: _Count | None
    group_blocks: _Count | None
    sources: dict[_Text, SavedSource]
    names: list[_Text] | None = None
    weights: _Weights | None = None
    block: _Count | None = None

    def __post_init__(self) -> None:
        if (self.names is None) != (self.weights is None) or (self.names is None) != (
            self.block is None
        ):
            raise ValueError("a mixture needs names, weights and a block")
        if self.names is None and list(self.sources) != [""]:
            raise ValueError("several sources need names")
        if self.names is not None and sorted(self.names) != sorted(self.sources):
            raise ValueError("the names are not those of the sources")
        if any(len(weights) != len(self.sources) for _, weights in self.weights or ()):
            raise ValueError("a phase does not have one weight for each source")
        firsts = [row for row, _ in self.weights or [(0, [])]]
        if firsts[0] != 0 or sorted(set(firsts)) != firsts:
            raise ValueError("the phases of the weights are not in order")


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `data.json`. `origin` is None if the run's data was made in memory."""

    version: int
    origin: DataOrigin | None
    rows: RowIdentity
    phases: Annotated[list[RunPhase], Meta(min_length=1)]

    def __post_init__(self) -> None:
        for one, following in pairwise(self.phases):
            steps = following.step - one.step
            if steps < 1 or following.row != one.row + steps * one.batch_rows:
                raise ValueError("a phase does not start where the phase before it ends")


class _Version(msgspec.Struct):
    version: int


def make_absolute(path: str) -> str:
    """Return a path that means the same in every folder. Removes secrets from addresses.

    >>> make_absolute("s3://bucket/corpus/"), make_absolute("/data/./corpus/")
    ('s3://bucket/corpus', '/data/corpus')
    """
    if is_hub_path(path):
        return path
    if is_address(path):
        return str(parse_address(path))
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111  (may be a glob)


def write_run_data(
    folder: Path, origin: DataOrigin | None, identity: Mapping[str, Any], phase: RunPhase
) -> str | None:
    """Write how a run reads its data from `phase` on. Phases before it are kept.

    Returns a warning if an existing file is damaged, so that earlier phases are lost, or if the data
    cannot be described.
    """
    phases: list[RunPhase] = []
    problem = None
    try:
        rows = convert(dict(identity), RowIdentity)
    except ValueError as error:
        remove(folder / DATA_NAME)
        return f"{DATA_NAME} is not written, because it cannot describe the data: {error}."
    if phase.step:
        try:
            phases = [one for one in read_run_data(folder).phases if one.step < phase.step]
        except DatasetError as error:
            problem = f"{error} Which rows the steps before {phase.step:,} read stays unknown."
    if phases:
        last = phases[-1]
        is_same = (last.batch_rows, last.world_size) == (phase.batch_rows, phase.world_size)
        follows = last.row + (phase.step - last.step) * last.batch_rows == phase.row
        phases = phases if follows else []
        phases += [] if is_same and follows else [phase]
    record = RunRecord(
        version=VERSION,
        origin=origin,
        rows=rows,
        phases=phases or [phase],
    )
    try:
        encoded = msgspec.json.encode(record)
    except UnicodeEncodeError:  # a path that is not UTF-8; the data has to be named again
        encoded = msgspec.json.encode(msgspec.structs.replace(record, origin=None))
    text = msgspec.json.format(encoded, indent=2)
    write_file(folder / DATA_NAME, text + b"\n")
    return problem


def read_run_data(folder: Path) -> RunRecord:
    """Read `data.json` from the folder of a run. Raises `DatasetError` if it cannot be used."""
    try:
        data = read_inside(folder, DATA_NAME, _MOST_BYTES)
    except DamagedFileError as error:
        raise DamagedFileError(error.file, error.what, _CURE) from error
    try:
        check_values(data)
        version = decode(data, _Version).version
        if version != VERSION:
            raise DatasetError(
                f"{folder / DATA_NAME} has version {version}; this tokenmill reads version {VERSION}. "
                "Use the tokenmill that trained the run."
            )
        return decode(data, RunRecord)
    except ValueError as error:
        raise DamagedFileError(DATA_NAME, f"in {folder} is damaged ({error})", _CURE) from error
