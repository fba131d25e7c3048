"""Batches as global JAX arrays on a mesh of devices, in one process or in several.

Guarantees: with the same seed, a step has the same rows as with `tokenmill.Loader`, for any mesh,
number of processes and sharding. A process reads one block of the step's rows, which contains all
rows that its devices need; for the usual meshes, it contains no other rows. The state is the number
of rows consumed and the settings of the run. It is the same on all processes and can be loaded with
another mesh.

Costs: a thread reads rows ahead, and the next batches are copied to the devices while the current
batch is in use. On the CPU, JAX may use the memory of a batch without copying it. The loader does
not reuse such memory while JAX refers to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, Unpack, cast, overload

import numpy as np
import numpy.typing as npt

try:
    import jax
    from jax._src import distributed  # no public module gives access to the key-value store
    from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
except ModuleNotFoundError as error:
    error.add_note("Install it with: pip install 'tokenmill[jax]'")
    raise

from tokenmill.errors import TokenmillError, UsageError
from tokenmill.load.adapters import LoaderAdapter
from tokenmill.load.batches import Batch as ArrayBatch
from tokenmill.load.distributed import check_same_settings
from tokenmill.load.loader import Loader as ArrayLoader
from tokenmill.load.loader import SourceLedger, make_ledger
from tokenmill.load.mixture import Mixture
from tokenmill.load.settings import LoaderArguments
from tokenmill.store.tokens import Tokens

__all__ = ["Batch", "DocumentedBatch", "Documents", "Loader"]

# Arguments of `tokenmill.Loader` that this loader sets, and why.
_NOT_SETTABLE = {
    "rank": "JAX knows the number of this process",
    "world_size": "JAX knows how many processes there are",
    "contiguous": "arrays on a device are always contiguous",
    "drop_last": "an incomplete last step would not fit the sharding, so it is always omitted",
}

_TIMEOUT = 60_000  # ms to wait for the coordinator
_PLACED_AHEAD = 2  # how many batches are copied to the devices before they are needed


class Batch(NamedTuple):
    """Inputs, and targets: the same tokens shifted by one. Each is (batch_size, seq_len)."""

    inputs: jax.Array
    targets: jax.Array


class Documents(NamedTuple):
    """Which document each token of a batch is in: two arrays of shape (batch_size, seq_len).

    `ids` has the number of each token's document, counted from 0 in each row. `positions` has the
    distance of each token from the first token of its document in the row.
    """

    ids: jax.Array
    positions: jax.Array


class DocumentedBatch(NamedTuple):
    """A batch and its documents."""

    inputs: jax.Array
    targets: jax.Array
    documents: Documents


class _Arguments(LoaderArguments, total=False):
    sharding: Sharding | None
    mesh: Mesh | None
    data_axis: str


if TYPE_CHECKING:  # the default of a TypeVar is new in Python 3.13
    from typing_extensions import TypeVar

    B = TypeVar("B", bound=Batch | DocumentedBatch, default=Batch, covariant=True)
else:
    from typing import TypeVar

    B = TypeVar("B")


class Loader(LoaderAdapter[B]):
    """Batches of `batch_size` rows, divided over all devices and processes.

    >>> loader = Loader(Tokens.of(range(1_000)), batch_size=2, seq_len=4, seed=1)
    >>> inputs, targets = next(loader)
    >>> targets
    Array([[441, 442, 443, 444],
           [525, 526, 527, 528]], dtype=int32)

    Parameters
    ----------
    data
        The tokens of a split, or a Mixture.
    batch_size
        Rows per step, on all devices together.
    seq_len
        Tokens per row, in the inputs and in the targets.
    sharding
        How to place the (batch_size, seq_len) arrays on devices: any JAX sharding for this shape.
    mesh, data_axis
        An alternative to `sharding`: rows are divided over the axis `data_axis` of the mesh, and
        replicated over its other axes. Without `sharding` and `mesh`, rows are divided over all
        devices.
    dtype
        Dtype of the arrays; int32 by default, because JAX disables 64-bit integers by default.
    prefetch
        How many batches a thread reads ahead. None means a few megabytes of batches. 0 means that
        no thread is used.
    settings
        Other arguments of `tokenmill.Loader`. Without a limit, such as `limit_rows`, batches never
        end. With a limit, an incomplete last step is omitted.
    """

    @overload
    def __init__(
        self: Loader[Batch],
        data: Tokens | Mixture,
        *,
        documents: Literal[False] = ...,
        **settings: Unpack[_Arguments],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[DocumentedBatch],
        data: Tokens | Mixture,
        *,
        documents: Literal[True],
        **settings: Unpack[_Arguments],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[Batch | DocumentedBatch],
        data: Tokens | Mixture,
        *,
        documents: bool,
        **settings: Unpack[_Arguments],
    ) -> None: ...

    def __init__(
        self,
        data: Tokens | Mixture,
        *,
        batch_size: int,
        seq_len: int,
        sharding: Sharding | None = None,
        mesh: Mesh | None = None,
        data_axis: str = "data",
        dtype: npt.DTypeLike = np.int32,
        prefetch: int | None = None,
        **settings: Any,
    ) -> None:
        for name, reason in _NOT_SETTABLE.items():
            if name in settings:
                raise UsageError(f"`{name}` does not apply to this loader: {reason}.")
        if jax.dtypes.canonicalize_dtype(dtype) != np.dtype(dtype):
            raise UsageError(
                f"`dtype` is {np.dtype(dtype)}, which JAX disables by default. Use int32, or call "
                'jax.config.update("jax_enable_x64", True).'
            )
        self.sharding = _choose_sharding(sharding, mesh, data_axis)
        self._shape = (batch_size, seq_len)
        block, blocks = _find_block(self.sharding, self._shape)
        self._first = block * (batch_size // blocks)  # the first row of a step that is read here
        self.arrays = ArrayLoader(
            data,
            batch_size=batch_size // blocks,
            seq_len=seq_len,
            rank=block,
            world_size=blocks,
            dtype=dtype,
            contiguous=True,
            drop_last=True,
            prefetch=prefetch,
            **settings,
        )
        _compare_processes(self.sharding, batch_size, self.arrays)
        self._row = 0  # rows consumed; `arrays` is ahead by the batches in `_placed`
        self._at_end = False  # whether iterating has reached the limit
        self._ahead = _PLACED_AHEAD if prefetch is None else min(prefetch, _PLACED_AHEAD)
        # Batches on the devices, each with the row after its step.
        self._placed: deque[tuple[B, int]] = deque()

    @property
    def row(self) -> int:
        """The cursor: how many rows the run has consumed, on all processes together."""
        return self._row

    def __iter__(self) -> Self:
        if self._at_end:
            self.load_state_dict({**self.state_dict(), "row": 0})
        return self

    def __repr__(self) -> str:
        rows = f"{self._shape[0]} x {self._shape[1]}"
        return f"<tokenmill.jax.Loader {rows} of {self.arrays.rows.data!r}, row {self._row:,}>"

    def __next__(self) -> B:
        try:
            if not self._placed:
                self._place_next()
            batch, row = self._placed.popleft()
        except BaseException as error:
            self.close()
            self._at_end = isinstance(error, StopIteration)
            raise
        self._row = row
        self._at_end = self.arrays.limit is not None and not self.arrays.count_steps(row)
        while len(self._placed) < self._ahead:
            try:
                self._place_next()
            except (StopIteration, TokenmillError, OSError):  # a later call raises it again
                break
        return batch

    def _place_next(self) -> None:
        batch = next(self.arrays)
        self._placed.append((self._convert(batch), batch.end))

    def batch_at(self, step: int) -> B:
        """Return the batch of any step, as `tokenmill.Loader` does. All processes must call this."""
        if self.arrays.limit is not None and step >= len(self):
            raise IndexError(f"steps go from 0 to {len(self) - 1:,}, got {step:,}")
        return super().batch_at(step)

    def ledger(self) -> dict[str, SourceLedger]:
        """Return how much of each source the run has consumed so far."""
        return make_ledger(self.arrays.rows, self._row)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of rows consumed, and the settings that define their order.

        The state is small, can be stored as JSON, and is the same on all processes.
        """
        return {**self.arrays.state_dict(), "row": self._row}

    def load_state_dict(
        self, state: Mapping[str, Any], *, force: bool | Collection[str] = False
    ) -> None:
        """Resume a run; see `tokenmill.Loader.load_state_dict`."""
        self.arrays.load_state_dict(state, force=force)
        self._placed.clear()
        self._row, self._at_end = self.arrays.row, False

    def close(self) -> None:
        """Stop the thread that reads ahead. Asking for the next batch starts a new thread."""
        self._placed.clear()
        self.arrays.load_state_dict(self.state_dict())  # moves `arrays` back to `_row`

    def _convert(self, batch: ArrayBatch) -> B:
        inputs, targets = self._place(batch.inputs), self._place(batch.targets)
        if batch.documents is None:
            return cast(B, Batch(inputs, targets))
        found = batch.documents
        documents = Documents(self._place(found.ids), self._place(found.positions))
        return cast(B, DocumentedBatch(inputs, targets, documents))

    def _place(self, rows: npt.NDArray[Any]) -> jax.Array:
        """Return the global array of a step. `rows` are the rows that this process has read."""

        def take(index: tuple[slice, ...] | None) -> npt.NDArray[Any]:
            assert index is not None
            first, stop, _ = index[0].indices(self._shape[0])
            return rows[first - self._first : stop - self._first, index[1]]

        # make_array_from_process_local_data takes four times as long.
        return jax.make_array_from_callback(self._shape, self.sharding, take)


def _choose_sharding(sharding: Sharding | None, mesh: Mesh | None, data_axis: str) -> Sharding:
    if sharding is not None:
        if mesh is not None:
            raise UsageError("pass `sharding` or `mesh`, not both.")
        return sharding
    if mesh is None:
        mesh, data_axis = Mesh(np.array(jax.devices()), ("data",)), "data"
    if data_axis not in mesh.axis_names:
        axes = ", ".join(map(str, mesh.axis_names))
        raise UsageError(
            f"the mesh has no axis {data_axis!r} to divide rows over; set `data_axis` to one of: {axes}."
        )
    return NamedSharding(mesh, PartitionSpec(data_axis))  # type: ignore[no-untyped-call]


def _compare_processes(sharding: Sharding, batch_size: int, loader: ArrayLoader) -> None:
    """Raise an error if the processes that share the arrays have different settings."""
    client: Any = distributed.global_state.client
    if sharding.is_fully_addressable or client is None:
        return

    def post(key: str, value: str) -> str:
        with suppress(jax.errors.JaxRuntimeError):  # another process has set this key first
            client.key_value_set(key, value)
        return str(client.blocking_key_value_get(key, _TIMEOUT))

    settings = {**loader.shared_settings, "batch_size": batch_size}
    check_same_settings(settings, jax.process_index(), post)


def _find_block(sharding: Sharding, shape: tuple[int, int]) -> tuple[int, int]:
    """Return which block of a step's rows this process reads, and the number of blocks.

    Blocks are equal. They are as small as possible, but one block has all rows of this process. If
    this process needs rows 4 and 5 of 8, there are 4 blocks of 2 rows, and the result is (2, 4).
    """
    rows = shape[0]
    if rows < 1:
        raise UsageError(f"`batch_size` is {rows}; it must be at least 1.")
    try:
        indices = sharding.addressable_devices_indices_map(shape)
    except ValueError as error:
        raise UsageError(
            f"batches of {shape[0]} x {shape[1]} do not fit {sharding}: {error}\n"
            "Change `batch_size`, `seq_len` or the sharding."
        ) from None
    ranges = [index[0].indices(rows) for index in indices.values() if index is not None]
    if not ranges:
        raise UsageError(
            f"no device of {sharding} is in process {jax.process_index()}. Use a sharding with "
            "devices of every process."
        )
    first, last = min(start for start, _, _ in ranges), max(stop for _, stop, _ in ranges) - 1
    size = next(
        size
        for size in range(last - first + 1, rows + 1)
        if rows % size == 0 and first // size == last // size
    )
    return first // size, rows // size
