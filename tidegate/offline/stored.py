"""The tables in an engine's directory, for reading: from a copy, so that a running engine is not disturbed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tidegate.clock import SystemClock
from tidegate.config import Config
from tidegate.dataflows.app import App
from tidegate.directory.backup import backup_directory
from tidegate.directory.layout import Directory, generation
from tidegate.engine.engine import Engine
from tidegate.errors import DirectoryInUse, TidegateError
from tidegate.storage.reading import StoredTables


class StoredCopy(StoredTables):
    """A copy of the base in ``path``, removed when closed. ``note`` says what state it shows."""

    def __init__(self, path: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tidegate-read-")
        try:
            running = _copy_base(path, Path(self._folder.name))
            super().__init__(Path(self._folder.name) / "base.duckdb")
        except BaseException:
            self._folder.cleanup()
            raise
        state = "the engine's last kept copy" if running else "the last merge"
        self.note = f"{path} as of {state}, sequence {self.sequence}"

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


def _copy_base(path: Path, target: Path) -> bool:
    """Copy the newest base that can be read; True when an engine has the directory open."""
    if not (path / "log").is_dir():
        raise TidegateError(f"{path} has no log; give the directory an engine was opened with", path=path)
    try:
        directory = Directory(path)
    except DirectoryInUse:
        newest = max((generation(p) for p in (path / "generations").glob("*.duckdb")), default=None)
        if newest is None:
            raise TidegateError(
                f"an engine has {path} open and has kept no copy of its tables yet. Ask its server (tidegate sql URL), name the "
                f"app to replay its log (--app file.py:app), or have it call engine.checkpoint(generation=True)",
                path=path,
            ) from None
        shutil.copyfile(newest.path, target / "base.duckdb")
        return True
    try:
        if not (path / "base.duckdb").exists():
            raise TidegateError(
                f"{path} has no base yet; name the app to replay its log (--app file.py:app)", path=path
            )
        for name in ("base.duckdb", "base.duckdb.wal"):
            if (path / name).exists():
                shutil.copyfile(path / name, target / name)
    finally:
        directory.close()
    return False


class ReplayedCopy:
    """An engine on a copy of ``path``: everything acknowledged is in it, because ``app`` replays the log."""

    def __init__(self, path: Path, app: App) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tidegate-read-")
        try:
            copy = Path(self._folder.name) / "copy"
            backup_directory(path, copy)
            self.engine = Engine(app, copy, Config(), SystemClock())
        except BaseException:
            self._folder.cleanup()
            raise
        self.note = f"{path} as of now, sequence {self.engine.sequence}"

    def close(self) -> None:
        self.engine.close()
        self._folder.cleanup()
