"""Files for one user only: the directory of an engine, and files that hold secrets.

Modes are set, not left to the umask: an operator should not have to know that an engine keeps rows in plain files.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tidegate.errors import TidegateError

log = logging.getLogger("tidegate.guard.private")

OTHERS = 0o077  # any access of group and others
OWN = (
    "lock",
    "log",
    "generations",
    "rows",
    "topics",
    "base.duckdb",
    "base.duckdb.wal",
)  # what an engine keeps in its directory


def private_directory(path: Path) -> None:
    """Ensure a directory that only its owner can enter: a new one, an empty one, or one that was an engine's.

    One that others could enter is closed to them, with a warning; when we may not do that, it is refused.
    """
    try:
        path.mkdir(mode=0o700, parents=True)
        os.chmod(path, 0o700)  # whatever the umask is
        return
    except FileExistsError:
        pass
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & OTHERS:
        _close_to_others(path, mode)
    for inner in _contents(path):
        if not inner.is_symlink() and stat.S_IMODE(inner.lstat().st_mode) & OTHERS:
            os.chmod(inner, 0o700 if inner.is_dir() else 0o600)


def _close_to_others(path: Path, mode: int) -> None:
    found = {inner.name for inner in path.iterdir()}
    if mode & stat.S_ISVTX or (found and not found & set(OWN)):
        raise TidegateError(
            f"other users of this machine can get at {path} (mode {mode:03o}), and it holds more than an engine: give the "
            f"engine a directory of its own, {path}/engine for example",
            path=path,
        )
    try:
        os.chmod(path, 0o700)
    except OSError as error:
        raise TidegateError(
            f"other users of this machine can get at {path} (mode {mode:03o}), and tidegate can't change that "
            f"({error.strerror}). Have its owner run: chmod 700 {path}; or give the engine a directory of its own in it",
            path=path,
        ) from None
    log.warning(
        "other users of this machine could get at %s (mode %03o); it is closed to them now (mode 700)", path, mode
    )


def _contents(path: Path) -> Iterator[Path]:
    """Everything an engine keeps there, and nothing else."""
    for inner in path.iterdir():
        if inner.name in OWN or inner.name.startswith("base."):
            yield inner
            if inner.is_dir() and not inner.is_symlink():
                yield from inner.rglob("*")


def check_secret(path: Path, what: str) -> None:
    """Refuse a file with secrets that any user of this machine could read, or that its group could change."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return  # opening it will say why
    if mode & 0o026:
        may = "read" if mode & 0o004 else "changed"
        raise TidegateError(
            f"{path} holds {what}, and can be {may} by other users of this machine (mode {mode:03o}). Run: chmod 600 {path}",
            path=path,
        )
