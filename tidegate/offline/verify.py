"""Verifying a directory: re-execute its log, from as far back as it goes, and compare with what is stored.

Two engines are opened on copies: one as the directory is (base, then the log since), one from the oldest possible point
(an empty engine, or the oldest kept generation), replaying the whole log. What another version of the app executed is
not executed by this one: after an upgrade the oldest possible point is the generation that was kept then. If recovery,
merging and the base are right they end in the same state. Every table and window is compared, the batches that wait for
a subscriber row by row, and all batches emitted by what was re-executed, and those of changelogs for each durable
follower, by their fingerprints (``streams/emitted.py``).

What that proves depends on the mode of the log, and the result says so: in modes weak and strong the procedures ran
again, in mode effects they did not.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.clock import SystemClock
from tidegate.config import Config
from tidegate.dataflows.app import App
from tidegate.dataflows.fingerprint import difference, fingerprint, told_difference
from tidegate.directory.compatibility import is_foreign
from tidegate.directory.layout import Directory
from tidegate.directory.survey import Survey
from tidegate.engine.engine import Engine
from tidegate.engine.progress import Progress, unseen
from tidegate.errors import CursorGone, LogDamaged, RecoveryRefused, TidegateError
from tidegate.outside.outbox import Outbox
from tidegate.streams.emitted import Emitted
from tidegate.testing.history import History, outcome_of
from tidegate.txn.log.record import from_us

BASE = "the base"
BEFORE = "what was before was executed by another version of the app"
SHOWN = 20  # differences listed per kind
_RAN = "every procedure ran again on what was accepted: the same inputs and code give the stored tables, windows and batches"
PROOFS = {
    "weak": _RAN,
    "strong": f"{_RAN}, each execution ending as it is logged",
    "effects": "no procedure ran again: what the log says that each wrote and emitted gives the stored tables, windows and "
    "batches. It is not known whether the procedures would do the same again",
}


@dataclass
class Verification:
    """What a verification found."""

    tables: dict[str, int] = field(default_factory=dict)  # rows compared
    windows: int = 0
    emitted: dict[str, int] = field(default_factory=dict)  # batches emitted again and compared, for each stream
    changelogs: dict[str, int] = field(default_factory=dict)  # batches of changes compared, for each durable follower
    topics: dict[str, int] = field(default_factory=dict)  # batches that each topic keeps, all read
    timers: int = 0  # pending ones compared
    waiting: int = 0  # batches that wait for a subscriber, compared row by row
    replayed: dict[str, int] = field(default_factory=dict)
    since: str = "the beginning"
    notes: list[str] = field(
        default_factory=list
    )  # repairs made when opening the directory as it is: a cut tail, a rebuilt base
    skipped: list[str] = field(default_factory=list)  # records that were deliberately not run
    proof: str = ""  # what it proves that nothing differs
    differences: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        return not self.differences


def verify(app: App, path: Path, *, progress: Progress = unseen) -> Verification:
    """Re-execute the log of the (closed) directory and compare."""
    if not (path / "log").is_dir():
        raise TidegateError(f"{path} has no log; give the directory an engine was opened with", path=path)
    directory = Directory(path)
    try:
        with _copies(app, directory) as (stored, again, since):
            config = Config()
            with (
                Engine(app, stored, config, SystemClock()) as left,
                Engine(app, again, config, SystemClock(), progress) as right,
            ):
                found = _compared(left, right)
                found.since = since
                found.proof = _proof(app, found)
                return found
    finally:
        directory.close()


def _proof(app: App, found: Verification) -> str:
    if found.differences:
        return "nothing: there are differences"
    proof, asked = PROOFS[app.recovery], found.replayed.get("questions", 0)
    if asked and app.recovery != "effects":
        proof += f". What was done in front of {asked} question{'s' * (asked > 1)} is taken from the log: it was shown to someone"
    return proof


@contextmanager
def _copies(app: App, directory: Directory) -> Iterator[tuple[Path, Path, str]]:
    """The directory as it is, and as it would be if its base were lost; neither is the original."""
    survey = Survey(directory.files)
    _check_version(app, survey)
    since, start = _start(directory, survey, survey.replayable_since(app))
    with tempfile.TemporaryDirectory(prefix="tidegate-verify-", dir=directory.path.parent) as place:
        stored, again = Path(place) / "stored", Path(place) / "again"
        shutil.copytree(directory.path, stored, ignore=shutil.ignore_patterns("lock", "*.damaged-*", "*.partial"))
        again.mkdir(mode=0o700)
        shutil.copytree(directory.path / "log", again / "log")
        for path in (
            directory.path.glob("base.duckdb*") if start is None and since == BASE else [start] if start else []
        ):
            shutil.copyfile(path, again / (path.name if start is None else "base.duckdb"))
            if (directory.path / "topics").is_dir():
                shutil.copytree(directory.path / "topics", again / "topics", dirs_exist_ok=True)
        yield stored, again, since


def _check_version(app: App, survey: Survey) -> None:
    if survey.last is not None and is_foreign(app, survey.last):
        changed = difference(survey.last.fingerprint, fingerprint(app))
        raise RecoveryRefused(
            f"the directory was last opened by {'another version of the app' if changed else f'app {survey.last.app!r}'}, and "
            f"verifying runs its log again: {told_difference(changed)}. Verify it with the app that wrote it",
            changed=changed,
        )


def _start(directory: Directory, survey: Survey, first: int) -> tuple[str, Path | None]:
    """From where this app can execute the log again: in words, and the generation it is."""
    if first == 0 and survey.oldest == 0:
        return "the beginning", None
    generation = min((g for g in directory.generations() if g.lsn >= max(first, survey.oldest)), default=None)
    if generation is None:
        return BASE, None
    upgrade = next((u for u in survey.upgrades if u.number == generation.number), None)
    if upgrade is None:
        return f"generation {generation.number}", generation.path
    at = from_us(upgrade.time_us).isoformat(sep=" ", timespec="seconds")
    return f"the upgrade at {at} (generation {generation.number}); {BEFORE}", generation.path


def _compared(left: Engine, right: Engine) -> Verification:
    found = Verification(
        replayed=dict(right.recovery.replayed),
        notes=[note for note in left.recovery.notes if note not in left.recovery.skipped],
        skipped=list(right.recovery.skipped),
    )
    one, two = (outcome_of(engine.runtime, engine.journal, History()) for engine in (left, right))
    for table, rows in one.tables.items():
        found.tables[table] = len(rows)
        _compare(f"table {table}", rows, two.tables[table], found.differences)
    found.windows = len(one.windows)
    _compare("window", one.windows, two.windows, found.differences)
    found.timers = len(one.timers)
    _compare("timer", one.timers, two.timers, found.differences)
    _compare_emitted(left.runtime.emitted, right.runtime.emitted, found)
    _compare_changelogs(left.outbox, right.outbox, found)
    _read_topics(left.outbox, found)
    outputs = [_waiting(engine) for engine in (left, right)]
    found.waiting = len(outputs[0])
    _compare("batch waiting for", outputs[0], outputs[1], found.differences)
    return found


def _compare_emitted(stored: Emitted, again: Emitted, found: Verification) -> None:
    """A directory that an older release wrote has no fingerprints for the time before."""
    if stored.since == again.since:
        found.differences.extend(stored.differences(again))
        found.emitted = {name: marks.count - marks.restored for name, marks in again.streams.items()}


def _compare_changelogs(stored: Outbox, again: Outbox, found: Verification) -> None:
    """What followers of a changelog were sent, acknowledged or not; an older release kept no fingerprint of it."""
    for name, subscription in stored.subscriptions.items():
        other = again.subscriptions.get(name)
        if subscription.told is None or other is None or other.told is None:
            continue
        told = subscription.told.difference(other.told)  # type: ignore[arg-type]  # the same table: the same kind
        if told is not None:
            found.differences.append(f"changelog {subscription.stream} for {name!r}: {told}")
        found.changelogs[name] = other.told.count - other.told.restored


def _read_topics(stored: Outbox, found: Verification) -> None:
    """Everything that topics keep can be read."""
    for topic in stored.topics:
        try:
            found.topics[topic.stream] = sum(1 for _ in topic.scan(topic.begin))
        except (LogDamaged, CursorGone) as error:
            found.differences.append(f"topic {topic.stream}: {error}")


def _waiting(engine: Engine) -> dict[Any, Any]:
    return {
        (subscription.name, *address): [tuple(row) for row in batch]
        for subscription in engine.outbox.subscriptions.values()
        for address, batch in subscription.waiting.items()
    }


def _compare(what: str, stored: dict[Any, Any], again: dict[Any, Any], differences: list[str]) -> None:
    different = [key for key in {**stored, **again} if _differ(stored.get(key), again.get(key))]
    differences.extend(
        f"{what} {key!r}: stored {stored.get(key, 'nothing')!r}, re-executed {again.get(key, 'nothing')!r}"
        for key in sorted(different, key=repr)[:SHOWN]
    )
    if len(different) > SHOWN:
        differences.append(f"{what}: {len(different) - SHOWN} more differences")


def _differ(one: Any, other: Any) -> bool:
    """NaN counts as equal to NaN."""
    return bool(one != other) and repr(one) != repr(other)
