"""Ingestion: rows come in from a source outside, in order, across crashes of either side.

    source.poll ─▶ push(rows, source=name, offset=offset) ─▶ source.committed(offset)
        ▲                        │ one record in the log: rows and offset, both or none
        └── source.open(position(name)) after a restart, a lost connection, or any doubt

The offset that was stored with the last rows is the only truth about the progress of a source. A crash at any moment
leaves it before or after what one poll brought, never inside, and the source continues from there: each row is taken
exactly once.
``committed`` lets the other side discard its data; if we die before it is called, the next opening says where we are.

**Rejected records.** What can't be read, or does not fit the stream, goes to the border stream ``rejected_in`` with its
place and the reason, *before* the rows around it. :func:`declare_rejected` declares it with a table, whose key is the
record's place in the source: a record that is read again after a crash is recognised there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.crashpoints import crash_point
from tidegate.errors import (
    BatchError,
    DataError,
    DiskFull,
    EngineClosed,
    Overloaded,
    ServerError,
    SourceError,
    TidegateError,
    text_of,
)
from tidegate.forking import own
from tidegate.mutex import Flag
from tidegate.outside.background import in_background, repeat
from tidegate.outside.destinations import Destination, bring_time, destination_of
from tidegate.outside.rejects import REJECTED, rejected_row
from tidegate.outside.sources import Malformed, Polled, Source

if TYPE_CHECKING:
    from tidegate.client import Client
    from tidegate.engine.engine import Engine

log = logging.getLogger("tidegate")

LAG_S = 1.0  # how often the source is asked for its lag
POLL_S = 0.5  # how long one poll waits, and so how long closing may take


class Ingestion:
    """The ingestion of one source into one border stream. Created by :meth:`Engine.ingest`.

    ``rows``, ``rejected``, ``undone`` (batches that aborted or became dead letters by the time they were accepted):
    counted since it was made. ``error``: the last failure, None after a success.
    """

    def __init__(
        self,
        destination: Destination,
        stream: str,
        source: Source,
        name: str,
        size: int | None,
        limit: int,
        finish: bool = False,
    ) -> None:
        own(self)
        self.name = name
        self.stream = stream
        self.source = source
        self.size = size
        self.limit = limit
        self.rows = 0
        self.rejected = 0
        self.undone = 0
        self.error: Exception | None = None
        self.lag: int | None = None  # what waits in the source, as of the last look
        self._measured = 0.0
        self._destination = destination
        self._relation = destination.relation(stream)
        self._to_finish = finish  # the stream, once everything has been taken
        self._advanced: Any = None  # how far time has been brought
        self._opened = False
        self._polled: Polled | None = None  # read, not accepted yet
        self._offset: Any = None  # of what was accepted last
        self._one_reads = (
            threading.RLock()
        )  # taken itself: a condition takes it in Python, where Ctrl-C could leave it locked
        self._reading = threading.Condition(self._one_reads)  # one reads at a time; notified after every attempt
        self._stop = Flag()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        counts = f"{self.rows} rows, {self.rejected} rejected, {self.undone} undone"
        return f"<Ingestion {self.name} into {self.stream}: {self.state}, {counts}>"

    @property
    def state(self) -> str:
        """open, failing (it tries again), stopped (it does not), finished or closed."""
        if getattr(self.error, "fatal", False):
            return "stopped"
        if self._stop.is_set():
            return "closed"
        return "failing" if self.error is not None else "finished" if self.finished else "open"

    @property
    def halted(self) -> str | None:
        """Why what it brings waits: the dataflow of its stream is halted. None: it is not (or a server has it)."""
        return self._destination.halted(self.stream)

    @property
    def at_work(self) -> bool:
        return self.state in ("open", "failing")

    @property
    def finished(self) -> bool:
        """Has everything been taken, with no more to come?"""
        return self._opened and self._exhausted and not self._to_finish

    @property
    def _exhausted(self) -> bool:
        return self._polled is None and self.source.finished

    def _measure(self, at_least_s: float = 0.0) -> None:
        """Ask the source how far behind we are: here, on the reading thread, so that reading ``lag`` never waits."""
        now = time.monotonic()
        if now - self._measured >= at_least_s:
            self._measured = now
            self.lag = self.source.lag

    # ---- taking rows in

    def open(self) -> None:
        """Open the source where its last accepted rows ended."""
        if not self._opened:
            self._polled = None
            self._offset = self._destination.offset(self.name)
            self.source.open(self.name, self._relation, self._offset)
            self._opened = True
            self._measure()

    def pump(self, timeout_s: float = 0.0) -> int:
        """Take in what there is now, waiting up to ``timeout_s`` seconds for the first; returns how many rows.

        Needs no thread. Raises SourceError when the source can't be read; the next call tries again.
        """
        count = 0
        while not self.finished:
            with self._one_reads:
                taken = self._take(timeout_s if not count else 0.0)
            if taken is None:
                break
            count += taken
        return count

    def run(self) -> None:
        """Take in until the source is finished or this is closed, pausing after a failure: 0.1 s, doubled up to 30 s."""
        repeat(self._step, self._stop, (SourceError, ServerError, BatchError, Overloaded, DiskFull))

    def _step(self) -> bool:
        with self._one_reads:
            self._take(POLL_S)
            self._reading.notify_all()
        return not self.finished

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the background has taken all of a finite source; False when ``timeout_s`` was not enough."""
        with self._one_reads:
            self._reading.wait_for(lambda: not self.at_work, timeout_s)
        return self.finished

    def _take(self, timeout_s: float) -> int | None:
        """Poll, put, confirm: the whole protocol. None when there is nothing now."""
        if self._stop.is_set():
            raise EngineClosed(
                f"ingestion {self.name} is closed; it continues from the same place when the engine is next opened"
            )
        try:
            self.open()
            if self._polled is None:
                self._polled = self.source.poll(self.limit, timeout_s)
            if self._polled is None:
                self._advance_stream()
                self._finish_stream()
                self.error = None
                self._measure(LAG_S if timeout_s and not self.source.finished else 0.0)
                return None
            taken = self._put(self._polled)
            offset, self._polled = self._polled.offset, None
            crash_point("ingestion-before-committed")
            self.source.committed(offset)
            self._advance_stream()
            self._finish_stream()
            self._measure(0.0 if self.source.finished else LAG_S)
        except BaseException as error:
            self._failed(error)
            raise
        self.error = None
        return taken

    def _advance_stream(self) -> None:
        """Bring time as far as the source says. A crash in front of this, and the next look at the source says it again."""
        to = getattr(self.source, "watermark", None)
        if to is None or (self._advanced is not None and to <= self._advanced):
            return
        bring_time(lambda: self._destination.advance(self.stream, to), self.stream)
        self._advanced = to

    def _finish_stream(self) -> None:
        """After the last row of a source that ends, where asked for. A crash in front of this, and it is done next time."""
        if self._to_finish and self._exhausted:
            self._destination.finish(self.stream)
            self._to_finish = False

    def _put(self, polled: Polled) -> int:
        """Push what was polled to the engine: rejected records first, then the rows with the offset."""
        rows, malformed = polled.rows, list(polled.malformed)
        if malformed:
            self._reject(malformed, None if rows else polled.offset)
        if not rows:
            return 0
        crash_point("ingestion-before-push")
        try:
            self._accept(rows, polled.offset)
        except DataError:
            rows, unfit = self._sifted(polled)
            if not unfit:
                raise
            self._reject(unfit, None if rows else polled.offset)
            if rows:
                self._accept(rows, polled.offset)
        self.rows += len(rows)
        return len(rows)

    def _accept(self, rows: Sequence[Any], offset: Any) -> None:
        self.undone += self._destination.put(
            self.stream, rows, self.size, source=self.name, offset=offset, after=self._offset
        )
        self._offset = offset

    def _sifted(self, polled: Polled) -> tuple[list[Any], list[Malformed]]:
        """The rows that fit their stream, and those that do not."""
        fit, unfit = [], []
        for i, row in enumerate(polled.rows):
            try:
                fit.append(self._destination.check(self.stream, row))
            except DataError as error:
                place = f"row {i} before {polled.offset!r}" if polled.place is None else polled.place(i)
                unfit.append(Malformed(place, repr(row), str(error)))
        return fit, unfit

    def _reject(self, malformed: list[Malformed], offset: Any) -> None:
        """Record what could not be taken. ``offset``: given when no rows follow that would carry it."""
        if not self._destination.has(REJECTED):
            first = malformed[0]
            raise SourceError(
                f"{self.name}: {first.place} is not a row of {self.stream}: {first.reason}. It was "
                f"{first.record[:200]!r}. To set such records aside instead, declare a table for them: "
                "tidegate.rejects.declare_rejected(app)",
                source=self.name,
                stream=self.stream,
                fatal=True,
            )
        rows = [rejected_row(self.name, m.place, self.stream, m.record, m.reason) for m in malformed]
        if offset is None:
            self._destination.put(REJECTED, rows)
        else:
            self._destination.put(REJECTED, rows, source=self.name, offset=offset, after=self._offset)
            self._offset = offset
        self.rejected += len(rows)
        log.warning("%s: %d records rejected; the first: %s", self.name, len(rows), text_of(malformed[0].reason))

    def _failed(self, error: BaseException) -> None:
        """After any doubt, the source is opened again at the offset on disk. A full queue is not such a case."""
        if not isinstance(error, (Overloaded, DiskFull)) and self._opened:
            self._opened = False
            self._polled = None
            self.source.close()
        if isinstance(error, Exception) and not isinstance(error, EngineClosed):
            self.error = error
            log.warning("ingestion %s: %s", self.name, error)

    # ---- starting and stopping

    def start(self) -> None:
        """Take rows on a separate thread."""
        self._thread = in_background("ingestion", self.name, self.run, self._ended)

    def _ended(self, error: Exception | None) -> None:
        with self._one_reads:
            if error is not None:
                self.error = error
                self.error.fatal = True  # type: ignore[attr-defined]
            self._reading.notify_all()

    def close(self) -> None:
        """Finish what is under way and stop; it continues from there when it is created again."""
        self._stop.set()
        if self._thread is not None:
            if hasattr(self.source, "interrupt"):
                self.source.interrupt()
            self._thread.join()
        with self._one_reads:
            if self._opened:
                self._opened = False
                self.source.close()
            self._reading.notify_all()


def ingest(
    target: Engine | Client,
    stream: str,
    source: Source,
    name: str | None = None,
    *,
    size: int | None = None,
    limit: int = 1000,
    finish: bool = False,
    background: bool = False,
) -> Ingestion:
    """Take the rows of ``source`` into a border stream of an engine, or of a served one (a client).

    ``ingestion.pump()`` takes what is there; ``background``: a thread does that, and reconnects automatically.
    ``name``: under which the offset is stored; do not change it. ``limit``: rows taken at a time; they are one batch,
    or batches of ``size`` rows. ``finish``: when the source has ended, its stream has, too (:meth:`Engine.finish`).
    Raises SourceError immediately when what the source holds does not fit the stream.
    """
    from tidegate.engine.engine import Engine

    for what, value in (("size", 1 if size is None else size), ("limit", limit)):
        if type(value) is not int or value < 1:
            raise TidegateError(f"ingest({stream!r}, …): {what} is a positive whole number of rows, got {value!r}")
    name = f"{type(source).__name__}/{stream}" if name is None else name
    ingestion = Ingestion(destination_of(target), stream, source, name, size, limit, finish)
    if isinstance(target, Engine):
        _register(target, ingestion)
    try:
        ingestion.open()
    except SourceError as error:
        ingestion.error = error
        if error.fatal or not background:
            ingestion.close()
            raise
    if background:
        ingestion.start()
    return ingestion


def _register(engine: Engine, ingestion: Ingestion) -> None:
    """An engine keeps its ingestions, to show and to close them; names are unique."""
    with engine.lock:
        engine.check_open()
        known = engine.ingestions.get(ingestion.name)
        if known is not None and known.at_work:
            raise TidegateError(
                f"ingestion {ingestion.name!r} is already running; ingest(…, name=…) takes another name",
                source=ingestion.name,
            )
        engine.ingestions[ingestion.name] = ingestion


def close_ingestions(engine: Engine) -> None:
    """Before an engine closes: nothing more is accepted."""
    for ingestion in engine.ingestions.values():
        ingestion.close()
