"""Evaluation on this machine: in this process, in threads of it, or in other processes.

What a worker process can't do (it died, the function or a result can't be sent, the function raised there) is done here,
in order: the result, or the exception, is then the same as without workers.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from tidegate.streams.windows.evaluate.processes import DEATHS, Pool
from tidegate.streams.windows.evaluate.tasks import Outcome, Task, Work, carry_out

log = logging.getLogger("tidegate.windows")

HERE, THREADS, PROCESSES = "this process", "threads", "processes"
ON_THIS_MACHINE = (HERE, THREADS, PROCESSES)
START_S = 1.0  # processor time until a worker process is ready
THREADS_PAY_S = 0.003  # work in one evaluation from which threads, and processes, can pay off
PROCESSES_PAY_S = 0.025


@dataclass(frozen=True)
class Way:
    """A way a backend can evaluate. ``pays_from``: seconds of work in one evaluation; ``starts_in``: seconds of start-up
    not yet paid; ``starting``: it is being started; ``why_not``: why this function can't go that way. ``like``: the way that
    has the same cores and starts for less, so this one is never started instead of it."""

    name: str
    pays_from: float = 0.0
    starts_in: float = 0.0
    starting: bool = False
    why_not: str | None = None
    like: str | None = None


class Backend(Protocol):
    """Where tasks are carried out. ``only``: it was asked for, so nothing is weighed against it."""

    @property
    def only(self) -> str | bool | None: ...

    def ways(self, work: Work) -> Sequence[Way]:
        """The possible ways for this work; the others are compared with the first."""
        ...

    def workers(self, asked: int) -> int:
        """How many of the requested workers can work at the same time."""
        ...

    def begin(self) -> None:
        """Start what is indispensable; raises when that is impossible."""
        ...

    def start(self, way: str, workers: int) -> None:
        """Start what that way needs, without waiting for it."""
        ...

    def run(self, way: str, tasks: Sequence[Task], workers: int) -> list[Outcome]:
        """Carry out the tasks; outcomes in the order of the tasks."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What went wrong so far, in words."""
        ...

    @property
    def takeovers(self) -> int:
        """How often this machine took over work because it failed elsewhere."""
        ...

    @property
    def replicas(self) -> int:
        """How many workers a window without a pattern gets."""
        ...

    @property
    def place(self) -> str:
        """Where it is, in words."""
        ...

    def close(self) -> None: ...


class LocalBackend:
    """This machine. ``only``: always go this way; without it every way is offered. ``cores``: how many there are."""

    replicas = 1
    takeovers = 0

    def __init__(self, only: str | None = None, cores: int | None = None) -> None:
        self.only = only
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.cores = cores or allowed
        self.notes: list[str] = []
        self._threads: ThreadPoolExecutor | None = None
        self._pool = Pool(self.notes)
        self._unsendable: weakref.WeakKeyDictionary[Work, str] = weakref.WeakKeyDictionary()

    def ways(self, work: Work) -> Sequence[Way]:
        if self.only is not None:
            return [Way(self.only)]
        pool = self._pool
        pool.greet(wait_s=0)
        why_not = self.unsendable(work)
        if not self.has_processes:
            why_not = f"{pool.deaths} worker processes died"
        processes = Way(
            PROCESSES, PROCESSES_PAY_S, 0.0 if pool.ready else START_S, bool(pool.members) and not pool.ready, why_not
        )
        return [Way(HERE), Way(THREADS, THREADS_PAY_S), processes]

    @property
    def has_processes(self) -> bool:
        """Can worker processes be used? Not after several of them have died."""
        return self._pool.deaths < DEATHS

    @property
    def place(self) -> str:
        return "this machine"

    def unsendable(self, work: Work) -> str | None:
        """Why this function can't be sent to another process; None: no reason known."""
        return self._unsendable.get(work)

    def workers(self, asked: int) -> int:
        return asked if self.only is not None else min(asked, self.cores)

    def begin(self) -> None:
        """This process is always available."""

    def start(self, way: str, workers: int) -> None:
        if way == PROCESSES:
            self._pool.start(workers)

    def warm(self, workers: int) -> None:
        """Start worker processes and wait until they are ready, to pay that cost now."""
        self._pool.start(workers)
        self._pool.greet(wait_s=None)

    def run(self, way: str, tasks: Sequence[Task], workers: int) -> list[Outcome]:
        if way == THREADS:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(max(workers, self.cores), "tidegate-windows")
            return list(self._threads.map(carry_out, tasks))
        if way == PROCESSES:
            return self._in_processes(tasks, workers)
        return [carry_out(task) for task in tasks]

    def _in_processes(self, tasks: Sequence[Task], workers: int) -> list[Outcome]:
        work = tasks[0].work
        if work not in self._unsendable:
            try:
                work.packed  # noqa: B018
            except Exception as error:
                self.refuse(work, error)
        if work in self._unsendable or not self.has_processes:
            return [carry_out(task) for task in tasks]
        outcomes = []
        replies = self._pool.run(tasks, workers, patient=self.only is not None)
        for task, reply in zip(tasks, replies, strict=True):
            if reply.refused is not None:
                self.refuse(work, reply.refused)
            elif reply.raised is not None:
                log.info("%r raised in a worker process; trying it in this one: %s", work.function, reply.raised)
            outcomes.append(carry_out(task, reply.results))
        return outcomes

    def refuse(self, work: Work, reason: object) -> None:
        """Remember that this function can't be sent."""
        if work not in self._unsendable:
            remedy = "define its functions at the top of a module that can be imported, or install cloudpickle"
            if "No module named" in str(reason):
                remedy = "workers lack that module: install it where they run, or put its directory on their PYTHONPATH"
            text = f"{work.function!r} can't be sent to another process ({reason}); {remedy}"
            self._unsendable[work] = text
            self.notes.append(text)
            log.warning("%s", text)

    def close(self) -> None:
        """End the workers. Another evaluation would start them again."""
        self._pool.close()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
