"""The few file operations the log needs, behind one seam, so that tests can lose power at any of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class AppendFile(Protocol):
    """A file that is only appended to."""

    def write(self, data: bytes | memoryview) -> int:
        """Append some of ``data``; returns how many bytes. Raises OSError (disk full)."""
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
        handle = os.open(self.directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
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
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def write(self, data: bytes | memoryview) -> int:
        return os.write(self._handle, data)

    def sync(self) -> None:
        os.fdatasync(self._handle)

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
