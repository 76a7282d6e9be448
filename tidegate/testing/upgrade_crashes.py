"""``tidegate crash-test --upgrades``: processes of changing versions of an app work on one directory, and are killed.

After a kill the next version may be refused, because there is work to replay; then the one that was there opens the
directory and closes it. In the end every row is what the version made of it that logged it, and the directory verifies.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from tidegate import crashpoints
from tidegate.dataflows.fingerprint import fingerprint
from tidegate.engine.engine import open
from tidegate.errors import RecoveryRefused, TidegateError
from tidegate.offline.verify import verify
from tidegate.testing.editions import Edition, Model
from tidegate.txn.log.files import OsFiles
from tidegate.txn.log.reader import LogReader
from tidegate.txn.log.record import Pushed

LIVES = 6
STUCK_AFTER_S = 120.0
POINTS = tuple(p for p in crashpoints.CRASH_POINTS if p.startswith(("log-", "merge-", "generation-", "execution-")))


def live(edition: Edition, path: str, entries: int, point: str, reach: int, acks: str) -> None:
    """A process: opens the directory, pushes the next numbers, closes; or dies at ``point``, or is killed."""
    logging.getLogger("tidegate").setLevel(logging.CRITICAL)
    told = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    reached: Counter[str] = Counter()

    def tell(**facts: object) -> None:
        os.write(told, json.dumps(facts).encode() + b"\n")

    def die(name: str) -> None:
        reached[name] += 1
        if name == point and reached[name] == reach:
            tell(died=name)
            os.kill(os.getpid(), signal.SIGKILL)

    crashpoints.listen(die)
    try:
        with open(edition.app(), path, merge_every_s=0.05, generation_bytes=2_000) as engine:
            sequence = engine.borders["numbers"].sequences.get(None)
            last = 0 if sequence is None or sequence.last is None else sequence.last
            for n in range(last + 1, last + entries + 1):
                engine.push("numbers", [(n,)], n).result()
                tell(pushed=n)
        tell(closed=True)
    except RecoveryRefused as error:
        tell(refused=str(error))


class UpgradeRound:
    """One directory, and the versions of the app that work on it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.path = folder / "db"
        self.acks = folder / "acks"
        self.edition = Edition(self.chance.choice(("weak", "strong", "effects")))
        self.editions = {fingerprint(self.edition.app())["digest"]: self.edition}
        self.accepted: dict[int, Edition] = {}  # by what the log says
        self.acknowledged: set[int] = set()
        self.points: Counter[str] = Counter()
        self.kills = self.refusals = 0
        self._read = 0

    def run(self) -> None:
        for _ in range(LIVES):
            if self.chance.random() < 0.6:
                self._upgrade()
            self._work(kill=self.chance.random() < 0.8)
        self._work(kill=False, entries=1)
        self._judge()

    def _upgrade(self) -> None:
        """The next version; if it is refused, the one that was there finishes first."""
        new = self.edition.changed(self.chance)
        self.editions[fingerprint(new.app())["digest"]] = new
        told = self._start(new, 0, "", 1, None)
        if "refused" in told:
            self.refusals += 1
            for edition in (self.edition, new):
                if "closed" not in self._start(edition, 0, "", 1, None):
                    raise TidegateError(f"{edition} does not open what {self.edition} left behind")
        self.edition = new

    def _work(self, kill: bool, entries: int | None = None) -> None:
        entries = self.chance.randrange(1, 30) if entries is None else entries
        point = self.chance.choice(("", *POINTS)) if kill else ""
        after = self.chance.uniform(0.2, 2.0) if kill and not point else None
        told = self._start(self.edition, entries, point, self.chance.randrange(1, 8), after)
        if "refused" in told:
            raise TidegateError(f"{self.edition} was refused, but it was there before: {told['refused']}")

    def _start(self, edition: Edition, entries: int, point: str, reach: int, after: float | None) -> dict[str, object]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tidegate.testing.upgrade_crashes"])
        child = context.Process(target=live, args=(edition, str(self.path), entries, point, reach, str(self.acks)))
        child.start()
        child.join(STUCK_AFTER_S if after is None else after)
        if child.is_alive():
            child.kill()
            child.join()
            if after is None:
                raise TidegateError(f"{edition} did not finish within {STUCK_AFTER_S:.0f} s")
        self.kills += child.exitcode == -signal.SIGKILL
        if child.exitcode not in (0, -signal.SIGKILL):
            raise TidegateError(f"the process of {edition} failed with exit code {child.exitcode}")
        self._read_log()
        return self._read_acks()

    def _read_acks(self) -> dict[str, object]:
        lines = self.acks.read_bytes().splitlines() if self.acks.exists() else []
        told: dict[str, object] = {}
        for line in lines[self._read :]:
            told |= json.loads(line)
            if "pushed" in (fact := json.loads(line)):
                self.acknowledged.add(fact["pushed"])
            if "died" in fact:
                self.points[fact["died"]] += 1
        self._read = len(lines)
        return told

    def _read_log(self) -> None:
        if not (self.path / "log").is_dir():
            return
        reader = LogReader(OsFiles(self.path / "log"))
        for entry in reader:
            record = entry.record
            if isinstance(record, Pushed) and reader.segment is not None:
                self.accepted.setdefault(record.batch_id, self.editions[reader.segment.fingerprint["digest"]])

    def _judge(self) -> None:
        if lost := self.acknowledged - self.accepted.keys():
            raise TidegateError(f"acknowledged, but not in the log: {sorted(lost)}")
        wanted = Model()
        for n, edition in sorted(self.accepted.items()):
            wanted.push(edition, n)
        with open(self.edition.app(), self.path) as engine:
            for table, rows in (("seen", wanted.seen), ("noted", wanted.noted)):
                found = dict(tuple(row) for row in engine.query(f"SELECT n, v FROM {table}"))
                if found != rows:
                    raise TidegateError(f"{table} holds {found}, but the versions that logged it make {rows}")
        verified = verify(self.edition.app(), self.path)
        if not verified.same:
            raise TidegateError(f"verify: {verified.differences}")


def crash_upgrades(rounds: int, seed: int, path: Path) -> tuple[dict[str, int], list[str]]:
    """Run rounds one after another; returns counts, and what went wrong."""
    logging.getLogger("tidegate").setLevel(logging.CRITICAL)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    began = time.monotonic()
    for number in range(seed, seed + rounds):
        folder = path / str(number)
        folder.mkdir(parents=True)
        one = UpgradeRound(number, folder)
        try:
            one.run()
        except Exception as error:
            failures.append(f"seed {number}: {type(error).__name__}: {error} (kept in {folder})")
        counts.update(rounds=1, kills=one.kills, refusals=one.refusals, acknowledged=len(one.acknowledged))
        counts.update(versions=len(one.editions), crash_points=one.points.total())
    counts["seconds"] = int(time.monotonic() - began)
    return dict(counts), failures
