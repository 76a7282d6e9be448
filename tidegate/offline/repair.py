"""Repairing a directory by hand: a record that can't be replayed is skipped, and the log says so.

Nothing is removed. A record ``Skipped`` is added at the end of the log; every replay that meets the record it names, now
or from an older generation, gives it its number, its batch-ids and its offset, and makes its rows dead letters instead of
running anything.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tidegate.clock import SystemClock
from tidegate.directory.layout import Directory
from tidegate.directory.survey import Survey, repair
from tidegate.engine.progress import describe
from tidegate.errors import TidegateError
from tidegate.storage.column_rows import plain_rows
from tidegate.txn.log.reader import LogReader
from tidegate.txn.log.record import (
    Advanced,
    Called,
    Executed,
    Fed,
    Mark,
    Pushed,
    Record,
    Requeued,
    Resumed,
    Skipped,
    body_of,
    framed,
    from_us,
    seal,
    to_us,
)
from tidegate.txn.positions import sequence_of

Work = Pushed | Fed | Called | Requeued | Advanced


@dataclass(frozen=True)
class Found:
    """A record that can be skipped: where it is, and what it holds."""

    lsn: int
    what: str
    record: Work

    def facts(self) -> dict[str, Any]:
        record = self.record
        found: dict[str, Any] = {"record": self.lsn, "holds": self.what, "sequence": record.sequence}
        found["accepted_at"] = from_us(record.time_us).isoformat()
        if isinstance(record, Called):
            return {**found, "arguments": record.arguments, "named": record.named}
        if isinstance(record, Advanced):
            return {**found, "stream": record.stream, "to": record.to}
        if isinstance(record, Requeued):
            return {**found, "letter": record.letter, "rows": plain_rows(record.rows)[:10]}
        return {**found, "source": record.source, "offset": record.offset, "rows": plain_rows(record.rows)[:10]}


class Repair:
    """A directory that no engine has open. Use it in a ``with`` block: others can't open it meanwhile."""

    def __init__(self, path: Path) -> None:
        if not (path / "log").is_dir():
            raise TidegateError(f"{path} has no log; give the directory an engine was opened with", path=path)
        self._directory = Directory(path)
        try:
            self._survey = Survey(self._directory.files)
            survey = self._survey
            repair(self._directory.files, survey)
            meta, self.notes = self._directory.sound_base(
                survey.identity, survey.merges, survey.oldest, survey.end, survey.upgraded_at()
            )
            survey.check(meta)
            self._start = int(meta.get("lsn", 0))
        except BaseException:
            self._directory.close()
            raise

    def find(self, lsn: int) -> Found:
        """The record at ``lsn``, if it can be skipped; raises with the reason if not."""
        if lsn < self._start:
            raise _refusal(
                lsn,
                f"it is below the merge frontier (LSN {self._start}), so its effects are in the tables",
            )
        if any(skipped.record == lsn for skipped in self._survey.skipped):
            raise _refusal(lsn, "it is skipped already")
        found: Found | None = None
        until = 0  # the first sequence number of the next record
        ended: set[int] = set()
        for entry in LogReader(self._directory.files, self._start):
            if entry.kind not in (Pushed, Fed, Called, Advanced, Executed, Resumed):
                continue
            record = entry.record
            if isinstance(record, (Pushed, Fed, Called, Requeued, Advanced)):
                if entry.lsn == lsn:
                    found = Found(lsn, describe(record), record)
                elif found is not None and not until:
                    until = record.sequence
            elif found is not None and isinstance(record, Executed):
                ended.add(sequence_of(record.position))
        if found is None:
            raise _refusal(
                lsn, f"no batch or call was accepted there; tidegate log {self._directory.path} lists the records"
            )
        _check_open(found, until, ended)
        return found

    def skip(self, found: Found, because: str) -> int:
        """Log that the record is skipped, durably; returns the LSN of that."""
        survey, files = self._survey, self._directory.files
        assert survey.last is not None
        header = msgspec.structs.replace(
            survey.last,
            opening=secrets.token_hex(8),
            number=survey.last.number + 1,
            begin=survey.end,
            previous=survey.chain,
        )
        skipped = Skipped(found.lsn, found.record.sequence, to_us(SystemClock().now()), because)
        written, chain = framed(body_of(header), 0)
        at = survey.end + len(written)
        frame, chain = framed(body_of(skipped), chain)
        end = at + len(frame)
        mark: Record = Mark(end, seal(header.directory, end))
        written += frame + framed(body_of(mark), chain)[0]
        file = files.create(f"{survey.end:020d}.log")
        try:
            done = 0
            while done < len(written):
                done += file.write_synced(written[done:], done)
        finally:
            file.close()
        self._survey = Survey(files)
        return at

    def __enter__(self) -> Repair:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.close()


def _check_open(found: Found, until: int, ended: set[int]) -> None:
    """Raise when the log says how something of the record ended: a replay repeats that, and does not run it."""
    first = found.record.sequence
    if any(first <= sequence and (not until or sequence < until) for sequence in ended):
        raise _refusal(
            found.lsn,
            f"the log says how {found.what} ended, which a replay repeats without running it. If its dataflow is halted, open "
            f"the app and resume it, or skip the batch there",
        )


def _refusal(lsn: int, why: str) -> TidegateError:
    return TidegateError(f"record {lsn} can't be skipped: {why}", lsn=lsn)
