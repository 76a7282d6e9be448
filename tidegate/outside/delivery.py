"""Delivery: committed output batches go to a sink outside, in order, across crashes of either side.

    durable subscription ─▶ take ─▶ sink.send ─▶ ack (a record in the log)
                              ▲         │
                              └─────────┘ SinkError: put back, sent again later

The log and the target are two systems, so a crash can fall between ``send`` and ``ack``; the batches are
then sent again after recovery, with the same ids and the same rows. Whether they *arrive* once is up to the
sink:

* a **transactional** sink stores the id of a batch atomically with its rows, and recognises the repeat: each batch
  takes effect exactly once;
* any other sink sees the repeat (at least once) and passes on ``batch.stable_id``, for the receiver to
  recognise it by.

``take`` returns only what is on disk, earlier acknowledgements included. So nothing is sent that a crash could undo,
and after a crash at most the batches of one ``send`` are repeated.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.crashpoints import crash_point
from tidegate.errors import DiskFull, EngineClosed, ServerError, SinkError, SinkRefused, TidegateError, text_of
from tidegate.forking import own
from tidegate.mutex import Flag
from tidegate.outside.background import in_background, repeat
from tidegate.outside.durable import Start
from tidegate.outside.feedback import check_acyclic, check_ordered
from tidegate.storage.schema import Relation
from tidegate.streams.batch import Batch

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

log = logging.getLogger("tidegate")


class Sink(Protocol):
    """Where batches go. Called by one thread at a time.

    ``transactional``: True when ``send`` has the effect of each batch exactly once, however often the batch is sent.
    That needs a target that stores rows and batch-id together, or an effect that is identified by the batch-id. False:
    at least once.
    ``at_once``: how many batches one ``send`` takes at most. More is faster where they share a transaction;
    1 means that a failure repeats no other batch.
    """

    @property
    def transactional(self) -> bool: ...

    @property
    def at_once(self) -> int: ...

    def open(self, name: str, relation: Relation) -> None:
        """Get ready for batches of ``relation``; SinkError if that can't work.

        ``name``: of the delivery and its app (``app/delivery``), for what the target stores about it.
        """

    def send(self, batches: Sequence[Batch]) -> None:
        """Take the batches, in this order. Returning means they are safe; raising means they are sent again."""

    def close(self) -> None:
        """Close connections."""


class Waiting(Protocol):
    """What was not delivered yet: a durable subscription, of an engine or of a served one."""

    name: str
    stream: str

    def __len__(self) -> int: ...
    def wait(self) -> None: ...
    def take(self, limit: int) -> list[Batch]: ...
    def put_back(self, batches: Iterable[Batch]) -> None: ...
    def ack(self, batches: Iterable[Batch]) -> None: ...
    def refuse(self, batch: Batch, reason: str) -> None: ...
    def interrupt(self) -> None: ...


class Delivery:
    """The delivery of one stream to one sink. Created by :meth:`Engine.deliver`.

    ``error`` is the last failure, None after a success; ``delivered`` counts batches since opening, ``refused`` those
    moved to the dead letters; ``len`` is how many wait.
    ``tries``: how often the target may refuse a batch (:class:`~tidegate.errors.SinkRefused`) before it becomes a dead
    letter; None: no limit. An unreachable target is not counted as a refusal.
    """

    def __init__(
        self,
        subscription: Waiting,
        sink: Sink,
        tries: int | None = None,
        *,
        check_open: Callable[[], None] = lambda: None,
        sending: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        own(self)
        self.name = subscription.name
        self.stream = subscription.stream
        self.sink = sink
        self.error: Exception | None = None
        self.delivered = 0
        self.refused = 0
        self.tries = tries
        self._refusals: Counter[object] = Counter()  # of the batch that is refused now
        self._singly = 0  # batches to send one by one, to find the one that is refused
        self._check_open = check_open
        self._sending_now = sending
        self._subscription = subscription
        self._one_sends = (
            threading.RLock()
        )  # taken itself: a condition takes it in Python, where Ctrl-C could leave it locked
        self._sending = threading.Condition(self._one_sends)  # one sends at a time; notified after every attempt
        self._stop = Flag()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._unopened: tuple[str, Relation] | None = None  # as what the sink has to be opened before it is sent to

    def __len__(self) -> int:
        return len(self._subscription)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Delivery {self.name} {self.state} {self.delivered} delivered, {len(self)} waiting>"

    @property
    def state(self) -> str:
        """open, failing (it tries again), stopped (it does not) or closed."""
        if self._stopped:
            return "stopped"
        return "closed" if self._stop.is_set() else "failing" if self.error is not None else "open"

    @property
    def at_work(self) -> bool:
        return self.state in ("open", "failing")

    # ---- delivering

    def pump(self, limit: int = 1000) -> int:
        """Deliver what is waiting, ``limit`` batches at most; returns how many. Needs no thread.

        Raises SinkError when the sink does not accept a batch. The batch is kept, in its place, for the next call.
        """
        self._check_open()
        count = 0
        while count < limit:
            sent = self._send_some(limit - count)
            if not sent:
                break
            count += sent
        return count

    def run(self) -> None:
        """Deliver until the engine closes, pausing after a failure: 0.1 s, doubled each time up to 30 s."""
        repeat(self._step, self._stop, (SinkError, ServerError, DiskFull))

    def _step(self) -> bool:
        try:
            self._subscription.wait()
        except ServerError as error:
            self._failed(error)
            raise
        self._send_some(self.sink.at_once)
        return True

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until the background has delivered everything; False when ``timeout_s`` was not enough."""
        with self._one_sends:
            return self._sending.wait_for(lambda: not len(self) or not self.at_work, timeout_s) and not len(self)

    def _send_some(self, limit: int) -> int:
        """Take, send, acknowledge: the whole protocol."""
        batches: list[Batch] = []
        with self._one_sends:
            if self._stop.is_set():
                raise EngineClosed(
                    f"delivery {self.name} is closed; waiting batches are delivered when the engine is next opened"
                )
            try:
                batches = self._subscription.take(1 if self._singly else min(limit, self.sink.at_once))
                if batches:
                    crash_point("delivery-before-send")
                    self._send(batches)
                    crash_point("delivery-after-send")
                    self._subscription.ack(batches)
            except BaseException as error:
                self._failed(error)
                if not (isinstance(error, SinkRefused) and self._put_aside(batches, error)):
                    self._subscription.put_back(batches)
                    raise
            else:
                self.error = None
                self.delivered += len(batches)
            self._singly = max(self._singly - len(batches), 0)
            self._sending.notify_all()
        return len(batches)

    def _put_aside(self, batches: Sequence[Batch], error: SinkRefused) -> bool:
        """The target refused: was that once too often? Of several batches it is unknown which one it meant."""
        if self.tries is None:
            return False
        if len(batches) > 1:
            self._singly = len(batches)
            return False
        (batch,) = batches
        self._refusals[batch.stable_id] += 1
        if self._refusals[batch.stable_id] < self.tries:
            return False
        self._refusals.clear()
        self._subscription.refuse(batch, text_of(error))
        self.refused += 1
        log.warning(
            "delivery %s: %r was refused %d times and moved to tidegate.dead_letters", self.name, batch, self.tries
        )
        return True

    def _send(self, batches: Sequence[Batch]) -> None:
        try:
            with self._sending_now():
                if self._unopened is not None:
                    self.sink.open(*self._unopened)
                    self._unopened = None
                self.sink.send(batches)
        except SinkError:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and threading.current_thread() is not self._thread:
                raise  # Ctrl-C, for the caller of pump(); on our own thread sys.exit() is a failure like any other
            raise SinkError(
                f"{type(self.sink).__name__} raised {type(error).__name__}: {text_of(error)} for {batches[0]!r} of "
                f"delivery {self.name}; the batch is kept and sent again. Look at the target, or at the "
                "sink's own code",
                sink=self.name,
                stream=self.stream,
            ) from error

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self.error = error
            log.warning("delivery %s: %s", self.name, error)

    # ---- starting and stopping

    def open_later(self, name: str, relation: Relation, error: SinkError) -> None:
        """The target is unreachable: the sink is opened before the next batch is sent."""
        self._unopened = name, relation
        self._failed(error)

    def start(self) -> None:
        """Deliver on a separate thread."""
        self._thread = in_background("delivery", self.name, self.run, self._ended)

    def _ended(self, error: Exception | None) -> None:
        with self._one_sends:
            if error is not None:
                self.error, self._stopped = error, True
            self._sending.notify_all()

    def close(self) -> None:
        """Finish the send that is under way and stop. Called by the engine before its log closes."""
        self._stop.set()
        self._subscription.interrupt()
        if self._thread is not None:
            self._thread.join()
        with self._one_sends:
            self._sending.notify_all()
            try:
                self.sink.close()
            except Exception:
                log.exception("delivery %s: its sink did not close", self.name)


def qualified(app: str, delivery: str) -> str:
    """The name under which a target knows a delivery: two apps may have deliveries of one name.

    >>> qualified("shop", "out"), qualified("shop", "shop/orders/SqlSink")
    ('shop/out', 'shop/orders/SqlSink')
    """
    return delivery if delivery.startswith(f"{app}/") else f"{app}/{delivery}"


def start_delivery(
    engine: Engine,
    stream: str,
    sink: Sink,
    name: str | None,
    *,
    background: bool = False,
    tries: int | None = None,
    snapshot: bool = True,
    patient: bool = False,
    start: Start = "now",
    on_lag: Any = None,
) -> Delivery:
    """See :meth:`Engine.deliver`. ``background``: a thread delivers, not ``pump()``. ``tries``: see :class:`Delivery`.
    ``patient``: an unreachable target is tried again later, instead of raising SinkError here.

    ``snapshot``: the first delivery of a changelog under this name begins with the rows that its table holds; False: with
    the next change. ``start``, ``on_lag``: of a new delivery, as in :meth:`Engine.subscribe_durably`.
    """
    name = f"{engine.app.name}/{stream}/{type(sink).__name__}" if name is None else name
    if sink.transactional and engine.directory is None:
        raise TidegateError(
            f"deliver({stream!r}, {type(sink).__name__}): an engine in memory forgets its batch-ids, so the "
            "next run's batch 1 would be taken for a repeat of this run's. Open the app with a directory: "
            "tidegate.open(app, path)",
            sink=name,
            stream=stream,
        )
    if name in engine.outbox.deliveries:
        raise TidegateError(
            f"delivery {name!r} is already running; deliver({stream!r}, …, name=…) takes another name",
            sink=name,
        )
    if type(sink.at_once) is not int or sink.at_once < 1:
        raise TidegateError(
            f"a sink must take at least one batch at a time, this one takes {sink.at_once!r}", sink=name
        )
    if tries is not None and (type(tries) is not int or tries < 1):
        raise TidegateError(
            f"deliver({stream!r}, …, tries=…) takes a positive whole number or None, got {tries!r}", sink=name
        )
    check_acyclic(engine, stream, sink)
    check_ordered(engine, stream, sink)
    place, unreachable = (qualified(engine.app.name, name), engine.app.streams[stream].relation), None
    try:
        try:
            sink.open(*place)
        except SinkError as error:
            if not patient or isinstance(error, SinkRefused):
                raise
            unreachable = error
        engine.check_open()
        subscription = engine.outbox.subscribe(name, stream, snapshot, start, on_lag)
        with engine.lock:
            engine.check_open()
            delivery = Delivery(subscription, sink, tries, check_open=engine.check_open, sending=engine.outbox.sending)
            engine.outbox.deliveries[name] = delivery
    except BaseException:
        sink.close()
        raise
    if unreachable is not None:
        delivery.open_later(*place, unreachable)
    if background:
        delivery.start()
    return delivery
