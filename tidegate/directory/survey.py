"""What is on disk: first surveyed without changing it, then repaired."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from tidegate.dataflows.app import App
from tidegate.dataflows.fingerprint import fingerprint
from tidegate.directory.compatibility import is_foreign, stream_columns
from tidegate.errors import LogDamaged, LogFailed
from tidegate.txn.log.files import Files
from tidegate.txn.log.reader import Cut, Entry, LogReader, begin_of
from tidegate.txn.log.record import FORMAT, Asked, Checkpoint, Executed, Resumed, Segment, Skipped, Upgraded


class Survey:
    """A log as found on disk: is it intact, and what will a replay find? Only reads.

    ``identity``: the directory it belongs to, None when there is no log yet. ``last``: the header of its last segment,
    and ``chain`` the crc32 of the last frame: what is written next continues from them. It reaches from ``oldest`` to
    ``end``, after which a tail may be ``cut``.
    ``segments``: the headers of segments with records to apply, each with the LSN of the last of them.
    ``skipped``: what was deliberately skipped. ``upgrades``: where another version of the app began to write it.
    ``outcomes``: in mode weak, the records that say how an execution ended, that it asked, or that what was halted
    continued; there are few.
    """

    def __init__(self, files: Files) -> None:
        reader = LogReader(files, survey=True)
        self.merges = 0
        self.outcomes: list[Entry] = []
        self.skipped: list[Skipped] = []
        self.upgrades: list[Upgraded] = []
        for entry in reader:
            if entry.kind in (Executed, Asked, Resumed):
                self.outcomes.append(entry)
                continue
            record = entry.record
            if isinstance(record, Skipped):
                self.skipped.append(record)
            else:
                assert isinstance(record, (Checkpoint, Upgraded))
                self.merges = record.number
                if isinstance(record, Upgraded):
                    self.upgrades.append(record)
        self.segments: list[tuple[Segment, int]] = reader.applied
        self.last: Segment | None = reader.segment
        self.identity = None if self.last is None else self.last.directory
        self.chain = reader.chain
        names = files.names()
        self.oldest = begin_of(names[0]) if names else 0
        self.end = max(reader.end, self.oldest)
        self.cut: Cut | None = reader.cut

    def check(self, meta: Mapping[str, Any]) -> None:
        """A base never holds more than the log: if it does, the end of the log is gone. The newest base also knows how
        far back the log goes.
        """
        lsn = int(meta.get("lsn", 0))
        if lsn > self.end:
            raise LogDamaged(
                f"the base holds everything up to LSN {lsn}, but the log ends at {self.end}: its end is missing or damaged. "
                f"Restore the log from a backup, then open again",
                file=None,
                offset=None,
                lsn=self.end,
            )
        if meta and meta["merge"] >= self.merges and self.oldest > meta["kept"]:
            raise LogDamaged(
                f"the log begins at LSN {self.oldest}, but the base says that it is kept from LSN {meta['kept']} on: earlier "
                f"segments are missing. Put them back, or restore a backup, then open again",
                file=None,
                offset=None,
                lsn=self.oldest,
            )

    def since(self, lsn: int) -> list[Segment]:
        """The headers of segments that a replay from ``lsn`` on applies records of."""
        return [segment for segment, last in self.segments if last >= lsn]

    def pending(self, meta: Mapping[str, Any]) -> bool:
        """Are there records that a base with these facts does not hold?"""
        return bool(self.since(int(meta.get("lsn", 0))))

    def replayable_since(self, app: App) -> int:
        """The LSN from which this app could have written all of the log: it may replay it from there on."""
        return max((last + 1 for segment, last in self.segments if is_foreign(app, segment)), default=0)

    def upgraded_at(self) -> int:
        """The LSN from which one version of the app, the last one, wrote all of the log."""
        digests = [(segment.fingerprint["digest"], last + 1) for segment, last in self.segments]
        mine = None if self.last is None else self.last.fingerprint["digest"]
        return max((end for digest, end in digests if digest != mine), default=0)

    def header(self, app: App) -> Segment:
        """The header of the segment that the log continues with."""
        number = 0 if self.last is None else self.last.number + 1
        identity = secrets.token_hex(8) if self.identity is None else self.identity
        code, columns, opening = fingerprint(app), stream_columns(app), secrets.token_hex(8)
        return Segment(FORMAT, app.name, app.recovery, code, columns, identity, opening, number, self.end, self.chain)


def repair(files: Files, survey: Survey) -> None:
    """Make the log what the survey says it is: cut a torn tail, and sync what a killed process had not synced.

    That counts from now on, so it must be on disk before anything is logged after it. Segments beyond its end
    are removed.
    """
    names = files.names()
    if survey.cut is not None:
        files.truncate(survey.cut.file, survey.cut.offset)
    elif names:
        try:
            files.sync(names[-1])
        except OSError as error:
            raise LogFailed(
                f"log segment {names[-1]} can't be synced to disk ({error}); check the disk, then open again"
            ) from error
    for name in names:
        if begin_of(name) >= survey.end:
            files.remove(name)
