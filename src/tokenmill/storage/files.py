"""Write files that appear whole or not at all, and survive a crash.

A file is written under a temporary name, flushed to the disk and renamed; then its folder is flushed.
The temporary name contains the process number, so that a new run and a dying one never share it.
`AtomicFile` computes a checksum while writing and starts flushing early, so that the disk is busy
while the next bytes are computed.

The content of an output folder may be untrusted. A run could follow a link and overwrite another
file of the user, and opening a pipe would hang. So a symbolic link, a hard link, a pipe or a device
inside an output folder is refused. The output folder itself may be a link, because the user named
it.

In an object store, a file appears when it is uploaded. Until then it is in the temporary folder of
this machine, without a name, so a killed process leaves nothing behind. Folders, links and flushing
do not exist there.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import xxhash

from tokenmill.errors import FolderError, WorkError
from tokenmill.storage.object_path import ObjectPath

_TEMPORARY = re.compile(r"\.[0-9]+\.tmp$")
_BLOCK = 4 << 20  # bytes to read at once
_EARLY = 32 << 20  # bytes after which the disk starts writing
# SMB and some other network file systems cannot flush a folder, and return one of these errors.
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


_machine = ""  # digits that identify this machine, if other machines write to the same folders


def name_machine(name: str) -> None:
    """Add a number made from `name` to all temporary names of this process.

    Without it, processes with the same number on two machines could use the same temporary name.
    """
    global _machine
    _machine = f"{zlib.crc32(name.encode()):010}"  # of fixed length: a process number follows


def temporary_path(path: Path) -> Path:
    """Return the path that a file has until it is complete."""
    return path.with_name(f"{path.name}.{_machine}{os.getpid()}.tmp")


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Make an empty folder, and remove it at the end of the `with` block.

    The folder is beside `path`; for an object store, in the temporary folder of this machine.
    """
    if isinstance(path, ObjectPath):
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
        return
    folder = temporary_path(path)
    try:
        folder.mkdir()
        yield folder
    finally:
        remove(folder)


def write_file(path: Path, data: bytes | memoryview, *, durable: bool = True) -> None:
    """Write a small file atomically, and durably unless `durable` is False."""
    if isinstance(path, ObjectPath):
        path.write_bytes(data)
        return
    with AtomicFile(path, durable=durable) as file:
        file.write(data)
        file.finish()


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder. A missing one is not an error."""
    if isinstance(path, ObjectPath):
        path.storage.delete_all()
        path.unlink()
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """Return whether a name comes from `temporary_path`."""
    return _TEMPORARY.search(name) is not None


def remove_temporaries(*folders: Path) -> None:
    """Remove the half-written files of killed processes from some folders."""
    for folder in folders:
        if isinstance(folder, ObjectPath):
            continue
        for name in filter(is_temporary, os.listdir(folder)):
            # A worker of a killed run, on another node, may be renaming its file just now.
            with suppress(FileNotFoundError):
                remove(folder / name)


def sync_file(path: Path) -> None:
    """Flush an existing file to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. A file system that cannot do this is not an error."""
    if isinstance(folder, ObjectPath):
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that this user may write to, but not list
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise OSError(error.errno, error.strerror, str(folder)) from error
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder that the user named, and its missing parents. A link to a folder is accepted."""
    if not isinstance(path, ObjectPath) and not path.is_dir():
        if not path.parent.exists():
            make_folder(path.parent)
        try:
            path.mkdir(exist_ok=True)
        except FileExistsError:
            code = errno.ENOTDIR
            raise NotADirectoryError(code, os.strerror(code), str(path)) from None
        sync_folder(path.parent)


def check_folder(path: Path) -> None:
    """Raise an error if a folder is missing, or if its object store cannot be reached."""
    if isinstance(path, ObjectPath):
        path.exists()  # only to reach the store: it has no empty folders, so False is not an error
    else:
        path.stat()


def make_subfolder(root: Path, path: Path) -> None:
    """Make the folder `path`, and all folders between `root` and it. Refuses links among them."""
    make_folder(root)
    if isinstance(path, ObjectPath):
        return
    folder = root
    for name in path.relative_to(root).parts:
        folder /= name
        refuse_link(folder)
        make_folder(folder)


def create_file(path: Path) -> BinaryIO:
    """Create an empty file, in place of any file or link of that name."""
    path.unlink(missing_ok=True)
    return path.open("x+b")  # with "x", this fails if a link appears after the line above


def open_entry(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Open a file in an output folder; returns its descriptor. By default it is created if missing.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "metrics.jsonl"
    >>> path.symlink_to("/etc/passwd")
    >>> open_entry(path)
    Traceback (most recent call last):
    ...
    tokenmill.errors.FolderError: .../metrics.jsonl is a symbolic link. Links inside an output folder \
are not followed: delete it, or replace it with what it leads to. Only the output folder itself may be \
a link.
    """
    refuse_link(path)
    try:
        # O_NONBLOCK: otherwise opening a pipe waits for a process at its other end.
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EISDIR):  # it is a pipe or a socket, or a folder
            raise _refuse_kind(path) from error
        raise
    try:
        _check_status(path, os.fstat(handle), is_written=flags != os.O_RDONLY)
    except BaseException:
        os.close(handle)
        raise
    return handle


def check_entries(folder: Path) -> None:
    """Refuse a folder that contains, at any depth, anything but ordinary files and folders."""
    refuse_link(folder)
    if isinstance(folder, ObjectPath) or not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                check_entries(Path(entry.path))
                continue
            refuse_link(Path(entry.path))
            _check_status(Path(entry.path), entry.stat(follow_symlinks=False), is_written=True)


def refuse_link(path: Path) -> None:
    """Refuse a symbolic link inside an output folder."""
    if path.is_symlink():
        raise FolderError(
            f"{path} is a symbolic link. Links inside an output folder are not followed: delete it, or "
            "replace it with what it leads to. Only the output folder itself may be a link."
        )


def _check_status(path: Path, status: os.stat_result, *, is_written: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _refuse_kind(path)
    if is_written and status.st_nlink > 1:
        raise FolderError(
            f"{path} has a second name (a hard link), so writing to it would change another file. "
            "Replace it with a copy, or delete it."
        )


def _refuse_kind(path: Path) -> FolderError:
    return FolderError(f"{path} is not a regular file. Delete it, or choose another output folder.")


def refuse_special(path: Path) -> None:
    """Refuse to replace what is there and is not a file: a pipe, a device or a folder.

    A rename would replace a pipe or a device without a word, even one that a link leads to.
    """
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):  # only the link is replaced
                return
    except OSError:  # it is missing, or writing explains why it cannot be reached
        return
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise FolderError(
            f"{path} is {kind}, so it is not replaced. Delete it, or choose another name."
        )


class AtomicFile:
    """A file that has a temporary name until `finish`. Without `finish`, the file is removed.

    It takes the place of a file or a link of its name, but never of a pipe, a device or a folder.
    With `durable=False`, the file is not flushed to the disk, so a power loss can damage it.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        if not isinstance(path, ObjectPath):
            refuse_special(path)
        self.path = path
        self._durable = durable
        self._temporary = None if isinstance(path, ObjectPath) else temporary_path(path)
        self._file = create_file(self._temporary) if self._temporary else create_unnamed(path)
        self._hash: xxhash.xxh3_128 | None = xxhash.xxh3_128()  # None: compute it at the end
        self._unflushed = 0
        self._finished = False
        self.size = 0

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._finished:
            with suppress(OSError):  # the disk may be full, and the file is removed anyway
                self._file.close()
            if self._temporary is not None:
                self._temporary.unlink(missing_ok=True)

    def write(self, data: Any) -> None:
        """Append bytes, or an array's bytes."""
        view = memoryview(data)
        if not view.nbytes:
            return
        view = view.cast("B")
        self._file.write(view)
        if self._hash is not None:
            self._hash.update(view)
        self.size += len(view)
        self._unflushed += len(view)
        if self._unflushed >= _EARLY and self._temporary is not None and self._durable:
            self._file.flush()
            start_writeback(self._file.fileno(), self.size - self._unflushed, self._unflushed)
            self._unflushed = 0

    def cut_back(self, size: int) -> None:
        """Remove the last `size` bytes."""
        self.size -= size
        self._file.flush()
        os.ftruncate(self._file.fileno(), self._file.seek(-size, os.SEEK_CUR))
        self._hash = None

    def finish(self) -> str:
        """Give the file its name; returns its xxh3-128 checksum."""
        self._file.flush()
        if self._hash is None:
            self._file.seek(0)
            checksum = hash_file(self._file)
        else:
            checksum = self._hash.hexdigest()
        if isinstance(self.path, ObjectPath):
            self.path.upload(self._file)
            self._file.close()
        else:
            assert self._temporary is not None
            if self._durable:
                os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self.path)
        self._finished = True
        if self._durable:
            sync_folder(self.path.parent)
        return checksum


class NpyFile(AtomicFile):
    """A `.npy` file of one dimension whose length is known only at the end.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "x.npy"
    >>> with NpyFile(path, np.dtype("<u2")) as file:
    ...     file.write(np.arange(3, dtype="<u2"))
    ...     _ = file.finish()
    >>> np.load(path).tolist()
    [0, 1, 2]
    """

    _HEADER = 256  # bytes, enough for any length; a multiple of 64, as the format requires

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        super().__init__(path)
        self._dtype = dtype
        self._file.write(bytes(self._HEADER))

    def finish(self) -> str:
        """Write the header and give the file its name. Returns the checksum, header included."""
        self._file.seek(0)
        self._file.write(npy_header(self._dtype, self.size // self._dtype.itemsize, self._HEADER))
        self._file.seek(0)
        digest = hash_file(self._file)
        super().finish()
        return digest


def create_unnamed(folder: Path) -> BinaryIO:
    """Create a file without a name in a folder; for an object store, in this machine's temp folder."""
    if not isinstance(folder, ObjectPath):
        return cast("BinaryIO", tempfile.TemporaryFile(dir=folder))
    try:
        return cast("BinaryIO", tempfile.TemporaryFile())
    except OSError as error:
        raise WorkError(
            f"A file for the upload cannot be created in {tempfile.gettempdir()}: {error.strerror}. "
            "Set the environment variable TMPDIR to another folder."
        ) from error


def hash_file(file: BinaryIO) -> str:
    """Return the xxh3-128 of a file from its current position on, read once and in blocks."""
    digest = xxhash.xxh3_128()
    while block := file.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest()


def npy_header(dtype: np.dtype[Any], length: int, size: int) -> bytes:
    """Return the header of a one-dimensional `.npy` file, padded to `size` bytes."""
    described = np.lib.format.dtype_to_descr(dtype)
    header = f"{{'descr': {described!r}, 'fortran_order': False, 'shape': ({length},), }}"
    prefix = np.lib.format.magic(1, 0) + (size - 10).to_bytes(2, "little")
    return prefix + header.encode().ljust(size - 11) + b"\n"


def start_writeback(descriptor: int, start: int, length: int) -> None:
    """Ask the kernel to start writing a range to the disk, without waiting; Linux only."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, start, length)


def _find_sync_file_range() -> Any:
    import ctypes
    import sys

    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return lambda descriptor, start, length: function(descriptor, start, length, 2)


_sync_file_range = _find_sync_file_range()
