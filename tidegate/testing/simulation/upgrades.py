"""``tidegate sim --upgrades``: an app is changed at clean closes, merges and kills, and its base damaged now and then.

What was accepted stays as the version did it that accepted it. After a kill with work to replay another version is
refused, and the one that was there opens; after a clean close, or a kill right after a merge, another one continues.
"""

from __future__ import annotations

import concurrent.futures
import logging
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tidegate.engine.engine import Engine, open
from tidegate.errors import RecoveryRefused
from tidegate.offline.verify import verify
from tidegate.testing.editions import Edition, Model
from tidegate.testing.simulation.run import Failure, Summary

LIVES = 5
MEMORY = "/dev/shm"  # a file system without a disk, where there is one
WAYS = ("close", "merge", "kill")


class Violation(Exception):
    """The contract was broken."""


class Upgrades:
    """One seed: a directory, the versions of the app that open it, and what its tables must hold.

    Opening takes most of the time of a seed, so an engine that was opened to look at the tables goes on with the next
    work: some versions are killed in the process that upgraded the directory.
    """

    def __init__(self, seed: int, path: Path) -> None:
        self.chance = random.Random(seed)
        self.path = path
        self.edition = Edition(self.chance.choice(("weak", "strong", "effects")))
        self.model = Model()
        self.number = 0
        self.entries = 0
        self.upgrades = 0
        self.engine: Engine | None = None  # the one that is open
        self.unmerged = False  # has the log work that the base lacks?
        self.told: list[str] = []  # what was done, for people

    def run(self) -> None:
        try:
            for _ in range(LIVES):
                way = self._live()
                if way != "close" and self.chance.random() < 0.3:
                    self._damage()
                if self.chance.random() < 0.7:
                    self._change(way)
                if self.chance.random() < 0.2:
                    self._close()
                    self._verify()
            self._check(self._opened())
            self._close()
            self._verify()
        finally:
            if self.engine is not None:
                self.engine.abandon()

    def _opened(self) -> Engine:
        if self.engine is None:
            self.engine = self._open(self.edition)
        return self.engine

    def _open(self, edition: Edition) -> Engine:
        executor: Any = self.chance.choice(("serial", "serial", "threads"))
        return open(edition.app(), self.path, executor=executor, merge_every_s=3600.0, sync="off")

    def _close(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine, self.unmerged = None, False

    def _live(self) -> str:
        """Work, and end in some way; returns how."""
        chance, engine = self.chance, self._opened()
        entries = chance.randrange(4)
        for _ in range(entries):
            if self.number and chance.random() < 0.3:
                n = chance.randrange(1, self.number + 1)
                engine.call("correct", n)
                self.model.correct(self.edition, n)
            else:
                self.number += 1
                engine.push("numbers", [(self.number,)]).result()
                self.model.push(self.edition, self.number)
        self.entries += entries
        self.unmerged = self.unmerged or entries > 0
        way = chance.choice(WAYS)
        self.told.append(f"{self.edition}: {entries} entries, then {way}")
        if way == "close":
            self._check(engine)
            self._close()
            return way
        engine.run_until_idle()
        if way == "merge":
            engine.checkpoint(generation=chance.random() < 0.3)
            self.unmerged = False
        assert engine.durable is not None
        engine.durable.sync()
        self.engine = None
        engine.abandon()
        return way

    def _damage(self) -> None:
        """The base is lost: the version that was there rebuilds it."""
        self.told.append("the base is damaged")
        (self.path / "base.duckdb").write_bytes(b"no database")
        engine = self._opened()
        self.unmerged = engine.recovery.records > 0
        self._check(engine)

    def _change(self, way: str) -> None:
        self._close()
        new = self.edition.changed(self.chance)
        self.told.append(f"upgraded to {new}")
        self.upgrades += 1
        applied = new.recovery == "effects" and new.connected == self.edition.connected
        try:
            engine = self._open(new)
        except RecoveryRefused as error:
            if not self.unmerged or applied:
                raise Violation(f"after {way} the new version was refused: {error}") from error
            self._check(self._opened())
            self._close()
            engine = self._open(new)
        else:
            if self.unmerged and not applied:
                raise Violation(f"after {way} the new version opened, although there was work to replay")
        self.engine, self.edition = engine, new
        self.unmerged = False  # an upgrade begins with a merge
        self._check(engine)

    def _check(self, engine: Engine) -> None:
        """The tables are what each version made of what it accepted."""
        for table, wanted in (("seen", self.model.seen), ("noted", self.model.noted)):
            found = dict(tuple(row) for row in engine.query(f"SELECT n, v FROM {table}"))
            if found != wanted:
                raise Violation(f"{table} holds {found}, but the versions that accepted it make {wanted}")

    def _verify(self) -> None:
        found = verify(self.edition.app(), self.path)
        if not found.same:
            raise Violation(f"verify: {found.differences}")


def simulate_upgrades(seed: int) -> tuple[int, int, str | None]:
    """Entries and upgrades of one seed, and what went wrong."""
    logging.getLogger("tidegate").setLevel(logging.CRITICAL)  # refusals are part of it
    place = MEMORY if os.access(MEMORY, os.W_OK) else None  # nothing here survives a loss of power: kills are simulated
    with tempfile.TemporaryDirectory(prefix="tidegate-upgrades-", dir=place) as folder:
        one = Upgrades(seed, Path(folder) / "d")
        try:
            one.run()
        except Exception as error:
            told = "\n  ".join(one.told)
            return one.entries, one.upgrades, f"seed {seed}: {type(error).__name__}: {error}\n  {told}"
        return one.entries, one.upgrades, None


def upgrade_parallel(seeds: Iterable[int], progress: Callable[[Summary], None]) -> Summary:
    """Every seed, on several processes. ``runs``: upgrades; ``executions``: entries."""
    total, started = Summary(), time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(max(os.cpu_count() or 1, 1), mp_context=context) as pool:
        running = {pool.submit(simulate_upgrades, seed): seed for seed in seeds}
        for done in concurrent.futures.as_completed(running):
            entries, upgrades, wrong = done.result()
            total.add(Summary(seeds=1, runs=upgrades, executions=entries))
            if wrong is not None:
                total.failures.append(Failure(running[done], "upgrades", wrong))
            total.seconds = time.perf_counter() - started
            progress(total)
    return total
