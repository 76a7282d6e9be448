"""One Spark session, however it is obtained: one that exists, one for a master URL, or one embedded in this process.

    spark_session()                         embedded, on the cores of this machine, with settings measured for small jobs
    spark_session("local[4]")               the same, on so many cores
    spark_session("spark://host:7077")      on a cluster
    spark_session(existing)                 that one, as it is

A process can have only one, so all users share it. It starts when it is first asked for; until then nothing of pyspark
is imported. What :class:`Spark` adds is starting in the background.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.clock import SystemClock
from tidegate.errors import SparkUnavailable
from tidegate.streams.spark.java import find_java
from tidegate.streams.spark.masters import check_answers, cores, slots_of
from tidegate.streams.spark.reasons import reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tidegate.spark")

MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
RETRIES = 4  # attempts at a task before its job fails; plain local[n] has only one

# as many threads as here: with another grouping of sums the last bits may differ
BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class SparkSettings:
    """What a session is started with. ``quick``: see :func:`tidegate.streams.spark.java.flags`; ``more``: settings of Spark."""

    master: str | None = None
    memory: str = "1g"
    quick: bool = True
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def local(self) -> bool:
        return self.master is None or self.master.startswith("local")

    def all(self, folder: Path) -> dict[str, str]:
        """All settings, the user's last."""
        found = {"spark.master": self._master(), "spark.app.name": "tidegate", **SESSION}
        if self.local:
            found |= {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.local.dir": str(folder),
                "spark.default.parallelism": str(slots_of(found["spark.master"])),
                "spark.sql.shuffle.partitions": str(slots_of(found["spark.master"])),
            }
        found["spark.sql.warehouse.dir"] = str(folder / "warehouse")
        for name, value in worker_environment().items():
            found[f"spark.executorEnv.{name}"] = value
        return {**found, **self.more}

    def _master(self) -> str:
        master = self.master or f"local[{cores()}]"
        if master == "local":
            master = "local[1]"
        if master.startswith("local[") and "," not in master:
            return f"{master[:-1]},{RETRIES}]"
        return master


SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",  # a window does not wait behind a long query
    "spark.python.daemon.module": "tidegate.streams.spark.daemon",
    "spark.python.unix.domain.socket.enabled": "true",  # over TCP every task takes 40 ms longer
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # the default manager forks shell commands: 187 ms for an empty micro-batch instead of 51
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.pollingDelay": "1ms",
}


def worker_environment() -> dict[str, str]:
    """The environment of Python workers."""
    threads = {name: os.environ.get(name) or os.environ.get("OMP_NUM_THREADS") or str(cores()) for name in BLAS_THREADS}
    # numpy's temporaries stay in the heap; mapping them each time triples the time
    return {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**30), **threads}


class Spark:
    """A session that starts when it is needed, or in the background before that.

    ``session()`` waits for it; ``begin()`` does not. Only the one who started it stops it: a session that was given, or
    that existed, is left alone.
    """

    def __init__(self, given: SparkSession | str | None = None, settings: SparkSettings | None = None) -> None:
        named = given if given is None or isinstance(given, str) else None
        self.settings = settings or SparkSettings(named)
        self.given = None if given is None or isinstance(given, str) else given
        _check(self.given, self.settings.master)
        self.started_in_s: float | None = None
        self.error: SparkUnavailable | None = None
        self._session: Any = self.given
        self._own = False
        self._gateway: Any = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def ready(self) -> bool:
        return self._session is not None

    @property
    def starting(self) -> bool:
        return self._session is None and self._thread is not None and self._thread.is_alive()

    def session(self) -> SparkSession:
        """The session; starts it if needed."""
        with self._lock:
            if self._session is None:
                began = SystemClock().monotonic()
                try:
                    self._session = self._start()
                except SparkUnavailable as error:
                    self.error = error
                    raise
                self.started_in_s = SystemClock().monotonic() - began
                log.info("a Spark session with master %s started in %.1f s", self.master, self.started_in_s)
            session: SparkSession = self._session
            return session

    @property
    def master(self) -> str:
        """Where it runs."""
        return str(self._session.sparkContext.master) if self._session is not None else self.settings._master()

    def check(self) -> None:
        """Raise when it could not be started, because pyspark, Java or a master that answers is missing."""
        if self._session is None:
            if find_spec("pyspark") is None:
                raise SparkUnavailable("Spark needs pyspark, which is not installed; pip install 'tidegate[spark]'")
            find_java()
            if "pyspark" not in sys.modules or sys.modules["pyspark"].SparkContext._active_spark_context is None:
                check_answers(self.settings.master or "")

    def begin(self) -> None:
        """Start it in the background, if that has not happened yet. ``error`` says why it could not start."""
        if self._session is None and self._thread is None:
            self._thread = threading.Thread(target=self._begin, name="tidegate-spark-start", daemon=True)
            self._thread.start()

    def _begin(self) -> None:
        try:
            self.session()
        except SparkUnavailable as error:
            log.warning("%s", error)

    def _start(self) -> Any:
        self.check()
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")  # our input is Arrow
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        if SparkContext._active_spark_context is not None:
            return self._existing(SparkContext._active_spark_context)
        from tidegate.streams.spark.gateway import start_gateway, worker_python

        java = find_java()
        folder = Path(tempfile.mkdtemp(prefix="tidegate-spark-"))
        atexit.register(_remove, folder, os.getpid())
        environment = {"PYTHONPATH": os.pathsep.join(import_path())} if self.settings.local else {}
        settings = self.settings.all(folder)
        gateway = start_gateway(java, folder, self.settings.memory, self.settings.quick, environment, settings)
        self._gateway = gateway
        try:
            with worker_python():
                context = SparkContext(
                    conf=SparkConf(loadDefaults=True, _jvm=gateway.jvm).setAll(list(settings.items())),
                    gateway=gateway,
                )
                session = SparkSession(context)
        except Exception as error:
            told = reason_of(error)
            self._end_gateway()
            raise SparkUnavailable(
                f"Spark's session with master {self.settings._master()} did not start: {told}"
            ) from None
        self._own = True
        return session

    def _existing(self, context: Any) -> Any:
        from pyspark.sql import SparkSession

        wanted = self.settings.master
        if wanted is not None and context.master.partition(",")[0].rstrip("]") != wanted.partition(",")[0].rstrip("]"):
            raise SparkUnavailable(
                f"a session with master {wanted} was asked for, but this process has one with master {context.master}, and "
                f"there can be only one; stop that one first, or pass it as spark=session"
            )
        return SparkSession.builder.getOrCreate()

    def stop(self) -> None:
        """End the session, if it was started here."""
        with self._lock:
            if self._own:
                self._session.stop()
                self._end_gateway()
            self._session, self._own, self._thread = self.given, False, None

    def _end_gateway(self) -> None:
        from pyspark import SparkContext

        gateway, self._gateway = self._gateway, None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None


def _check(given: Any, master: str | None) -> None:
    """Can Spark run on it? Checked now, before a JVM is started for it."""
    if given is not None and not hasattr(given, "sparkContext"):
        raise SparkUnavailable(
            f"spark= takes a SparkSession, a master URL, or nothing for a session in this process; got {given!r}. A session of "
            "Spark Connect has no Spark context, and windows can't be evaluated on it: give the master URL instead"
        )
    if master is not None and not MASTER.fullmatch(master):
        raise SparkUnavailable(
            f"{master!r} is not a Spark master URL; use local, local[2], local[*], spark://host:7077, yarn or k8s://…",
            master=master,
        )


def _remove(folder: Path, owner: int) -> None:
    """At the end of the process that made it; a forked child leaves it alone."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def import_path() -> list[str]:
    """Lets workers on this machine import what this process can."""
    return [entry or os.getcwd() for entry in sys.path]


_shared: dict[str | int | None, Spark] = {}
_sharing = threading.Lock()


def shared_spark(given: SparkSession | Spark | str | None = None) -> Spark:
    """The session of this process for what was given; the same one each time."""
    if isinstance(given, Spark):
        return given
    name = given if given is None or isinstance(given, str) else id(given)  # the object is kept, so its id stays unique
    with _sharing:
        if name not in _shared:
            _shared[name] = Spark(given)
        return _shared[name]


def spark_session(given: SparkSession | Spark | str | None = None) -> SparkSession:
    """The session of this process: ``given`` itself, one for the master URL given, or an embedded one."""
    return shared_spark(given).session()
