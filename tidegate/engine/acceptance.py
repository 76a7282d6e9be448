"""The way in: everything accepted goes through :meth:`Acceptance.accept`, in order, if there is room for it."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from tidegate.dataflows.validation import not_callable
from tidegate.engine.closing import stop_if_torn
from tidegate.engine.originals import RECOGNISED_BY_OFFSET, originals
from tidegate.engine.questions import check_answer
from tidegate.engine.ticking import LONGEST_S, Ticking
from tidegate.errors import BatchError, DeclarationError, Overloaded, TidegateError, unknown
from tidegate.outside.sources import check_place
from tidegate.storage.codec import to_json
from tidegate.storage.halfway import ACCEPTING
from tidegate.streams.border import Border, Parts
from tidegate.txn.entries import Advance, Call, Entry, Requeue, Resume, Resumption, Rows, Work, as_logged, write_down
from tidegate.txn.log.record import to_us
from tidegate.txn.ticket import Ticket

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine


KEPT_FREE = 10  # a tenth of the capacity is for work with a priority above 0, if an app has any


class Acceptance:
    """Everything between a client's work and the executor. ``push`` and ``call`` take the turn; callers of the other
    methods hold it and no other lock, unless a method says otherwise.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.sequence = 0  # the last sequence number assigned
        self._borders, self._scheduler = engine.borders, engine.scheduler
        self._halfway = engine.database.halfway
        self._topics = engine.outbox.topics
        self._announces = engine.runtime.ahead is not None
        awaited = [stream for stream in engine.app.streams.values() if stream.awaited]
        self.awaited = {stream.name for stream in awaited}
        self._shortest_s = min((s.deadline_s for s in awaited if s.deadline_s is not None), default=math.inf)
        self._due = -math.inf  # no deadline passes before this time
        self._ticking = Ticking(engine)
        self._timers = engine.runtime.timers
        self.begun = False  # the engine is open: time may pass

    def border(self, stream: str) -> Border:
        """The border stream of this name, or an error that says what to do."""
        engine = self._engine
        border = engine.borders.get(stream)
        if border is not None:
            return border
        if stream in engine.app.streams:
            raise TidegateError(
                f"{stream} is an interior stream, fed by its procedure; push to a border stream: "
                f"{', '.join(sorted(engine.borders)) or 'there is none'}",
                stream=stream,
            )
        raise unknown("push", "border stream", stream, engine.borders)

    def check_ready(self) -> None:
        """Raise when no work can be accepted; otherwise handle deadlines that have passed."""
        engine = self._engine
        engine.check_open()
        if engine.durable is not None:
            writer = engine.durable.writer
            if writer.failed is not None or writer.full is not None:
                writer.check()
        if engine.merger.failed is not None:
            engine.merger.check()
        if self._halfway.entering is not None or self._halfway.through is not None:
            self._halfway.check_entry()
        if self._scheduler.any_suspended or self._timers.next_us != math.inf:
            self.tick()

    def begin(self, name: str, timeout_s: float | None) -> None:
        """New work arrives: make sure there is room for it. An answer that something waits for is always let in."""
        self.check_ready()
        scheduler = self._scheduler
        if not (scheduler.live or scheduler.parked or scheduler.incomplete or self._engine.outbox.subscriptions):
            return
        if name not in self.awaited or self._unasked(name) >= self._engine.config.capacity:
            self.make_room(name, timeout_s)

    # ---- the one way in

    def accept(self, entry: Entry, ticket: Ticket | None) -> None:
        """Number the entry, log it, and give it its place in the order. No ticket: nobody waits for it."""
        self._halfway.entering = ACCEPTING
        with self._engine.lock:
            work = self.enter(entry, self.sequence + 1, self._engine.clock.now(), self._engine.executor.together)
            self.sequence = work.last
            if self._engine.durable is not None:
                write_down(entry, work, self._engine.durable.writer)
            if self._topics.of_borders:
                self._topics.accepted(work)
            if ticket is not None:
                batches = work.batches
                ticket.ids += (batches[0].id,) if len(batches) == 1 else tuple([batch.id for batch in batches])
        if self._announces and (ticket is None or len(work.batches) > 1):
            self.announce(work)
        self._engine.executor.place(work, ticket)
        self._halfway.entering = None

    def enter(self, entry: Entry, first: int, time: dt.datetime, together: bool) -> Work:
        """Number the entry from ``first`` on: its batches get their ids, its source its new offset. Timers have come."""
        if type(entry) is not Rows:  # isinstance() of a Struct takes ten times as long
            return self._enter_other(entry, first, time, together)
        if self._timers.silences and entry.border.name in self._timers.silences:
            self._timers.hear(entry.border.name, entry.parts, to_us(time))
        if entry.timers is not None:
            self._timers.entered(entry.border.name, entry.timers, entry.rows or (), to_us(time))
        if entry.batch_id is None:
            batches = entry.border.accept_all(entry.parts)
        else:
            batches = [entry.border.accept(key, rows, entry.batch_id) for key, rows in entry.parts]
        if entry.source is not None:
            self._engine.offsets[entry.source] = entry.offset
        return Work(first, first + len(batches) - 1, time, batches, None, together)

    def announce(self, work: Work) -> None:
        """Let windows be evaluated for all of the batches at once."""
        ahead = self._engine.runtime.ahead
        assert ahead is not None
        for batch in work.batches:
            ahead.coming(batch.relation.name, batch.key, batch.given, to_us(work.time))

    def acknowledge(self, ticket: Ticket) -> None:
        """Everything that the ticket stands for is accepted: report that, with a directory once it is on disk."""
        if self._engine.durable is None:
            ticket.arrive()  # all that arrive at it hold the turn
        else:
            with self._engine.lock:
                self._engine.durable.acknowledge(ticket)

    # ---- bringing in work

    def push(
        self,
        stream: str,
        rows: Iterable[Any],
        batch_id: int | None,
        timeout_s: float | None,
        source: str | None,
        offset: Any,
        after: Any,
        digest: str | None,
    ) -> Ticket:
        """See :meth:`Engine.push`."""
        engine, border = self._engine, self._borders.get(stream) or self.border(stream)
        if source is not None:
            check_place(source, offset)
        checked = border.check_rows(rows)
        parts = border.split(checked)
        try:
            with engine.turn:
                self.begin(stream, timeout_s)  # may release the turn while it waits for room: check ids after it
                if border.finished:
                    border.check_unfinished()
                ticket = Ticket(engine.teller)
                if after is not UNSET and self.repeats(stream, source, offset, after):
                    ticket.duplicate, parts, source = True, {}, None
                    ticket.look = lambda: [RECOGNISED_BY_OFFSET]
                if batch_id is not None:
                    if digest is not None:
                        check_answer(engine, border, parts, batch_id, digest)
                    parts = self._fresh(border, parts, batch_id, ticket)
                    for entry in _numbered(border, parts, batch_id, source, offset):
                        self.accept(entry, ticket)
                elif stream in self.awaited or digest is not None:
                    raise self.unnumbered(stream)
                elif parts or source is not None:
                    whole = None if type(checked) is tuple or len(parts) == 1 else checked
                    self.accept(Rows(border, [*parts.items()], len(checked), whole, None, source, offset), ticket)
                self.acknowledge(ticket)
        except BaseException:
            stop_if_torn(engine)
            raise
        engine.merger.look()
        return ticket

    def _fresh(self, border: Border, parts: Parts, batch_id: int, ticket: Ticket) -> Parts:
        """The parts that are new under this id."""
        if border.name in self._timers.silences:
            raise BatchError(
                f"push({border.name!r}, …, batch_id={batch_id}): {border.name} has idle=, so the engine numbers its "
                f"batches, those in which time runs on, too. Leave out batch_id=; give source= and offset= to have repeats "
                f"recognised",
                stream=border.name,
                batch_id=batch_id,
            )
        fresh = border.check_ids(parts, batch_id)
        if len(fresh) < len(parts):
            ticket.duplicate |= not fresh
            repeated = [key for key in parts if key not in fresh]
            ticket.look = partial(originals, self._engine, border.name, repeated, batch_id)
        self.check_awaited(border, fresh, batch_id)
        return fresh

    def prepare_call(
        self, procedure: str | Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Call:
        """A call, checked and ready to be logged. Takes no lock: a large call keeps nobody else waiting."""
        engine = self._engine
        name = procedure if isinstance(procedure, str) else procedure.__name__
        if name not in engine.graph.oltp:
            raise not_callable(name, engine.app.procedures, engine.graph.oltp)
        unit, written = engine.runtime.units[name], None
        if engine.durable is not None:
            written, arguments, named = as_logged(name, arguments, named)
        return Call(unit, *unit.members[0].bind_call(arguments, named), written)

    def call(self, call: Call, timeout_s: float | None = None) -> Ticket:
        """Accept the call, after waiting at most ``timeout_s`` seconds for room in the queues."""
        engine = self._engine
        try:
            with engine.turn:
                self.begin(call.unit.name, timeout_s)
                ticket = Ticket(engine.teller)
                self.accept(call, ticket)
                self.acknowledge(ticket)
        except BaseException:
            stop_if_torn(engine)
            raise
        engine.merger.look()
        return ticket

    def resume(self, dataflow: str, keys: tuple[Any, ...] | None, skip: bool) -> None:
        """Continue a halted dataflow, for all its keys or for these."""
        known = [key for name, key in self._engine.scheduler.halted if name == dataflow]
        if not known:
            halted = {name for name, _ in self._engine.scheduler.halted}
            unit = next((u for u in self._engine.graph.units if u.name == dataflow and u.dataflow in halted), None)
            if unit is not None:
                raise DeclarationError(
                    f"{dataflow} is a part of dataflow {unit.dataflow}, which is halted: give {unit.dataflow!r}",
                    name=dataflow,
                )
            raise unknown("skip" if skip else "resume", "halted dataflow", dataflow, halted)
        for key in keys or ():
            if key not in known:
                raise DeclarationError(
                    f"dataflow {dataflow} is not halted for key {key!r}; it is for {', '.join(map(repr, known[:20]))}",
                    name=dataflow,
                )
        self.accept(Resume(dataflow, keys, skip), None)

    def requeue(self, entry: Requeue) -> Ticket:
        """Accept the batch of a dead letter again."""
        self.begin(entry.border.name, None)
        entry.border.check_unfinished()
        ticket = Ticket(self._engine.teller)
        self.accept(entry, ticket)
        self.acknowledge(ticket)
        return ticket

    def _enter_other(
        self, entry: Call | Resume | Requeue | Advance, first: int, time: dt.datetime, together: bool
    ) -> Work:
        if type(entry) is Call:
            return Work(first, first, time, (), entry)
        if type(entry) is Advance:
            if entry.border.name in self._timers.silences:
                silence = self._timers.silences[entry.border.name]
                silence.told = max(silence.told, entry.to)
            batches = entry.batches()
            return Work(first, first + len(batches) - 1, time, batches, None, together)
        if type(entry) is Requeue:
            self._engine.journal.requeued(entry.letter)
            return Work(first, first, time, [entry.border.accept(entry.key, entry.rows)])
        assert type(entry) is Resume
        return self._resumed(entry, first, time)

    def _resumed(self, entry: Resume, first: int, time: dt.datetime) -> Work:
        """What was parked gets new numbers, from ``first`` on."""
        scheduler = self._engine.scheduler
        halts = [
            halt
            for halt in scheduler.halted
            if halt[0] == entry.dataflow and (entry.keys is None or halt[1] in entry.keys)
        ]
        skipped = [scheduler.halted[halt] for halt in halts] if entry.skip else []
        before = {execution: execution.position for execution in scheduler.moving(halts)}
        numbers = count(first)
        resumed = scheduler.resume(halts, numbers.__next__, entry.skip)
        moved = [(before[execution], execution) for execution in resumed]
        return Work(first, next(numbers) - 1, time, resumption=Resumption(moved, skipped))

    # ---- checks

    def repeats(self, stream: str, source: str | None, offset: Any, after: Any) -> bool:
        """Has the source already made this step? Raises if it is neither before nor after it."""
        if source is None:
            raise BatchError(
                f"push({stream!r}, …, after=…) gives the position of a source: pass source=, too", stream=stream
            )
        stands = self._engine.offsets.get(source)
        if to_json(stands) == to_json(offset):
            return True
        if to_json(stands) != to_json(after):
            raise BatchError(
                f"source {source!r} is at {stands!r}, so a push to {stream} from {after!r} to {offset!r} is out of turn; "
                f"another process feeds as this source, or an older one still did. Continue from position({source!r}), or "
                f"use another source name",
                stream=stream,
                source=source,
                position=stands,
            )
        return False

    def unnumbered(self, stream: str) -> BatchError:
        """An answer must say which question it answers."""
        return BatchError(
            f"{stream} answers questions: push with batch_id= the id of the batch that asked "
            f"(engine.questions() lists them)",
            stream=stream,
        )

    def check_awaited(self, border: Border, keys: Iterable[Any], batch_id: int) -> None:
        engine = self._engine
        if border.name not in self.awaited:
            return
        for key in keys:
            execution = engine.scheduler.awaiting(border.name, key)
            if execution is not None and execution.batch_id is not None and batch_id > execution.batch_id:
                raise BatchError(
                    f"batch {batch_id} on {border.name} would overtake batch {execution.batch_id}, which {execution} waits "
                    f"for; answer that one first",
                    stream=border.name,
                    batch_id=batch_id,
                    last_id=execution.batch_id,
                )

    def _unasked(self, stream: str) -> int:
        """The number of batches on an awaited stream that arrived before their question."""
        early = self._engine.scheduler.early
        return sum(len(batches) for (name, _), batches in early.items() if name == stream)

    def _too_much(self, name: str) -> str | None:
        """What there is too much of for ``name`` to accept more; None when there is room.

        Batches that wait for another stream's count only against their own stream: what completes them is let in.
        """
        scheduler, capacity = self._engine.scheduler, self._engine.config.capacity
        precedence = self._engine.graph.precedence
        if precedence.any and precedence.of(name) <= 0:  # the rest is for what goes first
            capacity -= capacity // KEPT_FREE
        if precedence.limited and name in self._borders:
            own = self._engine.app.streams[name].capacity
            if own is not None and scheduler.unfinished[name] >= own:
                return f"{own} executions that {name} has caused are unfinished"
        if len(scheduler.live) + len(scheduler.parked) >= capacity:
            return f"{capacity} executions are unfinished"
        if scheduler.incomplete[name] >= capacity:
            return f"{capacity} of its batches wait for a batch of another stream with the same id"
        if scheduler.early and self._unasked(name) >= capacity:
            return f"{capacity} of its batches arrived before anything asked for them"
        full = self._engine.outbox.full(name)
        if full is not None:
            return f"{len(full)} batches wait for subscriber {full.name!r}"
        return None

    def make_room(self, name: str, timeout_s: float | None) -> None:
        """Back-pressure: wait for the queues to drain (threads), or refuse."""
        engine = self._engine
        with engine.lock:
            if self._too_much(name) is None:
                return
        if engine.config.executor == "threads" and timeout_s != 0:
            engine.executor.ended.wait_for(lambda: self._too_much(name) is None or engine.closed, timeout_s)
            engine.check_open()
        with engine.lock:
            told = self._too_much(name)
        if told is not None:
            raise Overloaded(
                f"{told}, so {name} accepts no more for now; see tidegate.executions and tidegate.deliveries for what they "
                f"wait for, then push again (the settings are Config.capacity and Config.backlog)",
                stream=name,
                capacity=engine.config.capacity,
            )

    def is_full(self, name: str) -> bool:
        """Is there no room for more on this stream now?"""
        with self._engine.lock:
            return self._too_much(name) is not None

    def pause_s(self, most_s: float) -> float:
        """How long nothing can happen by the clock alone, at most so long."""
        return self._ticking.pause_s(most_s) if self._ticking.waits else most_s

    @property
    def needs_time(self) -> bool:
        """Does the app declare anything that the clock brings in?"""
        app = self._engine.app
        timed = any(procedure.timers for procedure in app.procedures.values())
        return bool(timed or self.awaited or self._timers.schedules or self._timers.silences)

    def idle_s(self) -> float | None:
        """How long a worker without work may sleep before it lets time pass; None: nothing comes by the clock alone."""
        waits = self._ticking.waits or self._scheduler.any_suspended
        return self.pause_s(LONGEST_S) if waits and self.begun else None

    def tick(self) -> None:
        """Let in what the clock brings: timers and schedules that are due, and defaults of deadlines that have passed."""
        engine = self._engine
        if not self.begun:
            return
        broken = self._halfway.through is not None or self._halfway.entering is not None
        if broken or (engine.durable is not None and not engine.durable.writer.taking):
            return  # nothing can be accepted now; the deadline is handled when it can
        if self._timers.next_us != math.inf:
            self._ticking.enter_due()
        if not self._scheduler.live:
            return
        now = engine.clock.monotonic()
        if now < self._due:
            return
        next_due = now + self._shortest_s  # of those that ask from now on
        for execution in engine.scheduler.suspended():
            stream = engine.app.streams[str(execution.reason.stream)]
            if stream.deadline_s is None:
                continue
            due = execution.context.shown[-1].at + stream.deadline_s
            if now < due:
                next_due = min(next_due, due)
                continue
            fill = {stream.key: execution.key} if stream.key else {}
            border = engine.borders[stream.name]
            rows = border.check_rows([{**row, **fill} for row in stream.default])
            self.accept(Rows(border, [(execution.key, rows)], batch_id=execution.batch_id), None)
        self._due = next_due


def _numbered(border: Border, parts: Parts, batch_id: int, source: str | None, offset: Any) -> list[Rows]:
    """The parts of a push with a given id, an entry for each; the offset must not survive a crash without all of them.

    It goes with the last: when the source pushes again, parts that were already accepted are recognised by the id.
    """
    if not parts:
        return [] if source is None else [Rows(border, [], 0, None, None, source, offset)]
    *others, last = parts.items()
    entries = [Rows(border, [part], 1, None, batch_id) for part in others]
    return [*entries, Rows(border, [last], 1, None, batch_id, source, offset)]
