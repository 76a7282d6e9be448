"""Backing up a directory, whether its engine is running or not.

A backup is itself a directory that can be opened: a copy of the base, and the log since. It is written under a
temporary name and renamed when it is complete and on disk. From inside a running engine the base is copied as it is.
From outside, where a running engine's base can't be read, the newest generation takes its place (or nothing, while the
log goes back to the beginning): generations never change once written, and segments only grow, so copying them disturbs
nobody.

To restore a backup, copy it back or open it where it is; :func:`restore` first checks that its log is intact.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.directory.layout import Directory, generation
from tidegate.errors import DirectoryInUse, TidegateError
from tidegate.storage.generations import copy_base
from tidegate.syncing import sync_file
from tidegate.txn.log.files import OsFiles, sync_directory
from tidegate.txn.log.reader import LogReader

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine


def backup_engine(engine: Engine, target: Path) -> None:
    """Copy a running engine: everything acknowledged before the call is in the copy. Work continues meanwhile."""
    if engine.durable is None or engine.directory is None:
        raise TidegateError("an engine in memory has nothing to back up; open it with a directory")
    partial = _begin(target)
    with engine.merger.paused():
        copy_base(engine.database.base.cursor(), partial / "base.duckdb")
        _copy_upgrade(engine, partial / "generations")
        _copy_topics(engine.directory.path, partial)  # before the log: what is in them must be in it
        with engine.lock:
            engine.durable.sync()
            end = engine.durable.writer.synced
            names = engine.directory.files.names()
        _copy_log(engine.directory.path / "log", names, partial / "log", end)
    _finish(partial, target)


def _copy_upgrade(engine: Engine, target: Path) -> None:
    """If another version of the app wrote the beginning of the log, the base can't be rebuilt from the whole log: the copy
    gets the generation from which this version can.
    """
    assert engine.directory is not None
    assert engine.durable is not None
    since = engine.durable.replayable_since
    kept = min((generation for generation in engine.directory.generations() if generation.lsn >= since), default=None)
    if since and kept is not None:
        target.mkdir(mode=0o700)
        shutil.copyfile(kept.path, target / kept.path.name)


def backup_directory(path: Path, target: Path) -> None:
    """Copy a directory from outside, whether a process has it open or not."""
    if not (path / "log").is_dir():
        raise TidegateError(f"{path} has no log; give the directory an engine was opened with", path=path)
    try:
        _copy_directory(path, target)
    except OSError as error:
        raise TidegateError(f"{path} can't be copied to {target}: {error}", path=path) from error


def restore(backup: Path, target: Path) -> None:
    """Check every record of a backup's log, then copy the backup to where an engine is to be opened."""
    if not (backup / "log").is_dir():
        raise TidegateError(f"{backup} has no log: it is not a backup of an engine's directory", path=backup)
    for _ in LogReader(OsFiles(backup / "log"), survey=True):
        pass
    backup_directory(backup, target)


def _copy_directory(path: Path, target: Path) -> None:
    try:
        directory = Directory(path)
    except DirectoryInUse:
        _backup_running(path, target)
        return
    try:
        partial = _begin(target)
        for name in ("base.duckdb", "base.duckdb.wal"):
            if (path / name).exists():
                shutil.copyfile(path / name, partial / name)
        shutil.copytree(directory.generations_path, partial / "generations", dirs_exist_ok=True)
        _copy_topics(path, partial)
        _copy_log(path / "log", directory.files.names(), partial / "log", None)
        _finish(partial, target)
    finally:
        directory.close()


def _backup_running(path: Path, target: Path, tries: int = 10) -> None:
    """Copy the log and the newest generation while files may be added and removed; try again if one is gone."""
    for _ in range(tries):
        partial = _begin(target)
        try:
            newest = max((generation(p) for p in (path / "generations").glob("*.duckdb")), default=None)
            if newest is not None:
                shutil.copyfile(newest.path, partial / "base.duckdb")
            _copy_topics(path, partial)
            _copy_log(path / "log", OsFiles(path / "log").names(), partial / "log", None)
        except (FileNotFoundError, shutil.Error):
            continue
        names = OsFiles(partial / "log").names()
        if names and int(names[0].removesuffix(".log")) <= (0 if newest is None else newest.lsn):
            _finish(partial, target)
            return
    raise TidegateError(
        f"{path} changes too fast to be copied from outside; call engine.backup() in its process", path=path
    )


def _begin(target: Path) -> Path:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise TidegateError(f"{target} already exists and is not empty; copy to a new place", path=target)
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700, parents=True)
    (partial / "log").mkdir(mode=0o700)
    return partial


def _copy_topics(source: Path, target: Path) -> None:
    """Segments grow while they are copied: an entry cut in two at the end of one is emitted again by the replay."""
    if (source / "topics").is_dir():
        shutil.copytree(source / "topics", target / "topics", dirs_exist_ok=True)


def _copy_log(source: Path, names: list[str], target: Path, end: int | None) -> None:
    """Copy segments up to the LSN ``end``; a record cut in two there was not acknowledged and is cut off on opening."""
    for name in names:
        begin = int(name.removesuffix(".log"))
        if end is not None and begin >= end:
            continue
        with (source / name).open("rb") as stored, (target / name).open("wb") as copy:
            copy.write(stored.read() if end is None else stored.read(end - begin))


def _finish(partial: Path, target: Path) -> None:
    for path in sorted(partial.rglob("*")):
        if path.is_file():
            path.chmod(0o600)
            sync_file(path)
    for folder in [partial, *(p for p in partial.rglob("*") if p.is_dir())]:
        sync_directory(folder)
    if target.exists():
        target.rmdir()
    partial.replace(target)
    sync_directory(target.parent)
