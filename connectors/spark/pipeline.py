"""Spark in and out: Structured Streaming queries into border streams, and the data source ``tidegate``.

In: :func:`pipe` starts a query whose micro-batches become atomic batches of a border stream, exactly once across a kill of either
side:

    Spark runs micro-batch n ─▶ foreachBatch ─▶ where does our cursor stand? ─▶ push rows and cursor, one transaction ─▶ on disk
           ▲                                         │ n is in already: nothing to do                                     │
           └─────────── Spark notes that n is done, plans n + 1 ◀───────────────────────────────────────────────────────┘

Spark notes a micro-batch as done after it is on our disk, and runs it again, with the same rows, if it could not note
that. Our cursor then shows that the engine has it. An engine without room makes foreachBatch wait, so Spark plans
nothing more.

Across: :func:`share` lets Spark's processes read tables, follow output streams and write into border streams of an engine in this
process; with a served one pass its URL. See :mod:`tidegate.connectors.spark.source`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.client import Client
from tidegate.connectors.spark.cursor import Patience, make_step, next_step
from tidegate.engine.engine import Engine
from tidegate.errors import TidegateError, unknown
from tidegate.mutex import Flag
from tidegate.outside.destinations import bring_time
from tidegate.storage.schema import Relation
from tidegate.wire import read_relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


UNKNOWN = "1970-01-01T00:00:00.000Z"  # Spark's watermark at first


def pipe(
    frame: DataFrame,
    engine: Engine | Client,
    stream: str,
    *,
    checkpoint: str | Path,
    source: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
    new_checkpoint: bool = False,
    watermark: bool = False,
) -> Pipeline:
    """Start a streaming query that pushes every micro-batch of ``frame`` to a border stream, exactly once.

    ``engine``: embedded, or a client of a served one. ``checkpoint``: Spark's checkpoint directory, the same after
    every restart. ``source``: the name under which the engine stores the query's position (default: ``spark:`` and the
    stream); one for each query. ``trigger``: as in Spark, ``{"availableNow": True}`` for example. ``timeout_s``: how
    long to wait for an engine without room, or an unreachable server, before the query fails (None: as long as it
    takes).
    ``new_checkpoint``: this checkpoint directory is new on purpose, and so is its input. ``watermark``: the query has one
    (``frame.withWatermark``), and the stream is advanced to it, as of the micro-batch before.
    """
    from tidegate.connectors.spark.types import check_fits

    if not frame.isStreaming:
        raise TidegateError(
            f"pipe(…, {stream!r}) takes a streaming data frame (spark.readStream…); this one is not. Push a finished one with "
            f"df.write.format('tidegate'), or use tidegate backfill",
            stream=stream,
        )
    check_fits(frame.schema, border_relation(engine, stream))
    pipeline = Pipeline(engine, stream, source or f"spark:{stream}", timeout_s, new_checkpoint, watermark)
    writer = frame.writeStream.foreachBatch(pipeline.take).option("checkpointLocation", _place(checkpoint))
    if trigger:
        writer = writer.trigger(**trigger)
    pipeline.begin(writer.start())
    return pipeline


def _place(checkpoint: str | Path) -> str:
    """The directory, for Spark's process, which may run in another one; a URL stays as it is."""
    return checkpoint if isinstance(checkpoint, str) and ":/" in checkpoint else str(Path(checkpoint).absolute())


class Pipeline:
    """A running streaming query. ``query`` is Spark's; stop it through this object, so that a wait for the engine ends.

    ``pushed`` and ``repeated``: micro-batches that were pushed, and those the engine already had. ``waited_s``: time
    spent waiting for room.
    """

    def __init__(
        self,
        engine: Engine | Client,
        stream: str,
        source: str,
        timeout_s: float | None,
        new_checkpoint: bool,
        watermark: bool = False,
    ) -> None:
        self.stream = stream
        self.source = source
        self.pushed = self.repeated = 0
        self.error: Exception | None = None
        self.query: StreamingQuery
        self._engine = engine
        self._new_checkpoint = new_checkpoint
        self._watermark = watermark
        self._advanced = UNKNOWN
        self._patience = Patience(timeout_s)
        self._begun = Flag()

    @property
    def waited_s(self) -> float:
        return self._patience.waited_s

    def begin(self, query: StreamingQuery) -> None:
        """The query is known now; its first micro-batch may be waiting for that."""
        self.query = query
        self._query_id = str(query.id)
        self._begun.set()

    def take(self, frame: DataFrame, batch: int) -> None:
        """What Spark calls with every micro-batch."""
        self._begun.wait()
        try:
            self._take(frame, batch)
        except Exception as error:
            self.error = error
            raise

    def _take(self, frame: DataFrame, batch: int) -> None:
        offset = self._patience.insist(lambda: self._engine.position(self.source))
        step = next_step(self.source, offset, self._query_id, batch, self._new_checkpoint)
        if step is None:
            self.repeated += 1
            return
        rows = frame.toArrow()
        self._patience.insist(lambda: make_step(self._engine, self.stream, rows, step))
        self.pushed += 1
        if self._watermark:
            self._advance()

    def _advance(self) -> None:
        """To the query's watermark in the last micro-batch: Spark takes it from those before."""
        progress = self.query.lastProgress
        to = UNKNOWN if progress is None else progress["eventTime"].get("watermark", UNKNOWN)
        if to > self._advanced:
            self._patience.insist(lambda: bring_time(lambda: self._engine.advance(self.stream, to), self.stream))
            self._advanced = to

    @property
    def active(self) -> bool:
        return bool(self.query.isActive)

    def wait(self, timeout_s: int | None = None) -> bool:
        """Return True when the query has ended, False after ``timeout_s``; raises what made it fail."""
        from pyspark.errors import StreamingQueryException

        try:
            ended = self.query.awaitTermination(timeout_s)
        except StreamingQueryException:
            if isinstance(self.error, TidegateError):
                raise self.error from None
            raise
        return ended is None or bool(ended)

    def stop(self) -> None:
        """Stop the query. A micro-batch the engine lacks comes again after a restart with the same checkpoint."""
        self._patience.stop()
        self.query.stop()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "active" if self.active else "failed" if self.error is not None else "ended"
        return f"<Pipeline {self.source} into {self.stream} {state} {self.pushed} pushed, {self.repeated} repeated>"


def border_relation(engine: Engine | Client, stream: str) -> Relation:
    """The columns of a border stream; raises when there is none of this name."""
    if isinstance(engine, Client):
        borders = {s["name"]: s for s in engine.app()["streams"] if s["border"]}
        if stream not in borders:
            raise unknown("pipe", "border stream", stream, borders)
        return read_relation(stream, borders[stream]["columns"])
    return engine.acceptance.border(stream).relation


# ---- the data source


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("tidegate")`` and the like known to this session.

    SparkUnavailable if its Python workers can't import tidegate: a session of your own runs them with the first ``python3`` on
    the PATH, unless PYSPARK_PYTHON named another one before it started.

    ``writeStream.start()`` looks data sources up in the session that is active in its thread. If another thread started
    the session, as ours does for windows, none is active: this thread then gets it.
    """
    from tidegate.connectors.spark.looking import check_workers
    from tidegate.connectors.spark.source import TidegateSource

    spark.dataSource.register(TidegateSource)
    if hasattr(spark, "_jsparkSession"):  # not with Spark Connect
        check_workers(spark)
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]


@contextmanager
def share(engine: Engine, spark: SparkSession) -> Iterator[dict[str, str]]:
    """Let Spark's processes on this machine reach an engine in this one; gives the options for ``format("tidegate")``.

    They run beside this process, never in it, so the engine listens on a Unix socket that only this user can open, as long as
    the block lasts.
    """
    from tidegate.server.local import LocalServer

    register(spark)
    with LocalServer(engine) as server:
        yield {"url": server.url}
