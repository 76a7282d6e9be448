"""The directory of a durable engine: who owns it, and what is where.

DIR/lock                    held by the one process that has it open
DIR/base.duckdb             the tables as of the last merge, with its LSN
DIR/rows/                   a copy by key of tables that do not fit in memory, see tidegate.storage.cold.store
DIR/log/<lsn>.log           segments of the command log
DIR/generations/<n>-<lsn>   older copies of the base, each with its LSN; the log since the oldest is kept

A directory has an identity, chosen at random when its log begins. Every segment, the base and every generation carry
it, so that a file of another directory is refused. A backup has the identity of the original. Copies that were used
separately are told apart by the log's chain (``txn/log/record.py``): a base says which crc32 the log has at its LSN.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.errors import BaseDamaged, DirectoryInUse, LogDamaged, RecoveryRefused, TidegateError
from tidegate.forking import check_directory, hand_down, own
from tidegate.guard.private import private_directory
from tidegate.storage.generations import Inspector
from tidegate.syncing import sync_file
from tidegate.txn.log.files import OsFiles, sync_directory

KEPT_GENERATIONS = 2


class Generation(NamedTuple):
    """A kept copy of the base: the number of its merge, its LSN, and where it is."""

    number: int
    lsn: int
    path: Path


def generation(path: Path) -> Generation:
    """What a generation's name says."""
    number, _, lsn = path.stem.partition("-")
    return Generation(int(number), int(lsn), path)


def _unusable(path: Path, error: OSError) -> TidegateError:
    return TidegateError(
        f"{path} can't be used as the directory of an engine: {error.strerror}; give a directory that this user may create "
        f"and write to",
        path=path,
    )


class Directory:
    """Opened by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        check_directory(str(path.resolve()))
        try:
            private_directory(path)
        except (FileExistsError, NotADirectoryError):
            raise TidegateError(f"{path} is a file; an engine needs a directory of its own", path=path) from None
        except OSError as error:
            raise _unusable(path, error) from None
        try:
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _unusable(path, error) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self._lock, 200).decode(errors="replace").strip() or "another process"
            os.close(self._lock)
            raise DirectoryInUse(
                f"{path} is open in {owner}; one process owns a directory. Stop that one, or talk to it through a server",
                path=path,
            ) from None
        own(self)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()}\n".encode(), 0)
        self.files = OsFiles(path / "log")
        self.generations_path = path / "generations"
        self.generations_path.mkdir(mode=0o700, exist_ok=True)
        for leftover in self.generations_path.glob("*.partial*"):
            leftover.unlink()
        for made in (path, path.absolute().parent):
            sync_directory(made)

    @property
    def base(self) -> Path:
        return self.path / "base.duckdb"

    def generations(self) -> list[Generation]:
        """Kept copies, newest first."""
        return sorted((generation(path) for path in self.generations_path.glob("*.duckdb")), reverse=True)

    def generation(self, number: int, lsn: int) -> Path:
        """Where the copy of the base after merge ``number`` goes."""
        return self.generations_path / f"{number:012d}-{lsn:020d}.duckdb"

    def sound_base(
        self, identity: str | None, merges: int, oldest_lsn: int, end_lsn: int, since_lsn: int
    ) -> tuple[dict[str, Any], list[str]]:
        """Make sure that a sound base, recent enough for the log to be replayed from it, is in place.

        ``identity``: the directory of the log. ``merges``: the newest merge in the log. The kept log reaches from
        ``oldest_lsn`` to ``end_lsn``; from ``since_lsn`` on this app may replay it: what is before was written by another
        version, so a base is rebuilt from a generation after that, or not at all. Returns the base's facts and what had
        to be done. Putting a base in place twice is safe: the log is replayed from the LSN of the base.
        """
        with Inspector() as inspector:
            return self._sound_base(inspector, identity, merges, oldest_lsn, end_lsn, since_lsn)

    def _sound_base(
        self, inspector: Inspector, identity: str | None, merges: int, oldest_lsn: int, end_lsn: int, since_lsn: int
    ) -> tuple[dict[str, Any], list[str]]:
        report: list[str] = []
        for kept in self.generations():
            self._check_generation(inspector, kept, identity, oldest_lsn, end_lsn)
        wal = self.base.with_suffix(".duckdb.wal")
        if not self.base.exists():
            if end_lsn:
                report.append(f"{self.base.name} is missing")
            self._put_aside(wal, report)
        meta = self._inspect(inspector, self.base, report)
        if meta is None and wal.exists():
            self._put_aside(wal, report)
            meta = self._inspect(inspector, self.base, report)
        self._check_owner(self.base, meta, identity)
        if meta is not None and self._is_behind_upgrade(meta, merges, since_lsn):
            meta = None
        if meta is not None and int(meta.get("lsn", 0)) >= oldest_lsn:
            if not meta and merges and since_lsn == 0:
                report.append("the base was rebuilt from the whole log")
            elif int(meta.get("merge", 0)) < merges:
                report.append(
                    f"the base is at merge {meta.get('merge', 0)}, but the log has merge {merges}: replaying from the base's LSN"
                )
            return meta, report
        self._put_aside(self.base, report)
        self._put_aside(wal, report)
        rebuilt = self._from_a_generation(inspector, max(oldest_lsn, since_lsn), report)
        if rebuilt is not None:
            return rebuilt, report
        if oldest_lsn == 0:
            if report and since_lsn == 0:
                report.append("the base was rebuilt from the whole log")
            return {}, report
        upgraded = (
            f", from LSN {since_lsn} on, where another version of the app ended," if since_lsn > oldest_lsn else ""
        )
        raise TidegateError(
            f"{self.path}: neither the base nor a generation of it{upgraded} can be read, and the log begins later "
            f"(LSN {oldest_lsn}); restore a backup. " + "; ".join(report),
            path=self.path,
        )

    def _is_behind_upgrade(self, meta: dict[str, Any], merges: int, since_lsn: int) -> bool:
        """Is the base gone, or an old one, while there is a generation that the app may start from?"""
        old = int(meta.get("lsn", 0)) < since_lsn and int(meta.get("merge", 0)) < merges
        return old and any(generation.lsn >= since_lsn for generation in self.generations())

    def _from_a_generation(self, inspector: Inspector, least_lsn: int, report: list[str]) -> dict[str, Any] | None:
        """Make the newest sound generation that is not older than ``least_lsn`` the base; returns its facts."""
        for generation in self.generations():
            meta = self._inspect(inspector, generation.path, report)
            if meta and int(meta["lsn"]) >= least_lsn:
                partial = self.base.with_suffix(".partial")
                shutil.copyfile(generation.path, partial)
                partial.chmod(0o600)
                sync_file(partial)
                partial.replace(self.base)
                sync_directory(self.path)
                report.append(f"the base was rebuilt from generation {generation.number} and the log since")
                return meta
        return None

    def _check_generation(
        self, inspector: Inspector, kept: Generation, identity: str | None, oldest_lsn: int, end_lsn: int
    ) -> None:
        """A generation is needed when the base is damaged, and the log is kept for it: check it while there is time."""
        try:
            facts = inspector.read_facts(kept.path)
        except BaseDamaged:
            return  # reported when it is needed
        self._check_owner(kept.path, facts, identity)
        if not oldest_lsn <= facts.get("lsn", kept.lsn) <= end_lsn:
            raise LogDamaged(
                f"generation {kept.path.name} is at LSN {facts.get('lsn')}, but the log reaches from {oldest_lsn} to "
                f"{end_lsn}: segments are missing, or the generation belongs to another copy of the directory. Put the "
                f"segments back, or move the generation away, then open again",
                file=None,
                offset=None,
                lsn=end_lsn,
            )

    def _check_owner(self, path: Path, facts: dict[str, Any] | None, identity: str | None) -> None:
        owner = (facts or {}).get("directory")
        if owner is not None and identity is not None and owner != identity:
            raise RecoveryRefused(
                f"{path.name} belongs to directory {owner}, but the log ({self.files.names()[-1]}) belongs to {identity}: a "
                f"file of another directory was copied in. Put back the right one, or move {path.name} away: the base is "
                f"rebuilt from what is left",
                file=path.name,
            )

    def _inspect(self, inspector: Inspector, path: Path, report: list[str]) -> dict[str, Any] | None:
        if not path.exists():
            return {} if path == self.base else None
        try:
            return inspector.read_all(path)
        except BaseDamaged as error:
            report.append(f"{path.name} is damaged ({error})")
            return None

    def _put_aside(self, path: Path, report: list[str]) -> None:
        if path.exists():
            number = 1
            while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
                number += 1
            path.replace(aside)
            report.append(f"{path.name} was renamed to {aside.name}")

    def close(self) -> None:
        """Release it for others; may be called more than once."""
        handle, self._lock = self._lock, -1
        if handle >= 0:
            os.close(handle)

    def left_behind(self) -> None:
        """In a forked child: the lock is the parent's, and free when the parent releases it, however long the child
        lives.
        """
        if self._lock >= 0:
            hand_down(str(self.path.resolve()))
            self.close()
