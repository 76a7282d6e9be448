"""``tidegate soak``: everything at once for minutes or hours, with kills in between, and then every number is checked.

parent                                             child, one life after another on the same directory
  │  start ──────────────────────────────────────▶  open, serve, merge every second, keep generations
  │  ◀── acknowledgements, heartbeats (file) ──────  threads that feed, push, call, query, follow, answer, take slowly
  │  HTTP clients ───────────────────────────────▶  push, feed, call, query, follow, answer; they outlive each life
  │  SIGKILL, or SIGTERM; start again …
  ▼
verify; each number once, nothing acknowledged is missing, sums agree, subscribers got everything (soak_judge.py)

A worker that makes no step for a minute fails the run, with the stacks of all threads in a file. Time in which a process
waits for a processor does not count (patience.py).
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tidegate.errors import TidegateError
from tidegate.testing.patience import Patience
from tidegate.testing.soak_clients import Clients
from tidegate.testing.soak_judge import Evidence, Found, judge

STUCK_S = 60.0
START_S = 180.0  # on a busy machine: a process, its recovery, and another process for queries
LOOK_S = 0.25
Executor = Literal["serial", "threads", "both"]
Progress = Callable[[str, float], None]


@dataclass
class Summary:
    """The result of a soak."""

    minutes: float = 0.0
    seed: int = 0
    executor: str = "both"
    lives: int = 0
    kills: int = 0
    stops: int = 0  # by SIGTERM
    counts: Counter[str] = field(default_factory=Counter)
    memory_mb: dict[str, float] = field(default_factory=dict)
    found: Found = field(default_factory=Found)
    violations: list[str] = field(default_factory=list)
    kept: str | None = None

    @property
    def sound(self) -> bool:
        return not self.violations


class Watch:
    """Finds workers that have not made a step for too long."""

    def __init__(self, patience_s: float = STUCK_S) -> None:
        self._patience_s = patience_s
        self._seen: dict[str, tuple[int, float]] = {}  # who -> steps, and when that was new

    def begin(self, now: float) -> None:
        """The time so far does not count: no worker could make a step."""
        self._seen = {who: (steps, now) for who, (steps, _) in self._seen.items()}

    def look(self, now: float, beats: Mapping[str, int]) -> list[str]:
        for who, steps in beats.items():
            if self._seen.get(who, (None, 0.0))[0] != steps:
                self._seen[who] = steps, now
        return [who for who, (_, since) in self._seen.items() if now - since > self._patience_s]


class Facts:
    """What the lives have recorded, read as it grows."""

    def __init__(self, path: Path, evidence: Evidence) -> None:
        self._path = path
        self._evidence = evidence
        self._read = 0
        self.failures: list[str] = []
        self.beats: dict[str, int] = {}
        self.counts: Counter[str] = Counter()  # of lives that are over
        self.resident: list[int] = []
        self.closed = False  # did the last life end cleanly?
        self._now: dict[str, int] = {}  # counts of this life

    def next_life(self) -> None:
        self.counts.update(self._now)
        self._now, self.closed = {}, False

    def read(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, told: dict[str, Any]) -> None:
        match told:
            case {"ack": source, "number": number}:
                known = self._evidence.acknowledged
                known[source] = max(known.get(source, 0), number)
            case {"got": name, "key": key, "id": number, "rows": rows}:
                self._evidence.got[name].append((key, number, rows))
            case {"beats": beats, "counts": counts, "resident": resident, "violations": violations}:
                self.beats, self._now = beats, counts
                self.resident.append(resident)
                self.failures += [told for told in violations if told not in self.failures]
                if (merge := told["merge_failed"]) is not None:
                    self.failures.append(f"a merge in the background failed: {merge}")
            case {"failed": failed}:
                self.failures.append(failed)
            case {"closed": True}:
                self.closed = True


class Soak:
    """One run. ``place``: where its files go: ``data``, ``facts``, ``server.log`` and ``stacks``."""

    def __init__(self, place: Path, minutes: float, seed: int, kills_every_s: float, executor: Executor) -> None:
        self._place = place
        self._ends = time.monotonic() + minutes * 60
        self._chance = random.Random(seed)
        self._kills_every_s = kills_every_s
        self._executors = ("serial", "threads") if executor == "both" else (executor,)
        self._evidence = Evidence()
        self._facts = Facts(place / "facts", self._evidence)
        self._watch = Watch()
        self._port = 0
        self._clients: Clients | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._patience = Patience()
        self.summary = Summary(minutes, seed, executor)

    def run(self, progress: Progress) -> Summary:
        """Live and die until the time is over, then judge."""
        began = time.monotonic()
        try:
            while self._live(lambda what: progress(what, time.monotonic() - began)):
                pass
        except TidegateError as error:
            self.summary.violations.append(str(error))
        finally:
            if self._child is not None:
                _kill(self._child)
        self._count()
        if self.summary.sound:
            progress("verifying", time.monotonic() - began)
            self.summary.found = judge(self._place / "data", self._evidence)
            self.summary.violations += self.summary.found.wrong
        self.summary.minutes = round((time.monotonic() - began) / 60, 2)
        return self.summary

    # ---- one life

    def _live(self, progress: Callable[[str], None]) -> bool:
        """One life; False when it was the last."""
        chance, summary = self._chance, self.summary
        child = self._child = self._start()
        self._patience = Patience(child.pid, os.getpid())
        self._watch.begin(0.0)
        early = summary.lives > 1 and chance.random() < 0.15  # while it recovers
        wanted_s = chance.uniform(0, 3) if early else chance.uniform(0.1, 1.9) * self._kills_every_s
        gently = not early and chance.random() < 0.25
        if not early:
            self._wait_for_url(child)
        dies = time.monotonic() + wanted_s
        while time.monotonic() < dies and not self._over:
            self._look(child)
            progress(f"life {summary.lives}, {summary.kills} kills")
            time.sleep(min(LOOK_S, max(dies - time.monotonic(), 0)))
        last = self._over and not early
        if last and self._clients is not None:
            self._clients.stop()
        if last or gently:
            self._stop(child)
        else:
            _kill(child)
            summary.kills += 1
        self._facts.read()
        self._facts.next_life()
        return not last

    @property
    def _over(self) -> bool:
        """However short the run, at least one life is killed."""
        return self.summary.kills > 0 and time.monotonic() >= self._ends

    def _start(self) -> subprocess.Popen[bytes]:
        life = self.summary.lives
        self.summary.lives += 1
        asked = {
            "directory": str(self._place / "data"),
            "facts": str(self._place / "facts"),
            "stacks": str(self._place / "stacks"),
            "executor": self._executors[life % len(self._executors)],
            "port": self._port,
            "seed": self._chance.randrange(1 << 32),
        }
        with (self._place / "server.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tidegate.testing.soak_child", json.dumps(asked)],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def _wait_for_url(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        while not select.select([child.stdout], [], [], LOOK_S)[0]:
            if self._patience.seconds() > START_S:
                raise self._stuck(child, f"a life did not start serving within {START_S:g} s")
        url = child.stdout.readline().decode().strip()
        if not url:
            raise TidegateError(f"a life could not start (exit code {child.wait()}); see {self._place / 'server.log'}")
        self._watch.begin(self._patience.seconds())
        if self._clients is None:
            self._port = int(url.rpartition(":")[2])
            self._clients = Clients(url, self._chance.randrange(1 << 32))
            self._clients.start()

    def _look(self, child: subprocess.Popen[bytes]) -> None:
        """Is every worker making progress? Raises when not."""
        self._facts.read()
        clients = self._clients
        failures = [*self._facts.failures, *(() if clients is None else clients.failures)]
        if failures:
            raise TidegateError("; ".join(failures[:5]))
        if child.poll() is not None:
            raise TidegateError(
                f"a life ended on its own with exit code {child.returncode}; see {self._place / 'server.log'}"
            )
        stuck = self._watch.look(
            self._patience.seconds(), {**self._facts.beats, **({} if clients is None else clients.beats)}
        )
        if stuck:
            raise self._stuck(child, f"no step for {STUCK_S:g} s: {', '.join(stuck)}")

    def _stop(self, child: subprocess.Popen[bytes]) -> None:
        """SIGTERM: it finishes what is running and closes, in bounded time."""
        self.summary.stops += 1
        child.send_signal(signal.SIGTERM)
        began = self._patience.seconds()
        while (code := child.poll()) is None:
            if self._patience.seconds() - began > STUCK_S:
                raise self._stuck(child, f"SIGTERM did not end a life within {STUCK_S:g} s")
            time.sleep(LOOK_S)
        self._facts.read()
        _kill(child)
        if code != 0 or not self._facts.closed:
            raise TidegateError(f"SIGTERM ended a life with exit code {code}; see {self._place / 'server.log'}")

    def _stuck(self, child: subprocess.Popen[bytes], told: str) -> TidegateError:
        """Write the stacks of all threads of both processes to a file."""
        stacks = self._place / "stacks"
        with suppress(ProcessLookupError):
            child.send_signal(signal.SIGUSR1)
        time.sleep(1.0)
        with stacks.open("a") as file:
            file.write("\n---- the clients ----\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        return TidegateError(f"{told}; the stacks of all threads are in {stacks}")

    # ---- the end

    def _count(self) -> None:
        summary, clients = self.summary, self._clients
        summary.counts = self._facts.counts
        if clients is not None:
            summary.counts.update(clients.counts)
            self._evidence.acknowledged.update(clients.acknowledged)
            self._evidence.got["remote"] = clients.got
            summary.violations += [told for told in clients.failures if told not in summary.violations]
        summary.violations += [told for told in self._facts.failures if told not in summary.violations]
        summary.violations += _logged_errors(self._place / "server.log")
        if resident := [each / 1e6 for each in self._facts.resident]:
            summary.memory_mb = {"first": resident[0], "most": max(resident), "last": resident[-1]}


def _kill(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def _logged_errors(log: Path) -> list[str]:
    """Nothing in these workloads may be logged as an error, except that a busy server does not stop in time."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    serious = [line for line in lines if '"level":"error"' in line or '"level":"critical"' in line]
    return [f"logged: {line[:500]}" for line in serious if "timeout graceful shutdown exceeded" not in line][:5]


def soak(
    minutes: float,
    seed: int = 0,
    kills_every_s: float = 20.0,
    executor: Executor = "both",
    keep: Path | None = None,
    progress: Progress = lambda what, seconds: None,
) -> Summary:
    """Soak for ``minutes``; ``executor`` both: one life serial, the next with threads. ``keep``: a directory for its
    files, which otherwise are kept only if something was wrong. ``progress`` is called with what is happening, and the
    seconds so far.
    """
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise TidegateError(f"{keep} is not empty; give --keep a new directory", path=keep)
    place = Path(tempfile.mkdtemp(prefix="tidegate-soak-")) if keep is None else keep
    summary = Soak(place, minutes, seed, kills_every_s, executor).run(progress)
    if keep is None and summary.sound:
        shutil.rmtree(place)
    else:
        summary.kept = str(place)
    return summary


def facts(summary: Summary) -> dict[str, Any]:
    """The summary as JSON, and as rows of a table."""
    found = summary.found
    return {
        "minutes": summary.minutes,
        "seed": summary.seed,
        "executor": summary.executor,
        "lives": summary.lives,
        "kills": summary.kills,
        "stops": summary.stops,
        **dict(sorted(summary.counts.items())),
        "questions": {"approved": found.approved, "refused": found.refused, "expired": found.expired},
        "rows accounted for": found.rows,
        "rows verified": found.compared,
        "memory in MB": {name: round(value, 1) for name, value in summary.memory_mb.items()},
        "kept": summary.kept,
        "violations": summary.violations,
    }
