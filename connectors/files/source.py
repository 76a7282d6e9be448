"""Files as a source: a single file or a whole directory, to the end or as they grow; exactly once.

The offset names the file that is being read, the offset in it, and the files read before:
``{"file": "b.csv", "at": 1234, "head": "…", "done": ["a.csv"]}``. A file is recognised by its name and its first bytes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from tidegate.connectors.files.formats import FORMATS, SUFFIXES, Content
from tidegate.connectors.shared.reading import RowReader
from tidegate.errors import SourceError
from tidegate.outside.sources import Checked, Polled
from tidegate.storage.schema import Relation

log = logging.getLogger("tidegate")

HEAD = 64  # bytes by which a file is recognised
LOOK_S = 0.1  # how often a followed file or directory is checked


class FileSource:
    """Rows of ``path``: a file, a directory, or a pattern such as ``data/*.csv``, in the order of names.

    ``format``: ``"ndjson"``, ``"csv"`` or ``"parquet"``; by default taken from the end of the name. ``follow``: never
    finish: keep reading a single text file as it grows (``tail -f``; a file put in its place is read from its
    beginning), or watch a directory for new files, which must appear whole, by a rename. Names that begin with a dot or
    end with ``.tmp`` are ignored. ``archive``: a directory files are moved to once all of their rows are on disk here;
    without it the offset grows with the number of files. ``fields``, ``ignore_unknown``: see
    :mod:`tidegate.connectors.shared.reading`.
    """

    def __init__(
        self,
        path: str | Path,
        format: str | None = None,
        *,
        follow: bool = False,
        archive: str | Path | None = None,
        fields: Mapping[str, str] | None = None,
        ignore_unknown: bool = False,
    ) -> None:
        if format is not None and format not in FORMATS:
            raise SourceError(f"FileSource(format={format!r}): use one of {', '.join(FORMATS)}", fatal=True)
        self.path = Path(path)
        self.format = format
        self.follow = follow
        self.archive = None if archive is None else Path(archive)
        self._options = (fields, ignore_unknown)
        self._name: str | None = None
        self._content: Content | None = None
        self._at = 0
        self._head = ""
        self._done: set[str] = set()
        self._finished = False

    @property
    def _many(self) -> bool:
        return self.path.is_dir() or any(letter in self.path.name for letter in "*?[")

    @property
    def lag(self) -> int | None:
        """Unread bytes in text files, rows in the Parquet file that is being read."""
        waiting = 0 if self._content is None else self._content.lag(self._at)
        for name in self._waiting():
            waiting += (self._directory / name).stat().st_size if name != self._name else 0
        return waiting

    @property
    def finished(self) -> bool:
        return self._finished

    @property
    def _directory(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def check(self, name: str, relation: Relation, offset: Any) -> Checked:
        self._find(relation, offset)
        found = len(self._waiting())
        return Checked(f"{found} {'file' if found == 1 else 'files'} to read", self.lag)

    def open(self, name: str, relation: Relation, offset: Any) -> None:
        if self.archive is not None:
            self.archive.mkdir(parents=True, exist_ok=True)
        self._find(relation, offset)

    def _find(self, relation: Relation, offset: Any) -> None:
        """Where we are, and whether the first file fits."""
        self._reader = RowReader(relation, *self._options)
        self._finished = False
        found = offset or {"file": None, "at": 0, "head": "", "done": []}
        self._done = set(found["done"])
        self._name, self._at, self._head = found["file"], found["at"], found["head"]
        archived = self.archive is not None and (self.archive / self.path.name).exists()
        if not self._many and not self.path.exists() and not self.follow and not archived:
            raise SourceError(f"there is no file {self.path}; give a file, a directory or a pattern", fatal=True)
        if self._name is not None and (self._directory / self._name).exists():
            self._check_same(self._directory / self._name)
        else:
            self._name = None if self._many else self._name
        for first in self._waiting()[:1]:
            self._open_content(first)  # checks that it fits

    def _check_same(self, path: Path) -> None:
        """It must be the file whose first bytes are stored; another of that name would be read from the middle."""
        if self._head and _head(path, int(self._head.partition(":")[2])) != self._head:
            if not self.follow or self._many:
                raise SourceError(
                    f"{path} is not the file that was read up to {self._at} before: its first bytes differ. Give it another "
                    f"name, or ingest it under another name",
                    fatal=True,
                )
            log.warning("%s is a different file than before; reading it from the beginning", path)
            self._at = 0

    def _waiting(self) -> list[str]:
        """Names of the files to read, in order; the current one first."""
        if not self._many:
            return [self.path.name] if self.path.exists() and self.path.name not in self._done else []
        pattern = "*" if self.path.is_dir() else self.path.name
        names = sorted(
            path.name
            for path in self._directory.glob(pattern)
            if path.is_file()
            and not path.name.startswith(".")
            and path.suffix != ".tmp"
            and path.name not in self._done
        )
        return [self._name, *(n for n in names if n != self._name)] if self._name in names else names

    def _open_content(self, name: str) -> None:
        if name != self._name:
            self._name, self._at = name, 0
        path = self._directory / name
        kind = self.format or SUFFIXES.get(path.suffix)
        if kind is None:
            raise SourceError(f"{path}: give format= one of {', '.join(FORMATS)}; its name does not say", fatal=True)
        try:
            self._content = FORMATS[kind](path, self._reader)
        except OSError as error:
            raise SourceError(f"can't read {path}: {error}") from error
        self._head = _head(path)
        self._inode = path.stat().st_ino

    def poll(self, limit: int, timeout_s: float) -> Polled | None:
        ends = time.monotonic() + timeout_s
        while True:
            try:
                polled = self._next(limit)
            except OSError as error:
                raise SourceError(f"can't read {self.path}: {error}") from error
            if polled is not None or self._finished or time.monotonic() >= ends:
                return polled
            time.sleep(min(LOOK_S, max(0.0, ends - time.monotonic())))

    def _next(self, limit: int) -> Polled | None:
        """Rows of the current file, or of the next that has some."""
        while True:
            if self._content is None:
                waiting = self._waiting()
                if not waiting:
                    self._finished = not self.follow
                    return None
                self._open_content(waiting[0])
            assert self._content is not None
            found = self._content.read(self._at, limit, whole=self._many or not self.follow)
            if found is not None:
                rows, malformed, self._at, place = found
                if not self._head:
                    self._head = _head(self._directory / str(self._name))
                return Polled(rows, self._offset(), malformed, place)
            if self.follow and not self._many and not self._replaced():
                return None
            self._end_of_file()

    def _replaced(self) -> bool:
        """Was the followed file replaced by another, or truncated?"""
        if not self.path.exists():
            return False
        return self.path.stat().st_ino != self._inode or self.path.stat().st_size < self._at

    def _end_of_file(self) -> None:
        assert self._content is not None
        self._content.close()
        self._content = None
        if self.follow and not self._many:
            self._at, self._head = 0, ""
            return
        assert self._name is not None
        if self._many:
            self._done = {name for name in self._done if (self._directory / name).exists()}
        self._done.add(self._name)
        self._archived(self._name)
        self._name, self._at, self._head = None, 0, ""

    def _archived(self, name: str) -> None:
        """All rows of the file are on disk here, because they were polled before."""
        if self.archive is not None:
            os.replace(self._directory / name, self.archive / name)

    def _offset(self) -> dict[str, Any]:
        return {"file": self._name, "at": self._at, "head": self._head, "done": sorted(self._done)}

    def committed(self, offset: Any) -> None:
        pass

    def close(self) -> None:
        if self._content is not None:
            self._content.close()
            self._content = None


def _head(path: Path, length: int = HEAD) -> str:
    """A fingerprint of the first bytes of a file, with their number; nothing for an empty one."""
    with path.open("rb") as file:
        first = file.read(length)
    return f"{crc32(first):08x}:{len(first)}" if first else ""
