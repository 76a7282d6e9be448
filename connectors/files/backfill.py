"""Backfill: feed a large history from files through a border stream, in order, as if it had just arrived.

Spark reads and sorts the files, on as many machines as it has; the rows arrive here partition by partition and are fed
in batches, each a transaction. With ``backend="spark"`` the windows of the batches that are read ahead are evaluated on
Spark, too.

The position in the history is stored with every chunk of batches, in the same log record, so a backfill that was killed
continues with the row after the last one fed. The position is the value of the first order column and the number of
rows with that value that were fed: on resuming, Spark reads from that value on and that many rows are skipped. The
order is total (all columns break ties), so they are the same rows.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tidegate.clock import EPOCH
from tidegate.connectors.spark.types import check_fits, spark_schema
from tidegate.engine.advancing import check_finish
from tidegate.engine.engine import Engine
from tidegate.errors import DataError, TidegateError, unknown
from tidegate.storage.schema import Relation
from tidegate.streams.spark.reasons import reason_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

MOMENTS = ("timestamp", "timestamp_ntz")
CHUNK_ROWS = 50_000  # at most, fed at once as one log record
FORMATS = ("parquet", "csv", "json")
Progress = Callable[[int, int], None]  # rows fed so far, rows in total


@dataclass(frozen=True)
class Backfilled:
    """What a backfill did. ``resumed_at``: rows that earlier runs had fed."""

    stream: str
    source: str
    rows: int
    resumed_at: int
    fed: int
    batches: int


class Place:
    """The position of the feed: rows, and the value of the first order column with the number of rows that have it."""

    def __init__(self, history: str, offset: Any) -> None:
        known = offset or {"rows": 0, "key": None, "ties": 0}
        self.history = history
        self.rows, self.key, self.ties = int(known["rows"]), known["key"], int(known["ties"])

    def advance(self, keys: Iterable[Any]) -> dict[str, Any]:
        """The offset after rows with these keys are fed, too."""
        for value in keys:
            key = None if value is None else _text(value)
            self.ties = self.ties + 1 if key == self.key else 1
            self.key = key
            self.rows += 1
        return {"history": self.history, "rows": self.rows, "key": self.key, "ties": self.ties}


def _text(key: Any) -> str:
    """A key as Spark reads it back from text."""
    if isinstance(key, dt.datetime):
        return f"{key.isoformat()}+00:00"
    return repr(key) if isinstance(key, float) else str(key)


def backfill(
    engine: Engine,
    spark: SparkSession,
    stream: str,
    files: Sequence[str | Path],
    *,
    order_by: Sequence[str],
    format: str | None = None,
    size: int = 100,
    source: str | None = None,
    finish: bool = False,
    progress: Progress = lambda done, total: None,
) -> Backfilled:
    """Feed the rows of ``files`` to a border stream, ``size`` to a batch, in the order of the columns ``order_by``.

    ``source``: the name under which the engine stores the position (default: ``backfill:`` and the stream).
    ``finish``: nothing follows after the history, see :meth:`Engine.finish`.
    ``progress(done, total)`` is called after every chunk.
    """
    relation = engine.acceptance.border(stream).relation
    if finish:
        check_finish(engine, [stream])
    source = source or f"backfill:{stream}"
    with _reading(files):
        frame = read_history(spark, files, relation, order_by, format)
        history = _fingerprint(frame, order_by)
        after = _offset(engine, source, history)
        place = Place(history, after)
        resumed_at, total, batches = place.rows, _counted(frame, relation), 0
        key = relation.index_of[order_by[0]]
        rows = _sorted_rows(frame, relation, order_by, place)
        progress(resumed_at, total)
        while chunk := list(islice(rows, max(min(engine.config.look_ahead, CHUNK_ROWS // size), 1) * size)):
            offset = place.advance(row[key] for row in chunk)
            batches += engine.feed(stream, chunk, size=size, source=source, offset=offset, after=after).batches
            after = offset
            progress(place.rows, total)
    if finish:
        engine.finish(stream)
        if engine.durable is not None:
            engine.durable.sync()
    return Backfilled(stream, source, total, resumed_at, place.rows - resumed_at, batches)


@contextmanager
def _reading(files: Sequence[str | Path]) -> Iterator[None]:
    """Reports what Spark can't read as a data error of one line."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise DataError(
            f"Spark can't read the history in {', '.join(map(str, files))}: {reason_of(error)}. Rows fed before stay "
            "in the engine. Once the cause is fixed, the same command with the same files continues after them",
            files=[str(file) for file in files],
        ) from None


def _counted(frame: DataFrame, relation: Relation) -> int:
    """How many rows there are. Missing NOT NULL values are found now, before the first row is fed."""
    from pyspark.sql import functions as f

    needed = [c.name for c in relation.columns if not c.nullable]
    nulls = [f.count_if(f.col(name).isNull()) for name in needed]
    total, *missing = frame.agg(f.count(f.lit(1)), *nulls).collect()[0]
    problems = [f"{name} in {n:,} of {total:,} rows" for name, n in zip(needed, missing, strict=True) if n]
    if problems:
        raise DataError(
            f"the history has no value for {', '.join(problems)}, and stream {relation.name} has NOT NULL there; no "
            "row of this run was fed. Remove those rows, give them a value, or declare the column without NOT NULL",
            relation=relation.name,
            problems=problems,
        )
    return int(total)


def read_history(
    spark: SparkSession,
    files: Sequence[str | Path],
    relation: Relation,
    order_by: Sequence[str],
    format: str | None = None,
) -> DataFrame:
    """The files as a data frame with the stream's columns, checked."""
    paths = check_asked(files, relation, order_by)
    zone = spark.conf.get("spark.sql.session.timeZone")
    if zone not in ("UTC", "Etc/UTC", "GMT", "Z"):
        raise TidegateError(
            f"the Spark session reads timestamps in the zone {zone}, the engine in UTC; set "
            "spark.sql.session.timeZone to UTC"
        )
    kind = format or paths[0].rstrip("/").rpartition(".")[2].lower().replace("ndjson", "json")
    if kind not in FORMATS:
        given = f"got {format!r}" if format else f"{paths[0]} has none of these endings: give --format"
        raise TidegateError(f"backfill reads {', '.join(FORMATS)}; {given}")
    if kind == "parquet":
        frame = spark.read.parquet(*paths)
    else:
        reader = spark.read.option("mode", "FAILFAST")
        frame = _csv(reader, paths, relation) if kind == "csv" else reader.schema(spark_schema(relation)).json(paths)
    frame = frame.select([c for c in relation.column_names if c in frame.columns])
    check_fits(frame.schema, relation)
    return frame


def _csv(reader: DataFrameReader, paths: list[str], relation: Relation) -> DataFrame:
    """Columns go by the names in the header, which have to be the same, in the same order, in all files."""
    from pyspark.sql.types import StringType, StructField, StructType

    header = reader.option("header", "true").csv(paths).columns
    known = {field.name: field for field in spark_schema(relation).fields}
    schema = StructType([known.get(name, StructField(name, StringType())) for name in header])
    return reader.option("enforceSchema", "false").schema(schema).csv(paths)


def check_asked(files: Sequence[str | Path], relation: Relation, order_by: Sequence[str]) -> list[str]:
    """The checks that need no Spark; returns the paths for it."""
    if not files or not order_by:
        raise TidegateError("a backfill needs files, and the column to order their rows by (--order-by)")
    for column in order_by:
        if column not in relation.index_of:
            raise unknown("backfill", f"column of {relation.name} to order by", column, relation.index_of)
    return [_path(file) for file in files]


def _path(file: str | Path) -> str:
    """For Spark's process, which may run in another directory; a URL stays as it is."""
    if isinstance(file, str) and ":/" in file:
        return file
    path = Path(file).absolute()
    if not path.exists() and "*" not in str(path):
        raise TidegateError(f"there is no file {path}", path=str(path))
    if path.is_dir() and not any(path.iterdir()):
        raise TidegateError(f"there are no files in {path}", path=str(path))
    return str(path)


def _fingerprint(frame: DataFrame, order_by: Sequence[str]) -> str:
    """Which files, how large, in which order: an offset is valid for these only."""
    facts = [*order_by]
    for file in sorted(frame.inputFiles()):
        local = unquote(urlsplit(file).path)
        facts.append(f"{file} {os.path.getsize(local) if os.path.exists(local) else ''}")
    return hashlib.blake2b("\n".join(facts).encode(), digest_size=8).hexdigest()


def _offset(engine: Engine, source: str, history: str) -> Any:
    offset = engine.position(source)
    if offset is not None and (not isinstance(offset, dict) or offset.get("history") != history):
        raise DataError(
            f"source {source!r} is at {offset!r} of a different history: the files, their sizes or the order have "
            f"changed since. Use the same files to continue, or another --source for rows that were not fed yet",
            source=source,
            position=offset,
        )
    return offset


def _sorted_rows(
    frame: DataFrame, relation: Relation, order_by: Sequence[str], place: Place
) -> Iterator[tuple[Any, ...]]:
    """The rows after the position, in order, partition by partition; the next one is read while one is fed."""
    from pyspark.sql import functions as f

    if place.key is not None:
        first = order_by[0]
        frame = frame.where(f.col(first) >= f.lit(place.key).cast(frame.schema[first].dataType))
    rest = [c for c in frame.columns if c not in order_by]
    # timestamps travel as numbers: in Spark's own rows they are in the zone of the process that reads them
    moments = {name for name in frame.columns if frame.schema[name].dataType.typeName() in MOMENTS}
    sent = [
        (f.unix_micros(f.col(c).cast("timestamp")) if c in moments else f.col(c)).alias(c)
        if c in frame.columns
        else f.lit(None).alias(c)
        for c in relation.column_names
    ]
    places = [i for i, name in enumerate(relation.column_names) if name in moments]
    ordered = frame.sort(*order_by, *rest).select(*sent).toLocalIterator(prefetchPartitions=True)
    for row in islice(ordered, place.ties, None):
        values = list(row)
        for i in places:
            if values[i] is not None:
                values[i] = EPOCH + dt.timedelta(microseconds=values[i])
        yield tuple(values)
