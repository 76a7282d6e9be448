"""What opening a directory with a changed app would do, found out without changing anything in it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.dataflows.app import App
from tidegate.dataflows.fingerprint import difference, fingerprint
from tidegate.directory.compatibility import check_segments
from tidegate.directory.survey import Survey
from tidegate.directory.upgrading.changes import Change, Plan, Verdict
from tidegate.directory.upgrading.opening import make_plan
from tidegate.engine.checkpoint import check_format
from tidegate.errors import DirectoryInUse, RecoveryRefused, TidegateError
from tidegate.offline.misfits import misfits
from tidegate.storage.migration import StoredBase
from tidegate.txn.log.files import OsFiles


@dataclass
class Checked:
    """What an upgrade would do. ``same``: what is carried over as it is; ``waiting``: work that goes on after it;
    ``code``: what runs differently from then on, in words; ``misfits``: SQL in procedures that no longer fits its table;
    ``pending``: the log has to be replayed first.
    """

    changes: list[Change] = field(default_factory=list)
    same: dict[str, list[str]] = field(default_factory=dict)  # by kind
    waiting: list[Change] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)
    pending: bool = False

    @property
    def refused(self) -> list[Change]:
        return [change for change in self.changes if change.verdict is Verdict.REFUSED]

    @property
    def fits(self) -> bool:
        return not self.refused


def check(app: App, path: Path, drop: Collection[str] = ()) -> Checked:
    """What ``tidegate.open(app, path, drop=drop)`` would change, or why it would refuse; only reads."""
    if not (path / "log").is_dir():
        raise TidegateError(f"{path} has no log; give the directory an engine was opened with", path=path)
    with _closed(path):
        survey = Survey(OsFiles(path / "log"))
        with StoredBase(path / "base.duckdb", read_only=True) as stored:
            meta = stored.facts() if (path / "base.duckdb").exists() else {}
            pending, refused = survey.pending(meta), _replay(app, survey, meta)
            if not meta:
                return Checked(refused, pending=pending)
            check_format(meta)
            survey.check(meta)
            plan = make_plan(app.graph(), meta, stored, drop, pending and not refused)
            waiting = list(_waiting(meta["unfinished"]))
            changes, code = [*plan.changes, *refused], _code(app, meta)
            return Checked(changes, _same(meta, plan), waiting, code, misfits_of(app, changes), pending)


def misfits_of(app: App, changes: Iterable[Change]) -> list[str]:
    """SQL in procedures that does not fit the tables that change."""
    kinds = ("table", "column")
    return misfits(app, {c.name.partition(".")[0] for c in changes if c.kind in kinds} & app.tables.keys())


def _replay(app: App, survey: Survey, meta: Mapping[str, Any]) -> list[Change]:
    """Why the records that the base does not have can't be replayed by this app, if they can't."""
    try:
        check_segments(app, survey.since(int(meta.get("lsn", 0))), ())
    except RecoveryRefused as error:
        return [Change("log", app.name, str(error), Verdict.REFUSED)]
    return []


def _same(meta: Mapping[str, Any], plan: Plan) -> dict[str, list[str]]:
    """What is stored and not among the changes. A column belongs to its table or stream."""
    touched = {(change.kind, change.name) for change in plan.changes}
    columns = {name.partition(".")[0] for kind, name in touched if kind == "column"}
    touched |= {(kind, name) for kind in ("table", "stream") for name in columns}
    borders = {name for name, facts in meta["declared"]["streams"].items() if facts["border"]}
    windows = {f"{procedure}.{name}" for procedure, name, *_ in meta["windows"]}
    stored = {
        "table": [old for old, new in plan.tables.items() if old == new],
        "stream": [old for old, new in plan.streams.items() if old == new and old in borders],
        "window": [old for old, new in plan.windows.items() if old == new and old in windows],
        "subscription": [name for name, *_ in meta["subscriptions"]],
    }
    return {kind: [name for name in names if (kind, name) not in touched] for kind, names in stored.items()}


def _code(app: App, meta: Mapping[str, Any]) -> list[str]:
    """Differences besides tables and streams, which are among the changes."""
    lines = difference(meta["fingerprint"], fingerprint(app))
    return [line for line in lines if not line.startswith(("table ", "stream "))]


def _waiting(unfinished: Mapping[str, Any]) -> Iterator[Change]:
    """Questions to people, halted dataflows and calls: what was accepted and has not ended."""
    halted = {position for position, _ in unfinished["halted"]}
    for e in unfinished["executions"]:
        batch = f"with batch {e['batch_id']}" + (f" of key {e['key']!r}" if e["key"] is not None else "")
        if e["position"] in halted:
            what = f"its dataflow is halted in front of it, {batch}"
        elif e["started"]:
            what = f"it waits for an answer, {batch}"
        else:
            what = f"it waits for its turn, {batch}"
        yield Change("unit", e["unit"], what, Verdict.CARRIED)
    for c in unfinished["calls"]:
        yield Change("procedure", c["procedure"], "a call waits for its turn", Verdict.CARRIED)


@contextmanager
def _closed(path: Path) -> Iterator[None]:
    """Nobody has the directory open, or opens it meanwhile."""
    if not (path / "lock").exists():
        yield
        return
    lock = os.open(path / "lock", os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(lock, 200).decode(errors="replace").strip() or "another process"
            raise DirectoryInUse(
                f"{path} is open in {owner}; close it there first: only then it is known what an upgrade finds",
                path=path,
            ) from None
        yield
    finally:
        os.close(lock)
