"""The Spark data source ``tidegate``: tables and views to read, output streams to follow, border streams to write into.

Spark runs these classes in its own Python processes, on any of its machines, so they talk to the engine over its
server: option ``url``, ``http://…`` or ``unix:…`` (see :func:`tidegate.connectors.spark.pipeline.share`), and ``token``
if it asks for one.

======================  ============================  ========================================================================
``spark.read``          ``table`` (or ``load(name)``)  at one state, in partitions; ``where`` and ``columns`` go into its SQL
``spark.readStream``    ``stream``, ``name``           a named, durable subscription; acknowledged when Spark has the batch
``df.write``            ``stream``, ``source``, ``id``  all rows are one atomic batch; the same ``id`` again changes nothing
``df.writeStream``      ``stream``, ``source``         every micro-batch is one atomic batch, by our own cursor: exactly once
======================  ============================  ========================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import tidegate
from tidegate.client import Client
from tidegate.connectors.spark.cursor import Patience, Step, make_step, next_step
from tidegate.connectors.spark.stream import OutputReader
from tidegate.connectors.spark.types import arrow_schema, as_arrow, check_fits, columns_of, spark_schema
from tidegate.errors import QueryFailed, TidegateError, unknown
from tidegate.storage.schema import Relation
from tidegate.wire import read_relation

SLICE = 400_000  # rows of one query; a server returns at most a million, and slices differ in size
MOST = 10_000  # partitions
WIDE = {"HUGEINT": "DECIMAL(38,0)"}  # sums in views have this type
READS, STREAMS = ("table", "path"), ("stream", "path")


def connected(options: Mapping[str, str]) -> Client:
    """The engine behind the options."""
    if "url" not in options:
        raise TidegateError(
            "format('tidegate') needs option('url', …): the address of a server, or that of an engine in this process, "
            "which tidegate.connectors.spark.pipeline.share(engine, spark) gives"
        )
    return tidegate.connect(options["url"], options.get("token"))


def named(options: Mapping[str, str], *names: str) -> str:
    """The first of these options that is there."""
    for name in names:
        if options.get(name):
            return options[name]
    raise TidegateError(f"format('tidegate') needs option({names[0]!r}, …)")


def readable(client: Client, name: str) -> dict[str, Any]:
    """A table or a view."""
    facts = client.app()
    known = {one["name"]: one for one in (*facts["tables"], *facts["plain_views"])}
    if name not in known:
        raise unknown("spark.read", "table or view", name, known)
    found: dict[str, Any] = known[name]
    return found


def readable_relation(client: Client, name: str) -> Relation:
    columns = readable(client, name)["columns"]
    return read_relation(name, [{**c, "type": WIDE.get(c["type"], c["type"])} for c in columns])


def primary_key(client: Client, name: str) -> list[str]:
    """Of a table; a view has none."""
    return list(readable(client, name).get("primary_key", ()))


def stream_relation(client: Client, name: str, border: bool) -> Relation:
    streams = {s["name"]: s for s in client.app()["streams"] if s["border"] is border}
    if name not in streams:
        raise unknown("spark", "border stream" if border else "output stream", name, streams)
    return read_relation(name, streams[name]["columns"])


class TidegateSource(DataSource):
    """What ``format("tidegate")`` stands for."""

    @classmethod
    def name(cls) -> str:
        return "tidegate"

    def schema(self) -> StructType:
        """Of the table or view, or of the output stream; ``columns``: only these."""
        options = dict(self.options)
        with connected(options) as client:
            if "stream" in options:
                return spark_schema(stream_relation(client, options["stream"], border=False))
            whole = spark_schema(readable_relation(client, named(options, *READS)))
        chosen = [name.strip() for name in options.get("columns", "").split(",") if name.strip()]
        missing = [name for name in chosen if name not in whole.names]
        if missing:
            raise unknown("option('columns', …)", "column", missing[0], whole.names)
        return StructType([whole[name] for name in chosen]) if chosen else whole

    def reader(self, schema: StructType) -> TableReader:
        return TableReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> OutputReader:
        options = dict(self.options)
        return OutputReader(options, schema, named(options, *STREAMS), named(options, "name"))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MicroBatchWriter:
        return MicroBatchWriter(dict(self.options), schema, overwrite)


# ---- tables


@dataclass
class Part(InputPartition):
    """Of the rows, those whose hashed key leaves ``index`` when divided by ``of``, as they were at ``state`` (None: newest)."""

    index: int
    of: int
    state: int | None

    def __post_init__(self) -> None:
        super().__init__(self.index)


class TableReader(DataSourceReader):
    """Reads a table or a view, all of it at one state.

    A served engine says how many rows there are, and at which position. A table of more than ``SLICE`` rows is read in as many
    partitions as that needs, or in ``option("partitions", n)``, each ``AS OF`` that position; the answers to one query stay
    below a server's limit. A smaller one is one query, at the newest state. An engine in this process has no limit and keeps
    no older states: one query.

    It takes no filters from Spark. Spark 4.3 plans a read once for each data frame and keeps it, with the filters of
    whichever scan came last, for all of them: after ``df.where("id = 1").count()``, ``df.count()`` is 1, and a union of
    two filters has the rows of one. Handing every filter back, for Spark to apply again, does not help, since the rows
    are missing, and no Python that could notice is called for a scan without filters. It does not tell a reader which
    columns are needed. Options belong to the data frame.
    """

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def sql(self, table: str, chosen: str = "") -> str:
        """The query of all rows that are wanted, or of those ``chosen`` among them."""
        columns = ", ".join(_quoted(name) for name in columns_of(self._schema)) or "1"
        return f"SELECT {columns} FROM {_quoted(table)}{self._where(chosen)}"

    def _where(self, chosen: str = "") -> str:
        given = self._options.get("where", "").strip()
        conditions = [f"(\n{given}\n)"] * bool(given) + [chosen] * bool(chosen)
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def partitions(self) -> Sequence[InputPartition]:
        wanted = _count_of(self._options)
        with connected(self._options) as client:
            rows, state = self._size(client)
        if state is None and wanted is not None and wanted > 1:
            raise TidegateError(
                "option('partitions', …) needs a table of a served engine: an engine in this process, and a view, show no older "
                "states, and are read by one query"
            )
        count = wanted or max(1, -(-rows // SLICE))
        return [Part(index, count, state if count > 1 else None) for index in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        table = named(self._options, *READS)
        with connected(self._options) as client:
            rows, newest = self._size(client, partition.state)
            state = newest if partition.state is None else partition.state
            slices = (
                1 if state is None else max(1, -(-rows // (SLICE * partition.of)))
            )  # it may have grown since it was planned
            of = partition.of * slices
            key = ", ".join(_quoted(name) for name in primary_key(client, table))
            for number in range(slices):
                index = partition.index + number * partition.of
                chosen = f"hash({key}) % {of} = {index}" if of > 1 else ""
                answer = _answered(client, self.sql(table, chosen), state if of > 1 else None)
                yield from as_arrow(self._schema, answer).to_batches(max_chunksize=50_000)

    def _size(self, client: Client, state: int | None = None) -> tuple[int, int | None]:
        """How many rows there are, and at which position; None: this engine, or a view, shows no older states."""
        name = named(self._options, *READS)
        if not primary_key(client, name):
            return 0, None
        answer = _answered(client, f"SELECT count(*) AS n FROM {_quoted(name)}{self._where()}", state)
        position = (answer.schema.metadata or {}).get(b"tidegate.position")
        return int(answer.column(0)[0].as_py()), None if position is None else int(position)


def _answered(client: Client, sql: str, state: int | None) -> pa.Table:
    try:
        return client.query(sql, as_of=state).arrow
    except QueryFailed as error:
        if state is None or "not retained" not in str(error):
            raise
        raise QueryFailed(
            f"{error}; a data frame of a large table stays at the state of its first use: make it anew with spark.read"
        ) from None


def _count_of(options: Mapping[str, str]) -> int | None:
    given = options.get("partitions")
    if given is None:
        return None
    if not given.isdecimal() or not 0 < int(given) <= MOST:
        raise TidegateError(f"option('partitions', {given!r}): give a number from 1 to {MOST:,}")
    return int(given)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# ---- border streams


@dataclass
class Rows(WriterCommitMessage):
    """What a task read of its partition: an Arrow stream, and the query it belongs to."""

    data: bytes
    query: str | None


class _Writer:
    """Tasks send their rows to the driver's side, which pushes all of them as one atomic batch: all or nothing."""

    def __init__(self, options: dict[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._schema = schema
        self._stream = named(options, *STREAMS)
        self._source = options.get("source") or f"spark:{self._stream}"
        self._patience = Patience(float(options["timeout_s"]) if "timeout_s" in options else None)
        if overwrite:
            raise TidegateError(f"stream {self._stream} can't be overwritten, only appended to: mode('append')")
        with connected(options) as client:
            check_fits(schema, stream_relation(client, self._stream, border=True))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_patience"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._patience = Patience(float(state["_options"]["timeout_s"]) if "timeout_s" in state["_options"] else None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Rows:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, arrow_schema(self._schema)) as writer:
            for batch in iterator:
                writer.write_table(as_arrow(self._schema, pa.Table.from_batches([batch])))
        return Rows(sink.getvalue().to_pybytes(), query)

    def _rows(self, messages: list[WriterCommitMessage | None]) -> pa.Table:
        """What all tasks read, in the order of their partitions."""
        tables = [pa.ipc.open_stream(m.data).read_all() for m in messages if isinstance(m, Rows)]
        return pa.concat_tables(tables) if tables else arrow_schema(self._schema).empty_table()


class BatchWriter(_Writer, DataSourceArrowWriter):
    """``df.write``: one atomic batch."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        rows = self._rows(messages)
        with connected(self._options) as client:
            offset = client.position(self._source)
            job = self._options.get("id")
            told = {"id": job} if job else {"write": _writes(offset) + 1}
            if offset != told:
                step = Step(self._source, offset, told)
                self._patience.insist(lambda: make_step(client, self._stream, rows, step))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was pushed."""


def _writes(offset: Any) -> int:
    return int(offset["write"]) if isinstance(offset, dict) and "write" in offset else 0


class MicroBatchWriter(_Writer, DataSourceStreamArrowWriter):
    """``df.writeStream``: one atomic batch for each micro-batch; a repeated one is recognised by our cursor."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        queries = {m.query for m in messages if isinstance(m, Rows)}
        if not queries:
            return  # Spark ran no task at all, so there is no row
        (query,) = queries
        with connected(self._options) as client:
            offset = client.position(self._source)
            fresh = self._options.get("new_checkpoint", "false").lower() == "true"
            step = next_step(self._source, offset, str(query), batchId, fresh, gaps=True)
            if step is not None:
                self._patience.insist(lambda: make_step(client, self._stream, self._rows(messages), step))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing was pushed."""
