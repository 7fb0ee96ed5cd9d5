"""weir in a Python program's own threads: files of a store without system calls.

    with weir.open_store("/data/store") as store:
        with store.open("/today.csv", "w", newline="") as file:
            csv.writer(file).writerow(["begun"])
            weir.fsync(file)  # survives a crash of the machine from here on
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import stat
import weakref
from typing import IO, TYPE_CHECKING, Any

from . import _weir

if TYPE_CHECKING:
    from types import TracebackType

    from _typeshed import ReadableBuffer, StrPath, WriteableBuffer

__all__ = ["Batch", "File", "Store", "fsync", "open_store"]

os.register_at_fork(after_in_child=_weir.forget_of_parent)

_READ_AT_ONCE = 1 << 20

_open_stores: weakref.WeakSet[Store] = weakref.WeakSet()


@atexit.register
def _close_stores() -> None:
    for store in list(_open_stores):
        store.close()



class File(io.RawIOBase):
    """An open file of a store, without a buffer: `Store.open(path, mode, buffering=0)`.

    What is not here is that of `io.RawIOBase`. It has no `fileno`: the kernel does not know the file.
    """

    name: str
    mode: str

    def __init__(self, store: Store, path: StrPath, mode: str = "rb") -> None:
        super().__init__()
        self._raw: _weir.RawFile | None = None
        kind = mode.replace("b", "", 1).replace("+", "", 1)
        plus = "+" in mode
        if len(kind) != 1 or kind not in "rwax":
            raise ValueError(f"invalid mode: {mode!r}")
        flags = os.O_RDWR if plus else os.O_RDONLY if kind == "r" else os.O_WRONLY
        flags |= {"r": 0, "w": os.O_CREAT | os.O_TRUNC, "x": os.O_CREAT | os.O_EXCL, "a": os.O_CREAT | os.O_APPEND}[kind]
        self._readable = plus or kind == "r"
        self._writable = plus or kind != "r"
        self.name = os.fspath(path)
        self.mode = kind + "b" + "+" * plus
        raw = store.open_raw(path, flags, 0o666)
        if stat.S_ISDIR(raw.stat().st_mode):
            raw.close()
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.name)
        if kind == "a":
            raw.seek(0, os.SEEK_END)
        self._raw = raw

    def _open(self) -> _weir.RawFile:
        if self.closed or self._raw is None:
            raise ValueError("I/O operation on closed file")
        return self._raw

    def readable(self) -> bool:
        self._open()
        return self._readable

    def writable(self) -> bool:
        self._open()
        return self._writable

    def seekable(self) -> bool:
        self._open()
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        raw = self._open()
        if not self._readable:
            raise io.UnsupportedOperation("not readable")
        return raw.readinto(buffer)

    def readall(self) -> bytes:
        raw = self._open()
        if not self._readable:
            raise io.UnsupportedOperation("not readable")
        parts = []
        while part := raw.read(_READ_AT_ONCE):
            parts.append(part)
        return b"".join(parts)

    def write(self, data: ReadableBuffer, /) -> int:
        raw = self._open()
        if not self._writable:
            raise io.UnsupportedOperation("not writable")
        return raw.write(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._open().seek(offset, whence)

    def tell(self) -> int:
        return self._open().seek(0, os.SEEK_CUR)

    def truncate(self, size: int | None = None, /) -> int:
        if not self.writable():
            raise io.UnsupportedOperation("not writable")
        size = self.tell() if size is None else size
        self._open().truncate(size)
        return size

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                if self._raw is not None:
                    self._raw.close()

    def pread(self, size: int, offset: int) -> bytes:
        """Reads at most `size` bytes from `offset` on."""
        return self._open().pread(size, offset)

    def pwrite(self, data: ReadableBuffer, offset: int) -> int:
        """Writes at `offset`, or at the end of an appending file. Returns the number of bytes written."""
        return self._open().pwrite(data, offset)

    def sync(self) -> None:
        """Makes the file durable, and every earlier change of the volume."""
        self._open().sync()

    def stat(self) -> os.stat_result:
        """The attributes, as of `os.fstat`."""
        return self._open().stat()

    def allocate(self, offset: int, length: int) -> None:
        """Allocates a range of bytes, and makes the file as long."""
        self._open().allocate(offset, length)

    def punch_hole(self, offset: int, length: int) -> None:
        """Makes a range of bytes zeros that take no space."""
        self._open().punch_hole(offset, length)


class Batch:
    """Several changes that take effect together: see `Store.batch`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes: list[tuple[_weir.RawFile, bytes, int] | tuple[StrPath, StrPath] | tuple[StrPath]] = []

    def pwrite(self, file: IO[Any] | File, data: ReadableBuffer, offset: int) -> None:
        """Adds a write at `offset`, also of an appending file. The file's own buffer is flushed first, outside of the batch."""
        file.flush()
        if offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._changes.append((_raw_of(file)._open(), bytes(memoryview(data)), offset))

    def rename(self, src: StrPath, dst: StrPath) -> None:
        """Adds a renaming, which replaces what has the new name."""
        self._changes.append((src, dst))

    def unlink(self, path: StrPath) -> None:
        """Adds the removal of a name of a file."""
        self._changes.append((path,))

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        changes, self._changes = self._changes, []
        if kind is None:
            self._store.apply(changes)


class Store(_weir.RawStore):
    """An open store. Its functions are those of `os`; paths begin at the root of the volume, with or without a slash.

    A context manager: leaving it closes the store with all its files. Flush or close buffered files before.
    """

    def open(
        self,
        path: StrPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Opens a file, as the function `open` does: the modes, buffers and texts are those."""
        binary = "b" in mode
        if binary and "t" in mode:
            raise ValueError("can't have text and binary mode at once")
        if binary and not encoding is errors is newline is None:
            raise ValueError("binary mode doesn't take an encoding, errors or newline argument")
        if buffering == 0 and not binary:
            raise ValueError("can't have unbuffered text I/O")
        raw = File(self, path, mode.replace("t", "").replace("b", "") + "b")
        if buffering == 0:
            return raw  # type: ignore[return-value]
        try:
            size = io.DEFAULT_BUFFER_SIZE if buffering in (-1, 1) else buffering
            buffered: io.BufferedRandom | io.BufferedReader | io.BufferedWriter
            if raw.readable() and raw.writable():
                buffered = io.BufferedRandom(raw, size)
            elif raw.readable():
                buffered = io.BufferedReader(raw, size)
            else:
                buffered = io.BufferedWriter(raw, size)
            if binary:
                return buffered
            text = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
            text.mode = mode  # type: ignore[misc]
            return text
        except BaseException:
            raw.close()
            raise

    def batch(self) -> Batch:
        """Begins changes that take effect together, when the batch is left without an exception: other threads, and whoever
        opens the store after a crash, see all of them or none; only a read that began before may have some pages from before and
        others from after. They are durable after a later `commit`.

            with store.batch() as batch:
                batch.pwrite(accounts, b"40", 0)
                batch.rename("/pending", "/done")

        If one fails, nothing has changed, and leaving raises its `OSError`. Names are those before the first change. EFBIG: more
        than 64 changes or 1 MiB, or the buffer is too small for so many.
        """
        return Batch(self)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_store(
    path: StrPath,
    *,
    volume: str = "main",
    buffer: StrPath | None = None,
    read_only: bool = False,
    memory_bytes: int = 128 << 20,
    volatile_buffer: bool = False,
    umask: int = 0o022,
) -> Store:
    """Opens the store that was formatted at `path`, and recovers.

    `buffer` is where the buffer is, if not where it was last or beside the store; `memory_bytes` is for pages and deltas;
    `volatile_buffer` accepts a buffer that loses synced data when the power fails; `umask` has the permission bits that new
    files do not get.

    Raises `OSError` with EBUSY if the store is mounted or open; ENOENT if it, its buffer or the volume is missing; EINVAL if
    something else is there; EUCLEAN if it is damaged; EOPNOTSUPP if it is of another version of weir, or its buffer is not
    durable; ESTALE if the buffer is outdated or another store's. The text says what to do next.
    """
    store = Store(
        path,
        volume=volume,
        buffer=buffer,
        read_only=read_only,
        memory_bytes=memory_bytes,
        volatile_buffer=volatile_buffer,
        umask=umask,
    )
    _open_stores.add(store)
    return store


def fsync(file: IO[Any] | File) -> None:
    """Makes an open file of a store durable, with what its buffers have, and every earlier change of the volume."""
    file.flush()
    _raw_of(file).sync()


def _raw_of(file: IO[Any] | File) -> File:
    """The file below buffers and texts."""
    raw: Any = file
    while not isinstance(raw, File):
        raw = getattr(raw, "buffer", None) or getattr(raw, "raw", None)
        if raw is None:
            raise TypeError(f"{file!r} is not a file of a store")
    return raw
