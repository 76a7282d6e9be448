"""The few file operations the log needs, behind one interface, so that tests can simulate power loss at any of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Protocol

DSYNC: int | None = getattr(os, "RWF_DSYNC", None)
NOT_KNOWN = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}
REPEATED = 4096  # unsynced bytes up to which they are written again rather than synced separately
NOTHING = (1 << 62, b"")  # no unsynced bytes: the offset is beyond every end


class AppendFile(Protocol):
    """A file that grows at its end. Its writer says where that is, so that a write with an unknown outcome (an error,
    an interrupt) can be repeated: the same bytes, in the same place.
    """

    def write(self, data: bytes | memoryview, at: int) -> int:
        """Write some of ``data`` at offset ``at``; returns how many bytes. Raises OSError (disk full)."""
        ...

    def write_synced(self, data: bytes | memoryview, at: int) -> int:
        """Like ``write``, but returns when that, and everything before it, is on disk."""
        ...

    def sync(self) -> None:
        """Returns when everything written is on disk. After an error it is unknown what is."""
        ...

    def check_place(self) -> None:
        """Raise SegmentGone if what is written here could not be found again."""
        ...

    def close(self) -> None:
        """Close it; may be called more than once."""
        ...


class Files(Protocol):
    """A directory of log segments."""

    def names(self) -> list[str]: ...
    def read(self, name: str) -> bytes: ...
    def create(self, name: str) -> AppendFile: ...
    def truncate(self, name: str, size: int) -> None: ...
    def sync(self, name: str) -> None: ...
    def remove(self, name: str) -> None: ...


class OsFiles:
    """A directory of the operating system. Creating, truncating, syncing and removing are durable when they return."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir() if path.suffix == ".log")

    def read(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()

    def create(self, name: str) -> AppendFile:
        path = self.directory / name
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            sync_directory(self.directory)
        except BaseException:
            os.close(handle)
            path.unlink()
            raise
        return _OsFile(handle, path)

    def truncate(self, name: str, size: int) -> None:
        handle = os.open(self.directory / name, os.O_WRONLY)
        try:
            os.ftruncate(handle, size)
            os.fsync(handle)
        finally:
            os.close(handle)

    def sync(self, name: str) -> None:
        handle = os.open(self.directory / name, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def remove(self, name: str) -> None:
        (self.directory / name).unlink()
        sync_directory(self.directory)


class SegmentGone(OSError):
    """The open file is no longer the one at its path: the directory was removed, moved or replaced."""


class _OsFile:
    """Writes and syncs with one call if the system can: between two, a thread would wait for the interpreter once more.

    Such a call syncs only what it writes, so it also rewrites what is not synced yet, if that is a few bytes; otherwise
    the whole file is synced.

    An open file can still be written to after it was removed from its path. So after every write, before it is
    acknowledged, the file at the path must still be this one (2 µs, on top of a sync).
    """

    def __init__(self, handle: int, path: Path) -> None:
        self._handle = handle
        self._path = str(path)
        self._identity = _identity(self._path)
        self._unsynced: tuple[int, bytes | None] = NOTHING  # the bytes since an offset; None: too many to write again
        self._at_once = DSYNC is not None

    def write(self, data: bytes | memoryview, at: int) -> int:
        count = os.pwrite(self._handle, data, at)
        self.check_place()
        since, unsynced = self._before(at)
        known = unsynced is not None and len(unsynced) + count <= REPEATED
        self._unsynced = since, unsynced + bytes(data[:count]) if known and unsynced is not None else None
        return count

    def write_synced(self, data: bytes | memoryview, at: int) -> int:
        since, again = self._before(at)
        if self._at_once and again is not None:
            assert DSYNC is not None
            try:
                count = os.pwritev(self._handle, (again, data), since, DSYNC) - len(again)
            except OSError as error:
                if error.errno not in NOT_KNOWN:
                    raise
                self._at_once = False
            else:
                if count > 0:
                    self.check_place()
                    self._unsynced = NOTHING
                    return count
        count = os.pwrite(self._handle, data, at)
        os.fdatasync(self._handle)
        self.check_place()
        self._unsynced = NOTHING
        return count

    def _before(self, at: int) -> tuple[int, bytes | None]:
        """Where the unsynced part of the file before ``at`` begins, and its bytes."""
        since, unsynced = self._unsynced
        if since > at:
            return at, b""
        return since, None if unsynced is None else unsynced[: at - since]

    def sync(self) -> None:
        os.fdatasync(self._handle)
        self.check_place()
        self._unsynced = NOTHING

    def check_place(self) -> None:
        try:
            found = _identity(self._path)
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found != self._identity:
            told = "no longer exists" if found is None else "is a different file now"
            raise SegmentGone(errno.ENOENT, f"{self._path} {told}")

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def sync_directory(directory: Path) -> None:
    """Make creations, renames and removals in ``directory`` durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
