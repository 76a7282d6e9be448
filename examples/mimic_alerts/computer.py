"""The ward's computer: a process of its own that runs the engine over a directory. It can be killed, and started again.

    this process: monitors, page                    the computer (dies by SIGKILL)
      step(second of every patient) ─────────────▶  engine.push, deadlines, the simulated doctor
      answer(decision) ──────────────────────────▶  engine.answer, on disk before it is acknowledged
      look() ◀───────────────────────────────────   what it knows: charts, questions, receipts, news

Monitors keep what the computer has not confirmed, and send it again after a restart; the engine recognises what it has.
What the page shows comes from the engine, through subscriptions that survive with it.
"""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.errors import BatchError, StillWaiting, TidegateError
from tidegate.examples.mimic_alerts.app import hospital, start
from tidegate.examples.mimic_alerts.backends import choose_backend
from tidegate.examples.mimic_alerts.shift import Doctor, Shift, WardClock
from tidegate.examples.mimic_alerts.source import Patient, Source, Step
from tidegate.examples.mimic_alerts.view import State

MONITORS = "monitors"
KEPT_STEPS = 3600  # what the monitors can keep while the computer is off
START_S = 120.0


class Off(TidegateError):
    """The computer does not answer: it was killed, or is starting."""


@dataclass
class Orders:
    """What the computer is started with."""

    directory: str
    deadline_s: float
    quiet_s: float
    backend: str
    doctor: Doctor | None
    source: Bedside


@dataclass
class Bedside:
    """The patients, without their monitors, which are in another process; remembers what patients respond to."""

    name: str
    start: dt.datetime
    length_s: int
    patients: list[Patient]
    history: dict[int, list[Any]]
    starts: dict[int, dt.datetime]
    given: list[tuple[int, str, dt.datetime]] = field(default_factory=list)

    @staticmethod
    def of(source: Source) -> Bedside:
        starts = getattr(source, "starts", {})
        return Bedside(source.name, source.start, source.length_s, source.patients, source.history, dict(starts))

    def steps(self) -> Iterator[Step]:
        raise TidegateError("the monitors are in another process")

    def administered(self, patient: int, drug: str, at: dt.datetime) -> None:
        self.given.append((patient, drug, at))


class Back(NamedTuple):
    """What the computer says when it is on: its process, what it found on disk, and the address of its console."""

    pid: int
    replayed: dict[str, int]
    took_s: float
    confirmed: int
    console: str | None


# ---- in the process that may die


class Running:
    """The engine, and what it is asked over a pipe."""

    def __init__(self, orders: Orders, at: dt.datetime, port: int) -> None:
        began = time.perf_counter()
        where = choose_backend(orders.backend)
        self.source = orders.source
        self.clock = WardClock(orders.source.start)
        self.clock.move_to(at)
        app = hospital(orders.deadline_s, orders.quiet_s, where.window)
        self.engine = start(app, orders.directory, clock=self.clock, merge_every_s=5, **where.settings)
        self.shift = Shift(self.engine, self.source, self.clock, orders.doctor, kept=True)
        if not self.engine.query("SELECT count(*) FROM patients").scalar():
            self.shift.admit()
        self.state = State(self.shift)
        self.shift.collect()
        replayed = dict(self.engine.recovery.replayed)
        confirmed = self.engine.position(MONITORS) or 0
        took_s = time.perf_counter() - began
        self.back = Back(os.getpid(), replayed, took_s, confirmed, _console(self.engine, port))

    def step(self, step: Step) -> bool:
        """True: all of it was known already."""
        return self.shift.step(step, MONITORS)

    def wait(self, at: dt.datetime) -> int:
        """Time passes without waves; returns how much is unfinished."""
        self.clock.move_to(at)
        self.shift.decide()
        self.engine.tick()
        self.shift.collect()
        return len(self.engine.scheduler.live)

    def answer(self, stream: str, batch_id: int, digest: str, give: bool, by: str) -> None:
        """Accept or decline; returns when the decision is on disk."""
        asked = (stream, batch_id, digest)
        question = next((q for q in self.engine.questions() if (q.stream, q.batch_id, q.digest) == asked), None)
        if question is None:
            raise BatchError("this question is no longer open", stream=stream, batch_id=batch_id)
        decided_at = self.shift.time_of(question.key)
        try:
            self.engine.answer(question, give=give, decided_by=by, decided_at=decided_at).result(10)
        except StillWaiting:  # it is accepted; its turn comes
            pass

    def look(self) -> dict[str, Any]:
        return self.state.look()

    def given(self) -> list[tuple[int, str, dt.datetime]]:
        return self.source.given

    def facts(self) -> tuple[list[Any], dict[str, Any]]:
        """For the report: the charts, and everything that was emitted."""
        self.shift.collect()
        charted = self.engine.query("SELECT * FROM med_events ORDER BY patient, number")
        rows = [row._asdict() for row in charted]
        emitted = {name: [(k, b, row._asdict()) for k, b, row in found] for name, found in self.shift.seen.rows.items()}
        return rows, emitted

    def close(self) -> None:
        self.engine.close()


def _console(engine: Any, port: int) -> str | None:
    """The ordinary server on this engine, in a thread: its console is for programmers."""
    try:
        import uvicorn

        from tidegate.server.app import make_app
        from tidegate.server.serve import listen
        from tidegate.server.settings import Settings
        from tidegate.server.tokens import Tokens

        settings = Settings(port=port)
        sock = listen(settings)
    except (ImportError, TidegateError):
        return None
    config = uvicorn.Config(make_app(engine, settings, Tokens()), lifespan="on", access_log=False, log_config=None)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    threading.Thread(target=lambda: server.run(sockets=[sock]), name="console", daemon=True).start()
    return f"http://127.0.0.1:{sock.getsockname()[1]}"


def run(pipe: Any, orders: Orders, at: dt.datetime, port: int) -> None:
    """The process: answers until it is told to close, the other end is gone, or it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other process, which closes this one
    try:
        running = Running(orders, at, port)
    except Exception as error:
        pipe.send((False, f"{type(error).__name__}: {error}"))
        return
    pipe.send((True, running.back))
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            answer = (True, getattr(running, what)(*arguments))
        except Exception as error:
            answer = (False, str(error) or type(error).__name__)
        pipe.send(answer)
        if what == "close":
            os._exit(0)


# ---- in the process with the monitors


class Computer:
    """Starts the process, asks it, kills it. What monitors send is kept until a restart shows that it has arrived."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.back: Back | None = None
        self.repeated = 0  # steps that were sent again although they had arrived
        self._process: Any = None
        self._pipe: Any = None
        self._asking = threading.Lock()
        self.kept: deque[Step] = deque(maxlen=KEPT_STEPS)
        self._port = 0

    @property
    def on(self) -> bool:
        return self._process is not None and self._process.is_alive()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def boot(self, at: dt.datetime) -> Back:
        """Start the process; returns when it has recovered."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tidegate.examples.mimic_alerts.computer", "tidegate.server.app", "uvicorn"])
        ours, theirs = context.Pipe()
        process = context.Process(target=run, args=(theirs, self.orders, at, self._port), daemon=True)
        process.start()
        theirs.close()
        with self._asking:
            self._process, self._pipe = process, ours
            self.back = self._reply(ours, START_S)
        if self.back.console is not None:
            self._port = int(self.back.console.rsplit(":", 1)[1])
        return self.back

    def catch_up(self) -> None:
        """Send what it does not have, and the last that it has: monitors can't know whether that arrived."""
        confirmed = 0 if self.back is None else self.back.confirmed
        for step in tuple(self.kept):
            if step.number >= confirmed:
                self.repeated += self.ask("step", step)

    def ask(self, what: str, *arguments: Any) -> Any:
        with self._asking:
            if not self.on:
                raise Off("the ward's computer is off")
            try:
                self._pipe.send((what, arguments))
            except OSError:
                raise Off("the ward's computer is off") from None
            return self._reply(self._pipe, None)

    def _reply(self, pipe: Any, timeout_s: float | None) -> Any:
        try:
            if not pipe.poll(timeout_s):
                raise TidegateError(f"the ward's computer did not start within {timeout_s:g} s")
            fine, answer = pipe.recv()
        except (EOFError, OSError):
            raise Off("the ward's computer went off before it answered") from None
        if not fine:
            raise TidegateError(answer)
        return answer

    def kill(self) -> int:
        """Pull the plug: SIGKILL, at whatever it is doing. Returns which process that was."""
        process = self._process
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        return int(process.pid)

    def close(self) -> None:
        if self.on:
            try:
                self.ask("close")
            except TidegateError:
                pass
            self._process.join(20)
            if self._process.is_alive():
                self._process.kill()


def orders_for(options: Any, source: Source, directory: Path) -> Orders:
    doctor = Doctor(options.seed) if options.auto_doctor else None
    return Orders(
        str(directory / "ward"), options.deadline_s, options.quiet_s, options.backend, doctor, Bedside.of(source)
    )
