"""Windows evaluated by Spark: each task of a plan is a task of one Spark job.

Spark may fail, the result may not: a failed job is retried, and what Spark can't do is done here, in order, so the
result, or the exception, is the same as without Spark.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tidegate.streams.spark.masters import slots_of
from tidegate.streams.spark.reasons import reason_of
from tidegate.streams.spark.session import Spark, shared_spark
from tidegate.streams.spark.workers import workers_like_here
from tidegate.streams.windows.evaluate.local import HERE, PROCESSES, LocalBackend, Way
from tidegate.streams.windows.evaluate.processes import Reply, packed, unpacked
from tidegate.streams.windows.evaluate.tasks import Outcome, Task, Work, carry_out

log = logging.getLogger("tidegate.windows")

SPARK = "Spark tasks"
PAYS_S = 0.1  # work in one evaluation from which a Spark job can pay off
START_S = 8.0  # processor time until a session is ready ...
WORKERS_S = 3.0  # ... and the part of it for its Python workers, if there is a session
ATTEMPTS = 2  # of a job, each of which tries its tasks several times
FAILURES = 3  # after this many failed evaluations in a row Spark is no longer used


class SparkBackend:
    """Spark, and this machine for what Spark can't do or what does not pay there.

    ``only``: everything goes to Spark; otherwise it is one of the choices, beside those of ``local``.
    """

    def __init__(self, spark: Spark, local: LocalBackend, only: bool = False) -> None:
        self.spark = spark
        self.local = local
        self.only = only
        self.jobs = 0
        self.failures = 0  # in a row
        self.takeovers = 0  # evaluations that this machine took over
        self._notes: list[str] = []
        self._warm = False
        self._slots: int | None = None
        self._cold: str | None = None  # why its Python workers could not be started
        self._warming: threading.Thread | None = None
        self._preparing = threading.Lock()  # jobs start in order of arrival, the next one is prepared by then

    # ---- the Backend protocol

    @property
    def notes(self) -> Sequence[str]:
        return [*self._notes, *self.local.notes]

    @property
    def place(self) -> str:
        """Where it runs, in words."""
        if not self.spark.ready:
            state = "starting" if self.spark.starting else "not started yet"
        else:
            took = self.spark.started_in_s
            state = f"{self.jobs:,} jobs" + ("" if took is None else f", started in {took:.1f} s")
        return f"Spark {self.spark.master} ({state}){'' if self.only else ' or this machine, by measured cost'}"

    def ways(self, work: Work) -> Sequence[Way]:
        why_not = self._why_not(work)
        if self.only and why_not is None:
            return [Way(SPARK)]
        starts_in = 0.0 if self._warm else WORKERS_S if self.spark.ready else START_S
        like = PROCESSES if self._on_these_cores else None
        spark = Way(SPARK, PAYS_S, starts_in, self._warming is not None and not self._warm, why_not, like)
        return [Way(HERE), spark] if self.only else [*self.local.ways(work), spark]

    @property
    def _on_these_cores(self) -> bool:
        """Is all that it has this machine, where processes can run?"""
        return self.spark.master.startswith("local") and self.local.has_processes

    def _why_not(self, work: Work) -> str | None:
        if self.spark.error is not None:
            return "Spark is not available here"
        if self._cold is not None:
            return f"Spark did not start ({self._cold})"
        if self.failures >= FAILURES:
            return f"{self.failures} evaluations in a row failed on Spark"
        return self.local.unsendable(work)

    @property
    def replicas(self) -> int:
        return max(self.slots, 2)  # with one, nothing would go to Spark

    def workers(self, asked: int) -> int:
        return asked if self.only else min(asked, max(self.local.cores, self.slots))

    @property
    def slots(self) -> int:
        """How many tasks can run at the same time, as far as known: a JVM that has died can't be asked again."""
        if self._slots is None and self.spark.ready:
            self._slots = int(self.spark.session().sparkContext.defaultParallelism)
        return self._slots or slots_of(self.spark.settings.master or "local[*]")

    def start(self, way: str, workers: int) -> None:
        if way == SPARK:
            self._begin()
        else:
            self.local.start(way, workers)

    def run(self, way: str, tasks: Sequence[Task], workers: int) -> list[Outcome]:
        if way != SPARK:
            return self.local.run(way, tasks, workers)
        work = tasks[0].work
        replies = self._on_spark(work, tasks)
        outcomes = []
        for task, reply in zip(tasks, replies, strict=True):
            if reply.refused is not None:
                self.local.refuse(work, reply.refused)
            elif reply.raised is not None:
                log.info("%r raised in a Spark task; trying it in this process: %s", work.function, reply.raised)
            outcomes.append(carry_out(task, reply.results))
        return outcomes

    def close(self) -> None:
        """The session stays: it belongs to the process."""

    # ---- starting

    def begin(self) -> None:
        """For what needs Spark: start it in the background, or raise now if that is impossible.

        What failed before is tried again.
        """
        self.failures = 0
        if self._cold is not None:
            self._cold = self._warming = None
        if self.only:
            self.spark.check()
            self._begin()

    def _begin(self) -> None:
        """Start the session and its Python workers in the background."""
        if self._warming is None:
            self._warming = threading.Thread(target=self._get_warm, name="tidegate-spark-warm", daemon=True)
            self._warming.start()

    def warm(self) -> None:
        """Start the session and its Python workers, and wait for them."""
        self._begin()
        assert self._warming is not None
        self._warming.join()

    def _get_warm(self) -> None:
        from tidegate.streams.spark.jobs import warm

        try:
            context = self.spark.session().sparkContext
            slots = context.defaultParallelism
            with self._preparing, workers_like_here(context):
                job = context.parallelize(range(2 * slots), 2 * slots).map(warm)
                job.id()
            job.collect()
            self._slots = int(context.defaultParallelism)  # of a cluster, now that it has started
            self._warm = True
        except Exception as error:
            self._cold = reason_of(error)
            self._note(f"Spark did not start; windows are evaluated in this process: {self._cold}")

    # ---- jobs

    def _on_spark(self, work: Work, tasks: Sequence[Task]) -> list[Reply]:
        """A reply for each task; an empty one where Spark gave none."""
        nothing = [Reply([]) for _ in tasks]
        try:
            what = work.packed
        except Exception as error:
            self.local.refuse(work, error)
            return nothing
        for attempt in range(ATTEMPTS):
            try:
                replies = self._job(what, tasks)
            except Exception as error:
                told = reason_of(error)
                log.warning("a Spark job of %s tasks failed, attempt %s: %s", len(tasks), attempt + 1, told)
            else:
                self.failures = 0
                return replies
        self.failures += 1
        self.takeovers += 1
        self._note(
            f"a Spark job failed {ATTEMPTS} times ({told}); its {sum(len(t.items) for t in tasks):,} items were evaluated in "
            f"this process"
        )
        return nothing

    def _job(self, what: bytes, tasks: Sequence[Task]) -> list[Reply]:
        from tidegate.streams.spark.jobs import answer, load_by_reference, load_by_value

        context = self.spark.session().sparkContext
        with ExitStack() as until_done:
            with self._preparing:
                if tasks[0].operation == "combine":
                    loads: list[Any] = [list(task.items) for task in tasks]
                elif not str(context.master).startswith("local"):
                    loads = [load_by_value(task) for task in tasks]
                else:
                    folder = until_done.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-windows-"))
                    loads = load_by_reference(tasks, Path(folder) / "columns.arrow")
                messages = [packed((what, t.operation, load)) for t, load in zip(tasks, loads, strict=True)]
                context.setLocalProperty("spark.scheduler.pool", "windows")
                with workers_like_here(context):
                    job = context.parallelize(messages, len(messages)).map(answer)
                    job.id()  # everything but submitting it
            answers = job.collect()
        self.jobs += 1
        return [unpacked(message) for message in answers]

    def _note(self, text: str) -> None:
        self._notes.append(text)
        log.warning("%s", text)


_shared: dict[tuple[int, bool], SparkBackend] = {}


def spark_backend(local: LocalBackend, given: Any = None, only: bool = False) -> SparkBackend:
    """The backend over the session of this process for what was given: the same one each time."""
    spark = shared_spark(given)
    return _shared.setdefault((id(spark), only), SparkBackend(spark, local, only))
