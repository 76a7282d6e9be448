"""The few file operations the log needs, behind one seam, so that tests can lose power at any of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Protocol

DSYNC: int | None = getattr(os, "RWF_DSYNC", None)
NOT_KNOWN = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}
REPEATED = 4096  # bytes that are written once more rather than synced on their own


class AppendFile(Protocol):
    """A file that is only appended to."""

    def write(self, data: bytes | memoryview) -> int:
        """Append some of ``data``; returns how many bytes. Raises OSError (disk full)."""
        ...

    def write_synced(self, data: bytes | memoryview) -> int:
        """As ``write``, but returns when that, and everything written before, is on disk. After an OSError ``data`` counts as
        not written: the next write takes its place in the file.
        """
        ...

    def sync(self) -> None:
        """Returns when everything written is on disk. An error means that nobody knows what is."""
        ...

    def close(self) -> None: ...


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
        directory.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir() if path.suffix == ".log")

    def read(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()

    def create(self, name: str) -> AppendFile:
        handle = os.open(self.directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        sync_directory(self.directory)
        return _OsFile(handle)

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


class _OsFile:
    """Writes and syncs with one call where the system can: between two, a thread would wait for the interpreter once more.

    Such a call syncs just what it writes, so it writes again what is not synced yet: a few bytes, or everything is synced.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._end = 0
        self._unsynced: bytes | None = b""  # None: too much to write again
        self._at_once = DSYNC is not None

    def write(self, data: bytes | memoryview) -> int:
        count = os.pwrite(self._handle, data, self._end)
        self._end += count
        if self._unsynced is not None:
            known = len(self._unsynced) + count <= REPEATED
            self._unsynced = self._unsynced + bytes(data[:count]) if known else None
        return count

    def write_synced(self, data: bytes | memoryview) -> int:
        again = self._unsynced
        if self._at_once and again is not None:
            assert DSYNC is not None
            try:
                count = os.pwritev(self._handle, (again, data), self._end - len(again), DSYNC) - len(again)
            except OSError as error:
                if error.errno not in NOT_KNOWN:
                    raise
                self._at_once = False
            else:
                if count > 0:
                    self._end += count
                    self._unsynced = b""
                    return count
        count = os.pwrite(self._handle, data, self._end)
        os.fdatasync(self._handle)
        self._end += count
        self._unsynced = b""
        return count

    def sync(self) -> None:
        os.fdatasync(self._handle)
        self._unsynced = b""

    def close(self) -> None:
        os.close(self._handle)


def sync_directory(directory: Path) -> None:
    """Make creations, renames and removals in ``directory`` durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Make the contents of a file durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
