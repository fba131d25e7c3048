"""Batches as global JAX arrays on a mesh of devices, in one process or in several.

Guarantees: the rows of a step are those of `tokenmill.Loader` with the same seed, whatever the mesh,
the number of processes and the sharding. A process reads the smallest aligned block of a step's rows
that its devices need, which for the usual meshes is exactly those rows. The state is one number of
rows, the same on all processes, and can be loaded with another mesh.

Costs: a thread reads rows ahead, and the next batches are copied to the devices while one is in use.
On the CPU, JAX may use the memory of a batch without a copy; it then holds a reference to that memory,
which tells the loader that it is in use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, Unpack, cast, overload

import numpy as np
import numpy.typing as npt

try:
    import jax
    from jax._src import distributed  # the only access to the store that all processes share
    from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
except ModuleNotFoundError as error:
    error.add_note("Install it with: pip install 'tokenmill[jax]'")
    raise

from tokenmill.errors import TokenmillError, UsageError
from tokenmill.load import loader as arrays
from tokenmill.load.agreement import check_agreement
from tokenmill.load.maker import Batch as ArrayBatch
from tokenmill.load.mixture import Mixture
from tokenmill.store.tokens import Tokens

__all__ = ["Batch", "DocumentedBatch", "Documents", "Loader"]

# What a loader of arrays takes, and what follows from the sharding here.
_DECIDED = {
    "rank": "JAX knows which process this is",
    "world_size": "JAX knows how many processes there are",
    "contiguous": "the arrays on a device always are",
    "drop_last": "a step that is cut short would not fit the sharding, and is always left out",
}

_PATIENCE = 60_000  # ms to wait for the coordinator
_ON_THE_WAY = 2  # batches that are brought to the devices ahead


class Batch(NamedTuple):
    """Inputs and the tokens that follow them, each (batch_size, seq_len)."""

    inputs: jax.Array
    targets: jax.Array


class Documents(NamedTuple):
    """The document of each token in its row, from 0, and the token's place in it."""

    ids: jax.Array
    positions: jax.Array


class DocumentedBatch(NamedTuple):
    """A batch, and the documents in it."""

    inputs: jax.Array
    targets: jax.Array
    documents: Documents


Placed = tuple[Batch | DocumentedBatch, int]  # with the first row behind its step


if TYPE_CHECKING:  # a TypeVar default needs Python 3.13 at run time
    from typing_extensions import TypeVar

    B = TypeVar("B", bound=Batch | DocumentedBatch, default=Batch, covariant=True)
else:
    from typing import TypeVar

    B = TypeVar("B")


class Loader(Generic[B]):
    """Batches of `batch_size` rows over all devices and processes, endless or up to a limit.

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
        Where the (batch_size, seq_len) arrays go: any sharding that can hold them.
    mesh, data_axis
        Instead of a sharding: the rows are divided over that axis of the mesh, and replicated over
        the others. With neither, they are divided over all devices.
    dtype
        Dtype of the arrays; JAX disables 64-bit integers by default.
    prefetch
        How many batches a thread reads ahead; 0: no thread, None: some megabytes.
    settings
        The other arguments of `tokenmill.Loader`. With a limit, an incomplete last step is left out.
    """

    @overload
    def __init__(
        self: Loader[Batch],
        data: Tokens | Mixture,
        *,
        batch_size: int,
        seq_len: int,
        documents: Literal[False] = ...,
        sharding: Sharding | None = ...,
        mesh: Mesh | None = ...,
        data_axis: str = ...,
        dtype: npt.DTypeLike = ...,
        **settings: Unpack[arrays.LoaderSettings],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[DocumentedBatch],
        data: Tokens | Mixture,
        *,
        batch_size: int,
        seq_len: int,
        documents: Literal[True],
        sharding: Sharding | None = ...,
        mesh: Mesh | None = ...,
        data_axis: str = ...,
        dtype: npt.DTypeLike = ...,
        **settings: Unpack[arrays.LoaderSettings],
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
        for name, reason in _DECIDED.items():
            if name in settings:
                raise UsageError(f"`{name}` does not apply to this loader: {reason}.")
        if jax.dtypes.canonicalize_dtype(dtype) != np.dtype(dtype):
            raise UsageError(
                f"JAX has no {np.dtype(dtype)} as it is set up. Use int32, or "
                'jax.config.update("jax_enable_x64", True).'
            )
        self.sharding = _choose_sharding(sharding, mesh, data_axis)
        block, blocks = _find_block(self.sharding, (batch_size, seq_len))
        self._place = _Placer(
            sharding=self.sharding,
            shape=(batch_size, seq_len),
            first=block * (batch_size // blocks),
        )
        self.arrays = arrays.Loader(
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
        self._row = 0  # the cursor; that of `arrays` is ahead of it by what was placed
        self._at_end = False  # whether the run has come to its limit here
        self._on_the_way = _ON_THE_WAY if prefetch is None else min(prefetch, _ON_THE_WAY)
        self._placed: deque[Placed] = deque()

    @property
    def row(self) -> int:
        """The cursor: how many rows the run has consumed, on all processes together."""
        return self._row

    def __len__(self) -> int:
        return len(self.arrays)

    def __iter__(self) -> Self:
        if self._at_end:
            self.load_state_dict({**self.state_dict(), "row": 0})
        return self

    def __repr__(self) -> str:
        rows = f"{self._place.shape[0]} x {self._place.shape[1]}"
        return f"<tokenmill.jax.Loader {rows} of {self.arrays.rows.data!r}, row {self._row:,}>"

    def __next__(self) -> B:
        try:
            if not self._placed:
                self._placed.append(self._place_next())
            batch, row = self._placed.popleft()
        except BaseException as error:
            self.close()
            self._at_end = isinstance(error, StopIteration)
            raise
        self._row = row
        self._at_end = self.arrays.limit is not None and not self.arrays.count_steps(row)
        while len(self._placed) < self._on_the_way:
            try:
                self._placed.append(self._place_next())
            except (StopIteration, TokenmillError, OSError):  # which comes again in its turn
                break
        return cast(B, batch)

    def _place_next(self) -> Placed:
        batch = next(self.arrays)
        return self._place(batch), batch.end

    def batch_at(self, step: int) -> B:
        """The batch of any step; see `tokenmill.Loader.batch_at`. All processes have to ask."""
        if self.arrays.limit is not None and step >= len(self):
            raise IndexError(
                f"steps go from 0 to {len(self) - 1:,}, and {step:,} is not one of them"
            )
        return cast(B, self._place(self.arrays.batch_at(step)))

    def ledger(self) -> dict[str, arrays.SourceLedger]:
        """What the run has consumed so far of each source."""
        return arrays.make_ledger(self.arrays.rows, self._row)

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, and which run it is: small, fit for JSON, the same on all processes."""
        return {**self.arrays.state_dict(), "row": self._row}

    def load_state_dict(
        self, state: Mapping[str, Any], *, force: bool | Collection[str] = False
    ) -> None:
        """Resume a run; see `tokenmill.Loader.load_state_dict`."""
        self.arrays.load_state_dict(state, force=force)
        self._placed.clear()
        self._row, self._at_end = self.arrays.row, False

    def close(self) -> None:
        """End the thread; the next batch starts another."""
        self._placed.clear()
        self.arrays.load_state_dict(self.state_dict())  # back to the cursor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, kw_only=True)
class _Placer:
    """Makes global arrays of the rows of a step that this process has read, from `first` on."""

    sharding: Sharding
    shape: tuple[int, int]
    first: int

    def __call__(self, batch: ArrayBatch) -> Batch | DocumentedBatch:
        inputs, targets = self._put(batch.inputs), self._put(batch.targets)
        if batch.documents is None:
            return Batch(inputs, targets)
        ids, positions = batch.documents.ids, batch.documents.positions
        return DocumentedBatch(inputs, targets, Documents(self._put(ids), self._put(positions)))

    def _put(self, rows: npt.NDArray[Any]) -> jax.Array:
        def part(index: tuple[slice, ...] | None) -> npt.NDArray[Any]:
            assert index is not None
            first, stop, _ = index[0].indices(self.shape[0])
            return rows[first - self.first : stop - self.first, index[1]]

        # A quarter of what make_array_from_process_local_data takes.
        return jax.make_array_from_callback(self.shape, self.sharding, part)


def _choose_sharding(sharding: Sharding | None, mesh: Mesh | None, data_axis: str) -> Sharding:
    if sharding is not None:
        if mesh is not None:
            raise UsageError("give `sharding` or `mesh`, not both.")
        return sharding
    if mesh is None:
        mesh, data_axis = Mesh(np.array(jax.devices()), ("data",)), "data"
    if data_axis not in mesh.axis_names:
        there = ", ".join(map(str, mesh.axis_names))
        raise UsageError(
            f"the mesh has no axis {data_axis!r} to divide rows over; set `data_axis` to one of: {there}."
        )
    return NamedSharding(mesh, PartitionSpec(data_axis))  # type: ignore[no-untyped-call]


def _compare_processes(sharding: Sharding, batch_size: int, loader: arrays.Loader) -> None:
    """Refuse a loader whose settings differ from those of the processes that share its arrays."""
    client: Any = distributed.global_state.client
    if sharding.is_fully_addressable or client is None:
        return

    def post(key: str, value: str) -> str:
        with suppress(jax.errors.JaxRuntimeError):  # another process came first
            client.key_value_set(key, value)
        return str(client.blocking_key_value_get(key, _PATIENCE))

    settings = {"batch_size": batch_size, "limit": loader.limit, **loader.rows.identity}
    check_agreement(settings, jax.process_index(), post)


def _find_block(sharding: Sharding, shape: tuple[int, int]) -> tuple[int, int]:
    """Which of how many equal blocks of a step's rows has all those that devices of this process
    need: the smallest one."""
    rows = shape[0]
    if rows < 1:
        raise UsageError(f"`batch_size` is {rows}; it must be at least 1.")
    try:
        indices = sharding.addressable_devices_indices_map(shape)
    except ValueError as error:
        raise UsageError(
            f"batches of {shape[0]} x {shape[1]} do not fit {sharding}: {error}"
        ) from None
    ranges = [index[0].indices(rows) for index in indices.values() if index is not None]
    if not ranges:
        raise UsageError(f"no device of {sharding} is in process {jax.process_index()}.")
    first, last = min(start for start, _, _ in ranges), max(stop for _, stop, _ in ranges) - 1
    size = next(
        size
        for size in range(last - first + 1, rows + 1)
        if rows % size == 0 and first // size == last // size
    )
    return first // size, rows // size
