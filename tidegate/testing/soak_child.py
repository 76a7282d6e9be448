"""One life of a soak: an engine, served over HTTP, and threads that use it in every possible way. It ends by a signal.

    python -m tidegate.testing.soak_child '{"directory": …, "facts": …, "stacks": …, "executor": …, "port": 0, "seed": 7}'

Prints its URL when it accepts requests. It appends what was acknowledged, and what subscribers got, to the file
``facts``, one JSON object per line: what is written survives a SIGKILL right after.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tidegate
from tidegate import mutex
from tidegate.engine.engine import Engine
from tidegate.errors import Aborted, BatchError, EngineClosed, Overloaded, StillWaiting
from tidegate.testing.bystanders import LOOKED_AT
from tidegate.testing.soak_app import (
    NEVER,
    REFUSED,
    SUBSCRIBERS,
    Ascending,
    account_of,
    amount_of,
    answer_to,
    rows_of,
    soak_app,
)
from tidegate.txn.ticket import Ticket

AT_ONCE = 8  # pushes in flight before the first is waited for
REPORT_S = 0.25
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
END_S = 30.0  # for threads, once the engine is closed
BACKLOG = 400  # batches that may wait for a subscriber: the slow one makes others wait at times
SMALL = 60_000  # bytes of log per generation: small, so that there are many


class Workers:
    """The threads of one life. Each works until the engine is closed; any other error is a failure."""

    def __init__(self, engine: Engine, facts: int, seed: int) -> None:
        self._engine = engine
        self._facts = facts
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self.beats: Counter[str] = Counter()  # steps done, by worker
        self.counts: Counter[str] = Counter()
        works = (self.feed, self.push, self.call, self.ask, self.look, self.follow, self.dawdle, self.answer)
        self._threads = [self._thread(work) for work in (*works, self.take_slowly, self.take_changes)]
        self._reporter = threading.Thread(target=self._report_on, name="soak-report", daemon=True)

    def tell(self, **told: Any) -> None:
        os.write(self._facts, json.dumps(told).encode() + b"\n")

    def start(self) -> None:
        for thread in (*self._threads, self._reporter):
            thread.start()

    def join(self) -> None:
        """After the engine was closed."""
        self._stopping.set()
        for thread in (*self._threads, self._reporter):
            thread.join(END_S)
            if thread.is_alive():
                faulthandler.dump_traceback(all_threads=True)
                self.tell(failed=f"{thread.name} does not end, though the engine is closed")

    def _thread(self, work: Callable[[random.Random], None]) -> threading.Thread:
        name, chance = work.__name__, random.Random(self._chance.random())
        return threading.Thread(target=self._guarded, args=(work, name, chance), name=f"soak-{name}", daemon=True)

    def _guarded(self, work: Callable[[random.Random], None], name: str, chance: random.Random) -> None:
        try:
            work(chance)
        except EngineClosed:
            pass
        except BaseException as error:
            if not self._engine.closed:
                self.tell(failed=f"{name}: {type(error).__name__}: {error}")
                raise
            self.tell(closing=f"{name}: {type(error).__name__}: {error}")

    def _goes_on(self, name: str, pause_s: float) -> bool:
        """A step of ``name`` is done; False when it was the last."""
        self.beats[name] += 1
        return not self._stopping.wait(pause_s)

    # ---- work in

    def feed(self, chance: random.Random) -> None:
        """Rows of a source, with its position."""
        last = self._engine.position("feed") or 0
        while self._goes_on("feed", chance.uniform(0, 0.05)):
            rows = rows_of("feed", last + 1, chance.choice((1, 4, 12, 40)))
            try:
                self._engine.feed("transfers", rows, size=4, source="feed", offset=last + len(rows), after=last or None)
            except Overloaded:
                self.counts["refused for want of room"] += 1
                continue
            last += len(rows)
            self.counts["rows fed"] += len(rows)
            self.tell(ack="feed", number=last)

    def push(self, chance: random.Random) -> None:
        """Batches of a source, several in flight, each acknowledged when everything it caused is done."""
        last, going = self._engine.position("push") or 0, list[tuple[int, Ticket]]()
        while self._goes_on("push", chance.uniform(0, 0.02)):
            rows = rows_of("push", last + 1, chance.randrange(1, 6))
            try:
                ticket = self._engine.push(
                    "transfers", rows, source="push", offset=last + len(rows), after=last or None, timeout_s=1.0
                )
            except Overloaded:
                self.counts["refused for want of room"] += 1
                continue
            last += len(rows)
            going.append((last, ticket))
            self.counts["pushes"] += 1
            if len(going) >= AT_ONCE:
                number, ticket = going.pop(0)
                self._result(ticket)
                self.tell(ack="push", number=number)

    def call(self, chance: random.Random) -> None:
        """Deposits, one after another, some of them refused; and audits."""
        number = self._call("last_number", "call") + 1
        while self._goes_on("call", chance.uniform(0, 0.05)):
            self._call("deposit", account_of("call", number), "call", number, amount_of(number))
            self.tell(ack="call", number=number)
            number += 1
            self.counts["calls"] += 1
            if chance.random() < 0.1:
                self._refused(number)
            if chance.random() < 0.05:
                found = self._call("audit")
                assert not found, f"an audit found {found[:3]}"

    def _call(self, procedure: str, *arguments: Any) -> Any:
        while True:
            try:
                return self._result(self._engine.submit(procedure, *arguments))
            except Overloaded:
                self.counts["refused for want of room"] += 1
                self._stopping.wait(0.1)

    def _result(self, ticket: Ticket) -> Any:
        """What waits for a person's decision is done later; with the serial executor, by the next thread that works."""
        while True:
            try:
                return ticket.result(1.0)
            except StillWaiting:
                self._engine.check_open()
                self._stopping.wait(0.02)

    def _refused(self, number: int) -> None:
        try:
            self._call("deposit", account_of("call", number), "call", number, 0)
        except Aborted as error:
            if REFUSED not in str(error):
                raise
            self.counts["aborts"] += 1
        else:
            raise AssertionError("a deposit of nothing was accepted")

    def answer(self, chance: random.Random) -> None:
        """A person who decides; some questions are left to others, or to the deadline."""
        while self._goes_on("answer", chance.uniform(0.02, 0.2)):
            for question in self._engine.questions():
                if answer_to(question, "embedded"):
                    row = (question.key, question.batch_id % 3 > 0, "embedded")
                    try:
                        self._engine.push("decisions", [row], question.batch_id)
                    except BatchError:  # another answer, or the deadline, came first
                        self.counts["answers that came late"] += 1

    # ---- looking

    def ask(self, chance: random.Random) -> None:
        """Queries for what must never be seen, asked again and again."""
        while self._goes_on("ask", chance.uniform(0, 0.2)):
            sql = chance.choice(NEVER)
            found = self._engine.query(sql).rows
            assert not found, f"a reader saw a state that never was: {sql} gave {found[:3]}"
            self.counts["queries"] += 1

    def look(self, chance: random.Random) -> None:
        """What operators look at while the engine works."""
        while self._goes_on("look", chance.uniform(0, 0.3)):
            self._engine.query(f"SELECT count(*) FROM tidegate.{chance.choice(LOOKED_AT)}")
            self.counts["queries"] += 1

    def follow(self, chance: random.Random) -> None:
        seen = Ascending("a subscriber")
        with self._engine.subscribe("handled") as following:
            while self._goes_on("follow", 0) and not self._engine.closed:
                batch = following.get(0.2)
                if batch is not None:
                    seen.see(batch)
                    self.counts["batches followed"] += 1

    def dawdle(self, chance: random.Random) -> None:
        """A subscriber that reads too slowly is told so, and starts again."""
        while self._goes_on("dawdle", 0) and not self._engine.closed:
            with self._engine.subscribe("bursts", capacity=4) as following:
                self._stopping.wait(chance.uniform(0, 1.0))
                try:
                    while following.get() is not None:
                        pass
                except Overloaded:
                    self.counts["subscribers left behind"] += 1

    def take_slowly(self, chance: random.Random) -> None:
        self._take("slow", lambda: chance.uniform(0, 1.5))

    def take_changes(self, chance: random.Random) -> None:
        self._take("changes", lambda: 0.0)

    def _take(self, name: str, pause_s: Callable[[], float]) -> None:
        """A durable subscriber: records what it got, then acknowledges it."""
        seen = Ascending(f"the subscriber {name}")
        subscription = self._engine.subscribe_durably(SUBSCRIBERS[name], name)
        while self._goes_on(name, pause_s()):
            batches = subscription.take(100, 0.2)
            self._engine.check_open()
            for batch in batches:
                seen.see(batch)
                self.tell(got=name, key=batch.key, id=batch.id, rows=[list(row) for row in batch])
            if batches:
                subscription.ack(batches)

    # ---- reports

    def _report_on(self) -> None:
        parent = os.getppid()
        while not self._stopping.wait(REPORT_S):
            self.report()
            if os.getppid() != parent:  # the parent that would have killed us is gone
                os._exit(3)

    def report(self) -> None:
        merger = self._engine.merger
        self.tell(
            beats=dict(self.beats),
            counts={**self.counts, "merges": merger.count},
            resident=_resident(),
            violations=list(mutex.violations),
            merge_failed=None if merger.failed is None else str(merger.failed),
        )


def _resident() -> int:
    """Bytes of memory that this process takes; 0 where the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def main(asked: dict[str, Any]) -> None:
    from tidegate.server.logs import set_up_logs
    from tidegate.server.serve import serve, start_replica
    from tidegate.server.settings import Settings
    from tidegate.server.tokens import load_tokens

    stacks = os.open(asked["stacks"], APPEND, 0o600)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    set_up_logs(as_json=True)
    mutex.watch()
    facts = os.open(asked["facts"], APPEND, 0o600)
    settings = Settings(port=asked["port"])
    engine = tidegate.open(
        soak_app(), asked["directory"], executor=asked["executor"], merge_every_s=1.0, generation_bytes=SMALL,
        backlog=BACKLOG,
    )  # fmt: skip
    for name, stream in SUBSCRIBERS.items():  # before any work: they must get all of it
        engine.subscribe_durably(stream, name, on_lag="block")
    workers = Workers(engine, facts, asked["seed"])
    with ExitStack() as stack:
        stack.callback(workers.join)
        stack.callback(engine.close)
        replica = start_replica(engine, settings, None, None)
        stack.callback(replica.stop)
        workers.start()
        serve(engine, settings, load_tokens(None, None), replica, on_ready=lambda url: print(url, flush=True))
    workers.report()
    workers.tell(closed=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
